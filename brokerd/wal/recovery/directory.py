# Tests: tests/wal/test_directory.py
"""Lists the segment files in a log's directory, in order, and names that are not the log's.

The rules are docs/wal-format.rst, section "Which files are segments". Read-only.
"""

from __future__ import annotations

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
from brokerd.wal.read.scanner import ScanFrame, SegmentScanner
from brokerd.wal.recovery.damage_fingerprint import NOT_A_FILE
from brokerd.wal.recovery.report import Damage, KnownEnd
from brokerd.wal.recovery.segment_replay import read_segment_header
from brokerd.wal.recovery.tail_indexes import MissingFile, TailIndex, find_tail_indexes
from brokerd.wal.segment import index_name, segment_name
from brokerd.walformat import (
    ALIGNMENT,
    SEGMENT_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    align,
)
from brokerd.walformat.index import PartitionSpan

MISSING_BYTES_MAX = 16 << 30
"""The header of a later file alone does not prove that more than this is missing."""

_NAME = re.compile(r"(?P<lsn>[0-9]{20})\.(wal|idx)|.*\.tmp", re.DOTALL)


class IrregularFile:
    """Placeholder for a directory entry that is not a regular file. Each use raises OSError."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def _refuse(self, *_arguments: object) -> NoReturn:
        raise OSError(self._error.errno, self._error.strerror, self._error.filename)

    pread = pwrite = sync = truncate = _refuse

    def size(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing, since nothing is open."""


class SegmentFile(NamedTuple):
    """A segment file in the directory, a stray file, or a missing part of the log."""

    name: str
    file: File
    first_lsn: int
    next_lsn: int | None
    """Where the next segment begins, or should. None for the last one without an index."""
    header: SegmentHeader | None
    """None if nothing in the file can be read."""
    damage: Damage | None
    """The damage of the header block, or of the whole file if it has no header."""
    is_last: bool = False
    index_spans: tuple[PartitionSpan, ...] = ()
    """Of the last one: partitions that only indexes know of, in it or in missing segments."""

    @property
    def is_stray(self) -> bool:
        """Whether the file has the name of a segment and is not part of the log."""
        return self.next_lsn == self.first_lsn

    @property
    def is_missing(self) -> bool:
        """Whether a part of the log is missing here."""
        return isinstance(self.file, MissingFile)

    @property
    def expected_end(self) -> int | None:
        """The position where the next segment, or an index, says that this one ends."""
        return None if self.next_lsn is None else self.next_lsn - self.first_lsn


class _Candidate(NamedTuple):
    """A file with the name of a segment. ``problem`` is that of its header block."""

    name: str
    file: File
    first_lsn: int
    size: int
    header: SegmentHeader | None
    problem: str | None
    is_file: bool = True

    @property
    def end_lsn(self) -> int:
        """The LSN after the file's last byte, or the highest possible one if nothing is left."""
        if self.header is None and self.size < SEGMENT_HEADER_BYTES:
            return self.first_lsn + SEGMENT_BYTES_MAX
        return self.first_lsn + self.size

    @property
    def has_lost_frames(self) -> bool:
        """Whether no frame is left. A segment has a frame before it gets its name."""
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

    def as_last(self, indexes: list[TailIndex]) -> SegmentFile:
        """The last segment. Indexes, or else the header block, tell where it ends."""
        own = [index for index in indexes if self._is_own(index)]
        later = [index for index in indexes if self._is_later(index)]
        ends = [index.header.end_lsn for index in (*own, *later)]
        if self.header is None:
            ends = ends or [self.end_lsn]
        elif self.has_lost_frames:
            ends = ends or [self.first_lsn + self.header.size]
        named = later if self.header is not None else [*own, *later]
        return self.as_segment(max(ends, default=None))._replace(
            is_last=True, index_spans=tuple(span for index in named for span in index.spans)
        )

    def _is_own(self, index: TailIndex) -> bool:
        if index.header.first_lsn != self.first_lsn or not _is_near(self.first_lsn, index):
            return False
        return self.header is None or index.header.segment_id == self.header.segment_id

    def _is_later(self, index: TailIndex) -> bool:
        position = index.header.first_lsn - self.first_lsn
        if position < SEGMENT_HEADER_BYTES or self.has_frame_from(position):
            return False
        return _is_near(self.first_lsn + min(self.size, position), index)

    def has_frame_from(self, position: int) -> bool:
        """Whether a sound frame stands at ``position`` or after it."""
        if position >= self.size:
            return False
        if self.header is None:
            return True  # nothing in the file tells where it ends
        scanner = SegmentScanner(self.file, self.header, self.name, self.size)
        return scanner.has_frame_from(position - position % ALIGNMENT)

    def as_stray(self, problem: str) -> SegmentFile:
        damage = Damage(self.name, 0, self.size, f"{problem}; it is left alone", [], True)
        return SegmentFile(self.name, self.file, self.first_lsn, self.first_lsn, None, damage)


