"""Delayed messages on disk are read before they are due, many at once and within a budget."""

from __future__ import annotations

import gc
import random

import pytest

from brokerd.broker import BrokerSettings
from brokerd.broker.delayed.prefetch import AHEAD_US, MESSAGE_BYTES, SAMPLE, earliest
from brokerd.broker.delayed.schedule import schedule_group_partition
from brokerd.broker.model.topics import Topic
from brokerd.wal import WalOptions
from tests.broker.desk import SECOND_US
from tests.broker.test_schedule import in_an_hour, later, values
from tests.broker.test_state import after_damage, is_records
from tests.house import House

KIB = 1024
SMALL = WalOptions(segment_bytes=256 * KIB, free_bytes_min=0)
FORGETFUL = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0)
COUNT = 1200
AHEAD_SECONDS = AHEAD_US / SECOND_US


def shuffled(
    house: House, count: int = COUNT, spread_seconds: float = 10.0, size: int = 0
) -> list[bytes]:
    """Schedule messages that are due in another order than they lie in the log; in due order.

    The first is due well after everything was read ahead.
    """
    due = [60.0 + spread_seconds * number / count for number in range(count)]
    numbers = list(range(count))
    random.Random(5).shuffle(numbers)
    for at, number in enumerate(numbers):
        later(house, b"%d" % number + b"." * size, due[number])
        if at % 20 == 19:
            house.run()
    house.run()
    return [b"%d" % number for number in range(count)]


def preads(house: House) -> int:
    return house.disk.calls["pread"]


def prefetch_bytes(house: House) -> int:
    return house.broker.status()["schedule_held_bytes"]


