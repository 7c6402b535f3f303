# Tests: tests/spark/test_streaming.py
"""The log as a stream: docs/spark.rst, section "Streams".

Spark stores offsets in the checkpoint. An offset is a JSON object: ``version`` 1, ``log_id``,
``lsn``, and ``from`` if the stream did not begin at the first or last record. A micro-batch has the
records from the LSN of one offset to the LSN of the next (exclusive). A repeated plan gives the
same records, except for records that were removed or have expired since.

Spark calls one reader in one Python process during the whole stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from brokerd.errors import BrokerdError
from brokerd.spark.clock import now_us
from brokerd.spark.errors import hide_traceback
from brokerd.spark.location import Location, open_location
from brokerd.spark.options import EARLIEST, LATEST, add_start, parse_options, stream_request
from brokerd.spark.plan.log_end import LogEnd, batch_end, log_end
from brokerd.spark.plan.query_plan import Plan, plan_query
from brokerd.spark.read.row_format import RowFormat, SplitPartition, row_format
from brokerd.spark.request import Request

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

VERSION = 1


class BadCheckpoint(BrokerdError):
    """A checkpoint belongs to another log, or this version cannot read it."""


class Offset(NamedTuple):
    """The position of a stream."""

    log_id: str
    lsn: int
    start: str | None = None
    """The option ``from`` of the stream's start, if it gives a position."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object for the checkpoint."""
        fields = {"version": VERSION, "log_id": self.log_id, "lsn": self.lsn}
        return fields if self.start is None else {**fields, "from": self.start}


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
    if version != VERSION or not is_valid or not isinstance(start, str | None):
        raise BadCheckpoint(
            f"the stream's checkpoint has an offset that brokerd did not write: {dict(fields)!r}; "
            "use another checkpointLocation"
        )
    return Offset(str(log_id), int(str(lsn)), start)


class _StreamQuery(NamedTuple):
    """The query of a stream."""

    location: Location
    request: Request
    rows: RowFormat
    start: str | None
    max_bytes: int | None


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

    def initialOffset(self) -> dict[str, Any]:
        with hide_traceback():
            query = self._query
            if query.start == LATEST:
                return Offset(*self._end()).as_json()
            start = None if query.start == EARLIEST else query.start
            plan = plan_query(query.location, add_start(query.request, start), now_us())
            return Offset(plan.log_id, _first_lsn(plan), start).as_json()

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
            if isinstance(limit, ReadMaxBytes) and offset.lsn < end.lsn:
                location, request = self._query.location, self._query.request
                end = batch_end(location, offset.lsn, limit.max_bytes, request.tail)
            lsn = end.lsn if self._last_lsn is None else min(end.lsn, self._last_lsn)
            return offset._replace(lsn=max(offset.lsn, lsn)).as_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        with hide_traceback():
            return Offset(*self._end()).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with hide_traceback():
            first, last = parse_offset(start), parse_offset(end)
            self._check(last, self._end())
            if first.lsn >= last.lsn:
                return []
            query = self._query
            request = query.rows.add_columns(add_start(query.request, last.start))
            request = request._replace(first_lsn=first.lsn, end_lsn=last.lsn, tail=True)
            plan = plan_query(query.location, request, now_us())
            return [SplitPartition(split) for split in plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._query.rows.read(partition, self._schema)

    @cached_property
    def _query(self) -> _StreamQuery:
        options = parse_options(self._given)
        rows = row_format(options)
        rows.check(self._schema)
        location = open_location(options.path, options.archive)
        request = stream_request(options)
        return _StreamQuery(location, request, rows, options.start, options.max_bytes)

    def _end(self) -> LogEnd:
        return log_end(self._query.location, self._query.request.tail)

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


def _first_lsn(plan: Plan) -> int:
    """Return an LSN below every row of a plan, so that a stream begins without empty batches."""
    files = [part.lsns[0] for split in plan.splits for part in split.files]
    segments = [part.lsns[0] for split in plan.splits for part in split.segments]
    return max(0, min(files + segments, default=plan.end_lsn))
