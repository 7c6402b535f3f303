"""An archive made by hand, for tests of the job: tables, files, bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.contract.bounds import Bounds, PartitionBounds, TopicBounds
from brokerd.archive.contract.layout import EVENTS, RECORDS, ROLLUP_APP, Layout, Range, arrow_schema
from brokerd.archive.delta.actions import AddFile, add_file
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import ensure_tables
from brokerd.archive.parquet.writer import FileInfo, FileWriter
from brokerd.archive.run import Run, Settings
from brokerd.walformat import EventKind
from tests.archive.inline import InlineSpark
from tests.archive.plain import Happened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_ID = "0123456789abcdef0123456789abcdef"
NOW_US = 1_700_000_000_000_000
NOW_MS = NOW_US // 1000

Record = dict[str, Any]


class World:
    """The archive of a log whose parts the tests make up."""

    def __init__(self, directory: Path, spark: SparkSession | None) -> None:
        """Without a session, tasks run in this process, and other work of Spark fails."""
        self.root = directory / "archive"
        self.spark = spark
        self.tables = ensure_tables(self.root, LOG_ID, NOW_MS)
        self.lsn = 0
        self.topics: dict[int, TopicBounds] = {}
        self.next_topic_id = 1
        self.settings = Settings()
        self.time_us = NOW_US
        self.time_settled = True
        self.points: list[str] = []
        self.stop_at: Callable[[str], None] = self.points.append

    @contextmanager
    def without_spark(self) -> Iterator[None]:
        """Let all work of Spark fail within the block."""
        spark, self.spark = self.spark, None
        try:
            yield
        finally:
            self.spark = spark

    # -- The broker's bounds ----------------------------------------------------------------------

    def topic(self, topic_id: int, *partitions: tuple[int, int], compact: bool = False) -> None:
        """Add or replace a topic; partitions are (start, compact_below)."""
        found = [PartitionBounds(start, below, 1 << 40) for start, below in partitions]
        self.topics[topic_id] = TopicBounds(topic_id, f"t{topic_id}", 0, compact, found)
        self.next_topic_id = max(self.next_topic_id, topic_id + 1)

    def bounds(self) -> Bounds:
        return Bounds(
            LOG_ID,
            self.lsn,
            self.time_us,
            self.time_settled,
            self.next_topic_id,
            list(self.topics.values()),
        )

    def run(self) -> Run:
        session = self.spark
        return Run(
            root=self.root,
            bounds=self.bounds(),
            settings=self.settings,
            tables=self.tables,
            spark=InlineSpark() if session is None else SparkRunner(lambda: nullcontext(session)),
            now_ms=lambda: NOW_MS,
            failpoint=lambda point: self.stop_at(point),
        )

    # -- The rollup -------------------------------------------------------------------------------

    def roll_events(self, log: Iterable[Happened], end_lsn: int) -> None:
        """Append events and mark the table complete below an LSN."""
        log = list(log)
        files = [self._events_file(log, self.lsn, end_lsn)] if log else []
        table = Table(self.root, EVENTS, LOG_ID)
        table.commit(files, (), {ROLLUP_APP: end_lsn}, now_ms=NOW_MS)

    def _events_file(self, log: Sequence[Happened], first: int, end: int) -> AddFile:
        rows = [
            {
                "topic": f"t{h.topic_id}",
                "topic_id": h.topic_id,
                "partition": h.partition,
                "group_name": h.group,
                "lsn": h.lsn,
                "seq": h.seq,
                "time": h.time_us,
                "kind": EventKind(h.event[0]).name,
                "offset": h.event[1],
                "amount": h.event[2],
                "token": h.event[3],
                "count": h.event[4],
                "owner": h.event[5] or None,
                "reason": h.event[6] or None,
            }
            for h in log
        ]
        ranges = [Range(0, 0, first, end)]
        return add_file(self._write(EVENTS, rows, ranges))

    def roll_records(self, files: Iterable[Sequence[Record]], end_lsn: int) -> list[FileInfo]:
        """Add files of records, each given by its rows; it covers the offsets between them."""
        infos = [self._records_file(list(rows)) for rows in files]
        self.commit_records(infos, end_lsn)
        return infos

    def commit_records(self, infos: Sequence[FileInfo], end_lsn: int) -> None:
        table = Table(self.root, RECORDS, LOG_ID)
        table.commit([add_file(info) for info in infos], (), {ROLLUP_APP: end_lsn}, now_ms=NOW_MS)

    def _records_file(self, rows: list[Record]) -> FileInfo:
        places: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            places.setdefault((row["topic_id"], row["partition"]), []).append(row["offset"])
        ranges = [Range(*place, min(at), max(at) + 1) for place, at in sorted(places.items())]
        return self.records_file(rows, ranges)

    def records_file(self, rows: list[Record], ranges: Sequence[Range]) -> FileInfo:
        """Write a file of records that covers some ranges."""
        return self._write(RECORDS, rows, ranges)

    def _write(
        self, layout: Layout, rows: list[dict[str, Any]], ranges: Sequence[Range]
    ) -> FileInfo:
        with FileWriter(self.root / layout.name, layout, LOG_ID, ranges) as writer:
            if rows:
                writer.write(pa.Table.from_pylist(rows, arrow_schema(layout)))
            return writer.close()

    # -- The reader's view ------------------------------------------------------------------------

    def files(self, name: str) -> list[str]:
        """Return paths of the live files of a table, relative to it."""
        return sorted(Table(self.root, self.tables[name].layout, LOG_ID).paths())

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return all rows of a table; times in microseconds."""
        found: list[dict[str, Any]] = []
        for path in self.files(name):
            table = pq.read_table(self.root / name / path, partitioning=None)
            for at, column in enumerate(table.schema):
                if pa.types.is_timestamp(column.type):
                    numbers = table.column(at).cast(pa.int64())
                    table = table.set_column(at, column.name, numbers)
            found += table.to_pylist()
        return found


def record(offset: int, key: bytes | None = None, value: bytes = b"v", **fields: Any) -> Record:
    """Return a row of records, by default of partition 0 of topic 1."""
    row = {
        "topic_id": 1,
        "partition": 0,
        "offset": offset,
        "append_time": NOW_US,
        "lsn": 1,
        "key": key,
        "value": value,
        "encoding": 0,
        "expires_at": 0,
        "producer_format": 0,
        **fields,
    }
    return {"topic": f"t{row['topic_id']}", **row}
