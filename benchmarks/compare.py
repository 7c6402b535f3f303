# Tests: tests/test_compare.py
"""Compare brokerd with other brokers at the same durability: ``make compare``.

``python -m benchmarks.compare [--runs 5] [--seconds 3] [--only NAME] [--json FILE] [--svg FILE]``.
One load generator loads all brokers with the same messages. The brokers take turns: in each run
every broker starts on an empty directory of the same file system, does all scenarios, and ends. The
ratio is brokerd's rate divided by the other's, run by run; the table has the medians, and the least
and the largest. Processor time is that of the broker's process and its children. Servers that are
not installed are left out. Page: docs/benchmarks.rst, section "Other brokers".
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from benchmarks.process import BrokerFailed, BrokerProcess, interrupt_on_signals
from benchmarks.rivals import RIVALS, Rival, add_rivals
from benchmarks.rivals.base import PAIRS, PRODUCE
from benchmarks.rivals.server import RivalServer
from brokerd import __version__
from brokerd.cli.bench.formats import BenchFailed
from brokerd.cli.bench.machine import describe
from brokerd.cli.bench.measure import Plan, measure, prepare

OURS = "brokerd"
SHAPES: tuple[tuple[str, int, int], ...] = (
    (PRODUCE, 1, 1),
    (PRODUCE, 64, 1),
    (PRODUCE, 16, 64),
    (PAIRS, 1, 1),
    (PAIRS, 16, 1),
    (PAIRS, 16, 16),
)
"""Scenario, connections, requests in flight on each."""
WARM_UP_SECONDS = 0.5
_WORKER = "benchmarks.rivals.worker"
_OUR_DURABILITY = "fdatasync of the journal before the answer"


class Server(Protocol):
    """A running broker."""

    @property
    def address(self) -> str: ...

    def cpu_seconds(self) -> float: ...


@dataclass(frozen=True)
class Sample:
    """One broker, one scenario, one run."""

    broker: str
    scenario: str
    connections: int
    window: int
    rate: float
    """Messages a second."""
    cpu_us: float
    """Microseconds of processor time of the broker for each message."""
    p99_ms: float


@dataclass(frozen=True)
class Row:
    """One scenario of one rival beside brokerd."""

    rival: str
    scenario: str
    connections: int
    window: int
    rate: float
    """Median of brokerd's rates."""
    rival_rate: float
    ratio: float
    """Median of the ratios of the runs."""
    ratio_min: float
    ratio_max: float
    cpu_us: float
    rival_cpu_us: float


class _Ours(BrokerProcess):
    """brokerd, started inside the ``with`` block."""

    def __enter__(self) -> _Ours:
        super().__enter__()
        self.start()
        return self


def open_ours(directory: Path) -> AbstractContextManager[Server]:
    return _Ours(directory / "data", directory / "output")


def sample(name: str, server: Server, shape: tuple[str, int, int], seconds: float) -> Sample:
    """Measure one scenario. Raises `BenchFailed`, also if the broker refused a request."""
    scenario, connections, window = shape
    wire_format = "mamamia" if name == OURS else name
    plan = Plan(
        scenario,
        server.address,
        connections,
        window,
        seconds=seconds,
        warm_up_seconds=WARM_UP_SECONDS,
        format=wire_format,
        worker_module=_WORKER,
    )
    place = prepare(plan)
    before = server.cpu_seconds()
    figures = measure(plan, place)
    spent = server.cpu_seconds() - before
    if figures.errors or not figures.messages:
        raise BenchFailed(f"{name}, {scenario}: {figures.first_error or 'no message was done'}")
    # The warm-up is in the processor time, at the same rate.
    messages = figures.msgs_per_s * (figures.seconds + WARM_UP_SECONDS)
    return Sample(
        name,
        scenario,
        connections,
        window,
        figures.msgs_per_s,
        round(spent / messages * 1e6, 2),
        figures.p99_ms,
    )


