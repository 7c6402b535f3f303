"""Files of the archive that a query reads, and what it reads of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from brokerd.archive.contract.view import DamagedArchive
from brokerd.archive.parquet.reader import ArchiveFile
from brokerd.spark.plan.archive_files import match_files, read_archive, split_files
from brokerd.spark.plan.predicate import Interval, Predicate
from brokerd.spark.request import PARTITION_BYTES
from tests.archive.adding import files_of, records_file
from tests.archive.making import LOG_ID, damage
from tests.spark.logs import NOW_US, Log, batches_of, make_predicate


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Two topics in the archive in small files that both share, then one in a file of its own."""
    log = Log(tmp_path / "data")
    topics = [log.create("one"), *(log.create(f"t{n}") for n in range(15)), log.create("seventeen")]
    for number in range(3):
        for topic_id in (topics[0], topics[-1]):
            log.append(topic_id, 0, b"%d" % number, b"b")
        log.seal()
        log.publish()
        log.roll_up()
    for number in range(3):
        log.append(topics[0], 0, *(b"%d" % number * 1000 for _ in range(300)))
    log.seal()
    log.publish()
    log.roll_up()
    return log


def _count(log: Log, predicate: Predicate) -> int:
    archive = read_archive(str(log.root), LOG_ID)
    assert archive is not None
    return len(match_files(archive.files, predicate))


def test_nothing_is_archived_yet(tmp_path: Path) -> None:
    assert read_archive(str(tmp_path), LOG_ID) is None


def test_names_and_facts_of_files_leave_out_what_is_not_wanted(log: Log) -> None:
    assert _count(log, make_predicate(1, 17)) == 4
    assert _count(log, make_predicate(17)) == 3
    assert _count(log, make_predicate(2, 3)) == 0
    assert _count(log, make_predicate(1, partition_offsets={(1, 0): Interval(100)})) == 4
    assert _count(log, make_predicate(1, partitions=frozenset([1]))) == 3
    last = max(row.time_us for row in log.rows)
    assert _count(log, make_predicate(1, 17, times_us=Interval(last))) == 1
    assert _count(log, make_predicate(1, 17, times_us=Interval(last + 1))) == 0
    assert _count(log, make_predicate(1, 17, lsns=Interval(0, int(log.sealed[1].stem)))) == 1
    assert _count(log, make_predicate(first_unknown_id=17)) == 3


def test_a_large_file_is_cut_between_offsets(log: Log) -> None:
    archive = read_archive(str(log.root), LOG_ID)
    assert archive is not None
    files = match_files(archive.files, make_predicate(1))
    whole = split_files(files, 1 << 30)
    assert len(whole) == 4
    parts = [part for part in split_files(files, 1000) if part.offsets.end < 1 << 40]
    assert len(parts) > 2
    assert parts[0].offsets.first == 6 and parts[-1].offsets.end == 906
    assert all(a.offsets.end == b.offsets.first for a, b in pairwise(parts))
    assert log.read(partition_bytes=1000) == log.expected()


def test_a_file_of_many_rows_is_cut_however_well_it_is_compressed() -> None:
    """A million of small records are a few megabytes on the disk."""
    rows = 1_400_000
    file = records_file(1, 0, rows, content=100 * rows)._replace(size=7 << 20)
    parts = split_files(files_of([file]), PARTITION_BYTES)
    assert len(parts) == 4
    assert sum(part.bytes for part in parts) == pytest.approx(164 * rows)


def test_rows_that_are_not_wanted_are_left_out_whatever_says_so(log: Log) -> None:
    times = sorted({row.time_us for row in log.rows})
    for request, keep in (
        ({"topics": ("one",)}, lambda row: row.topic == "one"),
        ({"from_offset": 3, "to_offset": 200}, lambda row: 3 <= row.offset < 200),
        ({"from_offsets": {"one": {0: 400}}}, lambda row: row.topic_id != 1 or row.offset >= 400),
        ({"to_offsets": {"one": {0: 3}}}, lambda row: row.topic_id != 1 or row.offset < 3),
        (
            {"from_time_us": times[1], "to_time_us": times[7]},
            lambda row: times[1] <= row.time_us < times[7],
        ),
    ):
        assert log.read(**request) == [row for row in log.expected() if keep(row)]  # type: ignore[no-untyped-call]


def test_row_groups_without_what_is_wanted_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is far behind reads a large file a bit at a time."""
    log = Log(tmp_path / "many")
    topic_id = log.create("one")
    for number in range(3):
        log.append(topic_id, 0, *[b"%d" % number] * 9_000)
    log.seal()
    log.publish()
    log.roll_up()
    lsns = sorted({lsn for batch in batches_of(log.plan()) for lsn in batch["lsn"].to_pylist()})
    read: list[object] = []
    real = ArchiveFile.read_table

    def counted(file: ArchiveFile, *args: Any) -> pa.Table:
        read.append(args)
        return real(file, *args)

    monkeypatch.setattr(ArchiveFile, "read_table", counted)
    for request, groups, rows in (
        ({"first_lsn": lsns[2]}, 2, 9_000),
        ({"first_lsn": lsns[1], "end_lsn": lsns[2]}, 2, 9_000),
        ({"from_offset": 26_000}, 1, 1_000),
        ({"to_offset": 8_192}, 1, 8_192),
        ({"from_time_us": log.rows[-1].time_us}, 2, 9_000),
        ({}, 4, 27_000),
    ):
        read.clear()
        assert len(log.read(**request)) == rows
        assert len(read) == groups


def test_what_expires_is_gone_when_its_time_has_come(log: Log) -> None:
    log.append(1, 1, b"soon", expires_at=NOW_US)
    log.append(17, 0, b"later", expires_at=NOW_US + 1)
    log.seal()
    log.publish()
    log.roll_up()
    log.merge()
    for now_us, gone in (
        (NOW_US - 1, set()),
        (NOW_US, {b"soon"}),
        (NOW_US + 1, {b"soon", b"later"}),
    ):
        found = log.read(now_us)
        assert found == log.expected(now_us)
        assert {b"soon", b"later"} - {row.value for row in found} == gone


def test_a_damaged_file_is_an_error_that_names_it(log: Log) -> None:
    (path,) = (log.root / "records").rglob("p-1-0-*.parquet")
    damage(path, 100)
    with pytest.raises(DamagedArchive, match=f"{path} is damaged"):
        log.read()
    assert log.read(topics=("seventeen",)), "what needs nothing of it can be read"
