"""Delayed messages: durable, on time or late, never lost, never twice; and cancelled."""

from __future__ import annotations

import errno
import random

import pytest
from twisted.logger import capturedLogs

from brokerd.broker import BrokerSettings
from brokerd.broker.delayed.delivery import MESSAGE_BYTES, TRIM_SECONDS, TURN_BYTES
from brokerd.broker.delayed.schedule import DELAY_MAX_US
from brokerd.broker.model.topics import TopicSettings
from brokerd.errors import InvalidRequest, UnknownPartition, UnknownTopic
from brokerd.groups import GroupSettings
from brokerd.values import Encoding, Format, Record
from brokerd.wal import WalOptions
from tests.broker.desk import SECOND_US, acknowledged
from tests.broker.test_state import after_damage, entries, is_records, rot
from tests.house import House

KIB = 1024
SMALL = WalOptions(segment_bytes=64 * KIB, free_bytes_min=0)
FORGETFUL = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0)
MEMORIES = pytest.mark.parametrize("settings", [BrokerSettings(), FORGETFUL])


def later(house: House, value: bytes, seconds: float, topic: str = "t") -> int:
    """Schedule one message, creating the topic."""
    broker = house.broker
    target = broker.topics.find(topic) or broker.topics.create(topic)
    return broker.delayed.produce(target, value, delay_us=int(seconds * SECOND_US))


def records(house: House, topic: str = "t", index: int = 0) -> list[Record]:
    """Every durable record of a partition, read as consumers do."""
    found: list[Record] = []
    partition = house.broker.topics.existing(topic).partition(index)
    place = 0

    def done(part: list[Record], next_offset: int, error: Exception | None) -> None:
        nonlocal place
        assert error is None
        found.extend(part)
        place = next_offset

    while place < partition.next_offset:
        house.broker.reader.fetch(partition, place, 1_000_000, 1 << 30, done)
        house.run()
    return found


def values(house: House, topic: str = "t", index: int = 0) -> list[bytes]:
    return [record.value for record in records(house, topic, index)]


def said(events: list[dict[str, object]]) -> list[object]:
    """The ids of what was logged."""
    return [event.get("event_id") for event in events]


def in_an_hour(house: House, seconds: float = 3600.0) -> House:
    """Let much time pass in few steps."""
    house.pass_time(seconds, step=60.0)
    return house


def timers(house: House) -> int:
    return len(house.clock.getDelayedCalls())


