# Tests: tests/wal/test_seek.py
"""Finds offsets by time and by size, from indexes alone; made by the catalog, run in any thread.

A batch has one time, that of its frame, so an offset found by time is exact. Sizes are those of
batches as they are in the log: an offset found by size is the first of a batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from brokerd.errors import RecordRemoved
from brokerd.walformat.index import Rows


class Part(NamedTuple):
    """What one segment holds of a partition. ``load`` reads its index; it blocks.

    ``load`` raises RecordRemoved when the segment was deleted since, and what opening a segment
    raises.
    """

    first_offset: int
    load: Callable[[], Rows]
    sizes: dict[tuple[int, int], int]
    """Bytes of batches by partition, kept with the segment once they are known and final."""
    is_final: bool
    """No more batches will be added."""


class OffsetPlan(Protocol):
    """Finds an offset; run it in another thread, since it may read indexes."""

    def run(self) -> int | None:
        """The offset, or None. Raises DamagedData, OSError."""


class TimePlan:
    """The first offset appended at or after a time, None if the log holds none.

    ``parts`` may hold it, in order; if none does it is ``after``, the first offset behind them.
    """

    def __init__(self, parts: Iterable[Part], after: int | None, time_us: int) -> None:
        self._parts = parts
        self._after = after
        self._time_us = time_us

    def run(self) -> int | None:
        for part in self._parts:
            try:
                rows = part.load()
            except RecordRemoved:
                continue
            row = bisect_left(rows.time_us, self._time_us)
            if row < len(rows.time_us):
                return rows.base_offset[row]
        return self._after


class SizePlan:
    """The first offset from which on there are at most ``max_bytes``; None for an empty partition.

    ``parts`` are its segments, newest first. When the newest batch alone is larger, it is the
    offset after that batch.
    """

    def __init__(self, key: tuple[int, int], parts: Iterable[Part], max_bytes: int) -> None:
        self._key = key
        self._parts = parts
        self._max_bytes = max_bytes
        self._found: list[tuple[Part, int]] = []

    def remember(self) -> None:
        """Keep the sizes that the run found with their segments; in the log's own thread."""
        for part, size in self._found:
            part.sizes[self._key] = size
        self._found.clear()

    def run(self) -> int | None:
        return self.look()[0]

    def look(self) -> tuple[int | None, int]:
        """As `run`, and how many bytes there may be below the offset; 0 if no more may."""
        first: int | None = None
        left = self._max_bytes
        for part in self._parts:
            size = part.sizes.get(self._key)
            if size is None or size > left:
                try:
                    rows = part.load()
                except RecordRemoved:
                    return first, left
                bodies = rows.body_bytes[:]
                size = sum(bodies)
                if part.is_final:
                    self._found.append((part, size))
                if size > left:
                    return _first_that_fits(rows, bodies, left, first), 0
            left -= size
            first = part.first_offset
        return first, left


def _first_that_fits(rows: Rows, bodies: Sequence[int], left: int, after: int | None) -> int:
    """The first offset of the last batches that have at most ``left`` bytes; else ``after``."""
    batches = bisect_right(list(accumulate(reversed(bodies))), left)
    last = len(bodies) - 1
    if batches:
        return rows.base_offset[last + 1 - batches]
    return rows.base_offset[last] + rows.count[last] if after is None else after
