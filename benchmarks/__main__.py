# Tests: tests/test_bench.py
"""``make bench``: durable rates beside the rate of the disk, memory, and large states.

The broker runs with its defaults on free ports. Its data lies in a temporary directory inside
``--directory`` (default: the current one), so on the file system of the working copy. The command
removes all of its files. The parts with large states have commands of their own: ``python -m
benchmarks.holes``, ``.schedule``, ``.size``, ``.stalls`` and ``.key_order``. Method and figures:
docs/benchmarks.rst. Exit codes: 0 measured, 1 errors among the answers, 2 measuring failed.
"""

from __future__ import annotations

import argparse
import json
import pstats
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from brokerd.cli.bench.formats import FORMATS, BenchFailed
from brokerd.cli.bench.machine import describe
from brokerd.cli.bench.measure import Plan, measure, prepare

from . import bytecodes, holes, key_order, memory, schedule, size, stalls, suite
from .admin import AdminFailed, fetch_status
from .children import ChildFailed
from .process import BrokerFailed, BrokerProcess, interrupt_on_signals

_FAILURES = (AdminFailed, BenchFailed, BrokerFailed, ChildFailed, OSError)
_PROFILE_PERCENT = 4.0
"""Smallest share of a function that the profile shows, with all that it calls."""
_WAITS = (
    "<method 'poll' of 'select.epoll' objects>",
    "<method 'acquire' of '_thread.lock' objects>",
)
_CEILING_SECONDS_MAX = 1.0
_SETTINGS = ("blipmq.retry_base_ms=10000",)
"""A message polled over BlipMQ is in flight for 100 ms by default; a busy disk can take longer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = _parse(arguments)
    interrupt_on_signals()

    def show(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name:
            if options.profile:
                return _profile(Path(name), options, show)
            return _bench(Path(name), options, show)
    except KeyboardInterrupt:
        print("bench: interrupted; nothing is left", file=sys.stderr)
        return 130
    except _FAILURES as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def _bench(directory: Path, options: argparse.Namespace, show: Callable[[str], None]) -> int:
    machine = describe(directory)
    report: dict[str, Any] = {"machine": asdict(machine)}
    show(machine.text())
    if not options.no_rates:
        report |= _rates(directory, options, show)
        report["bytecodes"] = counts = bytecodes.show_counts(show, options.format)
        for line in bytecodes.compare(counts, bytecodes.committed()):
            show(line)
    if not options.no_memory:
        report |= _memory(directory, options, show)
    if not options.no_size:
        report |= _at_size(directory, options, show)
    if options.json:
        print(json.dumps(report))
    return 1 if any(line["figures"]["errors"] for line in report.get("scenarios", ())) else 0


def _rates(
    directory: Path, options: argparse.Namespace, show: Callable[[str], None]
) -> dict[str, Any]:
    ceilings = suite.ceilings(min(_CEILING_SECONDS_MAX, options.seconds), options.format)
    for ceiling in ceilings:
        show(
            f"the generator itself, against a dummy, 16 x 64: "
            f"{ceiling.format} {ceiling.scenario} {ceiling.requests_per_s:,.0f} requests/s"
        )
    with _broker(directory, "rates", options, options.format) as broker:
        broker.start()
        durability = fetch_status(broker.admin)["durability"]
        show(f"durability {durability}; 100-byte payloads; latency in ms, of one request")
        show(_HEAD)
        lines = suite.run(
            broker,
            options.seconds,
            directory,
            options.format,
            lambda line: show(_line_text(line)),
        )
        peak = broker.memory_bytes("VmHWM")
        show(f"peak resident memory of the broker: {peak / memory.MIB:.0f} MiB")
        broker.stop()
    return {
        "durability": durability,
        "generator": [asdict(ceiling) for ceiling in ceilings],
        "scenarios": [asdict(line) for line in lines],
        "peak_rss_bytes": peak,
    }


_HEAD = (
    f"{'format':<9}{'scenario':<21}{'conns x window':>15}{'messages/s':>12}{'MB/s':>8}{'p50':>9}"
    f"{'p99':>9}{'p99.9':>9}{'cores':>7}{'commits/s':>10}{'B/commit':>9}{'raw syncs/s':>12}"
    f"{'errors':>8}"
)


def _line_text(line: suite.Line) -> str:
    f = line.figures
    shape = f"{f.connections} x {f.window}" + (f" x {f.batch}" if f.batch > 1 else "")
    return (
        f"{f.format:<9}{f.scenario:<21}{shape:>15}{f.msgs_per_s:>12,.0f}{f.mb_per_s:>8.1f}{f.p50_ms:>9.3f}"
        f"{f.p99_ms:>9.3f}{f.p999_ms:>9.3f}{line.broker_cores:>7.2f}"
        f"{line.commits_per_s:>10,.0f}{line.bytes_per_commit:>9,}"
        f"{line.raw_fdatasync_per_s:>12,.0f}{f.errors:>8}"
        + (f"  {f.first_error}" if f.first_error else "")
    )


def _memory(
    directory: Path, options: argparse.Namespace, show: Callable[[str], None]
) -> dict[str, Any]:
    with _broker(directory, "memory", options) as broker:
        broker.start()
        idle = memory.idle_connections(broker, options.idle)
        show(f"{idle.connections:,} idle connections: {idle.kib_each:.1f} KiB each")
        show(f"{'resident memory':<54}{'MiB':>8}{'seconds':>10}")
        phases = memory.million_records(
            broker,
            options.records,
            lambda p: show(f"  {p.name:<52}{p.rss_bytes / memory.MIB:>8.0f}{p.seconds:>10.1f}"),
        )
        peak = broker.memory_bytes("VmHWM")
        show(f"  {'peak':<52}{peak / memory.MIB:>8.0f}")
        caches = memory.configured_caches(options.set)
        grown = phases[-1].rss_bytes - phases[0].rss_bytes
        show(
            f"  grown by {grown / memory.MIB:.0f} MiB; configured caches: "
            f"{caches / memory.MIB:.0f} MiB"
        )
        broker.stop()
    return {
        "idle": {**asdict(idle), "kib_each": round(idle.kib_each, 2)},
        "memory": [asdict(phase) for phase in phases],
        "memory_peak_bytes": peak,
        "memory_grown_bytes": grown,
        "configured_caches_bytes": caches,
    }


def _at_size(
    directory: Path, options: argparse.Namespace, show: Callable[[str], None]
) -> dict[str, Any]:
    """Run the parts with large states. They use the default settings and ignore ``--set``."""
    scale = options.scale
    return {
        "holes": list(
            holes.measure(directory, holes.SHAPES, scale, options.seconds, holes.ROUNDS, show)
        ),
        "schedule": list(schedule.measure(directory, schedule.ORDERS, scale, show)),
        "key_order": key_order.measure(directory, scale, key_order.ROUNDS, show),
        "states": list(size.measure(directory, size.STATES, scale, show)),
        "stalls": stalls.measure(directory, scale, show),
    }


def _profile(directory: Path, options: argparse.Namespace, show: Callable[[str], None]) -> int:
    """Run the busiest scenarios under cProfile; print the reactor thread's shares by function."""
    show(describe(directory).text())
    for plan in suite.plans(None, options.seconds, options.format):
        if plan.connections > 1:
            _profile_one(directory, options, plan, show)
    return 0


