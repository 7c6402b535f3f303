"""Iceberg readers see the rows that Delta readers see, after each kind of maintenance."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, nullcontext
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Operation

from brokerd.archive.contract.layout import EVENTS, LAYOUTS, RECORDS, ROLLUP_APP
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.checkpoints import checkpoint_if_due
from brokerd.archive.delta.log_files import COMMITS, commit_name
from brokerd.archive.delta.tables import open_tables
from brokerd.archive.erase import EraseJob, run_erase
from brokerd.archive.errors import JobFailed
from brokerd.archive.iceberg import metadata_files, snapshots
from brokerd.archive.iceberg.catalog import _library_errors
from brokerd.archive.iceberg.export import write_iceberg
from brokerd.archive.iceberg.metadata_files import HINT, METADATA
from brokerd.archive.job import Job, run_job, vacuum
from brokerd.archive.maintain.clean import clean
from brokerd.archive.maintain.history import maintain_history
from brokerd.archive.run import Run, Settings
from brokerd.archive.storage.address import ObjectAddress
from brokerd.walformat import EventKind
from tests.archive.data import MIB, NO_LIMIT, Data
from tests.archive.inline import InlineSpark, ingest_inline
from tests.archive.plain import Happened
from tests.archive.world import NOW_MS, World, record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEASED = (int(EventKind.LEASED), 0, 0, 0, 0, "w", "")


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, None)
    made.settings = Settings(derived=False, vacuum_hours=1)
    made.topic(1, (0, 0))
    made.topic(2, (0, 0))
    return made


def append(world: World, *offsets: int, **fields: Any) -> None:
    world.lsn += 100
    rows = [record(offset, lsn=world.lsn - 50, **fields) for offset in offsets]
    world.roll_records([rows], world.lsn)


def happen(world: World) -> None:
    """Append an event."""
    log = [Happened(1, 0, "g", world.lsn + 1, 0, LEASED)]
    world.roll_events(log, world.lsn + 100)
    world.lsn += 100


def export(world: World) -> dict[str, int]:
    return write_iceberg(world.run(), cleans=True).numbers


def iceberg(world: World, name: str = RECORDS.name) -> StaticTable:
    return StaticTable.from_metadata(f"file://{world.root / name}")


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


def delta_rows(world: World, name: str, version: int | None = None) -> list[dict[str, Any]]:
    return rows_of(DeltaTable(str(world.root / name), version=version).to_pyarrow_table())


def check(world: World) -> None:
    """Check that both formats have the same rows in all tables, now and in each snapshot."""
    for name in LAYOUTS:
        table = iceberg(world, name)
        assert rows_of(table.scan().to_arrow()) == delta_rows(world, name), name
        for snapshot in table.metadata.snapshots:
            version = int(snapshot.summary["brokerd.delta-version"])
            found = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
            assert rows_of(found) == delta_rows(world, name, version), (name, version)


def operations(world: World, name: str = RECORDS.name) -> list[Operation]:
    return [one.summary.operation for one in iceberg(world, name).metadata.snapshots]


def test_a_clock_that_steps_by_a_day_keeps_snapshots_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of Iceberg refuse a snapshot that is older than the one before it."""
    day_ms = 86_400_000
    for offset, step in enumerate((0, day_ms, -day_ms, 0, 2 * day_ms, 0)):
        monkeypatch.setattr("tests.archive.world.NOW_MS", NOW_MS + step)
        append(world, offset)
        export(world)
        check(world)
    times = [one.timestamp_ms - NOW_MS for one in iceberg(world).metadata.snapshots]
    assert times == [0, day_ms, day_ms, day_ms, 2 * day_ms, 2 * day_ms]


