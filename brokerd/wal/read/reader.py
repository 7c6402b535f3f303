# Tests: tests/wal/test_reader.py
"""Reads planned batches from segment files, in any thread, and verifies every checksum.

A plan names rows of indexes; it holds the files open, so that it can run although segments are
sealed meanwhile. Batches that lie close together are read in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from brokerd.errors import DamagedData, RecordRemoved
from brokerd.wal.disk import File
from brokerd.walformat import (
    ENTRY_HEADER_BYTES,
    EntryKind,
    FormatError,
    entry_body,
    entry_size,
    parse_entry_header,
    segment_salt,
)
from brokerd.walformat.index import Rows

GAP_BYTES = 16 << 10
"""Bytes that may lie between two batches which are still read in one go."""
RUN_BYTES = 1 << 20
"""A run of batches is read in pieces of about this size."""


class Batch(NamedTuple):
    """A batch of records as it was appended; ``walformat.decode_records`` reads the body."""

    base_offset: int
    count: int  # type: ignore[assignment]  # tuple.count() gives way to the field
    body: bytes


class DamagedBatch(DamagedData):
    """A batch that the index names cannot be read.

    ``positions`` in the segment file ``name`` and ``offsets`` are (first, end), end exclusive.
    """

    def __init__(
        self, name: str, positions: tuple[int, int], of: str, offsets: tuple[int, int], problem: str
    ) -> None:
        first, end = offsets
        super().__init__(
            f"{name} at {positions[0]}: {of} offsets {first} to {end - 1} cannot be read: {problem}"
        )
        self.name = name
        self.positions = positions
        self.offsets = offsets
        self.problem = problem


class PlannedRows(NamedTuple):
    """Rows ``row`` to ``stop`` of a partition in one segment."""

    file: File
    name: str
    segment_id: bytes
    rows: Rows
    row: int
    """-1 when the segment does not hold the offset after all."""
    stop: int

    @property
    def span_bytes(self) -> int:
        """From the first row's entry to the end of the last one's."""
        rows, last = self.rows, self.stop - 1
        return rows.position[last] + rows.body_bytes[last] - rows.position[self.row]


class _Extent(NamedTuple):
    """Rows ``row`` to ``stop`` whose entries lie between two positions, to be read in one go."""

    row: int
    stop: int
    start: int
    end: int


class ReadPlan:
    """Batches of one partition, to be read by :meth:`run`, from segments that it may open."""

    def __init__(
        self,
        topic_id: int,
        partition: int,
        pieces: Sequence[Callable[[], PlannedRows]],
        max_bytes: int,
    ) -> None:
        self._topic_id = topic_id
        self._partition = partition
        self._pieces = pieces
        self._max_bytes = max_bytes

    def run(self) -> list[Batch]:
        """Read. The offsets of the batches follow one another without a gap.

        At least one batch comes back, then more while their bodies fit ``max_bytes``; none when the
        log does not hold the offset. Reading ends early before a damaged batch; if that is the
        first, DamagedBatch says where it lies. An OSError says nothing of the bytes: it may pass.
        RecordRemoved: since the plan was made, the segment was deleted.
        """
        batches: list[Batch] = []
        left = self._max_bytes
        for load in self._pieces:
            try:
                left = self._read_piece(load(), batches, left)
            except (DamagedData, RecordRemoved):
                if batches:
                    return batches
                raise
            if left <= 0 or not batches:
                break
        return batches

    def _read_piece(self, piece: PlannedRows, batches: list[Batch], left: int) -> int:
        """Add the batches of one segment; returns how many bytes may still follow."""
        if piece.row >= 0:
            for extent in self._extents(piece, batches, left):
                left -= self._read(piece, extent, batches)
                if left <= 0:
                    break
        return left

    def _extents(self, piece: PlannedRows, read: list[Batch], left: int) -> Iterator[_Extent]:
        """Cut the rows into runs for one read each, up to the first gap in the offsets."""
        rows = piece.rows
        row = piece.row
        expected = read[-1].base_offset + read[-1].count if read else rows.base_offset[row]
        first, start, end = row, rows.position[row], 0
        while row < piece.stop and rows.base_offset[row] == expected:
            position = rows.position[row]
            size = rows.body_bytes[row]
            entry_end = position + ENTRY_HEADER_BYTES + size
            is_over = size > left and (row > first or bool(read))
            if row > first and (
                is_over or position - end > GAP_BYTES or entry_end - start > RUN_BYTES
            ):
                yield _Extent(first, row, start, end)
                first, start = row, position
            if is_over:
                return
            left -= size
            end = entry_end
            expected += rows.count[row]
            row += 1
        if row > first:
            yield _Extent(first, row, start, end)

    def _read(self, piece: PlannedRows, extent: _Extent, batches: list[Batch]) -> int:
        """Read one run of rows and add their batches; returns the bytes of their bodies."""
        data = piece.file.pread(extent.end - extent.start, extent.start)
        salt = segment_salt(piece.segment_id)
        rows = piece.rows
        size = 0
        for row in range(extent.row, extent.stop):
            position = rows.position[row] - extent.start
            expected = (
                EntryKind.RECORDS,
                self._topic_id,
                self._partition,
                rows.base_offset[row],
                rows.count[row],
            )
            try:
                header = parse_entry_header(data, salt, position)
                if header[:5] != expected:
                    raise FormatError("the entry is not the one the index names")
                body = entry_body(data, header, position)
            except FormatError as error:
                raise self._damaged(piece, row, str(error)) from None
            batches.append(Batch(header.base_offset, header.count, body))
            size += len(body)
        return size

    def _damaged(self, piece: PlannedRows, row: int, problem: str) -> DamagedBatch:
        rows = piece.rows
        first, position = rows.base_offset[row], rows.position[row]
        return DamagedBatch(
            piece.name,
            (position, position + entry_size(rows.body_bytes[row])),
            f"topic id {self._topic_id} partition {self._partition}",
            (first, first + rows.count[row]),
            problem,
        )