class TestFiring:
    def test_a_topic_whose_messages_are_all_delivered_wakes_nobody(self) -> None:
        house = House()
        house.run()
        before = timers(house)
        later(house, b"x", 1.0)
        house.pass_time(2.0)
        assert values(house) == [b"x"]
        in_an_hour(house)
        assert timers(house) == before

    @MEMORIES
    def test_a_message_appears_when_its_delay_is_over_and_not_before(
        self, settings: BrokerSettings
    ) -> None:
        house = House(settings=settings)
        later(house, b"x", 5.0)
        house.pass_time(4.9)
        assert values(house) == []
        house.pass_time(0.2)
        assert values(house) == [b"x"]
        in_an_hour(house)
        assert values(house) == [b"x"]

    @MEMORIES
    def test_messages_appear_in_the_order_in_which_they_are_due(
        self, settings: BrokerSettings
    ) -> None:
        house = House(settings=settings)
        for number, seconds in enumerate([5.0, 1.0, 3.0, 1.0, 4.0]):
            later(house, b"%d" % number, seconds)
            house.run()
        house.pass_time(6.0)
        assert values(house) == [b"1", b"3", b"2", b"4", b"0"]

    @MEMORIES
    def test_many_due_at_once_appear_in_the_order_in_which_they_came(
        self, settings: BrokerSettings
    ) -> None:
        house = House(settings=settings, options=SMALL)
        due_seconds = house.clock.seconds() + 5.0
        for number in range(2000):
            later(house, b"%d" % number, due_seconds - house.clock.seconds())
            if number % 50 == 0:
                house.run()
        house.pass_time(5.5)
        assert values(house) == [b"%d" % number for number in range(2000)]

    @MEMORIES
    def test_a_backlog_is_fired_in_the_order_in_which_it_was_due(
        self, settings: BrokerSettings
    ) -> None:
        """Whatever its place in the log: who was due first does not wait for who was due later."""
        house = House(settings=settings)
        due = list(range(100, 10_100, 20))
        random.Random(3).shuffle(due)
        for at, milliseconds in enumerate(due):
            later(house, b"%d" % milliseconds, milliseconds / 1000)
            if at % 50 == 0:
                house.run()
        house.run()
        house.wall_seconds += 20
        house.clock.advance(20)
        house.run()
        fired = [int(value) for value in values(house)]
        assert sorted(fired) == sorted(due)
        latest = 0
        for milliseconds in fired:
            latest = max(latest, milliseconds)
            assert milliseconds >= latest - 100

    def test_a_message_comes_whole_as_if_it_were_produced_then(self) -> None:
        house = House()
        topic = house.broker.topics.create("t", 4)
        house.broker.delayed.produce(
            topic, b"v", Encoding.TEXT, b"k", b"\x80", Format.BLIPMQ, 3, SECOND_US
        )
        house.broker.delayed.produce(topic, b"w", key=b"k", delay_us=SECOND_US)
        house.pass_time(2.0)
        [record] = records(house, index=3)
        assert record._replace(append_time_us=0) == Record(
            0, b"v", b"k", Encoding.TEXT, b"\x80", 0, None, 0, Format.BLIPMQ
        )
        assert record.append_time_us == pytest.approx(house.broker.time.time_us(), abs=2e6)
        by_key = topic.choose(b"k").index
        [keyed] = records(house, index=by_key)
        assert (keyed.value, keyed.metadata) == (b"w", None)

    def test_without_key_or_partition_they_are_spread(self) -> None:
        house = House()
        topic = house.broker.topics.create("t", 2)
        for _ in range(10):
            house.broker.delayed.produce(topic, b"x", delay_us=SECOND_US)
        house.pass_time(2.0)
        assert [len(records(house, index=index)) for index in (0, 1)] == [5, 5]

    def test_groups_of_every_setting_fire(self) -> None:
        """One failed attempt makes no dead letter of a delayed message."""
        house = House(settings=BrokerSettings(groups=GroupSettings(max_attempts=1)))
        later(house, b"x", 1.0)
        house.pass_time(2.0)
        assert values(house) == [b"x"]

    def test_many_due_at_once_leave_the_reactor_its_turns(self) -> None:
        house = House()
        count = TURN_BYTES // MESSAGE_BYTES + 100
        for _ in range(count):
            later(house, b"", 1.0)
        house.run()
        fired = []
        house.broker.group_commit.when_durable(0, lambda: None)
        turn = house.broker.delivery._run
        house.broker.delivery._run = lambda: (  # type: ignore[method-assign]
            turn(),
            fired.append(house.broker.delayed.counters.delivered),
        )
        house.pass_time(1.5)
        assert len(values(house)) == count
        assert max(after - before for before, after in zip([0, *fired], fired, strict=False)) < 600

    def test_schedules_of_many_topics_fire_in_turns(self) -> None:
        house = House()
        for topic in ("a", "b", "c"):
            for _ in range(200):
                later(house, b"x", 1.0, topic)
        house.pass_time(2.0)
        assert [len(values(house, topic)) for topic in ("a", "b", "c")] == [200] * 3

    def test_a_large_message_fires(self) -> None:
        house = House(settings=FORGETFUL)
        later(house, bytes(200_000), 1.0)
        later(house, b"small", 1.0)
        house.pass_time(2.0)
        assert [len(value) for value in values(house)] == [200_000, 5]

    def test_what_is_scheduled_is_counted_and_how_late_it_was(self) -> None:
        house = House()
        later(house, b"x", 1.0)
        later(house, b"y", 10.0)
        house.pass_time(2.0)
        status = house.broker.status()
        assert (status["schedule"]["scheduled"], status["schedule"]["fired"]) == (2, 1)
        assert sum(status["schedule"]["lateness"]) == 1
        assert status["records_produced"]["unknown"] == 1
        assert status["topics"] == 1


