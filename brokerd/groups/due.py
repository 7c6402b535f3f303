# Tests: tests/groups/test_due.py
"""Offsets by the time they are due, earliest first, with lazy deletion.

An entry is one integer, ``due_us << 64 | offset``, so that the heap compares numbers and not
tuples. An entry is stale when its offset is no longer due at that time; stale ones leave when they
come up, or all together when they may be more than half.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

OFFSET_BITS = 64
OFFSET_MASK = (1 << OFFSET_BITS) - 1
SLACK = 1024
"""Stale entries that are always tolerated, so that a small queue is not rebuilt all the time."""


class DueQueue:
    """Due times of offsets. ``due_of`` says when an offset is due now, None for never."""

    __slots__ = ("_due_of", "_limit", "heap")

    def __init__(self, due_of: Callable[[int], int | None]) -> None:
        self._due_of = due_of
        self.heap: list[int] = []
        self._limit = SLACK

    def push(self, due_us: int, offset: int) -> None:
        """Note that ``offset`` is due at ``due_us``; ``due_of`` must already say so."""
        heap = self.heap
        heappush(heap, due_us << OFFSET_BITS | offset)
        if len(heap) > self._limit:
            self._compact()

    def pop_before(self, bound_us: int) -> int:
        """Remove and return an offset due before ``bound_us``; -1 when there is none."""
        heap, bound = self.heap, bound_us << OFFSET_BITS
        while heap and heap[0] < bound:
            entry = heappop(heap)
            offset = entry & OFFSET_MASK
            if self._due_of(offset) == entry >> OFFSET_BITS:
                return offset
        return -1

    def may_be_due(self, bound_us: int) -> bool:
        """Whether ``pop_before`` may find something; cheap, and True for stale entries too."""
        return bool(self.heap) and self.heap[0] < bound_us << OFFSET_BITS

    def earliest_us(self) -> int | None:
        """When the first offset is due, or None."""
        heap = self.heap
        while heap and self._due_of(heap[0] & OFFSET_MASK) != heap[0] >> OFFSET_BITS:
            heappop(heap)
        return heap[0] >> OFFSET_BITS if heap else None

    def refill(self, due: list[tuple[int, int]]) -> None:
        """Replace all entries by these (due_us, offset) pairs."""
        self.heap = [due_us << OFFSET_BITS | offset for due_us, offset in due]
        heapify(self.heap)
        self._limit = 2 * len(self.heap) + SLACK

    def _compact(self) -> None:
        due_of = self._due_of
        self.heap = list(
            {entry for entry in self.heap if due_of(entry & OFFSET_MASK) == entry >> OFFSET_BITS}
        )
        heapify(self.heap)
        self._limit = 2 * len(self.heap) + SLACK
