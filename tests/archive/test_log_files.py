"""The Delta log of a table: what was committed comes back, whatever a checkpoint has of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.layout import ARCHIVE_APP, RECORDS, ROLLUP_APP, Range
from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive
from brokerd.archive.delta import history, log_reader
from brokerd.archive.delta.actions import STATISTICS_PROPERTY, AddFile, add_file
from brokerd.archive.delta.checkpoints import checkpoint_if_due
from brokerd.archive.delta.history import list_versions
from brokerd.archive.delta.log_files import (
    COMMITS,
    OLDER_PROTOCOLS,
    PROTOCOL,
    SUMS,
    FileStats,
    Protocol,
    Snapshot,
    checkpoint_name,
    commit_name,
    encode_commit,
    sum_name,
)
from brokerd.archive.delta.log_reader import DeltaLog, list_log, read_log_id
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import ensure_tables
from brokerd.errors import BrokerdError, NewerFormat
from tests.archive.adding import (
    LOG_ID,
    NOW_MS,
    OTHER_LOG_ID,
    Row,
    lower_protocol,
    open_to_writers,
    records_file,
    write_records,
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return ensure_tables(tmp_path / "archive", LOG_ID, NOW_MS)[RECORDS.name]


def fresh(table: Table) -> Snapshot:
    snapshot = DeltaLog(table.path, LOG_ID).read()
    assert snapshot is not None
    return snapshot


def rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    return snapshot.files.sort_by("path").to_pylist()


def of_tests(snapshot: Snapshot) -> dict[str, int]:
    """The transactions but that which tells one archive from another."""
    return {app: lsn for app, lsn in snapshot.transactions.items() if app != ARCHIVE_APP}


def commit_path(table: Table, version: int) -> Path:
    return table.path / COMMITS / commit_name(version)


def checkpoint(table: Table) -> None:
    """Make a checkpoint of the newest version, due or not."""
    newest = DeltaLog(table.path, LOG_ID).read()
    assert newest is not None
    assert checkpoint_if_due(table.path, newest, every=0)


def fill(table: Table, versions: int) -> None:
    """Commit a file a version, so that version n has n."""
    for number in range(table.version + 1, versions + 1):
        file = records_file(1, number * 10, number * 10 + 10, number=number)
        assert table.commit([file], transactions={"app": number}, now_ms=NOW_MS)


def test_directory_without_a_log_is_no_table(tmp_path: Path) -> None:
    assert DeltaLog(tmp_path / "nowhere", LOG_ID).read() is None
    (tmp_path / COMMITS).mkdir()
    assert DeltaLog(tmp_path, LOG_ID).read() is None


def test_reading_again_gives_the_same_object_until_there_is_a_commit(table: Table) -> None:
    log = DeltaLog(table.path, LOG_ID)
    first = log.read()
    assert first is log.read()
    fill(table, 1)
    second = log.read()
    assert second is not None
    assert second is not first
    assert second.version == 1
    assert second.files["rows"].to_pylist() == [10]
    assert second is log.read()


@given(data=st.data())
def test_what_was_committed_is_read_with_and_without_what_was_read_before(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any sequence of commits and checkpoints is read as deltalake reads it."""
    root = tmp_path_factory.mktemp("log") / "archive"
    table = ensure_tables(root, LOG_ID, NOW_MS)[RECORDS.name]
    following = DeltaLog(table.path, LOG_ID)
    live: dict[str, AddFile] = {}
    for version in range(1, data.draw(st.integers(1, 8)) + 1):
        removed = data.draw(st.lists(st.sampled_from(sorted(live)), unique=True)) if live else []
        count = data.draw(st.integers(0, 3))
        added = [records_file(n, 0, version, number=8 * version + n) for n in range(1, count + 1)]
        assert table.commit(added, removed, {"app": version, "b": 5 * version}, now_ms=NOW_MS)
        live = {p: f for p, f in live.items() if p not in removed} | {f.path: f for f in added}
        if data.draw(st.booleans()):
            checkpoint(table)
        if data.draw(st.booleans()):
            following.read()
    usual = DeltaTable(table.path)
    for snapshot in (following.read(), fresh(table)):
        assert snapshot is not None
        assert snapshot.version == usual.version() == table.version
        assert of_tests(snapshot) == {"app": version, "b": 5 * version}
        assert usual.transaction_version("b") == 5 * version
        rows = snapshot.files.to_pylist()
        found = {row.pop("path"): (row.pop("size"), tuple(row.values())) for row in rows}
        assert found == {path: (file.size, tuple(file.stats)) for path, file in live.items()}
        assert {Path(uri).relative_to(table.path).as_posix() for uri in usual.file_uris()} == set(
            live
        )


