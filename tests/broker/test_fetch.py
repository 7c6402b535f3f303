"""Fetches: durable records by offset, from memory or disk; what is gone is passed over."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from brokerd.broker import BrokerSettings
from brokerd.broker.model.chunks import CHUNK_BYTES
from brokerd.broker.records.cold_reader import Unreadable
from brokerd.broker.records.fetch import EXAMINED_MAX
from brokerd.errors import InvalidRequest, UnknownTopic
from brokerd.values import Record
from brokerd.wal import WalOptions
from tests.broker.desk import produce
from tests.broker.test_state import entries, is_records, rot
from tests.house import House

KIB = 1024
SMALL = WalOptions(segment_bytes=64 * KIB, free_bytes_min=0)
FORGETFUL = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0)
MEMORIES = pytest.mark.parametrize(
    "settings", [BrokerSettings(), FORGETFUL, BrokerSettings(tail_cache_bytes=5_000)]
)


class Fetch:
    """A fetch under way and what came of it."""

    def __init__(
        self, house: House, offset: int, count: int = 1_000_000, size: int = 1 << 30
    ) -> None:
        self.records: list[Record] = []
        self.next_offset = -1
        self.error: Exception | None = None
        self.answers = 0
        partition = house.broker.topics.existing("t").partition(0)
        house.broker.reader.fetch(partition, offset, count, size, self._done)

    def _done(self, records: Sequence[Record], next_offset: int, error: Exception | None) -> None:
        self.answers += 1
        self.records, self.next_offset, self.error = list(records), next_offset, error

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.records]


def fetch(house: House, offset: int, count: int = 1_000_000, size: int = 1 << 30) -> Fetch:
    """A fetch that is over and met nothing wrong."""
    found = Fetch(house, offset, count, size)
    house.run()
    assert (found.answers, found.error) == (1, None)
    return found


def value(offset: int) -> bytes:
    return b"%d" % offset + b"." * 90


def filled(count: int, settings: BrokerSettings | None = None, batch: int = 10) -> House:
    house = House(settings=settings, options=SMALL)
    for first in range(0, count, batch):
        produce(house, "t", *[value(offset) for offset in range(first, first + batch)])
        house.run()
    return house


class TestReading:
    @MEMORIES
    def test_all_records_come_in_order_from_memory_and_disk(self, settings: BrokerSettings) -> None:
        house = filled(3000, settings)
        found = fetch(house, 0)
        assert [(r.offset, r.value) for r in found.records] == [(o, value(o)) for o in range(3000)]
        assert found.next_offset == 3000

    @MEMORIES
    def test_fetches_go_on_where_the_one_before_ended(self, settings: BrokerSettings) -> None:
        house = filled(200, settings)
        offset, found = 0, []
        while (part := fetch(house, offset, count=7)).records:
            assert len(part.records) <= 7
            found += part.offsets
            offset = part.next_offset
        assert found == list(range(200))

    @MEMORIES
    def test_bytes_are_a_limit_but_one_record_always_comes(self, settings: BrokerSettings) -> None:
        house = filled(100, settings)
        size = len(value(50)) * 3
        assert fetch(house, 50, size=size).offsets == [50, 51, 52]
        assert fetch(house, 50, size=size - 1).offsets == [50, 51]
        assert fetch(house, 50, size=0).offsets == [50]

    def test_a_record_comes_whole(self) -> None:
        house = House()
        topic = house.broker.topics.create("t")
        house.broker.appender.produce(topic.choose(None), b"v", 1, b"k", b"\x80", 1, -5, 0)
        house.run()
        [record] = fetch(house, 0).records
        assert record._replace(append_time_us=0) == Record(0, b"v", b"k", 1, b"\x80", 0, -5, 0, 1)
        assert record.append_time_us == pytest.approx(house.broker.time.time_us(), abs=1e6)

    def test_nothing_is_there_yet(self) -> None:
        house = filled(10)
        for offset in (10, 11, 500):
            found = fetch(house, offset)
            assert (found.records, found.next_offset) == ([], offset)

    def test_what_is_not_durable_is_not_read(self) -> None:
        house = filled(10)
        produce(house, "t", b"gathered")
        assert Fetch(house, 5).offsets == [5, 6, 7, 8, 9]
        house.turn()
        assert Fetch(house, 5).offsets == [5, 6, 7, 8, 9]
        assert Fetch(house, 10).next_offset == 10
        house.run()
        assert Fetch(house, 9).offsets == [9, 10]

    def test_a_reader_at_the_tail_keeps_up_while_every_commit_is_followed_by_the_next(self) -> None:
        """The newest chunk always holds records that are not durable; those before them are."""
        house = House()
        offset = 0
        for step in range(20):
            produce(house, "t", b"%d" % step)
            house.turn()
            produce(house, "t", b"next")
            house.writer.step()
            offset = Fetch(house, offset).next_offset
            assert offset == 2 * step + 1 if step else 1
            house.run()

    def test_a_fetch_of_nothing_is_refused(self) -> None:
        house = filled(10)
        with pytest.raises(InvalidRequest):
            Fetch(house, 0, count=0)
        with pytest.raises(InvalidRequest):
            Fetch(house, 0, size=-1)

    @MEMORIES
    def test_bytes_are_a_limit_over_several_chunks(self, settings: BrokerSettings) -> None:
        """A record that begins a chunk is no first record when others came before."""
        house = House(settings=settings)
        for _ in range(3):
            produce(house, "t", bytes(CHUNK_BYTES))
            house.run()
        assert fetch(house, 0, size=2 * CHUNK_BYTES - 1).offsets == [0]
        assert fetch(house, 0, size=2 * CHUNK_BYTES).offsets == [0, 1]


class TestPassingOver:
    @MEMORIES
    def test_what_was_removed_is_not_read(self, settings: BrokerSettings) -> None:
        house = filled(100, settings)
        house.broker.topics.existing("t").partition(0).start_offset = 42
        assert fetch(house, 0, count=3).offsets == [42, 43, 44]
        assert fetch(house, -1, count=1).offsets == [42]

    @pytest.mark.parametrize("start", [30, 100])
    def test_records_removed_during_a_read_are_not_read(self, start: int) -> None:
        house = filled(100, FORGETFUL)
        found = Fetch(house, 10)
        house.broker.topics.existing("t").partition(0).start_offset = start
        house.run()
        assert found.offsets == list(range(start, 100))
        assert found.next_offset == 100

    @MEMORIES
    def test_gaps_are_passed_over(self, settings: BrokerSettings) -> None:
        house = filled(50, settings).crash()  # only a start leaves offsets out
        house.broker.topics.existing("t").partition(0).skip_offsets(1_000_000)
        assert produce(house, "t", b"behind") == [1_000_050]
        house.run()
        assert fetch(house, 45).offsets == [45, 46, 47, 48, 49, 1_000_050]
        assert fetch(house, 500_000).offsets == [1_000_050]

    @MEMORIES
    def test_expired_records_are_passed_over(self, settings: BrokerSettings) -> None:
        house = House(settings=settings, options=SMALL)
        partition = house.broker.topics.create("t").choose(None)
        now_us = house.broker.time.time_us()
        for offset in range(30):
            expires_at_us = now_us + 10_000_000 if offset % 3 else 0
            house.broker.appender.produce(partition, value(offset), expires_at_us=expires_at_us)
        house.run()
        assert len(fetch(house, 0).records) == 30
        house.pass_time(10.0, step=1.0)
        assert fetch(house, 0).offsets == list(range(0, 30, 3))
        assert fetch(house, 28).next_offset == 30

    def test_nothing_expires_by_a_clock_that_jumped_before_the_grace_is_over(self) -> None:
        house = House()
        partition = house.broker.topics.create("t").choose(None)
        house.broker.appender.produce(
            partition, b"x", expires_at_us=house.broker.time.time_us() + 5_000_000
        )
        house.run()
        house.wall_seconds += 7200
        house.pass_time(4.0)
        assert fetch(house, 0).offsets == [0]
        house.pass_time(1.1)
        assert fetch(house, 0).offsets == [], "the time that has surely passed"

    def test_nothing_expires_in_the_moment_in_which_the_clock_jumps(self) -> None:
        house = House()
        partition = house.broker.topics.create("t").choose(None)
        house.broker.appender.produce(
            partition, b"x", expires_at_us=house.broker.time.time_us() + 5_000_000
        )
        house.run()
        house.wall_seconds += 7200  # and nothing reads the time before the fetch
        assert fetch(house, 0).offsets == [0]

    def test_many_expired_records_are_passed_over_but_not_in_one_turn(self) -> None:
        house = House(options=SMALL)
        partition = house.broker.topics.create("t").choose(None)
        soon_us = house.broker.time.time_us() + 1
        for _ in range(3 * EXAMINED_MAX):
            house.broker.appender.produce(partition, b"", expires_at_us=soon_us)
        house.broker.appender.produce(partition, b"last")
        house.run()
        house.pass_time(1.0, step=1.0)
        found = Fetch(house, 0)
        assert not found.answers
        house.turn()
        assert found.offsets == [3 * EXAMINED_MAX]


class TestTrouble:
    def damaged(self) -> House:
        house = filled(50, FORGETFUL)
        house.pass_time(0.5)
        house.disk.crash()
        hit = is_records(1, 20)
        [(name, _, entry)] = [place for place in entries(house) if hit(place[2].entry)]
        rot(house, name, entry.position + 48)
        return house.again()

    def test_records_before_damage_come_then_the_damage_then_what_follows(self) -> None:
        house = self.damaged()
        assert fetch(house, 5).offsets == list(range(5, 20))
        hurt = Fetch(house, 20)
        house.run()
        assert isinstance(hurt.error, Unreadable)
        assert r".wal at " in str(hurt.error)
        assert (hurt.records, hurt.next_offset) == ([], 30)
        assert fetch(house, 30).offsets == list(range(30, 50))

    def test_a_fetch_into_the_middle_of_damage_goes_on_behind_it(self) -> None:
        hurt = Fetch(house := self.damaged(), 25)
        house.run()
        assert hurt.next_offset == 30

    def test_a_read_that_fails_otherwise_may_be_tried_again(self) -> None:
        house = filled(1000, FORGETFUL)
        house.disk.fail("open", error=errno.EMFILE)
        hurt = Fetch(house, 0)
        house.run()
        assert isinstance(hurt.error, OSError)
        assert (hurt.records, hurt.next_offset, hurt.answers) == ([], 0, 1)
        assert len(fetch(house, 0).records) == 1000


class TestDeletion:
    """Whoever is told that records are passed over never asks for them again."""

    @pytest.mark.parametrize("count", [100, 2 * EXAMINED_MAX])
    def test_a_topic_that_is_deleted_meanwhile_has_nothing_passed_over(self, count: int) -> None:
        """The deletion may not be durable yet: what was read is given, or that it is gone."""
        house = filled(count, FORGETFUL)
        under_way = Fetch(house, 10)
        house.broker.topics.delete("t")
        house.run()
        assert (under_way.answers, under_way.offsets) == (1, [])
        assert (under_way.next_offset, type(under_way.error)) == (10, UnknownTopic)

    def test_what_was_read_before_the_deletion_is_given(self) -> None:
        """And the next fetch begins behind that."""
        house = filled(2 * EXAMINED_MAX)
        under_way = Fetch(house, 10)
        house.broker.topics.delete("t")
        house.run()
        assert under_way.offsets == list(range(10, 10 + len(under_way.offsets)))
        assert EXAMINED_MAX <= len(under_way.offsets) < 2 * EXAMINED_MAX - 10
        assert (under_way.next_offset, under_way.error) == (10 + len(under_way.offsets), None)
