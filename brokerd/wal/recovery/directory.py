# Tests: tests/wal/test_directory.py
"""The files in a log's directory: which are its segments, in order, and what else lies there.

The rules are docs/wal-format.rst, section "Which files are segments". Read-only.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from brokerd.errors import DamagedData
from brokerd.wal.deletion.deleted_ranges import (
    LSN_MAX,
    DeletedRanges,
    LsnRange,
    deleted_ranges,
    named_range,
)
from brokerd.wal.disk import Disk, File
from brokerd.wal.read.scanner import FoundFrame, SegmentScanner
from brokerd.wal.recovery.report import Damage
from brokerd.wal.recovery.segment_replay import read_segment_header
from brokerd.wal.recovery.tail_indexes import GoneFile, LastIndex, last_indexes
from brokerd.wal.segment import index_name, segment_name
from brokerd.walformat import SEGMENT_BYTES_MAX, SEGMENT_HEADER_BYTES, SegmentHeader
from brokerd.walformat.index import PartitionSpan

MISSING_BYTES_MAX = 16 << 30
"""More than this is not taken for missing segments on the word of a later file's header alone."""

_NAME = re.compile(r"(?P<lsn>[0-9]{20})\.(wal|idx)|.*\.tmp", re.DOTALL)
_IS_NO_FILE = (errno.EISDIR, errno.ESPIPE, errno.ENXIO)
"""What opening or reading a directory, a pipe or a socket says."""


