# Tests: tests/spark/test_journal.py
"""The journal files that a query reads, and the topic changes in them.

A file without an index, for example the open file, is scanned frame by frame
(`brokerd.archive.journal.frame_scan`).
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.journal.frame_scan import (
    JournalFile,
    ScannedFrames,
    open_journal,
    scan_closed,
    scan_tail,
)
from brokerd.archive.journal.sealed import Batches, SealedSegment
from brokerd.archive.journal.segment_list import (
    Damage,
    Stop,
    damaged_places,
    end_of_deleted,
    first_lsns,
    open_segment,
    segments_from,
)
from brokerd.archive.journal.topics import TopicChange, topic_changes
from brokerd.errors import BrokerdError
from brokerd.walformat import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, EntryKind


class UnreadableJournal(BrokerdError):
    """The journal cannot be read from some position on. The text names the cause and the remedy."""


class SegmentFile(NamedTuple):
    """A journal file. It is pickled."""

    path: str
    segment_id: bytes
    first_lsn: int
    end_lsn: int
    """The end of its last frame."""
    has_index: bool

    @property
    def is_empty(self) -> bool:
        """Return whether it holds no frame. A broker names a file once it has a frame."""
        return self.end_lsn == self.first_lsn + SEGMENT_HEADER_BYTES


class Journal(NamedTuple):
    """The files of a journal, and their content that a plan needs."""

    files: list[SegmentFile]
    changes: list[TopicChange]
    """Topic changes since the bounds."""
    end_lsn: int
    scans: dict[str, ScannedFrames]
    """The frames of files without an index, by path."""
    gaps: tuple[tuple[int, int], ...]
    """Ranges of deleted or damaged LSNs: first and end (exclusive)."""
    schema_changes: tuple[TopicChange, ...] = ()
    """Changes of schemas since the bounds."""


class _OpenSegment(NamedTuple):
    """A journal file, its topic changes, and its frames if it has no index."""

    file: SegmentFile
    scan: ScannedFrames | None
    changes: list[TopicChange]

    @property
    def end_lsn(self) -> int:
        return self.file.end_lsn


def read_journal(wal: Path, bounds: Bounds, since: int, tail: bool) -> Journal:
    """List the files of a journal from an LSN on, and the topic changes since the bounds.

    :param tail: whether to read the open file. If not, the journal ends before this file.
    :raises FileNotFoundError: a file was deleted during the call.
    :raises BrokerdError: a file is missing or cannot be read.
    """
    opener = _SegmentOpener(bounds, tail)
    since = lsn = _file_start(wal, since)
    segments: list[_OpenSegment] = []
    gaps = []
    for found in segments_from(wal, bounds, since, opener.open):
        if isinstance(found, Stop):
            if found.is_problem:
                raise UnreadableJournal(found.reason)
            if found.lsn > lsn:
                gaps.append((lsn, found.lsn))  # files before an open file that is not read
            lsn = found.lsn
            break
        if found.file.first_lsn > lsn:
            gaps.append((lsn, found.file.first_lsn))
        lsn = found.end_lsn
        segments.append(found)
    if (end := end_of_deleted(wal, lsn)) > lsn:
        gaps.append((lsn, end))  # the broker deletes the last file, too, once it is closed
        lsn = end
    changes = [change for one in segments for change in one.changes]
    return Journal(
        [one.file for one in segments],
        [change for change in changes if change.kind == EntryKind.TOPIC],
        lsn,
        {one.file.path: one.scan for one in segments if one.scan is not None},
        tuple(gaps),
        tuple(change for change in changes if change.kind == EntryKind.SCHEMA),
    )


def _file_start(wal: Path, lsn: int) -> int:
    """Return the first LSN of the file that holds an LSN, or the LSN if no file does.

    The LSN of the bounds may lie within a file.
    """
    first = max((first for first in first_lsns(wal) if first <= lsn), default=lsn)
    path = wal / f"{first:020d}.wal"
    return first if first < lsn < first + path.stat().st_size else lsn


class _TailCache:
    """Caches the frames of the open file, so that a stream reads only new frames.

    A sound frame is on the disk and stays there, because a restarted broker begins a new file. Only
    a restore of an older copy takes frames back: then the cache scans the file again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: JournalFile | None = None
        self._scan: ScannedFrames | None = None
        self._mark: _EndMark | None = None

    def scan(self, fd: int, file: JournalFile) -> ScannedFrames:
        """Return the frames of the whole file. Raises the errors of `scan_tail`."""
        with self._lock:
            before = self._scan if self._file == file else None
            scan = None if before is None else _extend_scan(fd, file, before)
            self._file = file
            self._scan = scan_tail(fd, file) if scan is None else scan
            self._mark = _end_mark(fd, self._scan.end)
            return self._scan

    def end(self, fd: int, file: JournalFile) -> int:
        """Return the end position of the last sound frame."""
        with self._lock:
            cached, mark = (self._scan, self._mark) if self._file == file else (None, None)
        is_kept = cached is not None and _end_mark(fd, cached.end) == mark
        if cached is not None and is_kept and not any(os.pread(fd, FRAME_HEADER_BYTES, cached.end)):
            return cached.end
        return self.scan(fd, file).end


