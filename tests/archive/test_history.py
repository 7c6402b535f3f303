"""Events and deliveries: as long as it is configured, in few files, nothing else gone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokerd.archive.contract.layout import Range
from brokerd.archive.contract.ranges import merge_ranges
from brokerd.archive.errors import JobFailed
from brokerd.archive.maintain.merge_policy import pieces
from brokerd.archive.maintain.rewrite import ranges_of
from brokerd.archive.parquet.reader import open_file
from brokerd.archive.run import Settings
from brokerd.walformat import EventKind
from tests.archive import plain
from tests.archive.plain import STEP_US, Happened
from tests.archive.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

history = pytest.importorskip("brokerd.archive.maintain.history", reason="needs pyspark")
derived = pytest.importorskip("brokerd.archive.derive.deliveries", reason="needs pyspark")
hours = pytest.importorskip("brokerd.archive.derive.hourly", reason="needs pyspark")

DAY_US = 24 * 3_600_000_000
DAY = DAY_US // STEP_US
"""In LSNs."""


DAYS = 4


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> World:
    return World(tmp_path, spark)


@pytest.fixture(scope="module")
def days_archive(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """The archive of four runs, a day apart."""
    world = World(tmp_path_factory.mktemp("days"), spark)
    for day in range(DAYS):
        roll(world, *place(day), derive=False)
        derived.derive_deliveries(world.run())
    hours.derive_hourly(world.run())
    return world.root


@pytest.fixture
def days(tmp_path: Path, spark: SparkSession, days_archive: Path) -> World:
    """A copy of it."""
    shutil.copytree(days_archive, tmp_path / "archive")
    world = World(tmp_path, spark)
    at(world, place(DAYS - 1)[0])
    return world


def place(day: int) -> tuple[int, int]:
    """LSN and offset of what is settled on a day."""
    return 1 + day * DAY, day


def roll(world: World, lsn: int, *offsets: int, derive: bool = True) -> None:
    """One run: some records are settled at an LSN."""
    log = [Happened(1, 0, "g", lsn, seq, settled(at)) for seq, at in enumerate(offsets)]
    world.roll_events(log, lsn + 1)
    world.roll_records([], lsn + 1)
    at(world, lsn)
    if derive:
        derived.derive_deliveries(world.run())
        hours.derive_hourly(world.run())


def at(world: World, lsn: int) -> None:
    """The broker says that it is so far."""
    world.lsn = lsn + 1
    world.time_us = lsn * STEP_US


def settled(offset: int) -> Any:
    return (int(EventKind.SETTLED), offset, 0, 0, 0, "", "")


def rows(world: World, name: str) -> list[tuple[int, int]]:
    """(LSN, offset) of the rows of a table."""
    return sorted((row["lsn"], row["offset"]) for row in world.rows(name))


def test_many_small_files_become_few(days: World) -> None:
    """Each row is there as before, in the order of the log, and what is covered stays covered."""
    before = {name: days.rows(name) for name in ("events", "deliveries")}
    report = history.maintain_history(days.run())
    assert report.lines == ["merged 4 files of events", "merged 4 files of deliveries"]
    for name, found in before.items():
        assert len(days.files(name)) == 1
        merged = days.rows(name)
        assert [row["lsn"] for row in merged] == sorted(row["lsn"] for row in found)
        assert sorted(map(str, merged)) == sorted(map(str, found))
    (path,) = days.files("events")
    covered = merge_ranges(ranges_of(open_file(days.root / "events", path)))
    assert covered == [Range(0, 0, 0, days.lsn)]
    assert history.maintain_history(days.run()).lines == []
    roll(days, *place(DAYS))
    assert rows(days, "deliveries")[-1] == place(DAYS)


def test_damage_in_one_file_holds_up_no_others(
    days: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are merged, it is named, and nothing is left over that is in no table."""
    monkeypatch.setattr(history, "pieces", partial(pieces, most=2))
    paths = sorted(days.files("events"))
    damaged = days.root / "events" / paths[0]
    data = bytearray(damaged.read_bytes())
    data[8] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(JobFailed, match=paths[0]):
        history.maintain_history(days.run())
    live = days.files("events")
    assert len(live) == 3 and set(paths) - set(live) and paths[0] in live
    on_disk = {file.name for file in (days.root / "events").glob("*.parquet")}
    assert on_disk == {*live, *paths}
    assert len(days.files("deliveries")) == 2


def test_what_is_too_old_goes_file_by_file(days: World) -> None:
    """When all of a file is older than configured; the counts by the hour stay."""
    days.settings = Settings(events_days=2, merge=False)
    counted = days.rows("hourly")
    report = history.maintain_history(days.run())
    kept = [place(day) for day in (1, 2, 3)]
    assert rows(days, "events") == kept
    assert rows(days, "deliveries") == kept
    assert report.lines == [
        "removed 1 old events",
        "removed 1 old deliveries",
    ]
    assert days.rows("hourly") == counted


def test_nothing_goes_that_was_not_counted_yet(world: World) -> None:
    """While deliveries lag behind, their events stay, however old they are."""
    world.settings = Settings(events_days=1, merge=False)
    for day in range(4):
        roll(world, *place(day), derive=day == 0)
    history.maintain_history(world.run())
    assert rows(world, "events") == [place(day) for day in (1, 2, 3)]
    world.settings = world.settings._replace(derived=False)
    history.maintain_history(world.run())
    assert rows(world, "events") == [place(day) for day in (2, 3)]


@pytest.mark.parametrize("why", ["unsettled", "forever", "other topics"])
def test_nothing_goes_without_a_reason(days: World, why: str) -> None:
    """The time is in doubt, there is no limit, or only one topic is meant."""
    days.settings = Settings(events_days=0 if why == "forever" else 1, merge=False)
    days.time_settled = why != "unsettled"
    run = replace(days.run(), only=frozenset({1}) if why == "other topics" else None)
    assert history.maintain_history(run).lines == []
    assert len(rows(days, "events")) == DAYS


def test_outcomes_are_right_after_events_were_merged(world: World) -> None:
    """A lease in a file that was merged, or is gone, still counts for the settle after it."""
    leased = (int(EventKind.LEASED), 9, 30, 1, 1, "ann", "")
    world.settings = Settings(events_days=1)
    log = [Happened(1, 0, "g", 1, 0, leased), Happened(1, 0, "g", 5 * DAY, 0, settled(9))]
    for one in log:
        world.roll_events([one], one.lsn + 1)
        world.roll_records([], one.lsn + 1)
        at(world, one.lsn)
        derived.derive_deliveries(world.run())
        hours.derive_hourly(world.run())
        history.maintain_history(world.run())
    assert rows(world, "events") == [(5 * DAY, 9)]
    found = [tuple(row.values()) for row in world.rows("deliveries")]
    assert found == plain.deliveries(log)
