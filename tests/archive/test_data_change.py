"""Maintenance tells streams over the Delta log which commits change no row."""

from __future__ import annotations

import json
from pathlib import Path

from brokerd.archive.delta.log_files import COMMITS
from brokerd.archive.maintain.clean import clean
from brokerd.archive.maintain.history import maintain_history
from brokerd.archive.run import Settings
from brokerd.walformat import EventKind
from tests.archive.plain import Happened
from tests.archive.world import World, record


def data_changes(world: World, table: str) -> list[tuple[str, set[bool]]]:
    """Return the operation and the values of ``dataChange`` of each commit after the first."""
    found = []
    for path in sorted((world.root / table / COMMITS).glob("*.json"))[1:]:
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        files = [one for line in lines for name, one in line.items() if name in ("add", "remove")]
        operation = lines[0]["commitInfo"]["operation"]
        found.append((operation, {one["dataChange"] for one in files}))
    return found


def test_merge_changes_no_row_and_removal_does(tmp_path: Path) -> None:
    world = World(tmp_path, None)
    world.topic(1, (0, 0))
    world.topic(2, (5, 5))
    for at in range(4):
        world.lsn += 100
        world.roll_records([[record(at, lsn=world.lsn - 50)]], world.lsn)
    world.lsn += 100
    rows = [record(offset, topic_id=2, lsn=world.lsn - 50) for offset in range(5)]
    world.roll_records([rows], world.lsn)
    clean(world.run())
    assert len(world.files("records")) == 1
    assert [row["offset"] for row in world.rows("records")] == [0, 1, 2, 3]
    assert data_changes(world, "records") == [
        *[("WRITE", {True})] * 5,
        ("CLEAN", {True}),
        ("OPTIMIZE", {False}),
    ]


def test_merge_of_events_changes_no_row(tmp_path: Path) -> None:
    world = World(tmp_path, None)
    world.settings = Settings(derived=False)
    leased = (int(EventKind.LEASED), 0, 0, 0, 0, "", "")
    for at in range(4):
        world.roll_events([Happened(1, 0, "g", 100 * at + 1, 0, leased)], 100 * at + 100)
        world.lsn = 100 * at + 100
    maintain_history(world.run())
    assert data_changes(world, "events") == [*[("WRITE", {True})] * 4, ("OPTIMIZE", {False})]
