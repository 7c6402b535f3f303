# Tests: tests/test_size.py
"""Measure acquire and settle on a group with ten million unsettled records in holes.

``python -m benchmarks.holes [--scale 0.01] [--shapes holes,returned] [--json]``. The shapes, in
each of which every other record is settled:

``holes``     nobody leased the others; the consumers work through them
``returned``  the others failed once and are ready again; the consumers work through them
``waiting``   the others failed once and wait for an hour; the consumers work on newer records

Each shape is measured on the lease store alone, and over the wire with durable answers. A fresh
group on its own topic, with nothing settled, is the comparison. The two take turns, round by round,
in one process. The ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from twisted.internet.threads import deferToThread

from brokerd.cli.bench.formats import LoadTarget
from brokerd.cli.bench.machine import describe, sync_rate
from brokerd.cli.bench.measure import Plan
from brokerd.cli.bench.measure import measure as measure_load
from brokerd.groups import GroupSettings, LeaseStore

from . import states
from .children import ChildFailed, answer, run_child
from .inside import Inside, run
from .process import interrupt_on_signals
from .states import UNSETTLED

TARGET = 0.8
SHAPES = ("holes", "returned", "waiting")
ROUNDS = 5
_STORE_RECORDS = 100_000
"""Records acquired and settled in one round on the store alone, at scale 1."""
_STORE_BATCH = 100
_HOUR_US = 3_600_000_000
_STEP_SECONDS_MAX = 1200.0
_LOADS = {
    ("acquire-settle", 16, 64, 1): 200_000,
    ("acquire-settle-batch", 8, 4, 100): 1_000_000,
}
"""Scenario, connections, window and batch -> messages a second, four times any measured rate."""


# -- the store alone ---------------------------------------------------------------------------


def store(shape: str, scale: float, rounds: int) -> dict[str, Any]:
    """Measure the lease store alone; return the rates of the shape and of a fresh store."""
    records = max(1, int(_STORE_RECORDS * scale))
    needed = 2 * rounds * records
    count = max(int(UNSETTLED * scale), needed)
    shaped = _shaped_store(shape, count)
    fresh = LeaseStore(GroupSettings())
    end = 2 * count + needed
    lines = []
    for batch in (1, _STORE_BATCH):
        pairs = [
            (
                _store_round(fresh, end, records, batch),
                _store_round(shaped, end, records, batch),
            )
            for _ in range(rounds)
        ]
        for at, what in enumerate(("acquire", "settle")):
            rates = [(one[at], other[at]) for one, other in pairs]
            lines.append(_line("store", f"{what}, batches of {batch}", rates))
    return {"lines": lines}


def _shaped_store(shape: str, count: int) -> LeaseStore:
    found = LeaseStore(GroupSettings())
    end = 2 * count
    delay_us = _HOUR_US if shape == "waiting" else 0
    for offset in range(0, end, 2):
        found.settle(0, end, offset + 1, True)
        if shape != "holes":
            found.settle(0, end, offset, False, delay_us=delay_us)
        found.events.clear()
    return found


def _store_round(group: LeaseStore, end: int, records: int, batch: int) -> tuple[float, float]:
    """Return acquires and settles a second."""
    acquiring = settling = 0.0
    done = 0
    while done < records:
        began = time.perf_counter()
        grants = group.acquire(0, end, "worker", _HOUR_US, batch)
        acquired = time.perf_counter()
        for grant in grants:
            group.settle(0, end, grant.offset, True, owner="worker")
        settling += time.perf_counter() - acquired
        acquiring += acquired - began
        group.events.clear()
        assert grants
        done += len(grants)
    return done / acquiring, done / settling


# -- over the wire -----------------------------------------------------------------------------


def wire(shape: str, scale: float, data_dir: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure acquire and settle over connections; return the rates of the shape and a fresh group.

    Small scales are raised, so that neither group runs out of records.
    """
    new = int(rounds * (seconds + _warm_up(seconds)) * sum(_LOADS.values()))
    scale = max(scale, new / UNSETTLED)

    async def scenario(inside: Inside, start_seconds: float) -> dict[str, Any]:
        inside.leave = True
        await states.produce(inside, inside.broker.topics.create("fresh"), new)
        began = time.monotonic()
        if shape == "holes":
            await states.holes(inside, scale, "shape")
        else:
            delay_us = _HOUR_US if shape == "waiting" else 0
            await states.returned(inside, scale, delay_us, "shape")
        if shape == "waiting":
            topic = inside.broker.topics.find("shape")
            assert topic is not None
            await states.produce(inside, topic, new)
        built_seconds = time.monotonic() - began
        lines = []
        for load in _LOADS:
            pairs = [
                (
                    await deferToThread(_wire_round, inside.address, "fresh", seconds, *load),
                    await deferToThread(_wire_round, inside.address, "shape", seconds, *load),
                )
                for _ in range(rounds)
            ]
            name, connections, window, batch = load
            text = f"{name} {connections} x {window}" + (f" x {batch}" if batch > 1 else "")
            lines.append(_line("wire", text, pairs))
        return {"lines": lines, "built_seconds": built_seconds}

    return run(data_dir, (), scenario)[0]


