"""Files of the journal as a query finds them, and which pieces of them it reads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from brokerd.archive import tail
from brokerd.errors import BrokerdError
from brokerd.spark import journal
from brokerd.spark.journal import Part, parts_of, read_journal
from brokerd.spark.planning import end_of
from brokerd.spark.sieve import ALL, Names, Sieve, Within
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


def _sieve(*topic_ids: int, **fields: Any) -> Sieve:
    return Sieve(topic_ids, 100, Names(None), None, Within(0), {}, ALL, ALL, 0)._replace(**fields)


def _parts(log: Log, sieve: Sieve, part_bytes: int = 1 << 20) -> list[Part]:
    found = read_journal(log.wal, log.bounds, 0, True)
    (file,) = found.files
    return parts_of(file, found.walked.get(file.path), sieve, part_bytes)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_part_has_what_is_wanted_and_says_how_much(log: Log, sealed: bool) -> None:
    if sealed:
        log.seal()
    (part,) = _parts(log, _sieve(1, 2))
    assert (part.records, part.topic_ids) == (40, (1, 2))
    (part,) = _parts(log, _sieve(2, limits={(2, 0): Within(5, 7)}))
    assert (part.records, part.topic_ids) == (4, (2,))
    assert _parts(log, _sieve(3)) == []
    assert _parts(log, _sieve(1, partitions=frozenset([1]))) == []


@pytest.mark.parametrize("sealed", [False, True])
def test_times_and_lsns_leave_out_batches(log: Log, sealed: bool) -> None:
    if sealed:
        log.seal()
    times = sorted({row.time_us for row in log.rows})
    (part,) = _parts(log, _sieve(1, 2, times_us=Within(times[3], times[6])))
    assert part.records == 6
    first, end = _parts(log, _sieve(1, 2), 1)[4].lsns
    (part,) = _parts(log, _sieve(1, 2, lsns=Within(first, end)))
    assert part.records == 2


@pytest.mark.parametrize("sealed", [False, True])
def test_parts_of_a_size_are_together_all_of_the_file(log: Log, sealed: bool) -> None:
    if sealed:
        log.seal()
    for size in (1, 400, 1000):
        parts = _parts(log, _sieve(1, 2), size)
        assert sum(part.records for part in parts) == 40
        assert all(a.end <= b.first for a, b in pairwise(parts))
    assert len(_parts(log, _sieve(1, 2), 1)) == 20


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
    with pytest.raises(BrokerdError, match="a file of another place was put there"):
        read_journal(log.wal, log.bounds, 0, True)


def test_what_was_seen_of_the_file_that_is_written_to_is_not_read_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream looks at it many times a second."""
    end = log.plan().end_lsn
    read: list[int] = []
    real = tail.walk_tail

    def counted(fd: int, file: tail.JournalFile, first: int = 4096) -> tail.Walked:
        read.append(first)
        return real(fd, file, first)

    monkeypatch.setattr(journal, "walk_tail", counted)
    assert end_of(log.place).lsn == end
    assert read == [], "the end is where it was"
    log.append(1, 0, b"more")
    assert end_of(log.place).lsn > end
    assert log.read() == log.expected()
    assert len(read) == 2 and min(read) > 4096
    log.trim(1, 0, 3)
    log.delete(2)
    log.append(log.create("three"), 1, b"new")
    assert log.read() == log.expected()


def test_a_file_that_is_another_by_now_is_read_from_its_beginning(log: Log) -> None:
    """A copy of the log that was brought back is shorter than the log was."""
    path = log.wal / f"{0:020d}.wal"
    before, expected = path.read_bytes(), log.expected()
    log.append(1, 0, b"more", b"still more")
    assert log.read() == log.expected()
    path.write_bytes(before)
    assert log.read() == expected