class TestRestart:
    @MEMORIES
    @pytest.mark.parametrize("clean", [True, False])
    def test_what_is_scheduled_survives(self, settings: BrokerSettings, clean: bool) -> None:
        house = House(settings=settings)
        for number, seconds in enumerate([1.0, 20.0, 10.0]):
            later(house, b"%d" % number, seconds)
        house.pass_time(2.0)
        if clean:
            house.stop()
        house = house.again() if clean else house.crash()
        assert values(house) == [b"0"]
        house.pass_time(30.0)
        assert values(house) == [b"0", b"2", b"1"]
        house = house.crash()
        house.pass_time(30.0)
        assert values(house) == [b"0", b"2", b"1"]

    def test_what_was_due_while_the_broker_was_down_fires_at_once(self) -> None:
        house = House()
        later(house, b"x", 60.0)
        house.run()
        house = house.crash(wall_seconds=house.wall_seconds + 120)
        house.pass_time(0.1)
        assert values(house) == [b"x"]

    def test_a_schedule_that_was_not_acknowledged_is_all_there_or_not_at_all(self) -> None:
        """At every write that a crash may cut off, a message is fired once or unknown."""
        for steps in range(8):
            house = House()
            later(house, b"x", 1.0)
            done = acknowledged(house)
            for _ in range(steps):
                house.turn()
                house._step()
            house = house.crash()
            house.pass_time(2.0)
            topic = house.broker.topics.find("t")
            fired = values(house) if topic is not None else []
            assert fired == [b"x"] if done else len(fired) <= 1

    def test_a_crash_while_messages_fire_loses_none_and_repeats_none(self) -> None:
        for steps in range(0, 30, 3):
            house = House(options=SMALL)
            for number in range(1500):
                later(house, b"%d" % number, 1.0)
            house.run()
            house.wall_seconds += 1.1
            house.clock.advance(1.1)
            for _ in range(steps):
                house.turn()
                house._step()
            house = house.crash()
            house.pass_time(2.0)
            assert values(house) == [b"%d" % number for number in range(1500)]

    def test_fired_messages_stay_fired_when_the_snapshot_is_all_that_is_read(self) -> None:
        house = House()
        later(house, b"x", 1.0)
        later(house, b"y", 100.0)
        house.pass_time(2.0)
        house.stop()
        house = house.again()
        house.stop()
        house = house.again()
        house.pass_time(120.0, step=1.0)
        assert values(house) == [b"x", b"y"]


