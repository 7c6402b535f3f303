# Tests: tests/spark/test_streaming.py
"""The offsets up to which a stream has read each partition. No pyspark.

A stream's position is an LSN. The start offset of a partition tells which of its records are
removed, so the stream also needs its own offset in each partition to know which of them it
has read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from brokerd.archive.journal.frame_scan import open_journal
from brokerd.archive.journal.segment_list import first_lsns
from brokerd.archive.parquet.reader import open_file
from brokerd.spark.plan.archive_files import match_files, records_table
from brokerd.spark.plan.log_snapshot import LogSnapshot
from brokerd.spark.plan.predicate import Integers, Key, Predicate
from brokerd.spark.plan.segment_parts import TimedBatches, match_batches, read_batches
from brokerd.spark.plan.shipped_segments import open_index

Positions = Mapping[Key, int]
"""The offset after the last record that was read, by topic id and partition."""


class Removed(NamedTuple):
    """Offsets of a partition that were removed before a stream read them."""

    key: Key
    first: int
    end: int

    @property
    def records(self) -> int:
        """Return the number of the offsets."""
        return self.end - self.first


def removed_offsets(
    snapshot: LogSnapshot, read: Positions, end: Positions | None = None
) -> list[Removed]:
    """Return the offsets at or after the position of a stream that are below the start offset.

    :param read: the positions of the stream. Deleted topics are left out.
    :param end: positions up to which the removed offsets count; None counts all.
    """
    found = []
    for key, position in sorted(read.items()):
        start = snapshot.topics.starts.get(key, 0)
        if end is not None:
            start = min(start, end.get(key, 0))
        if start > position and key[0] in snapshot.topics.topics:
            found.append(Removed(key, position, start))
    return found


def read_positions(
    location_archive: str, snapshot: LogSnapshot, predicate: Predicate, before: Positions
) -> dict[Key, int]:
    """Return the positions after a stream has read all matching records.

    It reads footers of archive files, indexes of journal files, and keys of the row groups that
    are partly within the LSNs of the predicate.

    :param before: positions below these LSNs.
    :raises FileNotFoundError: a file was deleted since the snapshot.
    :raises BrokerdError: a file cannot be read.
    """
    topics, starts = snapshot.topics.topics, snapshot.topics.starts
    found = {
        (topic_id, partition): max(
            before.get((topic_id, partition), 0), starts.get((topic_id, partition), 0)
        )
        for topic_id in predicate.topic_ids
        for partition in range(topics[topic_id].partitions)
    }
    for key, end in (
        *_archive_ends(location_archive, snapshot, predicate),
        *_journal_ends(snapshot, predicate),
    ):
        if key in found:
            found[key] = max(found[key], end)
    return found


def _archive_ends(
    address: str, snapshot: LogSnapshot, predicate: Predicate
) -> Iterator[tuple[Key, int]]:
    archive = snapshot.archive
    if archive is None or predicate.lsns.first >= archive.records_lsn:
        return
    files = match_files(archive.files, predicate)
    columns = (files[name].to_pylist() for name in ("path", "size", "last_lsn"))
    for path, size, last_lsn in zip(*columns, strict=True):
        file = open_file(records_table(address), path, size)
        if last_lsn < predicate.lsns.end:
            for topic_id, partition, _, end in file.ranges.tolist():
                yield (topic_id, partition), end
            continue
        for group in range(len(file.groups)):
            if predicate.lsns.overlaps(*file.lsns(group)):
                rows = file.read_table([group], ("topic_id", "partition", "offset", "lsn"))
                mask = predicate.lsns.mask(rows["lsn"].to_numpy())
                topic_id, partition, offset = (
                    rows[name].to_numpy()[mask].astype(np.int64)
                    for name in ("topic_id", "partition", "offset")
                )
                yield from _ends(topic_id, partition, offset + 1)


def _journal_ends(snapshot: LogSnapshot, predicate: Predicate) -> Iterator[tuple[Key, int]]:
    journal = snapshot.journal
    for file in journal.files:
        is_archived = file.first_lsn < snapshot.archived_lsn
        if is_archived or not predicate.lsns.overlaps(file.first_lsn, file.end_lsn - 1):
            continue
        scan = journal.scans.get(file.path)
        if scan is None:
            timed = read_batches(open_index(file.path))
        else:
            timed = TimedBatches(scan.batches, scan.times_us)
        batches = timed.batches.select(match_batches(timed, file.first_lsn, predicate))
        yield from _ends(batches.topic_id, batches.partition, batches.base_offset + batches.count)


def _ends(topic_id: Integers, partition: Integers, end: Integers) -> Iterator[tuple[Key, int]]:
    """Yield the largest end of each partition."""
    keys, at = np.unique(np.stack([topic_id, partition]), axis=1, return_inverse=True)
    ends = np.zeros(keys.shape[1], np.int64)
    np.maximum.at(ends, at.reshape(-1), end)
    for topic, part, largest in zip(*keys.tolist(), ends.tolist(), strict=True):
        yield (topic, part), largest


# -- Identity ------------------------------------------------------------------------------------


class SegmentMark(NamedTuple):
    """The segment that holds the byte before a position of a stream."""

    first_lsn: int
    segment_id: str


def segment_before(wal: Path, lsn: int) -> SegmentMark | None:
    """Return the segment with the byte before an LSN; None if no file of the journal has it.

    Raises OSError and BrokerdError.
    """
    first = max((first for first in first_lsns(wal) if first < lsn), default=None)
    if first is None:
        return None
    path = wal / f"{first:020d}.wal"
    if first + path.stat().st_size < lsn:
        return None
    fd, file = open_journal(path)
    os.close(fd)
    return SegmentMark(first, file.segment_id.hex())
