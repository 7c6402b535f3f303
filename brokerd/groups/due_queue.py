# Tests: tests/groups/test_due_queue.py
"""Offsets by the time they are due, earliest first, with lazy deletion.

An entry is one integer, ``due_us << 64 | offset``, so that the heap compares numbers and not
tuples. An entry is stale when its offset is no longer due at that time. Stale entries are removed
when they come up. When more than half are stale, the heap becomes the *old* heap, which is still
used, and each push moves a few of its last entries, if not stale, to a new heap. Every call is
short, also with many stale entries.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

OFFSET_BITS = 64
OFFSET_MASK = (1 << OFFSET_BITS) - 1
SLACK = 1024
"""Stale entries that are always tolerated, so that a small queue is not rebuilt often."""

MOVES = 8
"""Entries that a push moves from the old heap."""
STALE_REMOVED_MAX = 2_048
"""Stale entries that `DueQueue.earliest_us` removes in one call."""


def _never(offset: int) -> None:
    """Due time of an offset in a disposed queue."""


def _none() -> int:
    """Number of offsets in a disposed queue."""
    return 0


class DueQueue:
    """Due times of offsets.

    ``due_of`` returns the present due time of an offset, None for never. ``count`` returns the
    number of offsets with a due time.
    """

    __slots__ = ("_count", "_due_of", "_limit", "_old", "heap", "stale_left")

    def __init__(self, due_of: Callable[[int], int | None], count: Callable[[], int]) -> None:
        self._due_of = due_of
        self._count = count
        self.heap: list[int] = []
        self._old: list[int] = []
        self._limit = SLACK
        """Size of the heap at which more than half may be stale; -1 while there is an old heap."""
        self.stale_left = 1 << 62
        """Number of stale entries that `pop_before` may still remove before it gives up."""

    def push(self, due_us: int, offset: int) -> None:
        """Add ``offset``, due at ``due_us``, which ``due_of`` must return for it by now."""
        heap = self.heap
        heappush(heap, due_us << OFFSET_BITS | offset)
        if len(heap) > self._limit:
            self._tidy()

    def push_run(self, due_us: int, first: int, count: int) -> None:
        """Add ``count`` offsets from ``first`` on, as `push` does."""
        heap = self.heap
        size, lowest = len(heap), due_us << OFFSET_BITS | first
        if size + count <= self._limit:
            # Rising entries that are above their parents extend a heap. The last parent of an old
            # entry may be an entry of the run itself.
            parents = heap[max(size - 1, 0) // 2 : (size + count) // 2]
            if not parents or max(parents) <= lowest:
                heap += range(lowest, lowest + count)
                return
        for offset in range(first, first + count):
            heappush(heap, due_us << OFFSET_BITS | offset)
            if len(heap) > self._limit:
                self._tidy()
                heap = self.heap

    def pop_before(self, bound_us: int) -> int:
        """Remove and return an offset due before ``bound_us``; -1 if there is none.

        Also returns -1 after ``stale_left`` stale entries, when more offsets may be due.
        """
        bound, due_of = bound_us << OFFSET_BITS, self._due_of
        heap = self._lowest() if self._old else self.heap
        while heap and heap[0] < bound and self.stale_left > 0:
            entry = heappop(heap)
            offset = entry & OFFSET_MASK
            if due_of(offset) == entry >> OFFSET_BITS:
                return offset
            self.stale_left -= 1
            if self._old:
                heap = self._lowest()
        return -1

    def may_be_due(self, bound_us: int) -> bool:
        """Return False if ``pop_before`` would find nothing. True may be due to stale entries."""
        heap = self._lowest() if self._old else self.heap
        return bool(heap) and heap[0] < bound_us << OFFSET_BITS

    def earliest_us(self) -> int | None:
        """Return the due time of the first offset or None; too early if many entries are stale."""
        heap = self._lowest()
        for _ in range(STALE_REMOVED_MAX):
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

    def take_heaps(self) -> list[list[int]]:
        """Take out all entries, for the caller to free."""
        heaps = [self.heap, self._old]
        self.refill([])
        return heaps

    def dispose(self) -> None:
        """Drop references to other objects, so that memory is freed at once."""
        self._due_of, self._count = _never, _none

    def _lowest(self) -> list[int]:
        """Return the heap whose first entry is the lowest."""
        heap, old = self.heap, self._old
        return old if old and not (heap and heap[0] < old[0]) else heap

    def _tidy(self) -> None:
        """Move entries from the old heap, or begin to if more than half may be stale."""
        if self._limit >= 0:
            limit = 2 * self._count() + SLACK
            if len(self.heap) <= limit:
                self._limit = limit
                return
            self._old, self.heap, self._limit = self.heap, self._old, -1
        heap, old, due_of = self.heap, self._old, self._due_of
        for _ in range(min(MOVES, len(old))):
            entry = old.pop()  # the last entry: the rest is still a heap
            if due_of(entry & OFFSET_MASK) == entry >> OFFSET_BITS:
                heappush(heap, entry)
        if not old:
            self._limit = 2 * len(heap) + SLACK