class TestTime:
    def test_steps_of_the_wall_clock_change_no_delay(self) -> None:
        house = House()
        later(house, b"x", 10.0)
        house.wall_seconds += 86_400
        house.pass_time(9.0)
        house.wall_seconds -= 200_000
        assert values(house) == []
        house.pass_time(1.5)
        assert values(house) == [b"x"]

    def test_a_message_that_expired_is_dropped_when_it_is_due(self) -> None:
        house = House()
        topic = house.broker.topics.create("t")
        soon_us = house.broker.time.time_us() + SECOND_US
        for expires_at_us in (soon_us, soon_us + 10 * SECOND_US):
            house.broker.delayed.produce(
                topic, b"%d" % expires_at_us, delay_us=2 * SECOND_US, expires_at_us=expires_at_us
            )
        house.pass_time(3.0)
        [record] = records(house)
        assert record.expires_at_us == soon_us + 10 * SECOND_US
        assert house.broker.delayed.counters.expired == 1

    @pytest.mark.parametrize("settings", [BrokerSettings(), FORGETFUL])
    @pytest.mark.parametrize(("expires_at_us", "lives"), [(None, False), (0, True)])
    def test_who_says_that_a_message_never_expires_overrules_the_topic(
        self, settings: BrokerSettings, expires_at_us: int | None, lives: bool
    ) -> None:
        """As for messages without a delay."""
        house = House(settings=settings)
        topic = house.broker.topics.create("t", settings=TopicSettings(ttl_us=5 * SECOND_US))
        house.broker.appender.produce(topic.partitions[0], b"now", expires_at_us=expires_at_us)
        house.broker.delayed.produce(
            topic, b"later", delay_us=SECOND_US, expires_at_us=expires_at_us
        )
        house.pass_time(2.0)
        assert values(house) == [b"now", b"later"]
        house.pass_time(60.0, step=1.0)
        assert values(house) == ([b"now", b"later"] if lives else [])

    def test_the_time_to_live_of_the_topic_begins_when_the_message_is_produced(self) -> None:
        house = House()
        topic = house.broker.topics.create("t", settings=TopicSettings(ttl_us=5 * SECOND_US))
        house.broker.delayed.produce(topic, b"x", delay_us=60 * SECOND_US)
        in_an_hour(house, 60.0)
        house.pass_time(1.0)
        [record] = records(house)
        assert record.expires_at_us == pytest.approx(record.append_time_us + 5e6, abs=1e5)

    @pytest.mark.parametrize("delay_us", [0, -1, DELAY_MAX_US + 1])
    def test_delays_beyond_ten_years_and_none_are_refused(self, delay_us: int) -> None:
        house = House()
        topic = house.broker.topics.create("t")
        with pytest.raises(InvalidRequest, match="ten years"):
            house.broker.delayed.produce(topic, b"x", delay_us=delay_us)

    def test_a_partition_that_is_not_there_is_refused(self) -> None:
        house = House()
        topic = house.broker.topics.create("t")
        with pytest.raises(UnknownPartition):
            house.broker.delayed.produce(topic, b"x", partition_index=1, delay_us=1)
        assert list(house.broker.delayed.scheduled("t")) == []


class TestCancelling:
    def test_a_cancelled_message_never_appears(self) -> None:
        house = House()
        ids = [later(house, b"%d" % number, 5.0) for number in range(3)]
        assert house.broker.delayed.cancel("t", ids[1])
        assert not house.broker.delayed.cancel("t", ids[1])
        house.run()
        house = house.crash()
        house.pass_time(6.0)
        assert values(house) == [b"0", b"2"]

    def test_one_that_was_produced_or_never_was_there_cannot_be_cancelled(self) -> None:
        house = House()
        fired = later(house, b"x", 1.0)
        house.pass_time(2.0)
        for schedule_id in (fired, fired + 1, -1):
            assert not house.broker.delayed.cancel("t", schedule_id)
        house.broker.topics.create("u")
        assert not house.broker.delayed.cancel("u", 0)
        with pytest.raises(UnknownTopic):
            house.broker.delayed.cancel("v", 0)

    def test_what_waits_can_be_listed(self) -> None:
        house = House()
        topic = house.broker.topics.create("t", 2)
        now_us = house.broker.time.time_us()
        for number in range(4):
            house.broker.delayed.produce(
                topic, b"1234", key=b"k", partition_index=1, delay_us=(9 - number) * SECOND_US
            )
        house.broker.delayed.cancel("t", 2)
        listed = list(house.broker.delayed.scheduled("t", 1))
        assert [(one.id, one.partition, one.size) for one in listed] == [(1, 1, 5), (3, 1, 5)]
        assert [one.due_us - now_us for one in listed] == [8 * SECOND_US, 6 * SECOND_US]
        with pytest.raises(UnknownTopic):
            next(house.broker.delayed.scheduled("u"))

    def test_what_waits_on_disk_alone_is_listed_without_its_size(self) -> None:
        house = House(settings=FORGETFUL)
        later(house, b"x", 60.0)
        house.run()
        [listed] = house.broker.delayed.scheduled("t")
        assert (listed.id, listed.partition, listed.size) == (0, None, None)


