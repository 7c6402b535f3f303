# Tests: tests/test_stalls.py
"""Check key order with poisoned keys: keys stay in order, and healthy keys do not wait.

``python -m benchmarks.key_order [--scale 0.01] [--json]``. A broker serves a log of many keys.
Consumers in another process acquire and settle in batches, with durable answers. Three runs take
turns, round by round, each on a new log with the same keys:

``ordered``   a key-ordered group
``poisoned``  the same, but every message of 1 % of the keys fails until it is a dead letter
``free``      a group without key order

The rate counts the messages of the healthy keys. The consumers check each delivery. A message is
*reordered* when an earlier message of its key is neither settled nor dead, or was first delivered
after it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from twisted.internet.threads import deferToThread

from brokerd.broker import GroupSettings
from brokerd.cli.bench.machine import describe, sync_rate

from .admin import fetch_status
from .children import ChildFailed, answer, run_child
from .inside import Inside, run
from .process import interrupt_on_signals
from .states import call
from .wire import ACQUIRE_BATCH, SETTLE_BATCH, Wire, request

TARGET = 0.9
MESSAGES = 200_000
KEYS = 10_000
POISONED = 0.01
ROUNDS = 3
RUNS = ("ordered", "poisoned", "free")
GROUP = "bench"
ATTEMPTS = 3
"""Number of failures that make a message a dead letter, as configured here."""
_CONNECTIONS = 16
_BATCH = 50
_WAIT_SECONDS = 0.2
_STEP_SECONDS_MAX = 600.0
_POISON = b"p"


# -- consumers ---------------------------------------------------------------------------------


@dataclass
class Deliveries:
    """The deliveries to all consumers of one process."""

    poisoned: bool
    wanted: int
    """Number of messages of keys that never fail."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)
    open: dict[bytes, int] = field(default_factory=dict)
    """By key: the delivered message that is neither settled nor dead."""
    first: dict[bytes, int] = field(default_factory=dict)
    """By key: the latest message that was delivered for the first time."""
    count: int = 0
    reordered: int = 0
    done: int = 0
    dead: int = 0
    ended: float = 0.0

    def take(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Check deliveries, process them, and return the settles to send."""
        settles = []
        with self.lock:
            for message in messages:
                key, number = message["key"], message["id"]
                if self.open.setdefault(key, number) != number or number < self.first.get(key, -1):
                    self.reordered += 1
                self.first[key] = max(number, self.first.get(key, -1))
                fails = self.poisoned and key.startswith(_POISON)
                # Booked before the settle is sent: the next message of the key may come at once.
                if not fails or message["grants"] >= ATTEMPTS:
                    self.open.pop(key, None)
                    self.dead += fails
                    self.done += not key.startswith(_POISON)
                settles.append({"message_id": number, "success": not fails, "delay": 0.0})
            self.count += len(messages)
        return settles

    def settled(self) -> None:
        """Book the answers to the settles that were sent."""
        with self.lock:
            if self.done >= self.wanted and not self.over.is_set():
                self.ended = time.monotonic()
                self.over.set()


def consume(
    address: str, log: str, connections: int, poisoned: bool, wanted: int
) -> dict[str, Any]:
    """Consume until all messages of the healthy keys are settled; return the figures."""
    deliveries = Deliveries(poisoned, wanted)
    wires = [Wire(address) for _ in range(connections)]
    errors: list[str] = []

    def work(wire: Wire, client: str) -> None:
        names = {"log_id": log, "group_id": GROUP, "client_id": client}
        body = {**names, "duration": 60.0, "max": _BATCH, "wait": _WAIT_SECONDS}
        acquire = request(ACQUIRE_BATCH, body)
        try:
            while not deliveries.over.is_set():
                (found,) = wire.exchange([acquire])
                settles = deliveries.take(found["messages"])
                if settles:
                    answers = wire.exchange([request(SETTLE_BATCH, {**names, "settles": settles})])
                    errors.extend(one for one in answers[0]["results"] if one != "settled")
                    deliveries.settled()
        except Exception as error:  # Any error ends the run as a failure.
            errors.append(f"{type(error).__name__}: {error}")
            deliveries.over.set()

    workers = [
        threading.Thread(target=work, args=(wire, f"worker-{number}"), daemon=True)
        for number, wire in enumerate(wires)
    ]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for wire in wires:
        wire.close()
    if errors:
        raise ChildFailed(f"{len(errors)} errors, such as {errors[0]}")
    return {
        "per_s": deliveries.done / (deliveries.ended - began),
        "deliveries": deliveries.count,
        "reordered": deliveries.reordered,
        "dead": deliveries.dead,
    }


# -- the broker --------------------------------------------------------------------------------


def serve(data_dir: Path, scale: float, rounds: int) -> dict[str, Any]:
    """Do all runs in turns against one broker and return the figures."""
    keys = _keys(scale)
    wanted = sum(not key.startswith(_POISON) for key in keys)

    async def scenario(inside: Inside, start_seconds: float) -> dict[str, Any]:
        inside.leave = True
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
        for number in range(rounds):
            for name in RUNS:
                log = f"{name}-{number}"
                await _fill(inside, log, keys, ordered=name != "free")
                spec = {
                    "step": "consume",
                    "address": inside.address,
                    "log": log,
                    "poisoned": name == "poisoned",
                    "wanted": wanted,
                }
                one = await deferToThread(run_child, _MODULE, spec, _STEP_SECONDS_MAX)
                one["letters"] = inside.broker.overview.group_info(log, GROUP).dead
                found[name].append(one)
        status = await deferToThread(fetch_status, inside.admin)
        return {"runs": found, "durability": status["durability"], "messages": wanted}

    return run(data_dir, (), scenario)[0]


def _keys(scale: float) -> list[bytes]:
    """Return the keys of the messages, in the same order for every run."""
    count = max(20, int(KEYS * scale))
    poisoned = max(1, int(count * POISONED))
    keys = [_POISON + b"%d" % number for number in range(poisoned)]
    keys += [b"k%d" % number for number in range(count - poisoned)]
    messages = keys * max(2, int(MESSAGES * scale) // count)
    random.Random(1).shuffle(messages)
    return messages


async def _fill(inside: Inside, log: str, keys: Sequence[bytes], ordered: bool) -> None:
    broker = inside.broker
    partition = broker.topics.create(log).partition(0)
    settings = GroupSettings(max_attempts=ATTEMPTS, key_ordered=ordered)
    broker.groups.configure(log, GROUP, settings)
    value = b"x" * 100
    await call(inside, keys, lambda: lambda key: broker.appender.produce(partition, value, key=key))


# -- the parent --------------------------------------------------------------------------------

_MODULE = "benchmarks.key_order"


def measure(
    directory: Path, scale: float, rounds: int, show: Callable[[str], None]
) -> dict[str, Any]:
    """Run all rounds and return medians and ratios.

    :raises ChildFailed: the broker or the consumers fail.
    """
    raw = sync_rate(directory, 4096, 0.5)
    with tempfile.TemporaryDirectory(prefix="key-order-", dir=directory) as name:
        spec = {
            "step": "serve",
            "data_dir": str(Path(name) / "data"),
            "scale": scale,
            "rounds": rounds,
        }
        found = run_child(_MODULE, spec, _STEP_SECONDS_MAX)
    runs = found["runs"]
    show(
        f"key order, {found['messages']:,} messages of keys that never fail, {_CONNECTIONS} "
        f"connections; durability {found['durability']}; raw 4 KiB syncs/s {raw:,.0f}"
    )
    for name in RUNS:
        ones = runs[name]
        show(
            f"  {name:<9}{median(one['per_s'] for one in ones):>9,.0f} messages/s, "
            f"{sum(one['reordered'] for one in ones)} reordered of "
            f"{sum(one['deliveries'] for one in ones):,} deliveries, "
            f"{sum(one['letters'] for one in ones):,} dead letters"
        )
    report: dict[str, Any] = {**found, "raw_fdatasync_per_s": raw}
    for what, one, other in (
        ("poisoned_to_ordered", "poisoned", "ordered"),
        ("ordered_to_free", "ordered", "free"),
    ):
        pairs = zip(runs[one], runs[other], strict=True)
        report[what] = round(median(a["per_s"] / b["per_s"] for a, b in pairs), 3)
    under = "" if report["poisoned_to_ordered"] >= TARGET else "  UNDER 90 %"
    show(
        f"  with poison {report['poisoned_to_ordered'] * 100:.0f} % of the rate without{under}; "
        f"ordered {report['ordered_to_free'] * 100:.0f} % of a group without key order"
    )
    return report


def _step(spec: dict[str, Any]) -> dict[str, Any]:
    if spec["step"] == "serve":
        return serve(Path(spec["data_dir"]), spec["scale"], spec["rounds"])
    return consume(spec["address"], spec["log"], _CONNECTIONS, spec["poisoned"], spec["wanted"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code: 1 when a key was reordered."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes (default: 1)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step is not None:
        return answer(lambda: _step(json.loads(options.step)))
    interrupt_on_signals()

    def show(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name:
            machine = describe(Path(name))
            show(machine.text())
            found = measure(Path(name), options.scale, options.rounds, show)
            if options.json:
                print(json.dumps({"machine": asdict(machine), **found}))
    except ChildFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    reordered = sum(one["reordered"] for name in RUNS[:2] for one in found["runs"][name])
    return 1 if reordered else 0


if __name__ == "__main__":
    sys.exit(main())
