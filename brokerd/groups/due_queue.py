# Tests: tests/groups/test_due_queue.py
"""Offsets by the time they are due, earliest first, with lazy deletion.

An entry is one integer, ``due_us << 64 | offset``, so that the heap compares numbers and not
tuples. An entry is stale when its offset is no longer due at that time. Stale ones leave when they
come up; when they are more than half, the heap becomes the *old* one, which is still looked at, and
each push moves a few of its last entries, if they are not stale, to a new one. So no call takes
long, however many are stale, and while few are, a push does nothing about them.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

OFFSET_BITS = 64
OFFSET_MASK = (1 << OFFSET_BITS) - 1
SLACK = 1024
"""Stale entries that are always tolerated, so that a small queue is not rebuilt all the time."""

MOVES = 8
"""Entries that a push moves from the old heap."""
STALE_LOOKS = 2_048
"""Stale entries that `DueQueue.earliest_us` takes away in one call."""


def _never(offset: int) -> None:
    """When an offset of a queue that was let go is due."""


def _none() -> int:
    """How many offsets are due in a queue that was let go."""
    return 0


class DueQueue:
    """Due times of offsets.

    ``due_of`` says when an offset is due now, None for never; ``count`` how many are due ever.
    """

    __slots__ = ("_count", "_due_of", "_limit", "_old", "heap", "looks")

    def __init__(self, due_of: Callable[[int], int | None], count: Callable[[], int]) -> None:
        self._due_of = due_of
        self._count = count
        self.heap: list[int] = []
        self._old: list[int] = []
        self._limit = SLACK
        """Size of the heap at which more than half may be stale; -1 while they are left behind."""
        self.looks = 1 << 62
        """How many stale entries `pop_before` may take away yet, before it gives up."""

    def push(self, due_us: int, offset: int) -> None:
        """Note that ``offset`` is due at ``due_us``; ``due_of`` must already say so."""
        heap = self.heap
        heappush(heap, due_us << OFFSET_BITS | offset)
        if len(heap) > self._limit:
            self._tidy()

    def pop_before(self, bound_us: int) -> int:
        """Remove and return an offset due before ``bound_us``; -1 when there is none.

        Also -1 when as many stale entries as ``looks`` came up: there may be more then.
        """
        bound, due_of = bound_us << OFFSET_BITS, self._due_of
        heap = self._lowest() if self._old else self.heap
        while heap and heap[0] < bound and self.looks > 0:
            entry = heappop(heap)
            offset = entry & OFFSET_MASK
            if due_of(offset) == entry >> OFFSET_BITS:
                return offset
            self.looks -= 1
            if self._old:
                heap = self._lowest()
        return -1

    def may_be_due(self, bound_us: int) -> bool:
        """Whether ``pop_before`` may find something; cheap, and True for stale entries too."""
        heap = self._lowest() if self._old else self.heap
        return bool(heap) and heap[0] < bound_us << OFFSET_BITS

    def earliest_us(self) -> int | None:
        """When the first offset is due, or None; earlier than that where many entries are stale."""
        heap = self._lowest()
        for _ in range(STALE_LOOKS):
            if not heap or self._due_of(heap[0] & OFFSET_MASK) == heap[0] >> OFFSET_BITS:
                break
            heappop(heap)
            heap = self._lowest()
        return heap[0] >> OFFSET_BITS if heap else None

    def refill(self, due: list[tuple[int, int]]) -> None:
        """Replace all entries by these (due_us, offset) pairs."""
        self.heap = [due_us << OFFSET_BITS | offset for due_us, offset in due]
        self._old = []
        heapify(self.heap)
        self._limit = 2 * len(self.heap) + SLACK

    def let_go(self) -> None:
        """Be of no use any more, and refer to nobody."""
        self._due_of, self._count = _never, _none

    def _lowest(self) -> list[int]:
        """The heap whose first entry is the lowest."""
        heap, old = self.heap, self._old
        return old if old and not (heap and heap[0] < old[0]) else heap

    def _tidy(self) -> None:
        """Go on with leaving stale entries behind, or begin to if they are more than half."""
        if self._limit >= 0:
            limit = 2 * self._count() + SLACK
            if len(self.heap) <= limit:
                self._limit = limit
                return
            self._old, self.heap, self._limit = self.heap, self._old, -1
        heap, old, due_of = self.heap, self._old, self._due_of
        for _ in range(min(MOVES, len(old))):
            entry = old.pop()  # the last one: what is left is a heap
            if due_of(entry & OFFSET_MASK) == entry >> OFFSET_BITS:
                heappush(heap, entry)
        if not old:
            self._limit = 2 * len(heap) + SLACK