class TestTopics:
    def test_the_internal_topic_is_not_listed(self) -> None:
        house = House()
        later(house, b"x", 60.0)
        assert [topic.name for topic in house.broker.topics.all()] == ["t"]
        house.run()
        assert [topic.name for topic in house.crash().broker.topics.all()] == ["t"]

    def test_what_a_deleted_topic_had_scheduled_is_gone(self) -> None:
        house = House()
        later(house, b"old", 5.0)
        house.run()
        house.broker.topics.delete("t")
        later(house, b"new", 10.0)
        assert [one.id for one in house.broker.delayed.scheduled("t")] == [0]
        house.pass_time(12.0)
        assert values(house) == [b"new"]
        house = house.crash()
        house.pass_time(12.0)
        assert values(house) == [b"new"]

    def test_a_topic_deleted_during_a_read_gets_nothing(self) -> None:
        house = House(settings=FORGETFUL)
        later(house, b"old", 5.0)
        house.run()
        house.clock.advance(6.0)
        assert len(house.readers) == 1
        house.broker.topics.delete("t")
        house.broker.topics.create("t")
        house.pass_time(12.0)
        assert values(house) == []

    def test_messages_that_fired_pin_no_segment(self) -> None:
        house = House()
        for seconds in (1.0, 1.0, 1.0, 10_000.0, 1.0):
            later(house, b"x", seconds)
        house.pass_time(2.0)
        in_an_hour(house, TRIM_SECONDS + 60)
        internal = house.broker.topics.existing("t").internal
        assert internal is not None
        assert internal.partitions[0].start_offset == 3
        house.broker.delayed.cancel("t", 3)
        in_an_hour(house, TRIM_SECONDS + 60)
        assert internal.partitions[0].start_offset == 5


