# Tests: tests/broker/test_cold.py
"""Reads the archive through `ArchiveReader`, ahead of sequential readers.

A reader that continues at the end of its last read gets larger reads. The next read runs while the
broker serves the last one: decompression runs in a thread. Errors of a read-ahead are dropped,
because a later request for the same records repeats the read and reports its error.

Memory: `AHEAD_MAX` results of read-ahead, each a quarter of the read cache and at most
`READ_BYTES_MAX`, plus the overhead of the records.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from brokerd.broker.archive.reader import ArchiveReader, ReadCallback
from brokerd.broker.clock import Clock
from brokerd.broker.model.chunks import Chunk
from brokerd.broker.model.topics import Partition

READ_BYTES_MAX = 8 << 20
"""Largest size of a row group of the archive, unless it holds a single larger record."""

AHEAD_MAX = 4
"""Read-ahead results kept. More concurrent readers evict each other's results."""

ENDS_MAX = 256
"""Partitions for which the end of the last read is kept."""


class _Ahead:
    """A read-ahead: under way or complete."""

    __slots__ = ("chunks", "done", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.chunks: list[Chunk] | None = None
        self.done: ReadCallback | None = None
        """The request that waits for this read-ahead."""


class ReadAhead:
    """Reads through `ArchiveReader`, ahead of sequential readers.

    ``cache_bytes`` is the limit of the cache that takes the results.
    """

    def __init__(self, archive_reader: ArchiveReader, clock: Clock, cache_bytes: int) -> None:
        self._archive_reader = archive_reader
        self._clock = clock
        self._read_bytes = min(READ_BYTES_MAX, cache_bytes // 4)
        self._aheads: OrderedDict[Partition, _Ahead] = OrderedDict()
        self._ends: OrderedDict[Partition, int] = OrderedDict()

    def read(self, partition: Partition, offset: int, max_bytes: int, done: ReadCallback) -> None:
        """Read as `ArchiveReader.read`; a sequential reader gets more than ``max_bytes``."""
        ahead = self._aheads.pop(partition, None)
        is_next = self._ends.pop(partition, -1) == offset
        brought = partial(self._read_ended, partition, done, is_next)
        if ahead is None or ahead.offset != offset:
            size = max(max_bytes, self._read_bytes) if is_next else max_bytes
            self._archive_reader.read(partition, offset, size, brought)
        elif ahead.chunks is None:
            ahead.done = brought
        else:
            self._clock.callLater(0, brought, ahead.chunks, None)

    def _read_ended(
        self,
        partition: Partition,
        done: ReadCallback,
        is_next: bool,
        chunks: list[Chunk] | None,
        error: Exception | None,
    ) -> None:
        if chunks:
            end = chunks[-1].end
            self._ends[partition] = end
            if len(self._ends) > ENDS_MAX:
                self._ends.popitem(last=False)
            if is_next and end < partition.archived_end:
                self._begin(partition, end)
        done(chunks, error)

    def _begin(self, partition: Partition, offset: int) -> None:
        ahead = self._aheads[partition] = _Ahead(offset)
        if len(self._aheads) > AHEAD_MAX:
            self._aheads.popitem(last=False)
        self._archive_reader.read(
            partition, offset, self._read_bytes, partial(self._ahead_ended, ahead)
        )

    def _ahead_ended(
        self, ahead: _Ahead, chunks: list[Chunk] | None, error: Exception | None
    ) -> None:
        if ahead.done is not None:
            ahead.done(chunks, error)
        elif chunks:
            ahead.chunks = chunks
        else:
            ahead.offset = -1  # no request matches it
