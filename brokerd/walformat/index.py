# Tests: tests/wal/test_reader.py
"""Indexes: where the batches of one segment lie (docs/wal-format.rst, "Index of a sealed segment").

An index lists the partitions of a segment (:class:`PartitionSpan`) and the batches of each
(:class:`Rows`, by base offset). It is built in memory while the segment is written, and stored in a
file when the segment is sealed. A file is loaded whole and verified. A later change of the file
cannot make a read miss a record, nor stop the process as a mapped file would. Columns are used as
machine integers, so the machine must be little-endian.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

from xxhash import xxh3_64_intdigest

from brokerd.walformat.entries import ENTRY_HEADER_BYTES, Entry, EntryKind
from brokerd.walformat.layout import FORMAT_VERSION, FormatError, UnsupportedFormat
from brokerd.walformat.segments import segment_salt

INDEX_MAGIC = b"BRKDIDX\0"
INDEX_HEADER_BYTES = 88
SPAN_BYTES = 40

_HEADER = struct.Struct("<8sHHI16sQQQq")
_CHECKSUMS = struct.Struct("<QQQ")
_SPAN = struct.Struct("<QIIqqII")
_COLUMNS: tuple[Literal["q", "I"], ...] = ("q", "q", "I", "I", "I")


class PartitionSpan(NamedTuple):
    """The part of one partition in a segment. Offsets have gaps only where data is damaged."""

    topic_id: int
    partition: int
    first_offset: int
    end_offset: int
    """The offset after the last record."""
    first_row: int
    rows: int


class Rows(NamedTuple):
    """Batches of one partition in one segment, by base offset, as columns of one length."""

    base_offset: Sequence[int]
    time_us: Sequence[int]
    """Broker time of the batch's frame."""
    count: Sequence[int]  # type: ignore[assignment]  # tuple.count() gives way to the field
    position: Sequence[int]
    """Position of the entry's header in the file."""
    body_bytes: Sequence[int]

    def find(self, offset: int) -> int:
        """Return the row of the batch that holds an offset, -1 if none does."""
        row = bisect_right(self.base_offset, offset) - 1
        if row >= 0 and offset < self.base_offset[row] + self.count[row]:
            return row
        return -1


class SegmentIndex(Protocol):
    """An index in memory or from a file."""

    @property
    def size(self) -> int:
        """Bytes of memory, about."""

    def spans(self) -> Iterator[PartitionSpan]:
        """Yield the partitions of the segment, by topic id and partition."""

    def rows(self, topic_id: int, partition: int) -> Rows | None:
        """Return the batches of a partition, None if there are none."""


def _new_rows() -> tuple[array[int], ...]:
    return array("q"), array("q"), array("I"), array("I"), array("I")


