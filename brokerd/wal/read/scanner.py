# Tests: tests/wal/test_recover.py
"""Scans a segment file from its beginning to its end, read-only.

A scan yields sound frames, frames with damaged entries, and gaps in which no frame begins, in order
of position. Recovery decides whether a gap is a torn tail or damage. Recovery, the rebuild of an
index and ``brokerctl wal verify`` use scans.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from brokerd.errors import NewerFormat
from brokerd.wal.disk import File
from brokerd.walformat import (
    ENTRY_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryHeader,
    EntryKind,
    FormatError,
    FrameHeader,
    SegmentHeader,
    UnsupportedFormat,
    entry_body,
    entry_size,
    parse_entry_header,
    parse_frame_header,
    segment_salt,
)

WINDOW_BYTES = 1 << 20
SEARCH_BYTES = 4096
"""The step of a search for entries outside of frames."""

_ENTRY_VERSION = b"\1\0\0"
"""Bytes 1 to 3 of an entry's header: its version, and no flags."""


class ScanEntry(NamedTuple):
    """An entry with a sound header. ``entry`` is None if its body is damaged."""

    position: int
    header: EntryHeader
    entry: Entry | None


class ScanFrame(NamedTuple):
    """A frame with a sound header. ``problem`` is None if the whole frame is sound."""

    position: int
    header: FrameHeader
    entries: list[ScanEntry]
    problem: str | None


class ScanGap(NamedTuple):
    """Bytes from ``position`` to ``end`` in which no frame begins.

    ``zeros`` is true if all bytes are 0.
    """

    position: int
    end: int
    problem: str
    zeros: bool
    time_us: int = 0
    """Broker time of the next frame, 0 if there is none."""