def test_same_rows_after_each_kind_of_maintenance(world: World) -> None:
    export(world)
    check(world)
    append(world, 0, key=b"k")
    append(world, *range(1, 5))
    append(world, *range(5), topic_id=2, producer_time=-5, metadata=b"m")
    happen(world)
    export(world)
    check(world)
    assert operations(world) == [Operation.APPEND] * 3
    clean(world.run())  # merges topic 1
    export(world)
    check(world)
    assert operations(world)[3:] == [Operation.REPLACE]
    world.topic(1, (5, 5))
    clean(world.run())  # trims
    export(world)
    check(world)
    assert operations(world)[4:] == [Operation.DELETE]
    assert len(iceberg(world).scan().to_arrow()) == 5
    del world.topics[2]  # deleted
    clean(world.run())
    export(world)
    check(world)
    assert operations(world)[5:] == [Operation.DELETE]
    assert len(iceberg(world).scan().to_arrow()) == 0
    for _ in range(3):
        happen(world)
    maintain_history(world.run())  # merges events
    export(world)
    check(world)
    assert operations(world, "events") == [*[Operation.APPEND] * 4, Operation.REPLACE]
    age(world, hours=2)
    append(world, 5)
    export(world)
    assert vacuum(world.run()).numbers["files"] > 0
    check(world)  # each snapshot that is left has its files
    assert len(iceberg(world).metadata.snapshots) == 2


@pytest.mark.slow
def test_same_rows_after_whole_runs(tmp_path: Path, spark: SparkSession) -> None:
    """Removal and compaction inside of files, outcomes, hours."""
    data = Data(tmp_path / "data")
    job = Job(
        data_dir=data.path,
        root=data.root,
        settings=Settings(file_bytes=MIB, rewrite_percent=1, iceberg=True),
        open_spark=lambda: nullcontext(spark),
        now_ms=lambda: NOW_MS,
        free_bytes=lambda path: NO_LIMIT,
    )

    def run() -> list[Operation]:
        data.publish()
        assert run_job(job).problems == []
        check(cast(World, SimpleNamespace(root=data.root)))
        found = StaticTable.from_metadata(f"file://{data.root}/records").metadata.snapshots
        return [one.summary.operation for one in found]

    data.fill()
    run()
    data.append(1, 0, *(b"new %d" % at for at in range(40)), keys=[b"key"] * 40)
    data.settle(1, "workers", 0)
    data.log.seal()
    data.starts[2] = 5
    data.compacted = {1}
    assert Operation.OVERWRITE in run()
    assert (1, 0, 47, b"new 38") not in data.records()


@pytest.mark.parametrize("deletes_now", [True, False])
def test_an_erasure_leaves_no_snapshot_without_files(tmp_path: Path, deletes_now: bool) -> None:
    data = Data(tmp_path / "data")
    for value in (b"one", b"two"):
        data.append(1, 0, value, b"stays", keys=[b"customer", b"other"])
        data.log.seal()
        data.publish()
        data.roll_up()
    settings = Settings(file_bytes=MIB, iceberg=True)
    report = run_erase(
        EraseJob(
            data_dir=data.path,
            root=data.root,
            settings=settings,
            now_ms=lambda: NOW_MS,
            topic="topic-1",
            key=b"customer",
            deletes_now=deletes_now,
        )
    )
    assert report.problems == ()
    check(cast(World, SimpleNamespace(root=data.root)))
    table = StaticTable.from_metadata(f"file://{data.root}/records")
    assert table.scan().to_arrow()["key"].to_pylist() == [b"other"] * 2
    assert len(table.metadata.snapshots) == (1 if deletes_now else 3)


def age(world: World, hours: float) -> None:
    """Make all files of the archive older."""
    seconds = NOW_MS / 1000 - hours * 3600
    for path in world.root.rglob("*"):
        os.utime(path, (seconds, seconds))


def test_nothing_new_writes_nothing(world: World) -> None:
    append(world, 0)
    assert export(world)["snapshots"] == 1
    before = sorted(world.root.rglob("*"))
    assert export(world)["snapshots"] == 0
    assert sorted(world.root.rglob("*")) == before


def test_snapshots_tell_version_and_lsn(world: World) -> None:
    append(world, 0)
    append(world, 1)
    export(world)
    found = iceberg(world).metadata.snapshots
    assert [one.summary["brokerd.lsn"] for one in found] == ["100", "200"]
    assert [one.summary["brokerd.delta-version"] for one in found] == ["1", "2"]
    assert [one.summary["total-records"] for one in found] == ["1", "2"]
    assert found[1].parent_snapshot_id == found[0].snapshot_id