def _profile_one(
    directory: Path, options: argparse.Namespace, plan: Plan, show: Callable[[str], None]
) -> None:
    name = f"{plan.format}-{plan.scenario}-{plan.connections}x{plan.window}"
    statistics = directory / f"{name}.prof"
    # A broker of its own fills the log, so that the profile holds nothing of that.
    with _broker(directory, name, options, [plan.format]) as broker:
        broker.start()
        place = prepare(replace(plan, address=broker.address_of(plan.format)))
        broker.stop()
    with _broker(directory, name, options, [plan.format], statistics) as broker:
        broker.start()
        figures = measure(replace(plan, address=broker.address_of(plan.format)), place)
        broker.stop()
    show(f"{name}: {figures.msgs_per_s:,.0f} messages/s while being profiled")
    show(f"{'alone':>7}{'whole':>8}{'calls':>11}  function")
    for one in shares(pstats.Stats(str(statistics)).stats):  # type: ignore[attr-defined]
        show(f"{one.own:>5.1f} %{one.whole:>6.1f} %{one.calls:>11,}  {one.function}")


class Share(NamedTuple):
    """What a function took of the time of the reactor's thread, in percent."""

    own: float
    whole: float
    """With the functions that it calls."""
    calls: int
    function: str


def shares(stats: Mapping[tuple[str, int, str], tuple[Any, ...]]) -> list[Share]:
    """Return the largest shares of a profile, largest first, of the time without waits.

    Loops that wait themselves have no share.

    :param stats: `pstats.Stats.stats`: calls, own and whole seconds by file, line and function.
    """
    busy = sum(values[2] for (_, _, name), values in stats.items() if name not in _WAITS)
    found = []
    for (file, line, name), (_, calls, own, whole, _) in stats.items():
        percent = whole / busy * 100
        if name not in _WAITS and _PROFILE_PERCENT <= percent <= 100:
            place = f"{'/'.join(Path(file).parts[-2:])}:{line} " if line else ""
            found.append(Share(own / busy * 100, percent, calls, f"{place}{name}"))
    return sorted(found, key=lambda one: -one.whole)


def _broker(
    directory: Path,
    name: str,
    options: argparse.Namespace,
    formats: Sequence[str] = ("mamamia",),
    profile: Path | None = None,
) -> BrokerProcess:
    settings = [*_SETTINGS, *options.set]
    return BrokerProcess(directory / name, directory / f"{name}.log", settings, profile, formats)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each scenario (default: 3)")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--profile", action="store_true", help="profile the broker instead")
    parser.add_argument(
        "--format",
        action="append",
        choices=[*FORMATS],
        help="rates (and profiles) of this one only; may be repeated (default: all)",
    )
    parser.add_argument("--no-rates", action="store_true", help="without the rates")
    parser.add_argument("--no-memory", action="store_true", help="without the memory part")
    parser.add_argument("--no-size", action="store_true", help="without the states at size")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the states at size (default: 1)"
    )
    parser.add_argument("--records", type=int, default=1_000_000, help="default: 1000000")
    parser.add_argument("--idle", type=int, default=1000, help="connections (default: 1000)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for the broker"
    )
    options = parser.parse_args(arguments)
    options.format = options.format or [*FORMATS]
    return options


if __name__ == "__main__":
    sys.exit(main())
