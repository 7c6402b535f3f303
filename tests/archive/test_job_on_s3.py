"""A whole job with its archive in a bucket: the same tables as on a disk, wherever it stops."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.held_rollup import CLUSTER, HeldRollup
from benchmarks.held_rollup import SETTINGS as HELD
from brokerd.archive.contract.layout import LAYOUTS, RECORDS, Range, arrow_schema
from brokerd.archive.delta.table import Table, TableConflict
from brokerd.archive.job import Job, JobReport, run_job
from brokerd.archive.parquet import row_groups
from brokerd.archive.parquet.plain_file import PlainFileReader
from brokerd.archive.run import Settings
from brokerd.archive.storage.address import ObjectAddress, Place
from brokerd.archive.storage.store import open_store
from tests.archive.data import MIB, NO_LIMIT, NOW_MS, Data
from tests.archive.making import LOG_ID
from tests.archive.world import World, record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

frames = pytest.importorskip("brokerd.archive.cluster.frames", reason="needs pyspark")

FAR_MS = 1 << 42
"""A wall clock by which every file is old."""
SETTINGS = Settings(file_bytes=MIB, rewrite_percent=1, tombstone_seconds=0)


WHEN = ("before", "after")
COMMITS = ("records", "events", "deliveries", "hourly")


class Stopped(Exception):
    """In place of a process that is killed."""


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


def run(data: Data, spark: SparkSession, root: Place, **changes: Any) -> JobReport:
    data.publish()
    given = {
        "data_dir": data.path,
        "root": root,
        "settings": SETTINGS,
        "open_spark": lambda: nullcontext(spark),
        "now_ms": lambda: NOW_MS,
        "free_bytes": lambda path: NO_LIMIT,
        **changes,
    }
    return run_job(Job(**given))


def rows(root: Place, name: str) -> list[tuple[Any, ...]]:
    """All rows of a table, in no order that means anything."""
    store = open_store(root)
    layout = LAYOUTS[name]
    found: list[tuple[Any, ...]] = []
    for path in Table(root, layout, LOG_ID).paths():
        file = PlainFileReader(store, f"{name}/{path}")
        for some in file.read(arrow_schema(layout)):
            found += zip(*(column.to_pylist() for column in some.columns), strict=True)
    return sorted(found, key=repr)


def work(data: Data, turn: int) -> None:
    """What happens between two runs."""
    data.fill(2)
    data.append(5, 0, *(b"%d of this key" % turn for _ in range(40)), keys=[b"key"] * 40)
    data.append(6, 0, *(b"record %d" % at for at in range(40)))
    data.lease(6, "workers", 40 * turn, "somebody")
    data.settle(6, "workers", 40 * turn)
    data.append(5, 0, b"", keys=[b"gone %d" % turn])
    data.append(2, 1, *(b"short-lived",) * 2, expires_at_us=[NOW_MS * 1000 + turn, 1 << 60])
    data.log.seal()
    if turn:
        data.starts[6] = 20
        data.compacted = {5}


def check_same(data: Data, bucket: Place) -> None:
    """All tables in a bucket have what those on the disk have."""
    for name in LAYOUTS:
        found = rows(bucket, name)
        assert found == rows(data.path / "archive", name)
        assert found


@pytest.mark.soak
def test_a_run_that_is_stopped_anywhere_is_gone_on_with(
    data: Data, spark: SparkSession, bucket: ObjectAddress
) -> None:
    """At each of its points, in a first run and in one that removes and merges.

    All tables are those of an archive on a disk. What nobody named is deleted in the end.
    """
    for turn in range(2):
        work(data, turn)
        assert run(data, spark, data.path / "archive").problems == []
        passed: list[str] = []
        while stopped(data, spark, bucket, passed):
            pass
        assert {f"{when} {what} commit" for when in WHEN for what in COMMITS} <= set(passed)
    assert {"clean examined", "after clean commit", "before events are merged"} <= set(passed)
    check_same(data, bucket)
    run(data, spark, bucket)  # What was written anew may be worth a merge.
    again = run(data, spark, bucket)
    assert (again.problems, again.has_committed) == ([], False)
    store = open_store(bucket)
    told = (data.path / "state" / "bounds").read_bytes()
    assert store.read("bounds", len(told)) == told
    assert unnamed(bucket)
    run(data, spark, bucket, settings=SETTINGS._replace(vacuum_hours=0), now_ms=lambda: FAR_MS)
    assert unnamed(bucket) == set()
    assert {entry.path.partition("/")[0] for entry in store.list(hidden=True)} == {
        *LAYOUTS,
        *("bounds", "compaction"),
    }
    check_same(data, bucket)


def stopped(data: Data, spark: SparkSession, root: Place, passed: list[str]) -> bool:
    """Whether a run was stopped, at a point where none was yet."""

    def stop(point: str) -> None:
        if point not in passed:
            passed.append(point)
            raise Stopped

    try:
        assert run(data, spark, root, failpoint=stop).problems == []
    except Stopped:
        return True
    return False


def unnamed(root: Place) -> set[str]:
    """Files of tables that their newest versions do not have."""
    files = {entry.path for entry in open_store(root).list() if entry.path.endswith(".parquet")}
    live = {
        f"{layout.name}/{path}"
        for layout in LAYOUTS.values()
        for path in Table(root, layout, LOG_ID).paths()
    }
    assert live <= files
    return files - live


def test_large_files_are_read_in_parts(
    bucket: ObjectAddress, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row once, with its number in its file, however many tasks share it."""
    world = World(bucket, spark)  # type: ignore[arg-type]
    monkeypatch.setattr(row_groups, "GROUP_ROWS", 10)
    large = world.records_file([record(at) for at in range(405)], [Range(1, 0, 0, 405)])
    small = world.records_file([record(at) for at in range(405, 409)], [Range(1, 0, 405, 409)])
    paths = [large.path, small.path]
    frame = world.run().frames.read(RECORDS, paths, ["offset"], row_ids=True)
    assert frame.rdd.getNumPartitions() > len(paths)
    assert sorted(map(tuple, frame.collect())) == [
        *((at, large.path.rpartition("/")[2], at) for at in range(405)),
        *((405 + at, small.path.rpartition("/")[2], at) for at in range(4)),
    ]


