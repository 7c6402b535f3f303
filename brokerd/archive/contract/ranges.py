# Tests: tests/archive/test_ranges.py
"""Sets of disjoint ranges: of covered offsets, and of plain numbers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from brokerd.archive.contract.layout import Range


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Merge covered ranges that touch or overlap. Return them sorted."""
    found: list[Range] = []
    for one in sorted(ranges):
        if found and found[-1][:2] == one[:2] and one.first <= found[-1].end:
            found[-1] = found[-1]._replace(end=max(found[-1].end, one.end))
        else:
            found.append(one)
    return found


class DisjointRanges:
    """A set of ranges of LSNs or file positions, first and end (exclusive)."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        merged = merge_ranges(Range(0, 0, first, end) for first, end in ranges)
        self._firsts = [one.first for one in merged]
        self._ends = [one.end for one in merged]

    def overlap(self, first: int, end: int) -> bool:
        """Return whether a range contains any number from ``first`` to ``end`` (exclusive)."""
        at = bisect_left(self._firsts, end) - 1
        return at >= 0 and self._ends[at] > first

    def end_of(self, number: int) -> int:
        """Return the end of the range that contains a number, or the number if no range does."""
        at = bisect_right(self._firsts, number) - 1
        return max(number, self._ends[at]) if at >= 0 else number
