# Tests: tests/groups/test_lease_runs.py, tests/groups/test_model.py
"""Leases of adjacent records that one acquire took, as ranges.

The leases of a run have one owner and deadline, consecutive tokens, and are the first of their
records. A command that changes a part of a run takes the part out, or turns all its leases into
rows (`brokerd.groups.attempts.LeaseRow`).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

from brokerd.groups.attempts import LeaseRow

RUN_MIN = 4
"""Fewer leases are kept as rows."""
RUN_LEASES_MAX = 16_384
"""Most leases in runs: all become rows in about 10 ms, when a snapshot is taken."""

_NO_END = 1 << 64


class LeaseRun(NamedTuple):
    """The leases of the records [first, end)."""

    first: int
    end: int
    deadline_us: int
    owner: str
    token: int
    """Token of the first lease."""
    duration_us: int

    def rows(self) -> Iterable[tuple[int, LeaseRow]]:
        """Return (offset, row) of each lease."""
        _, end, deadline_us, owner, token, duration_us = self
        tokens = range(token, token + end - self.first)
        rows = zip(
            repeat(deadline_us),
            repeat(owner),
            tokens,
            repeat(1),
            repeat(0),
            repeat(duration_us),
            repeat(None),
            strict=False,
        )
        return zip(range(self.first, end), rows, strict=True)

    def part(self, first: int, end: int) -> LeaseRun:
        """Return the leases of [first, end), which this run has."""
        token = self.token + first - self.first
        return LeaseRun(first, end, self.deadline_us, self.owner, token, self.duration_us)


class LeaseRuns:
    """Disjoint runs in order."""

    __slots__ = ("leased", "runs")

    def __init__(self) -> None:
        self.runs: list[LeaseRun] = []
        self.leased = 0
        """Number of leases in all runs."""

    def find(self, offset: int) -> LeaseRun | None:
        """Return the run that has ``offset``, or None. O(log n)."""
        at = bisect_right(self.runs, (offset, _NO_END)) - 1
        if at < 0:
            return None
        run = self.runs[at]
        return run if offset < run.end else None

    def add(self, run: LeaseRun) -> None:
        """Add a run. No other has any of its records."""
        runs = self.runs
        if not runs or runs[-1].first < run.first:
            runs.append(run)
        else:
            insort(runs, run)
        self.leased += run.end - run.first

    def remove(self, run: LeaseRun) -> None:
        """Remove a run."""
        del self.runs[bisect_right(self.runs, (run.first, _NO_END)) - 1]
        self.leased -= run.end - run.first

    def between(self, first: int, end: int) -> Iterator[LeaseRun]:
        """Yield the parts of runs in [first, end). O(log n) and those runs."""
        runs = self.runs
        for run in runs[max(bisect_right(runs, (first, _NO_END)) - 1, 0) :]:
            if run.first >= end:
                break
            low, high = max(run.first, first), min(run.end, end)
            if low < high:
                yield run.part(low, high)

    def owned(self, owner: str) -> list[LeaseRun]:
        """Return the runs of an owner. O(runs)."""
        return [run for run in self.runs if run.owner == owner]

    def clear(self) -> None:
        """Remove all runs."""
        self.runs.clear()
        self.leased = 0