def _wire_round(
    address: str, log: str, seconds: float, scenario: str, connections: int, window: int, batch: int
) -> float:
    plan = Plan(
        scenario,
        address,
        connections,
        window,
        size=len(states.VALUE),
        seconds=seconds,
        warm_up_seconds=_warm_up(seconds),
        batch=max(batch, 1),
    )
    found = measure_load(plan, LoadTarget(log))
    if found.errors:
        raise ChildFailed(f"{log} {scenario}: {found.errors} errors, such as {found.first_error}")
    if found.empty:
        raise ChildFailed(
            f"{log} {scenario}: the group ran out of records; raise the rate in _LOADS"
        )
    if not found.messages:
        raise ChildFailed(f"{log} {scenario}: no message was counted")
    return found.msgs_per_s


def _warm_up(seconds: float) -> float:
    return min(0.3, seconds)


def _line(where: str, what: str, pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return the medians over the rounds of (fresh, shape)."""
    return {
        "where": where,
        "what": what,
        "fresh_per_s": round(median(fresh for fresh, _ in pairs)),
        "shape_per_s": round(median(shape for _, shape in pairs)),
        "ratio": round(median(shape / fresh for fresh, shape in pairs), 3),
    }


# -- the parent --------------------------------------------------------------------------------


def measure(
    directory: Path,
    shapes: Sequence[str],
    scale: float,
    seconds: float,
    rounds: int,
    show: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Yield the figures of one shape after another.

    :raises ChildFailed: a step fails.
    """
    raw = sync_rate(directory, 4096, 0.5)
    show(
        f"{int(UNSETTLED * scale):,} unsettled records in holes beside a fresh group; durability "
        f"fsync; raw 4 KiB syncs/s {raw:,.0f}"
    )
    for shape in shapes:
        spec = {"shape": shape, "scale": scale, "seconds": seconds, "rounds": rounds}
        lines = run_child("benchmarks.holes", {"step": "store", **spec}, _STEP_SECONDS_MAX)["lines"]
        with tempfile.TemporaryDirectory(prefix=f"{shape}-", dir=directory) as name:
            spec["data_dir"] = str(Path(name) / "data")
            found = run_child("benchmarks.holes", {"step": "wire", **spec}, _STEP_SECONDS_MAX)
        lines += found["lines"]
        for line in lines:
            under = "" if line["ratio"] >= TARGET else "  UNDER 80 %"
            show(
                f"  {shape:<9}{line['where']:<6}{line['what']:<36}fresh {line['fresh_per_s']:>9,}/s"
                f"{line['shape_per_s']:>12,}/s{line['ratio'] * 100:>7.0f} %{under}"
            )
        yield {"shape": shape, "scale": scale, "raw_fdatasync_per_s": raw, "lines": lines}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.holes")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes (default: 1)")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="some of the shapes")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round over the wire")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step is not None:
        return answer(lambda: _step(json.loads(options.step)))
    interrupt_on_signals()
    shapes = options.shapes.split(",")
    if unknown := set(shapes) - set(SHAPES):
        parser.error(f"no shape {min(unknown)!r}; there are {', '.join(SHAPES)}")

    def show(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name:
            machine = describe(Path(name))
            show(machine.text())
            found = list(
                measure(Path(name), shapes, options.scale, options.seconds, options.rounds, show)
            )
            if options.json:
                print(json.dumps({"machine": asdict(machine), "shapes": found}))
    except ChildFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


def _step(spec: dict[str, Any]) -> dict[str, Any]:
    if spec["step"] == "store":
        return store(spec["shape"], spec["scale"], spec["rounds"])
    return wire(
        spec["shape"], spec["scale"], Path(spec["data_dir"]), spec["seconds"], spec["rounds"]
    )


if __name__ == "__main__":
    sys.exit(main())
