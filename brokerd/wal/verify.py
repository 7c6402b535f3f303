# Tests: tests/wal/test_verify.py
"""Checks and lists a log without changing it, whether its broker runs or not.

Needs no lock: it only reads, and what a running broker appends meanwhile is simply not looked at. A
torn tail in the last segment is no damage: it is what a crash, or a write in progress, looks like.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from brokerd.errors import DamagedData
from brokerd.wal.catalog import Segment, index_name, segment_name
from brokerd.wal.disk import Disk
from brokerd.wal.index import MappedIndex
from brokerd.wal.opening import segment_lsns
from brokerd.wal.recovery import (
    Cut,
    Damage,
    RecoveryReport,
    SegmentReplay,
    load_spans,
    read_segment_header,
)
from brokerd.wal.scan import FoundFrame, SegmentScanner, Unreadable
from brokerd.wal.snapshot import SnapshotFile
from brokerd.walformat import EntryKind


@dataclass
class VerifyReport:
    """What was found. ``sound`` is false if anything that was once written is wrong now."""

    segments: int = 0
    frames: int = 0
    entries: int = 0
    records: int = 0
    bytes: int = 0
    next_lsn: int = 0
    torn: Cut | None = None
    damages: list[Damage] = field(default_factory=list)
    indexes: int = 0
    bad_indexes: list[str] = field(default_factory=list)
    """They are rebuilt at the next start."""
    snapshots: int = 0
    bad_snapshots: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (self.damages or self.bad_indexes or self.bad_snapshots)


def verify(disk: Disk, wal_path: str, state_path: str) -> VerifyReport:
    """Read every byte of a log, its indexes and its snapshots. Raises NewerFormat, OSError."""
    report = VerifyReport()
    lsns = segment_lsns(disk, wal_path)
    for first_lsn, next_lsn in zip(lsns, [*lsns, None][1:], strict=True):
        report.segments += 1
        _verify_segment(disk, wal_path, first_lsn, next_lsn, report)
    for name in disk.list(state_path):
        if name.endswith(".snap"):
            _verify_snapshot(disk, state_path, name, report)
    return report


def _verify_segment(
    disk: Disk, path: str, first_lsn: int, next_lsn: int | None, report: VerifyReport
) -> None:
    name = segment_name(first_lsn)
    file = disk.open(os.path.join(path, name))
    expected_end = None if next_lsn is None else next_lsn - first_lsn
    try:
        header, problem = read_segment_header(file, name)
    except DamagedData as error:
        report.damages.append(Damage(name, 0, expected_end or file.size(), str(error)))
        return
    if problem is not None:
        report.damages.append(Damage(name, 0, 64, problem))
    segment = Segment(header)
    found = RecoveryReport(damages=report.damages)
    for frame in SegmentReplay(file, segment, found, expected_end).frames():
        report.frames += 1
        report.bytes += frame.end - frame.lsn
        report.entries += len(frame.entries)
        report.records += sum(e.count for e in frame.entries if e.kind == EntryKind.RECORDS)
    report.torn = found.cut
    report.next_lsn = segment.end_lsn
    if index_name(first_lsn) in disk.list(path):
        _verify_index(disk, path, segment, report)


def _verify_index(disk: Disk, path: str, segment: Segment, report: VerifyReport) -> None:
    report.indexes += 1
    name = index_name(segment.first_lsn)
    try:
        load_spans(disk, path, segment, segment.end_lsn)
        index = MappedIndex(disk.open(os.path.join(path, name)).map())
    except DamagedData as error:
        report.bad_indexes.append(f"{name}: {error}")
        return
    assert segment.growing is not None, "the replay made an index"
    for span in segment.growing.spans():
        said = index.rows(span.topic_id, span.partition)
        rows = segment.growing.rows(span.topic_id, span.partition)
        if said is None or rows is None or list(map(list, said)) != list(map(list, rows)):
            report.bad_indexes.append(
                f"{name}: topic id {span.topic_id} partition {span.partition} is not what the "
                "segment holds"
            )


def _verify_snapshot(disk: Disk, path: str, name: str, report: VerifyReport) -> None:
    try:
        file = disk.open(os.path.join(path, name))
    except FileNotFoundError:
        return  # a running broker deleted it meanwhile
    report.snapshots += 1
    try:
        for _ in SnapshotFile(file, name).chunks():
            pass
    except DamagedData as error:
        report.bad_snapshots.append(str(error))


def walk(disk: Disk, path: str, from_lsn: int = 0) -> Iterator[tuple[str, FoundFrame | Unreadable]]:
    """Everything found in the segments, with the file's name, from ``from_lsn`` on.

    A stretch of zeros at the end of a segment is left out. Raises DamagedData for a segment that
    cannot be read at all, NewerFormat, OSError.
    """
    lsns = segment_lsns(disk, path)
    for first_lsn, next_lsn in zip(lsns, [*lsns, None][1:], strict=True):
        if next_lsn is not None and next_lsn <= from_lsn:
            continue
        name = segment_name(first_lsn)
        file = disk.open(os.path.join(path, name))
        header, _ = read_segment_header(file, name)
        stop = file.size() if next_lsn is None else min(file.size(), next_lsn - first_lsn)
        for found in SegmentScanner(file, header, name, stop).scan():
            is_end = isinstance(found, Unreadable) and found.zeros and found.end == stop
            if first_lsn + found.position >= from_lsn and not is_end:
                yield name, found
