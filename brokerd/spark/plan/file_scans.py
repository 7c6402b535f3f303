# Tests: tests/spark/test_file_scans.py
"""Divides archive files into scans by Spark's own Parquet reader, and names their conditions.

A scan has files that need the same conditions. Most files need none: their names and their
statistics in the Delta log prove that each row is selected.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from brokerd.archive.contract.layout import BUCKETS, RecordsName, bucket_of, parse_records_name
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.parquet.column_facts import Text
from brokerd.archive.parquet.reader import check_footer
from brokerd.archive.storage.address import Place
from brokerd.spark.plan.predicate import INT64_MAX, UNBOUNDED, Interval, Key, Predicate

TOPIC_BYTES = 64 << 20
"""A further scan of topics has at least so many bytes, because scans take time."""
TOPIC_SCANS_MAX = 8
"""The largest number of scans of one topic a bucket, with the same conditions. The largest topics
of each bucket have them."""


class FileScan(NamedTuple):
    """Files of the archive, and the conditions for their rows. No condition is the default."""

    paths: tuple[str, ...]
    """Paths relative to the table."""
    records: int
    """An upper bound of the number of rows."""
    texts: tuple[Text, ...] = ()
    """For each path: what all values of the file are."""
    topics: Mapping[int, tuple[int, str]] = {}
    """By bucket, the id and the name of the topic. It is empty if the files of a bucket may have
    several topics."""
    topic_ids: tuple[int, ...] | None = None
    """Ids of the topics to read. None: all."""
    offsets: Interval = UNBOUNDED
    """Offsets to read of the partitions that ``partition_offsets`` lacks."""
    partition_offsets: Mapping[Key, Interval] = {}
    times_us: Interval = UNBOUNDED
    now_us: int | None = None
    """Records that expire at this time or earlier are skipped. None: no record expires."""


class FileScans(NamedTuple):
    """Archive files, divided by how Spark reads them."""

    scans: tuple[FileScan, ...]
    rest: pa.Table
    """Files that need other conditions; `brokerd.spark.read` reads them."""


class _Checks(NamedTuple):
    """Conditions that the rows of a file need."""

    topics: bool = False
    offsets: bool = False
    partition_offsets: bool = False
    times: bool = False
    expiry: bool = False

    def __or__(self, other: _Checks) -> _Checks:
        return _Checks(*(one or two for one, two in zip(self, other, strict=True)))


class _File(NamedTuple):
    name: RecordsName
    path: str
    size: int
    rows: int
    text: Text


def check_footers(table: Place, files: pa.Table) -> None:
    """Verify the footers of files. Spark verifies the pages, and trusts the footer.

    :raises FileNotFoundError: a file was deleted since the snapshot.
    :raises BrokerdError: a file cannot be read, or is damaged.
    """
    for path, size in zip(files["path"].to_pylist(), files["size"].to_pylist(), strict=True):
        try:
            check_footer(table, path, size)
        except ArchiveUnavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise


def scan_files(files: pa.Table, predicate: Predicate, name_of: Callable[[int], str]) -> FileScans:
    """Divide matching files into scans.

    :param files: `brokerd.spark.plan.archive_files.match_files` with the same predicate.
    :param name_of: returns the name of a topic.
    """
    return _Divider(predicate, name_of).divide(files)


class _Divider:
    def __init__(self, predicate: Predicate, name_of: Callable[[int], str]) -> None:
        self._predicate = predicate
        self._name_of = name_of
        self._ids: list[list[int]] = [[] for _ in range(BUCKETS)]
        """Ids of selected topics by bucket, in order."""
        for topic_id in predicate.topic_ids:
            self._ids[bucket_of(topic_id)].append(topic_id)
        self._keys: list[list[Key]] = [[] for _ in range(BUCKETS)]
        """Partitions with offsets of their own, by bucket, in order."""
        for key in sorted(predicate.partition_offsets):
            self._keys[bucket_of(key[0])].append(key)

    def divide(self, files: pa.Table) -> FileScans:
        groups: dict[bool, list[_File]] = defaultdict(list)
        needed: dict[bool, _Checks] = {}
        plain: list[_File] = []
        rest = []
        names = ("path", "size", "rows", "first_time_us", "last_time_us", "first_lsn", "last_lsn")
        rows = zip(*(files[name].to_pylist() for name in (*names, "expiring", "text")), strict=True)
        for at, (path, size, count, *times_us, first_lsn, last_lsn, expiring, text) in enumerate(
            rows
        ):
            name = parse_records_name(path)
            if not self._is_known(name) or not self._predicate.lsns.contains(first_lsn, last_lsn):
                rest.append(at)
                continue
            file = _File(name, path, size, count, Text(text))
            checks = self._key_checks(name)._replace(
                times=not self._predicate.times_us.contains(times_us[0], times_us[1]),
                expiry=expiring > 0,
            )
            if any(checks):
                groups[checks.partition_offsets].append(file)
                known = needed.get(checks.partition_offsets, _Checks())
                needed[checks.partition_offsets] = known | checks
            else:
                plain.append(file)
        scans = list(self._by_topic(plain, _Checks()))
        for has_offsets, some in sorted(groups.items()):
            scans += self._by_topic(some, needed[has_offsets])
        return FileScans(tuple(scans), files.take(pa.array(rest, pa.int64())))

    def _is_known(self, name: RecordsName) -> bool:
        """Return whether the ids of a file's topics tell whether they are selected."""
        predicate = self._predicate
        return name.last_topic_id < predicate.first_unknown_id and predicate.partitions is None

    def _key_checks(self, name: RecordsName) -> _Checks:
        """Return the conditions for topics and offsets."""
        predicate = self._predicate
        if name.only is not None:
            key = name.only.topic_id, name.only.partition
            offsets = predicate.offsets_of(*key)
            if offsets is None or offsets.contains(name.only.first, name.only.end - 1):
                return _Checks()
            is_own = key in predicate.partition_offsets
            return _Checks(offsets=not is_own, partition_offsets=is_own)
        first, end = self._id_range(name)
        topics = (name.last_topic_id - name.first_topic_id) // BUCKETS + 1
        low, high = self._key_range(name)
        return _Checks(
            topics=end - first < topics,
            offsets=not predicate.offsets.contains(0, INT64_MAX - 1),
            partition_offsets=low < high,
        )

    def _id_range(self, name: RecordsName) -> tuple[int, int]:
        """Return the places of a file's topics among the selected ones of its bucket."""
        ids = self._ids[name.bucket]
        return bisect_left(ids, name.first_topic_id), bisect_right(ids, name.last_topic_id)

    def _key_range(self, name: RecordsName) -> tuple[int, int]:
        """Return the places of a file's partitions among those with offsets of their own."""
        keys = self._keys[name.bucket]
        first = name.first_topic_id, name.first_partition
        last = name.last_topic_id, name.last_partition
        return bisect_left(keys, first), bisect_right(keys, last)

    def _by_topic(self, files: list[_File], checks: _Checks) -> Iterator[FileScan]:
        """Yield scans of files with the same conditions.

        A scan of one topic a bucket lets Spark skip the files of other topics by their buckets. The
        first has the largest topic of each bucket, the next one the second largest, and so on.
        """
        by_topic: dict[int, list[_File]] = defaultdict(list)
        others = []
        for file in files:
            if file.name.first_topic_id == file.name.last_topic_id:
                by_topic[file.name.first_topic_id].append(file)
            else:
                others.append(file)
        sizes = {topic_id: sum(file.size for file in some) for topic_id, some in by_topic.items()}
        ranks = [0] * BUCKETS
        by_rank: dict[int, list[int]] = defaultdict(list)
        for topic_id in sorted(sizes, key=lambda topic_id: (-sizes[topic_id], topic_id)):
            bucket = bucket_of(topic_id)
            by_rank[ranks[bucket]].append(topic_id)
            ranks[bucket] += 1
        for rank, ids in sorted(by_rank.items()):
            some = [file for topic_id in ids for file in by_topic[topic_id]]
            is_large = sum(sizes[topic_id] for topic_id in ids) >= TOPIC_BYTES
            if rank < TOPIC_SCANS_MAX and (is_large or not rank):
                topics = {
                    bucket_of(topic_id): (topic_id, self._name_of(topic_id)) for topic_id in ids
                }
                yield self._scan(some, checks)._replace(topics=topics)
            else:
                others += some
        if others:
            yield self._scan(others, checks)

    def _scan(self, files: list[_File], checks: _Checks) -> FileScan:
        predicate = self._predicate
        ordered = sorted(files, key=lambda file: (*file.name[:3], file.path))
        return FileScan(
            tuple(file.path for file in ordered),
            sum(file.rows for file in ordered),
            tuple(file.text for file in ordered),
            topic_ids=self._ids_of(files) if checks.topics else None,
            offsets=predicate.offsets if checks.offsets or checks.partition_offsets else UNBOUNDED,
            partition_offsets=self._offsets_of(files) if checks.partition_offsets else {},
            times_us=predicate.times_us if checks.times else UNBOUNDED,
            now_us=predicate.now_us if checks.expiry else None,
        )

    def _ids_of(self, files: list[_File]) -> tuple[int, ...]:
        """Return the selected topics that the files may have."""
        spans = _spans((file.name.bucket, *self._id_range(file.name)) for file in files)
        ids = (self._ids[bucket][low:high] for bucket, (low, high) in spans.items())
        return tuple(sorted(chain.from_iterable(ids)))

    def _offsets_of(self, files: list[_File]) -> dict[Key, Interval]:
        """Return the offsets of the partitions that the files may have."""
        spans = _spans((file.name.bucket, *self._key_range(file.name)) for file in files)
        keys = (self._keys[bucket][low:high] for bucket, (low, high) in spans.items())
        return {key: self._predicate.partition_offsets[key] for key in chain.from_iterable(keys)}


def _spans(ranges: Iterable[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
    """Return by bucket the smallest range that covers all of its ranges: bucket, low, high."""
    spans: dict[int, tuple[int, int]] = {}
    for bucket, low, high in ranges:
        if low < high:
            known = spans.get(bucket, (low, high))
            spans[bucket] = min(known[0], low), max(known[1], high)
    return spans
