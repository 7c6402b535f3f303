# Tests: tests/spark/test_journal.py
"""Files of the journal as a query finds them, and what they say of topics.

A file without an index, above all the one that is written to, is walked
(`brokerd.archive.journal.frame_scan`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgpack
import numpy as np

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.journal.entry_scan import KnownDamage, Lot, Walk
from brokerd.archive.journal.frame_scan import (
    JournalFile,
    TopicChange,
    Walked,
    open_journal,
    walk_closed,
    walk_tail,
)
from brokerd.archive.journal.pending import (
    Damage,
    Stop,
    damaged_places,
    first_lsns,
    open_closed,
    segments_from,
)
from brokerd.archive.journal.sealed import Batches, SealedSegment
from brokerd.errors import BrokerdError
from brokerd.walformat import (
    ENTRY_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    EntryKind,
    FormatError,
    entry_body,
)


class UnreadableJournal(BrokerdError):
    """The journal cannot be read from some place on; the message says why, and what to do."""


class File(NamedTuple):
    """A file of the journal; goes to other processes."""

    path: str
    segment_id: bytes
    first_lsn: int
    end_lsn: int
    """Just past the last frame that was seen."""
    has_index: bool


class Journal(NamedTuple):
    """What was found of a journal."""

    files: list[File]
    changes: list[TopicChange]
    """What happened to topics since the bounds."""
    end_lsn: int
    walked: dict[str, Walked]
    """What is in files without an index, by path."""
    gaps: tuple[tuple[int, int], ...]
    """LSNs that are not there, and of which it is known why."""


class _Seen(NamedTuple):
    """A segment that was looked at."""

    file: File
    walked: Walked | None
    changes: list[TopicChange]

    @property
    def end_lsn(self) -> int:
        return self.file.end_lsn


def read_journal(wal: Path, bounds: Bounds, since: int, tail: bool) -> Journal:
    """Find the files of a journal from an LSN on, and what happened to topics since the bounds.

    :param tail: whether a file is read that is written to; else the journal ends before it.
    :raises FileNotFoundError: a file was deleted meanwhile.
    :raises BrokerdError: some of it cannot be read, though it should be there.
    """
    look = _Look(bounds, tail)
    since = lsn = _begin_of_file(wal, since)
    seen: list[_Seen] = []
    gaps = []
    for found in segments_from(wal, bounds, since, look.opened):
        if isinstance(found, Stop):
            if found.is_problem:
                raise UnreadableJournal(found.reason)
            lsn = found.lsn
            break
        if found.file.first_lsn > lsn:
            gaps.append((lsn, found.file.first_lsn))
        lsn = found.end_lsn
        seen.append(found)
    return Journal(
        [one.file for one in seen],
        [change for one in seen for change in one.changes],
        lsn,
        {one.file.path: one.walked for one in seen if one.walked is not None},
        tuple(gaps),
    )


def _begin_of_file(wal: Path, lsn: int) -> int:
    """Where the file begins that an LSN is in, as that of the bounds may be; else the LSN."""
    first = max((first for first in first_lsns(wal) if first <= lsn), default=lsn)
    path = wal / f"{first:020d}.wal"
    return first if first < lsn < first + path.stat().st_size else lsn


class _Tail:
    """The file that is written to, as it was seen last: only what is new in it is read again.

    What was seen to be sound is on the disk, and stays: no file is gone on with after a restart.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: JournalFile | None = None
        self._walked: Walked | None = None

    def walk(self, fd: int, file: JournalFile) -> Walked:
        """As `walk_tail`, all of the file."""
        with self._lock:
            before = self._walked if self._file == file else None
            walked = None if before is None else _more(fd, file, before)
            self._file = file
            self._walked = walk_tail(fd, file) if walked is None else walked
            return self._walked

    def end(self, fd: int, file: JournalFile) -> int:
        """Where the sound frames end."""
        with self._lock:
            known = self._walked if self._file == file else None
        if known is not None and not any(os.pread(fd, FRAME_HEADER_BYTES, known.end)):
            return known.end
        return self.walk(fd, file).end