def test_readers_skip_files(world: World) -> None:
    """By the partition, and by the smallest and largest values."""
    for topic_id in (1, 2):
        for first in (0, 10):
            append(world, first, first + 1, topic_id=topic_id)
    export(world)
    table = iceberg(world)
    for condition, files in [
        (EqualTo("topic", "t2"), 2),
        (EqualTo("topic_id", 2), 2),
        (EqualTo("bucket", 1), 2),
        (EqualTo("partition", 1), 0),
        (GreaterThanOrEqual("offset", 5), 2),
        (GreaterThanOrEqual("lsn", 350), 1),
        (GreaterThanOrEqual("append_time", "2030-01-01T00:00:00+00:00"), 0),
    ]:
        assert len(list(table.scan(row_filter=condition).plan_files())) == files, condition


def test_polars_reads_it(world: World) -> None:
    append(world, 0, 1)
    export(world)
    frame = polars.scan_iceberg(iceberg(world)).select("topic", "offset").collect()
    assert frame.rows() == [("t1", 0), ("t1", 1)]


def test_many_commits_have_few_manifests(world: World) -> None:
    for offset in range(20):
        append(world, offset)
        if offset % 7 == 0:
            export(world)
    export(world)
    table = iceberg(world)
    assert len(table.inspect.manifests()) <= 5
    assert rows_of(table.scan().to_arrow()) == delta_rows(world, RECORDS.name)


def test_continues_after_the_log_was_cleaned(world: World) -> None:
    """The commits are gone; the checkpoint has the files."""
    append(world, 0)
    export(world)
    for offset in range(1, 5):
        append(world, offset)
    table = world.tables[RECORDS.name]
    table.refresh()
    assert checkpoint_if_due(table.path, table.snapshot, 1)
    for version in range(table.version):
        (table.path / COMMITS / commit_name(version)).unlink()
    assert export(world)["snapshots"] == 1
    assert rows_of(iceberg(world).scan().to_arrow()) == delta_rows(world, RECORDS.name)
    assert len(iceberg(world).scan().to_arrow()) == 5


def test_commits_without_rows_do_not_make_the_table_anew(world: World, catalog: SqlCatalog) -> None:
    """Not even when the log is cleaned: a new table has no older snapshots, and another id."""
    append(world, 0)
    append(world, 1)
    found = []
    for _ in range(3):
        for name in (RECORDS.name, EVENTS.name):
            table = world.tables[name]
            table.refresh()
            lsn = {ROLLUP_APP: world.lsn + 1_000 * (1 + len(found))}
            assert table.commit((), (), lsn, now_ms=NOW_MS)
            export(world)
            assert checkpoint_if_due(table.path, table.snapshot, 1)
            for version in range(table.version):
                (table.path / COMMITS / commit_name(version)).unlink(missing_ok=True)
        tables = [catalog.load_table(f"brokerd.{name}") for name in (RECORDS.name, EVENTS.name)]
        found.append([one.metadata.table_uuid for one in tables])
        assert [len(one.metadata.snapshots) for one in tables] == [2, 0]
    assert found == found[:1] * 3
    world.lsn += 10_000
    append(world, 2)
    export(world)
    (records,) = [catalog.load_table("brokerd.records")]
    assert len(records.metadata.snapshots) == 3
    assert len(records.scan().to_arrow()) == 3


def test_an_archive_that_moved_is_written_again(world: World) -> None:
    append(world, 0)
    export(world)
    root = world.root.with_name("moved")
    world.root.rename(root)
    moved = copy(world)
    moved.root = root
    moved.tables = open_tables(root, world.bounds().log_id)
    export(moved)
    check(moved)
    assert iceberg(moved).location() == f"file://{root / RECORDS.name}"


def test_few_snapshots_and_metadata_files_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOTS_MAX", 3)
    monkeypatch.setattr(metadata_files, "KEPT_VERSIONS", 2)
    for offset in range(6):
        append(world, offset)
        export(world)
    check(world)
    assert len(iceberg(world).metadata.snapshots) == 3
    directory = world.root / RECORDS.name / METADATA
    assert sorted(path.name for path in directory.glob("*.json")) == [
        "v5.metadata.json",
        "v6.metadata.json",
    ]
    before = set(directory.glob("*.avro"))
    temporary = [directory / f".{kind}-0123456789abcdef.tmp" for kind in ("put", "commit")]
    for path in temporary:
        path.touch()
    age(world, hours=0)
    export(world)
    assert [path.exists() for path in temporary] == [True, True]
    age(world, hours=2)
    append(world, 6)
    export(world)
    check(world)
    lists = {one.manifest_list for one in iceberg(world).metadata.snapshots}
    left = {f"file://{path}" for path in before & set(directory.glob("*.avro"))}
    assert len(left) < len(before)
    assert [path.exists() for path in temporary] == [False, False]
    assert lists & {f"file://{path}" for path in before} <= left


