# Tests: tests/archive/test_frame_scan.py
"""Scans a segment file without an index: the open file, or a file that was closed just now.

The scan verifies every checksum up to the last sound frame (docs/wal-format.rst, section "Reading
a log back"). A torn or incomplete frame ends an open file. `scan_tail` syncs the file before it
returns, so that a query never sees frames that a power loss then removes.

A Python loop finds the frames. numpy verifies their entries together.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt

from brokerd.archive.journal.columns import ENTRY_FIELDS, Bodies, Integers, fields
from brokerd.archive.journal.sealed import Batches, DamagedSegment, read_header
from brokerd.archive.journal.topics import CHANGES, TopicChange
from brokerd.archive.storage.local import READ_ONLY, sync_directory
from brokerd.archive.storage.regular_file import open_regular
from brokerd.errors import NewerFormat
from brokerd.walformat import (
    ALIGNMENT,
    ENTRY_HEADER_BYTES,
    FORMAT_VERSION,
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    EntryKind,
    FormatError,
    FrameHeader,
    UnsupportedFormat,
    iter_entries,
    parse_frame_header,
    segment_salt,
)

WINDOW_BYTES = 8 << 20
"""The largest number of bytes in memory, unless one frame is larger."""

_FRAME_START = struct.Struct("<4sHHII")
_SIZE = struct.Struct("<I")
_FRAME = fields(
    {
        "version": ("<u2", 4),
        "flags": ("<u2", 6),
        "lsn": ("<u8", 16),
        "segment_id": ("<u8", 24),
        "segment_id_end": ("<u8", 32),
        "time_us": ("<i8", 48),
        "checksum": ("<u8", 56),
    },
    FRAME_HEADER_BYTES,
)
_ENTRY = fields(ENTRY_FIELDS, ENTRY_HEADER_BYTES)


class JournalFile(NamedTuple):
    """A journal file, with or without an index."""

    path: str
    segment_id: bytes
    first_lsn: int

    @property
    def salt(self) -> int:
        """Return the seed of its checksums."""
        return segment_salt(self.segment_id)


class ScannedFrames(NamedTuple):
    """The content of a part of a journal file."""

    batches: Batches
    """The batches in the order of the file."""
    times_us: Integers
    """The broker time of each batch's frame."""
    frames: Integers
    """The position of each batch's frame."""
    changes: list[TopicChange]
    end: int
    """The end position of the last sound frame."""


