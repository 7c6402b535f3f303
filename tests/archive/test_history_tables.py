"""Events and deliveries without Spark: which files are merged, which go, and what a run reports.

``test_history.py`` derives the deliveries with Spark; here they are written by hand.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from brokerd.archive.contract.layout import DELIVERIES, HOURLY, arrow_schema
from brokerd.archive.delta.actions import add_plain_file
from brokerd.archive.delta.log_files import COMMITS
from brokerd.archive.delta.table import Table
from brokerd.archive.derive.deliveries import DELIVERIES_APP
from brokerd.archive.derive.hourly import HOURLY_APP
from brokerd.archive.errors import JobFailed
from brokerd.archive.maintain import history
from brokerd.archive.maintain.history import maintain_history
from brokerd.archive.maintain.merge_policy import pieces
from brokerd.archive.parquet.plain_file import PlainFileWriter
from brokerd.archive.run import Settings
from brokerd.archive.storage.store import open_store
from brokerd.walformat import EventKind
from tests.archive.plain import STEP_US, Happened, deliveries
from tests.archive.world import LOG_ID, NOW_MS, World

DAY = 24 * 3_600_000_000 // STEP_US
"""In LSNs."""
SETTLED = (int(EventKind.SETTLED), 0, 0, 0, 0, "", "")
KEEP = Settings(merge=False)
MERGE = Settings(events_days=0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An archive of four days. Each day settled two records, which are counted."""
    world = World(tmp_path, None)
    for day in range(4):
        add_day(world, day)
    count(world, DELIVERIES.name, DELIVERIES_APP, world.lsn)
    count(world, HOURLY.name, HOURLY_APP, world.lsn)
    return world


def first_lsn(day: int) -> int:
    return 1 + day * DAY


def last_time_us(day: int) -> int:
    """Return the time of the last row of a day."""
    return Happened(1, 0, "g", first_lsn(day) + 1, 0, SETTLED).time_us


def add_day(world: World, day: int) -> None:
    """Add a file of events and one of deliveries, both with two rows of a day."""
    lsn = first_lsn(day)
    log = [
        Happened(1, 0, "g", at, 0, (SETTLED[0], offset, *SETTLED[2:]))
        for at, offset in ((lsn, 2 * day), (lsn + 1, 2 * day + 1))
    ]
    world.roll_events(log, lsn + 2)
    names = arrow_schema(DELIVERIES).names
    rows = [dict(zip(names, row, strict=True)) for row in deliveries(log)]
    store, table, path = open_store(world.root), DELIVERIES.name, f"d-{9 - day}.parquet"
    with PlainFileWriter(
        store, table, arrow_schema(DELIVERIES), DELIVERIES.statistics, DELIVERIES.texts
    ) as writer:
        writer.write(pa.Table.from_pylist(rows, arrow_schema(DELIVERIES)))
        info = writer.close(f"{table}/{path}")
    added = add_plain_file(info._replace(path=path), "outcome_time")
    Table(world.root, DELIVERIES, LOG_ID).commit([added], now_ms=NOW_MS)
    world.lsn = lsn + 2
    world.time_us = last_time_us(day)


def count(world: World, table: str, app: str, lsn: int) -> None:
    """Say that a derived table includes the rows below an LSN."""
    Table(world.root, world.tables[table].layout, LOG_ID).commit([], (), {app: lsn}, now_ms=NOW_MS)


def maintain(world: World, settings: Settings, **fields: Any) -> Any:
    world.settings = settings
    return maintain_history(replace(world.run(), **fields))


