"""Tables of an archive: made once, committed to once, and never where something else is."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from brokerd.archive.contract.layout import (
    DELIVERIES,
    EVENTS,
    LAYOUTS,
    RECORDS,
    Layout,
    Range,
    arrow_schema,
)
from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive
from brokerd.archive.delta.actions import AddFile, add_file
from brokerd.archive.delta.log_files import COMMITS, FileStats, Snapshot, encode_commit
from brokerd.archive.delta.log_reader import DeltaLog
from brokerd.archive.delta.table import Table, TableConflict
from brokerd.archive.delta.tables import ensure_tables, open_tables
from brokerd.archive.parquet.writer import FileWriter
from brokerd.archive.storage.address import ObjectAddress
from tests.archive.adding import (
    LOG_ID,
    NOW_MS,
    OTHER_LOG_ID,
    Row,
    records_file,
    write_records,
)

APP = "brokerd-rollup"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def table(root: Path) -> Table:
    return ensure_tables(root, LOG_ID, NOW_MS)[RECORDS.name]


def again(root: Path) -> Table:
    return Table(root, RECORDS, LOG_ID)


# -- Making tables -------------------------------------------------------------------------------


def test_broker_that_reads_an_archive_loads_only_what_reading_takes() -> None:
    code = (
        "import sys, brokerd.archive.delta.tables\n"
        "loaded = {'deltalake', 'pandas', 'pyarrow.dataset', 'pyspark'} & set(sys.modules)\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tables_are_what_other_programs_take_them_for(root: Path) -> None:
    tables = ensure_tables(root, LOG_ID, NOW_MS)
    assert set(tables) == set(LAYOUTS)
    for name, layout in LAYOUTS.items():
        found = DeltaTable(root / name)
        assert [(c.name, c.type.type, c.nullable) for c in found.schema().fields] == [
            tuple(column) for column in layout.columns
        ]
        assert found.metadata().partition_columns == list(layout.partition_by)
        assert found.metadata().configuration["brokerd.log_id"] == LOG_ID
        assert found.metadata().configuration["brokerd.version"] == "1"
        assert tables[name].version == found.version() == 0


def test_tables_that_are_there_are_opened_as_they_are(root: Path, table: Table) -> None:
    table.commit([records_file(1, 0, 10)], now_ms=NOW_MS)
    found = ensure_tables(root, LOG_ID, NOW_MS)
    assert found["records"].version == 1
    assert found["events"].version == 0


def test_making_tables_that_was_stopped_goes_on(root: Path) -> None:
    (root / "records" / COMMITS).mkdir(parents=True)
    (root / "records" / COMMITS / ".commit-0123.tmp").write_text("half")
    (root / "events").mkdir()
    assert set(ensure_tables(root, LOG_ID, NOW_MS)) == set(LAYOUTS)


def make_tables(root: Path) -> int:
    return ensure_tables(root, LOG_ID, NOW_MS)["hourly"].version


def test_two_may_make_the_tables_at_once(root: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.map(make_tables, [root] * 8) == [0] * 8


def foreign_file(root: Path) -> None:
    root.write_text("a file")


def foreign_directory(root: Path) -> None:
    root.mkdir()
    (root / "photos").mkdir()


def foreign_delta_table(root: Path) -> None:
    DeltaTable.create(root, pa.schema([pa.field("a", pa.int64())]))


def foreign_records(root: Path) -> None:
    DeltaTable.create(root / "records", pa.schema([pa.field("a", pa.int64())]))


def records_without_a_log(root: Path) -> None:
    (root / "records" / "bucket=1").mkdir(parents=True)


def file_for_a_table(root: Path) -> None:
    root.mkdir()
    (root / "events").write_text("a file")


def archive_of_another_log(root: Path) -> None:
    ensure_tables(root, OTHER_LOG_ID, NOW_MS)


@pytest.mark.parametrize(
    "make",
    [
        foreign_file,
        foreign_directory,
        foreign_delta_table,
        foreign_records,
        records_without_a_log,
        file_for_a_table,
        archive_of_another_log,
    ],
)
def test_nothing_is_made_where_something_else_is(root: Path, make: Callable[[Path], None]) -> None:
    make(root)
    before = sorted(root.rglob("*"))
    with pytest.raises(ForeignArchive) as caught:
        ensure_tables(root, LOG_ID, NOW_MS)
    assert str(root) in str(caught.value)
    assert sorted(root.rglob("*")) == before


def test_root_of_a_file_system_is_an_empty_directory(root: Path) -> None:
    (root / "lost+found").mkdir(parents=True)
    assert set(ensure_tables(root, LOG_ID, NOW_MS)) == set(LAYOUTS)


def test_table_that_is_gone_is_named(root: Path, table: Table) -> None:
    (root / "records").rename(root / "moved")
    with pytest.raises(ArchiveUnavailable, match=r"records is gone"):
        table.refresh()


# -- Commits -------------------------------------------------------------------------------------


def test_server_that_is_gone_before_columns_change_is_named(
    bucket: ObjectAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deltalake reads the table's metadata, and has errors of its own."""
    table = ensure_tables(bucket, LOG_ID, NOW_MS)[RECORDS.name]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(
        ArchiveUnavailable, match=f"^{bucket}/records cannot be read: no connection"
    ):
        table.set_columns({"brokerd.test": "1"}, now_ms=NOW_MS)