def shapes_of(name: str, shapes: Sequence[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return the scenarios that a broker has."""
    if name == OURS:
        return list(shapes)
    return [shape for shape in shapes if shape[0] in RIVALS[name].load.scenarios]


def run(
    directory: Path,
    rivals: Sequence[Rival],
    runs: int,
    seconds: float,
    show: Callable[[str], None],
    shapes: Sequence[tuple[str, int, int]] = SHAPES,
) -> list[Sample]:
    """Measure all brokers by turns, ``runs`` times."""
    samples = []
    for number in range(runs):
        for name in (OURS, *(one.name for one in rivals)):
            with tempfile.TemporaryDirectory(
                prefix=f".compare-{name}-", dir=directory.resolve()
            ) as made:
                place = Path(made)
                opened = open_ours(place) if name == OURS else RivalServer(RIVALS[name], place)
                with opened as server:
                    for shape in shapes_of(name, shapes):
                        found = sample(name, server, shape, seconds)
                        samples.append(found)
                        show(
                            f"run {number + 1}  {name:<11}{found.scenario:<15}"
                            f"{found.connections:>3} x {found.window:<3}{found.rate:>11,.0f}/s"
                            f"{found.cpu_us:>9.2f} us  p99 {found.p99_ms:.2f} ms"
                        )
    return samples


def rows(samples: Sequence[Sample]) -> list[Row]:
    """Return the table: each scenario of each rival, with the runs in pairs."""
    by_place: dict[tuple[str, str, int, int], list[Sample]] = {}
    for one in samples:
        place = (one.broker, one.scenario, one.connections, one.window)
        by_place.setdefault(place, []).append(one)
    found = []
    for (name, scenario, connections, window), theirs in by_place.items():
        if name == OURS:
            continue
        ours = by_place[OURS, scenario, connections, window]
        ratios = [mine.rate / other.rate for mine, other in zip(ours, theirs, strict=True)]
        found.append(
            Row(
                name,
                scenario,
                connections,
                window,
                median(one.rate for one in ours),
                median(one.rate for one in theirs),
                round(median(ratios), 2),
                round(min(ratios), 2),
                round(max(ratios), 2),
                median(one.cpu_us for one in ours),
                median(one.cpu_us for one in theirs),
            )
        )
    return found


def table(found: Sequence[Row]) -> str:
    """Return the rows as text."""
    lines = [
        f"{'rival':<11}{'scenario':<15}{'c x w':>8}{'brokerd/s':>12}{'rival/s':>12}"
        f"{'ratio':>7}{'least-most':>13}{'us':>8}{'rival us':>10}"
    ]
    lines += [
        f"{one.rival:<11}{one.scenario:<15}{f'{one.connections} x {one.window}':>8}"
        f"{one.rate:>12,.0f}{one.rival_rate:>12,.0f}{one.ratio:>7.2f}"
        f"{f'{one.ratio_min:.2f}-{one.ratio_max:.2f}':>13}{one.cpu_us:>8.1f}{one.rival_cpu_us:>10.1f}"
        for one in found
    ]
    return "\n".join(lines)


def svg(found: Sequence[Row]) -> str:
    """Return a chart of the ratios: one bar for each row, and a line at 1."""
    left, width, line = 230, 420, 22
    most = max([1.0, *(one.ratio_max for one in found)])
    unit = width / most
    height = line * len(found) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 70}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<text x="10" y="18" font-size="14">brokerd\'s rate divided by the other\'s</text>',
    ]
    for number, one in enumerate(found):
        y = 32 + number * line
        label = f"{one.rival} {one.scenario} {one.connections} x {one.window}"
        x_least, x_most = left + one.ratio_min * unit, left + one.ratio_max * unit
        parts += [
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{label}</text>',
            f'<rect x="{left}" y="{y}" width="{one.ratio * unit:.1f}" height="16" '
            f'fill="{"#3a7d44" if one.ratio >= 1 else "#b0573a"}"/>',
            f'<path d="M{x_least:.1f} {y + 8}H{x_most:.1f}" stroke="#222"/>',
            f'<text x="{left + one.ratio_max * unit + 6:.1f}" y="{y + 13}">{one.ratio:.2f}</text>',
        ]
    x = left + unit
    parts += [f'<path d="M{x:.1f} 28V{height - 24}" stroke="#222" stroke-dasharray="3 3"/>']
    parts += [f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">1</text>', "</svg>", ""]
    return "\n".join(parts)


def durabilities(rivals: Sequence[Rival]) -> dict[str, str]:
    """Return, by broker and version, when the answer to a produce is sent."""
    found = {f"{OURS} {__version__}": _OUR_DURABILITY}
    for one in rivals:
        version = one.version()
        found[f"{one.name} {version}"] = one.durability(version)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Exit codes: 0 measured, 2 measuring failed, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each scenario")
    parser.add_argument("--only", action="append", choices=sorted(RIVALS), help="may be repeated")
    parser.add_argument("--directory", type=Path, default=Path())
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--svg", type=Path, help="write the chart there")
    options = parser.parse_args(arguments)
    interrupt_on_signals()
    add_rivals()
    wanted = [one for one in RIVALS.values() if not options.only or one.name in options.only]
    rivals = [one for one in wanted if one.find() is not None]
    for one in wanted:
        if one not in rivals:
            print(f"{one.name}: not installed; Debian's package is {one.package}")
    if not rivals:
        print("compare: no other broker is installed", file=sys.stderr)
        return 2
    machine = describe(options.directory)
    print(machine.text())
    words = durabilities(rivals)
    for name, text in words.items():
        print(f"{name}: {text}")
    for one in rivals:
        for scenario, text in one.unlike.items():
            print(f"{one.name}, {scenario}: {text}")
    try:
        samples = run(
            options.directory,
            rivals,
            options.runs,
            options.seconds,
            lambda line: print(line, flush=True),
        )
    except KeyboardInterrupt:
        return 130
    except (BenchFailed, BrokerFailed, OSError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    found = rows(samples)
    print(table(found))
    if options.json is not None:
        document: dict[str, Any] = {
            "machine": asdict(machine),
            "durability": words,
            "rows": [asdict(one) for one in found],
            "samples": [asdict(one) for one in samples],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    if options.svg is not None:
        options.svg.write_text(svg(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