def test_of_two_runs_at_once_one_counts(data: Data, bucket: ObjectAddress, tmp_path: Path) -> None:
    """A copy of the machine is at work, too. The second job stops, adds and leaves nothing."""
    data.root = bucket  # type: ignore[assignment]
    data.fill()
    others = []

    def meanwhile(point: str) -> None:
        if point == "before records commit" and not others:
            others.append(point)
            data.roll_up()

    with pytest.raises(TableConflict, match="another job ingested this log first"):
        data.roll_up(at=meanwhile)
    data.check()
    assert others
    assert unnamed(bucket) == set()


@pytest.mark.soak
def test_on_a_cluster_nobody_but_the_driver_needs_the_journal(
    data: Data, bucket: ObjectAddress, tmp_path: Path, spark: SparkSession
) -> None:
    """It is not there while executors are at work; the driver, and then one of them, is killed."""
    hidden = data.path / "hidden"
    for turn in range(2):
        work(data, turn)
        data.publish()
        report = run(data, spark, data.path / "archive", settings=HELD)
        assert report.problems == []
    killed = []
    for _ in range(2):
        with HeldRollup(data.path, tmp_path / "log", master=CLUSTER, archive=bucket) as job:
            while (point := job.next_point()) is not None:
                if point == "journal sent":
                    data.wal.rename(hidden)
                if point in ("before records commit", "before hourly", "clean planned"):
                    if hidden.exists():
                        hidden.rename(data.wal)
                    if point not in killed:
                        killed.append(point)
                        if len(killed) == 1:
                            job.kill()
                            break
                        assert job.kill_executors(1) == 1
                job.go_on()
            outcome = job.outcome()
    assert len(killed) == 3
    assert (outcome.killed, outcome.problems, outcome.left) == (False, [], "")
    assert sum(1 for _ in open_store(bucket).list("wal")) == 0
    check_same(data, bucket)
