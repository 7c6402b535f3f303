# Tests: tests/wal/test_recover.py
"""Opens the directory of a log: reads the log, then puts the directory in order.

:func:`replay` only reads. A newer format, or an error of the caller's ``apply``, leaves the
directory as it was. :func:`clean_up` then deletes leftovers, rewrites bytes that may be only in the
page cache, trims the last segment and writes missing indexes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from brokerd.errors import DamagedData
from brokerd.wal.deletion.deleted_ranges import deleted_ranges, record_names, redundant_records
from brokerd.wal.disk import Disk, File, is_full, write_atomically
from brokerd.wal.index_files import load_index, load_spans, write_index
from brokerd.wal.recovery.damage_fingerprint import (
    DamageFingerprint,
    fingerprint_damage,
    is_unchanged,
)
from brokerd.wal.recovery.directory import (
    SegmentFile,
    deleted_range_damage,
    foreign_names,
    missing_end_damage,
    orphan_indexes,
    require_own_segment,
    segment_files,
)
from brokerd.wal.recovery.loss_records import decode_loss, split_recorded
from brokerd.wal.recovery.report import (
    NOTHING_KNOWN,
    Damage,
    Frame,
    KnownEnd,
    RecoveryReport,
)
from brokerd.wal.recovery.segment_replay import SegmentReplay, add_index_losses
from brokerd.wal.segment import Segment, index_name, segment_name, trim
from brokerd.walformat import SEGMENT_HEADER_BYTES, align
from brokerd.walformat.index import MemoryIndex, PartitionSpan, merge_indexes

REWRITE_BYTES = 1 << 20


@dataclass
class Replay:
    """The result of a replay. ``segments`` are in order, each with its partitions."""

    report: RecoveryReport
    segments: list[tuple[Segment, list[PartitionSpan]]] = field(default_factory=list)
    synced: int = 0
    """Position in the last segment below which all is known to be synced."""


def replay(
    disk: Disk,
    path: str,
    from_lsn: int,
    apply: Callable[[Frame], None],
    first_lsn: int = 0,
    reached_lsn: int = 0,
    changed: Collection[DamageFingerprint] = (),
    known: KnownEnd = NOTHING_KNOWN,
) -> Replay:
    """Read a log and apply its frames from ``from_lsn`` on. Changes nothing on disk.

    The log is known to begin at ``first_lsn`` and to have reached ``reached_lsn`` once, and
    ``known``. Of segments below ``from_lsn`` only the indexes are read, unless a place in
    ``changed`` lies in them: damage that has changed since the snapshot.

    Raises DamagedData for a file that may or may not be a segment, for a file in place of another
    segment, and for segments from ``from_lsn`` on that were deleted while no repair has recorded
    that. Raises NewerFormat and OSError.
    """
    report = RecoveryReport(first_lsn=first_lsn, next_lsn=first_lsn, known_end=known)
    reached_lsn = max(reached_lsn, known.lsn)
    deleted = deleted_ranges(disk, path)
    needed = list(map(deleted_range_damage, deleted.after(from_lsn)))
    report.damages += needed
    report.foreign_names = foreign_names(disk, path)
    replayer = _Replayer(disk, path, from_lsn, apply, reached_lsn, report)
    last = segment_name(first_lsn)
    for found in segment_files(disk, path, 0, first_lsn, reached_lsn):
        if found.damage is not None:
            report.damages.append(found.damage)
            if found.is_stray:
                continue
        last = found.name
        require_own_segment(disk, path, found, known)
        if found.header is None:
            report.next_lsn = found.next_lsn or found.first_lsn + found.file.size()
        else:
            replayer.add(found, Segment(found.header))
        for span in found.index_spans:
            report.follow(span.topic_id, span.partition, span.end_offset, span.end_offset)
            report.last_topic_id = max(report.last_topic_id, span.topic_id)
    report.next_lsn = max(report.next_lsn, deleted.end)
    damage = missing_end_damage(last, report.next_lsn, reached_lsn, known.lsn)
    if damage is not None:
        report.damages.append(damage)
        report.next_lsn = int(last[:20]) + damage.end
    places = [(entry, decode_loss(entry).place) for entry in report.loss_entries]
    stale = [(entry, place) for entry, place in places if not is_unchanged(disk, path, place)]
    report.stale_losses = [entry for entry, _ in stale]
    replayer.reread({*changed, *(place for _, place in stale)})
    report.damages, report.recorded = split_recorded(
        disk, path, report.damages, report.loss_entries
    )
    _require_state([damage for damage in needed if damage in report.damages])
    report.next_lsn = align(report.next_lsn)
    _require_free_name(path, report)
    return replayer.result


class _Replayer:
    """Replays segments one by one, in order, into ``result``."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        from_lsn: int,
        apply: Callable[[Frame], None],
        reached_lsn: int,
        report: RecoveryReport,
    ) -> None:
        self._disk = disk
        self._path = path
        self._from_lsn = from_lsn
        self._apply = apply
        self._reached_lsn = reached_lsn
        self._report = report
        self.result = Replay(report)

    def add(self, found: SegmentFile, segment: Segment) -> None:
        """Add a segment. Its file is read if it has no sound index, or frames to apply."""
        report = self._report
        segment.sealed = True
        segment.position = found.expected_end or SEGMENT_HEADER_BYTES
        spans = self._load_spans(segment, found.next_lsn)
        if (
            spans is None
            or found.is_last
            or found.next_lsn is None
            or found.next_lsn > self._from_lsn
        ):
            spans = self._replay_file(found, segment, spans)
        for span in spans:
            report.follow(span.topic_id, span.partition, span.first_offset, span.end_offset)
        self.result.segments.append((segment, spans))
        is_empty = segment.position == SEGMENT_HEADER_BYTES
        report.next_lsn = found.first_lsn if is_empty else segment.end_lsn

    def _load_spans(self, segment: Segment, next_lsn: int | None) -> list[PartitionSpan] | None:
        """Load the directory of a segment's index file. Returns None if the file is not sound."""
        if next_lsn is None:
            return None
        try:
            return list(load_spans(self._disk, self._path, segment, next_lsn))
        except FileNotFoundError:
            pass  # a crash came before it was written
        except (DamagedData, OSError) as error:
            self._report.bad_indexes.append(f"{index_name(segment.first_lsn)}: {error}")
        return None

    def _replay_file(
        self, found: SegmentFile, segment: Segment, spans: list[PartitionSpan] | None
    ) -> list[PartitionSpan]:
        """Replay the file of a segment. Returns its partitions, by its index if that is good."""
        report = self._report
        before = len(report.damages)
        known_lsn = report.known_end.lsn
        scan = SegmentReplay(
            found.file, segment, report, found.expected_end, self._reached_lsn, known_lsn
        )
        for frame in scan.frames():
            if frame.lsn >= self._from_lsn:
                self._apply(frame)
                report.frames += 1
                report.bytes += frame.end - frame.lsn
        self.result.synced = max(0, scan.synced - found.first_lsn)
        if spans is None:
            return list(scan.index.spans())
        report.damages[before:] = self._compare_index(segment, spans, report.damages[before:])
        return spans if segment.memory_index is None else list(segment.memory_index.spans())

    def _compare_index(
        self, segment: Segment, spans: list[PartitionSpan], damages: list[Damage]
    ) -> list[Damage]:
        """Compare a segment's index file, whose directory is ``spans``, with the segment.

        Returns the segment's ``damages`` with the lost batches that the file names. The segment
        uses its file, unless the file lacks batches that were damaged when it was made.
        """
        scanned, segment.memory_index = segment.memory_index, None
        assert scanned is not None, "a replay makes an index"
        if not damages and spans == list(scanned.spans()):
            return damages
        try:
            stored = load_index(self._disk, self._path, segment)
        except (DamagedData, OSError):  # its directory was sound, its rows are not
            return damages
        both = merge_indexes(stored, scanned)
        if both.batches > sum(span.rows for span in spans):
            segment.memory_index = both
            self._report.bad_indexes.append(
                f"{index_name(segment.first_lsn)}: it lacks batches that were damaged when it was "
                "made"
            )
        return add_index_losses(damages, stored, scanned)

    def reread(self, places: Collection[DamageFingerprint]) -> None:
        """Read the segments of which only the index was read, if one of ``places`` is in them.

        An index that was made while a place was damaged lacks its entries. The damage that is left
        is reported.
        """
        for number, (segment, spans) in enumerate(self.result.segments):
            if segment.end_lsn > self._from_lsn or not _is_known_by_index(segment, places):
                continue
            file = self._disk.open(os.path.join(self._path, segment.name))
            report = RecoveryReport(first_lsn=1)
            for _ in SegmentReplay(file, segment, report, segment.position).frames():
                pass
            self._report.damages[:0] = self._compare_index(segment, spans, report.damages)
            if segment.memory_index is not None:
                spans = list(segment.memory_index.spans())
                self.result.segments[number] = segment, spans


