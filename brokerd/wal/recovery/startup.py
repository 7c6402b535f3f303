# Tests: tests/wal/test_recover.py
"""Opens the directory of a log: reads all of it that is needed, then puts it in order.

Two steps that never mix. :func:`replay` only reads, so that a newer format, or an error of the
caller's ``apply``, leaves the directory as it was. :func:`tidy` then deletes leftovers, rewrites
what may exist in the page cache only, trims the last segment and writes missing indexes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import NamedTuple

from brokerd.errors import DamagedData
from brokerd.wal.deletion.deleted_ranges import deleted_ranges, replaced_records
from brokerd.wal.disk import Disk
from brokerd.wal.index_files import load_index, load_spans, write_index
from brokerd.wal.recovery.damage_fingerprint import KnownDamage, is_unchanged, known_damage
from brokerd.wal.recovery.directory import (
    SegmentFile,
    deleted_in_vain,
    missing_end,
    odd_names,
    orphan_indexes,
    segment_files,
)
from brokerd.wal.recovery.loss_records import decode_loss, tell_apart
from brokerd.wal.recovery.report import Damage, Frame, RecoveryReport
from brokerd.wal.recovery.segment_replay import SegmentReplay, rewrite, told_by_index
from brokerd.wal.segment import Segment, index_name, segment_name, trim
from brokerd.walformat import SEGMENT_HEADER_BYTES
from brokerd.walformat.index import GrowingIndex, PartitionSpan, merged


class Replayed(NamedTuple):
    """What was read. ``segments`` are in order, each with the partitions it holds."""

    report: RecoveryReport
    segments: list[tuple[Segment, list[PartitionSpan]]]
    synced: int
    """Position in the last segment below which all is known to be synced."""


def replay(
    disk: Disk,
    path: str,
    from_lsn: int,
    apply: Callable[[Frame], None],
    first_lsn: int = 0,
    reached_lsn: int = 0,
    changed: Collection[KnownDamage] = (),
) -> Replayed:
    """Read a log, and apply its frames from ``from_lsn`` on. Changes nothing on disk.

    The log is known to begin at ``first_lsn``, and to have reached ``reached_lsn`` once. Segments
    wholly below ``from_lsn`` are known by their indexes alone, if they have any and hold none of
    the places that ``changed`` since they were known to be damaged. Raises DamagedData for a file
    of which nobody can say whether it is a segment, and when segments were deleted from
    ``from_lsn`` on and no repair has put that on record; NewerFormat and OSError.
    """
    report = RecoveryReport(first_lsn=first_lsn, next_lsn=first_lsn)
    deleted = deleted_ranges(disk, path)
    forgotten = list(map(deleted_in_vain, deleted.after(from_lsn)))
    report.damages += forgotten
    report.odd = odd_names(disk, path)
    segments: list[tuple[Segment, list[PartitionSpan]]] = []
    last = segment_name(first_lsn)
    synced = 0
    for found in segment_files(disk, path, 0, first_lsn, reached_lsn):
        if found.damage is not None and found.is_stray:
            report.damages.append(found.damage)
            continue
        if found.damage is not None:
            report.damages.append(found.damage)
        last = found.name
        if found.header is None:
            report.next_lsn = found.next_lsn or found.first_lsn + found.file.size()
            _follow_told(report, found)
            continue
        segment = Segment(found.header)
        segment.sealed = True
        segment.position = found.expected_end or SEGMENT_HEADER_BYTES
        spans = _indexed_spans(disk, path, segment, found.next_lsn, report)
        if spans is None or found.is_last or found.next_lsn is None or found.next_lsn > from_lsn:
            before = len(report.damages)
            scan = SegmentReplay(found.file, segment, report, found.expected_end, reached_lsn)
            _apply(scan, from_lsn, apply, report)
            synced = max(0, scan.synced - found.first_lsn)
            if spans is None:
                spans = list(scan.index.spans())
            else:
                damages = report.damages[before:]
                report.damages[before:] = _compare(disk, path, segment, spans, damages, report)
                if segment.growing is not None:
                    spans = list(segment.growing.spans())
        for span in spans:
            report.follow(span.topic_id, span.partition, span.first_offset, span.end_offset)
        _follow_told(report, found)
        segments.append((segment, spans))
        is_empty = segment.position == SEGMENT_HEADER_BYTES
        report.next_lsn = found.first_lsn if is_empty else segment.end_lsn
    report.next_lsn = max(report.next_lsn, deleted.end)
    if report.next_lsn < reached_lsn:
        report.damages.append(missing_end(last, report.next_lsn, reached_lsn))
        report.next_lsn = reached_lsn
    report.void_losses = [
        entry
        for entry in report.loss_entries
        if not is_unchanged(disk, path, decode_loss(entry).place)
    ]
    suspects = {*changed, *(decode_loss(entry).place for entry in report.void_losses)}
    _read_again(disk, path, from_lsn, suspects, segments, report)
    report.damages, report.recorded = tell_apart(disk, path, report.damages, report.loss_entries)
    _require_known([damage for damage in forgotten if damage in report.damages])
    report.next_lsn += -report.next_lsn % 8
    _check_way(disk, path, report)
    return Replayed(report, segments, synced)


def _require_known(forgotten: list[Damage]) -> None:
    """Raise DamagedData if nothing is known of parts that were deleted.

    A broker that went on would take topics for new that are not, and an archive of theirs for one
    of deleted topics.
    """
    if forgotten:
        end_lsn = max(int(damage.name[:20]) + damage.end for damage in forgotten)
        raise DamagedData(
            f"{forgotten[0].problem}. Nothing was changed. Bring back state/ with a snapshot of "
            f"LSN {end_lsn} or later, or an older copy of all of the data directory; or have "
            "brokerctl wal repair give up what is not known"
        )


def _follow_told(report: RecoveryReport, found: SegmentFile) -> None:
    """Go on above the offsets that indexes tell of, although their segments are short or gone."""
    for span in found.told:
        report.follow(span.topic_id, span.partition, span.end_offset, span.end_offset)
        report.last_topic_id = max(report.last_topic_id, span.topic_id)


def _apply(
    scan: SegmentReplay, from_lsn: int, apply: Callable[[Frame], None], report: RecoveryReport
) -> None:
    for frame in scan.frames():
        if frame.lsn >= from_lsn:
            apply(frame)
            report.frames += 1
            report.bytes += frame.end - frame.lsn


def _compare(
    disk: Disk,
    path: str,
    segment: Segment,
    spans: list[PartitionSpan],
    damages: list[Damage],
    report: RecoveryReport,
) -> list[Damage]:
    """Compare a segment's index file, whose directory is ``spans``, with what the segment holds.

    Returns the ``damages`` of the segment with the batches that the file tells of. The index that
    was found gives way to the file, unless that lacks batches: it was written while they were
    damaged.
    """
    found, segment.growing = segment.growing, None
    assert found is not None, "a replay makes an index"
    if not damages and spans == list(found.spans()):
        return damages
    try:
        index = load_index(disk, path, segment)
    except (DamagedData, OSError):  # it was good a moment ago, as far as its directory goes
        return damages
    both = merged(index, found)
    if both.batches > sum(span.rows for span in spans):
        segment.growing = both
        report.bad_indexes.append(
            f"{index_name(segment.first_lsn)}: it lacks batches that were damaged when it was made"
        )
    return told_by_index(damages, index, found)


def _read_again(
    disk: Disk,
    path: str,
    from_lsn: int,
    changed: Collection[KnownDamage],
    segments: list[tuple[Segment, list[PartitionSpan]]],
    report: RecoveryReport,
) -> None:
    """Read segments below ``from_lsn`` in which damaged places ``changed``.

    An index that was made meanwhile lacks what is cured; what is still damaged is told.
    """
    for number, (segment, spans) in enumerate(segments):
        if segment.end_lsn > from_lsn or not _is_known_by_index(segment, changed):
            continue
        file = disk.open(os.path.join(path, segment.name))
        again = RecoveryReport(first_lsn=1)
        for _ in SegmentReplay(file, segment, again, segment.position).frames():
            pass
        report.damages[:0] = _compare(disk, path, segment, spans, again.damages, report)
        if segment.growing is not None:
            segments[number] = segment, list(segment.growing.spans())


def _is_known_by_index(segment: Segment, places: Collection[KnownDamage]) -> bool:
    """Whether a segment with some of the places was not read, because it has an index file."""
    first_lsn, end_lsn = segment.first_lsn, segment.end_lsn
    return segment.growing is None and any(one.lies_in(first_lsn, end_lsn) for one in places)


def _check_way(disk: Disk, path: str, report: RecoveryReport) -> None:
    """Raise DamagedData if something is where the next segment will be."""
    name = segment_name(report.next_lsn)
    if any(damage.name == name and damage.is_counted for damage in report.damages):
        raise DamagedData(
            f"{os.path.join(path, name)} is no file, and the log's next segment must have its "
            "name; move it away"
        )


def _indexed_spans(
    disk: Disk, path: str, segment: Segment, next_lsn: int | None, report: RecoveryReport
) -> list[PartitionSpan] | None:
    """What the segment's index file says; None if there is none to be trusted."""
    if next_lsn is None:
        return None
    try:
        return list(load_spans(disk, path, segment, next_lsn))
    except FileNotFoundError:
        pass  # a crash came before it was written
    except (DamagedData, OSError) as error:
        report.bad_indexes.append(f"{index_name(segment.first_lsn)}: {error}")
    return None


