# Tests: brokerd/server/garbage.py
"""Nothing looks through the whole heap again and again, and nothing needs that to be freed."""

from __future__ import annotations

import gc
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThread

from brokerd.broker import ConsumerGroup, GroupSettings, Topic
from brokerd.broker.leases.reaper import GroupReaper
from brokerd.broker.model.chunks import CHUNK_RECORDS
from brokerd.broker.model.group_stores import GroupStores
from brokerd.client.mamamia import MamamiaClient
from brokerd.codecs.mamamia import AcquireBatch, encode_request
from brokerd.server.garbage import (
    COLLECTED_RECORDS,
    LONG_SECONDS,
    THRESHOLDS,
    GarbageFreezer,
    Phase,
)
from simulator.machine.bare import AcceptAll
from tests.broker.desk import SECOND_US, lease, produce, settle
from tests.corehouse import CoreHouse
from tests.house import House
from tests.protocols.serving import until
from tests.test_assembly import served


class FakeCollector:
    """Counts what is asked of it."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Phase, dict[str, int]], object]] = []
        self.threshold = (700, 10, 10)
        self.enabled = True
        self.freezes = 0
        self.unfreezes = 0

    def disable(self) -> None:
        self.enabled = False

    def enable(self) -> None:
        self.enabled = True

    def freeze(self) -> None:
        self.freezes += 1

    def unfreeze(self) -> None:
        self.unfreezes += 1

    def get_threshold(self) -> tuple[int, int, int]:
        return self.threshold

    def set_threshold(self, youngest: int, middle: int, oldest: int) -> None:
        self.threshold = (youngest, middle, oldest)

    def collect(self, generation: int) -> None:
        """A collection of this generation."""
        for callback in self.callbacks:
            callback("start", {"generation": generation})
        for callback in self.callbacks:
            callback("stop", {"generation": generation, "collected": 0, "uncollectable": 0})


class TestGarbageFreezer:
    def frozen(self, collector: FakeCollector, *seconds: float) -> GarbageFreezer:
        """Collections take these times, one after another."""
        times = iter([point for length in seconds for point in (1.0, 1.0 + length)])
        return GarbageFreezer(collector, lambda: next(times))

    def test_nothing_is_collected_while_the_state_is_rebuilt(self) -> None:
        """A start with 100,000 groups took most of its time to look for garbage."""
        for then in (GarbageFreezer.begin, GarbageFreezer.end):
            collector = FakeCollector()
            garbage = self.frozen(collector)
            garbage.pause()
            assert not collector.enabled
            then(garbage)
            assert collector.enabled

    def test_what_was_rebuilt_is_frozen_at_once(self) -> None:
        """Beginning to serve freezes what there is and has less often collected."""
        collector = FakeCollector()
        self.frozen(collector).begin()
        assert collector.freezes == 1
        assert collector.threshold == THRESHOLDS

    def test_survivors_of_a_long_full_collection_are_frozen(self) -> None:
        """No object is looked through in two long full collections; short ones freeze nothing."""
        collector = FakeCollector()
        self.frozen(collector, LONG_SECONDS / 2, LONG_SECONDS * 2).begin()
        collector.collect(2)
        assert collector.freezes == 1
        collector.collect(2)
        assert collector.freezes == 2

    def test_collections_of_young_objects_freeze_nothing(self) -> None:
        """However long they take: not all of what they leave was proven alive."""
        collector = FakeCollector()
        self.frozen(collector, 10.0, 10.0).begin()
        collector.collect(0)
        collector.collect(1)
        assert collector.freezes == 1

    def test_young_objects_are_collected_after_some_thousand_records(self) -> None:
        """The collector counts containers, and records of a flood need few."""
        collector = FakeCollector()
        generations: list[int] = []
        collector.callbacks.append(lambda phase, info: generations.append(info["generation"]))
        garbage = self.frozen(collector)
        for _ in range(2):
            garbage.records_kept(COLLECTED_RECORDS - 1)
            before = len(generations)
            garbage.records_kept(1)
            assert generations[before:] == [0, 0], "the begin and the end of one"
        assert len(generations) == 4

    def test_a_broker_tells_its_host_of_each_full_chunk(self) -> None:
        house = CoreHouse()
        produce(house, "t", *[b"x"] * (CHUNK_RECORDS - 1))
        house.run()
        assert house.host.kept_records == 0
        produce(house, "t", b"x")
        house.run()
        assert house.host.kept_records == CHUNK_RECORDS
        house.stop()

    def test_the_end_leaves_the_collector_as_it_was(self) -> None:
        """Who embeds a broker has their own policy back after it; an end without begin is none."""
        collector = FakeCollector()
        garbage = self.frozen(collector)
        garbage.end()
        assert collector.unfreezes == 0
        garbage.begin()
        garbage.begin()
        garbage.end()
        garbage.end()
        assert (collector.threshold, collector.callbacks) == ((700, 10, 10), [])
        assert (collector.freezes, collector.unfreezes) == (1, 1)

    def test_the_real_collector_freezes_after_a_long_full_collection(self) -> None:
        """With the module `gc`: what survives is not looked through again."""
        times = iter([0.0, LONG_SECONDS])
        garbage = GarbageFreezer(gc, lambda: next(times))
        garbage.begin()
        try:
            kept = [[number] for number in range(1000)]
            gc.collect()
            looked_through = {id(one) for one in gc.get_objects(2)}
            assert not any(id(one) in looked_through for one in kept)
        finally:
            garbage.end()

    def test_a_full_collection_traverses_few_objects_while_the_state_grows(self) -> None:
        """100,000 new containers, none of which is garbage: at most 8,000 in one collection.

        The collector compares with the survivors of the last full collection: 200,000 and more.
        """
        seconds = count()
        garbage = GarbageFreezer(gc, lambda: float(next(seconds)))
        traversed: list[int] = []

        def on_collection(phase: Phase, info: dict[str, int]) -> None:
            if phase == "start" and info["generation"] == 2:
                traversed.append(sum(len(gc.get_objects(one)) for one in range(3)))

        before = [[number] for number in range(200_000)]
        gc.collect()
        garbage.begin()
        gc.callbacks.append(on_collection)
        try:
            kept = [[number] for number in range(100_000)]
        finally:
            gc.callbacks.remove(on_collection)
            garbage.end()
        assert (len(before), len(kept)) == (200_000, 100_000)
        assert len(traversed) > 10
        assert max(traversed) < 8_000


@contextmanager
def collector_off() -> Iterator[None]:
    """What is freed meanwhile is freed by reference counts."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


