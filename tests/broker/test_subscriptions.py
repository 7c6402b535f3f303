"""Subscriptions: where they begin, what ends them, and that their ids are given once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from types import FrameType

import msgpack
import pytest

from brokerd.broker import BrokerSettings, Congested, ConsumerGroup
from brokerd.broker.subscriptions import ENDS_MAX, GROUP_PREFIX, Subscription
from brokerd.errors import InvalidName, LeaseLost, LimitExceeded, NoSpace
from brokerd.wal import WalOptions
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.read.scanner import ScanFrame
from brokerd.walformat import Entry, EntryKind, EventKind, decode_group_events
from simulator.machine.bare import WAL_DIR
from tests.broker.desk import SECOND_US, acknowledged, grants, lease, produce
from tests.house import House

BASE_US = 100_000
GRACE_US = 60 * SECOND_US


def subscribe(
    house: House, topic: str = "t", qos: int = 1, deliveries: int = 3, **other: object
) -> int:
    return house.broker.subscriptions.subscribe(
        topic,
        qos,
        deliveries,
        BASE_US,
        **{"grace_us": GRACE_US, **other},  # type: ignore[arg-type]
    )


def use(house: House, subscription_id: int) -> tuple[Subscription, ConsumerGroup] | None:
    """Use a subscription as POLL does; return it and its group."""
    subscriptions = house.broker.subscriptions
    found = subscriptions.find(subscription_id)
    if found is not None:
        subscriptions.use(found[0])
    return found


def is_known(house: House, subscription_id: int) -> bool:
    return use(house, subscription_id) is not None


def poll(house: House, subscription_id: int, topic: str = "t") -> list[tuple[int, bytes]]:
    """What the next POLL of a subscription would lease: (offset, value), or nothing."""
    used = use(house, subscription_id)
    assert used is not None
    found = grants(house, topic, used[1].name, "blipmq", None)
    return [(grant.offset, value) for grant, value in found]


def frames(house: House) -> Iterator[list[Entry]]:
    """The entries of each frame of the log, in order."""
    for _, found in scan_log(house.disk, WAL_DIR):
        if isinstance(found, ScanFrame):
            yield [entry.entry for entry in found.entries if entry.entry is not None]


def frames_of_subscriptions(house: House) -> list[list[Entry]]:
    house.run()
    return [
        entries
        for entries in frames(house)
        if any(entry.kind == EntryKind.SUBSCRIPTION for entry in entries)
    ]


def rot_subscription(house: House, subscription_id: int) -> None:
    """Damage the entry that made a subscription; the group's events in its frame are sound."""
    for name, found in scan_log(house.disk, WAL_DIR):
        for entry in found.entries if isinstance(found, ScanFrame) else ():
            if (
                entry.header.kind == EntryKind.SUBSCRIPTION
                and entry.entry is not None
                and msgpack.unpackb(entry.entry.body)["id"] == subscription_id
            ):
                house.disk.flip(f"{WAL_DIR}/{name}", entry.position + 60, 0xFF)
                return
    raise AssertionError("there is no such entry")


def kinds_of_group(entries: list[Entry], group: str) -> set[str]:
    """Which events of a group a frame has in every partition that it tells of."""
    found = [
        {EventKind(event[0]).name for event in events}
        for entry in entries
        if entry.kind == EntryKind.GROUP_EVENTS
        for name, events in [decode_group_events(entry.body, entry.count)]
        if name == group
    ]
    return set.intersection(*found) if found else set()


