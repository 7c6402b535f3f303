# Tests: tests/test_size.py
"""Measure how late a million delayed messages are that come due over a minute, under load.

``python -m benchmarks.schedule [--scale 0.01] [--orders random] [--json]``. A broker first gets the
whole schedule, in order of the due times or shuffled. Then it delivers it, while producers and
consumers of another log go on. The benchmark reports two kinds of lateness, each as p50, p99 and
maximum:

*fired*      from the due time to the append time of the record in its topic: the begin of its
             frame; a frame that waits for the one before may be older than records that join it
*delivered*  from the due time to the arrival at a consumer, a process that waits with ACQUIRE_BATCH
             and settles each message, so two durable commits later; by the monotonic clock that
             both processes share, so a correction of the wall clock does not count as early
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from struct import Struct
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from brokerd.broker import Partition
from brokerd.cli.bench.formats import LoadTarget
from brokerd.cli.bench.machine import describe, sync_rate
from brokerd.cli.bench.measure import Figures, Plan, new_topic
from brokerd.cli.bench.measure import measure as measure_load
from brokerd.values import Record

from .children import ChildFailed, answer, run_child
from .inside import Inside, run
from .process import interrupt_on_signals
from .stall_probe import StallProbe
from .states import call
from .wire import ACQUIRE_BATCH, SETTLE_BATCH, Wire, request

ENTRIES = 1_000_000
SPREAD_SECONDS = 60.0
ORDERS = ("in-order", "random")
_TOPIC = "fired"
_DUE = Struct(">Q")
_LEADS_SECONDS = (6.0, 24.0, 96.0)
"""Each is tried if the one before was too short: the disk may be slow for a while."""
_SCHEDULED_PER_S = 20_000
"""Least rate at which the schedule is written before the first entry is due."""
_LOAD_LEAD_SECONDS = 2.0
_CONSUMER_BATCH = 500
_CONSUMER_SILENCE_SECONDS = 60.0
_FETCH_RECORDS = 10_000
_FETCH_BYTES = 1 << 20
_STEP_SECONDS_MAX = 600.0


def fire(data_dir: Path, order: str, scale: float, lead_seconds: float) -> dict[str, Any]:
    """Fill the schedule, let it deliver under load, and return the lateness.

    :param lead_seconds: time to fill the schedule, besides what its entries take.
    :return: the figures, or only ``too_slow_seconds``: the first entry was due before the schedule
        was filled, which took that long.
    """
    count = max(1, int(ENTRIES * scale))
    spread_us = max(1_000_000, int(SPREAD_SECONDS * 1e6 * scale))

    async def scenario(inside: Inside, start_seconds: float) -> dict[str, Any]:
        inside.leave = True
        broker = inside.broker
        now_us = broker.time.time_us
        first_us = now_us() + int((lead_seconds + count / _SCHEDULED_PER_S) * 1e6)
        began = time.monotonic()
        await _schedule(inside, due_times(count, spread_us, first_us, order))
        seconds = time.monotonic() - began
        if now_us() >= first_us:
            return {"too_slow_seconds": seconds}
        await inside.sleep(max(0.0, (first_us - now_us()) / 1e6 - _LOAD_LEAD_SECONDS))
        load_seconds = spread_us / 1e6 + _LOAD_LEAD_SECONDS
        load = deferToThread(_moderate_load, inside.address, load_seconds)
        consumer = deferToThread(_run_consumer, inside.address, count)
        probe = StallProbe(inside.reactor)
        probe.begin("firing")
        delivered = await consumer
        ahead_us = now_us() - _monotonic_us()
        stalls = probe.end()
        figures = await load
        topic = broker.topics.find(_TOPIC)
        assert topic is not None
        return {
            "entries": count,
            "spread_seconds": spread_us / 1e6,
            "schedule_seconds": seconds,
            "fired": await _fired(inside, topic.partition(0)),
            "delivered": shifted(delivered, ahead_us / 1000),
            "load_msgs_per_s": figures.msgs_per_s,
            "load_p99_ms": figures.p99_ms,
            "stalls": asdict(stalls),
        }

    return run(data_dir, (), scenario)[0]


def due_times(count: int, spread_us: int, first_us: int, order: str) -> list[int]:
    """Return due times at even distances from ``first_us``, in the order of scheduling."""
    times = [first_us + spread_us * number // count for number in range(count)]
    if order == "random":
        random.Random(7).shuffle(times)
    return times


async def _schedule(inside: Inside, times: Sequence[int]) -> None:
    broker = inside.broker
    topic = broker.topics.create(_TOPIC)
    now_us, later = broker.time.time_us, broker.delayed.produce

    def one(due_us: int) -> object:
        return later(topic, _DUE.pack(due_us), delay_us=due_us - now_us())

    await call(inside, times, lambda: one)


def _moderate_load(address: str, seconds: float) -> Figures:
    plan = Plan("mixed", address, connections=4, window=4, seconds=seconds, warm_up_seconds=0.2)
    found = measure_load(plan, LoadTarget(new_topic()))
    if found.errors:
        raise ChildFailed(f"the load met {found.errors} errors, such as {found.first_error}")
    return found


def _run_consumer(address: str, count: int) -> dict[str, Any]:
    spec = {"step": "consume", "address": address, "count": count}
    return run_child("benchmarks.schedule", spec, _STEP_SECONDS_MAX)


def consume(address: str, count: int) -> dict[str, Any]:
    """Consume all delayed messages; return their lateness by the monotonic clock."""
    who: dict[str, object] = {"log_id": _TOPIC, "group_id": "bench", "client_id": "consumer"}
    acquire = request(ACQUIRE_BATCH, {**who, "duration": 60, "max": _CONSUMER_BATCH, "wait": 5})
    late_us: list[int] = []
    heard = time.monotonic()
    with Wire(address) as wire:
        requests = [acquire]
        while len(late_us) < count and time.monotonic() - heard < _CONSUMER_SILENCE_SECONDS:
            messages = wire.exchange(requests)[-1]["messages"]
            now_us = _monotonic_us()
            late_us += [now_us - _DUE.unpack(message["payload"])[0] for message in messages]
            settles = [
                {"message_id": one["id"], "token": one["token"], "success": True}
                for one in messages
            ]
            requests = [acquire]
            if settles:
                heard = time.monotonic()
                requests.insert(0, request(SETTLE_BATCH, {**who, "settles": settles}))
        wire.exchange(requests[:-1])
    return lateness(late_us)


async def _fired(inside: Inside, partition: Partition) -> dict[str, Any]:
    late_us: list[int] = []
    offset = 0
    while offset < partition.next_offset:
        read: Deferred[tuple[list[Record], int]] = Deferred()

        def done(
            records: list[Record],
            next_offset: int,
            error: Exception | None,
            read: Deferred[tuple[list[Record], int]] = read,
        ) -> None:
            if error is None:
                read.callback((records, next_offset))
            else:
                read.errback(error)

        inside.broker.reader.fetch(partition, offset, _FETCH_RECORDS, _FETCH_BYTES, done)
        records, offset = await read
        late_us += [one.append_time_us - _DUE.unpack(one.value)[0] for one in records]
        await inside.sleep()
    return lateness(late_us)


def lateness(late_us: list[int]) -> dict[str, Any]:
    """Return count, minimum, percentiles and maximum in milliseconds; negative means early."""
    ordered = sorted(late_us)
    if not ordered:
        return {"count": 0}

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000

    return {
        "count": len(ordered),
        "min_ms": at(0),
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "max_ms": at(1),
    }


def shifted(figures: dict[str, Any], by_ms: float) -> dict[str, Any]:
    """Return figures of `lateness` with ``by_ms`` added to every time.

    The lead of broker time over the monotonic clock never shrinks. With the final lead no message
    that came at its due time or later looks early.
    """
    return {key: value if key == "count" else value + by_ms for key, value in figures.items()}


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000


# -- the parent --------------------------------------------------------------------------------


def measure(
    directory: Path, orders: Sequence[str], scale: float, show: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yield the figures of one order of due times after the other.

    :raises ChildFailed: a step fails.
    """
    raw = sync_rate(directory, 4096, 0.5)
    show(f"schedule at scale {scale:g}; durability fsync; raw 4 KiB syncs/s {raw:,.0f}")
    for order in orders:
        for lead_seconds in _LEADS_SECONDS:
            with tempfile.TemporaryDirectory(prefix=f"{order}-", dir=directory) as name:
                spec = {"step": "fire", "order": order, "scale": scale, "data_dir": f"{name}/data"}
                spec["lead_seconds"] = lead_seconds
                found = run_child("benchmarks.schedule", spec, _STEP_SECONDS_MAX)
            if "too_slow_seconds" not in found:
                break
        else:
            seconds = found["too_slow_seconds"]
            raise ChildFailed(f"the schedule took {seconds:.0f} s: too slow to begin in time")
        show(
            f"  {order:<9}{found['entries']:,} entries over {found['spread_seconds']:.0f} s, "
            f"scheduled in {found['schedule_seconds']:.1f} s; load {found['load_msgs_per_s']:,.0f} "
            f"messages/s, p99 {found['load_p99_ms']:.1f} ms; longest turn "
            f"{found['stalls']['longest_ms']:.0f} ms, "
            f"busiest {found['stalls']['busiest_ms']:.0f} ms"
        )
        for what in ("fired", "delivered"):
            late = found[what]
            show(
                f"    {what:<10}{late['count']:>9,}: earliest {late['min_ms']:.1f} ms late, "
                f"p50 {late['p50_ms']:.1f}, p99 {late['p99_ms']:.1f}, max {late['max_ms']:.1f}"
            )
        for line in found["stalls"]["where"]:
            show(f"      {line}")
        yield {"order": order, "scale": scale, "raw_fdatasync_per_s": raw, **found}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedule")
    parser.add_argument("--scale", type=float, default=1.0, help="of the schedule (default: 1)")
    parser.add_argument("--orders", default=",".join(ORDERS), help="some of the orders")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step is not None:
        return answer(lambda: _step(json.loads(options.step)))
    interrupt_on_signals()
    orders = options.orders.split(",")
    if unknown := set(orders) - set(ORDERS):
        parser.error(f"no order {min(unknown)!r}; there are {', '.join(ORDERS)}")

    def show(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name:
            machine = describe(Path(name))
            show(machine.text())
            found = list(measure(Path(name), orders, options.scale, show))
            if options.json:
                print(json.dumps({"machine": asdict(machine), "orders": found}))
    except ChildFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


def _step(spec: dict[str, Any]) -> dict[str, Any]:
    if spec["step"] == "consume":
        return consume(spec["address"], spec["count"])
    return fire(Path(spec["data_dir"]), spec["order"], spec["scale"], spec["lead_seconds"])


if __name__ == "__main__":
    sys.exit(main())
