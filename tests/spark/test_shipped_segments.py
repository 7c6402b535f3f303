"""Copies of journal files beside an archive, which is all that is there of a log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import structs

from brokerd.archive.contract.bounds import FILE_NAME, Bounds, DamagedPlace, encode_bounds
from brokerd.archive.journal.copies import delete_copies, send_copies
from brokerd.archive.journal.sealed import Segment, open_sealed
from brokerd.archive.storage.store import open_store
from brokerd.errors import BrokerdError
from brokerd.spark.location import Location
from brokerd.spark.plan import log_snapshot
from brokerd.spark.plan.log_end import batch_end, log_end
from tests.archive.making import HEADERS
from tests.spark.logs import Log, rows_of


@pytest.fixture(params=["directory", "bucket"])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Log:
    """An archive of a file of the journal, and copies of three that come after it."""
    is_bucket = request.param == "bucket"
    log = Log(tmp_path / "data", request.getfixturevalue("bucket") if is_bucket else None)
    topics = [log.create("one"), log.create("two")]
    for number in range(4):
        for topic_id in topics:
            log.append(topic_id, 0, b"%d" % number, b"x" * 1000)
        log.seal()
        log.publish()
        if not number:
            log.roll_up()
    send_copies(open_store(log.root), [_segment(path) for path in log.sealed[1:]])
    _publish(log, log.bounds)
    log.place = Location(None, str(log.root))
    return log


def _publish(log: Log, bounds: Bounds) -> None:
    open_store(log.root).put(FILE_NAME, encode_bounds(bounds))


def _copy(log: Log, number: int, suffix: str) -> str:
    store = open_store(log.root)
    (found,) = (
        name
        for name in store.names("wal")
        if name.startswith(log.sealed[number].stem) and name.endswith(suffix)
    )
    return f"wal/{found}"


def _damage(log: Log, number: int) -> int:
    """Flip a bit of a copy's value; returns its position."""
    store, path = open_store(log.root), _copy(log, number, ".wal")
    data = bytearray(store.read(path, 1 << 20))
    position = data.index(b"x" * 1000)
    data[position] ^= 1
    store.put(path, bytes(data))
    return position


def _segment(path: Path) -> Segment:
    found = open_sealed(path)
    return Segment(str(path), found.segment_id, found.first_lsn, found.end_lsn)


@pytest.mark.parametrize("partition_bytes", [1, 1 << 20])
def test_copies_are_read_behind_what_is_archived(log: Log, partition_bytes: int) -> None:
    found = log.plan(partition_bytes=partition_bytes)
    assert found.segments == (3, 3)
    assert rows_of(found) == log.expected()


def test_a_stream_waits_for_what_is_archived(log: Log) -> None:
    """A copy may be deleted, and come back later."""
    assert log_end(log.place).lsn == log.archived_lsn() < log.plan().end_lsn
    assert batch_end(log.place, 0, 1 << 30).lsn == log.archived_lsn()


def test_copies_behind_one_that_is_not_there_are_left_out(log: Log) -> None:
    open_store(log.root).delete([_copy(log, 2, ".idx")])
    assert log.plan().segments == (1, 1)


def test_copies_that_the_bounds_do_not_reach_are_left_out(log: Log) -> None:
    """What happened to topics in them is not known."""
    _publish(log, structs.replace(log.bounds, lsn=int(log.sealed[3].stem)))
    assert log.plan().segments == (2, 2)


def test_copies_that_went_since_the_plan_are_read_from_the_archive(log: Log) -> None:
    found = log.plan(partition_bytes=1)
    log.roll_up()
    delete_copies(open_store(log.root), log.archived_lsn())
    assert rows_of(found) == log.expected()


def test_copies_that_go_after_the_archive_was_read_are_read_from_it(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are listed first, so the snapshot is taken again. Nothing else tells of them."""
    real = log_snapshot.read_archive

    def meanwhile(*arguments: str) -> object:
        found = real(*arguments)
        log.roll_up()
        delete_copies(open_store(log.root), log.archived_lsn())
        return found

    monkeypatch.setattr(log_snapshot, "read_archive", meanwhile)
    assert log.read() == log.expected()


def test_a_damaged_copy_is_an_error_that_names_it(log: Log) -> None:
    _damage(log, 2)
    where = re.escape(str(log.root / _copy(log, 2, ".wal")))
    with pytest.raises(BrokerdError, match=f"{where} at .*checksum does not match"):
        log.read()


def test_a_damaged_index_of_a_copy_is_an_error_that_names_it(log: Log) -> None:
    store, path = open_store(log.root), _copy(log, 1, ".idx")
    data = store.read(path, 1 << 20)
    where = re.escape(str(log.root / path.replace(".idx", ".wal")))
    for position in (10, len(data) - 10):
        store.put(path, data[:position] + b"??" + data[position + 2 :])
        with pytest.raises(BrokerdError, match=f"{where} at .*its index is"):
            log.plan()


def test_damage_that_the_broker_knows_is_left_out_of_copies_too(log: Log) -> None:
    position = _damage(log, 2)
    log.damage.append(DamagedPlace(log.sealed[2].name, position - HEADERS, position + 10))
    log.publish()
    _publish(log, log.bounds)
    assert len(log.read()) == len(log.expected()) - 2