class Window:
    """Reads a file forward through a buffer of one window, or of one frame if that is larger."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._start = 0
        self._data = b""

    def read(self, length: int, position: int) -> bytes:
        """Return ``length`` bytes, fewer at the end of the file."""
        start = position - self._start
        if start < 0 or start + length > len(self._data):
            self._data = self._file.pread(max(length, WINDOW_BYTES), position)
            self._start, start = position, 0
        return self._data[start : start + length]

    def clear(self) -> None:
        """Empty the buffer, so that the next read goes to the file."""
        self._data = b""


def _damaged_body(found: ScanEntry) -> str:
    head = found.header
    return (
        f"{found.position}: the body of {EntryKind(head.kind).name} of topic id {head.topic_id} "
        f"partition {head.partition} is damaged"
    )


class SegmentScanner:
    """Scans one segment up to position ``stop``.

    Methods raise NewerFormat for sound bytes of a newer version, and OSError.
    """

    def __init__(self, file: File, header: SegmentHeader, name: str, stop: int) -> None:
        self._window = Window(file)
        self._header = header
        self._salt = segment_salt(header.segment_id)
        self._name = name
        self._stop = stop

    def scan(self, position: int = SEGMENT_HEADER_BYTES) -> Iterator[ScanFrame | ScanGap]:
        """Yield frames and gaps from ``position`` on. No two gaps follow one another."""
        while position < self._stop:
            try:
                header = self._frame_header(position)
            except FormatError as error:
                found = self._gap(position, str(error))
                yield found
                position = found.end
            else:
                yield self._frame(position, header)
                position += header.length

    def clear(self) -> None:
        """Empty the buffer, because a running broker may have written to the file."""
        self._window.clear()

    def entries(self, start: int, end: int) -> Iterator[ScanEntry]:
        """Yield entries with a sound header in a gap from ``start``, a multiple of 8, to ``end``.

        The checksum of an entry proves its identity without its frame.
        """
        position = self._next_entry(start, end)
        while position >= 0:
            data = self._window.read(ENTRY_HEADER_BYTES, position)
            try:
                size = parse_entry_header(data, self._salt).body_bytes
                data = self._window.read(min(ENTRY_HEADER_BYTES + size, end - position), position)
                found = self._entry(data, 0, position)
            except UnsupportedFormat as error:
                raise self._newer(position, error) from None
            except FormatError:
                position += 8
            else:
                yield found
                position += entry_size(size)
            position = self._next_entry(position, end)

    def _next_entry(self, position: int, end: int) -> int:
        """Return the next position with bytes like an entry header of version 1, -1 for none."""
        while position < end:
            data = self._window.read(min(SEARCH_BYTES, end - position), position)
            at = data.find(_ENTRY_VERSION)
            while at >= 0 and at % 8 != 1:
                at = data.find(_ENTRY_VERSION, at + 1)
            if at >= 0:
                return position + at - 1
            if len(data) < SEARCH_BYTES:
                break
            position += SEARCH_BYTES
        return -1

    def synced_claim(self, position: int) -> int:
        """Return the highest last synced position of frame headers from ``position`` on, or 0."""
        headers = self._headers(position)
        return max((header.last_synced for _, header in headers), default=0)

    def has_frame_from(self, position: int) -> bool:
        """Whether a sound frame header stands at ``position``, a multiple of 8, or after it."""
        return next(self._headers(position), None) is not None

    def _frame_header(self, position: int) -> FrameHeader:
        """Return the sound header at ``position``. Raises FormatError."""
        data = self._window.read(min(FRAME_HEADER_BYTES, self._stop - position), position)
        try:
            header = parse_frame_header(data, self._salt)
        except UnsupportedFormat as error:
            raise self._newer(position, error) from None
        if header.lsn != self._header.first_lsn + position:
            raise FormatError(f"the frame says it is at LSN {header.lsn}")
        if header.segment_id != self._header.segment_id:
            raise FormatError("the frame belongs to another segment")
        return header

    def _newer(self, position: int, error: UnsupportedFormat) -> NewerFormat:
        return NewerFormat(
            f"{self._name} at {position}: {error}; it was written by a newer brokerd, "
            "upgrade to read it"
        )

    def _gap(self, position: int, problem: str) -> ScanGap:
        end, header = next(self._headers(position + 8), (self._stop, None))
        time_us = 0 if header is None else header.time_us
        return ScanGap(position, end, problem, self.is_zero(position, end), time_us)

    def is_zero(self, position: int, end: int) -> bool:
        """Whether all bytes between two positions are zero, or past the end of the file."""
        while position < end:
            data = self._window.read(min(WINDOW_BYTES, end - position), position)
            if not data:
                return True
            if data.count(0) != len(data):
                return False
            position += len(data)
        return True

    def _headers(self, position: int) -> Iterator[tuple[int, FrameHeader]]:
        """Yield (position, header) of sound frames from ``position``, a multiple of 8, on."""
        while position < self._stop:
            data = self._window.read(min(WINDOW_BYTES, self._stop - position), position)
            at = data.find(FRAME_MAGIC)
            while at >= 0:
                if at % 8 == 0:
                    with suppress(FormatError):  # stale or foreign bytes
                        yield position + at, self._frame_header(position + at)
                at = data.find(FRAME_MAGIC, at + 1)
            if len(data) < WINDOW_BYTES:
                return
            position += len(data)

    def _frame(self, start: int, header: FrameHeader) -> ScanFrame:
        length = min(header.length, self._stop - start)
        data = self._window.read(length, start)
        entries: list[ScanEntry] = []
        problem: str | None = None
        position = FRAME_HEADER_BYTES
        while position + ENTRY_HEADER_BYTES <= len(data):
            try:
                entry = self._entry(data, position, start)
            except FormatError as error:
                problem = problem or f"entry {len(entries)} at {start + position}: {error}"
                position += 8
                continue
            if entry.entry is None:
                problem = problem or f"entry {len(entries)} at {_damaged_body(entry)}"
            entries.append(entry)
            position += entry_size(entry.header.body_bytes)
        if problem is None and (position != header.length or len(entries) != header.entry_count):
            problem = (
                f"{len(entries)} of {header.entry_count} entries fill {position} of "
                f"{header.length} bytes"
            )
        return ScanFrame(start, header, entries, problem)

    def _entry(self, data: bytes, position: int, start: int) -> ScanEntry:
        try:
            header = parse_entry_header(data, self._salt, position)
        except UnsupportedFormat as error:
            raise self._newer(start + position, error) from None
        try:
            entry = Entry(*header[:5], entry_body(data, header, position))
        except FormatError:
            entry = None
        return ScanEntry(start + position, header, entry)
