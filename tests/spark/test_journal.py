"""Files of the journal as a query finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.archive.journal import frame_scan
from brokerd.errors import BrokerdError
from brokerd.spark.plan import journal
from brokerd.spark.plan.journal import read_journal
from brokerd.spark.plan.log_end import log_end
from tests.archive.making import body_position, damage
from tests.spark.logs import Log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "data")
    for name in ("one", "two"):
        topic_id = log.create(name)
        for number in range(10):
            log.append(topic_id, 0, b"%s %d" % (name.encode(), number), b"x" * 100)
    return log


def test_topics_that_came_since_the_bounds_are_told(log: Log) -> None:
    for sealed in (False, True):
        if sealed:
            log.seal()
        found = read_journal(log.wal, log.bounds, 0, True)
        assert [change.fields["name"] for change in found.changes] == ["one", "two"]
    log.publish()
    assert read_journal(log.wal, log.bounds, 0, True).changes == []


def test_a_damaged_batch_is_an_error_when_it_is_read(log: Log) -> None:
    log.seal()
    damage(log.sealed[0], body_position(log.sealed[0], b"one 5"))
    with pytest.raises(
        BrokerdError, match=f"{log.sealed[0]} at .*checksum does not match.*topic id 1"
    ):
        log.read()


def test_damage_in_the_file_that_is_written_to_is_told_or_its_end(log: Log) -> None:
    path = log.wal / f"{0:020d}.wal"
    damage(path, body_position(path, b"two 9"))
    assert [row.value for row in log.read(topics=("two",)) if row.offset >= 16] == [
        b"two 8",
        b"x" * 100,
    ]


def test_a_file_of_another_place_is_refused(log: Log) -> None:
    log.seal()
    log.append(1, 0, b"a")
    path = log.wal / f"{log.log.first_lsn:020d}.wal"
    path.write_bytes(log.sealed[0].read_bytes())
    with pytest.raises(BrokerdError, match="so it is a copy of another file"):
        read_journal(log.wal, log.bounds, 0, True)


def test_what_was_seen_of_the_file_that_is_written_to_is_not_read_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream looks at it many times a second."""
    end = log.plan().end_lsn
    read: list[int] = []
    real = frame_scan.scan_tail

    def counted(
        fd: int, file: frame_scan.JournalFile, first: int = 4096
    ) -> frame_scan.ScannedFrames:
        read.append(first)
        return real(fd, file, first)

    monkeypatch.setattr(journal, "scan_tail", counted)
    assert log_end(log.place).lsn == end
    assert read == [], "the end is where it was"
    log.append(1, 0, b"more")
    assert log_end(log.place).lsn > end
    assert log.read() == log.expected()
    assert len(read) == 2 and min(read) > 4096
    log.trim(1, 0, 3)
    log.delete(2)
    log.append(log.create("three"), 1, b"new")
    assert log.read() == log.expected()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_is_another_by_now_is_read_from_its_beginning(
    log: Log, is_replaced: bool
) -> None:
    """A copy of the log that was brought back is shorter than the log was."""
    path = log.wal / f"{0:020d}.wal"
    before, expected, end = path.read_bytes(), log.expected(), log_end(log.place).lsn
    log.append(1, 0, b"more")
    log.append(1, 0, b"still more")
    assert log.read() == log.expected()
    longer = log_end(log.place).lsn
    assert longer > end
    if is_replaced:
        path.unlink()
    path.write_bytes(before.ljust(longer + 4096, b"\0"))  # a broker reserves space behind the end
    assert log_end(log.place).lsn == end
    assert log.read() == expected