class TestBeginning:
    def test_ids_count_from_1_for_the_whole_broker(self) -> None:
        house = House()
        assert [subscribe(house, topic) for topic in ("t", "u", "t")] == [1, 2, 3]
        assert house.broker.subscriptions.count == 3

    def test_it_begins_at_the_end_and_gets_what_comes_later(self) -> None:
        house = House()
        produce(house, "t", b"before")
        one = subscribe(house)
        produce(house, "t", b"after")
        other = subscribe(house)
        assert poll(house, one) == [(1, b"after")]
        assert poll(house, one) == poll(house, other) == []

    def test_it_makes_its_topic(self) -> None:
        house = House()
        one = subscribe(house, "new")
        produce(house, "new", b"first")
        assert poll(house, one, "new") == [(0, b"first")]

    def test_it_begins_at_the_end_of_every_partition(self) -> None:
        house = House()
        house.broker.topics.create("t", 3)
        for index in (0, 0, 2):
            produce(house, "t", b"before", index=index)
        one = subscribe(house)
        for index in (0, 1, 2):
            produce(house, "t", b"%d" % index, index=index)
        got = [poll(house, one) for _ in range(4)]
        assert sorted(got) == [[], [(0, b"1")], [(1, b"2")], [(2, b"0")]]

    def test_an_id_whose_group_somebody_made_is_skipped(self) -> None:
        house = House()
        house.broker.topics.create("t")
        for number in (1, 2, 4):
            house.broker.groups.seek("t", f"{GROUP_PREFIX}{number}", "start")
        assert [subscribe(house), subscribe(house, "u"), subscribe(house)] == [3, 4, 5]

    def test_its_group_counts_grants_and_doubles_leases(self) -> None:
        house = House()
        subscribe(house, deliveries=5)
        settings = house.broker.groups.settings("t", f"{GROUP_PREFIX}1")
        assert (settings.attempts, settings.max_attempts) == ("grants", 5)
        assert (settings.default_duration_us, settings.lease_doubling) == (BASE_US, True)
        assert settings.backoff_base_us == 0

    @pytest.mark.parametrize("deliveries", [0, 1])
    def test_no_deliveries_and_one_both_mean_one(self, deliveries: int) -> None:
        house = House()
        one = subscribe(house, deliveries=deliveries)
        produce(house, "t", b"x")
        assert poll(house, one) == [(0, b"x")]
        house.pass_time(1.0)
        assert poll(house, one) == []
        ((_, letter),) = house.broker.leases.dead_letters("t", f"{GROUP_PREFIX}{one}")
        assert (letter.offset, letter.reason, letter.grants) == (0, "max_attempts", 1)

    def test_a_name_that_no_topic_may_have_is_refused(self) -> None:
        house = House()
        with pytest.raises(InvalidName):
            subscribe(house, "a\nb")
        assert subscribe(house) == 1

    def test_there_is_a_most_of_them(self) -> None:
        house = House(settings=BrokerSettings(max_subscriptions=2))
        subscribe(house)
        subscribe(house)
        with pytest.raises(LimitExceeded, match="2 subscriptions"):
            subscribe(house)
        assert house.broker.subscriptions.count == 2

    def test_a_publisher_pays_nothing_for_them(self) -> None:
        """What a record adds to the log, and who is touched, are as without any."""

        def added(house: House) -> tuple[int, int]:
            house.run()
            produce(house, "t", b"x")
            gathered = house.broker.group_commit.gathered_bytes
            house.run()
            return gathered, len(list(frames(house))[-1])

        house, other = House(), House()
        produce(other, "t", b"before")
        for _ in range(300):
            subscribe(house)
        assert added(house) == added(other)


class TestLookingBack:
    def start_offsets(self, house: House, seconds: float, topic: str = "t") -> dict[int, int]:
        broker = house.broker
        found: list[tuple[object, object]] = []
        time_us = broker.time.time_us() - int(seconds * SECOND_US)
        broker.subscriptions.start_offsets_at(topic, time_us, lambda *answer: found.append(answer))
        house.run()
        ((start_offsets, error),) = found
        assert error is None and isinstance(start_offsets, dict)
        return start_offsets

    def test_it_may_begin_some_time_ago(self) -> None:
        house = House()
        house.broker.topics.create("t", 2)
        produce(house, "t", b"old", index=0)
        produce(house, "t", b"old", index=1)
        house.pass_time(1.0)
        produce(house, "t", b"young", index=1)
        house.pass_time(0.2)
        start_offsets = self.start_offsets(house, 0.5)
        assert start_offsets == {0: 1, 1: 1}
        one = subscribe(house, start_offsets=start_offsets)
        assert [poll(house, one), poll(house, one)] == [[(1, b"young")], []]

    def test_of_a_topic_that_does_not_exist_everything_is_later(self) -> None:
        house = House()
        start_offsets = self.start_offsets(house, 0.5)
        produce(house, "t", b"raced")
        assert start_offsets == {}
        assert poll(house, subscribe(house, start_offsets={0: 0})) == [(0, b"raced")]

    def test_it_begins_at_no_record_that_was_removed_or_is_not_there_yet(self) -> None:
        house = House()
        produce(house, "t", b"a", b"b", b"c")
        house.run()
        house.broker.topics.trim("t", 0, 2)
        assert poll(house, subscribe(house, start_offsets={0: 0})) == [(2, b"c")]
        ahead = subscribe(house, start_offsets={0: 99})
        assert poll(house, ahead) == []
        produce(house, "t", b"d")
        assert poll(house, ahead) == [(3, b"d")]