def segment_files(
    disk: Disk, path: str, from_lsn: int = 0, first_lsn: int = 0, reached_lsn: int = 0
) -> Iterator[SegmentFile]:
    """Yield the segment files of a directory in order, without those below ``from_lsn``.

    The log is known to begin at ``first_lsn`` and to have reached ``reached_lsn`` once. A stray
    file has no header, and the segment before it goes on. Raises DamagedData for a file that may or
    may not be a segment, NewerFormat, OSError.
    """
    names = _segment_lsns(disk, path)
    deleted = deleted_ranges(disk, path)  # a range is recorded before its files are deleted
    before: _Candidate | None = None
    for lsn in names:
        found = _open_candidate(disk, path, lsn)
        if found is None:
            deleted = deleted_ranges(disk, path)
            continue
        problem = _stray_reason(before, found)
        if problem is not None:
            yield found.as_stray(problem)
            continue
        if lsn > reached_lsn:
            _require_plausible(path, before, found, first_lsn, deleted)
        end_lsn = first_lsn if before is None else _end_of(before, lsn, deleted)
        if before is not None and lsn > from_lsn:
            yield before.as_segment(end_lsn)
        yield from _missing_parts(end_lsn, lsn, deleted, from_lsn)
        before = found
    yield from _last_files(disk, path, before, first_lsn, names)


def _last_files(
    disk: Disk, path: str, before: _Candidate | None, first_lsn: int, lsns: list[int]
) -> Iterator[SegmentFile]:
    """Yield the last segment of ``lsns``, and the missing segments after it."""
    is_growing = not set(lsns).issuperset(_segment_lsns(disk, path))
    # A running broker may have begun segments since, and deleted some of them.
    deleted = DeletedRanges() if is_growing else deleted_ranges(disk, path)
    lsn = first_lsn - 1 if before is None else before.first_lsn
    indexes = find_tail_indexes(disk, path, lsn)
    end_lsn = first_lsn
    if before is not None:
        end_lsn = _end_of(before, LSN_MAX, deleted)
        if end_lsn == LSN_MAX:
            yield before.as_last(indexes)
            return
        yield before.as_segment(end_lsn)
        indexes = [index for index in indexes if index.header.first_lsn > lsn]
    yield from _missing_parts(end_lsn, deleted.end, deleted)
    yield from _missing_tail(indexes, max(end_lsn, deleted.end))


def _end_of(before: _Candidate, lsn: int, deleted: DeletedRanges) -> int:
    """Return where a segment ends, if the next file begins at ``lsn`` and others were deleted.

    A segment that should have been deleted too was complete, so it ends where its file ends.
    """
    end_lsn = before.first_lsn + before.file.size()  # a running broker may have trimmed it
    inside = deleted.end_of(before.first_lsn)
    if inside is not None and end_lsn <= inside:
        return min(end_lsn, lsn)
    first = deleted.next_first(before.first_lsn)
    if first is None or first < end_lsn:
        return lsn
    return min(first, lsn)


