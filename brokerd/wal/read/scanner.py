# Tests: tests/wal/test_recover.py
"""Reads a segment file from one end to the other and says what it finds; judges nothing.

Finds come in order of position: sound frames, frames with damaged entries, and stretches where no
frame begins. Whether such a stretch is a torn tail or damage is for recovery to say. Used by
recovery, by the rebuilding of indexes and by ``brokerctl wal verify``. Read-only.
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
LOOK_BYTES = 4096
"""Entries without a frame are looked for in pieces of this size."""

_ENTRY_VERSION = b"\1\0\0"
"""Bytes 1 to 3 of an entry's header: its version, and no flags."""


class FoundEntry(NamedTuple):
    """An entry whose header is sound. ``entry`` is None when its body is damaged."""

    position: int
    header: EntryHeader
    entry: Entry | None


class FoundFrame(NamedTuple):
    """A frame whose header is sound; ``problem`` is None when all of it is."""

    position: int
    header: FrameHeader
    entries: list[FoundEntry]
    problem: str | None


class Unreadable(NamedTuple):
    """Bytes from ``position`` to ``end`` where no frame begins; ``zeros`` if all of them are 0."""

    position: int
    end: int
    problem: str
    zeros: bool
    time_us: int = 0
    """Broker time of the frame that follows, 0 if none does."""


class Window:
    """Reads a file forward through a buffer; memory is one window or one frame."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._start = 0
        self._data = b""

    def read(self, length: int, position: int) -> bytes:
        """``length`` bytes, fewer at the end of the file."""
        start = position - self._start
        if start < 0 or start + length > len(self._data):
            self._data = self._file.pread(max(length, WINDOW_BYTES), position)
            self._start, start = position, 0
        return self._data[start : start + length]

    def forget(self) -> None:
        """Read everything anew from here on."""
        self._data = b""


def _body_is_damaged(found: FoundEntry) -> str:
    head = found.header
    return (
        f"{found.position}: the body of {EntryKind(head.kind).name} of topic id {head.topic_id} "
        f"partition {head.partition} is damaged"
    )


class SegmentScanner:
    """Scans one segment. ``stop`` is the position where its frames end at the latest.

    Raises NewerFormat when something sound is of a newer version; OSError from the file.
    """

    def __init__(self, file: File, header: SegmentHeader, name: str, stop: int) -> None:
        self._window = Window(file)
        self._header = header
        self._salt = segment_salt(header.segment_id)
        self._name = name
        self._stop = stop

    def scan(self, position: int = SEGMENT_HEADER_BYTES) -> Iterator[FoundFrame | Unreadable]:
        """Everything from ``position`` on. Nothing follows a last stretch without frames."""
        while position < self._stop:
            try:
                header = self._frame_header(position)
            except FormatError as error:
                found = self._unreadable(position, str(error))
                yield found
                position = found.end
            else:
                yield self._frame(position, header)
                position += header.length

    def forget(self) -> None:
        """Read from the file again what was read before: somebody may have written meanwhile."""
        self._window.forget()

    def entries(self, start: int, end: int) -> Iterator[FoundEntry]:
        """Entries with a sound header from ``start`` (a multiple of 8) on, wherever they stand.

        For a stretch without frames, whose entries prove by themselves what they are.
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
        """The next place that looks like the header of an entry of version 1, -1 if none does."""
        while position < end:
            data = self._window.read(min(LOOK_BYTES, end - position), position)
            at = data.find(_ENTRY_VERSION)
            while at >= 0 and at % 8 != 1:
                at = data.find(_ENTRY_VERSION, at + 1)
            if at >= 0:
                return position + at - 1
            if len(data) < LOOK_BYTES:
                break
            position += LOOK_BYTES
        return -1

    def synced_claim(self, position: int) -> int:
        """The highest last synced position of all frame headers from ``position`` on; 0 if none."""
        headers = self._headers(position)
        return max((header.last_synced for _, header in headers), default=0)

    def has_frame_from(self, position: int) -> bool:
        """Whether any sound frame header stands at ``position`` (a multiple of 8) or after it."""
        return next(self._headers(position), None) is not None

    def _frame_header(self, position: int) -> FrameHeader:
        """The sound header at ``position``. Raises FormatError when there is none."""
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

    def _unreadable(self, position: int, problem: str) -> Unreadable:
        end, header = next(self._headers(position + 8), (self._stop, None))
        time_us = 0 if header is None else header.time_us
        return Unreadable(position, end, problem, self.is_zero(position, end), time_us)

    def is_zero(self, position: int, end: int) -> bool:
        """Whether there is nothing but zeros between two positions, or nothing at all."""
        while position < end:
            data = self._window.read(min(WINDOW_BYTES, end - position), position)
            if not data:
                return True
            if data.count(0) != len(data):
                return False
            position += len(data)
        return True

    def _headers(self, position: int) -> Iterator[tuple[int, FrameHeader]]:
        """All sound frame headers at or after ``position`` (a multiple of 8), with their places."""
        while position < self._stop:
            data = self._window.read(min(WINDOW_BYTES, self._stop - position), position)
            at = data.find(FRAME_MAGIC)
            while at >= 0:
                if at % 8 == 0:
                    with suppress(FormatError):  # stale or foreign bytes: look on
                        yield position + at, self._frame_header(position + at)
                at = data.find(FRAME_MAGIC, at + 1)
            if len(data) < WINDOW_BYTES:
                return
            position += len(data)

    def _frame(self, start: int, header: FrameHeader) -> FoundFrame:
        length = min(header.length, self._stop - start)
        data = self._window.read(length, start)
        entries: list[FoundEntry] = []
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
                problem = problem or f"entry {len(entries)} at {_body_is_damaged(entry)}"
            entries.append(entry)
            position += entry_size(entry.header.body_bytes)
        if problem is None and (position != header.length or len(entries) != header.entry_count):
            problem = (
                f"{len(entries)} of {header.entry_count} entries fill {position} of "
                f"{header.length} bytes"
            )
        return FoundFrame(start, header, entries, problem)

    def _entry(self, data: bytes, position: int, start: int) -> FoundEntry:
        try:
            header = parse_entry_header(data, self._salt, position)
        except UnsupportedFormat as error:
            raise self._newer(start + position, error) from None
        try:
            entry = Entry(*header[:5], entry_body(data, header, position))
        except FormatError:
            entry = None
        return FoundEntry(start + position, header, entry)