def test_commits_before_a_checkpoint_are_not_needed(table: Table) -> None:
    fill(table, 3)
    checkpoint(table)
    fill(table, 5)
    expected = fresh(table)
    for version in range(4):
        commit_path(table, version).unlink()
    found = fresh(table)
    assert found.version == 5
    assert of_tests(found) == {"app": 5}
    assert rows(found) == rows(expected)


@pytest.mark.parametrize("gone", [range(4), range(2, 4)])
def test_broker_that_is_behind_the_commits_that_are_left_begins_anew(
    table: Table, gone: range
) -> None:
    fill(table, 1)
    behind = DeltaLog(table.path, LOG_ID)
    behind.read()
    fill(table, 4)
    checkpoint(table)
    for version in gone:
        commit_path(table, version).unlink()
    found = behind.read()
    assert found is not None
    assert (found.version, len(found.files)) == (4, 4)


def test_commit_within_one_tick_of_the_clock_is_seen(table: Table) -> None:
    """The directory has the same time as before, which is all that such a disk knows."""
    log = DeltaLog(table.path, LOG_ID)
    log.read()
    before = os.stat(table.path / COMMITS)
    fill(table, 1)
    os.utime(table.path / COMMITS, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = log.read()
    assert found is not None
    assert found.version == 1


def test_missing_commit_is_named(table: Table) -> None:
    fill(table, 3)
    commit_path(table, 2).unlink()
    with pytest.raises(ArchiveUnavailable, match=commit_name(2)):
        fresh(table)


def test_log_that_was_put_back_to_an_older_state_is_read_anew(table: Table) -> None:
    fill(table, 3)
    log = DeltaLog(table.path, LOG_ID)
    log.read()
    commit_path(table, 3).unlink()
    found = log.read()
    assert found is not None
    assert found.version == 2


def test_log_whose_newest_commit_was_replaced_is_read_anew(table: Table) -> None:
    fill(table, 2)
    log = DeltaLog(table.path, LOG_ID)
    log.read()
    commit_path(table, 2).unlink()
    commit_path(table, 2).write_bytes(encode_commit([], "WRITE", NOW_MS))
    found = log.read()
    assert found is not None
    assert len(found.files) == 1


def test_table_that_is_taken_away_is_no_table(table: Table) -> None:
    log = DeltaLog(table.path, LOG_ID)
    assert log.read() is not None
    shutil.rmtree(table.path)
    assert log.read() is None


# -- Damage --------------------------------------------------------------------------------------


def test_flipped_bit_of_a_commit_is_found_or_means_nothing(table: Table) -> None:
    fill(table, 2)
    expected = fresh(table)
    for version, step in ((0, 7), (2, 1)):
        path = commit_path(table, version)
        data = path.read_bytes()
        for place in range(0, len(data), step):
            damaged = bytearray(data)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            try:
                found = fresh(table)
            except (ArchiveUnavailable, ForeignArchive, NewerFormat):
                continue
            assert rows(found) == rows(expected), (version, place)
            assert found.transactions == expected.transactions
        path.write_bytes(data)


def test_commit_that_is_cut_is_found(table: Table) -> None:
    fill(table, 1)
    path = commit_path(table, 1)
    data = path.read_bytes()
    for length in range(0, len(data), 3):
        path.write_bytes(data[:length])
        with pytest.raises((ArchiveUnavailable, ForeignArchive), match=commit_name(1)):
            fresh(table)


def test_flipped_bit_of_a_checkpoint_or_its_sum_makes_an_older_state_the_base(
    table: Table,
) -> None:
    """While the commits are there nothing is lost; without them the missing one is named."""
    fill(table, 2)
    checkpoint(table)
    fill(table, 3)
    expected = fresh(table)
    gone = commit_path(table, 1)
    kept = gone.read_bytes()
    for path in (
        table.path / COMMITS / checkpoint_name(2),
        table.path / SUMS / sum_name(2),
    ):
        data = path.read_bytes()
        for place in range(0, len(data), 1 + len(data) // 150):
            damaged = bytearray(data)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            assert rows(fresh(table)) == rows(expected)
            gone.unlink()
            with pytest.raises(ArchiveUnavailable, match=commit_name(1)):
                fresh(table)
            gone.write_bytes(kept)
        path.write_bytes(data)


def test_huge_file_in_place_of_a_commit_is_not_read(table: Table) -> None:
    with commit_path(table, 1).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ArchiveUnavailable, match=r"cannot be read: it has 1099511627776 bytes"):
        fresh(table)


def test_commit_that_cannot_be_read_is_named(table: Table) -> None:
    commit_path(table, 1).mkdir()
    with pytest.raises(ArchiveUnavailable, match=f"{commit_name(1)} cannot be read"):
        fresh(table)


# -- Others --------------------------------------------------------------------------------------


def write_commit(table: Table, version: int, *actions: dict[str, Any]) -> None:
    """As another program writes one."""
    lines = [{"commitInfo": {"engineInfo": "another-engine"}}, *actions]
    commit_path(table, version).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    "action",
    [
        {"add": {"path": "part-0.parquet", "size": 3, "partitionValues": {}}},
        {"remove": {"path": "part-0.parquet"}},
        {"txn": {"appId": "brokerd-rollup", "version": 7}},
    ],
)
def test_commit_of_another_program_that_changes_the_table_is_refused(
    table: Table, action: dict[str, Any]
) -> None:
    write_commit(table, 1, action)
    with pytest.raises(ForeignArchive, match="another-engine"):
        fresh(table)


