# Tests: tests/broker/test_cold.py
"""Reads of the archive, and of what is likely to be asked for next.

Who goes on where the read before ended reads more at a time, and the next read is under way while
what came is served: decompression needs no turn of the reactor. What goes wrong with a read that
nobody asked for is found again, and told, when somebody does.

Memory: `AHEAD_MAX` reads that nobody asked for yet, each a quarter of the read cache and at most
`READ_BYTES_MAX`, besides what its records take in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from brokerd.broker.archive.reader import ArchiveReader, Brought
from brokerd.broker.journal import Clock
from brokerd.broker.model.chunks import Chunk
from brokerd.broker.model.topics import Partition

READ_BYTES_MAX = 8 << 20
"""A row group of the archive has no more, unless it is one record."""

AHEAD_MAX = 4
"""More readers than that, side by side, throw each other's reads away."""

ENDS_MAX = 256
"""Partitions of which it is known where the last read ended."""


class _Ahead:
    """A read that nobody asked for yet."""

    __slots__ = ("chunks", "done", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.chunks: list[Chunk] | None = None
        self.done: Brought | None = None
        """Who asked for it meanwhile."""


class ReadAhead:
    """Reads the archive. ``cache_bytes`` is the limit of the cache that takes what comes."""

    def __init__(self, archived: ArchiveReader, clock: Clock, cache_bytes: int) -> None:
        self._archived = archived
        self._clock = clock
        self._read_bytes = min(READ_BYTES_MAX, cache_bytes // 4)
        self._aheads: OrderedDict[Partition, _Ahead] = OrderedDict()
        self._ends: OrderedDict[Partition, int] = OrderedDict()

    def read(self, partition: Partition, offset: int, max_bytes: int, done: Brought) -> None:
        """As `ArchiveReader.read`; more than ``max_bytes`` for who reads on."""
        ahead = self._aheads.pop(partition, None)
        is_next = self._ends.pop(partition, -1) == offset
        brought = partial(self._brought, partition, done, is_next)
        if ahead is None or ahead.offset != offset:
            size = max(max_bytes, self._read_bytes) if is_next else max_bytes
            self._archived.read(partition, offset, size, brought)
        elif ahead.chunks is None:
            ahead.done = brought
        else:
            self._clock.callLater(0, brought, ahead.chunks, None)

    def _brought(
        self,
        partition: Partition,
        done: Brought,
        is_next: bool,
        chunks: list[Chunk] | None,
        error: Exception | None,
    ) -> None:
        if chunks:
            end = chunks[-1].end
            self._ends[partition] = end
            if len(self._ends) > ENDS_MAX:
                self._ends.popitem(last=False)
            if is_next and end < partition.archived:
                self._begin(partition, end)
        done(chunks, error)

    def _begin(self, partition: Partition, offset: int) -> None:
        ahead = self._aheads[partition] = _Ahead(offset)
        if len(self._aheads) > AHEAD_MAX:
            self._aheads.popitem(last=False)
        self._archived.read(partition, offset, self._read_bytes, partial(self._came, ahead))

    def _came(self, ahead: _Ahead, chunks: list[Chunk] | None, error: Exception | None) -> None:
        if ahead.done is not None:
            ahead.done(chunks, error)
        elif chunks:
            ahead.chunks = chunks
        else:
            ahead.offset = -1  # nobody asks for that
