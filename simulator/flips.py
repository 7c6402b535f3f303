# Tests: tests/simulator/test_flips.py
"""Flip every byte of a reference directory and classify each result.

``python -m simulator.flips`` prints a table and each forbidden result.

A flip inverts all bits, or one bit, of one byte of one file. After each flip, ``wal verify`` checks
the directory, and in one of the `VARIANTS` a broker starts on it or already runs on it. All records
are read and compared with the acknowledged ones. docs/simulator.rst, section "Every byte flipped",
defines the outcomes. All bytes are flipped, and each process gives the same result.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

from simulator.directory.flip_check import (
    VARIANTS,
    VIOLATIONS,
    Checker,
    Outcome,
    make_checker,
)

SLICE_BYTES = 128
COMPLAINTS_MAX = 50


class Task(NamedTuple):
    """Some bytes of one file of a variant."""

    variant: str
    path: str
    start: int
    stop: int


class Row(NamedTuple):
    """The key of a count."""

    variant: str
    area: str
    field: str
    outcome: Outcome


class FlipResult(NamedTuple):
    """The result of a task."""

    counts: Counter[Row]
    complaints: list[str]


def masks(position: int) -> tuple[int, int]:
    """Return two masks: all bits, and one bit, which depends on the position."""
    return 0xFF, 1 << position % 8


@cache
def checker(variant: str) -> Checker:
    """Return the checker of a variant. A process makes each once."""
    return make_checker(variant)


def check(task: Task) -> FlipResult:
    """Flip each byte of a task with both masks; return the outcomes."""
    one = checker(task.variant)
    counts: Counter[Row] = Counter()
    complaints: list[str] = []
    for position in range(task.start, task.stop):
        region = one.bytemap.at(task.path, position)
        for mask in masks(position):
            outcome, detail = one.check(task.path, position, mask)
            counts[Row(task.variant, region.area, region.field, outcome)] += 1
            if outcome in VIOLATIONS:
                complaints.append(
                    f"{task.variant}: {task.path} at {position} ^ {mask:#04x}, {region.area}, "
                    f"{region.field}: {outcome.value}: {detail}"
                )
    return FlipResult(counts, complaints)


def tasks(variant: str, wanted: Callable[[str], bool] = lambda path: True) -> Iterator[Task]:
    """Yield all bytes of a variant to flip, in slices."""
    for path, size in checker(variant).live_bytes.items():
        if wanted(path):
            for start in range(0, size, SLICE_BYTES):
                yield Task(variant, path, start, min(start + SLICE_BYTES, size))


def run(work: list[Task], jobs: int) -> FlipResult:
    """Check all tasks in ``jobs`` processes; return the sum of their results."""
    counts: Counter[Row] = Counter()
    complaints: list[str] = []
    with multiprocessing.Pool(jobs) as pool:
        for found in pool.imap(check, work, chunksize=4):
            counts.update(found.counts)
            complaints += found.complaints
    return FlipResult(counts, complaints)


def table(counts: Counter[Row], by_field: bool) -> str:
    """Format counts of flips: rows are areas (or fields) of the files, columns are outcomes."""
    outcomes = [o for o in Outcome if o in VIOLATIONS or any(row.outcome is o for row in counts)]
    lines = []
    for variant in VARIANTS:
        rows: dict[str, Counter[Outcome]] = {}
        for row, count in counts.items():
            if row.variant == variant:
                name = f"{row.area}: {row.field}" if by_field else row.area
                rows.setdefault(name, Counter())[row.outcome] += count
        if rows:
            lines += [f"\n{variant}: {VARIANTS[variant]}\n"]
            lines.append(_line("", [outcome.value for outcome in outcomes]))
            lines += [
                _line(name, [str(found[o] or ".") for o in outcomes])
                for name, found in rows.items()
            ]
            sums = [sum(found[o] for found in rows.values()) for o in outcomes]
            lines.append(_line("all", list(map(str, sums))))
    return "\n".join(lines)


def _line(name: str, cells: list[str]) -> str:
    return f"{name:<27}" + "".join(f"{cell:>14}" for cell in cells)


def _one(variants: Iterable[str], path: str, position: int) -> int:
    """Print the outcomes of one byte in each variant that has it; return the exit code."""
    is_there = is_bad = False
    for variant in variants:
        one = checker(variant)
        for full in one.live_bytes:
            if os.path.basename(full) == path and 0 <= position < one.live_bytes[full]:
                is_there = True
                region = one.bytemap.at(full, position)
                for mask in masks(position):
                    outcome, detail = one.check(full, position, mask)
                    is_bad |= outcome in VIOLATIONS
                    print(f"{variant}, {region.area}, {region.field}, ^ {mask:#04x}:", end=" ")
                    print(f"{outcome.value}: {detail}")
    if not is_there:
        print(_nothing(variants, f"no byte {position} of {path}"))
    return 1 if is_bad or not is_there else 0


def _nothing(variants: Iterable[str], what: str) -> str:
    """Return the error for an unknown variant or file, with the known ones."""
    lines = [f"there is {what}; there are:"]
    for variant in variants:
        files = checker(variant).live_bytes.items()
        lines += [f"{variant}: {os.path.basename(path)}, {size} bytes" for path, size in files]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Return the exit code: 1 if a flip had a forbidden outcome."""
    parser = argparse.ArgumentParser(prog="python -m simulator.flips", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--fields", action="store_true", help="a row for each field")
    parser.add_argument("--variant", choices=VARIANTS, action="append", help="only this one")
    parser.add_argument("--file", help="only the file of this name")
    parser.add_argument("--at", type=int, help="only this byte of --file, and what it says")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    variants = options.variant or list(VARIANTS)
    if options.at is not None:
        if options.file is None:
            parser.error("--at needs --file")
        return _one(variants, options.file, options.at)
    began = time.monotonic()
    work = [
        task
        for variant in variants
        for task in tasks(variant, lambda path: options.file in (None, os.path.basename(path)))
    ]
    if not work:
        print(_nothing(variants, f"no file {options.file}"))
        return 1
    counts, complaints = run(work, options.jobs)
    print(table(counts, options.fields))
    print(f"\n{counts.total()} flips in {time.monotonic() - began:.0f} s, {options.jobs} processes")
    for complaint in complaints[:COMPLAINTS_MAX]:
        print(complaint)
    if len(complaints) > COMPLAINTS_MAX:
        print(f"and {len(complaints) - COMPLAINTS_MAX} more: see them with --file and --at")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
