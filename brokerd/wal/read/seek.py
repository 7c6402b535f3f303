# Tests: tests/wal/test_seek.py
"""Plans that find an offset by time or by size from indexes. The catalog makes them.

A plan runs in any thread. A batch has the time of its frame, so an offset by time is exact. Sizes
are those of whole batches in the log, so an offset by size is the first offset of a batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from brokerd.errors import RecordRemoved
from brokerd.walformat.index import Rows


class SegmentPart(NamedTuple):
    """The batches of a partition in one segment.

    ``load`` blocks and returns their rows. It raises RecordRemoved for a deleted segment,
    DamagedData and OSError.
    """

    first_offset: int
    load: Callable[[], Rows]
    sizes: dict[tuple[int, int], int]
    """The segment's bytes of batches by partition, as far as they are computed."""
    is_final: bool
    """No batch will be added."""


class OffsetPlan(Protocol):
    """Finds an offset. It reads indexes, so it runs in another thread than the reactor's."""

    def run(self) -> int | None:
        """Return the offset, or None. Raises DamagedData, OSError."""


class TimePlan:
    """Finds the first offset appended at or after a time, None if the log holds none.

    The plan searches ``parts`` in order. If none of them has the offset, it is ``after``, the first
    offset behind them.
    """

    def __init__(self, parts: Iterable[SegmentPart], after: int | None, time_us: int) -> None:
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
    """Finds the first offset with at most ``max_bytes`` from there to the end, or None.

    ``parts`` come newest first. If the newest batch alone is larger, the offset is the one after
    that batch.
    """

    def __init__(self, key: tuple[int, int], parts: Iterable[SegmentPart], max_bytes: int) -> None:
        self._key = key
        self._parts = parts
        self._max_bytes = max_bytes
        self._found: list[tuple[SegmentPart, int]] = []

    def remember(self) -> None:
        """Keep the computed sizes with their segments. Call it in the reactor's thread."""
        for part, size in self._found:
            part.sizes[self._key] = size
        self._found.clear()

    def run(self) -> int | None:
        return self.measure()[0]

    def measure(self) -> tuple[int | None, int]:
        """Return the offset as `run` does, and how many bytes the records below it may have."""
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
    """Return the first offset of the last batches with at most ``left`` bytes, else ``after``."""
    batches = bisect_right(list(accumulate(reversed(bodies))), left)
    last = len(bodies) - 1
    if batches:
        return rows.base_offset[last + 1 - batches]
    return rows.base_offset[last] + rows.count[last] if after is None else after
