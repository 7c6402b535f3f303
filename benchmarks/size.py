# Tests: tests/test_size.py
"""Measure large states: their memory, their start, and their longest turns of the reactor.

``python -m benchmarks.size [--scale 0.01] [--states holes,leases] [--json]``. For each state of
:mod:`benchmarks.states` a broker process of its own

1. builds it, reports its memory beside the documented formula, and stops cleanly;
2. starts from the log alone, without any snapshot;
3. starts from the snapshot, and reports its longest turns while a snapshot is taken, while the
   admin site is scraped, while leases lapse, and while a topic is deleted.

Start-up is timed from the lock to readiness inside the process, without the start of Python.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from twisted.internet.threads import deferToThread

from brokerd.cli.bench.machine import describe, sync_rate

from .children import ChildFailed, answer, run_child
from .inside import Inside, rss_bytes, run
from .process import interrupt_on_signals
from .stall_probe import LONG_SECONDS, StallProbe, Stalls
from .states import GROUP, OWNER, STATES, State, call, produce

MIB = 1 << 20
_STEP_SECONDS_MAX = 900.0
_SCRAPES = 3
_INTERVAL_BYTES = 64 * MIB
"""The snapshot interval: the filler reaches it, later writes do not."""
_FILLER = b"x" * (64 << 10)
_FILLED_AT_ONCE = 16
_BY_NAME = {state.name: state for state in STATES}


# -- the steps, each in a process of its own ---------------------------------------------------


def build(data_dir: Path, state: State, scale: float) -> dict[str, Any]:
    """Build a state in an empty directory, stop cleanly, and return the figures."""

    async def scenario(inside: Inside, start_seconds: float) -> dict[str, Any]:
        empty = rss_bytes()
        began = time.monotonic()
        await state.build(inside, scale)
        seconds = time.monotonic() - began
        await inside.sleep(1.0)
        grown = rss_bytes() - empty
        cached = inside.broker.status()["tail_cache_bytes"]
        return {
            "seconds": seconds,
            "empty_bytes": empty,
            "grown_bytes": grown,
            "tail_cache_bytes": cached,
        }

    found, stop_seconds = run(data_dir, (), scenario)
    return {
        **found,
        "formula_bytes": int(state.formula_bytes(scale)),
        "stop_seconds": stop_seconds,
        "log_bytes": _tree_bytes(data_dir / "wal"),
        "snapshot_bytes": _tree_bytes(data_dir / "state"),
    }


def start(data_dir: Path, state: State, scale: float) -> dict[str, Any]:
    """Start on the present data, leave it unchanged, and return the figures."""

    async def scenario(inside: Inside, start_seconds: float) -> dict[str, Any]:
        inside.leave = True
        await inside.sleep(0.5)
        return _started(inside, start_seconds)

    return run(data_dir, (), scenario)[0]


def _started(inside: Inside, start_seconds: float) -> dict[str, Any]:
    return {
        "start_seconds": start_seconds,
        "start_processor_seconds": inside.start_processor_seconds,
        "rss_bytes": rss_bytes(),
    }


def stalls(data_dir: Path, state: State, scale: float) -> dict[str, Any]:
    """Start from the snapshot and return the longest turns of some long operations."""

    async def scenario(inside: Inside, start_seconds: float) -> dict[str, Any]:
        inside.leave = True
        await inside.sleep(0.5)
        found = _started(inside, start_seconds)
        phases = _Phases(inside, data_dir)
        await phases.quiet()
        await phases.snapshot()
        found["snapshot_peak_bytes"] = rss_bytes("VmHWM")
        await phases.scrape("status", "/api/v1/status")
        await phases.scrape("metrics", "/metrics")
        if inside.broker.topics.find("leases") is not None:
            await phases.lapse()
        if inside.broker.topics.find("groups") is not None and hasattr(
            inside.broker, "delete_topic"
        ):
            await phases.delete("groups")
        return {**found, "phases": [asdict(one) for one in phases.done]}

    return run(data_dir, (f"wal.snapshot_interval_bytes={_INTERVAL_BYTES}",), scenario)[0]


class _Phases:
    """The watched phases."""

    def __init__(self, inside: Inside, data_dir: Path) -> None:
        self._inside = inside
        self._state_dir = data_dir / "state"
        self._probe = StallProbe(inside.reactor)
        self.done: list[Stalls] = []

    async def quiet(self) -> None:
        """Idle, which shows the probe's own cost."""
        self._probe.begin("quiet")
        await self._inside.sleep(1.0)
        self.done.append(self._probe.end())

    async def snapshot(self) -> None:
        """Take and write a snapshot while a few records are produced."""
        inside = self._inside
        topic = inside.broker.topics.create("filler")
        before = set(self._state_dir.iterdir())
        self._probe.begin("snapshot")
        for _ in range(_INTERVAL_BYTES // (_FILLED_AT_ONCE * len(_FILLER)) + 1):
            await produce(inside, topic, _FILLED_AT_ONCE, _FILLER)
        while not any(path.suffix == ".snap" for path in set(self._state_dir.iterdir()) - before):
            await inside.sleep(0.02)
        await inside.sleep(0.1)
        self.done.append(self._probe.end())

    async def scrape(self, name: str, path: str) -> None:
        """Scrape the admin site a few times."""
        url = f"http://{self._inside.admin}{path}"
        self._probe.begin(name)
        for _ in range(_SCRAPES):
            await deferToThread(_fetch, url)
            await self._inside.sleep(0.1)
        self.done.append(self._probe.end())

    async def lapse(self) -> None:
        """Let all leases lapse at one moment, after each was extended to it."""
        inside, broker = self._inside, self._inside.broker
        topic = broker.topics.find("leases")
        assert topic is not None
        count = topic.partition(0).next_offset
        now_us = broker.time.monotonic_us
        extending_seconds = 2.0 + count / 100_000
        due_us = now_us() + int(extending_seconds * 1e6)

        def begin() -> Callable[[int], object]:
            group_partition = broker.leases.group_partition("leases", GROUP, 0, 0)
            return lambda at: broker.leases.extend(
                group_partition, at, max(1, due_us - now_us()), owner=OWNER
            )

        await call(inside, range(count), begin)
        await inside.sleep(max(0.0, (due_us - now_us()) / 1e6 - 0.1))
        self._probe.begin("lapse")
        while broker.overview.group_info("leases", GROUP).leased:
            await inside.sleep(0.02)
        await inside.durable()
        self.done.append(self._probe.end())

    async def delete(self, name: str) -> None:
        """Delete a topic with all its groups."""
        delete_topic: Callable[[str], object] = self._inside.broker.topics.delete
        self._probe.begin("delete topic")
        await call(self._inside, [name], lambda: delete_topic)
        await self._inside.sleep(1.0)
        self.done.append(self._probe.end())


def _fetch(url: str) -> int:
    with urllib.request.urlopen(url, timeout=60) as answered:
        return len(answered.read())


def _tree_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


# -- the parent --------------------------------------------------------------------------------


def measure(
    directory: Path, states: Sequence[State], scale: float, show: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yield the figures of one state after another, each in a data directory that is removed.

    :raises ChildFailed: a broker fails.
    """
    show(
        f"states at scale {scale:g}; durability fsync; raw 4 KiB syncs/s "
        f"{sync_rate(directory, 4096, 0.5):,.0f}"
    )
    for state in states:
        with tempfile.TemporaryDirectory(prefix=f"{state.name}-", dir=directory) as name:
            yield _measure(Path(name), state, scale, show)


def _measure(
    directory: Path, state: State, scale: float, show: Callable[[str], None]
) -> dict[str, Any]:
    def step(name: str) -> dict[str, Any]:
        spec = {"step": name, "data_dir": str(data), "state": state.name, "scale": scale}
        return run_child("benchmarks.size", spec, _STEP_SECONDS_MAX)

    data, kept = directory / "data", directory / "kept"
    show(f"{state.name}: {state.what}")
    built = step("build")
    show(
        f"  built in {built['seconds']:.1f} s: memory {built['grown_bytes'] / MIB:.0f} MiB more, "
        f"by the formula {built['formula_bytes'] / MIB:.0f} MiB, and "
        f"{built['tail_cache_bytes'] / MIB:.0f} MiB of tail cache; "
        f"log {built['log_bytes'] / MIB:.0f} MiB, snapshot "
        f"{built['snapshot_bytes'] / MIB:.1f} MiB, clean stop {built['stop_seconds']:.2f} s"
    )
    (data / "state").rename(kept)
    log_alone = step("start")
    shutil.rmtree(data / "state", ignore_errors=True)
    kept.rename(data / "state")
    snapshot = step("stalls")
    empty = built["empty_bytes"]
    show(
        f"  start from the log alone {_seconds(log_alone)}, from the snapshot "
        f"{_seconds(snapshot)}; memory more than empty then "
        f"{(snapshot['rss_bytes'] - empty) / MIB:.0f} MiB, at most until a snapshot is written "
        f"{(snapshot['snapshot_peak_bytes'] - empty) / MIB:.0f} MiB"
    )
    for phase in snapshot["phases"]:
        over = " OVER" if phase["longest_ms"] > LONG_SECONDS * 1000 else ""
        show(
            f"  {phase['phase']:<14} {phase['seconds']:>6.2f} s, longest turn "
            f"{phase['longest_ms']:>7.1f} ms, {phase['over_50_ms']} over 50 ms, "
            f"busiest {phase['busiest_ms']:.1f} ms, "
            f"longest gc {phase['gc_longest_ms']:.1f} ms{over}"
        )
        if over:
            for line in phase["where"]:
                show(f"      {line}")
    return {
        "state": state.name,
        "scale": scale,
        "built": built,
        "log": log_alone,
        "snapshot": snapshot,
    }


def _seconds(started: dict[str, Any]) -> str:
    return (
        f"{started['start_seconds']:.2f} s ({started['start_processor_seconds']:.2f} s of the "
        "processor)"
    )


_STEPS: dict[str, Callable[[Path, State, float], dict[str, Any]]] = {
    "build": build,
    "start": start,
    "stalls": stalls,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes (default: 1)")
    parser.add_argument("--states", default=",".join(_BY_NAME), help="some of the states")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step is not None:
        spec = json.loads(options.step)
        return answer(
            lambda: _STEPS[spec["step"]](
                Path(spec["data_dir"]), _BY_NAME[spec["state"]], spec["scale"]
            )
        )
    interrupt_on_signals()

    def show(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        states = [_BY_NAME[name] for name in options.states.split(",")]
    except KeyError as error:
        parser.error(f"no state {error}; there are {', '.join(_BY_NAME)}")
    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name:
            machine = describe(Path(name))
            show(machine.text())
            found = list(measure(Path(name), states, options.scale, show))
            if options.json:
                print(json.dumps({"machine": asdict(machine), "states": found}))
    except ChildFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