def test_another_program_may_set_properties_of_an_older_table(table: Table) -> None:
    open_to_writers(table.path)
    DeltaTable(table.path).alter.set_table_properties(
        {"user.note": "hello"}, raise_if_not_exists=False
    )
    assert fresh(table).version == 1


def refused(table: Table, log_id: str = LOG_ID) -> BrokerdError:
    with pytest.raises(BrokerdError) as caught:
        DeltaLog(table.path, log_id).read()
    return caught.value


def test_archive_of_another_log_is_refused_naming_both(table: Table) -> None:
    error = refused(table, OTHER_LOG_ID)
    assert isinstance(error, ForeignArchive)
    assert LOG_ID in str(error)
    assert OTHER_LOG_ID in str(error)


@pytest.mark.parametrize("after_checkpoint", [False, True])
def test_archive_of_another_log_is_refused_from_its_checkpoint_too(
    table: Table, after_checkpoint: bool
) -> None:
    if after_checkpoint:
        checkpoint(table)
    assert isinstance(refused(table, OTHER_LOG_ID), ForeignArchive)


def set_property(table: Table, name: str, value: str | None) -> None:
    """Change one property in version 0."""
    path = commit_path(table, 0)
    _, protocol, metadata, drawn = map(json.loads, path.read_text().splitlines())
    if value is None:
        del metadata["metaData"]["configuration"][name]
    else:
        metadata["metaData"]["configuration"][name] = value
    path.write_bytes(encode_commit([protocol, metadata, drawn], "CREATE TABLE", NOW_MS))


@pytest.mark.parametrize(
    ("name", "value"),
    [("brokerd.log_id", None), ("brokerd.version", None), ("brokerd.version", "one")],
)
def test_delta_table_without_our_properties_is_refused(
    table: Table, name: str, value: str | None
) -> None:
    set_property(table, name, value)
    error = refused(table)
    assert isinstance(error, ForeignArchive)
    assert str(table.path) in str(error)


def test_table_of_a_later_version_is_refused(table: Table) -> None:
    set_property(table, "brokerd.version", "2")
    error = refused(table)
    assert isinstance(error, NewerFormat)
    assert "upgrade brokerd" in str(error)


def test_table_with_features_of_a_later_delta_protocol_is_refused(table: Table) -> None:
    write_commit(table, 1, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}})
    error = refused(table)
    assert isinstance(error, ForeignArchive)
    assert "reader 3" in str(error)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["a", "brokerd"]}
    write_commit(table, 1, {"protocol": protocol})
    assert "reader 1, writer 7 (a, brokerd), which brokerd does not" in str(refused(table))


