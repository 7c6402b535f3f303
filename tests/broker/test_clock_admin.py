"""Broker time is set to the wall clock by an operator."""

from __future__ import annotations

import pytest
from twisted.logger import capturedLogs

from brokerd.broker import BrokerSettings, Congested, RetentionSettings, TopicSettings
from tests.broker.desk import lease, produce, settle
from tests.house import House

SECOND_US = 1_000_000
DAY_SECONDS = 86_400
SETTINGS = BrokerSettings(
    retention=RetentionSettings(TopicSettings(7_200 * SECOND_US, 0, 0), 0, 10 * SECOND_US)
)


def ahead(house: House, seconds: float = 3 * DAY_SECONDS) -> None:
    """Let the wall clock be wrong for eight seconds, with a record."""
    house.wall_seconds += seconds
    house.pass_time(8, step=1)
    produce(house, "t", b"ahead")
    house.run()
    house.wall_seconds -= seconds
    house.pass_time(1)


def set_clock(house: House) -> None:
    house.run()
    house.broker.clock_admin.set_to_wall()
    house.run()


def skew_seconds(house: House) -> float:
    return float(house.broker.status()["clock"]["skew_seconds"])


@pytest.fixture
def house() -> House:
    house = House(settings=SETTINGS)
    produce(house, "t", b"before")
    house.run()
    ahead(house)
    assert skew_seconds(house) == 3 * DAY_SECONDS
    return house


class TestBrokerTime:
    def test_it_is_the_wall_clock_at_once(self, house: House) -> None:
        with capturedLogs() as captured:
            set_clock(house)
        assert "clock-right" in [event.get("event_id") for event in captured]
        assert skew_seconds(house) == 0
        assert not house.broker.time.problem

    @pytest.mark.parametrize("how", ["crash", "stop"])
    def test_it_stays_so_over_a_restart(self, house: House, how: str) -> None:
        set_clock(house)
        produce(house, "t", b"after")
        house.run()
        if how == "crash":
            house = house.crash()
        else:
            house.stop()
            house = house.again(wall_seconds=house.wall_seconds)
        assert skew_seconds(house) == 0
        assert not house.broker.time.problem
        assert [value for _, value in lease(house, limit=9)] == [b"before", b"ahead", b"after"]

    def test_the_log_is_told_in_a_segment_of_its_own(self, house: House) -> None:
        before = len(house.wal.segments())
        set_clock(house)
        assert len(house.wal.segments()) == before + 1
        set_clock(house)
        assert skew_seconds(house) == 0

    def test_nothing_changes_without_room_for_a_segment(self, house: House) -> None:
        house.wal._allocator.take(0)
        with pytest.raises(Congested):
            house.broker.clock_admin.set_to_wall()
        assert skew_seconds(house) == 3 * DAY_SECONDS
        house.run()
        set_clock(house)
        assert skew_seconds(house) == 0

    def test_a_clock_that_jumped_is_trusted_without_the_grace(self) -> None:
        """As after a sleep of the computer."""
        house = House(settings=SETTINGS)
        produce(house, "t", b"old")
        house.run()
        house.wall_seconds += DAY_SECONDS
        house.pass_time(30, step=1)
        assert house.broker.topics.existing("t").partitions[0].start_offset == 0
        set_clock(house)
        house.pass_time(30, step=1)
        assert house.broker.topics.existing("t").partitions[0].start_offset == 1


class TestRemoval:
    def test_records_go_by_their_age_and_those_of_the_time_ahead_later(self, house: House) -> None:
        set_clock(house)
        produce(house, "t", b"after")
        house.run()
        house.pass_time(7_100, step=50)
        assert start(house) == 0
        house.pass_time(200, step=50)
        assert start(house) == 1
        house.pass_time(8_000, step=50)
        assert start(house) == 1, "not while the record before it seems to be of the future"
        house.pass_time(3 * DAY_SECONDS - 8_000, step=500)
        assert start(house) == 3

    def test_a_search_by_time_passes_over_no_record_of_that_time(self, house: House) -> None:
        set_clock(house)
        after_us = int(house.wall_seconds * SECOND_US)
        house.pass_time(5)
        produce(house, "t", b"after")
        house.run()
        for again in (house, house.crash()):
            found: list[int] = []
            partition = again.broker.topics.existing("t").partitions[0]
            again.broker.reader.offset_at_time(
                partition, after_us, lambda offset, error, found=found: found.append(offset)
            )
            again.run()
            assert found == [1]


def test_delays_end_in_time_also_after_a_restart(house: House) -> None:
    lease(house)
    settle(house, 0, False, delay_seconds=100)
    house.run()
    set_clock(house)
    house.pass_time(50)
    house = house.crash()
    house.pass_time(45)
    assert [offset for offset, _ in lease(house)] == [1]
    house.pass_time(10)
    assert [offset for offset, _ in lease(house)] == [0]


def start(house: House) -> int:
    return house.broker.topics.existing("t").partitions[0].start_offset
