"""The tables deliveries and hourly, run by run, against plain loops over what happened."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import assume, given
from hypothesis import strategies as st

from brokerd.archive.delta.table import Table
from brokerd.archive.errors import JobFailed
from brokerd.walformat import EventKind, GroupEvent
from tests.archive import plain
from tests.archive.plain import Happened, log_of
from tests.archive.world import LOG_ID, NOW_US, World, record
from tests.strategies.archive import group_histories, on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

derived = pytest.importorskip("brokerd.archive.derive.deliveries", reason="needs pyspark")
frames = pytest.importorskip("brokerd.archive.cluster.frames", reason="needs pyspark")
hours = pytest.importorskip("brokerd.archive.derive.hourly", reason="needs pyspark")

HOUR_US = 3_600_000_000
FIRST_HOUR_US = NOW_US - NOW_US % HOUR_US
LEASED = int(EventKind.LEASED)
SETTLED = int(EventKind.SETTLED)


class Stopped(Exception):
    """In place of a process that is killed."""


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> World:
    return World(tmp_path, spark)


def delivered(world: World) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in world.rows("deliveries")), key=plain.in_order)


def event(kind: EventKind, offset: int, lsn: int, count: int = 0, owner: str = "") -> Happened:
    return Happened(1, 0, "g", lsn, 0, (int(kind), offset, 0, 0, count, owner, ""))


# -- Deliveries ----------------------------------------------------------------------------------


@on_spark(1)
@given(st.lists(group_histories(), min_size=10, max_size=20), st.randoms(use_true_random=False))
def test_runs_find_each_outcome_once(
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSession,
    histories: list[list[list[GroupEvent]]],
    dice: random.Random,
) -> None:
    """Wherever runs end, stop or lose what they kept, rows are those of a loop over all events."""
    log = log_of(histories)
    assume(len(log) >= 20)
    world = World(tmp_path_factory.mktemp("world"), spark)
    end = log[-1].lsn + 1
    cuts = sorted({0, end, *(dice.randrange(1, end + 1) for _ in range(2))})
    for first, last in pairwise(cuts):
        world.roll_events([h for h in log if first <= h.lsn < last], last)
        world.lsn = last
        if dice.random() < 0.4:
            stop_once(world, dice.choice(["before deliveries commit", "after deliveries commit"]))
        if dice.random() < 0.3:
            for path in (world.root / "deliveries").glob("_open/*"):
                path.write_bytes(path.read_bytes()[:-1])
        derived.derive_deliveries(world.run())
    assert delivered(world) == plain.deliveries(log)


def stop_once(world: World, point: str) -> None:
    """Let a run begin, and stop it at a point."""

    def stop(at: str) -> None:
        if at == point:
            raise Stopped

    world.stop_at = stop
    with pytest.raises(Stopped):
        derived.derive_deliveries(world.run())
    world.stop_at = world.points.append


def test_nothing_new_needs_no_spark(world: World) -> None:
    """A second run does nothing, and starts nothing."""
    world.roll_events([event(EventKind.SETTLED, 0, 5)], 10)
    assert derived.derive_deliveries(world.run()).lines == [
        "added 1 outcome to the table deliveries"
    ]
    world.spark = None
    assert derived.derive_deliveries(world.run()).lines == []
    assert len(world.files("deliveries")) == 1


def test_a_job_that_another_one_overtook_counts_nothing_and_deletes_nothing(world: World) -> None:
    """The attempts without an outcome that the faster job keeps are still there."""
    world.roll_events([event(EventKind.SETTLED, 0, 5), event(EventKind.LEASED, 1, 6, 1, "ann")], 10)
    faster: list[list[str]] = []

    def meanwhile(point: str) -> None:
        if point == "before deliveries commit" and not faster:
            faster.append([])
            world.roll_events([event(EventKind.SETTLED, 2, 15)], 20)
            faster.append(derived.derive_deliveries(world.run()).lines)

    world.stop_at = meanwhile
    assert derived.derive_deliveries(world.run()).lines == []
    world.stop_at = world.points.append
    assert faster == [[], ["added 2 outcomes to the table deliveries"]]
    kept = [path.name for path in (world.root / "deliveries" / "_open").glob("*.parquet")]
    assert any(name.startswith(f"{20:020d}-") for name in kept)
    world.roll_events([event(EventKind.SETTLED, 1, 25)], 30)
    derived.derive_deliveries(world.run())
    assert [row["owner"] for row in world.rows("deliveries")].count("ann") == 1


def test_a_log_without_events_needs_no_spark(world: World) -> None:
    """What has no outcome yet is kept on the way."""
    world.roll_events([event(EventKind.LEASED, 0, 5, 1, "ann")], 10)
    derived.derive_deliveries(world.run())
    with world.without_spark():
        for lsn in (20, 30):
            world.roll_events([], lsn)
            world.roll_records([], lsn)
            derived.derive_deliveries(world.run())
            hours.derive_hourly(world.run())
    world.roll_events([event(EventKind.SETTLED, 0, 35)], 40)
    derived.derive_deliveries(world.run())
    assert [row["owner"] for row in world.rows("deliveries")] == ["ann"]


def test_a_stopped_run_leaves_nothing_of_sparks_in_a_table(world: World) -> None:
    """Only files that vacuum removes, and the directory that the next run empties."""
    world.roll_events([event(EventKind.SETTLED, 0, 5)], 10)
    stop_once(world, "before deliveries commit")
    names = [path.name for path in (world.root / "deliveries").iterdir()]
    assert sorted(name.split("-")[0] for name in names) == ["_delta_log", "_open", "d"]
    assert Table(world.root, world.tables["deliveries"].layout, LOG_ID).paths() == []
    derived.derive_deliveries(world.run())
    assert len(world.files("deliveries")) == 1
    assert not (world.root / "staging").exists()


def test_what_a_late_attempt_wrote_is_not_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that was given up may still write when the files of the others are in place."""
    from pyspark.sql import DataFrameWriter

    write = DataFrameWriter.parquet

    def and_again(self: DataFrameWriter, path: str) -> None:
        write(self, path)
        directory = Path(path.removeprefix("file://"))
        late = directory / "_temporary" / "0" / "_temporary" / "attempt_1"
        late.mkdir(parents=True)
        for file in directory.glob("part-*.parquet"):
            shutil.copy(file, late)
        (late / "part-00009.parquet").write_bytes(b"PAR1")

    monkeypatch.setattr(DataFrameWriter, "parquet", and_again)
    world.roll_events([event(EventKind.SETTLED, offset, 5 + offset) for offset in range(3)], 10)
    derived.derive_deliveries(world.run())
    assert [row["offset"] for row in world.rows("deliveries")] == [0, 1, 2]
    assert not (world.root / "staging").exists()


