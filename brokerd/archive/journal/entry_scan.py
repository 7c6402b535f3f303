# Tests: tests/archive/test_events.py
"""Finds the entries of a sealed segment other than batches of records.

The index lists every batch, so the scan reads only the gaps between batches. A gap holds only frame
headers and sound entries; other bytes are damage (docs/wal-format.rst, section "Reading a log
back"). The caller verifies bodies. The scan verifies a frame header when an entry needs its time.

`brokerd.archive.journal.frame_scan` scans files without an index. There, finding a batch requires
verification of all bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from brokerd.archive.contract.ranges import DisjointRanges
from brokerd.archive.journal.columns import Integers
from brokerd.archive.journal.sealed import DamagedSegment, SealedSegment, batches_of
from brokerd.errors import NewerFormat
from brokerd.walformat import (
    ALIGNMENT,
    ENTRY_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    EntryHeader,
    EntryKind,
    FormatError,
    UnsupportedFormat,
    entry_size,
    parse_entry_header,
    parse_frame_header,
)

WINDOW_BYTES = 1 << 20
"""The largest number of bytes in memory, unless one entry is larger."""
_PASSED_MIN, _PASSED_MAX = 16, 4096
"""The smallest and the largest number of frame headers that are checked together."""
CHUNK_ROWS = 1 << 16
"""The largest number of rows of a chunk, unless one entry has more."""


class EntryChunk(NamedTuple):
    """Some entries in memory."""

    data: bytes
    base: int
    """The position of ``data`` in the file, a multiple of 8."""
    positions: list[int]
    """The position of each entry's header in the file."""
    times_us: list[int]
    """The broker time of each entry's frame."""
    headers: list[EntryHeader]


class _Gaps(NamedTuple):
    """The gaps between batches, in order."""

    first: Integers
    end: Integers
    like_headers: Integers
    """For each gap: the number of gaps from it on with the length of a frame header.

    If the segment has known damage, all are 0."""