_TAIL = _Tail()


def _more(fd: int, file: JournalFile, before: Walked) -> Walked | None:
    """All of a file of which some was seen before; None: that is not in it any more."""
    if not len(before.frames):
        return None
    last = int(before.frames[-1])
    new = walk_tail(fd, file, last)
    if new.end < before.end:
        return None
    kept = int(np.searchsorted(before.frames, last))
    lsn = file.first_lsn + last
    batches = zip(before.batches, new.batches, strict=True)
    return Walked(
        Batches(*(np.concatenate((one[:kept], more)) for one, more in batches)),
        np.concatenate((before.times_us[:kept], new.times_us)),
        np.concatenate((before.frames[:kept], new.frames)),
        [*(change for change in before.changes if change.lsn < lsn), *new.changes],
        new.end,
    )


def end_of_file(path: Path) -> int:
    """The end LSN of the last file of a journal, whether it is written to or not.

    Raises FileNotFoundError if it is gone, OSError and BrokerdError.
    """
    fd, file = open_journal(path)
    try:
        if path.with_suffix(".idx").exists():
            return file.first_lsn + os.fstat(fd).st_size
        return file.first_lsn + _TAIL.end(fd, file)
    finally:
        os.close(fd)


class _Look:
    """Opens the files of a journal."""

    def __init__(self, bounds: Bounds, tail: bool) -> None:
        self._bounds = bounds
        self._tail = tail
        self._damage: Damage = damaged_places(bounds)

    def opened(self, path: Path, after: int | None) -> _Seen | Stop:
        """What `segments_from` asks for."""
        found = open_closed(path, after is None)
        if isinstance(found, SealedSegment):
            file = File(str(path), found.segment_id, found.first_lsn, found.end_lsn, True)
            is_new = found.end_lsn > self._bounds.lsn
            return _Seen(file, None, list(self._changes(found)) if is_new else [])
        if found.is_problem or (after is None and not self._tail):
            return found
        fd, file_ = open_journal(path)
        try:
            if file_.first_lsn != int(path.stem):
                raise UnreadableJournal(
                    f"{path} says that it begins at LSN {file_.first_lsn}: a file of another place "
                    "was put there; bring the right one back"
                )
            if after is None:
                walked = _TAIL.walk(fd, file_)
            else:
                walked = walk_closed(fd, file_, after - file_.first_lsn)
        finally:
            os.close(fd)
        end_lsn = file_.first_lsn + walked.end
        file = File(str(path), file_.segment_id, file_.first_lsn, end_lsn, False)
        return _Seen(file, walked, walked.changes)

    def _changes(self, segment: SealedSegment) -> Iterator[TopicChange]:
        """The TOPIC entries of a file with an index."""
        places = KnownDamage(self._damage.get(os.path.basename(segment.path), ()))
        fd = os.open(segment.path, os.O_RDONLY)
        try:
            walk = Walk(fd, segment, lambda head: head.kind == EntryKind.TOPIC, places)
            for lot in walk.lots():
                yield from _topic_changes(lot, segment, places)
        finally:
            os.close(fd)


def _topic_changes(lot: Lot, segment: SealedSegment, places: KnownDamage) -> Iterator[TopicChange]:
    for position, head in zip(lot.positions, lot.headers, strict=True):
        try:
            body = entry_body(lot.data, head, position - lot.base)
        except FormatError as error:
            if places.hits(position, position + ENTRY_HEADER_BYTES + head.body_bytes):
                continue
            raise UnreadableJournal(
                f"{segment.path} at {position}: {error}: run brokerctl wal verify"
            ) from None
        lsn = segment.first_lsn + position
        yield TopicChange(lsn, head.topic_id, head.partition, msgpack.unpackb(body))