class MemoryIndex:
    """An index that is built batch by batch. 28 bytes a batch, and 0.6 KB a partition."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], tuple[array[int], ...]] = {}
        self.batches = 0
        self.last_time_us = 0

    @property
    def size(self) -> int:
        return 28 * self.batches + 600 * len(self._rows)

    def add(
        self,
        topic_id: int,
        partition: int,
        base_offset: int,
        time_us: int,
        count: int,
        position: int,
        body_bytes: int,
    ) -> bool:
        """Add a batch. Returns True for the first batch of its partition.

        Batches of a partition come in order of offsets. The columns grow in order, so that a reader
        in another thread sees the first columns of a new row before the last one.
        """
        columns = self._rows.get((topic_id, partition))
        is_first = columns is None
        if columns is None:
            columns = self._rows[topic_id, partition] = _new_rows()
        bases, times, counts, positions, sizes = columns
        bases.append(base_offset)
        times.append(time_us)
        counts.append(count)
        positions.append(position)
        sizes.append(body_bytes)
        self.batches += 1
        return is_first

    def add_frame(
        self, entries: Sequence[Entry], time_us: int, position: int
    ) -> list[tuple[int, int, int]]:
        """Add the batches of a frame whose first entry is at ``position``.

        Return topic id, partition and base offset of those that are the first batch of their
        partition. It has the effect of `add` for each, in half of the time.
        """
        firsts: list[tuple[int, int, int]] = []
        known, records, batches = self._rows, int(EntryKind.RECORDS), 0
        for kind, topic_id, partition, base_offset, count, body in entries:
            size = len(body)
            if kind == records:
                key = topic_id, partition
                columns = known.get(key)
                if columns is None:
                    columns = known[key] = _new_rows()
                    firsts.append((topic_id, partition, base_offset))
                bases, times, counts, positions, sizes = columns
                bases.append(base_offset)
                times.append(time_us)
                counts.append(count)
                positions.append(position)
                sizes.append(size)
                batches += 1
            position += (ENTRY_HEADER_BYTES + size + 7) & ~7
        self.batches += batches
        self.last_time_us = time_us
        return firsts

    def spans(self) -> Iterator[PartitionSpan]:
        row = 0
        for topic_id, partition in sorted(self._rows):
            bases, _, counts, _, _ = self._rows[topic_id, partition]
            end = bases[-1] + counts[-1]
            yield PartitionSpan(topic_id, partition, bases[0], end, row, len(bases))
            row += len(bases)

    def rows(self, topic_id: int, partition: int) -> Rows | None:
        columns = self._rows.get((topic_id, partition))
        return None if columns is None else Rows(*columns)

    def encode(self, segment_id: bytes, first_lsn: int, end_lsn: int) -> bytes:
        """Encode the index file of the complete segment."""
        directory = b"".join(
            _SPAN.pack(
                s.topic_id, s.partition, 0, s.first_offset, s.end_offset, s.first_row, s.rows
            )
            for s in self.spans()
        )
        keys = sorted(self._rows)
        parts = []
        for column in range(len(_COLUMNS)):
            data = b"".join(self._rows[key][column].tobytes() for key in keys)
            parts.append(data + bytes(-len(data) % 8))
        columns = b"".join(parts)
        head = _HEADER.pack(
            INDEX_MAGIC,
            FORMAT_VERSION,
            0,
            len(keys),
            segment_id,
            first_lsn,
            end_lsn,
            self.batches,
            self.last_time_us,
        )
        seed = xxh3_64_intdigest(head, segment_salt(segment_id))
        checksums = _CHECKSUMS.pack(
            xxh3_64_intdigest(directory, seed), xxh3_64_intdigest(columns, seed), seed
        )
        return head + checksums + directory + columns


def merge_indexes(stored: SegmentIndex, scanned: MemoryIndex) -> MemoryIndex:
    """Return the batches of two indexes of one segment.

    A row of ``stored`` replaces the same row of ``scanned``: a scan cannot tell the time of a frame
    whose header is damaged.
    """
    both = MemoryIndex()
    both.last_time_us = scanned.last_time_us
    for key in sorted({span[:2] for index in (stored, scanned) for span in index.spans()}):
        rows: dict[int, tuple[int, ...]] = {}
        for columns in (scanned.rows(*key), stored.rows(*key)):
            if columns is not None:
                rows |= {row[3]: row for row in zip(*columns, strict=True)}
        for row in sorted(rows.values()):
            both.add(*key, *row)
    return both


class IndexHeader(NamedTuple):
    """The verified header of an index file."""

    partitions: int
    segment_id: bytes
    first_lsn: int
    end_lsn: int
    batches: int
    last_time_us: int
    directory_checksum: int
    columns_checksum: int
    seed: int

    @property
    def columns_position(self) -> int:
        return INDEX_HEADER_BYTES + self.partitions * SPAN_BYTES


def decode_index_header(data: bytes) -> IndexHeader:
    """Decode the first 88 bytes of an index. Raises FormatError, UnsupportedFormat."""
    if len(data) < INDEX_HEADER_BYTES:
        raise FormatError(f"index header is cut short: {len(data)} bytes of 88")
    magic, version, flags, partitions, segment_id, first_lsn, end_lsn, batches, last_time_us = (
        _HEADER.unpack_from(data)
    )
    directory_checksum, columns_checksum, seed = _CHECKSUMS.unpack_from(data, _HEADER.size)
    if magic != INDEX_MAGIC:
        raise FormatError(f"not an index: magic is {magic!r}")
    if seed != xxh3_64_intdigest(data[: _HEADER.size], segment_salt(segment_id)):
        raise FormatError("index header checksum does not match")
    if version > FORMAT_VERSION or flags:
        raise UnsupportedFormat(f"index version {version}, flags {flags:#x}")
    return IndexHeader(
        partitions,
        segment_id,
        first_lsn,
        end_lsn,
        batches,
        last_time_us,
        directory_checksum,
        columns_checksum,
        seed,
    )


def require_segment(header: IndexHeader, segment_id: bytes, first_lsn: int, end_lsn: int) -> None:
    """Raise FormatError for an index of another segment, or of a part of this one."""
    if (header.segment_id, header.first_lsn, header.end_lsn) != (segment_id, first_lsn, end_lsn):
        raise FormatError("it is the index of another segment")


def iter_spans(header: IndexHeader, directory: bytes, at: int = 0) -> Iterator[PartitionSpan]:
    """Verify the directory of an index and return its spans from ``at`` on. Raises FormatError."""
    if xxh3_64_intdigest(directory, header.seed) != header.directory_checksum:
        raise FormatError("index directory checksum does not match")
    found = _SPAN.iter_unpack(memoryview(directory)[at * SPAN_BYTES :])
    return (
        PartitionSpan(topic_id, partition, first, end, row, rows)
        for topic_id, partition, _, first, end, row, rows in found
    )


def decode_spans(header: IndexHeader, directory: bytes) -> list[PartitionSpan]:
    """Decode the directory of an index. Raises FormatError."""
    return list(iter_spans(header, directory))


class FileIndex:
    """An index loaded from ``data``, all of the index file of a sealed segment.

    Raises FormatError for a damaged index or one of another segment, UnsupportedFormat.
    """

    def __init__(self, data: bytes, segment_id: bytes, first_lsn: int, end_lsn: int) -> None:
        header = decode_index_header(data)
        require_segment(header, segment_id, first_lsn, end_lsn)
        start = header.columns_position
        view = memoryview(data)
        self.size = len(data)
        self._directory = view[INDEX_HEADER_BYTES:start]
        self._partitions = header.partitions
        if xxh3_64_intdigest(self._directory, header.seed) != header.directory_checksum:
            raise FormatError("index directory checksum does not match")
        if xxh3_64_intdigest(view[start:], header.seed) != header.columns_checksum:
            raise FormatError("index columns checksum does not match")
        columns = []
        for code in _COLUMNS:
            end = start + header.batches * struct.calcsize(code)
            columns.append(view[start:end].cast(code))
            start = end + (-end % 8)
        self._columns = tuple(columns)

    def _key(self, index: int) -> tuple[int, int]:
        topic_id, partition, *_ = _SPAN.unpack_from(self._directory, index * SPAN_BYTES)
        return topic_id, partition

    def spans(self) -> Iterator[PartitionSpan]:
        for topic_id, partition, _, first, end, row, rows in _SPAN.iter_unpack(self._directory):
            yield PartitionSpan(topic_id, partition, first, end, row, rows)

    def all_rows(self) -> Rows:
        """Return the batches of all partitions, in the order of `spans`."""
        return Rows(*self._columns)

    def rows(self, topic_id: int, partition: int) -> Rows | None:
        wanted = (topic_id, partition)
        at = bisect_left(range(self._partitions), wanted, key=self._key)
        if at == self._partitions or self._key(at) != wanted:
            return None
        row, rows = _SPAN.unpack_from(self._directory, at * SPAN_BYTES)[5:]
        return Rows(*(column[row : row + rows] for column in self._columns))