def _is_known_by_index(segment: Segment, places: Collection[DamageFingerprint]) -> bool:
    """Whether one of the places lies in a segment of which only the index was read."""
    first_lsn, end_lsn = segment.first_lsn, segment.end_lsn
    return segment.memory_index is None and any(one.lies_in(first_lsn, end_lsn) for one in places)


def _require_state(damages: list[Damage]) -> None:
    """Raise DamagedData if deleted parts of the log are needed, because no snapshot has them.

    A broker that started without them would take old topics for new ones, and their archive for
    that of deleted topics.
    """
    if damages:
        end_lsn = max(int(damage.name[:20]) + damage.end for damage in damages)
        raise DamagedData(
            f"{damages[0].problem}. Nothing was changed. Bring back state/ with a snapshot of "
            f"LSN {end_lsn} or later, or an older copy of all of the data directory; or have "
            "brokerctl wal repair give up what is not known"
        )


def _require_free_name(path: str, report: RecoveryReport) -> None:
    """Raise DamagedData if something has the name of the next segment."""
    name = segment_name(report.next_lsn)
    if any(damage.name == name and damage.is_counted for damage in report.damages):
        raise DamagedData(
            f"{os.path.join(path, name)} is not a regular file, and the log's next segment must "
            "have its name; move it away"
        )