class TestReadingAhead:
    def test_messages_anywhere_in_the_log_are_read_in_few_reads(self) -> None:
        house = House(settings=FORGETFUL, options=SMALL)
        expected = shuffled(house)
        before = preads(house)
        house.pass_time(59.0, step=1.0)
        assert values(house) == []
        ahead = preads(house) - before
        assert 0 < ahead < COUNT / 10
        found = house.broker.status()["reads_from_disk"]
        house.pass_time(12.0)
        assert house.broker.status()["reads_from_disk"] == found
        assert preads(house) - before == ahead
        assert sorted(values(house)) == sorted(expected)
        assert prefetch_bytes(house) == 0

    def test_nothing_is_read_long_before_it_is_due(self) -> None:
        house = House(settings=FORGETFUL, options=SMALL)
        later(house, b"x", 3600.0)
        house.run()
        house = house.crash()
        in_an_hour(house, 3600.0 - AHEAD_SECONDS - 60.0)
        assert prefetch_bytes(house) == 0
        house.pass_time(61.0, step=1.0)
        assert prefetch_bytes(house) > 0
        house.pass_time(AHEAD_SECONDS + 1, step=1.0)
        assert values(house) == [b"x"]

    def test_a_stretch_that_one_read_does_not_cover_is_read_in_several(self) -> None:
        house = House(settings=FORGETFUL, options=SMALL)
        shuffled(house, size=2_000)
        house.pass_time(75.0, step=1.0)
        assert house.broker.status()["reads_from_disk"] == 0
        assert len(values(house)) == COUNT

    def test_what_is_in_memory_is_not_read(self) -> None:
        house = House(options=SMALL)
        expected = shuffled(house)
        before = preads(house)
        house.pass_time(75.0, step=1.0)
        assert sorted(values(house)) == sorted(expected)
        assert preads(house) == before

    def test_a_message_that_is_due_earlier_than_all_is_read_ahead_too(self) -> None:
        house = House(settings=FORGETFUL, options=SMALL)
        later(house, b"late", 3600.0)
        house.run()
        later(house, b"early", 600.0)
        house.run()
        house.pass_time(595.0, step=5.0)
        found = house.broker.status()["reads_from_disk"]
        house.pass_time(6.0, step=1.0)
        assert house.broker.status()["reads_from_disk"] == found
        assert values(house) == [b"early"]

    def test_more_than_one_look_brings_are_read_by_the_next_ones(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("brokerd.broker.delayed.prefetch.SCAN_MESSAGES_MAX", 100)
        monkeypatch.setattr("brokerd.broker.delayed.prefetch.SCAN_BLOCKS", 1)
        house = House(settings=FORGETFUL, options=SMALL)
        expected = shuffled(house)
        most = 0
        for _ in range(59):
            before = prefetch_bytes(house)
            house.pass_time(1.0, step=1.0)
            most = max(most, (prefetch_bytes(house) - before) // MESSAGE_BYTES)
        assert most in range(100, 130)
        house.pass_time(12.0)
        assert house.broker.status()["reads_from_disk"] == 0
        assert sorted(values(house)) == sorted(expected)

    def test_messages_are_read_ahead_after_a_restart(self) -> None:
        house = House(settings=FORGETFUL, options=SMALL)
        expected = shuffled(house)
        house = house.crash()
        house.pass_time(75.0, step=0.5)
        assert house.broker.status()["reads_from_disk"] == 0
        assert sorted(values(house)) == sorted(expected)


class TestBudget:
    def test_what_is_held_keeps_its_budget_and_all_are_fired(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        budget = 200 * (MESSAGE_BYTES + 30)
        monkeypatch.setattr("brokerd.broker.delayed.prefetch.HELD_BYTES", budget)
        house = House(settings=FORGETFUL, options=SMALL)
        expected = shuffled(house)
        held = []
        for _ in range(75):
            house.pass_time(1.0, step=0.2)
            held.append(prefetch_bytes(house))
        assert 0 < max(held) <= 2 * budget
        assert sorted(values(house)) == sorted(expected)

    def test_cancelled_messages_are_held_no_longer(self) -> None:
        house = House(settings=FORGETFUL, options=SMALL)
        shuffled(house)
        house.pass_time(59.0, step=1.0)
        assert prefetch_bytes(house) > 0
        for schedule_id in range(COUNT):
            assert house.broker.delayed.cancel("t", schedule_id)
        assert prefetch_bytes(house) == 0

    def test_a_message_cancelled_while_it_is_read_is_not_held(self) -> None:
        house = House(settings=FORGETFUL, options=SMALL)
        later(house, b"x", 60.0)
        house.run()
        house = house.crash()
        house.pass_time(40.0)
        house.clock.advance(2.0)
        assert len(house.readers) == 1
        assert house.broker.delayed.cancel("t", 0)
        house.run()
        assert prefetch_bytes(house) == 0

    def test_the_messages_of_a_deleted_topic_are_held_no_longer(self) -> None:
        house = House(settings=FORGETFUL, options=SMALL)
        shuffled(house)
        house.pass_time(59.0, step=1.0)
        house.broker.topics.delete("t")
        house.pass_time(AHEAD_SECONDS, step=1.0)
        assert prefetch_bytes(house) == 0


def test_a_damaged_message_hinders_no_other() -> None:
    house = House(settings=FORGETFUL)
    for number in range(5):
        later(house, b"%d" % number, 30.0)
        house.run()
    house = after_damage(house, is_records(2, 1))
    house.pass_time(31.0, step=0.5)
    assert house.broker.status()["reads_from_disk"] == 1
    assert values(house) == [b"0", b"2", b"3", b"4"]
    assert house.broker.delayed.counters.lost == 1


@pytest.mark.parametrize("total", [2, 1_000, 50_021])
@pytest.mark.parametrize("permille", [0, 1, 500, 999])
def test_the_earliest_of_many_are_about_as_many_as_wanted(total: int, permille: int) -> None:
    count = total * permille // 1_000
    wanted = [(random.Random(number).randrange(total), number) for number in range(total)]
    kept, end_us = earliest(wanted, count)
    assert abs(len(kept) - count) <= (total // 20 if total > SAMPLE else 0)
    assert sorted(kept) == sorted(wanted)[: len(kept)]
    assert sorted(wanted)[len(kept)][0] == end_us


class TestPlans:
    """Plans of scans that no schedule needs any more leave no memory behind."""

    COUNT = 3_000

    def test_each_message_is_due_before_all_others(self) -> None:
        house = House()
        for number in range(self.COUNT):
            house.broker.delayed.cancel("t", later(house, b"x", 1e6 - number))
            if number % 100 == 0:
                house.run()
        topic = house.broker.topics.existing("t")
        schedule = schedule_group_partition(house.broker.context.state, topic)
        assert schedule is not None
        plans = [one for one in gc.get_referrers(schedule) if type(one) is tuple]
        assert len(plans) < self.COUNT

    def test_topics_are_deleted_before_their_messages_are_due(self) -> None:
        house = House()
        for number in range(self.COUNT):
            later(house, b"x", 1e6, f"{number}")
            house.run()
            house.broker.topics.delete(f"{number}")
        house.pass_time(1.0)
        gc.collect()
        deleted = [one for one in gc.get_objects() if isinstance(one, Topic) and one.deleted]
        assert len(deleted) < self.COUNT
