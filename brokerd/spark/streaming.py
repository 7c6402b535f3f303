# Tests: tests/spark/test_streaming.py
"""The log as a stream: docs/spark.rst, section "Streams".

An offset, which Spark keeps in the checkpoint, is a JSON object: ``version`` 1, ``log_id``,
``lsn``, and ``from`` if the stream began elsewhere than at the first or last record. A batch
has the records whose LSN is from that of one offset up to, but without, that of the next. So it has
the same ones whenever it is planned, but for those that were removed or expired since.

Spark asks all this of one object in one Python process, for as long as the stream runs.
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
from brokerd.spark.errors import told_plainly
from brokerd.spark.location import Location, open_place
from brokerd.spark.options import EARLIEST, LATEST, began_at, parse_options, stream_request
from brokerd.spark.plan.plan import End, Plan, Request, end_after, end_of, plan
from brokerd.spark.read.rows import Piece, Rows, rows_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

VERSION = 1


class BadCheckpoint(BrokerdError):
    """A checkpoint does not belong to this log, or is none that this version can read."""


class Offset(NamedTuple):
    """How far a stream has got."""

    log_id: str
    lsn: int
    start: str | None = None
    """The option ``from`` that the stream began with, if it takes records from."""

    def as_json(self) -> dict[str, Any]:
        """What Spark keeps."""
        found = {"version": VERSION, "log_id": self.log_id, "lsn": self.lsn}
        return found if self.start is None else {**found, "from": self.start}


def read_offset(found: Mapping[str, Any]) -> Offset:
    """Understand what Spark kept. Raises `BadCheckpoint`."""
    version = found.get("version")
    if isinstance(version, int) and version > VERSION:
        raise BadCheckpoint(
            f"the stream's checkpoint is of version {version}, and this brokerd reads up to "
            f"{VERSION}: upgrade the package brokerd that Spark uses"
        )
    log_id, lsn, start = found.get("log_id"), found.get("lsn"), found.get("from")
    is_sound = isinstance(log_id, str) and isinstance(lsn, int) and lsn >= 0
    if version != VERSION or not is_sound or not isinstance(start, str | None):
        raise BadCheckpoint(
            f"the stream's checkpoint holds an offset that brokerd did not write: {dict(found)!r}; "
            "use another checkpointLocation"
        )
    return Offset(str(log_id), int(str(lsn)), start)


class _Stream(NamedTuple):
    """What a stream reads."""

    place: Location
    request: Request
    rows: Rows
    start: str | None
    max_bytes: int | None


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream.

    What the user said is understood when Spark first asks something: Spark 4.3 has no answer of
    its own to a reader that cannot be made.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(given)
        self._schema = schema
        self._last_lsn: int | None = None
        """Where `Trigger.AvailableNow` ends."""

    def initialOffset(self) -> dict[str, Any]:
        with told_plainly():
            stream = self._stream
            if stream.start == LATEST:
                return Offset(*self._end()).as_json()
            start = None if stream.start == EARLIEST else stream.start
            planned = plan(stream.place, began_at(stream.request, start), now_us())
            return Offset(planned.log_id, _first_lsn(planned), start).as_json()

    def prepareForTriggerAvailableNow(self) -> None:
        with told_plainly():
            self._last_lsn = self._end().lsn

    def getDefaultReadLimit(self) -> ReadLimit:
        with told_plainly():
            most = self._stream.max_bytes
            return ReadAllAvailable() if most is None else ReadMaxBytes(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with told_plainly():
            began = read_offset(start)
            end = self._end()
            self._check(began, end)
            if isinstance(limit, ReadMaxBytes) and began.lsn < end.lsn:
                place, request = self._stream.place, self._stream.request
                end = end_after(place, began.lsn, limit.max_bytes, request.tail)
            lsn = end.lsn if self._last_lsn is None else min(end.lsn, self._last_lsn)
            return began._replace(lsn=max(began.lsn, lsn)).as_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        with told_plainly():
            return Offset(*self._end()).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with told_plainly():
            first, last = read_offset(start), read_offset(end)
            self._check(last, self._end())
            if first.lsn >= last.lsn:
                return []
            stream = self._stream
            request = stream.rows.needed(began_at(stream.request, last.start))
            request = request._replace(first_lsn=first.lsn, end_lsn=last.lsn, tail=True)
            planned = plan(stream.place, request, now_us())
            return [Piece(split) for split in planned.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._stream.rows.read(partition, self._schema)

    @cached_property
    def _stream(self) -> _Stream:
        options = parse_options(self._given)
        rows = rows_of(options)
        rows.check(self._schema)
        place = open_place(options.path, options.archive)
        return _Stream(place, stream_request(options), rows, options.start, options.max_bytes)

    def _end(self) -> End:
        return end_of(self._stream.place, self._stream.request.tail)

    def _check(self, offset: Offset, end: End) -> None:
        """Raise `BadCheckpoint` if a stream got farther than this log, or read another one."""
        place = self._stream.place
        where = place.data_dir or place.archive
        if offset.log_id != end.log_id:
            raise BadCheckpoint(
                f"the stream's checkpoint is of the log {offset.log_id}, and {where} holds the log "
                f"{end.log_id}: use another checkpointLocation, or load the log it belongs to"
            )
        if offset.lsn > end.lsn and not self._stream.request.tail:
            end = end_of(place)  # the stream may have read the open file before
        if offset.lsn > end.lsn:
            raise BadCheckpoint(
                f"the stream's checkpoint is at LSN {offset.lsn} of the log, and {where} ends at "
                f"{end.lsn}: it is an older copy of the log, or an archive that is behind it; "
                "load the log that the stream read, or use another checkpointLocation"
            )


def _first_lsn(planned: Plan) -> int:
    """There is no row below it, so that a stream needs no micro-batches up to there."""
    files = [part.lsns[0] for split in planned.splits for part in split.files]
    parts = [part.lsns[0] for split in planned.splits for part in split.parts]
    return max(0, min(files + parts, default=planned.end_lsn))