def _missing_parts(
    end_lsn: int, lsn: int, deleted: DeletedRanges, from_lsn: int = 0
) -> Iterator[SegmentFile]:
    """Yield the missing parts between two LSNs that were not deleted, as damaged segments."""
    for first, end in deleted.missing(end_lsn, lsn):
        if end > from_lsn:
            damage = missing_range_damage(first, end)
            yield SegmentFile(damage.name, MissingFile(), first, end, None, damage)


def _missing_tail(indexes: list[TailIndex], first_lsn: int) -> Iterator[SegmentFile]:
    """Yield the missing end of the log, of which indexes are left, as one damaged segment."""
    indexes = [index for index in indexes if _is_near(first_lsn, index)]
    if indexes:
        end_lsn = max(index.header.end_lsn for index in indexes)
        damage = missing_range_damage(first_lsn, end_lsn)
        spans = tuple(span for index in indexes for span in index.spans)
        yield SegmentFile(damage.name, MissingFile(), first_lsn, end_lsn, None, damage, True, spans)


def _is_near(lsn: int, index: TailIndex) -> bool:
    """Whether an index is close enough behind an LSN to belong to this log."""
    return lsn < index.header.end_lsn <= lsn + MISSING_BYTES_MAX


def missing_range_damage(first_lsn: int, found_lsn: int) -> Damage:
    """Return the damage of a missing part of the log between two LSNs."""
    problem = f"nothing is left of the log from LSN {first_lsn} to {found_lsn}"
    return Damage(segment_name(first_lsn), 0, found_lsn - first_lsn, problem)


def deleted_range_damage(deleted: LsnRange) -> Damage:
    """Return the damage of a deleted part of the log that a replay needs."""
    first, end = deleted
    problem = (
        f"the log from LSN {first} to {end} was deleted because snapshots held what it did, and "
        "none of them can be used any more: topics, groups and offsets of that time are not known"
    )
    return Damage(segment_name(first), 0, end - first, problem)


def missing_end_damage(last: str, end_lsn: int, reached_lsn: int, known_lsn: int) -> Damage | None:
    """Return the damage of a log that ends too early at ``end_lsn``, None if it does not.

    Its last file is ``last``. Snapshots know of the log up to ``reached_lsn``. If it was synced up
    to ``known_lsn``, all that the next segment can have held is missing.
    """
    first = int(last[:20])
    if align(end_lsn) < known_lsn:
        problem = (
            f"the log ends at LSN {end_lsn}, and by state/bounds it was on the disk up to "
            f"{known_lsn}: the file {segment_name(end_lsn)} is missing"
        )
        missing_lsn = max(reached_lsn, known_lsn, align(end_lsn) + SEGMENT_BYTES_MAX)
    elif align(end_lsn) < reached_lsn:
        problem = (
            f"the log ends at LSN {end_lsn}, and a snapshot knows of it up to {reached_lsn}; "
            "unless wal.durability is fsync, a power loss may do that; if a file is missing, it "
            f"is {segment_name(end_lsn)}"
        )
        missing_lsn = reached_lsn
    else:
        return None
    return Damage(last, end_lsn - first, missing_lsn - first, problem)


def require_own_segment(disk: Disk, path: str, found: SegmentFile, known: KnownEnd) -> None:
    """Raise DamagedData if a file has the name of a segment of the log and is another segment.

    The bounds name the id of one segment. An index was written for the last segment, or it is of
    another log itself, unless the bounds say that the file is right.
    """
    if found.header is None:
        return
    segment_id, name = found.header.segment_id, index_name(found.first_lsn)
    if known.segment_id and found.first_lsn == known.segment_lsn:
        if segment_id == known.segment_id:
            return
        expected, witness = known.segment_id, "state/bounds"
        remedy = "if state/bounds is of another log, delete that"
    else:
        if not found.is_last:
            return
        index = next(iter(find_tail_indexes(disk, path, found.first_lsn)), None)
        if index is None or index.header.first_lsn != found.first_lsn:
            return
        if index.header.segment_id == segment_id:
            return
        expected, witness = index.header.segment_id, name
        remedy = f"if {name} is of another log, delete that"
    raise DamagedData(
        f"{os.path.join(path, found.name)} is another segment (id {segment_id.hex()}) than the "
        f"log had there (id {expected.hex()}, by {witness}). Nothing was changed. "
        "Bring the right file back; without it, move this one away, and the next start says what "
        f"is lost; {remedy}"
    )


