# Tests: tests/wal/test_recovery.py
"""Opens the directory of a log: reads all of it that is needed, then puts it in order.

Two steps that never mix. :func:`replay` only reads, so that a newer format, or an error of the
caller's ``apply``, leaves the directory as it was. :func:`tidy` then deletes leftovers, rewrites
what may exist in the page cache only, trims the last segment and writes missing indexes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from brokerd.errors import DamagedData
from brokerd.wal.catalog import Segment, index_name, segment_name
from brokerd.wal.disk import Disk, File, write_atomically
from brokerd.wal.index import GrowingIndex, PartitionSpan
from brokerd.wal.recovery import (
    Damage,
    Frame,
    RecoveryReport,
    SegmentReplay,
    load_spans,
    read_segment_header,
    rewrite,
)
from brokerd.wal.scan import SegmentScanner
from brokerd.walformat import SEGMENT_HEADER_BYTES, SegmentHeader


class Replayed(NamedTuple):
    """What was read. ``segments`` are in order, each with the partitions it holds."""

    report: RecoveryReport
    segments: list[tuple[Segment, list[PartitionSpan]]]
    synced: int
    """Position in the last segment below which all is known to be synced."""


class SegmentFile(NamedTuple):
    """A segment file as it was found."""

    name: str
    file: File
    first_lsn: int
    next_lsn: int | None
    """Where the next segment begins; None for the last."""
    header: SegmentHeader | None
    """None when nothing in the file can be read."""
    damage: Damage | None
    """What is wrong with the header block, or with all of the file if there is no header."""

    @property
    def is_stray(self) -> bool:
        """Whether it only has the name of a segment."""
        return self.next_lsn == self.first_lsn

    @property
    def expected_end(self) -> int | None:
        """The position where the next segment says this one ends."""
        return None if self.next_lsn is None else self.next_lsn - self.first_lsn


def segment_files(disk: Disk, path: str, from_lsn: int = 0) -> Iterator[SegmentFile]:
    """The segment files in a directory, in order, without those wholly below ``from_lsn``.

    A stray file, named after a place in the middle of a segment, comes as one without a header and
    ends nothing. Raises NewerFormat, OSError.
    """
    lsns, strays = _without_strays(disk, path, _segment_lsns(disk, path))
    yield from strays
    for first_lsn, next_lsn in zip(lsns, [*lsns, None][1:], strict=True):
        if next_lsn is not None and next_lsn <= from_lsn:
            continue
        name = segment_name(first_lsn)
        file = disk.open(os.path.join(path, name))
        header, damage = None, None
        try:
            header, problem = read_segment_header(file, name)
        except DamagedData as error:
            end = file.size() if next_lsn is None else next_lsn - first_lsn
            damage = Damage(name, 0, end, str(error))
        else:
            if problem is not None:
                damage = Damage(name, 0, SEGMENT_HEADER_BYTES, problem)
        yield SegmentFile(name, file, first_lsn, next_lsn, header, damage)


def _without_strays(disk: Disk, path: str, lsns: list[int]) -> tuple[list[int], list[SegmentFile]]:
    """The LSNs that segments begin at, and the files that only have such a name.

    A segment ends where the next begins. A name that lies before the last frame of the segment
    before it is nobody's next: to believe it would be to cut that segment off.
    """
    kept: list[int] = []
    strays: list[SegmentFile] = []
    for lsn in lsns:
        inside = kept and _goes_on_at(disk, path, kept[-1], lsn)
        if not inside:
            kept.append(lsn)
            continue
        name = segment_name(lsn)
        file = disk.open(os.path.join(path, name))
        problem = f"it is named after a place inside {segment_name(kept[-1])}; it is left alone"
        strays.append(
            SegmentFile(name, file, lsn, lsn, None, Damage(name, 0, file.size(), problem, [], True))
        )
    return kept, strays


def _goes_on_at(disk: Disk, path: str, first_lsn: int, lsn: int) -> bool:
    """Whether the segment that begins at ``first_lsn`` has frames from ``lsn`` on."""
    name = segment_name(first_lsn)
    file = disk.open(os.path.join(path, name))
    size = file.size()
    if lsn >= first_lsn + size:
        return False
    try:
        header, _ = read_segment_header(file, name)
    except DamagedData:
        return False
    position = lsn - first_lsn
    return SegmentScanner(file, header, name, size).has_frame_from(position - position % 8)


def _segment_lsns(disk: Disk, path: str) -> list[int]:
    names = (name for name in disk.list(path) if name.endswith(".wal"))
    return sorted(int(name[:-4]) for name in names if name[:-4].isdigit() and len(name) == 24)


def replay(disk: Disk, path: str, from_lsn: int, apply: Callable[[Frame], None]) -> Replayed:
    """Read a log, and apply its frames from ``from_lsn`` on. Changes nothing on disk.

    Segments wholly below ``from_lsn`` are known by their indexes alone. Raises NewerFormat and
    OSError.
    """
    report = RecoveryReport()
    segments: list[tuple[Segment, list[PartitionSpan]]] = []
    lsns: list[int] = []
    synced = 0
    for found in segment_files(disk, path):
        if found.damage is not None:
            report.damages.append(found.damage)
        if found.is_stray:
            continue
        lsns.append(found.first_lsn)
        if found.header is None:
            report.next_lsn = found.next_lsn or found.first_lsn + found.file.size()
            continue
        segment = Segment(found.header)
        segment.sealed = True
        segment.position = found.expected_end or SEGMENT_HEADER_BYTES
        spans = _indexed_spans(disk, path, segment, found.next_lsn, report)
        if spans is None or found.next_lsn is None or found.next_lsn > from_lsn:
            scan = SegmentReplay(found.file, segment, report, found.expected_end)
            _apply(scan, from_lsn, apply, report)
            synced = max(0, scan.synced - found.first_lsn)
            if spans is None:
                spans = list(scan.index.spans())
            else:
                segment.growing = None
        for span in spans:
            key = span.topic_id, span.partition
            report.next_offsets[key] = max(report.next_offsets.get(key, 0), span.end_offset)
        segments.append((segment, spans))
        is_empty = segment.position == SEGMENT_HEADER_BYTES
        report.next_lsn = found.first_lsn if is_empty else segment.end_lsn
    _check_ends(report, lsns, from_lsn)
    report.next_lsn = max(report.next_lsn, from_lsn)
    report.next_lsn += -report.next_lsn % 8
    return Replayed(report, segments, synced)


def _apply(
    scan: SegmentReplay, from_lsn: int, apply: Callable[[Frame], None], report: RecoveryReport
) -> None:
    for frame in scan.frames():
        if frame.lsn >= from_lsn:
            apply(frame)
            report.frames += 1
            report.bytes += frame.end - frame.lsn


def _check_ends(report: RecoveryReport, lsns: list[int], from_lsn: int) -> None:
    """Report a log that begins after, or ends before, the position replay was to begin at."""
    first = lsns[0] if lsns else from_lsn
    if from_lsn < first:
        problem = f"nothing is left of the log from LSN {from_lsn} to {first}"
        report.damages.insert(0, Damage(segment_name(from_lsn), 0, first - from_lsn, problem))
    end = report.next_lsn
    if from_lsn > end:
        last = lsns[-1] if lsns else 0
        problem = f"the log ends at LSN {end}, before the snapshot at {from_lsn}"
        report.damages.append(Damage(segment_name(last), end - last, from_lsn - last, problem))


def _indexed_spans(
    disk: Disk, path: str, segment: Segment, next_lsn: int | None, report: RecoveryReport
) -> list[PartitionSpan] | None:
    """What the segment's index file says; None if there is none to be trusted."""
    if next_lsn is None:
        return None
    try:
        return load_spans(disk, path, segment, next_lsn)
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
            disk.unlink(os.path.join(path, name))
    if replayed.segments:
        last, _ = replayed.segments[-1]
        if last.position > SEGMENT_HEADER_BYTES:
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


def _rewrite_tail(disk: Disk, path: str, last: Segment, synced: int) -> int:
    """Write what was accepted of the last segment and may not be synced again; `trim` syncs it."""
    file = disk.open(os.path.join(path, last.name), write=True)
    start = max(synced, SEGMENT_HEADER_BYTES)
    rewrite(file, start, last.position)
    return last.position - start


def trim(disk: Disk, path: str, segment: Segment) -> None:
    """Cut off the tail of a segment that is complete, and sync it. Raises OSError."""
    file = disk.open(os.path.join(path, segment.name), write=True)
    if file.size() > segment.position:
        file.truncate(segment.position)
    file.sync()


def write_index(disk: Disk, path: str, segment: Segment) -> OSError | None:
    """Write the index file of a complete segment. An error is returned: it can be rebuilt."""
    assert segment.growing is not None, "a segment without its index in memory has its file"
    data = segment.growing.encode(segment.header.segment_id, segment.first_lsn, segment.end_lsn)
    try:
        write_atomically(disk, path, index_name(segment.first_lsn), [data])
    except OSError as error:
        return error
    return None


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