class NoFile:
    """Stands for what has the name of a file and is none: it is empty, and each use says why not.

    A socket cannot even be opened.
    """

    def __init__(self, error: OSError) -> None:
        self._error = error

    def _refuse(self, *_arguments: object) -> NoReturn:
        raise OSError(self._error.errno, self._error.strerror, self._error.filename)

    pread = pwrite = sync = truncate = _refuse

    def size(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""


class SegmentFile(NamedTuple):
    """A segment file as it was found."""

    name: str
    file: File
    first_lsn: int
    next_lsn: int | None
    """Where the next segment begins, or should; None for the last if nothing tells of more."""
    header: SegmentHeader | None
    """None when nothing in the file can be read."""
    damage: Damage | None
    """What is wrong with the header block, or with all of the file if there is no header."""
    is_last: bool = False
    told: tuple[PartitionSpan, ...] = ()
    """For the last: what indexes say that it, or segments after it, held and nothing else tells."""

    @property
    def is_stray(self) -> bool:
        """Whether it only has the name of a segment."""
        return self.next_lsn == self.first_lsn

    @property
    def is_gone(self) -> bool:
        """Whether there is no file: it stands for a part of the log that is missing."""
        return isinstance(self.file, GoneFile)

    @property
    def expected_end(self) -> int | None:
        """The position where the next segment, or an index, says this one ends."""
        return None if self.next_lsn is None else self.next_lsn - self.first_lsn


class _Found(NamedTuple):
    """A file with the name of a segment; ``problem`` is what is wrong with its header block."""

    name: str
    file: File
    first_lsn: int
    size: int
    header: SegmentHeader | None
    problem: str | None
    is_file: bool = True

    @property
    def end_lsn(self) -> int:
        """Just past the file's last byte, or past what it may have held if nothing is left."""
        if self.header is None and self.size < SEGMENT_HEADER_BYTES:
            return self.first_lsn + SEGMENT_BYTES_MAX
        return self.first_lsn + self.size

    @property
    def is_cut_off(self) -> bool:
        """Whether no frame is left. It had one before it got its name."""
        return self.header is not None and self.size <= SEGMENT_HEADER_BYTES

    def as_segment(self, next_lsn: int | None) -> SegmentFile:
        damage = None
        if self.problem is not None and self.header is not None:
            problem = f"{self.problem}; no record is lost by that"
            damage = Damage(self.name, 0, SEGMENT_HEADER_BYTES, problem)
        elif self.problem is not None:
            end = self.size if next_lsn is None else next_lsn - self.first_lsn
            damage = Damage(self.name, 0, end, self.problem)
        return SegmentFile(self.name, self.file, self.first_lsn, next_lsn, self.header, damage)

    def as_last(self, indexes: list[LastIndex]) -> SegmentFile:
        """The last segment. What indexes, or the header block, say of its end is believed."""
        own = [index for index in indexes if self._is_own(index)]
        later = [index for index in indexes if self._is_later(index)]
        ends = [index.header.end_lsn for index in (*own, *later)]
        if self.header is None:
            ends = ends or [self.end_lsn]
        elif self.is_cut_off:
            ends = ends or [self.first_lsn + self.header.size]
        told = later if self.header is not None else [*own, *later]
        return self.as_segment(max(ends, default=None))._replace(
            is_last=True, told=tuple(span for index in told for span in index.spans)
        )

    def _is_own(self, index: LastIndex) -> bool:
        if index.header.first_lsn != self.first_lsn or not _is_near(self.first_lsn, index):
            return False
        return self.header is None or index.header.segment_id == self.header.segment_id

    def _is_later(self, index: LastIndex) -> bool:
        end_lsn = self.first_lsn + self.size
        is_behind = index.header.first_lsn >= max(end_lsn, self.first_lsn + SEGMENT_HEADER_BYTES)
        return is_behind and _is_near(end_lsn, index)

    def as_stray(self, problem: str) -> SegmentFile:
        damage = Damage(self.name, 0, self.size, f"{problem}; it is left alone", [], True)
        return SegmentFile(self.name, self.file, self.first_lsn, self.first_lsn, None, damage)


def segment_files(
    disk: Disk, path: str, from_lsn: int = 0, first_lsn: int = 0, reached_lsn: int = 0
) -> Iterator[SegmentFile]:
    """The segment files in a directory, in order, without those wholly below ``from_lsn``.

    The log is known to begin at ``first_lsn``, and to have reached ``reached_lsn`` once. A stray
    comes as a file without a header and ends nothing. Raises DamagedData for a file of which nobody
    can say whether it is a segment, NewerFormat, OSError.
    """
    names = _segment_lsns(disk, path)
    deleted = deleted_ranges(disk, path)  # on record before a file went
    before: _Found | None = None
    for lsn in names:
        found = _look(disk, path, lsn)
        if found is None:
            deleted = deleted_ranges(disk, path)
            continue
        problem = _why_stray(before, found)
        if problem is not None:
            yield found.as_stray(problem)
            continue
        if lsn > reached_lsn:
            _require_plausible(path, before, found, first_lsn, deleted)
        end_lsn = first_lsn if before is None else _end_of(before, lsn, deleted)
        if before is not None and lsn > from_lsn:
            yield before.as_segment(end_lsn)
        yield from _missing(end_lsn, lsn, deleted, from_lsn)
        before = found
    yield from _last(disk, path, before, first_lsn, names)


def _last(
    disk: Disk, path: str, before: _Found | None, first_lsn: int, lsns: list[int]
) -> Iterator[SegmentFile]:
    """The last of the segments that were at ``lsns``, and what is missing after it."""
    is_growing = not set(lsns).issuperset(_segment_lsns(disk, path))
    # A running broker may have begun segments since, and deleted some of them.
    deleted = DeletedRanges() if is_growing else deleted_ranges(disk, path)
    lsn = first_lsn - 1 if before is None else before.first_lsn
    indexes = last_indexes(disk, path, lsn)
    end_lsn = first_lsn
    if before is not None:
        end_lsn = _end_of(before, LSN_MAX, deleted)
        if end_lsn == LSN_MAX:
            yield before.as_last(indexes)
            return
        yield before.as_segment(end_lsn)
        indexes = [index for index in indexes if index.header.first_lsn > lsn]
    yield from _missing(end_lsn, deleted.end, deleted)
    yield from _gone(indexes, max(end_lsn, deleted.end))


def _end_of(before: _Found, lsn: int, deleted: DeletedRanges) -> int:
    """Where a segment ends after which the next begins at ``lsn``, others having been deleted.

    One that should have been deleted itself was complete, and so it ends where its file does.
    """
    end_lsn = before.first_lsn + before.file.size()  # a running broker may have trimmed it
    inside = deleted.end_of(before.first_lsn)
    if inside is not None and end_lsn < min(lsn, inside):
        return end_lsn
    first = deleted.next_first(before.first_lsn + 1)
    if first is None or first < end_lsn or first > lsn:
        return lsn
    return first


def _missing(
    end_lsn: int, lsn: int, deleted: DeletedRanges, from_lsn: int = 0
) -> Iterator[SegmentFile]:
    """What was not deleted between the end of a segment and the next, each as a damaged segment."""
    for first, end in deleted.missing(end_lsn, lsn):
        if end > from_lsn:
            damage = missing_beginning(first, end)
            yield SegmentFile(damage.name, GoneFile(), first, end, None, damage)


def _gone(indexes: list[LastIndex], first_lsn: int) -> Iterator[SegmentFile]:
    """The end of a log whose segments are gone, if an index is left, as one damaged segment."""
    indexes = [index for index in indexes if _is_near(first_lsn, index)]
    if indexes:
        end_lsn = max(index.header.end_lsn for index in indexes)
        damage = missing_beginning(first_lsn, end_lsn)
        told = tuple(span for index in indexes for span in index.spans)
        yield SegmentFile(damage.name, GoneFile(), first_lsn, end_lsn, None, damage, True, told)


def _is_near(lsn: int, index: LastIndex) -> bool:
    """Whether an index may be of a segment that followed there, and not of another log."""
    return lsn < index.header.end_lsn <= lsn + MISSING_BYTES_MAX


def missing_beginning(first_lsn: int, found_lsn: int) -> Damage:
    """The damage when a segment should begin at ``first_lsn``, and the next file does later."""
    problem = f"nothing is left of the log from LSN {first_lsn} to {found_lsn}"
    return Damage(segment_name(first_lsn), 0, found_lsn - first_lsn, problem)


def deleted_in_vain(deleted: LsnRange) -> Damage:
    """The damage when a replay has to begin before the end of what was deleted on purpose."""
    first, end = deleted
    problem = (
        f"the log from LSN {first} to {end} was deleted because snapshots held what it did, and "
        "none of them can be used any more: topics, groups and offsets of that time are not known"
    )
    return Damage(segment_name(first), 0, end - first, problem)


def missing_end(last: str, end_lsn: int, reached_lsn: int) -> Damage:
    """The damage when the log, with a last file of this name, ends before where it had got."""
    first = int(last[:20])
    problem = (
        f"the log ends at LSN {end_lsn}, and a snapshot knows of it up to {reached_lsn}; unless "
        "wal.durability is fsync, a power loss may do that; if a file is missing, it is "
        f"{segment_name(end_lsn)}"
    )
    return Damage(last, end_lsn - first, reached_lsn - first, problem)


def orphan_indexes(disk: Disk, path: str) -> list[str]:
    """Names of indexes whose segments were deleted on purpose."""
    names = disk.list(path)
    deleted = deleted_ranges(disk, path)
    matches = (_NAME.fullmatch(name) for name in names)
    lsns = (int(match["lsn"]) for match in matches if match is not None and match[2] == "idx")
    return [
        index_name(lsn)
        for lsn in lsns
        if deleted.end_of(lsn) is not None and segment_name(lsn) not in names
    ]


def odd_names(disk: Disk, path: str) -> list[str]:
    """Names in a log's directory that are none of the log's."""
    return [name for name in disk.list(path) if not _is_ours(name)]


def _is_ours(name: str) -> bool:
    match = _NAME.fullmatch(name)
    if match is None:
        return named_range(name) is not None
    return int(match["lsn"] or 0) <= LSN_MAX


def _segment_lsns(disk: Disk, path: str) -> list[int]:
    names = (name for name in disk.list(path) if name.endswith(".wal") and _is_ours(name))
    return sorted(int(name[:-4]) for name in names)


def _look(disk: Disk, path: str, lsn: int) -> _Found | None:
    """Open a file with the name of a segment and read its header block; None if it is gone."""
    name = segment_name(lsn)
    full = os.path.join(path, name)
    try:
        file = disk.open(full)
        size = file.size()
        try:
            header, problem = read_segment_header(file, name)
        except DamagedData as error:
            return _Found(name, file, lsn, size, None, str(error))
        return _Found(name, file, lsn, size, header, problem)
    except FileNotFoundError:
        if name not in disk.list(path):
            return None  # a broker deleted it meanwhile
        raise DamagedData(
            f"{full} is a link that leads nowhere; bring back what it leads to, or move it away"
        ) from None
    except OSError as error:
        if error.errno not in _IS_NO_FILE:
            raise
        return _Found(name, NoFile(error), lsn, 0, None, None, is_file=False)


def _why_stray(before: _Found | None, found: _Found) -> str | None:
    """Why a file is certainly no segment, if it is not.

    A segment ends where the next begins. A name that lies before the last frame of the segment
    before it is nobody's next: to believe it would be to cut that segment off.
    """
    if not found.is_file:
        return "it has the name of a segment, but is no file"
    if before is None or before.header is None or found.first_lsn >= before.end_lsn:
        return None
    scanner = SegmentScanner(before.file, before.header, before.name, before.size)
    position = found.first_lsn - before.first_lsn
    if scanner.has_frame_from(position - position % 8):
        return f"it is named after a place inside {before.name}"
    return None


def _require_plausible(
    path: str, before: _Found | None, found: _Found, first_lsn: int, deleted: DeletedRanges
) -> None:
    """Raise DamagedData if a file may as well be one that somebody put there."""
    end_lsn = first_lsn if before is None else before.end_lsn
    after = f"byte {end_lsn} of the log" if before is None else f"the end of {before.name}"
    missing = sum(end - first for first, end in deleted.missing(end_lsn, found.first_lsn))
    if found.header is None:
        if _follows(before, found, first_lsn) or deleted.follows(found.first_lsn):
            return
        problem = f"it does not begin at {after}, and nothing in it can be read"
    elif missing > MISSING_BYTES_MAX:
        problem = f"it begins {missing} bytes after {after}"
    else:
        return
    raise DamagedData(
        f"{os.path.join(path, found.name)} has the name of a log segment, but {problem}; if it is "
        "not of this log, move it away; if it is, bring back the segments before it"
    )


def _follows(before: _Found | None, found: _Found, first_lsn: int) -> bool:
    """Whether a file begins exactly where the one before it ends."""
    if before is None:
        return found.first_lsn == first_lsn
    if before.header is None or found.first_lsn >= before.end_lsn:
        return found.first_lsn == before.end_lsn
    stop = found.first_lsn - before.first_lsn
    end = SEGMENT_HEADER_BYTES
    for one in SegmentScanner(before.file, before.header, before.name, stop).scan():
        end = one.position + one.header.length if isinstance(one, FoundFrame) else one.position
    return end == stop