def test_a_late_attempt_finds_no_other_steps_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may even bring its directory back, in which the next step then does not write."""
    names = set()
    for _ in range(2):
        with world.run().frames.staging() as directory:
            (world.root / "staging" / "old" / "outcomes").mkdir(parents=True)
            assert list((world.root / directory).iterdir()) == []
            monkeypatch.setattr(frames.shutil, "rmtree", lambda path, ignore_errors: None)
        names.add(directory)
        (world.root / "staging" / "old" / "outcomes").rmdir()
    assert len(names) == 2
    monkeypatch.undo()
    with world.run().frames.staging():
        assert len(list((world.root / "staging").iterdir())) == 1
    assert not (world.root / "staging").exists()


def test_a_damaged_file_of_events_stops_it_and_is_named(world: World) -> None:
    """No outcome is made up from bytes that are not what was written."""
    world.roll_events([event(EventKind.SETTLED, offset, 5 + offset) for offset in range(50)], 60)
    (path,) = world.files("events")
    file = world.root / "events" / path
    data = bytearray(file.read_bytes())
    data[len(data) // 4] ^= 1
    file.write_bytes(data)
    with pytest.raises(JobFailed, match=path):
        derived.derive_deliveries(world.run())
    assert delivered(world) == []


@pytest.mark.parametrize("loss", ["gone", "damaged"])
def test_what_was_kept_of_leases_is_found_again_if_it_is_lost(world: World, loss: str) -> None:
    """From all events before; no outcome is added twice for it."""
    before = [event(EventKind.LEASED, at, 5 + at, 1, "ann") for at in range(2)]
    world.roll_events([*before, event(EventKind.SETTLED, 0, 8)], 10)
    derived.derive_deliveries(world.run())
    (kept,) = (world.root / "deliveries" / "_open").iterdir()
    if loss == "gone":
        kept.unlink()
    else:
        kept.write_bytes(kept.read_bytes()[:-1])
    world.roll_events([event(EventKind.SETTLED, 1, 15)], 20)
    derived.derive_deliveries(world.run())
    found = [(row["offset"], row["owner"]) for row in world.rows("deliveries")]
    assert sorted(found) == [(0, "ann"), (1, "ann")]


def test_what_belongs_to_other_runs_is_removed(world: World) -> None:
    """One file of open attempts stays, however many runs there were."""
    for lsn in (10, 20):
        world.roll_events([event(EventKind.LEASED, lsn, lsn - 5, 1, "ann")], lsn)
        derived.derive_deliveries(world.run())
    (kept,) = (world.root / "deliveries" / "_open").iterdir()
    assert kept.name.startswith(f"{20:020d}-")
    world.roll_events([event(EventKind.SETTLED, offset, 35 + offset) for offset in (10, 20)], 99)
    derived.derive_deliveries(world.run())
    assert [(row["offset"], row["owner"]) for row in world.rows("deliveries")] == [
        (10, "ann"),
        (20, "ann"),
    ]


# -- Hourly --------------------------------------------------------------------------------------


def plain_hourly(records: Iterable[dict[str, Any]], outcomes: Iterable[Any]) -> list[Any]:
    """Rows of the table hourly by a loop, in order."""
    groups: dict[tuple[int, int, str], list[Any]] = {}
    for row in records:
        hour = row["append_time"] - row["append_time"] % HOUR_US
        size = sum(len(row.get(name) or b"") for name in ("key", "value", "metadata"))
        groups.setdefault((hour, row["topic_id"], ""), []).append(size)
    for _, topic_id, _, group, _, outcome, _, _, failures, _, time_us, latency, *_ in outcomes:
        hour = time_us - time_us % HOUR_US
        groups.setdefault((hour, topic_id, group), []).append((outcome, failures, latency))
    found = []
    for (hour, topic_id, group), seen in sorted(groups.items()):
        head = (hour, f"t{topic_id}", topic_id, group)
        if not group:
            found.append((*head, len(seen), sum(seen), 0, 0, 0, None, None, None))
            continue
        times = sorted(latency for *_, latency in seen if latency is not None)
        ranks = [-(-len(times) * percent // 100) - 1 for percent in (50, 99, 100)]
        dead = sum(outcome == "dead" for outcome, *_ in seen)
        failures = sum(failed for _, failed, _ in seen)
        latencies = [times[rank] if times else None for rank in ranks]
        found.append((*head, 0, 0, len(seen) - dead, dead, failures, *latencies))
    return found


def hourly(world: World) -> list[Any]:
    rows = [tuple(row.values()) for row in world.rows("hourly")]
    return sorted(rows, key=lambda row: (row[0], row[2], row[3]))


def many_records(dice: random.Random, lsns: range) -> list[list[dict[str, Any]]]:
    """Files of records: of one topic, and shared; times go on with LSNs, over some hours."""
    files = []
    for topics in ([1], [1], [2, 18, 34]):
        rows = []
        for topic_id in topics:
            for at, lsn in enumerate(sorted(dice.choices(lsns, k=dice.choice([1, 9])))):
                time_us = FIRST_HOUR_US + lsn * 40 * 60_000_000 + at
                value = b"v" * dice.randrange(4)
                key = dice.choice([None, b"", b"key"])
                offset = lsn * 100 + at + 50 * len(files)
                fields = {"topic_id": topic_id, "append_time": time_us, "lsn": lsn}
                rows.append(record(offset, key, value, **fields))
        files.append(rows)
    return files


@on_spark(1)
@given(st.randoms(use_true_random=False), st.lists(group_histories(), min_size=6, max_size=9))
def test_hours_are_counted_once_whatever_was_removed_since(
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSession,
    dice: random.Random,
    histories: list[list[list[GroupEvent]]],
) -> None:
    """Records that are gone by the next run stay counted; hours of two runs add up."""
    log = [h for h in log_of(histories) if h.lsn < 60]
    assume(len(log) >= 20)
    world = World(tmp_path_factory.mktemp("world"), spark)
    records: list[dict[str, Any]] = []
    for first, last in ((0, 20), (20, 25), (25, 61)):
        files = many_records(dice, range(first, last))
        records += [row for rows in files for row in rows]
        infos = world.roll_records(files, last)
        world.roll_events([h for h in log if first <= h.lsn < last], last)
        world.lsn = last
        derived.derive_deliveries(world.run())
        hours.derive_hourly(world.run())
        gone = [infos[0].path]
        Table(world.root, world.tables["records"].layout, LOG_ID).commit([], gone, now_ms=0)
    assert hourly(world) == plain_hourly(records, plain.deliveries(log))


def test_full_row_groups_are_counted_by_their_footers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 30,000 records of one hour, only the first row group is read."""
    rows = [record(offset, b"k", b"value", lsn=3) for offset in range(30_000)]
    world.roll_records([rows], 10)
    world.roll_events([], 10)
    derived.derive_deliveries(world.run())
    report = hours.derive_hourly(world.run())
    assert report.lines == ["counted 30,000 records in the table hourly"]
    assert hourly(world) == plain_hourly(rows, [])