class EntryScan:
    """One scan of a segment, which is open as ``fd``.

    :param wanted: selects entries by their headers.
    :param known_damage: positions of known damage. The scan skips unreadable entries there. Entries
        of a frame with a damaged header get the time of the frame before.
    :raises DamagedSegment: another place is damaged.
    :raises NewerFormat: a later version of brokerd wrote an entry.
    :raises OSError: the segment cannot be read.
    """

    def __init__(
        self,
        fd: int,
        segment: SealedSegment,
        wanted: Callable[[EntryHeader], bool],
        known_damage: DisjointRanges,
    ) -> None:
        self._fd = fd
        self._segment = segment
        self._salt = segment.salt
        self._wanted = wanted
        self._is_damaged = known_damage.overlap
        self._size = segment.end_lsn - segment.first_lsn
        self._data = b""
        self._base = 0
        self._frame: tuple[int, bytes] | None = None
        """The position and bytes of the last frame header, until an entry needs its time."""
        self._time_us = 0
        self._rows = 0
        self._chunk = EntryChunk(b"", 0, [], [], [])

    def chunks(self) -> Iterator[EntryChunk]:
        """Yield the selected entries, in order."""
        gaps = self._gaps()
        row = 0
        while row < len(gaps.first):
            position, end = int(gaps.first[row]), int(gaps.end[row])
            if not self._holds(position, min(FRAME_HEADER_BYTES, end - position)):
                yield self._chunk
                self._read(position, 0)
            passed = self._pass_headers(gaps, row)
            if not passed:
                yield from self._in_gap(position, end)
            row += passed or 1
        yield self._chunk

    def _in_gap(self, position: int, end: int) -> Iterator[EntryChunk]:
        """Scan one gap. Yield the chunks that become full."""
        while position < end:
            if not self._holds(position, min(FRAME_HEADER_BYTES, end - position)):
                yield self._chunk
                self._read(position, 0)
            size, header = self._parse(position, end)
            if header is not None and self._wanted(header):
                if not self._holds(position, size):
                    yield self._chunk
                    self._read(position, size)
                if self._rows and self._rows + header.count > CHUNK_ROWS:
                    yield self._chunk
                    self._begin()
                self._add(position, header)
            position += size

    def _pass_headers(self, gaps: _Gaps, row: int) -> int:
        """Return how many gaps in memory from a row on consist of a frame header.

        If frames hold few records, most gaps do. For a small number, return 0: `_in_gap` scans
        them.
        """
        rows = min(int(gaps.like_headers[row]), _PASSED_MAX)
        if rows < _PASSED_MIN:
            return 0
        at = gaps.first[row : row + rows] - self._base
        at = at[at <= len(self._data) - FRAME_HEADER_BYTES]
        other = np.frombuffer(self._data, np.uint8)[at] != FRAME_MAGIC[0]
        passed = int(other.argmax()) if other.any() else len(at)
        if passed:
            last = int(at[passed - 1])
            self._frame = self._base + last, self._data[last : last + FRAME_HEADER_BYTES]
        return passed

    def _gaps(self) -> _Gaps:
        """Compute the gaps from the index. Raises DamagedSegment."""
        batches = batches_of(self._segment.index)
        order = np.argsort(batches.position)
        position = batches.position[order]
        ends = position + ENTRY_HEADER_BYTES + (batches.body_bytes[order] + 7 & ~7)
        first = np.concatenate(([SEGMENT_HEADER_BYTES], ends))
        end = np.concatenate((position, [self._size]))
        wrong = (first > end) | (first % 8 != 0)
        if wrong.any():
            at = int(first[wrong.argmax()])
            raise self._error(at, "the index has a batch at an impossible place")
        some = first < end
        first, end = first[some], end[some]
        is_other = end - first != FRAME_HEADER_BYTES
        if self._is_damaged(0, self._size):
            is_other[:] = True
        rows = np.arange(len(first))
        others = np.append(np.flatnonzero(is_other), len(first))
        return _Gaps(first, end, others[np.searchsorted(others, rows)] - rows)

    def _error(self, position: int, problem: str) -> DamagedSegment:
        return DamagedSegment(self._segment.path, position, problem)

    # -- Bytes in memory -------------------------------------------------------------------------

    def _holds(self, position: int, length: int) -> bool:
        return self._base <= position and position + length <= self._base + len(self._data)

    def _read(self, position: int, length: int) -> None:
        """Read at least ``length`` bytes from a position on."""
        length = min(max(length, WINDOW_BYTES), self._size - position)
        self._data = os.pread(self._fd, length, position)
        self._base = position
        if len(self._data) < length:
            raise self._error(position + len(self._data), "the segment is truncated")
        self._begin()

    def _begin(self) -> None:
        self._chunk = EntryChunk(self._data, self._base, [], [], [])
        self._rows = 0

    def _add(self, position: int, header: EntryHeader) -> None:
        self._chunk.positions.append(position)
        self._chunk.times_us.append(self._time_of_frame())
        self._chunk.headers.append(header)
        self._rows += header.count

    # -- Headers ---------------------------------------------------------------------------------

    def _parse(self, position: int, end: int) -> tuple[int, EntryHeader | None]:
        """Parse the header at a position.

        :param end: the position of the next batch.
        :return: the bytes to skip; and the header, if it belongs to an entry.
        """
        at = position - self._base
        is_damaged = self._is_damaged(position, position + ALIGNMENT)
        if self._data[at] == FRAME_MAGIC[0] and not is_damaged:
            if position + FRAME_HEADER_BYTES > end:
                raise self._error(position, "a frame header runs into a batch")
            self._frame = position, self._data[at : at + FRAME_HEADER_BYTES]
            return FRAME_HEADER_BYTES, None
        try:
            header = parse_entry_header(self._data, self._salt, at)
        except UnsupportedFormat as error:
            raise self._newer(position, error) from None
        except FormatError as error:
            if is_damaged:
                return self._skip_damage(position), None
            raise self._error(position, str(error)) from None
        size = entry_size(header.body_bytes)
        if position + size > end:
            raise self._error(position, "an entry runs into a batch of the index")
        if header.kind == EntryKind.RECORDS and not self._is_damaged(position, position + size):
            raise self._error(
                position, "the index lacks a batch: start the broker, which makes a new one; or"
            )
        return size, header

    def _skip_damage(self, position: int) -> int:
        """Return the bytes to skip in a damaged place without a readable entry."""
        at = position - self._base
        header = self._data[at : at + FRAME_HEADER_BYTES]
        try:
            parse_frame_header(header, self._salt)
        except FormatError:
            return ALIGNMENT
        self._frame = position, header
        return FRAME_HEADER_BYTES

    def _time_of_frame(self) -> int:
        """Return the broker time of the last frame header."""
        if self._frame is not None:
            (position, data), self._frame = self._frame, None
            try:
                self._time_us = self._frame_time(position, data)
            except UnsupportedFormat as error:
                raise self._newer(position, error) from None
            except FormatError as error:
                if not self._is_damaged(position, position + FRAME_HEADER_BYTES):
                    raise self._error(position, str(error)) from None
        return self._time_us

    def _frame_time(self, position: int, data: bytes) -> int:
        header = parse_frame_header(data, self._salt)
        segment = self._segment
        if (header.lsn, header.segment_id) != (segment.first_lsn + position, segment.segment_id):
            raise FormatError("the frame belongs to another place")
        return header.time_us

    def _newer(self, position: int, error: UnsupportedFormat) -> NewerFormat:
        return NewerFormat(
            f"{self._segment.path} at {position}: {error}; upgrade brokerd to read it"
        )
