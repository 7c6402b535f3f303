# Tests: tests/spark/test_streaming.py
"""The log as a stream: docs/spark.rst, section "Streams".

Spark stores offsets in the checkpoint. An offset is a JSON object, which docs/spark.rst describes.
A micro-batch has the records from the LSN of one offset to the LSN of the next (exclusive), and the
earlier records of topics that the first offset lacks. A repeated plan gives the same records,
except for records that were removed or have expired since.

Spark calls one reader in one Python process during the whole stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from brokerd.errors import BrokerdError, escaped
from brokerd.spark.clock import now_us
from brokerd.spark.errors import hide_traceback
from brokerd.spark.location import WAL, Location, open_location
from brokerd.spark.options import EARLIEST, LATEST, add_start, parse_options, stream_request
from brokerd.spark.plan.log_end import LogEnd, batch_end, log_end
from brokerd.spark.plan.log_snapshot import (
    TRIES,
    LogSnapshot,
    files_deleted_error,
    readable,
    take_snapshot,
)
from brokerd.spark.plan.positions import (
    Positions,
    Removed,
    SegmentMark,
    read_positions,
    removed_offsets,
    segment_before,
)
from brokerd.spark.plan.predicate import Interval, Key
from brokerd.spark.plan.query_plan import Plan, build_predicate, plan_query
from brokerd.spark.read.row_format import RowFormat, row_format
from brokerd.spark.request import Request
from brokerd.spark.stream_report import Report, StreamReporter, report_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

VERSION = 2
_WITHOUT_POSITIONS = 1
"""The version of offsets that lack the positions of partitions."""


class DataLost(BrokerdError):
    """Records were removed before a stream read them."""


class BadCheckpoint(BrokerdError):
    """A checkpoint belongs to another log, or this version cannot read it."""


class Offset(NamedTuple):
    """The position of a stream."""

    log_id: str
    lsn: int
    start: str | None = None
    """The option ``from`` of the stream's start, if it gives a position."""
    first_lsn: int = 0
    """The LSN from which the stream reads further topics: 0, or the end of the log at its start."""
    segment: SegmentMark | None = None
    """The segment with the byte before ``lsn``, if the journal had it."""
    positions: Positions | None = None
    """The positions of all partitions that the stream reads; None if they are not known."""
    left: Mapping[Key, int] = {}
    """The positions of partitions that the stream has read and reads no more."""
    lost: int = 0
    """The number of records that were removed before the stream read them."""

    @property
    def read(self) -> Positions:
        """The positions of all partitions that the stream has read, now or earlier."""
        return {**self.left, **(self.positions or {})}

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object for the checkpoint."""
        fields: dict[str, Any] = {"version": VERSION, "log_id": self.log_id, "lsn": self.lsn}
        if self.start is not None:
            fields["from"] = self.start
        fields["first_lsn"] = self.first_lsn
        if self.segment is not None:
            fields["segment"] = list(self.segment)
        if self.positions is not None:
            fields["next"] = _nested(self.positions)
        if self.left:
            fields["left"] = _nested(self.left)
        fields["lost"] = self.lost
        return fields


def _nested(positions: Positions) -> dict[str, list[int]]:
    """Return positions as JSON: an array by topic id. Partitions have numbers without a gap."""
    found: dict[str, list[int]] = {}
    for (topic_id, _), position in sorted(positions.items()):
        found.setdefault(str(topic_id), []).append(position)
    return found


def _flat(nested: Mapping[str, list[int]]) -> dict[Key, int]:
    return {
        (int(topic_id), partition): int(position)
        for topic_id, positions in nested.items()
        for partition, position in enumerate(positions)
    }


def parse_offset(fields: Mapping[str, Any]) -> Offset:
    """Parse the JSON object of a checkpoint. Raises `BadCheckpoint`."""
    version = fields.get("version")
    if isinstance(version, int) and version > VERSION:
        raise BadCheckpoint(
            f"the stream's checkpoint has version {version}, and this brokerd reads versions up to "
            f"{VERSION}: upgrade the package brokerd that Spark uses"
        )
    log_id, lsn, start = fields.get("log_id"), fields.get("lsn"), fields.get("from")
    is_valid = isinstance(log_id, str) and isinstance(lsn, int) and lsn >= 0
    offset = None
    if version in (VERSION, _WITHOUT_POSITIONS) and is_valid and isinstance(start, str | None):
        offset = Offset(str(log_id), int(str(lsn)), start)
    try:
        if offset is not None and version == VERSION:
            segment = fields.get("segment")
            offset = offset._replace(
                first_lsn=int(fields["first_lsn"]),
                segment=None if segment is None else SegmentMark(int(segment[0]), str(segment[1])),
                positions=_flat(fields["next"]) if "next" in fields else None,
                left=_flat(fields.get("left", {})),
                lost=int(fields["lost"]),
            )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        offset = None
    if offset is None:
        raise BadCheckpoint(
            f"the stream's checkpoint has an offset that brokerd did not write: {dict(fields)!r}; "
            "use another checkpointLocation"
        )
    return offset


class _StreamQuery(NamedTuple):
    """The query of a stream."""

    location: Location
    request: Request
    rows: RowFormat
    start: str | None
    max_bytes: int | None
    fails: bool
    """Whether the stream fails if records were removed before it read them."""


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log as a stream.

    It parses the options on Spark's first call, because Spark 4.3 does not report errors of the
    constructor.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(given)
        self._schema = schema
        self._last_lsn: int | None = None
        """The end LSN of the stream with `Trigger.AvailableNow`, else None."""
        self._uncounted = 0
        """Records of the last micro-batch that were removed after its end was chosen."""
        self._is_first = True
        """Whether the topics of the checkpoint were not yet compared with the options."""
        self._reached: Offset | None = None
        """The end of the last micro-batch, or None before the first one."""

    def initialOffset(self) -> dict[str, Any]:
        with hide_traceback():
            query = self._query
            if query.start == LATEST:
                offset = Offset(*self._end())
            else:
                start = None if query.start == EARLIEST else query.start
                plan = plan_query(query.location, add_start(query.request, start), now_us())
                offset = Offset(plan.log_id, _first_lsn(plan), start)
            offset = offset._replace(segment=self._segment_before(offset.lsn), positions={})
            if query.start == LATEST:
                positions = self._positions_before(offset.lsn)
                offset = offset._replace(first_lsn=offset.lsn, positions=positions)
            return offset.as_json()

    def prepareForTriggerAvailableNow(self) -> None:
        with hide_traceback():
            self._last_lsn = self._end().lsn

    def getDefaultReadLimit(self) -> ReadLimit:
        with hide_traceback():
            max_bytes = self._query.max_bytes
            return ReadAllAvailable() if max_bytes is None else ReadMaxBytes(max_bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with hide_traceback():
            offset = parse_offset(start)
            end = self._end()
            self._check(offset, end)
            self._report(offset)  # Spark has committed the start: an idle stream reports it, too
            if isinstance(limit, ReadMaxBytes) and offset.lsn < end.lsn:
                location, request = self._query.location, self._query.request
                end = batch_end(location, offset.lsn, limit.max_bytes, request.tail)
            lsn = end.lsn if self._last_lsn is None else min(end.lsn, self._last_lsn)
            self._reached = self._advance(offset, max(offset.lsn, lsn))
            return self._reached.as_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        with hide_traceback():
            end = self._end()
            reports = {} if self._reporter is None else self._reporter.status()
            return {**Offset(*end).as_json(), **self._lag(end.lsn), **reports}

    def commit(self, end: dict[str, Any]) -> None:
        with hide_traceback():
            self._report(parse_offset(end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with hide_traceback():
            first, last = parse_offset(start), parse_offset(end)
            self._check(last, self._end())
            if first == last:
                return []
            query = self._query
            self._check_batch(first, last)
            request = query.rows.add_columns(add_start(query.request, last.start))
            request = request._replace(first_lsn=first.lsn, end_lsn=last.lsn, tail=True)
            requests = [request]
            new = self._new_topics(first, last)
            if new and first.lsn > first.first_lsn:
                left = {key: position for key, position in first.left.items() if key[0] in new}
                earlier = request._replace(first_lsn=first.first_lsn, end_lsn=first.lsn)
                requests.append(earlier._replace(only_ids=new, unread=left))
            plans = [plan_query(query.location, one, now_us()) for one in requests]
            splits = [split for plan in plans for split in plan.splits]
            return query.rows.partitions(splits, query.location)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._query.rows.read(partition, self._schema)

    @cached_property
    def _query(self) -> _StreamQuery:
        options = parse_options(self._given)
        rows = row_format(options)
        rows.check(self._schema)
        location = open_location(options.path, options.archive)
        request = stream_request(options)
        fails = options.fail_on_data_loss is not False
        return _StreamQuery(location, request, rows, options.start, options.max_bytes, fails)

    @cached_property
    def _reporter(self) -> StreamReporter | None:
        """The reporter of a named stream, or None."""
        options = parse_options(self._given)
        named = report_options(options.report)
        if named is None:
            return None
        return StreamReporter(named, self._query.location.data_dir, options.request.topics)

    def _report(self, offset: Offset) -> None:
        """Report a position that Spark has committed. Raises `ReportFailed` if the user wants it.

        The positions of partitions are unknown in an archive without bounds, and in an offset of
        an earlier version; then there is no report.
        """
        if self._reporter is not None and offset.positions is not None:
            self._reporter.report(Report(offset.log_id, offset.lsn, offset.positions))

    def _end(self) -> LogEnd:
        return log_end(self._query.location, self._query.request.tail)

    def _lag(self, end_lsn: int) -> dict[str, int]:
        """Return the records and bytes after the last micro-batch, for the query's progress.

        The numbers are upper bounds: the plan counts whole batches and row groups. Planning reads
        no record, and is needed only while the stream is behind.
        """
        reached = self._reached
        if reached is None:
            return {}
        if reached.lsn >= end_lsn:
            return {"lag_records": 0, "lag_bytes": 0}
        request = add_start(self._query.request, reached.start)
        request = request._replace(first_lsn=reached.lsn, end_lsn=end_lsn, tail=True)
        plan = plan_query(self._query.location, request, now_us())
        size = plan.file_bytes.read + plan.segment_bytes.read
        return {"lag_records": plan.records, "lag_bytes": size}

    # -- Positions -------------------------------------------------------------------------------

    def _advance(self, offset: Offset, lsn: int) -> Offset:
        """Return the offset at an LSN, with the positions of all partitions there.

        :raises DataLost: records were removed before the stream read them, and the query fails.
        """
        if lsn == offset.lsn and not self._is_first:
            return offset
        location = self._query.location
        for _ in range(TRIES):
            snapshot = take_snapshot(location)
            if not snapshot.has_bounds:
                return offset._replace(lsn=lsn, positions=None)
            try:
                positions = self._positions(offset, lsn, snapshot)
            except FileNotFoundError:
                continue
            removed = removed_offsets(snapshot, offset.read, positions)
            if removed and self._query.fails:
                raise _lost_error(snapshot, removed)
            left = {
                key: position
                for key, position in offset.read.items()
                if key not in positions and key[0] in snapshot.topics.topics
            }
            uncounted, self._uncounted = self._uncounted, 0
            self._is_first = False
            return offset._replace(
                lsn=lsn,
                segment=self._segment_before(lsn),
                positions=positions,
                left=left,
                lost=offset.lost + sum(one.records for one in removed) + uncounted,
            )
        raise files_deleted_error(location)

    def _positions(self, offset: Offset, lsn: int, snapshot: LogSnapshot) -> dict[Key, int]:
        """Return the positions at an LSN. Raises FileNotFoundError."""
        location, request = self._query.location, self._query.request
        before = offset.positions
        predicate = build_predicate(request, snapshot.topics, now_us())
        known = {key[0] for key in before or {}}
        old = tuple(one for one in predicate.topic_ids if one in known)
        new = tuple(one for one in predicate.topic_ids if one not in known)
        first = 0 if before is None else offset.first_lsn
        found: dict[Key, int] = {}
        for topic_ids, from_lsn in ((old, offset.lsn), (new, first)):
            if topic_ids:
                some = predicate._replace(topic_ids=topic_ids, lsns=Interval(from_lsn, lsn))
                found |= read_positions(location.archive, snapshot, some, offset.read)
        return found

    def _positions_before(self, lsn: int) -> dict[Key, int]:
        """Return the ends of all partitions at an LSN at the end of the log.

        They come from the bounds and the journal after them, so that no file of the archive is
        opened. If the bounds are newer than the LSN, an end may be too high.
        """
        location, request = self._query.location, self._query.request
        for _ in range(TRIES):
            snapshot = take_snapshot(location)
            if not snapshot.has_bounds:
                return {}
            bounds = snapshot.bounds
            ends = {(topic.id, index): one.next for topic, index, one in bounds.partitions()}
            lsns = Interval(bounds.lsn, lsn)
            predicate = build_predicate(request, snapshot.topics, now_us())._replace(lsns=lsns)
            try:
                return read_positions(location.archive, snapshot, predicate, ends)
            except FileNotFoundError:
                continue
        raise files_deleted_error(location)

    def _new_topics(self, first: Offset, last: Offset) -> frozenset[int]:
        """Return the topics that a micro-batch reads from the beginning of the stream on."""
        if first.positions is None or last.positions is None:
            return frozenset()
        return frozenset({key[0] for key in last.positions} - {key[0] for key in first.positions})

    def _check_batch(self, first: Offset, last: Offset) -> None:
        """Count records of a micro-batch that were removed after its end was chosen.

        :raises DataLost: there are some, and the query fails.
        """
        if first.positions is None or last.positions is None:
            return
        snapshot = take_snapshot(self._query.location)
        removed = removed_offsets(snapshot, first.read, last.positions)
        surplus = sum(one.records for one in removed) - (last.lost - first.lost)
        if surplus > 0 and self._query.fails:
            raise _lost_error(snapshot, removed)
        self._uncounted = max(0, surplus)

    def _segment_before(self, lsn: int) -> SegmentMark | None:
        data_dir = self._query.location.data_dir
        if data_dir is None:
            return None
        for _ in range(TRIES):
            with readable(Path(data_dir)):
                try:
                    return segment_before(Path(data_dir, WAL), lsn)
                except FileNotFoundError:
                    continue
        return None

    def _check(self, offset: Offset, end: LogEnd) -> None:
        """Raise `BadCheckpoint` if an offset belongs to another log, or is beyond the end."""
        location = self._query.location
        where = location.data_dir or location.archive
        if offset.log_id != end.log_id:
            raise BadCheckpoint(
                f"the stream's checkpoint is of the log {offset.log_id}, and {where} holds the log "
                f"{end.log_id}: use another checkpointLocation, or load the log it belongs to"
            )
        if offset.lsn > end.lsn and not self._query.request.tail:
            end = log_end(location)  # earlier, the stream may have read the open file
        if offset.lsn > end.lsn:
            raise BadCheckpoint(
                f"the stream's checkpoint is at LSN {offset.lsn}, and {where} ends at LSN "
                f"{end.lsn}: it is an older copy of the log, or an archive that is behind it; "
                "load the log that the stream read, or use another checkpointLocation"
            )
        found = None if offset.segment is None else self._segment_before(offset.lsn)
        if found is not None and found != offset.segment:
            raise BadCheckpoint(
                f"the stream's checkpoint is at LSN {offset.lsn}, where {where} has another "
                "segment than the stream read: an older copy of the log was restored and has "
                "grown past it, so records are missing or differ; use another checkpointLocation"
            )


def _lost_error(snapshot: LogSnapshot, removed: list[Removed]) -> DataLost:
    """Return the error for records that were removed before a stream read them."""
    (topic_id, partition), first, end = max(removed, key=lambda one: one.records)
    name = snapshot.topics.topics[topic_id].name
    more = f", and of {len(removed) - 1} more partitions" if len(removed) > 1 else ""
    total = sum(one.records for one in removed)
    return DataLost(
        f"{total} records were trimmed before the stream read them: offsets {first} to {end - 1} "
        f"of partition {partition} of topic {escaped(name)!r}{more}. Set failOnDataLoss to false "
        "to go on without them, and the topic's retention longer than the longest stop of the "
        "stream"
    )


def _first_lsn(plan: Plan) -> int:
    """Return an LSN below every row of a plan, so that a stream begins without empty batches."""
    files = [part.lsns[0] for split in plan.splits for part in split.files]
    segments = [part.lsns[0] for split in plan.splits for part in split.segments]
    return max(0, min(files + segments, default=plan.end_lsn))
