# Tests: tests/wal/test_verify.py
"""Lists all frames, entries and gaps of a log, sound or not. Read-only, without a lock."""

from __future__ import annotations

from collections.abc import Iterator

from brokerd.wal.deletion.deleted_ranges import LSN_MAX
from brokerd.wal.disk import Disk
from brokerd.wal.read.scanner import ScanFrame, ScanGap, SegmentScanner
from brokerd.wal.recovery.directory import SegmentFile, segment_files


def scan_log(disk: Disk, path: str, from_lsn: int = 0) -> Iterator[tuple[str, ScanFrame | ScanGap]]:
    """Yield frames and gaps from ``from_lsn`` on, each with the name of its file.

    Leaves out zeros at the end of a segment. Raises NewerFormat, OSError.
    """
    for segment in segment_files(disk, path, from_lsn, reached_lsn=LSN_MAX):
        for item in _scan_segment(segment):
            if segment.first_lsn + item.position >= from_lsn:
                yield segment.name, item


def _scan_segment(segment: SegmentFile) -> Iterator[ScanFrame | ScanGap]:
    damage, size = segment.damage, segment.file.size()
    if damage is not None:
        yield ScanGap(damage.position, damage.end, damage.problem, zeros=False)
    if segment.header is not None:
        stop = size if segment.expected_end is None else min(size, segment.expected_end)
        for item in SegmentScanner(segment.file, segment.header, segment.name, stop).scan():
            if not (isinstance(item, ScanGap) and item.zeros and item.end == stop):
                yield item