def clean_up(disk: Disk, path: str, result: Replay) -> None:
    """Put the directory in order after :func:`replay`. Raises OSError.

    If there is no space for an index file, its segment keeps the index in memory.
    """
    report = result.report
    for name in disk.list(path):
        if name.endswith(".tmp"):
            try:
                disk.unlink(os.path.join(path, name))
            except IsADirectoryError:
                report.foreign_names.append(name)
    _renew_records(disk, path)
    for name in (*orphan_indexes(disk, path), *redundant_records(disk, path)):
        with suppress(IsADirectoryError):  # not a file of the log
            disk.unlink(os.path.join(path, name))
    if result.segments:
        last, _ = result.segments[-1]
        if last.position > SEGMENT_HEADER_BYTES:
            if last.memory_index is not None:  # else it is complete: synced and indexed
                report.rewritten_bytes = _rewrite_tail(disk, path, last, result.synced)
        else:
            result.segments.pop()
            disk.unlink(os.path.join(path, last.name))
    for segment, _ in result.segments:
        if segment.memory_index is not None:
            trim(disk, path, segment)
            if write_index(disk, path, segment) is None:
                segment.memory_index = None
                report.rebuilt_indexes += 1
    disk.sync_directory(path)


def fingerprint_damages(disk: Disk, path: str, report: RecoveryReport) -> list[DamageFingerprint]:
    """Return the damage that the replayed state reflects, after :func:`clean_up`. Raises OSError.

    Recorded damage is included, although the replay may not have read its places.
    """
    places = [
        fingerprint_damage(disk, path, damage.name, damage.position, damage.end)
        for damage in (*report.damages, *report.recorded)
        if damage.may_hold_frames
    ]
    places += [
        decode_loss(entry).place
        for entry in report.loss_entries
        if entry not in report.stale_losses
    ]
    return sorted(set(places))


def _renew_records(disk: Disk, path: str) -> None:
    """Write the names of the records of deleted ranges again, durably.

    A sync of the directory that failed in an earlier process may have lost them. Without room the
    names stay as they are. So does a directory with such a name.
    """
    names = record_names(disk, path)
    try:
        for name in names:
            temporary = os.path.join(path, f"{name}.tmp")
            disk.create(temporary).close()
            try:
                disk.rename(temporary, os.path.join(path, name))
            except IsADirectoryError:
                disk.unlink(temporary)
    except OSError as error:
        if not is_full(error):
            raise
    if names:
        disk.sync_directory(path)


def _rewrite_tail(disk: Disk, path: str, last: Segment, synced: int) -> int:
    """Write the bytes of the last segment that may be unsynced. `trim` syncs them.

    If no frame proves that a commit to the segment ended, the sync of its name may have failed. So
    a new file of the same name replaces it, unless there is no room.
    """
    file = disk.open(os.path.join(path, last.name), write=True)
    if synced == 0:
        end = min(last.position, file.size())
        try:
            write_atomically(disk, path, last.name, _pieces(file, end), sync_name=False)
        except OSError as error:
            if not is_full(error):
                raise
        else:
            disk.sync_directory(path)
            return end
    start = max(synced, SEGMENT_HEADER_BYTES)
    end = max(start, min(last.position, file.size()))
    rewrite(file, start, end)
    return end - start


def _pieces(file: File, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file up to a position."""
    for position in range(0, end, REWRITE_BYTES):
        yield file.pread(min(REWRITE_BYTES, end - position), position)


def rewrite(file: File, start: int, end: int) -> None:
    """Write bytes again that may be only in the page cache. The caller syncs.

    A failed sync of an earlier process may have left them there, marked as clean.
    """
    for position in range(start, end, REWRITE_BYTES):
        length = min(REWRITE_BYTES, end - position)
        file.pwrite(file.pread(length, position), position)


def rebuild_index(disk: Disk, path: str, segment: Segment) -> tuple[MemoryIndex, OSError | None]:
    """Make the index of a sealed segment again from the segment, and write its file.

    Returns the index, and the error if the file could not be written. Raises OSError if the segment
    cannot be read.
    """
    file = disk.open(os.path.join(path, segment.name))
    scratch = Segment(segment.header)
    scan = SegmentReplay(file, scratch, RecoveryReport(), segment.position)
    for _ in scan.frames():
        pass
    return scan.index, write_index(disk, path, scratch)
