# Tests: tests/wal/test_verify.py
"""Checks and lists a log without changing it, whether its broker runs or not.

Needs no lock: it only reads, and what a running broker appends meanwhile is simply not looked at. A
torn tail in the last segment is no damage: it is what a crash, or a write in progress, looks like.
Damage that a repair has put on record is told apart: the log is sound but for what is known to be
lost. Records that a snapshot knows of and a damaged log does not are lost by its last damage, as a
start has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.errors import DamagedData
from brokerd.wal.deletion.deleted_ranges import LSN_MAX, LsnRange, deleted_ranges
from brokerd.wal.disk import Disk
from brokerd.wal.index_files import load_index
from brokerd.wal.read.scanner import FoundFrame, SegmentScanner, Unreadable
from brokerd.wal.recovery.assigned_offsets import assigned_offsets, log_start, log_starts
from brokerd.wal.recovery.directory import (
    SegmentFile,
    deleted_in_vain,
    missing_end,
    segment_files,
)
from brokerd.wal.recovery.loss_records import decode_loss, tell_apart
from brokerd.wal.recovery.report import Cut, Damage, Frame, LostRange, RecoveryReport, still_needed
from brokerd.wal.recovery.segment_replay import SegmentReplay, told_by_index
from brokerd.wal.segment import Segment, index_name, segment_name
from brokerd.wal.snapshot import SnapshotFile
from brokerd.walformat import SEGMENT_HEADER_BYTES, EntryKind
from brokerd.walformat.index import Rows


class BadFile(NamedTuple):
    """An index or a snapshot that is not to be used."""

    name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


@dataclass
class VerifyReport:
    """What was found. ``sound`` is false if anything that was once written is wrong now."""

    segments: int = 0
    frames: int = 0
    entries: int = 0
    records: int = 0
    bytes: int = 0
    next_lsn: int = 0
    reached_lsn: int = 0
    """Up to where a snapshot knows of the log."""
    start_lsn: int = 0
    """Where a replay from the newest sound snapshot begins."""
    last_time_us: int = 0
    """Broker time of the last frame."""
    deleted: list[LsnRange] = field(default_factory=list)
    """Parts of the log that were deleted on purpose."""
    torn: Cut | None = None
    damages: list[Damage] = field(default_factory=list)
    recorded: list[Damage] = field(default_factory=list)
    """Damage that a repair has put on record; it is not among ``damages``."""
    indexes: int = 0
    bad_indexes: list[BadFile] = field(default_factory=list)
    """They are rebuilt at the next start."""
    snapshots: int = 0
    bad_snapshots: list[BadFile] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (self.damages or self.bad_indexes or self.bad_snapshots)


def verify(
    disk: Disk,
    wal_path: str,
    state_path: str,
    see: Callable[[Frame], None] = lambda frame: None,
) -> VerifyReport:
    """Read every byte of a log, its indexes and its snapshots; ``see`` is shown every frame.

    Raises DamagedData for a file of which nobody can say whether it is a segment, NewerFormat and
    OSError.
    """
    report = VerifyReport()
    told = _Told()
    _verify_snapshots(disk, state_path, report, told)
    replay = RecoveryReport(damages=report.damages)
    last = segment_name(0)
    for found in segment_files(disk, wal_path, reached_lsn=report.reached_lsn):
        report.segments += not found.is_gone
        for frame in _verify_segment(disk, wal_path, found, report, replay):
            told.see(found, frame)
            see(frame)
        last = last if found.is_stray else found.name
    _verify_deleted(disk, wal_path, state_path, report, told)
    if report.next_lsn < report.reached_lsn:
        report.damages.append(missing_end(last, report.next_lsn, report.reached_lsn))
    report.damages, report.recorded = tell_apart(
        disk, wal_path, report.damages, replay.loss_entries
    )
    _lose_the_end(report, replay, told.given)
    for damage in (*report.damages, *report.recorded):
        damage.lost[:] = still_needed(damage.lost, told.needed)
    return report


class _Told:
    """What snapshots and the log say of offsets."""

    def __init__(self) -> None:
        self.given: list[LostRange] = []
        """Records that there were, by the newest sound snapshot that knows of any."""
        self.needed: dict[tuple[int, int], int] = {}
        """Below these, the log need not hold records."""

    def see(self, found: SegmentFile, frame: Frame) -> None:
        place = f"{found.name} at {frame.lsn - found.first_lsn}"
        for entry in frame.entries:
            moved = log_start(entry, place)
            if moved is not None:
                self.need(*moved)

    def need(self, key: tuple[int, int], offset: int) -> None:
        self.needed[key] = max(offset, self.needed.get(key, 0))


def _verify_deleted(
    disk: Disk, wal_path: str, state_path: str, report: VerifyReport, told: _Told
) -> None:
    """Tell of parts that were deleted, and that a start would need for want of a snapshot."""
    deleted = deleted_ranges(disk, wal_path)
    names: list[str] = []
    while any(deleted.after(report.start_lsn)) and names != disk.list(state_path):
        # Only now that these are known: a running broker may have written and deleted meanwhile.
        names = disk.list(state_path)
        newer = VerifyReport()
        _verify_snapshots(disk, state_path, newer, told)
        report.start_lsn = max(report.start_lsn, newer.start_lsn)
    report.deleted = list(deleted)
    report.damages[:0] = map(deleted_in_vain, deleted.after(report.start_lsn))
    report.next_lsn = max(report.next_lsn, deleted.end)


def _lose_the_end(report: VerifyReport, replay: RecoveryReport, given: list[LostRange]) -> None:
    """Have the last damage tell of the ``given`` offsets above all that the log tells of."""
    damages = [damage for damage in report.damages if damage.may_hold_frames]
    if not damages:
        return
    known = dict(replay.next_offsets)
    told = [one for damage in report.damages for one in damage.lost]
    told += [one for entry in replay.loss_entries for one in decode_loss(entry).lost]
    for topic_id, partition, _, end in told:
        known[topic_id, partition] = max(known.get((topic_id, partition), 0), end)
    for one in given:
        first = max(one.first, known.get((one.topic_id, one.partition), 0))
        if first < one.end:
            damages[-1].lost.append(one._replace(first=first))


def _verify_segment(
    disk: Disk,
    path: str,
    found: SegmentFile,
    report: VerifyReport,
    replay: RecoveryReport,
) -> Iterator[Frame]:
    """Verify a segment and its index, and yield the frames."""
    if found.damage is not None:
        report.damages.append(found.damage)
    if found.is_stray:
        return
    if found.header is None:
        report.next_lsn = found.next_lsn or found.first_lsn + found.file.size()
        return
    segment = Segment(found.header)
    first = len(report.damages)
    # Looked for before the frames: a broker writes it after the last of them.
    has_index = index_name(found.first_lsn) in disk.list(path)
    scan = SegmentReplay(found.file, segment, replay, found.expected_end, report.reached_lsn)
    for frame in scan.frames():
        yield frame
        report.frames += 1
        report.last_time_us = max(report.last_time_us, frame.time_us)
        report.bytes += frame.end - frame.lsn
        report.entries += len(frame.entries)
        report.records += sum(e.count for e in frame.entries if e.kind == EntryKind.RECORDS)
    report.torn = replay.cut
    is_empty = segment.position == SEGMENT_HEADER_BYTES
    report.next_lsn = segment.first_lsn if is_empty else segment.end_lsn
    if has_index:
        _verify_index(disk, path, segment, report, first)


def _verify_index(
    disk: Disk, path: str, segment: Segment, report: VerifyReport, first: int
) -> None:
    """Check an index, and have it tell what the damages from ``first`` on lost."""
    name = index_name(segment.first_lsn)
    try:
        index = load_index(disk, path, segment)
    except FileNotFoundError:
        return  # somebody deleted it meanwhile; the next start makes it again
    except DamagedData as error:
        report.indexes += 1
        report.bad_indexes.append(BadFile(name, str(error)))
        return
    report.indexes += 1
    assert segment.growing is not None, "the replay made an index"
    damaged = [(damage.position, damage.end) for damage in report.damages[first:]]
    for topic_id, partition, *_ in (*index.spans(), *segment.growing.spans()):
        said = index.rows(topic_id, partition)
        held = segment.growing.rows(topic_id, partition)
        if not _agree(said, held, damaged):
            problem = f"topic id {topic_id} partition {partition} is not what the segment holds"
            report.bad_indexes.append(BadFile(name, problem))
            return
    report.damages[first:] = told_by_index(report.damages[first:], index, segment.growing)


def _agree(said: Rows | None, held: Rows | None, damaged: list[tuple[int, int]]) -> bool:
    """Whether an index says of a partition what its segment does.

    One made before the damage knows more: batches in damaged places, and the times of frames that
    lost their headers.
    """
    if not damaged:
        return _rows(said, Rows._fields) == _rows(held, Rows._fields)
    fields = ("position", "base_offset", "count", "body_bytes")
    told, found = _rows(said, fields), _rows(held, fields)
    return found <= told and all(
        any(start <= position < end for start, end in damaged) for position, *_ in told - found
    )


def _rows(rows: Rows | None, fields: Sequence[str]) -> set[tuple[int, ...]]:
    if rows is None:
        return set()
    return set(zip(*(getattr(rows, field) for field in fields), strict=True))


def _verify_snapshots(disk: Disk, path: str, report: VerifyReport, told: _Told) -> None:
    for name in sorted(disk.list(path)):
        if name.endswith(".snap"):
            _verify_snapshot(disk, path, name, report, told)


def _verify_snapshot(disk: Disk, path: str, name: str, report: VerifyReport, told: _Told) -> None:
    """Check a snapshot; of one that cannot be believed nothing is told."""
    try:
        file = disk.open(os.path.join(path, name))
    except FileNotFoundError:
        return  # a running broker deleted it meanwhile
    report.snapshots += 1
    given: list[LostRange] = []
    needed: dict[tuple[int, int], int] = {}
    reached_lsn = 0
    try:
        snapshot = SnapshotFile(file, name)
        for chunk in snapshot.chunks():
            given += assigned_offsets(chunk, name)
            needed |= log_starts(chunk, name)
            reached_lsn = max(reached_lsn, chunk.lsn)
    except DamagedData as error:
        problem = str(error).removeprefix(name).lstrip()
        report.bad_snapshots.append(BadFile(name, problem))
        return
    report.start_lsn = max(report.start_lsn, snapshot.start_lsn)
    report.reached_lsn = max(report.reached_lsn, reached_lsn)
    told.given = given or told.given
    for key, offset in needed.items():
        told.need(key, offset)


def walk(disk: Disk, path: str, from_lsn: int = 0) -> Iterator[tuple[str, FoundFrame | Unreadable]]:
    """Everything found in the segments, with the file's name, from ``from_lsn`` on.

    A stretch of zeros at the end of a segment is left out. Raises NewerFormat, OSError.
    """
    for segment in segment_files(disk, path, from_lsn, reached_lsn=LSN_MAX):
        for found in _walk_segment(segment):
            if segment.first_lsn + found.position >= from_lsn:
                yield segment.name, found


def _walk_segment(segment: SegmentFile) -> Iterator[FoundFrame | Unreadable]:
    damage, size = segment.damage, segment.file.size()
    if damage is not None:
        yield Unreadable(damage.position, damage.end, damage.problem, zeros=False)
    if segment.header is not None:
        stop = size if segment.expected_end is None else min(size, segment.expected_end)
        for found in SegmentScanner(segment.file, segment.header, segment.name, stop).scan():
            if not (isinstance(found, Unreadable) and found.zeros and found.end == stop):
                yield found
