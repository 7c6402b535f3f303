"""Vacuum: what no version of the last hours needs goes, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deltalake import DeltaTable

from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.actions import AddFile
from brokerd.archive.delta.checkpoints import EVERY_COMMITS
from brokerd.archive.delta.log_files import COMMITS, SUMS
from brokerd.archive.delta.log_reader import list_log
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import ensure_tables
from brokerd.archive.delta.vacuum import remove_temporaries
from tests.archive.adding import LOG_ID, NOW_MS, records_file


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return ensure_tables(tmp_path / "archive", LOG_ID, NOW_MS)[RECORDS.name]


def age(path: Path, hours: float) -> None:
    """Make a file this old."""
    seconds = NOW_MS / 1000 - hours * 3600
    os.utime(path, (seconds, seconds))


def put(table: Table, path: str, hours: float) -> str:
    (table.path / path).parent.mkdir(exist_ok=True)
    (table.path / path).write_bytes(b"PAR1")
    age(table.path / path, hours)
    return path


def add(table: Table, number: int, hours: float = 100) -> AddFile:
    file = records_file(1, 10 * number, 10 * number + 10, number=number)
    put(table, file.path, hours)
    return file


def commit(table: Table, added: list[AddFile], removed: list[AddFile], hours: float) -> None:
    """A commit that is so old."""
    assert table.commit(added, [file.path for file in removed], now_ms=NOW_MS)
    age(table.path / COMMITS / f"{table.version:020d}.json", hours)


def there(table: Table) -> set[str]:
    found = (path for path in table.path.rglob("*") if path.is_file())
    names = {path.relative_to(table.path).as_posix() for path in found}
    return {name for name in names if not name.startswith("_")}


def test_files_go_that_were_removed_longer_ago_than_the_hours(table: Table) -> None:
    """However old they are: what counts is since when no version needs them."""
    long_ago, lately, live = (add(table, number) for number in range(3))
    commit(table, [long_ago, lately, live], [], 100)
    commit(table, [], [long_ago], 25)
    commit(table, [], [lately], 23)
    assert table.vacuum(24, NOW_MS) == [long_ago.path]
    assert there(table) == {lately.path, live.path}
    assert table.vacuum(24, NOW_MS) == []
    assert table.vacuum(0, NOW_MS) == [lately.path]
    assert there(table) == {live.path}


def test_files_that_no_commit_names_go_when_they_are_old(table: Table) -> None:
    """A job that was killed leaves them; one that is running still writes them."""
    old = add(table, 1, hours=25).path
    unfinished = put(table, "bucket=1/unfinished-0123456789abcdef.parquet", 25)
    young = add(table, 2, hours=23).path
    assert table.vacuum(24, NOW_MS) == sorted([old, unfinished])
    assert there(table) == {young}


def test_files_stay_for_exactly_the_hours(table: Table) -> None:
    removed = add(table, 0)
    commit(table, [removed], [], 100)
    commit(table, [], [removed], 24)
    unfinished = put(table, "bucket=1/unfinished-0123456789abcdef.parquet", 24)
    assert table.vacuum(24, NOW_MS) == []
    assert table.vacuum(24, NOW_MS + 1) == sorted([removed.path, unfinished])


def test_what_is_not_ours_stays(table: Table) -> None:
    kept = {put(table, "README", 1000), put(table, "bucket=1/notes.txt", 1000)}
    (table.path / "_open").mkdir()
    put(table, "_open/1.parquet", 1000)
    (table.path / "bucket=2").mkdir()
    (table.path / "bucket=2" / "directory.parquet").mkdir()
    assert table.vacuum(0, NOW_MS) == []
    assert there(table) == kept
    assert (table.path / "_open/1.parquet").exists()


def test_temporary_files_of_the_log_go_when_they_are_old(table: Table) -> None:
    (table.path / SUMS / "foreign-1").mkdir(parents=True)
    names = [
        f"{COMMITS}/.commit-0123.tmp",
        f"{COMMITS}/{1:020d}.checkpoint.parquet#1",
        f"{SUMS}/{1:020d}.tmp",
        f"{SUMS}/foreign-1/.put-0123456789abcdef.tmp",
    ]
    for hours in (25, 23):
        for name in names:
            put(table, name, hours)
        table.vacuum(24, NOW_MS)
        assert [(table.path / name).exists() for name in names] == [hours < 24] * 4


def test_temporary_files_beside_the_tables_go_when_they_are_old(table: Table) -> None:
    """The bounds and their like are replaced through them."""
    root = table.path.parent
    bounds, half = root / "bounds", root / ".put-0123456789abcdef.tmp"
    for hours in (23, 25):
        for path in (bounds, half):
            path.touch()
            os.utime(path, (NOW_MS / 1000 - hours * 3600,) * 2)
        remove_temporaries(root, 24, NOW_MS)
        assert (bounds.exists(), half.exists()) == (True, hours < 24)


def test_files_of_what_is_committed_meanwhile_stay(table: Table) -> None:
    """The table is looked at again before anything goes."""
    late = Table(table.path.parent, RECORDS, LOG_ID)
    file = add(table, 1)
    commit(table, [file], [], 1000)
    assert late.vacuum(0, NOW_MS) == []


def test_damaged_log_means_that_nothing_goes(table: Table) -> None:
    file = add(table, 1)
    path = table.path / COMMITS / f"{1:020d}.json"
    commit(table, [file], [], 1)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ArchiveUnavailable, match="damaged"):
        table.vacuum(0, NOW_MS)
    assert there(table) == {file.path}


def ages_of_the_log(table: Table, hours: dict[int, float]) -> None:
    """Make all that came with these versions, or between, so old."""
    for path in [*(table.path / COMMITS).iterdir(), *(table.path / "_brokerd").iterdir()]:
        if path.name[:20].isdigit():
            age(path, hours[max(version for version in hours if version <= int(path.name[:20]))])


def test_log_goes_that_no_version_of_the_last_week_needs(table: Table) -> None:
    for number in range(3 * EVERY_COMMITS + 5):
        commit(table, [add(table, number)], [], 1)
    first, second, third = sorted(list_log(table.path).checksummed)
    ages_of_the_log(table, {0: 400, first: 300, second: 169, second + 1: 100, third: 50})
    table.vacuum(24, NOW_MS)
    names = list_log(table.path)
    assert min(names.commits) == second
    assert sorted(names.checkpoints) == sorted(names.sums) == [second, third]
    assert len(DeltaTable(table.path, version=second).file_uris()) == second
    assert len(Table(table.path.parent, RECORDS, LOG_ID).paths()) == 3 * EVERY_COMMITS + 5


def test_log_stays_as_long_as_removed_files_do(table: Table) -> None:
    for number in range(EVERY_COMMITS + 5):
        commit(table, [add(table, number)], [], 1)
    ages_of_the_log(table, {0: 1000})
    table.vacuum(1001, NOW_MS)
    assert 0 in list_log(table.path).commits


def test_log_stays_when_no_checkpoint_proves_what_it_said(table: Table) -> None:
    for number in range(EVERY_COMMITS + 5):
        commit(table, [add(table, number)], [], 1)
    (version,) = list_log(table.path).checksummed
    path = table.path / COMMITS / f"{version:020d}.checkpoint.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    ages_of_the_log(table, {0: 1000})
    table.vacuum(24, NOW_MS)
    assert 0 in list_log(table.path).commits
