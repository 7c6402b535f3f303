"""Erasing a key: nothing of it is left, everything else stays, wherever the run stops."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from msgspec import structs

from brokerd.archive.contract.layout import RECORDS, arrow_schema
from brokerd.archive.data_dir import RollupLocked, rollup_lock
from brokerd.archive.delta.table import Table
from brokerd.archive.erase import EraseJob, EraseReport, run_erase
from brokerd.archive.errors import JobFailed
from brokerd.archive.parquet.plain_file import PlainFileReader
from brokerd.archive.parquet.reader import open_file
from brokerd.archive.run import Settings
from brokerd.archive.serve.delta_archive import DeltaArchive
from brokerd.archive.storage.address import ObjectAddress, Place
from brokerd.archive.storage.store import open_store
from tests.archive.data import MIB, NOW_MS, Data
from tests.archive.inline import ingest_inline
from tests.archive.making import LOG_ID

SETTINGS = Settings(file_bytes=MIB)
KEY = b"customer-7"


class Stopped(Exception):
    """In place of a process that is killed."""


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


@pytest.fixture(params=["directory", "bucket"])
def root(request: pytest.FixtureRequest, data: Data) -> Place:
    """Return the place of an archive, of both kinds."""
    if request.param == "directory":
        return data.root
    found: ObjectAddress = request.getfixturevalue("bucket")
    return found


def fill(data: Data, root: Place, rounds: int = 3) -> list[tuple[Any, ...]]:
    """Write keyed records of three topics, each round into a segment and files of its own."""
    for turn in range(rounds):
        for topic_id in (1, 17, 2):  # 1 and 17 are in the same bucket
            for partition in (0, 1):
                keys = [KEY, b"other", None, b"customer-70", KEY]
                values = [b"%d %d %d %d" % (turn, topic_id, partition, at) for at in range(5)]
                data.append(topic_id, partition, *values, keys=keys)
        data.log.seal()
        data.publish()
        ingest_inline(root, data.wal, data.bounds(), SETTINGS)
    return rows(root)


def rows(root: Place) -> list[tuple[Any, ...]]:
    """Return all rows of the table of records, with all columns."""
    store = open_store(root)
    found: list[tuple[Any, ...]] = []
    for path in Table(root, RECORDS, LOG_ID).paths():
        for some in PlainFileReader(store, f"records/{path}").read(arrow_schema(RECORDS)):
            found += zip(*(column.to_pylist() for column in some.columns), strict=True)
    return sorted(found, key=repr)


TOPIC_ID, PARTITION, OFFSET, KEY_AT = (
    arrow_schema(RECORDS).names.index(name) for name in ("topic_id", "partition", "offset", "key")
)


def is_of_key(row: tuple[Any, ...]) -> bool:
    return row[TOPIC_ID] == 1 and row[KEY_AT] == KEY


def erase(data: Data, root: Place, **changes: Any) -> EraseReport:
    given = {
        "data_dir": data.path,
        "root": root,
        "settings": SETTINGS,
        "now_ms": lambda: NOW_MS,
        "topic": "topic-1",
        "key": KEY,
        **changes,
    }
    return run_erase(EraseJob(**given))


def stored(root: Place) -> list[str]:
    """Return the paths of all Parquet files of the table of records."""
    return [one.path for one in open_store(root / "records").list()]


def test_an_erasure_leaves_all_else(data: Data, root: Place) -> None:
    """The counts are right, and every file that held the key is gone from the store."""
    before = fill(data, root)
    files = set(Table(root, RECORDS, LOG_ID).paths())
    report = erase(data, root)
    assert rows(root) == [row for row in before if not is_of_key(row)]
    assert (report.found_before, report.erased, report.found_after) == (12, 12, 0)
    assert report.rows_before - report.rows_after == 12
    assert {one.removed for one in report.replaced} <= files
    assert set(report.deleted) >= {one.removed for one in report.replaced}
    assert sorted(stored(root)) == sorted(Table(root, RECORDS, LOG_ID).paths())
    assert (report.held, report.old, report.problems) == ((), (), ())
    again = erase(data, root)
    assert (again.found_before, again.replaced, again.deleted) == (0, (), ())
    assert again.version_after == report.version_after


def test_an_erasure_finds_the_last_topic_of_a_file_and_of_a_row_group(data: Data) -> None:
    """Its rows are numbered after those of row groups without the topic, which are not read."""
    data.append(1, 0, *(b"%d" % at for at in range(9000)))
    data.append(17, 0, b"a", b"b", keys=[KEY, b"other"])
    data.log.seal()
    data.publish()
    ingest_inline(data.root, data.wal, data.bounds(), SETTINGS)
    (path,) = Table(data.root, RECORDS, LOG_ID).paths()
    firsts = [group.item()[0] for group in open_file(data.root / "records", path).groups["first"]]
    assert firsts == [1, 1]
    before = rows(data.root)
    report = erase(data, data.root, topic="topic-17")
    assert (report.erased, report.found_after) == (1, 0)
    left = [row for row in before if (row[TOPIC_ID], row[KEY_AT]) != (17, KEY)]
    assert len(left) == 9001
    assert rows(data.root) == left


def test_a_broker_reads_past_the_erased_records(data: Data) -> None:
    """The files cover the same offsets as before."""
    fill(data, data.root)
    erase(data, data.root)
    view = DeltaArchive(data.root, LOG_ID).refresh()
    assert view is not None
    assert view.covers(1, 0, 0, 15)
    found: list[int] = []
    offset = 0
    while offset < 15:
        piece = view.read(1, 0, offset, MIB)
        assert piece is not None
        found += piece.offsets
        offset = piece.end
    assert found == [at for at in range(15) if at % 5 not in (0, 4)]


POINTS = (
    "before erase rewrites",
    "before erase commit",
    "after erase commit",
    "before erase deletes",
)


@pytest.mark.parametrize("point", POINTS)
def test_a_run_goes_on_after_a_kill(
    data: Data, root: Place, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stops, the table is whole; the next run erases the rest."""
    monkeypatch.setattr("brokerd.archive.maintain.erase.COMMIT_BYTES", 1)
    before = fill(data, root)
    left = [row for row in before if not is_of_key(row)]
    seen: list[str] = []

    def stop(at: str) -> None:
        seen.append(at)
        if at == point and seen.count(at) == (1 if at == "before erase deletes" else 2):
            raise Stopped

    with pytest.raises(Stopped):
        erase(data, root, failpoint=stop)
    found = rows(root)
    assert [row for row in found if not is_of_key(row)] == left
    report = erase(data, root)
    assert (report.found_after, report.problems) == (0, ())
    assert rows(root) == left
    assert sorted(stored(root)) == sorted(Table(root, RECORDS, LOG_ID).paths())