def test_commit_is_there_for_who_opens_the_table_afterwards(root: Path, table: Table) -> None:
    files = [records_file(1, 0, 10), records_file(2, 0, 20, partition=7)]
    assert table.commit(files, transactions={APP: 4096}, now_ms=NOW_MS)
    for one in (table, again(root)):
        assert one.version == 1
        assert one.transaction(APP) == 4096
        assert one.transaction("another") == 0
        assert sorted(one.paths()) == sorted(file.path for file in files)


def test_committing_twice_does_it_once_and_says_so(root: Path, table: Table) -> None:
    """Also for whoever opened the table in between, and for a transaction that is behind."""
    assert table.commit([records_file(1, 0, 10, number=1)], transactions={APP: 10}, now_ms=NOW_MS)
    for one in (table, again(root)):
        for lsn in (10, 9):
            again_added = [records_file(1, 0, 10, number=2)]
            assert not one.commit(again_added, transactions={APP: lsn}, now_ms=NOW_MS)
    assert (again(root).version, len(again(root).paths())) == (1, 1)


def test_commit_of_which_one_transaction_is_new_is_done(table: Table) -> None:
    assert table.commit([], transactions={APP: 10, "b": 5}, now_ms=NOW_MS)
    assert table.commit([records_file(1, 0, 10)], transactions={APP: 10, "b": 6}, now_ms=NOW_MS)
    assert not table.commit([], transactions={APP: 10, "b": 6}, now_ms=NOW_MS)
    assert table.version == 2


def test_commit_by_somebody_who_did_not_see_the_last_one_is_refused(
    root: Path, table: Table
) -> None:
    """Both made files of the same part of the log."""
    late = again(root)
    table.commit([records_file(1, 0, 10, number=1)], transactions={APP: 10}, now_ms=NOW_MS)
    files = [records_file(1, 0, 20, number=2)]
    with pytest.raises(TableConflict, match=f"raised {APP} from 0 to 10"):
        late.commit(files, transactions={APP: 20}, now_ms=NOW_MS)
    assert again(root).version == 1
    late.refresh()
    assert late.commit(files, transactions={APP: 20}, now_ms=NOW_MS)


def test_a_mark_that_another_process_changed_is_a_conflict(root: Path, table: Table) -> None:
    """Both made an empty table anew, of a part of the log: its rows would be there twice."""
    for was, lsn in ((0, 10), (10, 7)):
        late = again(root)
        table.commit(
            [records_file(1, 0, 10, number=lsn)], table.paths(), marks={APP: lsn}, now_ms=1
        )
        with pytest.raises(TableConflict, match=f"raised {APP} from {was} to {lsn}"):
            late.commit([records_file(1, 0, 10, number=2)], marks={APP: 10}, now_ms=NOW_MS)
        assert len(again(root).paths()) == 1