def open_journal(path: str | Path) -> tuple[int, JournalFile]:
    """Open a journal file, and read its header block. Return the descriptor and the file.

    Raises OSError, `DamagedSegment` and NewerFormat.
    """
    fd = open_regular(path)
    try:
        header = read_header(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd, JournalFile(str(path), header.segment_id, header.first_lsn)


def scan_tail(fd: int, file: JournalFile, first: int = SEGMENT_HEADER_BYTES) -> ScannedFrames:
    """Scan the open file of a log from the frame at ``first`` on, and sync it.

    :raises DamagedSegment: a frame is damaged, and later frames say that it was durable.
    :raises NewerFormat: a later version of brokerd wrote a frame.
    :raises OSError: the file cannot be read.
    """
    parts = []
    while True:
        scan = _FrameScan(fd, file, first, os.fstat(fd).st_size)
        parts += scan.parts()
        first = scan.position
        if not _is_completed(fd, file, first):
            break
    _sync(fd, Path(file.path).parent)
    return _joined(parts, first)


def _sync(fd: int, directory: Path) -> None:
    """Make a file and its name durable. Raises OSError."""
    try:
        os.fdatasync(fd)
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
    sync_directory(directory)


def _is_completed(fd: int, file: JournalFile, position: int) -> bool:
    """Return whether the writer has completed the frame at a position since the scan.

    :raises DamagedSegment: the frame is damaged, but later frames say that it was durable.
    """
    claims = [header.last_synced for header in _headers(fd, file, position + ALIGNMENT)]
    if not claims:
        return False
    scan = _FrameScan(fd, file, position, os.fstat(fd).st_size)
    if scan.parts():
        return True
    if max(claims) > file.first_lsn + position:
        raise DamagedSegment(file.path, position, f"{scan.problem}, and sound frames follow")
    return False


def scan_closed(
    fd: int, file: JournalFile, end: int, first: int = SEGMENT_HEADER_BYTES
) -> ScannedFrames:
    """Scan a closed file from the frame at ``first`` to the frame that ends at ``end``.

    Raises OSError, NewerFormat and `DamagedSegment`.
    """
    scan = _FrameScan(fd, file, first, end)
    parts = scan.parts()
    if scan.position != end:
        problem = scan.problem or f"the frames end here, and not at {end}"
        raise DamagedSegment(file.path, scan.position, problem)
    return _joined(parts, end)


def _joined(parts: list[ScannedFrames], end: int) -> ScannedFrames:
    if not parts:
        nothing = np.empty(0, np.int64)
        return ScannedFrames(Batches(*([nothing] * 6)), nothing, nothing, [], end)
    columns = zip(*(part.batches for part in parts), strict=True)
    batches = Batches(*map(np.concatenate, columns))
    times = np.concatenate([part.times_us for part in parts])
    frames = np.concatenate([part.frames for part in parts])
    changes = [change for part in parts for change in part.changes]
    return ScannedFrames(batches, times, frames, changes, end)


def _headers(fd: int, file: JournalFile, position: int) -> Iterator[FrameHeader]:
    """Yield the sound frame headers of a file from a position on, which is a multiple of 8."""
    while data := os.pread(fd, WINDOW_BYTES, position):
        at = data.find(FRAME_MAGIC)
        while at >= 0:
            if at % ALIGNMENT == 0:
                with suppress(FormatError):
                    head = os.pread(fd, FRAME_HEADER_BYTES, position + at)
                    header = parse_frame_header(head, file.salt)
                    is_own = header.segment_id == file.segment_id
                    if is_own and header.lsn == file.first_lsn + position + at:
                        yield header
            at = data.find(FRAME_MAGIC, at + 1)
        if len(data) < ALIGNMENT:
            return
        position += len(data) & -ALIGNMENT


class _FrameScan:
    """Scans a file. Moves ``position`` up to the end of the last sound frame."""

    def __init__(self, fd: int, file: JournalFile, position: int, end: int) -> None:
        self._fd = fd
        self._file = file
        self._salt = file.salt
        self._end = end
        self.position = position
        self.problem = ""
        """The reason why no frame begins at ``position``; "" at the end of the scanned part."""

    def parts(self) -> list[ScannedFrames]:
        """Scan the file, and return the content of each window."""
        found = []
        length = WINDOW_BYTES
        while self.position < self._end:
            length = min(length, self._end - self.position)
            data = os.pread(self._fd, length, self.position)
            frames, entries, counts, needed = _places(data)
            part, sound = self._verified(data, frames, entries, counts)
            if sound:
                found.append(part)
                self.position = part.end
            if sound < len(frames) or not needed:
                self._explain(self.position)
                break
            if not frames and (len(data) < length or self.position + needed > self._end):
                self.problem = f"a frame of {needed} bytes is truncated"
                break
            length = max(WINDOW_BYTES, needed)
        return found

    def _verified(
        self, data: bytes, frames: list[int], entries: list[int], counts: list[int]
    ) -> tuple[ScannedFrames, int]:
        """Verify frames. Return content and number of the sound frames before a bad frame."""
        # The window may end within a frame, so its size need not be a multiple of 8.
        octets = np.frombuffer(data, np.uint8)
        bodies = Bodies(octets)
        at, entry = np.array(frames, np.int64), np.array(entries, np.int64)
        frame_of = np.repeat(np.arange(len(at)), counts)
        heads, entry_heads = bodies.headers(at, _FRAME), bodies.headers(entry, _ENTRY)
        is_sound = self._sound_frames(bodies, at, heads)
        is_sound[frame_of[~self._sound_entries(bodies, entry, entry_heads)]] = False
        sound = len(at) if is_sound.all() else int((~is_sound).argmax())
        last = int(np.searchsorted(frame_of, sound))
        entry, entry_heads, frame_of = entry[:last], entry_heads[:last], frame_of[:last]
        is_batch = entry_heads["kind"] == EntryKind.RECORDS
        some = entry_heads[is_batch]
        batches = Batches(
            some["topic_id"].astype(np.int64),
            some["partition"].astype(np.int64),
            some["base_offset"].astype(np.int64),
            some["count"].astype(np.int64),
            entry[is_batch] + self.position,
            some["body_bytes"].astype(np.int64),
        )
        frame_of = frame_of[is_batch]
        times = heads["time_us"][frame_of].astype(np.int64)
        changes = self._changes(data, entry, entry_heads)
        end = self.position + (_frame_end(data, frames[sound - 1]) if sound else 0)
        return ScannedFrames(batches, times, at[frame_of] + self.position, changes, end), sound

    def _sound_frames(self, bodies: Bodies, at: Integers, heads: npt.NDArray[np.void]) -> Any:
        lsn = (at + self.position + self._file.first_lsn).view(np.uint64)
        seeds = np.full(len(at), self._salt, np.uint64).tolist()
        own, own_end = np.frombuffer(self._file.segment_id, "<u8")
        return (
            (heads["version"] == FORMAT_VERSION)
            & (heads["flags"] == 0)
            & (heads["lsn"] == lsn)
            & (heads["segment_id"] == own)
            & (heads["segment_id_end"] == own_end)
            & (heads["checksum"] == bodies.checksums(at, at + 56, seeds))
        )

    def _sound_entries(self, bodies: Bodies, at: Integers, heads: npt.NDArray[np.void]) -> Any:
        seeds = heads["header_checksum"]
        body = at + ENTRY_HEADER_BYTES
        found = bodies.checksums(body, body + heads["body_bytes"], seeds.tolist())
        salts = np.full(len(at), self._salt, np.uint64).tolist()
        return (
            (heads["kind"] >= 1)
            & (heads["kind"] <= max(EntryKind))
            & (heads["version"] == 1)
            & (heads["flags"] == 0)
            & (seeds == bodies.checksums(at, at + 32, salts))
            & (heads["body_checksum"] == found)
        )

    def _changes(
        self, data: bytes, entry: Integers, heads: npt.NDArray[np.void]
    ) -> list[TopicChange]:
        found = []
        for row in np.flatnonzero(np.isin(heads["kind"], CHANGES)).tolist():
            head, at = heads[row], int(entry[row])
            kind = int(head["kind"])
            start = at + ENTRY_HEADER_BYTES
            body = msgpack.unpackb(data[start : start + int(head["body_bytes"])])
            lsn = self._file.first_lsn + self.position + at
            found.append(
                TopicChange(lsn, int(head["topic_id"]), int(head["partition"]), body, kind)
            )
        return found

    def _explain(self, position: int) -> None:
        """Set `problem` for the frame at a position. Raises NewerFormat."""
        data = os.pread(self._fd, min(FRAME_HEADER_BYTES, self._end - position), position)
        try:
            header = parse_frame_header(data, self._salt)
            whole = os.pread(self._fd, min(header.length, self._end - position), position)
            for _ in iter_entries(whole, self._salt):
                pass
            self.problem = f"the frame says it is at LSN {header.lsn}"
        except UnsupportedFormat as error:
            raise NewerFormat(
                f"{self._file.path} at {position}: {error}; upgrade brokerd to read it"
            ) from None
        except FormatError as error:
            self.problem = str(error)


def _frame_end(data: bytes, at: int) -> int:
    return at + int(_FRAME_START.unpack_from(data, at)[3])


def _places(data: bytes) -> tuple[list[int], list[int], list[int], int]:
    """Find adjacent frames and their entries from the beginning of a window. Verify nothing.

    :return: the positions of frames; the positions of entries; the number of entries of each frame;
        and the size of the next frame, which is incomplete in the window, or 0 if no frame follows.
    """
    frames: list[int] = []
    entries: list[int] = []
    counts: list[int] = []
    frame, size = _FRAME_START.unpack_from, _SIZE.unpack_from
    at, limit = 0, len(data)
    while at + FRAME_HEADER_BYTES <= limit:
        magic, _, _, length, count = frame(data, at)
        is_frame = magic == FRAME_MAGIC and length % ALIGNMENT == 0
        if not is_frame or not FRAME_HEADER_BYTES <= length <= FRAME_BYTES_MAX:
            return frames, entries, counts, 0
        end = at + length
        if end > limit:
            return frames, entries, counts, length
        known, position = len(entries), at + FRAME_HEADER_BYTES
        while position + ENTRY_HEADER_BYTES <= end:
            entries.append(position)
            position += ENTRY_HEADER_BYTES + size(data, position + 4)[0] + 7 & ~7
        if position != end or len(entries) - known != count:
            del entries[known:]
            return frames, entries, counts, 0
        frames.append(at)
        counts.append(count)
        at = end
    return frames, entries, counts, FRAME_HEADER_BYTES