@pytest.mark.parametrize("point", range(10))
def test_a_stopped_run_is_continued(world: World, point: int) -> None:
    append(world, 0)
    export(world)
    append(world, 1)
    happen(world)
    reached: list[str] = []

    def stop(name: str) -> None:
        if len(reached) == point:
            raise KeyboardInterrupt(name)
        reached.append(name)

    world.stop_at = stop
    with pytest.raises(KeyboardInterrupt):
        export(world)
    world.stop_at = reached.append
    export(world)
    check(world)


@pytest.mark.parametrize("damage", ["metadata", "list"])
def test_damaged_metadata_names_the_remedy(world: World, damage: str) -> None:
    append(world, 0)
    export(world)
    directory = world.root / RECORDS.name / METADATA
    if damage == "metadata":
        newest = directory / f"v{(directory / HINT).read_text()}.metadata.json"
        newest.write_bytes(newest.read_bytes()[:50])
    else:
        for path in directory.glob("*.avro"):
            path.unlink()
    append(world, 1)
    with pytest.raises(JobFailed, match=r"records/metadata: .* is damaged: .*; remove the dir"):
        export(world)
    for path in directory.iterdir():
        path.unlink()
    export(world)
    check(world)


def test_in_a_bucket(tmp_path: Path, bucket: ObjectAddress, s3_server: str) -> None:
    data = Data(tmp_path / "data")
    data.fill(2)
    ingest_inline(bucket, data.wal, data.bounds())
    run = Run(
        root=bucket,
        bounds=data.bounds(),
        settings=Settings(iceberg=True),
        tables=open_tables(bucket, data.bounds().log_id),
        spark=InlineSpark(),
        now_ms=lambda: NOW_MS,
    )
    assert write_iceberg(run, cleans=True).numbers["snapshots"] == 2
    assert write_iceberg(run, cleans=True).numbers["snapshots"] == 0
    properties = {"s3.endpoint": s3_server, "s3.region": "us-east-1"}
    table = StaticTable.from_metadata(f"{bucket}/records", properties)
    names = ("topic_id", "partition", "offset", "value")
    found = [tuple(row[name] for name in names) for row in table.scan().to_arrow().to_pylist()]
    assert sorted(found) == sorted(data.appended)


# -- Catalogs ------------------------------------------------------------------------------------


@pytest.fixture
def catalog(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlCatalog]:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri)
    world.settings = world.settings._replace(iceberg_catalog="lake")
    found = SqlCatalog("lake", uri=uri)
    yield found
    found.close()


def test_a_catalog_has_the_same_snapshots(world: World, catalog: SqlCatalog) -> None:
    export(world)  # registers
    append(world, 0)
    append(world, 1)
    export(world)
    append(world, 2)
    clean(world.run())
    export(world)
    assert set(catalog.list_tables("brokerd")) == {("brokerd", name) for name in LAYOUTS}
    table = catalog.load_table("brokerd.records")
    assert rows_of(table.scan().to_arrow()) == delta_rows(world, RECORDS.name)
    wanted = [one.snapshot_id for one in iceberg(world).metadata.snapshots]
    assert [one.snapshot_id for one in table.metadata.snapshots] == wanted
    age(world, hours=2)
    append(world, 3)
    export(world)
    table.refresh()
    assert len(table.metadata.snapshots) == 2
    assert len(table.scan().to_arrow()) == 4


def test_a_catalog_catches_up(world: World, catalog: SqlCatalog) -> None:
    append(world, 0)
    export(world)
    world.settings = world.settings._replace(iceberg_catalog="")
    append(world, 1)
    export(world)
    world.settings = world.settings._replace(iceberg_catalog="lake")
    export(world)
    assert len(catalog.load_table("brokerd.records").scan().to_arrow()) == 2


def test_a_catalog_has_the_table_that_was_written_again(world: World, catalog: SqlCatalog) -> None:
    export(world)
    append(world, 0)
    export(world)
    directory = world.root / RECORDS.name / METADATA
    for pattern in ("v*.metadata.json", "*.avro"):
        for path in directory.glob(pattern):
            path.unlink()
    append(world, 1)
    export(world)
    check(world)
    assert len(catalog.load_table("brokerd.records").scan().to_arrow()) == 2


