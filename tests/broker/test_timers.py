"""One timer for everything that ends by itself, on the monotonic clock, never early."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from twisted.internet.task import Clock

from brokerd.broker import ConsumerGroup, GroupPartition, Topic
from brokerd.broker.clock import BrokerTime
from brokerd.broker.leases.timers import (
    GROUP_PARTITION_COST,
    RETRY_US,
    SLACK,
    SWEPT,
    TURN_LIMIT,
    LeaseTimers,
)
from brokerd.broker.model.group_stores import GroupStores
from brokerd.groups import GroupSettings
from tests.broker.desk import SECOND_US


class Diary:
    """Timers whose group partitions hold leases, and what it called."""

    def __init__(self, group_partitions: int = 1) -> None:
        self.clock = Clock()
        self.time = BrokerTime(lambda: 1.7e9, self.clock.seconds, lambda *jump: None)
        topic = Topic(1, "t", group_partitions)
        self.group_partitions = [
            *ConsumerGroup(topic, "g", GroupStores(GroupSettings())).partitions
        ]
        self.ends: dict[GroupPartition, int] = dict.fromkeys(self.group_partitions, 0)
        self.calls: list[tuple[float, int]] = []
        self.has_room = True
        self.limit = 1000
        self.table = LeaseTimers(self.clock, self.time, self.due)

    def due(self, group_partition: GroupPartition, now_us: int) -> int:
        self.calls.append((self.clock.seconds(), group_partition.partition.index))
        return group_partition.store.end_due(now_us, self.limit) if self.has_room else -1

    def lease(self, seconds: float, count: int = 1, group_partition: int = 0) -> None:
        """Lease the next ``count`` records of a group_partition."""
        store = self.group_partitions[group_partition].store
        self.ends[self.group_partitions[group_partition]] += count
        end = self.ends[self.group_partitions[group_partition]]
        store.acquire(self.time.monotonic_us(), end, "ann", int(seconds * SECOND_US), count)
        self.table.schedule(self.group_partitions[group_partition])


def test_it_calls_once_the_lease_is_over_and_not_before() -> None:
    diary = Diary()
    diary.lease(5)
    diary.clock.advance(5)
    assert diary.group_partitions[0].store.leased == 1
    diary.clock.advance(0.001)
    assert diary.group_partitions[0].store.leased == 0
    assert diary.clock.getDelayedCalls() == []


def test_a_group_partition_that_schedules_itself_is_not_asked_again() -> None:
    diary = Diary()
    asked: list[GroupPartition] = []
    diary.table = LeaseTimers(
        diary.clock, diary.time, lambda group_partition, _: asked.append(group_partition)
    )
    diary.lease(1)
    diary.clock.pump([1] * 60)
    assert asked == diary.group_partitions
    diary.group_partitions[0].store.end_due(diary.time.monotonic_us())
    diary.lease(1)
    diary.clock.pump([1] * 60)
    assert asked == 2 * diary.group_partitions


def test_there_is_one_timer_whatever_is_leased() -> None:
    diary = Diary(group_partitions=50)
    for index in range(50):
        diary.lease(100 - index, group_partition=index)
        diary.lease(10 + index, group_partition=index)
    assert len(diary.clock.getDelayedCalls()) == 1
    diary.clock.advance(10.5)
    assert [index for _, index in diary.calls] == [0]
    assert len(diary.clock.getDelayedCalls()) == 1
    diary.clock.pump([1] * 100)
    assert sum(group_partition.store.leased for group_partition in diary.group_partitions) == 0
    assert diary.clock.getDelayedCalls() == []


def test_the_earliest_comes_first_although_it_was_scheduled_last() -> None:
    diary = Diary(group_partitions=3)
    for index, seconds in enumerate((30, 20, 10)):
        diary.lease(seconds, group_partition=index)
    diary.clock.pump([1] * 40)
    assert [index for _, index in diary.calls] == [2, 1, 0]


def test_the_next_due_of_one_group_partition_does_not_hide_an_earlier_one_of_another() -> None:
    diary = Diary(group_partitions=2)
    diary.lease(5, group_partition=0)
    diary.lease(3600, group_partition=0)
    diary.lease(10, group_partition=1)
    diary.clock.advance(5.5)
    diary.clock.advance(5)
    assert diary.group_partitions[1].store.leased == 0
    assert [index for _, index in diary.calls] == [0, 1]


def test_a_settled_lease_is_looked_at_once_in_vain() -> None:
    diary = Diary()
    diary.lease(5)
    diary.group_partitions[0].store.settle(diary.time.monotonic_us(), 1, 0, True)
    diary.clock.advance(6)
    assert len(diary.calls) == 1
    assert diary.clock.getDelayedCalls() == []


def test_a_group_partition_whose_leases_cannot_end_now_is_asked_again_later_and_does_not_spin() -> (
    None
):
    diary = Diary()
    diary.lease(5)
    diary.has_room = False
    diary.clock.advance(5.001)
    assert len(diary.calls) == 1
    diary.clock.pump([RETRY_US / 1e6] * 10)
    assert len(diary.calls) <= 12
    diary.has_room = True
    diary.clock.advance(RETRY_US / 1e6 + 0.001)
    assert diary.group_partitions[0].store.leased == 0


def test_one_turn_ends_no_more_than_a_limit_and_the_next_turn_goes_on() -> None:
    diary = Diary(group_partitions=2 * TURN_LIMIT)
    for index in range(len(diary.group_partitions)):
        diary.lease(5, group_partition=index)
    diary.clock.rightNow += 6
    turns = []
    while diary.clock.calls:
        call = diary.clock.calls.pop(0)
        call.called = 1
        before = len(diary.calls)
        call.func(*call.args, **call.kw)
        turns.append(len(diary.calls) - before)
    assert sum(turns) == len(diary.group_partitions)
    assert max(turns) <= TURN_LIMIT


def test_a_group_partition_with_more_than_one_step_is_asked_until_all_is_done() -> None:
    diary = Diary()
    diary.limit = 10
    diary.lease(5, count=95)
    diary.clock.advance(6)
    assert diary.group_partitions[0].store.leased == 0
    assert len(diary.calls) == 10


def test_short_leases_beside_a_very_long_one_do_not_fill_memory() -> None:
    diary = Diary()
    diary.lease(10_000_000)
    for _ in range(5 * SLACK):
        diary.lease(0.001)
        diary.group_partitions[0].store.settle(diary.time.monotonic_us(), 1 << 40, 1, True)
        diary.clock.advance(0.002)
    assert len(diary.table._heap) + len(diary.table._old) <= 2 * SLACK
    diary.clock.advance(10_000_001)
    assert diary.group_partitions[0].store.leased == 0


class Watched:
    """Stands for a group partition with one due time, and counts how often that is read."""

    reads = 0

    def __init__(self) -> None:
        self.group = self
        self.deleted = False
        self._scheduled_us: int | None = None

    @property
    def scheduled_us(self) -> int | None:
        Watched.reads += 1
        return self._scheduled_us

    @scheduled_us.setter
    def scheduled_us(self, due_us: int | None) -> None:
        self._scheduled_us = due_us


def test_no_step_looks_at_all_entries() -> None:
    """100,000 in one step would take 20 ms. Half of them become stale here."""
    diary = Diary()
    table: Any = diary.table
    watched = [Watched() for _ in range(20 * SLACK)]
    most = 0
    for due_us in (2, 1):
        for one in watched:
            before = Watched.reads
            table.schedule_at(one, due_us * SECOND_US)
            most = max(most, Watched.reads - before)
    assert most <= SWEPT
    assert len(table._heap) + len(table._old) <= 3 * len(watched) + 2 * SLACK


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_in_sweeps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timers call each group partition at its last due time, also in the middle of a sweep."""
    monkeypatch.setattr("brokerd.broker.leases.timers.SLACK", 3)
    draw, clock = Random(seed), Clock()
    time = BrokerTime(lambda: 1.7e9, clock.seconds, lambda *jump: None)
    due_us: dict[Watched, int] = {}
    called: list[tuple[int, int]] = []

    def due(one: Any, now_us: int) -> None:
        called.append((due_us.pop(one), now_us))

    table: Any = LeaseTimers(clock, time, due)
    table._limit = 3
    watched = [Watched() for _ in range(30)]
    for _ in range(600):
        one, now_us = draw.choice(watched), time.monotonic_us()
        chosen_us = now_us + draw.choice([10, 500, 1000]) * 1000
        if chosen_us < due_us.get(one, 1 << 60):
            due_us[one] = chosen_us
            table.schedule_at(one, chosen_us)
        if draw.random() < 0.2:
            clock.advance(draw.choice([0.003, 0.02]))
    clock.pump([0.001] * 1200)
    assert not due_us and len(called) > 100
    assert all(0 <= now_us - at_us < 30_000 for at_us, now_us in called)
    assert not table._heap and not table._old


