"""Records on their way in: what time to live they get, and that batches are no different."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.broker import BrokerSettings
from brokerd.broker.model.topics import TopicSettings
from brokerd.broker.records.append import TTL_MAX_US
from brokerd.broker.retention.retention import RetentionSettings
from brokerd.errors import InvalidRequest
from brokerd.values import Format
from tests.broker.desk import SECOND_US, lease, read
from tests.house import House

DEFAULT = BrokerSettings(
    retention=RetentionSettings(
        topics=TopicSettings(retention_us=0, retention_bytes=0, ttl_us=60 * SECOND_US)
    )
)


def ttl_us(house: House, settings: TopicSettings, expires_at_us: int | None = None) -> int | None:
    """What is left of a record's life when it is produced; None for ever."""
    topic = house.broker.topics.create("t", settings=settings)
    house.broker.appender.produce(topic.choose(None), b"x", expires_at_us=expires_at_us)
    house.run()
    record = read(house, "t", 0)
    return record.expires_at_us - record.append_time_us if record.expires_at_us else None


def test_records_live_for_ever_unless_somebody_says_otherwise() -> None:
    assert ttl_us(House(), TopicSettings()) is None


def test_records_live_as_the_configuration_says() -> None:
    assert ttl_us(House(settings=DEFAULT), TopicSettings()) == 60 * SECOND_US


@pytest.mark.parametrize("settings", [None, DEFAULT])
def test_a_topic_has_a_say_of_its_own(settings: BrokerSettings | None) -> None:
    house = House(settings=settings)
    assert ttl_us(house, TopicSettings(ttl_us=5 * SECOND_US)) == 5 * SECOND_US


def test_a_topic_may_say_for_ever() -> None:
    assert ttl_us(House(settings=DEFAULT), TopicSettings(ttl_us=0)) is None


def test_the_producer_has_the_last_word() -> None:
    house = House(settings=DEFAULT)
    at_us = house.broker.appender.expiry_us(7 * SECOND_US)
    assert ttl_us(house, TopicSettings(ttl_us=5 * SECOND_US), at_us) == 7 * SECOND_US
    assert ttl_us(House(settings=DEFAULT), TopicSettings(), 0) is None


@pytest.mark.parametrize("ttl", [0, -1, TTL_MAX_US + 1])
def test_a_time_to_live_that_makes_no_sense_is_refused(ttl: int) -> None:
    with pytest.raises(InvalidRequest, match="a hundred years"):
        House().broker.appender.expiry_us(ttl)


def test_an_expired_record_is_not_leased_and_leaves_the_lag() -> None:
    house = House()
    topic = house.broker.topics.create("t", settings=TopicSettings(ttl_us=5 * SECOND_US))
    house.broker.appender.produce(topic.choose(None), b"short")
    house.broker.appender.produce(topic.choose(None), b"ever", expires_at_us=0)
    house.run()
    house.pass_time(6.0)
    assert house.broker.reader.expiry.is_expired(topic.partition(0).chunks.find(0), 0)
    assert lease(house, limit=5) == [(1, b"ever")]
    assert house.broker.overview.group_info("t", "g").lag == 1


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.binary(max_size=9), max_size=6)), max_size=6),
    st.sampled_from([BrokerSettings(), DEFAULT]),
)
def test_values_appended_together_are_stored_as_if_one_by_one(
    batches: list[tuple[bool, list[bytes]]], settings: BrokerSettings
) -> None:
    """In memory, and after a restart from disk; whatever columns others need between them."""
    stored = []
    for together in (False, True):
        house = House(settings=settings)
        partition = house.broker.topics.create("t").partitions[0]
        gathered = []
        for number, (timed, values) in enumerate(batches):
            if together:
                house.broker.appender.append_values(partition, values, Format.RUSTLOG)
            else:
                for value in values:
                    house.broker.appender.append(partition, value, producer_format=Format.RUSTLOG)
            if timed:
                house.broker.appender.append(partition, b"timed", producer_time=number)
            gathered.append(house.broker.group_commit.gathered_bytes)
            if number % 2:
                house.run()
        house.run()
        before = house.broker.status()["records_produced"], partition.next_offset, gathered
        first = house.read_all(partition)
        house.stop()
        house = house.again()
        (partition,) = house.partitions()
        assert house.read_all(partition) == first
        stored.append((before, first))
    assert stored[0] == stored[1]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=9), st.integers(0, 5))), max_size=6
    ),
    st.sampled_from([BrokerSettings(), DEFAULT]),
)
def test_records_appended_to_many_partitions_are_stored_as_if_one_by_one(
    batches: list[list[tuple[int, bytes, int]]], settings: BrokerSettings
) -> None:
    """In memory, and after a restart from disk."""
    stored = []
    for together in (False, True):
        house = House(settings=settings)
        partitions = [
            house.broker.topics.create(f"t{number}", 1, TopicSettings(ttl_us=ttl)).partitions[0]
            for number, ttl in enumerate((None, 0, 5 * SECOND_US, None))
        ]
        appender, offsets, gathered = house.broker.appender, [], []
        for batch in batches:
            if together and batch:
                numbers, values, times = zip(*batch, strict=True)
                chosen = [partitions[number] for number in numbers]
                offsets += appender.append_each(chosen, values, Format.MEGA, times)
            elif not together:
                offsets += [
                    appender.append(
                        partitions[number], value, producer_format=Format.MEGA, producer_time=time
                    )
                    for number, value, time in batch
                ]
            appender.append(partitions[3], b"plain")
            gathered.append(house.broker.group_commit.gathered_bytes)
            house.run()
        status = house.broker.status()
        before = status["records_produced"], status["bytes_produced"], offsets, gathered
        first = [house.read_all(partition) for partition in partitions]
        house.stop()
        house = house.again()
        assert [house.read_all(partition) for partition in house.partitions()] == first
        stored.append((before, first))
    assert stored[0] == stored[1]
