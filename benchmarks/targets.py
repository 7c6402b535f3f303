# Tests: tests/test_targets.py
"""Measure what brokerd aims at, as ratios of figures of the same run.

``python -m benchmarks.targets [--only PART] [--runs 5] [--seconds 2] [--json]``. The parts:

* ``formats``: produce 16 x 64 of FlyMQ, BlipMQ and MEGA, divided by Mamamia's.
* ``batches``: records a second of Mamamia's PRODUCE_BATCH of 100 beside RustLog's, and of pairs of
  ACQUIRE_BATCH and SETTLE_BATCH.
* ``fetch``: FlyMQ FETCH of 500 records, divided by the rate of a dummy that sends the same bytes.
* ``topics``: MEGA produce 16 x 64 to one topic, then to 10,000 topics in random order, with 1,000
  groups.
* ``latency``: the peak of produce 64 x 1, then the latency at half of that rate.
* ``start``: the start with an empty directory, and with 10 GB of closed segments.

Every run measures the two sides of a ratio one after the other. The table has medians, and the
least and the greatest of the runs. The data is made in the working directory; `start` needs 10 GB.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from brokerd.cli.bench.formats import FORMATS, BenchFailed, LoadSpec, LoadTarget
from brokerd.cli.bench.machine import describe
from brokerd.cli.bench.measure import Plan, measure, prepare
from brokerd.client.mega import MegaClient
from brokerd.codecs.mamamia import Command
from brokerd.codecs.mega import Produce, encode_request, produced

from .long_log import Shape, make_log
from .neighbours import Wire, frame
from .process import BrokerFailed, BrokerProcess, interrupt_on_signals
from .responder import Constant, Responder

TOPICS = 10_000
GROUPS = 1_000
JOURNAL_BYTES = 10 * 10**9
_VALUE = b"x" * 100
_CONNECTIONS, _WINDOW = 16, 64
_BATCH = 100
_FETCHED = 500
_PRODUCED_BYTES = len(produced(0, 0, 0))
_SILENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Target:
    """A figure of one run, and the aim."""

    name: str
    unit: str
    aim: str
    value: float


@dataclass(frozen=True)
class Bench:
    """What the parts share."""

    directory: Path
    seconds: float
    scale: float

    def broker(self, name: str) -> BrokerProcess:
        """Return a broker with a new data directory."""
        data_dir = self.directory / name
        shutil.rmtree(data_dir, ignore_errors=True)
        return BrokerProcess(data_dir, self.directory / f"{name}.log")

    def rate(self, broker: BrokerProcess, wire_format: str, scenario: str, **more: int) -> float:
        """Return the messages a second of a scenario."""
        plan = Plan(
            scenario,
            broker.address_of(wire_format),
            seconds=self.seconds,
            format=wire_format,
            **more,
        )
        return _rate(plan)


def formats(bench: Bench) -> Iterator[Target]:
    """Yield the rate of each format's produce 16 x 64 as a part of Mamamia's."""
    with bench.broker("formats") as broker:
        broker.start()
        rates = {
            name: bench.rate(broker, name, "produce", connections=_CONNECTIONS, window=_WINDOW)
            for name in ("mamamia", "flymq", "blipmq", "mega")
        }
    for name in ("flymq", "blipmq", "mega"):
        yield Target(
            f"{name} produce 16 x 64", "of Mamamia's", ">= 1.0", rates[name] / rates["mamamia"]
        )


def batches(bench: Bench) -> Iterator[Target]:
    """Yield records a second of batches of 100."""
    shape = {"connections": 8, "window": 4, "batch": _BATCH}
    with bench.broker("batches") as broker:
        broker.start()
        for name, scenario, aim in (
            ("mamamia", "produce-batch", ">= 1.2 M"),
            ("rustlog", "produce-batch", ""),
            ("mamamia", "acquire-settle-batch", ">= 0.4 M"),
        ):
            rate = bench.rate(broker, name, scenario, **shape)
            yield Target(f"{name} {scenario} of 100", "M records/s", aim, rate / 1e6)


def fetch(bench: Bench) -> Iterator[Target]:
    """Yield the rate of FETCH as a part of that of a dummy with the same answer."""
    with bench.broker("fetch") as broker:
        broker.start()
        plan = Plan(
            "fetch",
            broker.address_of("flymq"),
            8,
            4,
            seconds=bench.seconds,
            batch=_FETCHED,
            format="flymq",
        )
        place = prepare(plan)
        rate = _rate(plan, place)
        spec = LoadSpec(
            "fetch", "", 1, 1, plan.size, 1.0, place.topic, "", "0", _FETCHED, place.records,
            format="flymq",
        )  # fmt: skip
        role = FORMATS["flymq"].role(spec, 0)
        request = bytes(role.first()[0])
        with socket.create_connection(_host_port(plan.address)) as sock:
            sock.sendall(request)
            answer = b""
            while not role.answers(answer).replies:
                answer += _received(sock)
        with Responder(Constant(len(request), answer)) as dummy:
            bound = _rate(replace(plan, address=dummy.address), place)
    yield Target("FlyMQ FETCH of 500", "of the same bytes sent", ">= 0.6", rate / bound)


def topics(bench: Bench) -> Iterator[Target]:
    """Yield the produce rate of many topics as a part of one topic's."""
    count, groups = int(TOPICS * bench.scale), int(GROUPS * bench.scale)
    names = [f"topic-{number:05}" for number in range(count)]
    with bench.broker("topics") as broker:
        broker.start()
        address = broker.address_of("mega")
        with MegaClient(address, timeout=_SILENCE_SECONDS) as client:
            for name in names:
                client.create_topic(name)
        one = _mega_rate(address, names[:1], bench.seconds)
        wire = Wire(broker.address, "mamamia")
        for number in range(groups):
            wire.ask(
                frame(
                    Command.ACQUIRE_NEXT,
                    {"log_id": names[0], "group": f"group-{number:04}", "client_id": "bench"},
                )
            )
        many = _mega_rate(address, names, bench.seconds)
    yield Target(
        f"produce 16 x 64 to {count:,} topics, {groups:,} groups",
        "of one topic's",
        ">= 0.8",
        many / one,
    )