class TestRestart:
    @pytest.mark.parametrize("clean", [True, False])
    def test_it_goes_on_where_it_was(self, clean: bool) -> None:
        house = House()
        one = subscribe(house, qos=1)
        other = subscribe(house, "u", qos=0)
        produce(house, "t", b"a", b"b")
        assert poll(house, one) == [(0, b"a")]
        house.run()
        if clean:
            house.stop()
        house = house.again() if clean else house.crash()
        used = use(house, other)
        assert used is not None and (used[0].qos, used[1].topic.name) == (0, "u")
        assert poll(house, one) == [(1, b"b")]  # the first is in flight still
        house.pass_time(0.15)
        assert poll(house, one) == [(0, b"a")]
        assert subscribe(house) == 3

    @pytest.mark.parametrize("clean", [True, False])
    def test_an_id_is_given_once_also_when_it_is_over(self, clean: bool) -> None:
        house = House()
        for _ in range(3):
            subscribe(house)
        house.pass_time(70.0, step=1.0)
        assert house.broker.subscriptions.count == 0
        if clean:
            house.stop()
        house = house.again() if clean else house.crash()
        assert not any(is_known(house, number) for number in (1, 2, 3))
        assert subscribe(house) == 4

    def test_what_comes_after_a_snapshot_counts_once(self) -> None:
        house = House()
        subscribe(house, grace_us=2 * SECOND_US)
        subscribe(house)
        house.stop()
        house = house.again()
        subscribe(house)
        house.pass_time(4.0, step=0.5)
        house = house.crash()
        assert [is_known(house, number) for number in (1, 2, 3)] == [False, True, True]
        assert subscribe(house) == 4

    def test_a_large_one_waits_for_room_in_the_log(self) -> None:
        house = House()
        house.broker.topics.create("t", 900)
        house.run()
        with pytest.raises(Congested):
            subscribe(house)
        assert not house.broker.topics.existing("t").groups
        house.run()
        assert subscribe(house) == 1
        house.run()
        assert house.failures == []
        assert is_known(house.crash(), 1)

    def test_a_snapshot_taken_while_they_come_and_go_is_exact(self) -> None:
        house = House(settings=BrokerSettings(snapshot_interval_bytes=1))
        for number in range(300):
            house.broker.topics.create(f"other{number}")
        lasting = []
        for number in range(60):
            subscribe(house, grace_us=SECOND_US // 2)
            lasting.append(subscribe(house))
            house.pass_time(0.05, step=0.01)
            if number % 20 == 7:
                house = house.crash()
        house.pass_time(4.0, step=0.5)
        assert house.broker.status()["snapshots_written"] > 2
        house = house.crash()
        assert [number for number in range(1, 121) if is_known(house, number)] == lasting
        assert subscribe(house) == 121

    @pytest.mark.pure_only("counts lines, which compiled code does not have")
    def test_the_reactor_does_not_copy_them_one_by_one(self) -> None:
        """100,000 of them took 16 ms of one step; the thread of the snapshot does it."""
        house = House()
        for _ in range(50):
            subscribe(house)
        captures = [
            capture
            for capture in house.broker.context.state.captures
            if getattr(capture, "__self__", None) is house.broker.subscriptions
        ]
        lines = 0

        def count(frame: FrameType, event: str, argument: object) -> object:
            nonlocal lines
            lines += event == "line"
            return count

        tracer = sys.gettrace()
        sys.settrace(count)
        try:
            chunks = [encode for capture in captures for encode in capture(0)]
        finally:
            sys.settrace(tracer)
        assert len(chunks) == 1
        assert 0 < lines < 30

    def test_many_take_several_chunks_of_a_snapshot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("brokerd.broker.subscriptions.CHUNK_SUBSCRIPTIONS", 3)
        house = House()
        for _ in range(7):
            subscribe(house)
        house.stop()
        house = house.again()
        assert all(is_known(house, number) for number in range(1, 8))
        assert subscribe(house) == 8

    def test_a_crash_leaves_a_subscription_and_its_place_or_neither(self) -> None:
        for steps in range(8):
            house = House()
            produce(house, "t", b"before")
            house.run()
            subscribe(house)
            done = acknowledged(house)
            for _ in range(steps):
                house.turn()
                house._step()
            house = house.crash()
            if is_known(house, 1):
                assert poll(house, 1) == []
            else:
                assert not done
                assert list(house.broker.topics.existing("t").groups) == []

    @pytest.mark.parametrize("more", [True, False])
    def test_damage_to_the_log_gives_no_id_twice(self, more: bool) -> None:
        """What is left of the subscription is its group, which nobody takes over."""
        house = House()
        house.broker.topics.create("t")
        house.broker.groups.seek("t", f"{GROUP_PREFIX}{1 << 60}", "start")  # somebody's joke
        subscribe(house)
        subscribe(house, "u")
        house.run()
        if more:
            subscribe(house)
        produce(house, "u", b"so that it is no torn tail")
        house.run()
        rot_subscription(house, 2)
        house = house.crash()
        assert [is_known(house, number) for number in (1, 2, 3)] == [True, False, more]
        assert list(house.broker.topics.existing("u").groups) == [f"{GROUP_PREFIX}2"]
        assert subscribe(house, "v") == 3 + more

    def test_its_beginning_is_one_frame_however_many_partitions(self) -> None:
        """Also when another frame of that size would not be begun any more."""
        options = WalOptions(segment_bytes=1 << 20, free_bytes_min=0)
        house = House(settings=BrokerSettings(frame_bytes=64 << 10), options=options)
        house.broker.topics.create("t", 600)
        house.run()
        produce(house, "t", b"x" * 60_000)
        subscribe(house)
        (entries,) = frames_of_subscriptions(house)
        assert kinds_of_group(entries, f"{GROUP_PREFIX}1") == {"CONFIGURED", "SEEK"}
        group_partitions = [entry for entry in entries if entry.kind == EntryKind.GROUP_EVENTS]
        assert len(group_partitions) == 600


class TestEnd:
    def test_who_is_not_used_for_the_grace_is_over_with_all_it_held(self) -> None:
        house = House()
        idle, busy = subscribe(house), subscribe(house)
        produce(house, "t", b"x")
        poll(house, idle)
        for _ in range(59):
            house.pass_time(1.0, step=1.0)
            assert is_known(house, busy)
            assert house.broker.subscriptions.count == 2
        for _ in range(5):
            house.pass_time(1.0, step=1.0)
            assert is_known(house, busy)
        assert house.broker.subscriptions.count == 1
        assert list(house.broker.topics.existing("t").groups) == [f"{GROUP_PREFIX}{busy}"]

    def test_the_end_is_one_frame(self) -> None:
        house = House()
        house.broker.topics.create("t", 3)
        subscribe(house)
        house.pass_time(65.0, step=1.0)
        entries = frames_of_subscriptions(house)[-1]
        assert kinds_of_group(entries, f"{GROUP_PREFIX}1") == {"DELETED"}

    def test_a_start_begins_the_grace_anew(self) -> None:
        house = House()
        subscribe(house)
        house.pass_time(50.0, step=1.0)
        house = house.crash()
        house.pass_time(58.0, step=1.0)
        assert house.broker.subscriptions.count == 1
        house.pass_time(5.0, step=1.0)
        assert house.broker.subscriptions.count == 0

    def test_a_jump_of_the_wall_clock_ends_nothing(self) -> None:
        house = House()
        subscribe(house)
        house.wall_seconds += 1_000_000
        house.pass_time(10.0, step=1.0)
        assert is_known(house, 1)

    def test_a_turn_ends_a_bounded_number(self) -> None:
        house = House()
        for _ in range(3 * ENDS_MAX):
            subscribe(house)
        left = []
        for _ in range(70):
            house.pass_time(1.0, step=1.0)
            left.append(house.broker.subscriptions.count)
        steps = [before - after for before, after in pairwise(left)]
        assert left[-1] == 0 and max(steps) == ENDS_MAX

    def test_many_that_are_over_at_once_end_within_seconds(self) -> None:
        house = House()
        for _ in range(10 * ENDS_MAX):
            subscribe(house)
        house.pass_time(63.0, step=0.05)
        assert house.broker.subscriptions.count == 0

    def test_a_turn_looks_at_a_bounded_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("brokerd.broker.subscriptions.EXAMINED_MAX", 2)
        house = House()
        for _ in range(10):
            subscribe(house)
        house.pass_time(61.0, step=1.0)
        assert 6 <= house.broker.subscriptions.count <= 9
        house.pass_time(6.0, step=1.0)
        assert house.broker.subscriptions.count == 0

    @pytest.mark.parametrize("what", ["group", "topic"])
    def test_it_is_over_with_its_group_or_topic(self, what: str) -> None:
        house = House()
        subscribe(house)
        if what == "group":
            house.broker.groups.delete("t", f"{GROUP_PREFIX}1")
        else:
            house.broker.topics.delete("t")
        assert not is_known(house, 1)
        house.broker.topics.create("t")
        assert not is_known(house, 1)
        house.pass_time(2.0, step=1.0)
        assert house.broker.subscriptions.count == 0
        house = house.crash()
        assert not is_known(house, 1)
        assert subscribe(house) == 2

    def test_without_room_for_its_entry_it_ends_later(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_room(size: int) -> None:
            raise NoSpace("the disk is full")

        house = House()
        subscribe(house)
        house.run()
        with monkeypatch.context() as full:
            full.setattr(house.broker.group_commit, "admit_events", no_room)
            house.pass_time(65.0, step=1.0)
            assert house.broker.subscriptions.count == 1
        house.pass_time(2.0, step=1.0)
        assert house.broker.subscriptions.count == 0

    def test_nothing_ends_after_a_stop(self) -> None:
        house = House()
        subscribe(house)
        house.stop()
        house.clock.advance(100.0)
        assert house.broker.subscriptions.count == 1


class TestAcknowledging:
    def test_only_what_is_in_flight(self) -> None:
        house = House()
        one = subscribe(house)
        produce(house, "t", b"a", b"b")
        poll(house, one)
        group_partition = house.broker.leases.group_partition("t", f"{GROUP_PREFIX}{one}", 0, 0)
        house.broker.leases.settle_leased(group_partition, 0)
        for offset in (0, 1):
            with pytest.raises(LeaseLost):
                house.broker.leases.settle_leased(group_partition, offset)
        poll(house, one)
        house.pass_time(0.15)
        with pytest.raises(LeaseLost):
            house.broker.leases.settle_leased(group_partition, 1)
        assert poll(house, one) == [(1, b"b")]
        house = house.crash()
        assert lease(house, "t", f"{GROUP_PREFIX}{one}") == []


@pytest.mark.parametrize("restart", ["goes on", "crashes", "stops"])
def test_a_subscription_ends_with_its_group_whoever_makes_another_of_that_name(
    restart: str,
) -> None:
    """At once and for good: the other group is nobody's subscription, and begins as any does."""
    house = House()
    produce(house, "t", b"old")
    one, other = subscribe(house), subscribe(house)
    house.run()
    house.broker.groups.delete("t", f"{GROUP_PREFIX}{one}")
    house.broker.groups.commit_offset("t", f"{GROUP_PREFIX}{one}", 0, 0)
    assert not is_known(house, one)
    house.run()
    if restart == "crashes":
        house = house.crash()
    elif restart == "stops":
        house.stop()
        house = house.again()
    assert not is_known(house, one)
    assert is_known(house, other)
    assert house.broker.overview.group_info("t", f"{GROUP_PREFIX}{one}").lag == 1


@pytest.mark.parametrize("name", ["g", GROUP_PREFIX, f"{GROUP_PREFIX}x", f"{GROUP_PREFIX}01"])
def test_a_group_that_is_no_subscription_is_deleted_as_any(name: str) -> None:
    house = House()
    produce(house, "t", b"x")
    one = subscribe(house)
    house.broker.groups.commit_offset("t", name, 0, 0)
    house.broker.groups.delete("t", name)
    assert is_known(house, one)
    assert name not in house.broker.topics.find("t").groups