def test_nothing_is_called_after_a_stop() -> None:
    diary = Diary()
    diary.lease(5)
    diary.table.stop()
    diary.lease(1)
    assert diary.clock.getDelayedCalls() == []
    diary.clock.advance(10)
    assert diary.calls == []


def test_a_group_partition_that_needs_more_than_a_turn_goes_on_in_the_next_one() -> None:
    diary = Diary()
    diary.lease(1)
    diary.limit = 0  # what it did was worth it, but ended nothing
    diary.clock.rightNow += 2
    turn = diary.clock.calls.pop(0)
    turn.called = 1
    turn.func()
    assert len(diary.calls) == 1
    diary.limit = 1
    diary.clock.advance(0)
    assert len(diary.calls) == 2
    assert diary.clock.getDelayedCalls() == []


def test_many_group_partitions_that_are_due_at_once_leave_the_reactor_its_turns() -> None:
    group_partitions = TURN_LIMIT
    diary = Diary(group_partitions)
    for index in range(group_partitions):
        diary.lease(1, group_partition=index)
    diary.clock.rightNow += 2
    turn = diary.clock.calls.pop(0)
    turn.called = 1
    turn.func()
    assert len(diary.calls) == -(-TURN_LIMIT // (1 + GROUP_PARTITION_COST))
    diary.clock.advance(0)
    assert len(diary.calls) == group_partitions
    assert diary.clock.getDelayedCalls() == []


def test_leases_of_a_deleted_topic_do_not_lapse_any_more() -> None:
    """Its groups may be let go of some turns later, and nobody is called for them."""
    diary = Diary()
    diary.lease(5)
    diary.group_partitions[0].group.topic.deleted = True
    diary.clock.advance(6)
    assert diary.calls == []
    assert diary.clock.getDelayedCalls() == []