def _mega_rate(address: str, names: Sequence[str], seconds: float) -> float:
    """Produce to random topics, a window on each connection; return messages a second.

    If no window was answered after ``seconds``, the measurement goes on until the first one.

    :raises BrokerFailed: the broker closes a connection, or answers nothing for a minute.
    """
    draw = random.Random(7)
    requests = [encode_request(Produce(1, name, 0, _VALUE)) for name in names]
    blocks = [
        b"".join(draw.choices(requests, k=_WINDOW))
        for _ in range(max(1, 4 * len(names) // _WINDOW))
    ]
    socks = [socket.create_connection(_host_port(address)) for _ in range(_CONNECTIONS)]
    for sock in socks:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    owed = dict.fromkeys(socks, 0)
    done = 0
    begun = time.monotonic()
    for sock in socks:
        sock.sendall(draw.choice(blocks))
    while not done or time.monotonic() - begun < seconds:
        answering = select.select(socks, [], [], _SILENCE_SECONDS)[0]
        if not answering:
            raise BrokerFailed(f"the broker answered nothing for {_SILENCE_SECONDS:.0f} s")
        for sock in answering:
            owed[sock] += len(_received(sock))
            while owed[sock] >= _WINDOW * _PRODUCED_BYTES:
                owed[sock] -= _WINDOW * _PRODUCED_BYTES
                done += _WINDOW
                sock.sendall(draw.choice(blocks))
    rate = done / (time.monotonic() - begun)
    for sock in socks:
        sock.close()
    return rate


def latency(bench: Bench) -> Iterator[Target]:
    """Yield the 99th percentile of latency at half of the peak rate."""
    with bench.broker("latency") as broker:
        broker.start()
        plan = Plan("produce", broker.address, 64, 1, seconds=bench.seconds)
        peak = _rate(plan)
        half = measure(replace(plan, rate=peak / 2))
    yield Target("produce 64 x 1 at its peak", "messages/s", "", peak)
    yield Target("its p99 at half of the peak", "ms", "<= 5", half.p99_ms)


def start(bench: Bench) -> Iterator[Target]:
    """Yield the seconds from the start of the process to its readiness."""
    with bench.broker("empty") as broker:
        yield Target("start, nothing in the log", "s", "", broker.start())
    data_dir = bench.directory / "long"
    if not data_dir.exists():
        shape = Shape(int(JOURNAL_BYTES * bench.scale) // 200, 200)
        make_log(data_dir, shape)
    with BrokerProcess(data_dir, bench.directory / "long.log") as broker:
        seconds = broker.start(600.0)
        broker.stop()
    size = sum(path.stat().st_size for path in (data_dir / "wal").glob("*.wal"))
    yield Target(f"start, {size / 1e9:.1f} GB in closed segments", "s", "< 3", seconds)


PARTS: dict[str, Callable[[Bench], Iterator[Target]]] = {
    part.__name__: part for part in (formats, batches, fetch, topics, latency, start)
}


def _rate(plan: Plan, place: LoadTarget | None = None) -> float:
    """Return the messages a second of a measurement.

    :raises BrokerFailed: no message was counted.
    """
    found = measure(plan, place)
    if not found.messages:
        raise BrokerFailed(f"{plan.format} {plan.scenario}: no message was counted")
    return found.msgs_per_s


def _received(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 20)
    if not data:
        raise BrokerFailed("the broker closed the connection")
    return data


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.targets")
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; repeatable")
    parser.add_argument("--runs", type=int, default=5, help="of each part (default: 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="a scenario (default: 2)")
    parser.add_argument("--scale", type=float, default=1.0, help="of topics, groups and journal")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    interrupt_on_signals()
    out = sys.stderr if options.json else sys.stdout
    found: dict[str, list[Target]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name:
            bench = Bench(Path(name), options.seconds, options.scale)
            machine = describe(Path(name))
            print(f"durability: fsync (the default); {machine.text()}", file=out, flush=True)
            for part in options.only or PARTS:
                of_part: dict[str, list[Target]] = {}
                for _ in range(options.runs):
                    for target in PARTS[part](bench):
                        of_part.setdefault(target.name, []).append(target)
                for runs in of_part.values():
                    print(_line(runs), file=out, flush=True)
                found |= of_part
    except (BrokerFailed, BenchFailed, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if options.json:
        targets = [
            {**asdict(runs[0]), "value": statistics.median(one.value for one in runs),
             "values": [one.value for one in runs]}
            for runs in found.values()
        ]  # fmt: skip
        print(json.dumps({"machine": asdict(machine), "durability": "fsync", "targets": targets}))
    return 0


def _line(runs: Sequence[Target]) -> str:
    values = sorted(one.value for one in runs)
    target = runs[0]
    median, least, most = (
        f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
        for value in (statistics.median(values), values[0], values[-1])
    )
    return f"  {target.name:<52} {median:>8} ({least} to {most}) {target.unit}  {target.aim}"


if __name__ == "__main__":
    sys.exit(main())
