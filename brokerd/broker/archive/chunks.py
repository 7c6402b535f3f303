# Tests: tests/broker/test_holes.py
"""Records of the archive in memory: immutable chunks, dense or with holes.

A hole takes no memory, however long it is. Consumers skip the offsets of a hole, because its expiry
column marks them as removed at any time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from brokerd.archive.contract.view import ArchivedRows
from brokerd.broker.model.chunks import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    RECORD_OVERHEAD_BYTES,
    REMOVED,
    Chunk,
    DenseChunk,
    MutableChunk,
    Rows,
    shared_nones,
)
from brokerd.values import PackedBytes, total_bytes
from brokerd.walformat import RecordColumns

COMPACT_OVERHEAD_BYTES = 24
"""Overhead of a record with a packed value, without key and metadata."""

CHUNK_OVERHEAD_BYTES = 2_000
"""Overhead of a chunk with holes."""

OFFSET_BYTES = 16
"""Extra overhead of a record in a chunk with holes."""

T = TypeVar("T")


class ReadChunk(DenseChunk):
    """An immutable chunk; each column may have any sequence type.

    The constructor copies packed values, so that the rest of the read buffer can be freed.
    """

    __slots__ = ("_is_compact",)

    def __init__(self, base: int, count: int, columns: RecordColumns) -> None:
        super().__init__(base)
        none = shared_nones(count)
        values, keys, metadata = columns.values, columns.keys, columns.metadata
        is_packed = isinstance(values, PackedBytes)
        self.values = values.copy() if isinstance(values, PackedBytes) else values
        self.keys = none if keys is None else keys
        self.metadata = none if metadata is None else metadata
        self.encodings = _bytes(columns.encodings, count)
        self.formats = _bytes(columns.producer_format, count)
        self.producer_times = columns.producer_time
        self.expires_at_us = columns.expires_at_us
        times = columns.append_time_us
        self.times_us = (times,) * count if isinstance(times, int) else times
        self._is_compact = is_packed and keys is None and metadata is None

    def content_bytes(self) -> int:
        overhead = COMPACT_OVERHEAD_BYTES if self._is_compact else RECORD_OVERHEAD_BYTES
        return self.rows(self.base, self.end).size() + len(self.values) * overhead


class SparseChunk(Chunk):
    """Offsets ``base`` to ``end``, exclusive, with records only at ``offsets``.

    ``offsets`` ascend and may be empty. ``rows`` holds the records in the same order.
    """

    __slots__ = ("_end", "_offsets", "_rows")

    def __init__(self, base: int, end: int, offsets: Sequence[int], rows: DenseChunk) -> None:
        super().__init__(base)
        self._end = end
        self._offsets = offsets
        self._rows = rows
        at = _Places(base, end - base, offsets)
        self.values = _Sparse(at, rows.values, b"")
        self.keys = _Sparse(at, rows.keys, None)
        self.metadata = _Sparse(at, rows.metadata, None)
        self.encodings = _Sparse(at, rows.encodings, 0)
        self.formats = _Sparse(at, rows.formats, 0)
        times = rows.producer_times
        self.producer_times = None if times is None else _Sparse(at, times, None)
        self.expires_at_us = _Sparse(at, rows.expires_at_us or [0] * len(offsets), REMOVED)
        self.times_us = _Sparse(at, rows.times_us, 0)

    @property
    def end(self) -> int:
        return self._end

    def end_of_run(self, offset: int, count: int) -> int:
        at = bisect_left(self._offsets, offset) + count
        return self._offsets[at] if at < len(self._offsets) else self._end

    def hole_end(self, offset: int) -> int:
        return self.end_of_run(offset, 0)

    def rows(self, first: int, end: int) -> Rows:
        part = slice(bisect_left(self._offsets, first), bisect_left(self._offsets, end))
        return Rows(self._rows, self._offsets[part], part)


class _Places:
    """Maps offsets of a sparse chunk to rows."""

    __slots__ = ("base", "offsets", "size")

    def __init__(self, base: int, size: int, offsets: Sequence[int]) -> None:
        self.base = base
        self.size = size
        self.offsets = offsets


class _Sparse(Generic[T]):
    """A column with a value for each offset with a row, and ``other`` for each hole."""

    __slots__ = ("_at", "_other", "_values")

    def __init__(self, at: _Places, values: Sequence[T], other: T) -> None:
        self._at = at
        self._values = values
        self._other = other

    def __len__(self) -> int:
        return self._at.size

    def __getitem__(self, index: int, /) -> T:
        offsets, offset = self._at.offsets, self._at.base + index
        row = bisect_left(offsets, offset)
        if row < len(offsets) and offsets[row] == offset:
            return self._values[row]
        return self._other


def chunks_of(rows: ArchivedRows) -> list[Chunk]:
    """Return adjacent chunks that hold all offsets of ``rows``."""
    return list(_chunks(rows))


def _chunks(rows: ArchivedRows) -> Iterator[Chunk]:
    first, end, offsets, columns = rows
    count = len(offsets)
    step = _rows_a_chunk(columns, count)
    for row in range(0, count, step):
        stop = min(row + step, count)
        part = offsets[row:stop]
        base, last = part[0], part[-1]
        chunk = ReadChunk(base, len(part), _part(columns, row, stop))
        chunk.cached_bytes = chunk.content_bytes()
        if last - base >= len(part):
            yield _sparse(first, last + 1, part, chunk)
        else:
            if first < base:
                yield _sparse(first, base, (), MutableChunk(base))
            yield chunk
        first = last + 1
    if first < end:
        yield _sparse(first, end, (), MutableChunk(first))


def _sparse(base: int, end: int, offsets: Sequence[int], rows: DenseChunk) -> SparseChunk:
    chunk = SparseChunk(base, end, offsets, rows)
    chunk.cached_bytes = rows.cached_bytes + len(offsets) * OFFSET_BYTES + CHUNK_OVERHEAD_BYTES
    return chunk


def _bytes(column: Sequence[int] | int, count: int) -> Sequence[int]:
    return bytes([column]) * count if isinstance(column, int) else column


def _rows_a_chunk(columns: RecordColumns, count: int) -> int:
    """Return the number of rows for chunks about as large as those of the log."""
    size = total_bytes(columns.values)
    return max(1, min(CHUNK_RECORDS, CHUNK_BYTES * count // (size or 1)))


def _part(columns: RecordColumns, row: int, stop: int) -> RecordColumns:
    return RecordColumns._make(
        column if column is None or isinstance(column, int) else column[row:stop]
        for column in columns
    )
