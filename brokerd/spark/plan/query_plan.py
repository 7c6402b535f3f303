# Tests: tests/spark/test_query_plan.py
"""The plan of a query: its splits, each with parts of archive files or of journal files.

Planning reads no record. No pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from brokerd.archive.contract.topic_names import TopicNames
from brokerd.archive.journal.segment_list import damaged_places
from brokerd.errors import BrokerdError
from brokerd.spark.location import Location
from brokerd.spark.plan.archive_files import (
    FilePart,
    match_files,
    records_table,
    split_files,
)
from brokerd.spark.plan.as_of import check_files, snapshot_as_of
from brokerd.spark.plan.file_scans import FileScan, check_footers, scan_files
from brokerd.spark.plan.log_snapshot import (
    TRIES,
    LogSnapshot,
    files_deleted_error,
    take_snapshot,
)
from brokerd.spark.plan.predicate import (
    INT64_MAX,
    INT64_MIN,
    Interval,
    Narrower,
    Predicate,
)
from brokerd.spark.plan.segment_parts import SegmentPart, split_segment
from brokerd.spark.plan.topic_state import TopicState
from brokerd.spark.request import Request

PARTS_MAX = 64
"""The largest number of files that a task has open."""


class ShortLog(BrokerdError):
    """The log ends before the end LSN of a query."""


class Count(NamedTuple):
    """The amount that a query reads, and the amount that exists."""

    read: int = 0
    total: int = 0


class Split(NamedTuple):
    """The input of one task. It is pickled, and small."""

    bytes: int
    """The approximate size."""
    records: int
    """An approximate upper bound of the number of rows."""
    location: Location
    log_id: str
    columns: tuple[str, ...]
    predicate: Predicate
    files: tuple[FilePart, ...] = ()
    """Parts of archive files."""
    segments: tuple[SegmentPart, ...] = ()
    """Parts of journal files."""
    names: Mapping[int, str] = {}
    """Topic names of the journal files, by id."""
    damage: Mapping[str, Sequence[tuple[int, int]]] = {}
    """Known damage of the journal files."""
    version: int | None = None
    """The earlier version of the archive that the query reads; None: the newest."""


class Plan(NamedTuple):
    """The plan of a query."""

    log_id: str
    splits: tuple[Split, ...]
    end_lsn: int
    """The end LSN of the rows: the durable end of the journal, or the request's end if lower."""
    records: int
    """An upper bound of the number of rows."""
    files: Count
    """Archive files."""
    file_bytes: Count
    segments: Count
    """Journal files."""
    segment_bytes: Count
    """Batches of records in journal files."""
    scans: tuple[FileScan, ...] = ()
    """Archive files that no split has, because Spark's own reader reads them."""


def plan_query(location: Location, request: Request, now_us: int, has_scans: bool = False) -> Plan:
    """Divide a query into splits, and return the plan.

    :param now_us: records that expire at this time or earlier are skipped.
    :param has_scans: whether Spark's own reader reads archive files where it can.
    :raises BrokerdError: the log cannot be read, or does not fit the request.
    """
    for _ in range(TRIES):
        snapshot = take_snapshot(location, request.tail)
        if request.as_of is not None:
            past = snapshot_as_of(location, snapshot, request.as_of)
            snapshot, now_us = past.snapshot, min(now_us, past.time_us)
            request = request._replace(end_lsn=request.as_of.lsn)
        try:
            return _Planner(location, request, snapshot, now_us, has_scans).plan()
        except FileNotFoundError:
            continue
    raise files_deleted_error(location)