class _EndMark(NamedTuple):
    """The part of a file that an older copy of it lacks."""

    device: int
    inode: int
    last_bytes: bytes
    """The bytes before the end of the last sound frame."""


def _end_mark(fd: int, end: int) -> _EndMark:
    status = os.fstat(fd)
    last_bytes = os.pread(fd, FRAME_HEADER_BYTES, end - FRAME_HEADER_BYTES)
    return _EndMark(status.st_dev, status.st_ino, last_bytes)


_TAIL_CACHE = _TailCache()


def _extend_scan(fd: int, file: JournalFile, before: ScannedFrames) -> ScannedFrames | None:
    """Return an earlier scan with the new frames of a file, or None if its frames are gone."""
    if not len(before.frames):
        return None
    last = int(before.frames[-1])
    new = scan_tail(fd, file, last)
    if new.end < before.end:
        return None
    kept = int(np.searchsorted(before.frames, last))
    lsn = file.first_lsn + last
    batches = zip(before.batches, new.batches, strict=True)
    return ScannedFrames(
        Batches(*(np.concatenate((one[:kept], more)) for one, more in batches)),
        np.concatenate((before.times_us[:kept], new.times_us)),
        np.concatenate((before.frames[:kept], new.frames)),
        [*(change for change in before.changes if change.lsn < lsn), *new.changes],
        new.end,
    )


def end_of_file(path: Path) -> int:
    """Return the end LSN of the last file of a journal, which may be open.

    :raises FileNotFoundError: the file was deleted.
    :raises BrokerdError: the file cannot be read. Raises OSError, too.
    """
    fd, file = open_journal(path)
    try:
        if path.with_suffix(".idx").exists():
            return file.first_lsn + os.fstat(fd).st_size
        return file.first_lsn + _TAIL_CACHE.end(fd, file)
    finally:
        os.close(fd)


class _SegmentOpener:
    """Opens the files of a journal for `segments_from`."""

    def __init__(self, bounds: Bounds, tail: bool) -> None:
        self._bounds = bounds
        self._tail = tail
        self._damage: Damage = damaged_places(bounds)

    def open(self, path: Path, next_lsn: int | None) -> _OpenSegment | Stop:
        """Open a file. Return a `Stop` with the reason if the journal ends before it.

        :param next_lsn: the first LSN of the next file, or None for the last file.
        """
        found = open_segment(path, next_lsn is None)
        if not isinstance(found, Stop):
            self._require_own(path, found.segment_id)
        if isinstance(found, SealedSegment):
            file = SegmentFile(str(path), found.segment_id, found.first_lsn, found.end_lsn, True)
            is_new = found.end_lsn > self._bounds.lsn
            return _OpenSegment(file, None, self._changes(found) if is_new else [])
        if found.is_problem or (next_lsn is None and not self._tail):
            return found
        return self._scan(path, next_lsn)

    def _scan(self, path: Path, next_lsn: int | None) -> _OpenSegment:
        """Scan a file that has no index yet."""
        fd, opened = open_journal(path)
        try:
            if opened.first_lsn != int(path.stem):
                raise UnreadableJournal(
                    f"{path} begins at LSN {opened.first_lsn} by its header, so it is a copy of "
                    "another file; bring the right file back"
                )
            self._require_own(path, opened.segment_id)
            if next_lsn is None:
                scan = _TAIL_CACHE.scan(fd, opened)
            else:
                scan = scan_closed(fd, opened, next_lsn - opened.first_lsn)
        finally:
            os.close(fd)
        end_lsn = opened.first_lsn + scan.end
        file = SegmentFile(str(path), opened.segment_id, opened.first_lsn, end_lsn, False)
        return _OpenSegment(file, scan, scan.changes)

    def _require_own(self, path: Path, segment_id: bytes) -> None:
        """Raise UnreadableJournal if the bounds name another segment for this file."""
        bounds = self._bounds
        known_id = bounds.segment_id if int(path.stem) == bounds.segment_lsn else ""
        if known_id and segment_id.hex() != known_id:
            raise UnreadableJournal(
                f"{path} is another segment (id {segment_id.hex()}) than the log had there "
                f"(id {bounds.segment_id}, by state/bounds): bring the right file back; "
                "without it, move this one away and start the broker, which finds the loss"
            )

    def _changes(self, segment: SealedSegment) -> list[TopicChange]:
        return list(topic_changes(segment, self._damage.get(os.path.basename(segment.path), ())))
