"""What a split gives, also when its files are gone by then."""

from __future__ import annotations

import os
import pickle
import random
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from brokerd.archive.contract.bounds import DamagedPlace
from brokerd.archive.contract.layout import RECORDS, arrow_schema
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.table import Table
from brokerd.archive.maintain.merge_sort import DroppedRows
from brokerd.archive.maintain.rewrite import RewriteUnit, rewrite_without
from brokerd.archive.parquet.reader import open_file
from brokerd.errors import BrokerdError
from brokerd.spark.location import Location
from brokerd.spark.plan.query_plan import plan_query
from brokerd.spark.read.split_reader import read_split
from brokerd.spark.request import COLUMNS, AsOf, Request
from tests.archive.data import NOW_MS
from tests.archive.making import HEADERS, LOG_ID, damage
from tests.spark.logs import NOW_US, Log, batches_of, rows_of


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Some records in the archive, some in closed files, some in the one that is written to."""
    log = Log(tmp_path / "data")
    topics = [log.create("one"), log.create("two")]
    for round in range(3):
        for topic_id in topics:
            log.append(topic_id, 0, b"%d" % round, b"x" * 100, b"")
            log.append(topic_id, 1, b"%d of 1" % round)
        if round < 2:
            log.seal()
            log.publish()
        if round < 1:
            log.roll_up()
    return log


def test_rows_have_the_columns_that_were_asked_for_in_that_order(log: Log) -> None:
    for columns in (("offset", "topic"), ("value",), COLUMNS, tuple(reversed(COLUMNS))):
        schema = pa.schema([arrow_schema(RECORDS).field(name) for name in columns])
        batches = list(batches_of(log.plan(columns=columns)))
        assert {batch.schema for batch in batches} == {schema}
        assert sum(map(len, batches)) == len(log.expected())


def test_columns_that_are_not_asked_for_still_tell_rows_apart(log: Log) -> None:
    log.append(1, 0, b"gone", expires_at=1)
    log.trim(1, 0, 4)
    found = log.plan(columns=("value",), from_time_us=log.rows[8].time_us, topics=("one",))
    values = [value for batch in batches_of(found) for value in batch["value"].to_pylist()]
    wanted = [row for row in log.expected() if row.topic == "one"]
    assert sorted(values) == sorted(r.value for r in wanted if r.time_us >= log.rows[8].time_us)


def test_splits_go_to_other_processes(log: Log) -> None:
    found = log.plan(partition_bytes=200)
    assert len(found.splits) > 4
    copies = [pickle.loads(pickle.dumps(split)) for split in found.splits]
    rows = rows_of(found._replace(splits=tuple(copies)))
    assert rows == log.expected()
    assert max(len(pickle.dumps(split)) for split in found.splits) < 2000


# -- Files that go between plan and task ---------------------------------------------------------


def _rolled_and_deleted(log: Log) -> None:
    log.publish()
    log.roll_up()
    log.delete_archived()


def _all_merged(log: Log) -> None:
    _rolled_and_deleted(log)
    log.merge()
    log.vacuum()


@pytest.mark.parametrize("meanwhile", [_rolled_and_deleted, _all_merged])
def test_journal_files_that_went_are_read_from_the_archive(
    log: Log, meanwhile: Callable[[Log], None]
) -> None:
    found = log.plan(partition_bytes=1, first_lsn=log.archived_lsn())
    end = log.archived_lsn()
    expected = [row for row in log.expected() if row.offset >= (1 if row.partition else 3)]
    meanwhile(log)
    assert log.archived_lsn() > end
    assert rows_of(found) == expected


def test_a_file_that_goes_while_it_is_read_is_read_to_its_end(log: Log) -> None:
    found = log.plan(partition_bytes=1 << 30)
    rows = 0
    for split in found.splits:
        batches = read_split(split)
        rows += len(next(batches))
        if split.segments:
            _rolled_and_deleted(log)
        rows += sum(map(len, batches))
    assert rows == len(log.expected())


@pytest.mark.parametrize("partition_bytes", [20_000, 1 << 20])
def test_files_of_one_partition_that_were_merged_are_read_from_what_took_their_place(
    tmp_path: Path, partition_bytes: int
) -> None:
    log = Log(tmp_path / "data")
    topic_id = log.create("one")
    dice = random.Random(1)
    for _ in range(3):
        log.append(topic_id, 0, *(dice.randbytes(300) for _ in range(1000)))
        log.seal()
        log.publish()
        log.roll_up()
    found = log.plan(partition_bytes=partition_bytes)
    assert found.files.read == 3
    assert (len(found.splits) > 3) == (partition_bytes == 20_000), "some files are cut"
    log.merge()
    log.vacuum()
    assert rows_of(found) == log.expected()


@pytest.mark.parametrize("has_bounds", [True, False], ids=["bounds", "no bounds"])
def test_files_that_were_merged_are_read_without_records_of_other_topics(
    tmp_path: Path, has_bounds: bool
) -> None:
    """Of topics that are newer than the plan; without bounds of all topics with a higher id."""
    log = Log(tmp_path / "data")
    topics = [log.create("one"), log.create("two")]
    _archive_own_files(log, topics)
    place = log.place if has_bounds else Location(None, str(log.root))
    (log.root / "bounds").unlink(missing_ok=True)
    planned, expected = plan_query(place, Request(), NOW_US), log.expected()
    _archive_own_files(log, [log.create("three")])
    log.merge()
    log.vacuum()
    assert rows_of(planned) == expected


def _archive_own_files(log: Log, topics: list[int]) -> None:
    """Archive two files of one partition for each topic."""
    dice = random.Random(len(topics))
    for _ in range(2):
        for topic_id in topics:
            log.append(topic_id, 0, *(dice.randbytes(300) for _ in range(1000)))
        log.seal()
        log.publish()
        log.roll_up()


def test_nothing_replaces_a_file_of_an_earlier_version(tmp_path: Path) -> None:
    """The newest version may lack records that the earlier one has: here one was erased."""
    log = Log(tmp_path / "data")
    _archive_own_files(log, [log.create("one")])
    table = Table(log.root, RECORDS, LOG_ID)
    planned = log.plan(as_of=AsOf(version=table.version))
    assert rows_of(planned) == log.expected()
    for path in table.paths():
        drops = DroppedRows(np.array([0]), _offsets(table, path)[:1], np.array(["erased"], object))
        done = rewrite_without(RewriteUnit(log.root, RECORDS.name, LOG_ID, (path,)), [drops])
        table.commit([add_file(info) for info in done.added], [path], now_ms=NOW_MS)
    assert rows_of(planned) == log.expected(), "until vacuum all files are there"
    log.vacuum()
    with pytest.raises(ArchiveUnavailable, match=r"version 2 needs, was deleted .* newer version"):
        rows_of(planned)


def _offsets(table: Table, path: str) -> npt.NDArray[np.int64]:
    rows = open_file(table.path, path).read_table(columns=["offset"])
    offsets: npt.NDArray[np.int64] = rows["offset"].to_numpy()
    return offsets


def test_a_file_that_partitions_share_and_that_went_is_an_error_that_says_what_to_do(
    log: Log,
) -> None:
    log.publish()
    log.roll_up()
    found = log.plan()
    log.merge()
    assert rows_of(found) == log.expected(), "until vacuum all files are there"
    log.vacuum()
    with pytest.raises(ArchiveUnavailable, match=r"run the query again; .* archive\.vacuum_hours"):
        rows_of(found)


def test_files_whose_records_were_removed_give_nothing(log: Log) -> None:
    """The broker deletes a file of which nobody can read a record, and no archive has it."""
    found = log.plan(first_lsn=log.archived_lsn())
    log.delete(1)
    log.delete(2)
    log.remove(log.sealed[-1])
    values = {row.value for row in rows_of(found)}
    assert values == {b"2", b"x" * 100, b"", b"2 of 1"}, "what is left is that of the last file"


def test_a_journal_file_that_nothing_explains_is_an_error(log: Log) -> None:
    found = log.plan()
    log.sealed[-1].unlink()
    with pytest.raises(ArchiveUnavailable, match=r"a journal file up to LSN .* is gone"):
        rows_of(found)


def test_another_file_in_the_place_of_one_is_not_read(log: Log) -> None:
    found = log.plan()
    path = log.sealed[-1]
    data = bytearray(path.read_bytes())
    path.write_bytes(log.sealed[0].read_bytes())
    with pytest.raises(BrokerdError, match=r"a journal file up to LSN .* is gone"):
        rows_of(found)
    path.write_bytes(data)
    assert rows_of(found) == log.expected()


@pytest.mark.parametrize("read", ["all rows", "one batch", "another file"])
def test_journal_files_are_closed_after_reading(log: Log, read: str) -> None:
    found = log.plan()
    if read == "another file":
        log.sealed[-1].write_bytes(log.sealed[0].read_bytes())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        errors = 0
        for split in found.splits:
            with closing(read_split(split)) as batches:
                try:
                    for _ in batches:
                        if read == "one batch":
                            break
                except ArchiveUnavailable:
                    errors += 1
    assert bool(errors) == (read == "another file")
    assert not [one for one in caught if one.category is ResourceWarning]
    journal = str(log.sealed[0].parent)  # brokers of earlier tests may have others open
    assert not [path for path in open_files() if path.startswith(journal)]


def open_files() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the directory itself
            yield os.readlink(f"/proc/self/fd/{name}")


def test_an_index_that_came_since_the_plan_changes_nothing(log: Log) -> None:
    found = log.plan()
    expected = log.expected()
    log.append(1, 0, b"more")
    log.seal()
    assert rows_of(found) == expected


# -- Damage --------------------------------------------------------------------------------------


def test_what_damage_took_that_the_broker_knows_is_left_out(log: Log) -> None:
    path = log.sealed[-1]
    position = path.read_bytes().index(b"1 of 1")
    damage(path, position + 2)
    with pytest.raises(BrokerdError, match=f"{path} at .*cannot be read: run brokerctl wal verify"):
        log.read()
    log.damage.append(DamagedPlace(path.name, position - HEADERS, position + 10))
    log.publish()
    lost = next(row for row in log.expected() if row.value == b"1 of 1" and row.topic == "one")
    found = log.read()
    assert [row for row in log.expected() if row not in found] == [lost]
    assert len(found) == len(log.expected()) - 1


# -- Memory --------------------------------------------------------------------------------------


def test_a_split_is_read_in_pieces(tmp_path: Path) -> None:
    log = Log(tmp_path / "large")
    topic_id = log.create("one")
    for _ in range(40):
        log.append(topic_id, 0, *([b"v" * 100_000] * 10))
    log.seal()
    (split,) = log.plan().splits
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    tracemalloc.start()
    most = rows = 0
    for batch in read_split(split):
        rows += len(batch)
        most = max(most, pool.bytes_allocated() - before + tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert rows == 400
    assert most < 30 << 20, "of 40 MB"
