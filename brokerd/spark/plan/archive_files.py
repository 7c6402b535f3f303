# Tests: tests/spark/test_archive_files.py
"""The files of the archive's table of records that a query reads.

The names of files and their statistics in the Delta log rule out most files
(docs/archive-format.rst).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from brokerd.archive.contract.layout import (
    BUCKETS,
    RECORDS,
    RecordsName,
    bucket_of,
    parse_records_name,
)
from brokerd.archive.contract.pairing import TableState
from brokerd.archive.delta.log_reader import DeltaLog, read_log_id
from brokerd.archive.storage.address import Place, place_of
from brokerd.spark.plan.predicate import INT64_MAX, Interval, Mask, Predicate

SPLIT_ABOVE = 1.5
"""A file of more than so many splits is divided."""
ROW_BYTES = 64
"""The size of a row in memory, besides its keys, values and metadata."""
_LOG_LOCK = threading.Lock()
"""Guards every `DeltaLog`, which serves one thread at a time."""


class ArchiveVersion(NamedTuple):
    """One version of an archive's table of records."""

    state: TableState
    version: int
    files: pa.Table
    """The live files: `brokerd.archive.delta.log_files.Snapshot.files`."""

    @property
    def records_lsn(self) -> int:
        """Return the LSN below which the table holds the log."""
        return self.state.lsn


def read_archive(address: str, log_id: str) -> ArchiveVersion | None:
    """Read the newest version. Return None if the archive has no table yet.

    Raises ArchiveUnavailable, ForeignArchive and NewerFormat.
    """
    with _LOG_LOCK:
        snapshot = _delta_log(address, log_id).read()
    if snapshot is None:
        return None
    return ArchiveVersion(snapshot.state, snapshot.version, snapshot.files)


@lru_cache(maxsize=4)
def _delta_log(address: str, log_id: str) -> DeltaLog:
    """Return the Delta log of an archive's table. Each read reads only new commits."""
    return DeltaLog(records_table(address), log_id)


def records_table(address: str) -> Place:
    """Return the place of the table of records in an archive."""
    return place_of(address) / RECORDS.name


def read_archive_log_id(address: str) -> str | None:
    """Read the id of an archive's log. Return None if the archive does not exist.

    Raises ArchiveUnavailable and ForeignArchive.
    """
    return read_log_id(records_table(address))


# -- Which files ---------------------------------------------------------------------------------


class FilePart(NamedTuple):
    """A file, or a range of its offsets. It is pickled."""

    path: str
    """The path relative to the table."""
    size: int
    """The size of the file."""
    bytes: int
    """The approximate size of the part's rows in memory."""
    records: int
    """The approximate number of its rows."""
    topic_ids: tuple[int, int]
    """The smallest and the largest topic id that the file may hold."""
    offsets: Interval
    """The offsets to read, for a file of one partition."""
    lsns: tuple[int, int]
    """The smallest and the largest LSN of the file's rows."""


def match_files(files: pa.Table, predicate: Predicate) -> pa.Table:
    """Return the files that may hold matching rows.

    :raises ForeignArchive: a file has a name that brokerd does not write.
    """
    mask = (
        (files["rows"].to_numpy() > 0)
        & _overlaps(files, "first_time_us", "last_time_us", predicate.times_us)
        & _overlaps(files, "first_lsn", "last_lsn", predicate.lsns)
    )
    rows = np.flatnonzero(mask)
    names = _NameFilter(predicate)
    paths = files["path"].take(pa.array(rows)).to_pylist()
    matching = [row for row, path in zip(rows, paths, strict=True) if names.may_match(path)]
    return files.take(pa.array(matching, pa.int64()))


def _overlaps(files: pa.Table, first: str, last: str, wanted: Interval) -> Mask:
    mask: Mask = (files[first].to_numpy() < wanted.end) & (files[last].to_numpy() >= wanted.first)
    return mask


class _NameFilter:
    """Decides by a file's name whether the file may hold matching rows."""

    def __init__(self, predicate: Predicate) -> None:
        self._predicate = predicate
        self._ids: list[list[int]] = [[] for _ in range(BUCKETS)]
        for topic_id in predicate.topic_ids:
            self._ids[bucket_of(topic_id)].append(topic_id)

    def may_match(self, path: str) -> bool:
        name = parse_records_name(path)
        if name.only is not None:
            offsets = self._predicate.offsets_of(name.only.topic_id, name.only.partition)
            return offsets is not None and offsets.overlaps(name.only.first, name.only.end - 1)
        return self._shared_may_match(name)

    def _shared_may_match(self, name: RecordsName) -> bool:
        predicate = self._predicate
        last_unknown_id = min(name.last_topic_id, predicate.last_unknown_id)
        if last_unknown_id >= max(name.first_topic_id, predicate.first_unknown_id):
            return True
        ids = self._ids[name.bucket]
        at = bisect_left(ids, name.first_topic_id)
        if at == len(ids) or ids[at] > name.last_topic_id:
            return False
        partitions = self._predicate.partitions
        if partitions is None or name.first_topic_id != name.last_topic_id:
            return True
        return any(name.first_partition <= one <= name.last_partition for one in partitions)


def split_files(files: pa.Table, part_bytes: int) -> list[FilePart]:
    """Divide files into parts of about ``part_bytes`` at most, in order of topic and partition.

    The size is that of the rows in memory, as in the journal: files are compressed.

    Only a file of one partition is divided, between offsets. So a part's rows can be found in other
    files of a newer version.
    """
    columns = [
        files[name].to_pylist()
        for name in ("path", "size", "rows", "content", "first_lsn", "last_lsn")
    ]
    parts: list[tuple[tuple[int, ...], FilePart]] = []
    for path, size, rows, content, first_lsn, last_lsn in zip(*columns, strict=True):
        weight = max(size, content + ROW_BYTES * rows)
        name = parse_records_name(path)
        key = name.bucket, name.first_topic_id, name.first_partition, first_lsn
        ids = name.first_topic_id, name.last_topic_id
        ranges = [Interval(0, INT64_MAX)]
        if name.only is not None:
            count = 1 if weight <= SPLIT_ABOVE * part_bytes else -(-weight // part_bytes)
            ranges = _divide(name.only.first, name.only.end, count)
        for offsets in ranges:
            part = FilePart(
                path,
                size,
                weight // len(ranges),
                -(-rows // len(ranges)),
                ids,
                offsets,
                (first_lsn, last_lsn),
            )
            parts.append(((*key, offsets.first), part))
    return [part for _, part in sorted(parts)]


def _divide(first: int, end: int, count: int) -> list[Interval]:
    count = min(count, end - first)
    edges = [first + (end - first) * at // count for at in range(count + 1)]
    return [Interval(low, high) for low, high in pairwise(edges)]