def days(world: World, name: str) -> list[int]:
    """Return the days of the rows of a table."""
    return sorted((row["lsn"] - 1) // DAY for row in world.rows(name))


def operations(world: World, name: str) -> list[str]:
    commits = sorted((world.root / name / COMMITS).glob("*.json"))
    return [
        json.loads(path.read_bytes().splitlines()[0])["commitInfo"]["operation"] for path in commits
    ]


def damage(world: World, name: str, path: str) -> None:
    file = world.root / name / path
    data = bytearray(file.read_bytes())
    data[8] ^= 1
    file.write_bytes(data)


def test_files_are_merged_in_the_order_of_the_log(world: World) -> None:
    """Their names have another order."""
    commits = {name: len(operations(world, name)) for name in ("events", "deliveries")}
    report = maintain(world, MERGE)
    assert report.lines == ["merged 4 files of events", "merged 4 files of deliveries"]
    assert report.numbers == {
        "old_events": 0,
        "merged_events": 4,
        "old_deliveries": 0,
        "merged_deliveries": 4,
    }
    for name in ("events", "deliveries"):
        assert len(world.files(name)) == 1
        assert [row["lsn"] for row in world.rows(name)] == [
            first_lsn(day) + at for day in range(4) for at in range(2)
        ]
        assert operations(world, name)[commits[name] :] == ["OPTIMIZE"]
        last = Table(world.root, world.tables[name].layout, LOG_ID).files.to_pylist()[0]
        assert last["last_time_us"] == last_time_us(3)
    report = maintain(world, MERGE)
    assert report.lines == []
    assert operations(world, "deliveries")[-1:] == ["OPTIMIZE"], (
        "a run with no work commits nothing"
    )


def test_small_rounds_merge_more_files_at_once(world: World) -> None:
    """Four files of a size are too few for them."""
    assert maintain(world, MERGE, merge_growth=8).lines == []
    assert maintain(world, MERGE, merge_growth=4).lines[0] == "merged 4 files of events"


def test_old_files_go_and_the_report_counts_their_rows(world: World) -> None:
    report = maintain(world, KEEP._replace(events_days=2))
    assert days(world, "events") == [1, 1, 2, 2, 3, 3]
    assert days(world, "deliveries") == [1, 1, 2, 2, 3, 3]
    assert report.lines == ["removed 2 old events", "removed 2 old deliveries"]
    assert (report.numbers["old_events"], report.numbers["merged_events"]) == (2, 0)
    assert operations(world, "events")[-1] == "DELETE"
    before = len(operations(world, "events"))
    assert maintain(world, KEEP._replace(events_days=2)).lines == []
    assert len(operations(world, "events")) == before


def test_a_file_is_old_when_its_last_row_is_older_than_the_limit(world: World) -> None:
    """A row exactly as old as the limit stays."""
    world.time_us = last_time_us(0) + 2 * DAY * STEP_US
    maintain(world, KEEP._replace(events_days=2))
    assert min(days(world, "events")) == 0
    world.time_us += 1
    maintain(world, KEEP._replace(events_days=2))
    assert min(days(world, "events")) == 1


@pytest.mark.parametrize(
    ("uncounted", "used_by", "app"),
    [("events", "deliveries", DELIVERIES_APP), ("deliveries", "hourly", HOURLY_APP)],
)
def test_old_rows_stay_until_the_derived_table_includes_them(
    tmp_path: Path, uncounted: str, used_by: str, app: str
) -> None:
    world = World(tmp_path, None)
    for day in range(4):
        add_day(world, day)
    apps = {"deliveries": DELIVERIES_APP, "hourly": HOURLY_APP}
    for name, other in apps.items():
        if name != used_by:
            count(world, name, other, world.lsn)
    count(world, used_by, app, first_lsn(0) + 1)
    settings = KEEP._replace(events_days=1)
    maintain(world, settings)
    assert days(world, uncounted) == [0, 0, 1, 1, 2, 2, 3, 3], "the last row is not counted"
    other = "events" if uncounted == "deliveries" else "deliveries"
    assert days(world, other) == [2, 2, 3, 3]
    count(world, used_by, app, first_lsn(0) + 2)
    maintain(world, settings)
    assert days(world, uncounted) == [1, 1, 2, 2, 3, 3]
    maintain(world, settings._replace(derived=False))
    assert days(world, uncounted) == [2, 2, 3, 3], "no table is derived"


@pytest.mark.parametrize("why", ["unsettled", "forever", "other topics"])
def test_nothing_changes_without_a_reason(world: World, why: str) -> None:
    world.time_settled = why != "unsettled"
    settings = Settings(events_days=0 if why == "forever" else 1, merge=why == "other topics")
    report = maintain(world, settings, only=frozenset({1}) if why == "other topics" else None)
    assert report.lines == []
    assert len(world.files("events")) == len(world.files("deliveries")) == 4


def test_a_damaged_file_leaves_the_other_work_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each problem is named, of both tables."""
    monkeypatch.setattr(history, "pieces", lambda runs: pieces(runs, 2))
    first = Table(world.root, world.tables["events"].layout, LOG_ID).files.to_pylist()
    (bad,) = (one["path"] for one in first if one["first_lsn"] == first_lsn(0))
    damage(world, "events", bad)
    with pytest.raises(JobFailed, match=bad):
        maintain(world, MERGE)
    assert bad in world.files("events")
    assert len(world.files("events")) == 3
    assert len(world.files("deliveries")) == 2
    damage(world, "deliveries", world.files("deliveries")[0])
    with pytest.raises(JobFailed, match=rf"{bad}.*; merge deliveries: "):
        maintain(world, MERGE)
