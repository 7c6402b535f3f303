"""Records and bytes by topic: written, fetched and leased, in a bounded number of series."""

from __future__ import annotations

import pytest

from brokerd.broker.model import traffic
from brokerd.broker.model.traffic import OTHERS
from brokerd.codecs.mamamia import Acquire, AcquireBatch, Produce
from tests.broker.colddesk import archive_all, cold_house
from tests.broker.desk import produce
from tests.broker.fakearchive import FakeArchive
from tests.house import House, ask


def counts(house: House, topic: str) -> tuple[int, int, int, int]:
    found = house.broker.status()["traffic"][topic]
    assert len(found) == 4
    return tuple(found)  # type: ignore[return-value]  # of four


def test_written_records_count_once() -> None:
    """Bytes are those of the journal: more than the values."""
    house = House()
    ask(house, *(Produce("t", b"x" * 100) for _ in range(10)))
    records, size, *read = counts(house, "t")
    assert (records, read) == (10, [0, 0])
    assert 1_000 < size < 2_000


def test_fetched_records_count_with_their_bytes() -> None:
    """Whether one is fetched or several."""
    house = House()
    ask(house, *(Produce("t", b"x" * 100) for _ in range(10)))
    topic = house.broker.topics.find("t")
    assert topic is not None
    got: list[int] = []
    for most in (1, 5):
        house.broker.reader.fetch(
            topic.partition(0), 0, most, 1_000, lambda records, *_: got.append(len(records))
        )
    house.run()
    assert got == [1, 5]
    assert counts(house, "t")[2:] == (6, 600)


def test_leased_records_count_with_their_values() -> None:
    """One by one, in a run, and over several chunks."""
    house = House()
    house.append("t", b"x" * 100)
    ask(house, Acquire("t", "one", "c"))
    assert counts(house, "t")[2:] == (1, 100)
    ask(house, *(Produce("t", b"x" * 100) for _ in range(9)))
    ask(house, AcquireBatch("t", "two", "c", 10))
    assert counts(house, "t")[2:] == (11, 1_100)


def test_leased_records_between_holes_count_with_their_values() -> None:
    """Compaction of an archive leaves holes. A chunk with holes has no slices."""
    archive = FakeArchive()
    house = cold_house(archive)
    produce(house, "t", *(b"x" * 100 for _ in range(6)))
    house.run()
    archive_all(house, archive)
    archive.remove((1, 0), [3])
    house.broker.archive_refresher.refresh()
    house.run()
    got = ask(house, AcquireBatch("t", "g", "c", 3), AcquireBatch("t", "g", "c", 9))
    assert [[one.id for one in batch.messages] for batch in got] == [[0, 1, 2], [4, 5]]
    assert counts(house, "t")[2:] == (5, 500)


def test_further_topics_share_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are used first keep theirs until they are deleted."""
    monkeypatch.setattr(traffic, "TOPICS_MAX", 2)
    house = House()
    for name in ("a", "b", "c", "d", "a"):
        ask(house, Produce(name, b"x"))
    house.broker.topics.delete("a")
    house.run()
    found = {name: one[0] for name, one in house.broker.status()["traffic"].items()}
    assert found == {"b": 1, OTHERS: 4}
    for name in ("a", "c", "e"):
        ask(house, Produce(name, b"x"))
    found = {name: one[0] for name, one in house.broker.status()["traffic"].items()}
    assert found == {"a": 1, "b": 1, OTHERS: 6}


def test_delayed_messages_make_no_series_of_their_own() -> None:
    """Their internal topics are counted with the others."""
    house = House()
    ask(house, Produce("t", b"x", delay=60.0))
    assert set(house.broker.status()["traffic"]) <= {"t", OTHERS}