class TestTrouble:
    def test_on_a_full_disk_messages_are_late_and_come_when_there_is_space(self) -> None:
        house = House(options=WalOptions(segment_bytes=64 * KIB, free_bytes_min=0))
        for number in range(40):
            later(house, b"%d" % number + bytes(8_000), 5.0)
            house.run()
        house.disk.capacity = house.disk.used_bytes
        with capturedLogs() as events:
            house.pass_time(10.0)
        assert said(events).count("schedule-late") == 1
        fired = len(values(house))
        assert 0 < fired < 40
        listed = list(house.broker.delayed.scheduled("t"))
        assert [one.id for one in listed] == list(range(fired, 40))
        assert all(one.due_us < house.broker.time.time_us() for one in listed)
        assert [one.id for one in house.broker.delayed.scheduled("t", 38)] == [38, 39]
        house.disk.capacity = None
        house.wal.retry_allocation()  # as a timer of the service does
        house.pass_time(10.0)
        assert [value.rstrip(b"\0") for value in values(house)] == [
            b"%d" % number for number in range(40)
        ]

    def test_each_time_that_messages_begin_to_be_late_is_told(self) -> None:
        """However few came while there was space."""
        house = House(options=SMALL)
        for number in range(3):
            for _ in range(20):
                later(house, b"%d" % number + bytes(8_000), 5.0)
                house.run()
            house.disk.capacity = house.disk.used_bytes
            with capturedLogs() as events:
                house.pass_time(10.0)
            assert said(events).count("schedule-late") == 1
            assert len(values(house)) < 20 * (number + 1)
            house.disk.capacity = None
            house.wal.retry_allocation()
            house.pass_time(10.0)
            assert len(values(house)) == 20 * (number + 1)

    @MEMORIES
    def test_waiting_for_log_space_costs_no_more_than_that(
        self, settings: BrokerSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("brokerd.broker.delayed.prefetch.HELD_BYTES", 0)
        house = House(settings=settings, options=SMALL)
        due_seconds = house.clock.seconds() + 30.0
        for number in range(300):
            later(house, b"%d" % number + bytes(2_000), due_seconds - house.clock.seconds())
            house.run()
        house = house.crash()
        house.pass_time(30.1)
        assert house.broker.delayed.counters.delivered == 300

    def test_a_damaged_message_is_lost_alone_and_said_so(self) -> None:
        house = House(settings=FORGETFUL)
        for number in range(3):
            later(house, b"%d" % number, 60.0)
            house.run()
        house = after_damage(house, is_records(2, 1))
        with capturedLogs() as events:
            in_an_hour(house, 60.0 + 2 * TRIM_SECONDS)
        assert values(house) == [b"0", b"2"]
        assert house.broker.delayed.counters.lost == 1
        assert said(events).count("scheduled-lost") == 1
        assert "dead-letters-removed" not in said(events)
        assert house.broker.counters.dead_letters_removed == 0
        house = house.crash()
        in_an_hour(house, 60.0)
        assert values(house) == [b"0", b"2"]

    def test_a_message_that_is_cancelled_while_it_is_read_is_not_lost(self) -> None:
        house = House(settings=FORGETFUL)
        later(house, b"0", 60.0)
        house = after_damage(house, is_records(2, 0))
        house.pass_time(59.0, step=0.5)
        while not house.broker.status()["reads_from_disk"]:
            house.turn()
            house.clock.advance(0.01)
        assert house.broker.delayed.cancel("t", 0)
        with capturedLogs() as events:
            house.pass_time(5.0)
        assert "scheduled-lost" not in said(events)
        assert house.broker.delayed.counters.lost == 0
        assert house.broker.delayed.counters.cancelled == 1

    def test_a_read_that_fails_otherwise_is_tried_again(self) -> None:
        house = House(settings=FORGETFUL, options=SMALL)
        for number in range(200):
            later(house, b"%d" % number + bytes(500), 5.0)
            house.run()
        house.disk.fail("open", error=errno.EMFILE)
        house.pass_time(8.0)
        assert len(values(house)) == 200

    def test_a_message_whose_delay_is_lost_shares_its_schedule_with_new_ones(self) -> None:
        """Also with those that come while it is read from disk."""
        house = House(settings=FORGETFUL)
        later(house, b"x", 3_000_000.0)
        house.pass_time(0.5)
        house.disk.crash()
        [(name, _, entry)] = [place for place in entries(house) if place[2].entry.kind == 2]
        rot(house, name, entry.position + 48)
        house = house.again()
        house.turn()
        later(house, b"y", 1.0)
        house.pass_time(3.0)
        assert values(house) == [b"x", b"y"]
        house = house.crash()
        house.pass_time(3.0)
        assert values(house) == [b"x", b"y"]

    def test_a_message_whose_delay_is_lost_to_damage_fires_at_the_next_start(self) -> None:
        house = House()
        later(house, b"x", 3_000_000.0)
        house.pass_time(0.5)
        house.disk.crash()
        [(name, _, entry)] = [place for place in entries(house) if place[2].entry.kind == 2]
        rot(house, name, entry.position + 48)
        house = house.again()
        house.pass_time(1.0)
        assert values(house) == [b"x"]


def test_many_schedules_are_seen_to_some_in_a_turn_after_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that wait and those that are due; a topic may be deleted before its turn."""
    monkeypatch.setattr("brokerd.broker.delayed.delivery.START_GROUP_PARTITIONS", 3)
    monkeypatch.setattr("brokerd.broker.delayed.delivery.TURN_BYTES", 2 * MESSAGE_BYTES)
    house = House()
    names = [f"t{number}" for number in range(10)]
    for number, name in enumerate(names):
        later(house, b"x", 5.0 if number % 2 else 500.0, name)
    house.run()
    house.wall_seconds += 60.0
    house = house.crash()
    waiting = [topic.internal for topic in house.broker.topics.all()]
    group_partitions = [
        topic.groups["schedule"].partitions[0] for topic in waiting if topic is not None
    ]
    assert len(group_partitions) == 10
    assert (
        len(
            [
                group_partition
                for group_partition in group_partitions
                if group_partition.scheduled_us is not None
            ]
        )
        == 3
    )
    house.broker.topics.delete("t9")
    house.pass_time(1.0)
    assert [values(house, name) for name in names[:9]] == [[], [b"x"]] * 4 + [[]]
    house.pass_time(500.0, step=10.0)
    assert [values(house, name) for name in names[:9]] == [[b"x"]] * 9
