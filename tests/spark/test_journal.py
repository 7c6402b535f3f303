"""Files of the journal as a query finds them, and which pieces of them it reads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from brokerd.errors import BrokerdError
from brokerd.spark.journal import Part, parts_of, read_journal
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
    journal = read_journal(log.wal, log.bounds, 0, True)
    (file,) = journal.files
    return parts_of(file, journal.walked.get(file.path), sieve, part_bytes)


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
        journal = read_journal(log.wal, log.bounds, 0, True)
        assert [change.fields["name"] for change in journal.changes] == ["one", "two"]
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
