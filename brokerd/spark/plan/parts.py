# Tests: tests/spark/test_parts.py
"""Pieces of journal files that a query reads, found by where their batches lie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brokerd.archive.journal.frame_scan import Walked
from brokerd.archive.journal.sealed import Batches, SealedSegment, batches_of
from brokerd.spark.plan.journal import File
from brokerd.spark.plan.predicate import Integers, Mask, Predicate
from brokerd.spark.read.shipped_segments import open_index
from brokerd.walformat import ENTRY_HEADER_BYTES


class Part(NamedTuple):
    """A piece of a file of the journal; goes to other processes."""

    file: File
    first: int
    """Position of its first frame, or batch if the file has an index."""
    end: int
    """Just past its last batch that is wanted, if the file has an index; else what is read goes on
    to the next part, or to the end of the file."""
    bytes: int
    """Of the batches that are wanted."""
    records: int
    """In these batches."""
    topic_ids: tuple[int, ...]
    """Of these batches, in order, while a plan is made; a split has them all in its sieve."""

    @property
    def name(self) -> str:
        """What the file is called in the journal."""
        return f"{self.file.first_lsn:020d}.wal"

    @property
    def lsns(self) -> tuple[int, int]:
        return self.file.first_lsn + self.first, self.file.first_lsn + self.end


class Times(NamedTuple):
    """Batches with the broker times of their frames."""

    batches: Batches
    times_us: Integers


def batches_with_times(segment: SealedSegment) -> Times:
    """All batches of a file with an index."""
    return Times(batches_of(segment.index), np.asarray(segment.index.all_rows().time_us, np.int64))


def wanted(found: Times, first_lsn: int, sieve: Predicate) -> Mask:
    """Which of some batches of a file have records that may be wanted.

    They are sorted by topic and partition as far as possible.
    """
    batches = found.batches
    low, high = sieve.spans(batches.topic_id, batches.partition, lambda row: "")
    return (
        (batches.base_offset + batches.count > low)
        & (batches.base_offset < high)
        & sieve.lsns.mask(batches.position + first_lsn)
        & sieve.times_us.mask(found.times_us)
    )


def parts_of(file: File, walked: Walked | None, sieve: Predicate, part_bytes: int) -> list[Part]:
    """What is wanted of a file, in pieces of about a size.

    Raises FileNotFoundError if the file is gone, and BrokerdError.
    """
    if walked is None:
        segment = open_index(file.path)
        found = batches_with_times(segment)
        frames = found.batches.position
    else:
        found = Times(walked.batches, walked.times_us)
        frames = walked.frames
    rows = np.flatnonzero(wanted(found, file.first_lsn, sieve))
    rows = rows[np.argsort(found.batches.position[rows], kind="stable")]
    if not len(rows):
        return []
    chosen, frames = found.batches.select(rows), frames[rows]
    size = chosen.body_bytes + ENTRY_HEADER_BYTES
    part = (np.cumsum(size) - size) // part_bytes
    # A frame of a file without an index is not cut: it is walked from its beginning.
    first_of_frame = np.searchsorted(frames, frames)
    heads = np.flatnonzero(np.diff(part[first_of_frame], prepend=-1))
    afters = [*heads[1:].tolist(), len(rows)]
    if walked is None:
        ends = (chosen.position + size)[np.asarray(afters) - 1].tolist()
    else:
        ends = [*frames[heads[1:]].tolist(), file.end_lsn - file.first_lsn]
    return [
        Part(
            file,
            int(frames[head]),
            end,
            int(size[head:after].sum()),
            int(chosen.count[head:after].sum()),
            tuple(np.unique(chosen.topic_id[head:after]).tolist()),
        )
        for head, after, end in zip(heads.tolist(), afters, ends, strict=True)
    ]
