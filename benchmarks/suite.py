# Tests: tests/test_bench.py
"""Measure the rates of ``make bench``: each scenario beside the raw syncs of the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from brokerd.cli.bench.command import commit_bytes, commits
from brokerd.cli.bench.formats import FORMATS, LoadSpec, LoadTarget
from brokerd.cli.bench.machine import sync_rate
from brokerd.cli.bench.measure import Figures, Plan, measure, prepare
from brokerd.codecs import flymq, mega, rustlog

from .admin import fetch_status
from .process import BrokerProcess
from .responder import Constant, Responder

_RAW_SECONDS_MAX = 0.5
_WARM_UP_SECONDS_MAX = 0.5
_BATCH = 100

_SIZES = ((1, 1), (64, 1), (16, 64))
"""Connections, and requests in flight on each."""

SHAPES: tuple[tuple[str, str, tuple[tuple[int, int], ...], int], ...] = (
    ("mamamia", "produce", _SIZES, 1),
    ("mamamia", "acquire-settle", _SIZES, 1),
    ("mamamia", "produce-batch", ((8, 4),), _BATCH),
    ("mamamia", "acquire-settle-batch", ((8, 4),), _BATCH),
    ("rustlog", "produce-batch", ((8, 4),), _BATCH),
    ("rustlog", "fetch", ((8, 1),), 1),
    ("flymq", "produce", _SIZES, 1),
    ("flymq", "fetch", ((8, 4),), 5 * _BATCH),
    ("blipmq", "produce", _SIZES, 1),
    ("blipmq", "produce-batch", ((8, 4),), _BATCH),
    ("blipmq", "acquire-settle", _SIZES, 1),
    ("mega", "produce", _SIZES, 1),
    ("mega", "consume", _SIZES, 1),
)
"""Format, scenario, its sizes, messages in a request."""

CEILINGS: dict[tuple[str, str], bytes] = {
    ("mamamia", "produce"): b"",
    ("mamamia", "acquire-settle"): b"",
    ("rustlog", "produce-batch"): rustlog.CODECS[rustlog.Dialect.BINARY].encode_answer(
        rustlog.Produced(0, _BATCH)
    ),
    ("flymq", "produce"): flymq.produced("bench", 0, 0, 0, -1, 100),
    ("mega", "produce"): mega.produced(1, 0, 0),
    ("mega", "consume"): mega.consumed(1, 0, 0, b"x" * 100),
}
"""Scenarios that measure the generator alone, with the dummy's answer to each."""


@dataclass(frozen=True)
class Line:
    """The figures of one scenario and its commits."""

    figures: Figures
    broker_cores: float
    """Processor time of the broker divided by time: 1.0 is one busy core."""
    commits_per_s: float
    bytes_per_commit: int
    raw_fdatasync_per_s: float
    """Measured right after the scenario, with blocks of ``bytes_per_commit``."""


def plans(
    broker: BrokerProcess | None, seconds: float, wire_formats: Sequence[str]
) -> Iterator[Plan]:
    """Yield the scenarios of ``make bench`` in these formats; no broker means no addresses."""
    for wire_format, scenario, sizes, batch in SHAPES:
        if wire_format not in wire_formats:
            continue
        for connections, window in sizes:
            yield Plan(
                scenario,
                "" if broker is None else broker.address_of(wire_format),
                connections,
                window,
                seconds=seconds,
                warm_up_seconds=min(_WARM_UP_SECONDS_MAX, seconds),
                batch=batch,
                format=wire_format,
            )


def measure_line(broker: BrokerProcess, plan: Plan, directory: Path) -> Line:
    """Run one scenario and measure the disk right after it.

    The commits include those of the warm-up, not those of the backlog.

    :raises BenchFailed: the scenario measured nothing.
    :raises AdminFailed: the broker does not report its commits.
    """
    place = prepare(plan)
    before = fetch_status(broker.admin)
    cpu_before = broker.cpu_seconds()
    figures = measure(plan, place)
    seconds = figures.seconds + plan.warm_up_seconds
    cores = (broker.cpu_seconds() - cpu_before) / seconds
    after = fetch_status(broker.admin)
    count = commits(after)[0] - commits(before)[0]
    size = commit_bytes(before, after)
    rate = sync_rate(directory, size, min(_RAW_SECONDS_MAX, plan.seconds))
    return Line(figures, round(cores, 2), round(count / seconds, 1), size, rate)


def ceilings(seconds: float, wire_formats: Sequence[str]) -> list[Figures]:
    """Return the load generator's figures against a dummy that does no work, 16 x 64."""
    found = []
    for wire_format, scenario in CEILINGS:
        if wire_format in wire_formats:
            plan = Plan(scenario, "", 16, 64, seconds=seconds, format=wire_format, batch=_BATCH)
            with Responder(_constant(plan)) as dummy:
                found.append(measure(replace(plan, address=dummy.address), LoadTarget("bench")))
    return found


def _constant(plan: Plan) -> Constant | None:
    """Return the dummy's answer to a plan; None for Mamamia, which the dummy knows."""
    answer = CEILINGS[plan.format, plan.scenario]
    if not answer:
        return None
    spec = LoadSpec(plan.scenario, "", 1, 1, plan.size, 1.0, "bench", "bench", "0", plan.batch)
    request, _ = FORMATS[plan.format].role(spec, 0).first()
    return Constant(len(request), answer)


def run(
    broker: BrokerProcess,
    seconds: float,
    directory: Path,
    wire_formats: Sequence[str],
    show: Callable[[Line], None],
) -> list[Line]:
    """Measure every scenario of these formats against a running broker, and show each."""
    lines = []
    for plan in plans(broker, seconds, wire_formats):
        line = measure_line(broker, plan, directory)
        show(line)
        lines.append(line)
    return lines
