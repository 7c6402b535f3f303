"""A query of a journal whose end is gone is refused, as far as a file proves the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from brokerd.archive.contract.bounds import FILE_NAME, DamagedPlace, encode_bounds
from brokerd.errors import BrokerdError
from brokerd.spark.explain_query import explain
from brokerd.spark.plan.log_end import log_end
from brokerd.spark.plan.log_snapshot import take_snapshot
from tests.archive.making import LogMaker
from tests.spark.logs import Log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A closed file, and the open one. The bounds are older than both."""
    log = Log(tmp_path / "data")
    topic_id = log.create("one")
    log.publish()
    log.append(topic_id, 0, b"a")
    log.seal()
    log.append(topic_id, 0, b"b")
    return log


def open_file(log: Log) -> Path:
    return log.wal / f"{log.log.first_lsn:020}.wal"


def put_bounds(log: Log, **changes: object) -> None:
    data = encode_bounds(structs.replace(log.bounds, **changes))
    (log.path / "state" / FILE_NAME).write_bytes(data)


def queries(log: Log, **options: bool) -> list[Callable[[], object]]:
    return [
        lambda: take_snapshot(log.place, **options),
        lambda: explain(str(log.path), **options),
        lambda: log.plan(**options),
    ]


def refused(log: Log, text: str, **options: bool) -> None:
    for query in queries(log, **options):
        with pytest.raises(BrokerdError, match=text):
            query()


def values(log: Log, **options: bool) -> list[bytes]:
    return [row.value for row in log.read(**options)]


def test_a_whole_journal_is_read(log: Log) -> None:
    assert values(log) == [b"a", b"b"]


def test_bounds_prove_what_was_synced_when_they_were_written(log: Log) -> None:
    """Their own LSN is older."""
    end = take_snapshot(log.place).end_lsn
    put_bounds(log, reached_lsn=end)
    assert values(log) == [b"a", b"b"]
    open_file(log).unlink()
    refused(log, rf"bounds the journal was on the disk up to {end}: ")
    with pytest.raises(BrokerdError, match="the file was damaged or cut"):
        log_end(log.place)
    first = log.log.first_lsn
    put_bounds(log, reached_lsn=end, damage=[DamagedPlace(f"{first:020}.wal", 0, end - first)])
    assert values(log) == [b"a"]


def test_a_snapshot_proves_its_lsn(log: Log) -> None:
    end = take_snapshot(log.place).end_lsn
    (log.path / "state" / f"{end:020}.snap").touch()
    assert values(log) == [b"a", b"b"]
    open_file(log).unlink()
    refused(log, rf"{end:020}\.snap the journal was on the disk up to {end}: ")


@pytest.mark.parametrize("tail", [True, False])
def test_an_index_proves_its_file(log: Log, tail: bool) -> None:
    """Also for a query that leaves out the open file."""
    log.seal()
    last = log.sealed[-1]
    last.unlink()
    end = log.log.first_lsn
    refused(log, rf"{last.stem}\.idx the journal was on the disk up to {end}: ", tail=tail)
    with pytest.raises(BrokerdError, match="the file was damaged or cut"):
        log_end(log.place, tail)
    first = int(last.stem)
    put_bounds(log, damage=[DamagedPlace(last.name, 0, end - first)])
    assert values(log, tail=tail) == [b"a"]


def test_an_index_far_away_is_of_another_log(log: Log) -> None:
    other = LogMaker(log.wal, first_lsn=1 << 40)
    other.append(1, 0, [b"x"])
    other.frame()
    other.seal().unlink()
    assert values(log) == [b"a", b"b"]


@pytest.mark.parametrize("length", [100, 4096])
def test_a_file_without_a_frame_was_cut(log: Log, length: int) -> None:
    path = open_file(log)
    path.write_bytes(path.read_bytes()[:length])
    refused(log, rf"{path} holds no frame, .* the file was cut")
    put_bounds(log, damage=[DamagedPlace(path.name, 4096, 1 << 16)])
    assert values(log) == [b"a"]


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_file_of_another_segment_is_refused(log: Log, is_sealed: bool) -> None:
    path = open_file(log)
    put_bounds(log, segment_lsn=log.log.first_lsn, segment_id="0" * 32)
    if is_sealed:
        log.seal()
    refused(log, rf"{path} is another segment \(id .*by state/bounds\): bring the right file back")