@pytest.mark.parametrize("old", [None, *OLDER_PROTOCOLS])
def test_other_programs_read_and_do_not_write(table: Table, old: Protocol | None) -> None:
    """Also a table of an older version, once its protocol was raised; and from a checkpoint."""
    if old is not None:
        lower_protocol(table.path, old)
        table = Table(table.path.parent, table.layout, LOG_ID)
    rows = [Row(1, 0, offset) for offset in range(5)]
    info = write_records(table, [Range(1, 0, 0, 5)], rows)
    table.commit([add_file(info)], now_ms=NOW_MS)
    assert table.keep_out_writers(NOW_MS) == (old is not None)
    assert not table.keep_out_writers(NOW_MS)
    for with_checkpoint in (False, True):
        if with_checkpoint:
            fill(table, 30)
            checkpoint_if_due(table.path, fresh(table), 1)
        other = DeltaTable(table.path)
        assert polars.scan_delta(str(table.path)).head(0).collect().width == 14
        uris = [uri.removeprefix("file://") for uri in other.file_uris()]
        assert str(table.path / info.path) in uris
        for write in (
            partial(other.delete, "offset < 2"),
            other.optimize.compact,
            partial(other.alter.set_table_properties, {"user.note": "x"}, False),
        ):
            with pytest.raises(DeltaError, match="brokerd"):
                write()
    assert fresh(table).protocol == PROTOCOL


def test_the_protocol_names_the_invariants_of_the_columns(table: Table) -> None:
    """Delta Spark reads no table whose metadata has a feature that the protocol does not name."""
    lines = (table.path / COMMITS / commit_name(0)).read_bytes().splitlines()
    actions = {name: action for line in lines for name, action in json.loads(line).items()}
    columns = json.loads(actions["metaData"]["schemaString"])["fields"]
    assert not all(column["nullable"] for column in columns)
    assert actions["protocol"]["writerFeatures"] == ["brokerd", "invariants"]


def test_whose_table_it_is_stands_in_it(table: Table) -> None:
    """In its first commit, and when that is gone in a checkpoint."""
    assert read_log_id(table.path) == LOG_ID
    fill(table, 2)
    checkpoint(table)
    commit_path(table, 0).unlink()
    assert read_log_id(table.path) == LOG_ID
    assert read_log_id(table.path / "none") is None


def test_delta_table_without_a_log_id_is_nobodys(table: Table) -> None:
    set_property(table, "brokerd.log_id", None)
    with pytest.raises(ForeignArchive, match="not one of brokerd's"):
        read_log_id(table.path)