def test_records_that_a_group_uses_stay(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """At or above the bound of their partition; the report names them, and is not complete."""
    before = fill(data, data.root)
    bounds = data.bounds()
    partitions = bounds.topics[0].partitions
    partitions[1] = structs.replace(partitions[1], compact_below=5)
    monkeypatch.setattr(data, "bounds", lambda: bounds)
    data.publish()
    report = erase(data, data.root)
    assert [(one.topic_id, one.partition, one.first, one.records) for one in report.held] == [
        (1, 1, 5, 4)
    ]
    assert (report.erased, report.found_after, report.is_complete) == (8, 4, False)
    kept = [
        row
        for row in before
        if not is_of_key(row) or (row[PARTITION], row[OFFSET] >= 5) == (1, True)
    ]
    assert rows(data.root) == kept


def test_the_journal_is_named(data: Data) -> None:
    """Sealed files that the archive has, sealed files that it lacks, and the open file."""
    fill(data, data.root, rounds=2)
    data.append(1, 0, b"a", b"b", keys=[KEY, KEY])
    data.log.seal()
    data.append(1, 0, b"c", keys=[KEY])
    data.append(2, 0, b"d", keys=[KEY])
    path = data.log.seal()
    path.with_suffix(".idx").unlink()  # as the open file of a broker
    data.publish()
    report = erase(data, data.root)
    found = [
        (one.segment.records, one.segment.is_sealed, one.is_archived) for one in report.journal
    ]
    assert found == [(4, True, True), (4, True, True), (2, True, False), (1, False, False)]
    assert not report.is_complete


def test_old_files_may_stay_for_a_while(data: Data) -> None:
    """Readers of older versions go on; the report names the files and the time."""
    fill(data, data.root)
    version = DeltaTable(str(data.root / "records")).version()
    report = erase(data, data.root, deletes_now=False)
    assert {one.removed for one in report.replaced} <= set(report.old)
    assert report.delete_after_ms == NOW_MS + 24 * 3_600_000
    old = DeltaTable(str(data.root / "records"), version=version).to_pyarrow_table()
    assert old.num_rows == len(data.appended)
    assert not report.is_complete
    without = erase(data, data.root, deletes_now=False, settings=SETTINGS._replace(vacuum=False))
    assert (without.delete_after_ms, len(without.old)) == (None, len(report.old))


@pytest.mark.parametrize("hours", [1, 48])
def test_old_files_stay_as_long_as_vacuum_keeps_them(data: Data, root: Place, hours: int) -> None:
    """In a bucket a day at least."""
    fill(data, root)
    settings = SETTINGS._replace(vacuum_hours=hours)
    report = erase(data, root, deletes_now=False, settings=settings)
    expected = max(hours, 24) if isinstance(root, ObjectAddress) else hours
    assert report.old_hours == expected
    assert report.delete_after_ms == NOW_MS + expected * 3_600_000


def test_the_broker_is_told_before_the_files_go(data: Data) -> None:
    """So that it has no reason to open them. A problem of it does not keep the files."""
    fill(data, data.root)
    seen: list[int] = []

    def notify() -> str:
        seen.append(len(stored(data.root)))
        return "the broker is away"

    report = erase(data, data.root, notify=notify)
    assert seen == [len(report.deleted) + len(stored(data.root))]
    assert report.problems == ("the broker is away",)


def test_a_damaged_file_is_a_problem(data: Data) -> None:
    """The other files are rewritten."""
    fill(data, data.root)
    table = Table(data.root, RECORDS, LOG_ID)
    path = next(one for one in table.paths() if one.startswith("bucket=1/"))
    full = data.root / "records" / path
    content = bytearray(full.read_bytes())
    content[len(content) // 8] ^= 1
    full.write_bytes(content)
    report = erase(data, data.root)
    assert [path in one for one in report.problems] == [True]
    assert (report.found_after, report.is_complete) == (0, False)
    assert report.erased == 8
    assert full.exists()


def test_leftovers_of_stopped_rollups_go(data: Data) -> None:
    """Unfinished files may hold the key, too."""
    fill(data, data.root)
    unfinished = data.root / "records" / "bucket=1" / "unfinished-0123456789abcdef.parquet"
    other = data.root / "records" / "bucket=2" / "unfinished-0123456789abcdef.parquet"
    staged = data.root / "staging" / "00" / "part.parquet"
    scratch = data.path / "run" / "rollup" / "local" / "shuffle_0_0_0.data"
    for directory in (staged.parent, scratch.parent):
        directory.mkdir(parents=True)
    paths = (unfinished, other, staged, scratch)
    for path in paths:
        path.write_bytes(b"x")
    erase(data, data.root)
    assert [path.exists() for path in paths] == [False, True, False, False]


def test_what_cannot_be_done_is_refused(data: Data) -> None:
    """Nothing changes."""
    data.append(1, 0, b"value", keys=[KEY])
    data.publish()
    with pytest.raises(JobFailed, match="nothing was archived yet"):
        erase(data, data.root)
    fill(data, data.root, rounds=1)
    with pytest.raises(JobFailed, match="there is no topic 'topic-9'"):
        erase(data, data.root, topic="topic-9")


def test_it_waits_for_no_rollup(data: Data) -> None:
    """While another process holds the lock, nothing changes."""
    before = fill(data, data.root, rounds=1)
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        with rollup_lock(data.path):
            os.write(ready[1], b"x")
            os.read(done[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        with pytest.raises(RollupLocked):
            erase(data, data.root)
    finally:
        os.write(done[1], b"x")
        os.waitpid(pid, 0)
    assert rows(data.root) == before