class _Planner:
    """Divides a snapshot into splits."""

    def __init__(
        self,
        location: Location,
        request: Request,
        snapshot: LogSnapshot,
        now_us: int,
        has_scans: bool,
    ) -> None:
        table = records_table(location.archive)
        self._scanned_table = table if has_scans else None
        self._location = location
        self._request = request
        self._snapshot = snapshot
        self._end_lsn = snapshot.end_lsn
        if request.end_lsn is not None:
            if request.end_lsn > snapshot.end_lsn:
                raise ShortLog(
                    f"the log ends at LSN {snapshot.end_lsn}, before LSN {request.end_lsn}, which "
                    "the query reads up to: an older copy of the log was restored, or its open "
                    "file is not read"
                )
            self._end_lsn = request.end_lsn
        if not snapshot.has_bounds and (request.from_offsets or request.to_offsets):
            raise BrokerdError(
                f"{location.archive} lacks its bounds, so its topics are unknown: run "
                "brokerd-rollup, which writes the bounds, or give no offsets by topic"
            )
        allow_unknown = request.unknown_topics or not snapshot.has_bounds
        request = request._replace(unknown_topics=allow_unknown)
        self._predicate = build_predicate(request, snapshot.topics, now_us)

    def plan(self) -> Plan:
        """Return the plan. Raises FileNotFoundError if a file was deleted since the snapshot."""
        scans, file_parts, files, file_bytes = self._archive_parts()
        segment_parts, segments, segment_bytes = self._journal_parts()
        splits = [*self._archive_splits(file_parts), *self._journal_splits(segment_parts)]
        return Plan(
            self._snapshot.log_id,
            tuple(splits),
            self._end_lsn,
            sum(split.records for split in splits) + sum(scan.records for scan in scans),
            files,
            file_bytes,
            segments,
            segment_bytes,
            scans,
        )

    # -- Archive ---------------------------------------------------------------------------------

    def _archive_parts(self) -> tuple[tuple[FileScan, ...], list[FilePart], Count, Count]:
        archive, request = self._snapshot.archive, self._request
        if archive is None or request.first_lsn >= archive.records_lsn or not request.archived:
            sizes = () if archive is None else archive.files["size"].to_pylist()
            return (), [], Count(0, len(sizes)), Count(0, sum(sizes))
        files = rest = match_files(archive.files, self._predicate)
        if request.as_of is not None:
            check_files(self._location, archive.version, files)
        scans: tuple[FileScan, ...] = ()
        if self._scanned_table is not None:
            scans, rest = scan_files(files, self._predicate, self._snapshot.topics.name_of)
            check_footers(self._scanned_table, files)
        return (
            scans,
            split_files(rest, request.partition_bytes),
            Count(len(files), len(archive.files)),
            Count(*(sum(one["size"].to_pylist()) for one in (files, archive.files))),
        )

    def _archive_splits(self, parts: Sequence[FilePart]) -> Iterator[Split]:
        narrower = Narrower(self._predicate)
        for group in pack(parts, self._request.partition_bytes):
            low = min(part.topic_ids[0] for part in group)
            high = max(part.topic_ids[1] for part in group)
            yield self._split(group, narrower.of_topics(low, high))._replace(files=tuple(group))

    def _split(self, parts: Sequence[FilePart | SegmentPart], predicate: Predicate) -> Split:
        archive, is_past = self._snapshot.archive, self._request.as_of is not None
        return Split(
            sum(part.bytes for part in parts),
            sum(part.records for part in parts),
            self._location,
            self._snapshot.log_id,
            self._request.columns,
            predicate,
            version=archive.version if is_past and archive is not None else None,
        )

    # -- Journal ---------------------------------------------------------------------------------

    def _journal_parts(self) -> tuple[list[SegmentPart], Count, Count]:
        journal, predicate = self._snapshot.journal, self._predicate
        parts: list[SegmentPart] = []
        segments = segment_bytes = 0
        files = [file for file in journal.files if file.first_lsn >= self._snapshot.archived_lsn]
        for file in files:
            is_wanted = predicate.lsns.overlaps(file.first_lsn, file.end_lsn - 1)
            if not is_wanted or not self._request.unarchived:
                continue
            scan = journal.scans.get(file.path)
            own = split_segment(file, scan, predicate, self._request.partition_bytes)
            segments += bool(own)
            segment_bytes += sum(part.bytes for part in own)
            parts += own
        total = sum(file.end_lsn - file.first_lsn for file in files)
        return parts, Count(segments, len(files)), Count(segment_bytes, total)

    def _journal_splits(self, parts: Sequence[SegmentPart]) -> Iterator[Split]:
        narrower = Narrower(self._predicate)
        topics, damage = self._snapshot.topics, damaged_places(self._snapshot.bounds)
        for group in pack(parts, self._request.partition_bytes):
            own = {topic_id for part in group for topic_id in part.topic_ids}
            ids = sorted(own)
            predicate = narrower.of_topics(ids[0], ids[-1])
            offsets = predicate.partition_offsets.items()
            predicate = predicate._replace(
                topic_ids=tuple(ids),
                partition_offsets={key: one for key, one in offsets if key[0] in own},
            )
            names = {part.name for part in group}
            yield self._split(group, predicate)._replace(
                segments=tuple(part._replace(topic_ids=()) for part in group),
                names={topic_id: topics.name_of(topic_id) for topic_id in ids},
                damage={name: damage[name] for name in names if name in damage},
            )


class _HasBytes(Protocol):
    @property
    def bytes(self) -> int: ...


_Part = TypeVar("_Part", bound=_HasBytes)


def pack(parts: Iterable[_Part], size: int) -> Iterator[list[_Part]]:
    """Yield groups of neighbouring parts, up to ``size`` bytes and `PARTS_MAX` parts each."""
    group: list[_Part] = []
    total = 0
    for part in parts:
        if group and (total + part.bytes > size or len(group) == PARTS_MAX):
            yield group
            group, total = [], 0
        group.append(part)
        total += part.bytes
    if group:
        yield group


def build_predicate(request: Request, topics: TopicState, now_us: int) -> Predicate:
    """Return the predicate of a request. Raises UnknownTopic."""
    names = TopicNames(request.topics)
    topic_ids = topics.select(names, not request.unknown_topics)
    first_unknown_id = topics.next_topic_id
    if request.only_ids is not None:
        topic_ids = tuple(one for one in topic_ids if one in request.only_ids)
        first_unknown_id = INT64_MAX
    if not request.unknown_topics:
        topics.check_offsets("from", request.from_offsets)
        topics.check_offsets("to", request.to_offsets)
    offsets = Interval(0).intersect(_interval(request.from_offset, request.to_offset))
    partition_offsets = topics.partition_offsets(
        topic_ids, offsets, request.from_offsets, request.to_offsets
    )
    for key, first in request.unread.items():
        known = partition_offsets.get(key, offsets)
        partition_offsets[key] = known.intersect(Interval(first=first))
    return Predicate(
        topic_ids=topic_ids,
        first_unknown_id=first_unknown_id,
        names=names,
        partitions=None,
        offsets=offsets,
        partition_offsets=partition_offsets,
        times_us=_interval(request.from_time_us, request.to_time_us),
        lsns=_interval(request.first_lsn, request.end_lsn),
        now_us=now_us,
    )


def _interval(first: int | None, end: int | None) -> Interval:
    return Interval(INT64_MIN if first is None else first, INT64_MAX if end is None else end)
