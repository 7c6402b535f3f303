# Tests: tests/test_bench.py
"""One measurement: several load processes that begin at the same time, and their total.

:func:`prepare` checks that a broker answers and makes a new topic, which stays. :func:`measure`
    starts worker processes (:mod:`brokerd.cli.bench.load`), waits until all are connected, and
    returns their merged figures. All workers end with it.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from brokerd.cli.bench import load
from brokerd.cli.bench.formats import FORMATS, LoadSpec, LoadTarget, TargetSpec
from brokerd.cli.bench.formats.base import BenchFailed
from brokerd.cli.bench.formats.connect_options import PLAIN, ConnectOptions

_START_SECONDS = 60.0
_GRACE_SECONDS = 120.0
"""More than a worker waits for a first message and for the answers due at the end."""
_READ_MAX = 100_000
_READ_BYTES_MAX = 32 << 20
"""A backlog that is read again and again stays in the broker's memory."""


@dataclass(frozen=True)
class Plan:
    """One measurement; the fields are the options of the command."""

    scenario: str
    address: str
    connections: int = 1
    window: int = 1
    size: int = 100
    seconds: float = 5.0
    warm_up_seconds: float = 0.5
    batch: int = 100
    workers: int = 0
    """Worker processes; 0 means at most three, and at most one a connection."""
    backlog: int = 0
    """Messages to produce first for a consuming scenario; 0 derives it from the other fields."""
    format: str = "mamamia"
    connection: ConnectOptions = PLAIN
    """TLS and login."""
    rate: float = 0.0
    """Requests a second of all connections; 0: as fast as the answers come."""
    worker_module: str = "brokerd.cli.bench.load"


@dataclass(frozen=True)
class Figures:
    """The figures of one measurement."""

    scenario: str
    format: str
    connections: int
    window: int
    size_bytes: int
    batch: int
    workers: int
    seconds: float
    rate: float
    """Requests a second that were due; 0: as fast as the answers came."""
    messages: int
    produced: int
    settled: int
    consumed: int
    empty: int
    errors: int
    first_error: str
    msgs_per_s: float
    requests_per_s: float
    mb_per_s: float
    """Payload megabytes (10^6 bytes) a second."""
    p50_ms: float
    p99_ms: float
    p999_ms: float


def measure(plan: Plan, place: LoadTarget | None = None) -> Figures:
    """Run one measurement against a broker.

    :param place: the topic to use; default: a new one of :func:`prepare`.
    :raises BenchFailed: when no broker answers or a worker fails.
    """
    specs = worker_specs(plan, prepare(plan) if place is None else place)
    total = load.merge(_run_workers(specs, plan))
    return figures(plan, len(specs), total)


def prepare(plan: Plan) -> LoadTarget:
    """Make a new topic for a measurement and fill it when the scenario needs that.

    :raises BenchFailed: the address is invalid, nothing listens there, or no broker answers.
    """
    bench_format = FORMATS[plan.format]
    backlog = plan.backlog or default_backlog(plan)
    target = TargetSpec(
        plan.scenario, plan.address, new_topic(), plan.size, plan.batch, backlog, plan.connection
    )
    return bench_format.prepare(target)


def new_topic() -> str:
    """Return a new topic name."""
    return f"bench-{uuid.uuid4().hex[:12]}"


def worker_specs(plan: Plan, place: LoadTarget) -> list[LoadSpec]:
    """Distribute the connections of a plan over its worker processes."""
    workers = min(plan.workers or 3, plan.connections)
    shares = [len(range(n, plan.connections, workers)) for n in range(workers)]
    if plan.scenario == "mixed":
        # The connections of a worker alternate between two roles, so each worker needs an even
        # number.
        pairs = max(1, plan.connections // 2)
        workers = min(workers, pairs)
        shares = [2 * len(range(n, pairs, workers)) for n in range(workers)]
    return [
        LoadSpec(
            scenario=plan.scenario,
            address=plan.address,
            connections=share,
            window=plan.window,
            size=plan.size,
            seconds=plan.seconds,
            topic=place.topic,
            group=place.group,
            worker=str(number),
            batch=plan.batch,
            format=plan.format,
            records=place.records,
            connection=plan.connection,
            rate=plan.rate * share / sum(shares),
        )
        for number, share in enumerate(shares)
    ]


def default_backlog(plan: Plan) -> int:
    """Return enough messages for the whole measurement, up to a limit."""
    if plan.scenario in ("consume", "fetch"):
        return max(1000, min(_READ_MAX, _READ_BYTES_MAX // max(1, plan.size)))
    in_flight = plan.connections * plan.window
    if plan.scenario.endswith("batch"):
        rate = 400_000
    else:
        rate = 5_000 if in_flight == 1 else 40_000 if in_flight <= 100 else 120_000
    return int(min(1_000_000, rate * (plan.seconds + plan.warm_up_seconds)))


def _run_workers(specs: Sequence[LoadSpec], plan: Plan) -> list[load.LoadResult]:
    with ExitStack() as stack:
        processes = [stack.enter_context(_Worker(spec, plan.worker_module)) for spec in specs]
        for process in processes:
            process.expect("ready", _START_SECONDS)
        begin = time.monotonic() + plan.warm_up_seconds
        for process in processes:
            process.say(repr(begin))
        wait = plan.warm_up_seconds + plan.seconds + _GRACE_SECONDS
        return [load.result_from_json(process.line(wait)) for process in processes]


class _Worker:
    """A worker process; killed when the block that opened it ends."""

    def __init__(self, spec: LoadSpec, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._spec = spec

    def __enter__(self) -> _Worker:
        self.say(json.dumps(asdict(self._spec)))
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BenchFailed(self._why()) from None

    def expect(self, wanted: str, seconds: float) -> None:
        line = self.line(seconds)
        if line != wanted:
            raise BenchFailed(f"a load worker said {line!r} instead of {wanted!r}")

    def line(self, seconds: float) -> str:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise BenchFailed(f"a load worker said nothing for {seconds:.0f} s")
        line: str = self._process.stdout.readline()
        if not line:
            raise BenchFailed(self._why())
        return line.rstrip("\n")

    def _why(self) -> str:
        """Return the last line of a worker's stderr: the exception that ended it."""
        lines = self._process.communicate()[1].strip().splitlines()
        return f"{self._spec.address}: {lines[-1] if lines else 'a load worker ended'}"


def figures(plan: Plan, workers: int, total: load.LoadResult) -> Figures:
    """Turn counts into rates and percentiles."""
    seconds = total.seconds or float("inf")
    messages = total.produced + total.settled + total.consumed
    return Figures(
        scenario=plan.scenario,
        format=plan.format,
        connections=plan.connections,
        window=plan.window,
        size_bytes=plan.size,
        batch=plan.batch if plan.scenario in FORMATS[plan.format].batched else 1,
        workers=workers,
        seconds=round(total.seconds, 3),
        rate=plan.rate,
        messages=messages,
        produced=total.produced,
        settled=total.settled,
        consumed=total.consumed,
        empty=total.empty,
        errors=total.errors,
        first_error=total.example,
        msgs_per_s=round(messages / seconds, 1),
        requests_per_s=round(total.requests / seconds, 1),
        mb_per_s=round(messages * plan.size / seconds / 1e6, 3),
        p50_ms=load.percentile_ms(total.latency_us, 0.5),
        p99_ms=load.percentile_ms(total.latency_us, 0.99),
        p999_ms=load.percentile_ms(total.latency_us, 0.999),
    )