def tidy(disk: Disk, path: str, replayed: Replayed) -> None:
    """Put the directory in order after :func:`replay`. Raises OSError.

    A segment whose index cannot be written for lack of space keeps it in memory.
    """
    report = replayed.report
    for name in disk.list(path):
        if name.endswith(".tmp"):
            try:
                disk.unlink(os.path.join(path, name))
            except IsADirectoryError:
                report.odd.append(name)
    for name in (*orphan_indexes(disk, path), *replaced_records(disk, path)):
        disk.unlink(os.path.join(path, name))
    if replayed.segments:
        last, _ = replayed.segments[-1]
        if last.position > SEGMENT_HEADER_BYTES:
            if last.growing is not None:  # else it was complete, synced and indexed already
                report.rewritten_bytes = _rewrite_tail(disk, path, last, replayed.synced)
        else:
            replayed.segments.pop()
            disk.unlink(os.path.join(path, last.name))
    for segment, _ in replayed.segments:
        if segment.growing is not None:
            trim(disk, path, segment)
            if write_index(disk, path, segment) is None:
                segment.growing = None
                report.rebuilt_indexes += 1
    disk.sync_directory(path)


def known_places(disk: Disk, path: str, report: RecoveryReport) -> list[KnownDamage]:
    """The damaged places that the replayed state shows, once :func:`tidy` is done. Raises OSError.

    A loss on record shows also where the replay did not read its place again.
    """
    places = [
        known_damage(disk, path, damage.name, damage.position, damage.end)
        for damage in (*report.damages, *report.recorded)
        if damage.may_hold_frames
    ]
    places += [
        decode_loss(entry).place for entry in report.loss_entries if entry not in report.void_losses
    ]
    return sorted(set(places))


def _rewrite_tail(disk: Disk, path: str, last: Segment, synced: int) -> int:
    """Write what was accepted of the last segment and may not be synced again; `trim` syncs it."""
    file = disk.open(os.path.join(path, last.name), write=True)
    start = max(synced, SEGMENT_HEADER_BYTES)
    end = max(start, min(last.position, file.size()))
    rewrite(file, start, end)
    return end - start


def rebuild_index(disk: Disk, path: str, segment: Segment) -> tuple[GrowingIndex, OSError | None]:
    """Make the index of a sealed segment again, from the segment, and write its file.

    Returns the index, and the error if the file could not be written. Raises OSError when the
    segment cannot be read.
    """
    file = disk.open(os.path.join(path, segment.name))
    scratch = Segment(segment.header)
    scan = SegmentReplay(file, scratch, RecoveryReport(), segment.position)
    for _ in scan.frames():
        pass
    return scan.index, write_index(disk, path, scratch)
