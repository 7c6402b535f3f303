# Tests: tests/wal/test_reader.py
"""Reads batches from segment files by their index rows, and verifies every checksum.

A plan runs in any thread. It holds its files open, so that segments may be sealed meanwhile. One
disk read fetches batches that lie close together.
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
"""The largest gap between two batches of one disk read."""
RUN_BYTES = 1 << 20
"""The usual size of a disk read. A larger batch makes a larger one."""


class Batch(NamedTuple):
    """A batch of records as it was appended. ``walformat.decode_records`` decodes the body."""

    base_offset: int
    count: int  # type: ignore[assignment]  # tuple.count() gives way to the field
    body: bytes


class DamagedBatch(DamagedData):
    """A batch cannot be read where the index says that it lies.

    ``positions`` in the segment file ``name`` and ``offsets`` are (first, end), end exclusive.
    ``of`` names topic and partition.
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


class RowRange(NamedTuple):
    """Rows ``row`` to ``stop``, exclusive, of a partition in one segment."""

    file: File
    name: str
    segment_id: bytes
    rows: Rows
    row: int
    """-1 if the segment does not hold the offset."""
    stop: int

    @property
    def span_bytes(self) -> int:
        """Bytes from the entry of the first row to the end of the last one."""
        rows, last = self.rows, self.stop - 1
        return rows.position[last] + rows.body_bytes[last] - rows.position[self.row]


class _Extent(NamedTuple):
    """One disk read: rows ``row`` to ``stop``, whose entries lie between two positions."""

    row: int
    stop: int
    start: int
    end: int


class ReadPlan:
    """A plan to read batches of one partition. ``ranges`` give the rows of each segment."""

    def __init__(
        self,
        topic_id: int,
        partition: int,
        ranges: Sequence[Callable[[], RowRange]],
        max_bytes: int,
    ) -> None:
        self._topic_id = topic_id
        self._partition = partition
        self._ranges = ranges
        self._max_bytes = max_bytes

    def run(self) -> list[Batch]:
        """Read batches whose offsets follow one another without a gap.

        Returns at least one batch, and more while their bodies fit ``max_bytes``. Returns none if
        the log does not hold the offset. Reading ends before a damaged batch.

        Raises DamagedBatch if the first batch is damaged, RecordRemoved if its segment was deleted
        since the plan was made, and OSError, which may pass.
        """
        batches: list[Batch] = []
        left = self._max_bytes
        for load in self._ranges:
            try:
                left = self._read_range(load(), batches, left)
            except (DamagedData, RecordRemoved):
                if batches:
                    return batches
                raise
            if left <= 0 or not batches:
                break
        return batches

    def _read_range(self, piece: RowRange, batches: list[Batch], left: int) -> int:
        """Add the batches of one segment. Returns how many bytes may still follow."""
        if piece.row >= 0:
            for extent in self._extents(piece, batches, left):
                left -= self._read(piece, extent, batches)
                if left <= 0:
                    break
        return left

    def _extents(self, piece: RowRange, read: list[Batch], left: int) -> Iterator[_Extent]:
        """Yield disk reads for the rows, up to the first gap in the offsets."""
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

    def _read(self, piece: RowRange, extent: _Extent, batches: list[Batch]) -> int:
        """Do one disk read and add its batches. Returns the bytes of their bodies."""
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

    def _damaged(self, piece: RowRange, row: int, problem: str) -> DamagedBatch:
        rows = piece.rows
        first, position = rows.base_offset[row], rows.position[row]
        return DamagedBatch(
            piece.name,
            (position, position + entry_size(rows.body_bytes[row])),
            f"topic id {self._topic_id} partition {self._partition}",
            (first, first + rows.count[row]),
            problem,
        )
