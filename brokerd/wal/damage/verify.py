# Tests: tests/wal/test_verify.py
"""Verifies a log, its indexes and its snapshots without changing them.

The broker may run: verification needs no lock and ignores frames appended after it began. A torn
tail in the last segment is not damage, since a crash or a write in progress leaves one. Recorded
damage is reported apart: such a log is sound except for known losses. Records that a snapshot knows
and a damaged log does not are lost by the last damage, as at a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.errors import DamagedData
from brokerd.wal.deletion.deleted_ranges import LsnRange, deleted_ranges
from brokerd.wal.disk import Disk
from brokerd.wal.index_files import load_index
from brokerd.wal.recovery.assigned_offsets import assigned_offsets, log_start, log_starts
from brokerd.wal.recovery.directory import (
    SegmentFile,
    deleted_range_damage,
    missing_end_damage,
    require_own_segment,
    segment_files,
)
from brokerd.wal.recovery.known_end import read_known_end
from brokerd.wal.recovery.loss_records import decode_loss, split_recorded
from brokerd.wal.recovery.report import (
    NOTHING_KNOWN,
    Cut,
    Damage,
    Frame,
    KnownEnd,
    LostRange,
    RecoveryReport,
    needed_ranges,
)
from brokerd.wal.recovery.segment_replay import SegmentReplay, add_index_losses
from brokerd.wal.segment import Segment, index_name, segment_name
from brokerd.wal.snapshot import SnapshotFile
from brokerd.walformat import SEGMENT_HEADER_BYTES, EntryKind, align
from brokerd.walformat.index import Rows


class BadFile(NamedTuple):
    """An index or a snapshot that cannot be used."""

    name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


class LateTopic(NamedTuple):
    """A frame with a TOPIC entry after an entry of another kind."""

    name: str
    position: int

    def __str__(self) -> str:
        return f"{self.name} at {self.position}: a TOPIC entry follows an entry of another kind"


@dataclass
class VerifyReport:
    """The result of a verification."""

    segments: int = 0
    frames: int = 0
    entries: int = 0
    records: int = 0
    bytes: int = 0
    next_lsn: int = 0
    reached_lsn: int = 0
    """The highest LSN that a snapshot or ``known_end`` knows."""
    known_end: KnownEnd = NOTHING_KNOWN
    """How far the log was synced, by the other files in ``state/``."""
    log_end: int = 0
    """The LSN where a start would continue: above the log and above its missing parts."""
    start_lsn: int = 0
    """Where a replay from the newest sound snapshot begins."""
    last_time_us: int = 0
    """Broker time of the last frame."""
    deleted: list[LsnRange] = field(default_factory=list)
    """Deleted parts of the log."""
    torn: Cut | None = None
    damages: list[Damage] = field(default_factory=list)
    """Damage without a record in the log."""
    recorded: list[Damage] = field(default_factory=list)
    """Damage that a repair recorded in the log."""
    late_topics: list[LateTopic] = field(default_factory=list)
    """TOPIC entries after entries of other kinds. Older versions wrote them; all readers work."""
    indexes: int = 0
    bad_indexes: list[BadFile] = field(default_factory=list)
    """The next start makes them again."""
    snapshots: int = 0
    bad_snapshots: list[BadFile] = field(default_factory=list)

    @property
    def problems(self) -> list[Damage | BadFile | LateTopic]:
        """Faults that this version never leaves in a log after a clean stop."""
        return [*self.damages, *self.bad_indexes, *self.bad_snapshots, *self.late_topics]

    @property
    def sound(self) -> bool:
        """Whether all bytes that were written are right."""
        return not (self.damages or self.bad_indexes or self.bad_snapshots)


def verify(
    disk: Disk,
    wal_path: str,
    state_path: str,
    on_frame: Callable[[Frame], None] = lambda frame: None,
) -> VerifyReport:
    """Read every byte of a log, its indexes and its snapshots. ``on_frame`` gets every frame.

    Raises DamagedData for a file that may or may not be a segment, NewerFormat and OSError.
    """
    verification = _Verification(disk, wal_path, state_path)
    for frame in verification.frames():
        on_frame(frame)
    return verification.report


class _Verification:
    """One verification."""

    def __init__(self, disk: Disk, wal_path: str, state_path: str) -> None:
        self._disk = disk
        self._wal_path = wal_path
        self._state_path = state_path
        self.report = VerifyReport()
        self._replay = RecoveryReport(damages=self.report.damages)
        self._assigned: list[LostRange] = []
        """Assigned offsets, by the newest sound snapshot that has any."""
        self._log_starts: dict[tuple[int, int], int] = {}
        """(topic id, partition) -> the log need not hold records below."""

    def frames(self) -> Iterator[Frame]:
        """Verify all files. Yields the frames of the log on the way."""
        report, replay = self.report, self._replay
        self._verify_snapshots(report)
        self._add_known_end()
        known = report.known_end
        last = segment_name(0)
        for found in segment_files(self._disk, self._wal_path, reached_lsn=report.reached_lsn):
            report.segments += not found.is_missing
            require_own_segment(self._disk, self._wal_path, found, known)
            for frame in self._verify_segment(found):
                self._note_log_starts(found, frame)
                yield frame
            last = last if found.is_stray else found.name
        self._verify_deleted()
        report.log_end = report.next_lsn
        damage = missing_end_damage(last, report.next_lsn, report.reached_lsn, known.lsn)
        if damage is not None:
            report.damages.append(damage)
            report.log_end = int(last[:20]) + damage.end
        report.log_end = align(report.log_end)
        report.damages, report.recorded = split_recorded(
            self._disk, self._wal_path, report.damages, replay.loss_entries
        )
        self._add_lost_tail()
        for damage in (*report.damages, *report.recorded):
            damage.lost[:] = needed_ranges(damage.lost, self._log_starts)

    def _add_known_end(self) -> None:
        """Add what bounds and archive pin know, after the snapshots."""
        report = self.report
        report.known_end = known = read_known_end(self._disk, self._state_path)
        if known.lsn >= report.reached_lsn and known.assigned:
            self._assigned = list(known.assigned)
        report.reached_lsn = max(report.reached_lsn, known.lsn)
        for key, offset in known.starts.items():
            self._raise_log_start(key, offset)

    # -- offsets -----------------------------------------------------------------------------

    def _note_log_starts(self, found: SegmentFile, frame: Frame) -> None:
        place = f"{found.name} at {frame.lsn - found.first_lsn}"
        for entry in frame.entries:
            start = log_start(entry, place)
            if start is not None:
                self._raise_log_start(*start)

    def _raise_log_start(self, key: tuple[int, int], offset: int) -> None:
        self._log_starts[key] = max(offset, self._log_starts.get(key, 0))

    def _add_lost_tail(self) -> None:
        """Add the assigned offsets that nothing in the log names to the last damage."""
        report, replay = self.report, self._replay
        damages = [damage for damage in report.damages if damage.may_hold_frames]
        if not damages:
            return
        known = dict(replay.next_offsets)
        lost = [one for damage in report.damages for one in damage.lost]
        lost += [one for entry in replay.loss_entries for one in decode_loss(entry).lost]
        for topic_id, partition, _, end in lost:
            known[topic_id, partition] = max(known.get((topic_id, partition), 0), end)
        for one in self._assigned:
            first = max(one.first, known.get((one.topic_id, one.partition), 0))
            if first < one.end:
                damages[-1].lost.append(one._replace(first=first))

    # -- segments and indexes ----------------------------------------------------------------

    def _verify_deleted(self) -> None:
        """Report the deleted parts of the log.

        A deleted part that no sound snapshot covers is damage, because a start needs it.
        """
        report = self.report
        deleted = deleted_ranges(self._disk, self._wal_path)
        names: list[str] = []
        while any(deleted.after(report.start_lsn)) and names != self._disk.list(self._state_path):
            # A running broker may have written a snapshot, and then deleted segments.
            names = self._disk.list(self._state_path)
            newer = VerifyReport()
            self._verify_snapshots(newer)
            report.start_lsn = max(report.start_lsn, newer.start_lsn)
        report.deleted = list(deleted)
        report.damages[:0] = map(deleted_range_damage, deleted.after(report.start_lsn))
        report.next_lsn = max(report.next_lsn, deleted.end)

    def _verify_segment(self, found: SegmentFile) -> Iterator[Frame]:
        """Verify a segment and its index, and yield the frames."""
        report, replay = self.report, self._replay
        if found.damage is not None:
            report.damages.append(found.damage)
        if found.is_stray:
            return
        if found.header is None:
            report.next_lsn = found.next_lsn or found.first_lsn + found.file.size()
            return
        segment = Segment(found.header)
        first = len(report.damages)
        # Listed before the frames are read: a broker writes the index after the last frame.
        has_index = index_name(found.first_lsn) in self._disk.list(self._wal_path)
        known_lsn = report.known_end.lsn
        scan = SegmentReplay(
            found.file, segment, replay, found.expected_end, report.reached_lsn, known_lsn
        )
        for frame in scan.frames():
            yield frame
            report.frames += 1
            if _has_late_topic(frame):
                report.late_topics.append(LateTopic(found.name, frame.lsn - found.first_lsn))
            report.last_time_us = max(report.last_time_us, frame.time_us)
            report.bytes += frame.end - frame.lsn
            report.entries += len(frame.entries)
            report.records += sum(e.count for e in frame.entries if e.kind == EntryKind.RECORDS)
        report.torn = replay.cut
        is_empty = segment.position == SEGMENT_HEADER_BYTES
        report.next_lsn = segment.first_lsn if is_empty else segment.end_lsn
        if has_index:
            self._verify_index(segment, first)

    def _verify_index(self, segment: Segment, first: int) -> None:
        """Verify an index, and add the losses that it knows to the damages from ``first`` on."""
        report, name = self.report, index_name(segment.first_lsn)
        try:
            stored = load_index(self._disk, self._wal_path, segment)
        except FileNotFoundError:
            return  # a broker deleted it; the next start makes it again
        except DamagedData as error:
            report.indexes += 1
            report.bad_indexes.append(BadFile(name, str(error)))
            return
        report.indexes += 1
        scanned = segment.memory_index
        assert scanned is not None, "the replay made an index"
        damaged = [(damage.position, damage.end) for damage in report.damages[first:]]
        for topic_id, partition, *_ in (*stored.spans(), *scanned.spans()):
            rows = stored.rows(topic_id, partition), scanned.rows(topic_id, partition)
            if not _are_equal(*rows, damaged):
                problem = f"topic id {topic_id} partition {partition} is not what the segment holds"
                report.bad_indexes.append(BadFile(name, problem))
                return
        report.damages[first:] = add_index_losses(report.damages[first:], stored, scanned)

    # -- snapshots ---------------------------------------------------------------------------

    def _verify_snapshots(self, report: VerifyReport) -> None:
        for name in sorted(self._disk.list(self._state_path)):
            if name.endswith(".snap"):
                self._verify_snapshot(name, report)

    def _verify_snapshot(self, name: str, report: VerifyReport) -> None:
        """Verify a snapshot. The offsets of a damaged one do not count."""
        assigned: list[LostRange] = []
        starts: dict[tuple[int, int], int] = {}
        reached_lsn = 0
        try:
            snapshot = SnapshotFile.open(self._disk, self._state_path, name)
            for chunk in snapshot.chunks():
                assigned += assigned_offsets(chunk, name)
                starts |= log_starts(chunk, name)
                reached_lsn = max(reached_lsn, chunk.lsn)
        except FileNotFoundError:  # a running broker deleted it
            return
        except DamagedData as error:
            report.snapshots += 1
            problem = str(error).removeprefix(name).lstrip()
            report.bad_snapshots.append(BadFile(name, problem))
            return
        report.snapshots += 1
        report.start_lsn = max(report.start_lsn, snapshot.start_lsn)
        report.reached_lsn = max(report.reached_lsn, reached_lsn)
        self._assigned = assigned or self._assigned
        for key, offset in starts.items():
            self._raise_log_start(key, offset)


def _has_late_topic(frame: Frame) -> bool:
    kinds = [entry.kind for entry in frame.entries]
    return EntryKind.TOPIC in kinds[kinds.count(EntryKind.TOPIC) :]


def _are_equal(stored: Rows | None, scanned: Rows | None, damaged: list[tuple[int, int]]) -> bool:
    """Whether an index file has the batches of a partition that its segment has.

    An index that was made before the damage also has the batches in damaged places, and the times
    of frames with damaged headers.
    """
    if not damaged:
        return _rows(stored, Rows._fields) == _rows(scanned, Rows._fields)
    fields = ("position", "base_offset", "count", "body_bytes")
    expected, found = _rows(stored, fields), _rows(scanned, fields)
    return found <= expected and all(
        any(start <= position < end for start, end in damaged) for position, *_ in expected - found
    )


def _rows(rows: Rows | None, fields: Sequence[str]) -> set[tuple[int, ...]]:
    if rows is None:
        return set()
    return set(zip(*(getattr(rows, field) for field in fields), strict=True))