LOG = {"array", "tuple"}
"""What the index of the segment in hand is made of: it knows where each batch is."""


def census() -> Counter[str]:
    """How many objects of each type could be part of a cycle."""
    return Counter(type(one).__qualname__ for one in gc.get_objects())


def growth(before: Counter[str], times: int) -> dict[str, int]:
    """Types of which about ``times`` objects or more have come."""
    more = census() - before
    return {name: n for name, n in more.items() if n >= times // 2 and name not in LOG}


def topics_and_groups(house: House) -> Callable[[int], None]:
    """Make a topic with groups in every state, and delete it; and a group of a topic that stays."""
    broker = house.broker
    produce(house, "stays", b"x")

    def take(topic: str, group: str) -> int:
        found = broker.leases.acquire(topic, group, "ann", 30 * SECOND_US, 1, AcceptAll())
        return found[0][1].offset

    def one(number: int) -> None:
        name = f"topic-{number}"
        produce(house, name, b"a", b"b", b"c")
        take(name, "g")
        settle(house, take(name, "g"), False, name, "g", delay_seconds=60)
        broker.groups.configure(name, "ordered", GroupSettings(key_ordered=True))
        take(name, "ordered")
        broker.delayed.produce(
            broker.topics.existing(name), b"d", 0, None, None, 0, None, 90_000_000, 0
        )
        house.run()
        broker.topics.delete(name)
        take("stays", f"group-{number}")
        house.run()
        broker.groups.delete("stays", f"group-{number}")
        house.run()
        house.pass_time(200.0, 10.0)  # timers know of leases and delays until these would be over

    return one


class Watch(Clock):
    """A clock on which every look takes a time in seconds."""

    def __init__(self, look: float = 0.001) -> None:
        super().__init__()
        self._look = look

    def seconds(self) -> float:
        self.rightNow += self._look
        return float(self.rightNow)


class TurnWatch(Watch):
    """Such a clock, which runs each later call in a turn of its own: `advance` by 1 runs one."""

    def callLater(self, delay: float, call: Callable[..., object], *a: Any, **b: Any) -> Any:
        return super().callLater(delay + 1, call, *a, **b)


class TestRemains:
    @pytest.mark.parametrize("sought", [False, True], ids=["leased", "sought"])
    @pytest.mark.parametrize("what", ["group", "topic"])
    def test_the_leases_of_a_group_are_freed_in_slices(self, what: str, sought: bool) -> None:
        """A group with a million leases took 0.15 s in one step."""
        leases = 80_000
        house, clock = House(), TurnWatch()
        reaper = GroupReaper(clock)
        state = house.broker.context.state
        state.dispose, state.stores.free = reaper.dispose, reaper.free
        for _ in range(8):
            produce(house, "t", *[b""] * (leases // 8))
            house.run()
        while lease(house, limit=10_000, seconds=1e6):
            house.run()
        if sought:
            house.broker.groups.seek("t", "g", 0)
        house.run()
        with collector_off():
            blocks = [sys.getallocatedblocks()]
            if what == "group":
                house.broker.groups.delete("t", "g")
            else:
                house.broker.topics.delete("t")
            blocks.append(sys.getallocatedblocks())
            while clock.getDelayedCalls():
                clock.advance(1)
                blocks.append(sys.getallocatedblocks())
        freed = [before - after for before, after in pairwise(blocks)]
        assert sum(freed) > 2 * leases
        assert max(freed) < sum(freed) / 4
        house.run()
        house = house.crash()
        topic = house.broker.topics.find("t")
        assert (topic and list(topic.groups)) == ([] if what == "group" else None)

    @pytest.mark.parametrize("look", [0.0003, 0.001, 1.0])
    def test_many_groups_are_let_go_of_in_slices(self, look: float) -> None:
        """A turn ends after a few milliseconds; all groups go in the end, and no timer is left."""
        clock = Watch(look)
        topic = Topic(1, "t", 1)
        groups = [
            ConsumerGroup(topic, f"g{number}", GroupStores(GroupSettings()))
            for number in range(1000)
        ]
        remains = GroupReaper(clock)
        remains.dispose(groups)
        after_one_turn = sum(group.deleted for group in groups)
        assert 0 < after_one_turn < 1000
        clock.pump([0.001] * 100)
        assert all(group.deleted and not group.kept for group in groups)
        assert clock.getDelayedCalls() == []

    def test_a_stop_leaves_the_others(self) -> None:
        """Nothing goes on after it."""
        clock = Watch()
        topic = Topic(1, "t", 1)
        remains = GroupReaper(clock)
        stores = GroupStores(GroupSettings())
        remains.dispose([ConsumerGroup(topic, str(n), stores) for n in range(1000)])
        remains.stop()
        assert clock.getDelayedCalls() == []


class TestReferenceCountsAlone:
    def test_deleted_topics_and_groups_leave_nothing_behind(self) -> None:
        """No cycle keeps them: a frozen one would never be found."""
        one = topics_and_groups(House())
        with collector_off():
            for number in range(20):
                one(number)
            before = census()
            for number in range(20, 120):
                one(number)
            assert growth(before, 100) == {}

    @pytest_twisted.ensureDeferred
    async def test_closed_connections_leave_nothing_behind(self, tmp_path: Path) -> None:
        """However they end, and whether or not a long poll was under way.

        The long polls are on a topic of their own: one whose end the broker has not seen yet may
        lease a new message.
        """

        def use(address: str, topic: str) -> None:
            with MamamiaClient(address) as client:
                client.produce(topic, b"x")
                found = client.acquire(topic, "g", "ann")
                assert found is not None
                client.settle(topic, "g", found.id, "ann")

        def talk(address: str, times: int) -> None:
            for number in range(times):
                use(address, "orders")
                host, port = address.rsplit(":", 1)
                with socket.create_connection((host, int(port))) as raw:
                    raw.sendall(encode_request(AcquireBatch("polled", "g", "ann", 9, 1, 9.0)))
                    if number % 2:
                        raw.sendall(b"\0\0")

        async with served(tmp_path) as running:
            await deferToThread(use, running.address, "polled")
            with collector_off():
                await deferToThread(talk, running.address, 20)
                await until(lambda: running.connections() == 0)
                before = census()
                await deferToThread(talk, running.address, 500)
                await until(lambda: running.connections() == 0)
                assert growth(before, 500) == {}
