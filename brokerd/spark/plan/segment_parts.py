# Tests: tests/spark/test_segment_parts.py
"""The parts of journal files that a query reads, by the positions of their batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brokerd.archive.journal.frame_scan import ScannedFrames
from brokerd.archive.journal.sealed import Batches, SealedSegment, batches_of
from brokerd.spark.plan.journal import SegmentFile
from brokerd.spark.plan.predicate import Integers, Mask, Predicate
from brokerd.spark.plan.shipped_segments import open_index
from brokerd.walformat import ENTRY_HEADER_BYTES


class SegmentPart(NamedTuple):
    """A part of a journal file. It is pickled."""

    file: SegmentFile
    first: int
    """The position of its first batch if the file has an index, else of its first frame."""
    end: int
    """The end of its last matching batch if the file has an index. Else the first position of the
    next part, or the end of the file."""
    bytes: int
    """The size of its matching batches."""
    records: int
    """The number of records in these batches."""
    topic_ids: tuple[int, ...]
    """The topic ids of these batches, in order. Empty in a split: its predicate has the topics."""

    @property
    def name(self) -> str:
        """Return the name of the file in the journal."""
        return f"{self.file.first_lsn:020d}.wal"

    @property
    def lsns(self) -> tuple[int, int]:
        return self.file.first_lsn + self.first, self.file.first_lsn + self.end


class TimedBatches(NamedTuple):
    """Batches, with the broker times of their frames."""

    batches: Batches
    times_us: Integers


def read_batches(segment: SealedSegment) -> TimedBatches:
    """Return all batches of a file with an index."""
    times_us = np.asarray(segment.index.all_rows().time_us, np.int64)
    return TimedBatches(batches_of(segment.index), times_us)


def match_batches(timed: TimedBatches, first_lsn: int, predicate: Predicate) -> Mask:
    """Return a mask of the batches of a file that may have matching records.

    It is fast for batches sorted by topic and partition.
    """
    batches = timed.batches
    low, high = predicate.offset_bounds(batches.topic_id, batches.partition, lambda row: "")
    return (
        (batches.base_offset + batches.count > low)
        & (batches.base_offset < high)
        & predicate.lsns.mask(batches.position + first_lsn)
        & predicate.times_us.mask(timed.times_us)
    )


def split_segment(
    file: SegmentFile, scan: ScannedFrames | None, predicate: Predicate, part_bytes: int
) -> list[SegmentPart]:
    """Divide the matching batches of a file into parts of about ``part_bytes``.

    :param scan: the frames of a file without an index.
    :raises FileNotFoundError: the file was deleted.
    :raises BrokerdError: the file cannot be read.
    """
    if scan is None:
        timed = read_batches(open_index(file.path))
        frames = timed.batches.position
    else:
        timed = TimedBatches(scan.batches, scan.times_us)
        frames = scan.frames
    rows = np.flatnonzero(match_batches(timed, file.first_lsn, predicate))
    rows = rows[np.argsort(timed.batches.position[rows], kind="stable")]
    if not len(rows):
        return []
    batches, frames = timed.batches.select(rows), frames[rows]
    size = batches.body_bytes + ENTRY_HEADER_BYTES
    part = (np.cumsum(size) - size) // part_bytes
    # A frame of a file without an index is not divided: reading begins at its header.
    first_of_frame = np.searchsorted(frames, frames)
    heads = np.flatnonzero(np.diff(part[first_of_frame], prepend=-1))
    next_heads = [*heads[1:].tolist(), len(rows)]
    if scan is None:
        ends = (batches.position + size)[np.asarray(next_heads) - 1].tolist()
    else:
        ends = [*frames[heads[1:]].tolist(), file.end_lsn - file.first_lsn]
    return [
        SegmentPart(
            file,
            int(frames[head]),
            end,
            int(size[head:next_head].sum()),
            int(batches.count[head:next_head].sum()),
            tuple(np.unique(batches.topic_id[head:next_head]).tolist()),
        )
        for head, next_head, end in zip(heads.tolist(), next_heads, ends, strict=True)
    ]