def test_a_catalog_with_another_table_is_refused(world: World, catalog: SqlCatalog) -> None:
    catalog.create_namespace("brokerd")
    schema = pa.schema([("x", pa.int64())])
    catalog.create_table("brokerd.records", schema, location=f"file://{world.root}-other")
    with pytest.raises(JobFailed, match=r"brokerd\.records is not a table of this log: drop"):
        export(world)


def test_a_wrong_namespace_is_refused(world: World, catalog: SqlCatalog) -> None:
    world.settings = world.settings._replace(iceberg_namespace="a..b")
    with pytest.raises(JobFailed, match=r"archive\.iceberg_namespace: 'a\.\.b' is not a name"):
        export(world)


def test_a_catalog_that_is_not_set_up_is_named(world: World) -> None:
    world.settings = world.settings._replace(iceberg_catalog="nowhere")
    append(world, 0)
    happen(world)
    with pytest.raises(ArchiveUnavailable, match=r"archive\.iceberg_catalog: nowhere: brokerd\."):
        export(world)
    check(world)


def test_a_locked_catalog_is_unavailable_and_the_next_run_catches_up(
    world: World, catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db?timeout=0")
    export(world)
    append(world, 0)
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ArchiveUnavailable, match=r"database is locked.*; the next run"):
            export(world)
    export(world)
    assert len(catalog.load_table("brokerd.records").scan().to_arrow()) == 1


@pytest.mark.parametrize("where", ["load_table", "commit_table"])
def test_a_fault_of_the_program_is_no_error_of_the_catalog(
    world: World, catalog: SqlCatalog, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not read as a catalog that does not answer."""
    export(world)
    append(world, 0)

    def fail(*arguments: object) -> None:
        raise TypeError("a fault")

    monkeypatch.setattr(SqlCatalog, where, fail)
    with pytest.raises(TypeError, match="a fault"):
        export(world)


@pytest.mark.parametrize(
    ("module", "text", "raised"),
    [
        ("pyiceberg.catalog", "raise ValueError('no uri')", ArchiveUnavailable),
        ("pyiceberg.catalog.rest", "raise NotImplementedError('no uri')", ArchiveUnavailable),
        ("pyiceberg.catalog.rest", "raise RuntimeError('no uri')", RuntimeError),
        ("brokerd.archive.iceberg.catalog", "raise ValueError('no uri')", ValueError),
        ("brokerd.archive.iceberg.catalog", "open('/no uri')", FileNotFoundError),
    ],
)
def test_only_a_library_raises_built_in_errors_of_a_catalog(
    module: str, text: str, raised: type[Exception]
) -> None:
    """An error of brokerd's own code is a fault, and keeps its type."""
    with pytest.raises(raised, match="no uri"), _library_errors("where"):
        exec(text, {"__name__": module})


def test_a_commit_whose_answer_is_lost_counts(
    world: World, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog answers late; the next run finds the snapshots."""
    export(world)
    append(world, 0)
    commit = SqlCatalog.commit_table

    def late(*arguments: Any) -> None:
        commit(*arguments)
        raise CommitStateUnknownException("timed out")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", late)
        with pytest.raises(ArchiveUnavailable, match="timed out"):
            export(world)
    append(world, 1)
    export(world)
    table = catalog.load_table("brokerd.records")
    assert rows_of(table.scan().to_arrow()) == delta_rows(world, RECORDS.name)
    assert len(table.metadata.snapshots) == 2


def test_a_foreign_commit_in_the_catalog_goes(world: World, catalog: SqlCatalog) -> None:
    """Also if it has the number of brokerd's next snapshot."""
    append(world, 0)
    export(world)
    table = catalog.load_table("brokerd.records")
    rows = table.scan().to_arrow()
    for _ in range(2):
        table.append(rows)
    assert len(catalog.load_table("brokerd.records").scan().to_arrow()) == 3
    append(world, 1)
    export(world)
    append(world, 2)
    export(world)
    found = catalog.load_table("brokerd.records")
    assert rows_of(found.scan().to_arrow()) == delta_rows(world, RECORDS.name)
    wanted = [one.snapshot_id for one in iceberg(world).metadata.snapshots]
    assert [one.snapshot_id for one in found.metadata.snapshots] == wanted
