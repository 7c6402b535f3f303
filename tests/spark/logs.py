"""A log made by hand, with an archive, and the expected results of queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from brokerd.archive.contract import schemas
from brokerd.archive.contract.bounds import (
    FILE_NAME,
    Bounds,
    DamagedPlace,
    PartitionBounds,
    TopicBounds,
    encode_bounds,
)
from brokerd.archive.contract.layout import RECORDS, ROLLUP_APP, bucket_of, parse_records_name
from brokerd.archive.contract.topic_names import TopicNames
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import open_tables
from brokerd.archive.ingest.ingest import IngestReport
from brokerd.archive.maintain.rewrite import RewriteResult, RewriteUnit, rewrite
from brokerd.archive.run import Settings
from brokerd.spark.location import Location
from brokerd.spark.plan.file_scans import FileScan
from brokerd.spark.plan.predicate import UNBOUNDED, Interval, Predicate
from brokerd.spark.plan.query_plan import Plan, plan_query
from brokerd.spark.read.split_reader import read_split
from brokerd.spark.request import Request
from tests.archive.data import MIB, NOW_MS
from tests.archive.inline import ingest_inline
from tests.archive.making import (
    LOG_ID,
    TIME_US,
    LogMaker,
    make_segment,
    put_file,
    schema_entry,
    topic_entry,
)

NOW_US = TIME_US + 500_000_000
"""The default time at which queries are planned."""


class Row(NamedTuple):
    """A record."""

    topic: str
    topic_id: int
    partition: int
    offset: int
    value: bytes
    time_us: int
    expires_at: int


class Log:
    """The data directory of an absent broker."""

    def __init__(self, path: Path, root: Any = None) -> None:
        self.path = path
        self.wal = path / "wal"
        self.root = root or path / "archive"
        for directory in (self.wal, path / "state"):
            directory.mkdir(parents=True)
        self.log = LogMaker(self.wal)
        self.place = Location(str(path), str(self.root))
        self.names: dict[int, str] = {}
        """Names of the existing topics."""
        self.internal: dict[int, int] = {}
        """Id of an internal topic -> id of the topic that it serves."""
        self.starts: dict[tuple[int, int], int] = {}
        self.rows: list[Row] = []
        self.damage: list[DamagedPlace] = []
        self.sealed: list[Path] = []
        """Files that are not deleted."""
        self.next_topic_id = 1
        self.schemas: list[schemas.StoredSchema] = []
        self.without_index: list[Path] = []
        self.bounds = self._bounds()
        self.publish()

    # -- the broker ------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 2, internal_of: int = 0) -> int:
        topic_id = self.next_topic_id
        self.next_topic_id += 1
        more = {"internal_of": internal_of} if internal_of else {}
        self._tell(topic_entry(topic_id, "created", name=name, partitions=partitions, **more))
        self.names[topic_id] = name
        if internal_of:
            self.internal[topic_id] = internal_of
        return topic_id

    def delete(self, topic_id: int) -> None:
        self._tell(topic_entry(topic_id, "deleted", token_base=0))
        for one in (topic_id, *(i for i, of in self.internal.items() if of == topic_id)):
            self.names.pop(one, None)

    def register(self, name: str, version: int, type_: str, text: bytes) -> None:
        """Register a version of a schema."""
        stored = schemas.StoredSchema(name, version, type_, text, self.log.time_us)
        self.schemas.append(stored)
        self._tell(schema_entry(stored))

    def trim(self, topic_id: int, partition: int, offset: int) -> None:
        self._tell(topic_entry(topic_id, "start", partition=partition, offset=offset))
        key = topic_id, partition
        self.starts[key] = max(self.starts.get(key, 0), offset)

    def _tell(self, *entries: object) -> None:
        self.log.add(*entries)  # type: ignore[arg-type]
        self._written()

    def append(self, topic_id: int, partition: int, *values: bytes, expires_at: int = 0) -> None:
        """Append a frame with a batch."""
        self._add(topic_id, partition, values, expires_at)
        self._written()

    def together(self, *batches: tuple[int, int, Sequence[bytes]]) -> None:
        """Append a frame with several batches, as a transaction does."""
        for topic_id, partition, values in batches:
            self._add(topic_id, partition, values, 0)
        self._written()

    def _add(self, topic_id: int, partition: int, values: Sequence[bytes], expires_at: int) -> None:
        time_us = self.log.time_us
        base = self.log.append(
            topic_id, partition, values, expires_at_us=[expires_at] * len(values)
        )
        self.rows += [
            Row(self.names[topic_id], topic_id, partition, base + at, value, time_us, expires_at)
            for at, value in enumerate(values)
        ]

    def _written(self) -> None:
        """Write the open file to the disk with its allocated size."""
        self.log.frame()
        path = make_segment(self.wal, self.log.first_lsn, self.log._frames, indexed=False)
        with path.open("ab") as file:
            file.write(bytes(10_000))

    def seal(self, indexed: bool = True) -> None:
        """Seal the open file; its index may come later."""
        if not self.log._frames:
            return
        path = self.log.seal()
        self.sealed.append(path)
        if not indexed:
            path.with_suffix(".idx").rename(path.with_suffix(".later"))
            self.without_index.append(path)
            with path.open("ab") as file:
                file.write(bytes(5_000))
            self._tell(topic_entry(self.create("next"), "configured", settings={}))

    def index(self) -> None:
        """Write the missing indexes."""
        for path in self.without_index:
            end = min(int(p.stem) for p in self.wal.glob("*.wal") if p.stem > path.stem)
            with path.open("r+b") as file:
                file.truncate(end - int(path.stem))
            path.with_suffix(".later").rename(path.with_suffix(".idx"))
        self.without_index.clear()

    def end_lsn(self) -> int:
        """Return the end of the log."""
        last = max(self.wal.glob("*.wal"), default=None)
        if last is None or last.with_suffix(".idx").exists():
            return self.log.first_lsn
        frames = make_segment(self.path, self.log.first_lsn, self.log._frames, indexed=False)
        return self.log.first_lsn + frames.stat().st_size

    def _bounds(self) -> Bounds:
        ends: dict[tuple[int, int], int] = {}
        for row in self.rows:
            key = row.topic_id, row.partition
            ends[key] = max(ends.get(key, 0), row.offset + 1)
        topics = [
            TopicBounds(
                topic_id,
                name,
                self.internal.get(topic_id, 0),
                False,
                [
                    PartitionBounds(self.starts.get(key, 0), 0, ends.get(key, 0))
                    for key in ((topic_id, 0), (topic_id, 1))
                ],
            )
            for topic_id, name in self.names.items()
        ]
        end = self.end_lsn()
        return Bounds(LOG_ID, end, self.log.time_us, True, self.next_topic_id, topics, self.damage)

    def publish(self) -> None:
        """Write the bounds."""
        self.bounds = self._bounds()
        if self.schemas:
            data = schemas.encode_schemas(schemas.StoredSchemas(LOG_ID, self.schemas))
            put_file(self.path / "state" / schemas.FILE_NAME, data)
        put_file(self.path / "state" / FILE_NAME, encode_bounds(self.bounds))

    def archived_lsn(self) -> int:
        """Return the LSN below which both tables have the log."""
        tables = open_tables(self.root, LOG_ID)
        names = ("records", "events")
        return min(tables[name].transaction(ROLLUP_APP) for name in names) if tables else 0

    def delete_archived(self, count: int = 1 << 30) -> None:
        """Delete archived files of the journal."""
        archived = self.archived_lsn()
        for path in list(self.sealed)[:count]:
            if path in self.without_index:
                return
            end = int(path.stem) + path.stat().st_size
            if end <= archived:
                self.remove(path)

    def remove(self, path: Path) -> None:
        """Delete a file of the journal as the broker does."""
        end = int(path.stem) + path.stat().st_size
        (self.wal / f"{path.stem}-{end:020}.deleted").touch()
        path.with_suffix(".idx").unlink()
        path.unlink()
        self.sealed.remove(path)

    # -- the job ---------------------------------------------------------------------------------

    def roll_up(self, **settings: int) -> IngestReport:
        """Archive all sealed files."""
        given = Settings(**{"file_bytes": MIB, **settings})  # type: ignore[arg-type]
        return ingest_inline(self.root, self.wal, self.bounds, given)

    def _table(self) -> Table:
        return Table(self.root, RECORDS, LOG_ID)

    def merge(self, own_bytes: int = 1 << 62) -> None:
        """Merge all small files of each unit."""
        if not (self.root / "records").exists():
            return
        table = self._table()
        units: dict[object, list[str]] = defaultdict(list)
        for path in sorted(table.paths()):
            name = parse_records_name(path)
            units[name.bucket if name.only is None else name.only[:2]].append(path)
        for paths in units.values():
            if len(paths) > 1:
                unit = RewriteUnit(self.root, "records", LOG_ID, tuple(paths), own_bytes=own_bytes)
                done = rewrite(unit)
                assert isinstance(done, RewriteResult)
                table.commit([add_file(info) for info in done.added], done.paths, {}, now_ms=NOW_MS)

    def vacuum(self) -> None:
        """Delete files that the newest version does not use."""
        if (self.root / "records").exists():
            live = set(self._table().paths())
            for path in (self.root / "records").rglob("*.parquet"):
                if path.relative_to(self.root / "records").as_posix() not in live:
                    path.unlink()

    # -- queries ---------------------------------------------------------------------------------

    def expected(self, now_us: int = NOW_US) -> list[Row]:
        """Return all records that a client could read."""
        return sorted(
            row
            for row in self.rows
            if row.topic_id in self.names
            and row.topic_id not in self.internal
            and row.offset >= self.starts.get((row.topic_id, row.partition), 0)
            and not 0 < row.expires_at <= now_us
        )

    def plan(self, now_us: int = NOW_US, has_scans: bool = False, **request: object) -> Plan:
        return plan_query(self.place, Request(**request), now_us, has_scans)  # type: ignore[arg-type]

    def read(self, now_us: int = NOW_US, **request: object) -> list[Row]:
        """Return the rows of a query."""
        return rows_of(self.plan(now_us, **request))


def scanned_rows(root: Any, plan: Plan) -> list[Row]:
    """Return the rows of the scans and the splits of a plan, by a slow reader of plain Parquet."""
    rows = rows_of(plan)
    for scan in plan.scans:
        tables = [pq.read_table(root / "records" / path, partitioning=None) for path in scan.paths]
        found = [row for table in tables for row in rows_in(table.to_batches())]
        assert len(found) <= scan.records
        assert not scan.topics or {
            (bucket_of(row.topic_id), (row.topic_id, row.topic)) for row in found
        } == set(scan.topics.items())
        rows += [row for row in found if _meets(row, scan)]
    return sorted(rows)


def _meets(row: Row, scan: FileScan) -> bool:
    offsets = scan.partition_offsets.get((row.topic_id, row.partition), scan.offsets)
    return (
        (scan.topic_ids is None or row.topic_id in scan.topic_ids)
        and offsets.contains(row.offset, row.offset)
        and scan.times_us.contains(row.time_us, row.time_us)
        and (scan.now_us is None or not 0 < row.expires_at <= scan.now_us)
    )


def make_predicate(*topic_ids: int, **fields: Any) -> Predicate:
    """Return a predicate for all records of some topics, except for the given fields."""
    everything = Predicate(
        topic_ids=topic_ids,
        first_unknown_id=100,
        names=TopicNames(None),
        partitions=None,
        offsets=Interval(0),
        partition_offsets={},
        times_us=UNBOUNDED,
        lsns=UNBOUNDED,
        now_us=0,
    )
    return everything._replace(**fields)


def batches_of(found: Plan) -> Iterable[pa.RecordBatch]:
    for split in found.splits:
        yield from read_split(split)


def rows_of(found: Plan) -> list[Row]:
    """Return the rows of a plan of all columns."""
    return rows_in(batches_of(found))


def rows_in(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    rows = []
    for batch in batches:
        times = batch["append_time"].cast(pa.int64()).to_pylist()
        names = ("topic", "topic_id", "partition", "offset", "value")
        columns: list[Sequence[object]] = [batch[name].to_pylist() for name in names]
        columns += [times, batch["expires_at"].to_pylist()]
        rows += [Row(*values) for values in zip(*columns, strict=True)]  # type: ignore[arg-type]
    return sorted(rows)