def orphan_indexes(disk: Disk, path: str) -> list[str]:
    """Return the names of indexes whose segments were deleted."""
    names = disk.list(path)
    deleted = deleted_ranges(disk, path)
    matches = (_NAME.fullmatch(name) for name in names)
    lsns = (int(match["lsn"]) for match in matches if match is not None and match[2] == "idx")
    return [
        index_name(lsn)
        for lsn in lsns
        if deleted.end_of(lsn) is not None and segment_name(lsn) not in names
    ]


def foreign_names(disk: Disk, path: str) -> list[str]:
    """Return the names in a log's directory that are not names of the log."""
    return [name for name in disk.list(path) if not _is_ours(name)]


def _is_ours(name: str) -> bool:
    match = _NAME.fullmatch(name)
    if match is None:
        return named_range(name) is not None
    return int(match["lsn"] or 0) <= LSN_MAX


def _segment_lsns(disk: Disk, path: str) -> list[int]:
    names = (name for name in disk.list(path) if name.endswith(".wal") and _is_ours(name))
    return sorted(int(name[:-4]) for name in names)


def _open_candidate(disk: Disk, path: str, lsn: int) -> _Candidate | None:
    """Open a file with the name of a segment and read its header block. None if it is deleted."""
    name = segment_name(lsn)
    full = os.path.join(path, name)
    try:
        file = disk.open(full)
        size = file.size()
        try:
            header, problem = read_segment_header(file, name)
        except DamagedData as error:
            return _Candidate(name, file, lsn, size, None, str(error))
        return _Candidate(name, file, lsn, size, header, problem)
    except FileNotFoundError:
        if name not in disk.list(path):
            return None  # a running broker deleted it
        raise DamagedData(
            f"{full} is a link that leads nowhere; bring back what it leads to, or move it away"
        ) from None
    except OSError as error:
        if error.errno not in NOT_A_FILE:
            raise
        return _Candidate(name, IrregularFile(error), lsn, 0, None, None, is_file=False)


def _stray_reason(before: _Candidate | None, found: _Candidate) -> str | None:
    """Return why a file is certainly not a segment, None if it may be one.

    A segment ends where the next one begins. A name inside another segment, before its last frame,
    is no next segment: it would cut that segment off.
    """
    if not found.is_file:
        return "it has the name of a segment, but is not a regular file"
    if before is None or before.header is None or found.first_lsn >= before.end_lsn:
        return None
    if before.has_frame_from(found.first_lsn - before.first_lsn):
        return f"it is named after a place inside {before.name}"
    return None


def _require_plausible(
    path: str, before: _Candidate | None, found: _Candidate, first_lsn: int, deleted: DeletedRanges
) -> None:
    """Raise DamagedData for a file that may belong to another log."""
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


def _follows(before: _Candidate | None, found: _Candidate, first_lsn: int) -> bool:
    """Whether a file begins exactly where the file before it ends."""
    if before is None:
        return found.first_lsn == first_lsn
    if before.header is None or found.first_lsn >= before.end_lsn:
        return found.first_lsn == before.end_lsn
    stop = found.first_lsn - before.first_lsn
    end = SEGMENT_HEADER_BYTES
    for item in SegmentScanner(before.file, before.header, before.name, stop).scan():
        end = item.position + item.header.length if isinstance(item, ScanFrame) else item.position
    return end == stop