def test_files_take_the_place_of_others_beside_what_is_added_meanwhile(
    root: Path, table: Table
) -> None:
    old = [records_file(1, 0, 10, number=1), records_file(1, 10, 20, number=2)]
    table.commit(old, transactions={APP: 1}, now_ms=NOW_MS)
    cleaning = again(root)
    later = records_file(1, 20, 30, number=3)
    table.commit([later], transactions={APP: 2}, now_ms=NOW_MS)
    merged = records_file(1, 0, 20, number=4)
    assert cleaning.commit([merged], [file.path for file in old], now_ms=NOW_MS)
    assert sorted(again(root).paths()) == sorted([later.path, merged.path])


def test_removing_a_file_that_somebody_removed_is_refused(root: Path, table: Table) -> None:
    old = records_file(1, 0, 10, number=1)
    table.commit([old], now_ms=NOW_MS)
    late = again(root)
    table.commit([records_file(1, 0, 10, number=2)], [old.path], now_ms=NOW_MS)
    with pytest.raises(TableConflict, match="another process removed"):
        late.commit([records_file(1, 0, 10, number=3)], [old.path], now_ms=NOW_MS)
    assert len(again(root).paths()) == 1


@pytest.mark.parametrize("number", range(1, 5))
def test_statistics_bring_no_file_back_that_somebody_removes_meanwhile(
    root: Path, table: Table, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Before each read of the table. A bucket has no lock that keeps two jobs apart."""
    old = records_file(1, 0, 10, number=1)
    table.commit([old], now_ms=NOW_MS)
    rival, read, reads = again(root), DeltaLog.read, list[int]()

    def read_late(log: DeltaLog) -> Snapshot | None:
        if log is table._log:
            reads.append(1)
            if len(reads) == number:
                rival.commit([], [old.path], now_ms=NOW_MS)
        return read(log)

    monkeypatch.setattr(DeltaLog, "read", read_late)
    try:
        table.describe([old], now_ms=NOW_MS)
    except TableConflict as error:
        assert "another process removed" in str(error)
    if len(reads) < number:
        rival.commit([], [old.path], now_ms=NOW_MS)
    assert again(root).paths() == []


def test_adding_a_file_that_is_there_is_refused(table: Table) -> None:
    table.commit([records_file(1, 0, 10)], now_ms=NOW_MS)
    with pytest.raises(TableConflict, match="in the table already"):
        table.commit([records_file(1, 0, 10)], now_ms=NOW_MS)


def commit_fifty(job: tuple[Path, int]) -> int:
    root, number = job
    table = again(root)
    for n in range(50):
        file = records_file(1, n, n + 1, number=100 * number + n)
        while not table.commit([file], transactions={f"app{number}": n + 1}, now_ms=NOW_MS):
            pass
    return table.transaction(f"app{number}")


def test_none_of_many_commits_at_once_is_lost(root: Path, table: Table) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.map(commit_fifty, [(root, number) for number in range(4)]) == [50] * 4
    found = again(root)
    assert found.version == 200
    assert len(found.paths()) == 200
    assert [found.transaction(f"app{n}") for n in range(4)] == [50] * 4
    assert DeltaTable(found.path).version() == 200


def test_commit_cannot_be_seen_before_it_is_on_the_disk(
    root: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are synced before it has its name, and its name before the call returns."""
    seen: list[tuple[str, bool]] = []
    name = table.path / COMMITS / f"{1:020d}.json"
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        seen.append((os.readlink(f"/proc/self/fd/{descriptor}"), name.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    table.commit([records_file(1, 0, 10)], now_ms=NOW_MS)
    (temporary, before), (directory, after) = seen[:2]
    assert Path(temporary).parent == name.parent
    assert not before
    assert directory == str(name.parent)
    assert after


def test_broker_has_the_names_of_commits_on_the_disk_before_it_relies_on_them(
    root: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever committed may have died between giving the name and syncing the directory."""
    seen: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: seen.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    again(root)
    assert seen == [str(table.path / COMMITS)]


# -- Disks that refuse ---------------------------------------------------------------------------


def refuse(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Have the disk refuse to keep anything."""

    def fsync(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)


def test_full_disk_is_named_and_nothing_is_half_done(
    root: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(root.rglob("*"))
    with monkeypatch.context() as full:
        refuse(full, errno.ENOSPC)
        full.setattr("brokerd.archive.storage.local.LocalStore.sync_directory", lambda *some: None)
        with pytest.raises(ArchiveUnavailable, match=r"_delta_log.*No space left on device"):
            table.commit([records_file(1, 0, 10)], now_ms=NOW_MS)
    assert sorted(root.rglob("*")) == before
    assert table.commit([records_file(1, 0, 10)], now_ms=NOW_MS)


def test_write_that_the_disk_cuts_short_leaves_nothing(root: Path, table: Table) -> None:
    before = sorted(root.rglob("*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(ArchiveUnavailable, match="File too large"):
            table.commit([records_file(1, 0, 10)], now_ms=NOW_MS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(root.rglob("*")) == before


def test_read_only_directory_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(ArchiveUnavailable, match=r"archive cannot be written: Read-only file"):
        ensure_tables(root, LOG_ID, NOW_MS)


def test_tables_that_cannot_be_written_to_are_found_before_any_work(
    root: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that is mounted read-only; so is a place where none can be made."""
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    for name in ("archive", "elsewhere/archive"):
        place = root.parent / name
        with pytest.raises(ArchiveUnavailable, match=f"^{root.parent}.* cannot be written: check"):
            open_tables(place, LOG_ID)
    assert not (root.parent / "elsewhere").exists()


# -- What other programs see ---------------------------------------------------------------------


def test_statistics_let_other_programs_skip_files(root: Path, table: Table) -> None:
    """Times are rounded outward, to milliseconds."""
    table.commit([records_file(1, 1_234_567, 9_000_002)], now_ms=NOW_MS)
    found = pa.table(DeltaTable(table.path).get_add_actions(flatten=True))
    (row,) = found.to_pylist()
    assert row["num_records"] == 9_000_002 - 1_234_567
    assert row["partition.bucket"] == 1
    assert (row["min.topic_id"], row["max.topic_id"]) == (1, 1)
    assert (row["min.offset"], row["max.offset"]) == (1_234_567, 9_000_001)
    assert row["min.append_time"] == datetime(1970, 1, 1, 0, 0, 1, 234_000, UTC)
    assert row["max.append_time"] == datetime(1970, 1, 1, 0, 0, 9, 1_000, UTC)
    assert DeltaTable(table.path).file_uris(file_pruning_predicate="offset < 1000") == []


@pytest.mark.parametrize("time_us", [-1, 1 << 62])
def test_time_that_no_calendar_has_is_no_statistic(table: Table, time_us: int) -> None:
    file = records_file(1, 0, 10)._replace(minimum={"append_time": time_us, "offset": 0})
    assert table.commit([file], now_ms=NOW_MS)
    (row,) = pa.table(DeltaTable(table.path).get_add_actions(flatten=True)).to_pylist()
    assert row["min.offset"] == 0
    assert row.get("min.append_time") is None


def rows_of(layout: Layout, count: int, **columns: Any) -> pa.Table:
    """Rows whose columns are what is said, else their number, or null."""
    found = {}
    for field in arrow_schema(layout):
        values = columns.get(field.name, range(count))
        array = pa.nulls(count, field.type) if field.nullable else pa.array(values)
        found[field.name] = array.cast(field.type)
    return pa.table(found, schema=arrow_schema(layout))


def test_file_of_records_is_added_as_it_was_written(table: Table) -> None:
    rows = rows_of(
        RECORDS,
        5,
        topic_id=[3] * 5,
        partition=[1] * 5,
        offset=range(100, 105),
        value=[b"xy"] * 5,
        encoding=[1] * 5,
    )
    with FileWriter(table.path, RECORDS, LOG_ID, [Range(3, 1, 100, 105)]) as writer:
        writer.write(rows)
        info = writer.close()
    assert table.commit([add_file(info)], now_ms=NOW_MS)
    (row,) = table.files.to_pylist()
    facts = FileStats(5, 10, 0, 4, 0, 4, keyed=0, tombstones=0, expiring=4, described=1, text=2)
    assert row == {"path": info.path, "size": info.size, **facts._asdict()}
    (told,) = pa.table(DeltaTable(table.path).get_add_actions(flatten=True)).to_pylist()
    assert (told["min.offset"], told["max.offset"], told["max.expires_at"]) == (100, 104, 4)
    assert DeltaTable(table.path).to_pyarrow_table()["value"].to_pylist() == [b"xy"] * 5


def test_others_may_ask_for_columns_of_which_files_tell_nothing(root: Path) -> None:
    """A data set of deltalake with a filter on such a column finds the rows that there are."""
    tables = ensure_tables(root, LOG_ID, NOW_MS)
    table = tables[RECORDS.name]
    info = write_records(table, [Range(1, 0, 0, 5)], [Row(1, 0, offset) for offset in range(5)])
    assert table.commit([add_file(info)], now_ms=NOW_MS)
    found = DeltaTable(table.path).to_pyarrow_dataset()
    assert found.count_rows(filter=pc.field("topic") == "t1") == 5
    assert found.count_rows(filter=pc.field("offset") > 2) == 2
    for name, one in tables.items():
        properties = DeltaTable(one.path).metadata().configuration
        named = properties["delta.dataSkippingStatsColumns"].split(",")
        assert tuple(named) == LAYOUTS[name].skipping != ()


def test_file_of_events_is_added_as_it_was_written(root: Path) -> None:
    table = ensure_tables(root, LOG_ID, NOW_MS)[EVENTS.name]
    with FileWriter(table.path, EVENTS, LOG_ID, [Range(0, 0, 0, 4096)]) as writer:
        writer.write(rows_of(EVENTS, 3, time=[7, 8, 9], kind=["LEASED"] * 3))
        info = writer.close()
    assert table.commit([add_file(info)], now_ms=NOW_MS)
    (row,) = table.files.to_pylist()
    facts = FileStats(3, 0, 7, 9, 0, 2, described=1)
    assert row == {"path": info.path, "size": info.size, **facts._asdict()}
    assert DeltaTable(table.path).to_pyarrow_table()["kind"].to_pylist() == ["LEASED"] * 3


def test_rows_are_read_by_other_programs(root: Path) -> None:
    table = ensure_tables(root, LOG_ID, NOW_MS)[DELIVERIES.name]
    rows = rows_of(DELIVERIES, 2)
    path = "part of a day.parquet"
    pq.write_table(rows, table.path / path)
    file = AddFile(path, (table.path / path).stat().st_size, FileStats(2))
    assert table.commit([file], transactions={"x": 1}, now_ms=NOW_MS)
    assert again_of(root, DELIVERIES.name).paths() == [path]
    found = DeltaTable(table.path).to_pyarrow_table()
    assert found["offset"].to_pylist() == [0, 1]
    assert DeltaTable(table.path).transaction_version("x") == 1
    assert again_of(root, DELIVERIES.name).commit([], [path], now_ms=NOW_MS)
    assert DeltaTable(table.path).to_pyarrow_table().num_rows == 0


def again_of(root: Path, name: str) -> Table:
    return Table(root, LAYOUTS[name], LOG_ID)


def test_history_tells_people_what_was_done(table: Table) -> None:
    table.commit([records_file(1, 0, 10)], now_ms=NOW_MS, operation="ROLLUP")
    newest, _ = DeltaTable(table.path).history()
    assert newest["operation"] == "ROLLUP"
    assert newest["timestamp"] == NOW_MS


def test_commit_of_others_that_says_nothing_is_passed_over(root: Path, table: Table) -> None:
    path = table.path / COMMITS / f"{1:020d}.json"
    path.write_bytes(encode_commit([], "WRITE", NOW_MS).replace(b'"brokerd":"', b'"x":"'))
    assert table.commit([records_file(1, 0, 10)], now_ms=NOW_MS)
    assert again(root).version == 2