def test_only_what_is_in_both_tables_is_counted(world: World) -> None:
    """A rollup that was stopped between two tables: the next one counts the rest, once."""
    world.roll_records([[record(0, lsn=3), record(9, lsn=15)]], 20)
    world.roll_events([event(EventKind.SETTLED, 0, 5)], 10)
    derived.derive_deliveries(world.run())
    hours.derive_hourly(world.run())
    assert sorted(row["records"] for row in world.rows("hourly")) == [0, 1]
    world.roll_events([], 20)
    derived.derive_deliveries(world.run())
    hours.derive_hourly(world.run())
    assert sorted((row["records"], row["settled"]) for row in world.rows("hourly")) == [
        (0, 1),
        (2, 0),
    ]


def test_a_day_is_one_file(world: World) -> None:
    """Runs replace the file of the day that they touch, and leave those of other days alone."""
    day_us = 24 * HOUR_US
    for at, day in enumerate((0, 1, 1)):
        time_us = NOW_US + day * day_us
        world.roll_records([[record(at, lsn=at * 10 + 5, append_time=time_us)]], at * 10 + 10)
        world.roll_events([], at * 10 + 10)
        derived.derive_deliveries(world.run())
        hours.derive_hourly(world.run())
    assert len(world.files("hourly")) == 2
    assert sorted(row["records"] for row in world.rows("hourly")) == [1, 2]
    added = pa.table(DeltaTable(world.root / "hourly").get_add_actions(flatten=True)).to_pylist()
    assert {(row["min.topic"], row["max.topic"], row["null_count.topic"]) for row in added} == {
        ("t1", "t1", 0)
    }