def test_checkpoint_that_is_removed_before_it_is_read_is_named(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To whoever asks whose table it is, and to whoever reads it."""
    fill(table, 2)
    checkpoint(table)
    names = list_log(table.path)
    commit_path(table, 2).with_name(checkpoint_name(2)).unlink()
    monkeypatch.setattr(log_reader, "list_log", lambda place: names)
    for read in (read_log_id, lambda place: DeltaLog(place, LOG_ID).read()):
        with pytest.raises(ArchiveUnavailable, match="parquet cannot be read: No such"):
            read(table.path)


def listed_before(monkeypatch: pytest.MonkeyPatch, names: log_reader.LogListing) -> None:
    """Give the next reader a listing from before the last changes."""
    answers = iter((names,))
    for module in (log_reader, history):
        monkeypatch.setattr(
            module, "list_log", lambda place: next(answers, None) or list_log(place)
        )


READERS: dict[str, Callable[[Path], object]] = {
    "newest": lambda place: rows(DeltaLog(place, LOG_ID).read() or pytest.fail("no table")),
    "version": lambda place: rows(DeltaLog(place, LOG_ID).read_at(4)),
    "log id": read_log_id,
}


@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize("name", READERS)
def test_files_that_vacuum_deletes_between_listing_and_reading_are_not_needed(
    table: Table, monkeypatch: pytest.MonkeyPatch, name: str, has_checkpoint: bool
) -> None:
    fill(table, 2)
    if has_checkpoint:
        checkpoint(table)
    fill(table, 4)
    expected, names = READERS[name](table.path), list_log(table.path)
    checkpoint(table)
    for version in range(4):
        commit_path(table, version).unlink()
        commit_path(table, version).with_name(checkpoint_name(version)).unlink(missing_ok=True)
    listed_before(monkeypatch, names)
    assert READERS[name](table.path) == expected


def test_the_history_leaves_out_commits_that_are_deleted_during_its_reading(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(table, 4)
    names = list_log(table.path)
    for version in range(3):
        commit_path(table, version).unlink()
    listed_before(monkeypatch, names)
    assert [one.version for one in list_versions(table.path)] == [3, 4]


def test_the_history_has_versions_in_their_order_with_times_and_lsns(table: Table) -> None:
    """A commit of another app keeps the LSN. Clocks and LSNs may go back."""
    lsns: list[int | None] = [None, 5, 5, 90, 40, 40, 50, 60, 70, 80, 90]
    for number, lsn in enumerate(lsns[1:], start=1):
        transactions = {"app": 1_000 + number}
        if lsn != lsns[number - 1]:
            assert lsn is not None
            transactions[ROLLUP_APP] = lsn
        file = records_file(1, number * 10, number * 10 + 10, number=number)
        assert table.commit([file], transactions=transactions, now_ms=NOW_MS - number)
    wanted = [(version, NOW_MS - version, lsn) for version, lsn in enumerate(lsns)]
    assert list_versions(table.path) == wanted


def test_the_history_reads_commits_of_many_files(table: Table) -> None:
    files = [records_file(1, n * 10, n * 10 + 10, number=n) for n in range(300)]
    assert table.commit(files, now_ms=NOW_MS)
    assert commit_path(table, 1).stat().st_size > 100_000
    assert [one.version for one in list_versions(table.path)] == [0, 1]


def test_the_history_of_a_damaged_commit_is_an_error(table: Table) -> None:
    fill(table, 3)
    path = commit_path(table, 2)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"version":2', b'"version":3'))
    assert path.read_bytes() != data
    with pytest.raises(ArchiveUnavailable, match="checksum does not match"):
        list_versions(table.path)


# -- an unusual log --------------------------------------------------------------------------------


def test_a_log_without_commits_has_no_version(table: Table) -> None:
    commit_path(table, 0).unlink()
    with pytest.raises(ArchiveUnavailable, match="no version 0; the newest is -1"):
        DeltaLog(table.path, LOG_ID).read_at(0)


def test_a_log_that_was_read_is_continued_without_its_old_commits(table: Table) -> None:
    log = DeltaLog(table.path, LOG_ID)
    assert log.read() is not None
    table.commit([records_file(1, 0, 10)], now_ms=NOW_MS)
    table.commit([records_file(1, 10, 20)], now_ms=NOW_MS)
    assert log.read() is not None
    table.commit([records_file(1, 20, 30)], now_ms=NOW_MS)
    commit_path(table, 0).unlink()
    with pytest.raises(ArchiveUnavailable):
        DeltaLog(table.path, LOG_ID).read()
    found = log.read()
    assert found is not None
    assert (found.version, len(found.files)) == (3, 3)


def test_a_commit_that_cannot_be_read_is_named(table: Table) -> None:
    commit_path(table, 0).unlink()
    for target in ("nowhere", commit_name(0)):  # a file that is missing, and a loop
        commit_path(table, 0).symlink_to(target)
        with pytest.raises(ArchiveUnavailable, match=f"{commit_name(0)} cannot be read"):
            list_versions(table.path)
        commit_path(table, 0).unlink()


def test_a_file_without_the_mark_counts_as_not_described() -> None:
    assert FileStats().described == 0


@pytest.mark.parametrize("named", ["", "zzz"])
def test_other_names_of_columns_with_statistics_are_replaced(table: Table, named: str) -> None:
    wanted = fresh(table).configuration[STATISTICS_PROPERTY]
    table.set_columns({STATISTICS_PROPERTY: named}, now_ms=NOW_MS)
    assert table.name_statistics(now_ms=NOW_MS)
    assert fresh(table).configuration[STATISTICS_PROPERTY] == wanted
    assert not table.name_statistics(now_ms=NOW_MS)
