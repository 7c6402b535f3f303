"""What a Protocol gets from the broker: topics, records, leases, and long polls."""

from __future__ import annotations

from itertools import pairwise

import pytest
from twisted.logger import capturedLogs

from brokerd.broker import GONE, STOP, TAKE, Broker, BrokerSettings, Congested
from brokerd.broker.group_commit import EVENT_PAIR_BYTES
from brokerd.broker.leases.service import END_DUE_MAX
from brokerd.errors import (
    InvalidName,
    LeaseLost,
    LimitExceeded,
    NotLeaseOwner,
    UnknownOffset,
    UnknownPartition,
    UnknownTopic,
)
from brokerd.groups import EXAMINED_MAX, GroupSettings
from brokerd.wal import Wal, WalOptions
from simulator.machine.bare import AcceptAll
from tests.broker.desk import SECOND_US, acknowledged, grants, lease, produce, read, settle
from tests.house import House


class Poll:
    """A long poll: leases as soon as it can, or learns that its wait is over."""

    def __init__(
        self,
        house: House,
        group: str = "g",
        topic: str = "t",
        seconds: float = 60.0,
        limit: int = 1,
    ) -> None:
        self.house = house
        self.topic, self.group, self.limit = topic, group, limit
        self.found: list[tuple[int, bytes]] = []
        self.tries = 0
        self.timed_out = False
        assert not self.attempt()
        wait_us = int(seconds * SECOND_US)
        self.waiter = house.broker.leases.wait(topic, group, wait_us, self.attempt, self.give_up)

    def attempt(self) -> bool:
        self.tries += 1
        self.found = lease(self.house, self.topic, self.group, "poll", limit=self.limit)
        return bool(self.found)

    def give_up(self) -> None:
        self.timed_out = True


def group_names(house: House, topic: str = "t") -> set[str]:
    return set(house.broker.topics.existing(topic).groups)


class TestTopics:
    def test_a_topic_keeps_its_id_name_and_partitions_over_a_restart(self) -> None:
        house = House()
        house.broker.topics.create("three", 3)
        house.broker.topics.create("één")
        house.run()
        house = house.crash()
        topics = [(t.topic_id, t.name, len(t.partitions)) for t in house.broker.topics.all()]
        assert topics == [(1, "three", 3), (2, "één", 1)]

    def test_creating_a_topic_again_gives_the_one_there_is(self) -> None:
        house = House()
        first = house.broker.topics.create("t", 2)
        assert house.broker.topics.create("t", 5) is first
        assert len(first.partitions) == 2

    @pytest.mark.parametrize("name", ["a\nb", "\x7f", "x" * 256, "é" * 128, "\ud800"])
    def test_bad_names_are_refused(self, name: str) -> None:
        house = House()
        with pytest.raises(InvalidName):
            house.broker.topics.create(name)
        produce(house, "t", b"x")
        with pytest.raises(InvalidName):
            lease(house, "t", name)
        with pytest.raises(InvalidName):
            house.broker.leases.group_partition("t", name, 0, 0)
        assert len(list(house.broker.topics.all())) == 1

    @pytest.mark.parametrize("name", ["", "x" * 255, "é" * 127, "smile \U0001f600", "a b\u00a0c"])
    def test_odd_names_are_taken_and_kept(self, name: str) -> None:
        house = House()
        produce(house, name, b"x")
        lease(house, name, name, name)
        house.run()
        house = house.crash()
        assert house.broker.overview.group_info(name, name).leased == 1

    def test_limits_of_topics_and_partitions_are_named(self) -> None:
        house = House(settings=BrokerSettings(max_topics=2))
        for name in "ab":
            house.broker.topics.create(name)
        with pytest.raises(LimitExceeded, match=r"limits\.max_topics"):
            house.broker.topics.create("c")
        with pytest.raises(LimitExceeded, match="1 to 1000 partitions, not 0"):
            House().broker.topics.create("d", 0)

    def test_what_does_not_exist_is_named(self) -> None:
        house = House()
        produce(house, "t", b"x")
        with pytest.raises(UnknownTopic, match="'u'"):
            house.broker.topics.existing("u")
        with pytest.raises(UnknownTopic):
            next(house.broker.leases.dead_letters("u", "g"))
        with pytest.raises(UnknownPartition, match="no partition 1; it has 1"):
            house.broker.topics.existing("t").partition(1)


class TestRecords:
    def test_offsets_are_dense_in_each_partition(self) -> None:
        house = House()
        house.broker.topics.create("t", 2)
        assert produce(house, "t", b"a", b"b", index=0) == [0, 1]
        assert produce(house, "t", b"c", index=1) == [0]
        house.run()
        house = house.crash()
        assert produce(house, "t", b"d", index=0) == [2]
        assert produce(house, "t", b"e", index=1) == [1]

    def test_a_key_always_goes_to_the_same_partition_and_no_key_to_each_in_turn(self) -> None:
        topic = House().broker.topics.create("t", 4)
        assert len({topic.choose(b"key").index for _ in range(9)}) == 1
        assert {topic.choose(None).index for _ in range(4)} == {0, 1, 2, 3}
        assert topic.choose(b"key", 3).index == 3

    def test_a_record_comes_back_with_all_that_was_given(self) -> None:
        house = House()
        partition = house.broker.topics.create("t").partition(0)
        house.broker.appender.produce(partition, b"v", 2, b"k", b"\x80", 3, -5, 99)
        house.broker.appender.produce(partition, b"w")
        house.run()
        before = [read(house, "t", offset) for offset in (0, 1)]
        house = house.crash()
        assert [read(house, "t", offset) for offset in (0, 1)] == before
        first = before[0]
        assert (first.value, first.encoding, first.key, first.metadata) == (b"v", 2, b"k", b"\x80")
        assert (first.producer_format, first.producer_time, first.expires_at_us) == (3, -5, 99)
        assert first.append_time_us == 1_700_000_000_000_000
        assert before[1].producer_time is None


def test_records_without_a_key_take_the_partitions_in_turn_from_the_first_on() -> None:
    """Records that have a key, or say their partition, take no turn."""
    topic = House().broker.topics.create("t", 3)
    chosen = []
    for _ in range(5):
        chosen.append(topic.choose(None).index)
        topic.choose(b"key")
        topic.choose(None, 2)
    assert chosen == [0, 1, 2, 0, 1]


class TestLeases:
    def test_records_are_leased_lowest_first_to_one_owner_at_a_time(self) -> None:
        house = House()
        produce(house, "t", b"a", b"b")
        assert lease(house) == [(0, b"a")]
        assert lease(house, owner="bob") == [(1, b"b")]
        assert lease(house, owner="eve") == []
        assert lease(house, group="other", owner="eve") == [(0, b"a")]

    def test_only_the_holder_settles_a_live_lease_and_anybody_a_lapsed_one(self) -> None:
        house = House()
        produce(house, "t", b"a")
        lease(house, seconds=5)
        with pytest.raises(NotLeaseOwner):
            settle(house, 0, owner="bob")
        house.pass_time(6)
        assert settle(house, 0, owner="bob")
        assert not settle(house, 0), "settled already"

    def test_a_settle_sent_again_is_answered_at_once(self) -> None:
        house = House()
        produce(house, "t", b"a")
        settle(house, 0)
        house.run()
        assert not settle(house, 0)
        assert acknowledged(house)

    def test_the_third_failure_makes_a_dead_letter(self) -> None:
        house = House(settings=BrokerSettings(groups=GroupSettings(max_attempts=3)))
        produce(house, "t", b"a")
        for failures in range(3):
            [(grant, _)] = grants(house)
            assert (grant.grants, grant.failures) == (failures + 1, failures)
            settle(house, 0, False)
        assert lease(house) == []
        house.run()
        house = house.crash()
        [(partition, letter)] = house.broker.leases.dead_letters("t", "g")
        assert (partition, letter.offset, letter.failures) == (0, 0, 3)
        assert letter.reason == "max_attempts"

    def test_a_live_lease_gets_its_full_duration_again_after_a_crash(self) -> None:
        house = House()
        produce(house, "t", b"a")
        lease(house, seconds=10)
        house.run()
        house.pass_time(9)
        house = house.crash()
        house.pass_time(9.9)
        assert lease(house, owner="bob") == []
        house.pass_time(0.2)
        assert lease(house, owner="bob") == [(0, b"a")]

    def test_its_holder_settles_after_a_crash_even_late(self) -> None:
        house = House()
        produce(house, "t", b"a", b"b")
        lease(house, seconds=10, limit=2)
        house.run()
        house = house.crash()
        with pytest.raises(NotLeaseOwner):
            settle(house, 0, owner="bob")
        assert settle(house, 0)
        house.pass_time(11)
        assert settle(house, 1)
        assert lease(house) == []

    @pytest.mark.parametrize("request_it", ["extend", "settle"])
    def test_a_lapse_found_by_a_refused_request_is_written_like_any_other(
        self, request_it: str
    ) -> None:
        house = House(settings=BrokerSettings(snapshot_interval_bytes=100))
        produce(house, "t", b"a")
        lease(house, seconds=1)
        house.run()
        house.clock.rightNow += 2  # the request comes before the timer
        with pytest.raises(LeaseLost):
            if request_it == "extend":
                house.broker.leases.extend(
                    house.broker.leases.group_partition("t", "g", 0, 0), 0, SECOND_US, owner="ann"
                )
            else:
                settle(house, 0, owner=None, token=77)
        done = acknowledged(house)
        house.run()
        assert done
        house.pass_time(1)
        house = house.crash()
        assert house.broker.overview.group_info("t", "g").leased == 0
        assert lease(house, owner="bob") == [(0, b"a")]

    def test_an_extended_lease_runs_from_now(self) -> None:
        house = House()
        produce(house, "t", b"a")
        lease(house, seconds=5)
        house.pass_time(4)
        group_partition = house.broker.leases.group_partition("t", "g", 0, 0)
        assert (
            house.broker.leases.extend(group_partition, 0, 10 * SECOND_US, owner="ann")
            == 10 * SECOND_US
        )
        house.pass_time(9)
        assert lease(house, owner="bob") == []
        house.pass_time(1.1)
        assert lease(house, owner="bob") == [(0, b"a")]

    def test_a_token_fences_off_an_older_grant(self) -> None:
        house = House()
        produce(house, "t", b"a")
        [(old, _)] = grants(house, seconds=1)
        house.pass_time(2)
        [(new, _)] = grants(house)
        with pytest.raises(LeaseLost):
            settle(house, 0, owner=None, token=old.token)
        assert settle(house, 0, owner=None, token=new.token)

    def test_partitions_take_turns(self) -> None:
        house = House()
        house.broker.topics.create("t", 3)
        for index in range(3):
            produce(house, "t", b"%d" % index, b"%d" % index, index=index)
        assert [value for _ in range(6) for _, value in lease(house)] == [
            b"0", b"1", b"2", b"0", b"1", b"2",
        ]  # fmt: skip

    def test_an_answer_that_is_full_early_lets_no_partition_starve(self) -> None:
        """What one partition has would fill all answers; the others come in their turn."""
        house = House()
        house.broker.topics.create("t", 3)
        for index in range(3):
            produce(house, "t", *[b"%d" % index] * 9, index=index)

        class TakesTwo(AcceptAll):
            taken = 0

            def accept(self, offset: int) -> int:
                self.taken += 1
                self.stopped = self.taken > 2
                return STOP if self.stopped else TAKE

        given = []
        for _ in range(6):
            found = house.broker.leases.acquire("t", "g", "ann", SECOND_US, 10, TakesTwo())
            given.append([group_partition.partition.index for group_partition, _ in found])
        assert given == [[0, 0], [1, 1], [2, 2]] * 2

    def test_who_had_no_room_left_in_an_answer_is_first_in_the_next(self) -> None:
        house = House()
        house.broker.topics.create("t", 3)
        for index, count in enumerate((1, 9, 9)):
            produce(house, "t", *[b"x"] * count, index=index)

        class StopsAtTheSecond(AcceptAll):
            taken = 0

            def accept(self, offset: int) -> int:
                self.taken += 1
                self.stopped = self.taken > 1
                return STOP if self.stopped else TAKE

        given = []
        for _ in range(4):
            found = house.broker.leases.acquire("t", "g", "ann", SECOND_US, 10, StopsAtTheSecond())
            given += [group_partition.partition.index for group_partition, _ in found]
        assert given == [0, 1, 2, 1]

    def test_taking_stops_where_the_protocol_says(self) -> None:
        house = House()
        produce(house, "t", b"a", b"b", b"c")

        class TakesOne(AcceptAll):
            taken = 0

            def accept(self, offset: int) -> int:
                self.taken += 1
                return TAKE if self.taken == 1 else STOP

        found = house.broker.leases.acquire("t", "g", "ann", SECOND_US, 3, TakesOne())
        assert [grant.offset for _, grant in found] == [0]

    def test_an_acquire_passes_over_a_bounded_number_of_records_that_are_gone(self) -> None:
        house = House(options=WalOptions(segment_bytes=16 << 20, free_bytes_min=0))
        house.broker.topics.create("t", 2)
        for index in range(2):
            produce(house, "t", *[b""] * (EXAMINED_MAX + 5), index=index)

        class TakesTheLast(AcceptAll):
            looks = 0

            def accept(self, offset: int) -> int:
                self.looks += 1
                return TAKE if offset == EXAMINED_MAX + 4 else GONE

        found = []
        for _ in range(4):
            taking = TakesTheLast()
            found += house.broker.leases.acquire("t", "g", "ann", SECOND_US, 9, taking)
            assert taking.looks <= EXAMINED_MAX + 1
            assert taking.cut_short
        assert len(found) == 2
        house.run()
        house = house.crash()
        assert house.broker.overview.group_info("t", "g").lag == 2


class TestGroups:
    def test_an_acquire_that_finds_nothing_makes_no_group_and_no_topic(self) -> None:
        house = House()
        assert lease(house, "unknown") == []
        assert house.broker.topics.find("unknown") is None
        house.broker.topics.create("t")
        assert lease(house, group="early") == []
        assert group_names(house) == set()

    def test_a_group_that_does_not_exist_is_told_of_as_it_would_begin(self) -> None:
        house = House()
        produce(house, "t", b"a", b"b", b"c")
        house.broker.topics.trim("t", 0, 2)
        info = house.broker.overview.group_info("t", "g")
        assert (info.floor, info.next, info.lag, info.ready) == (2, 3, 1, 1)
        assert lease(house, limit=9) == [(2, b"c")]

    def test_a_new_group_begins_at_the_start_offset(self) -> None:
        house = House()
        produce(house, "t", b"a", b"b", b"c")
        house.broker.topics.trim("t", 0, 2)
        assert lease(house, limit=9) == [(2, b"c")]
        assert house.broker.overview.group_info("t", "g").floor == 2

    def test_an_acquire_that_has_to_read_first_makes_no_group(self) -> None:
        house = House(settings=BrokerSettings(tail_cache_bytes=0))
        produce(house, "t", b"a")
        house.run()

        class Nothing(AcceptAll):
            stopped = True

            def accept(self, offset: int) -> int:
                return STOP

        assert house.broker.leases.acquire("t", "g", "ann", SECOND_US, 1, Nothing()) == []
        assert group_names(house) == set()
        assert lease(house, group="g") == [(0, b"a")]
        assert group_names(house) == {"g"}

    def test_unknown_records_and_lost_leases_make_no_group(self) -> None:
        house = House()
        produce(house, "t", b"a")
        for topic, index, offset in [
            ("t", 0, 1),
            ("t", 0, -1),
            ("t", -1, 0),
            ("t", 7, 0),
            ("u", 0, 0),
        ]:
            with pytest.raises(UnknownOffset):
                house.broker.leases.group_partition(topic, "g", index, offset)
        with pytest.raises(LeaseLost):
            house.broker.leases.extend(
                house.broker.leases.group_partition("t", "g", 0, 0), 0, SECOND_US
            )
        with pytest.raises(LeaseLost):
            settle(house, 0, token=77)
        assert group_names(house) == set()
        assert acknowledged(house) == []
        house.run()
        assert acknowledged(house)

    def test_a_group_exists_from_its_first_event_on(self) -> None:
        house = House()
        produce(house, "t", b"a")
        assert settle(house, 0, owner="late")
        assert group_names(house) == {"g"}
        house.run()
        assert group_names(house.crash()) == {"g"}

    def test_a_record_that_cannot_be_read_dies_in_the_group_as_it_is_now(self) -> None:
        """The group partition of an acquire that found a cold record may be one the topic never
        knew."""
        house = House()
        produce(house, "t", b"a", b"b")
        stale = house.broker.leases.group_partition("t", "g", 0, 0)
        lease(house)
        assert house.broker.leases.dead_letter(stale, 1, "damaged")
        house.run()
        info = house.crash().broker.overview.group_info("t", "g")
        assert (info.leased, info.dead) == (1, 1)

    def test_where_a_group_stands_is_told(self) -> None:
        house = House()
        produce(house, "t", *[b"%d" % index for index in range(6)])
        house.run()
        house.pass_time(8)
        lease(house, limit=5)
        for offset in (0, 1):
            settle(house, offset)
        settle(house, 2, False, delay_seconds=60)
        settle(house, 3, False)
        info = house.broker.overview.group_info("t", "g")
        assert (info.floor, info.next, info.lag) == (2, 6, 4)
        assert (info.leased, info.ready, info.delayed, info.dead) == (1, 2, 1, 0)
        assert info.oldest_age_us == pytest.approx(8 * SECOND_US, abs=10)
        nobody = house.broker.overview.group_info("t", "nobody")
        assert (nobody.floor, nobody.lag, nobody.ready, nobody.oldest_age_us) == (0, 6, 6, None)

    def test_the_status_counts_what_was_done(self) -> None:
        house = House()
        produce(house, "t", b"aa", b"b", b"c")
        lease(house, limit=3, seconds=1)
        settle(house, 0)
        settle(house, 1, False)
        house.pass_time(2)
        status = house.broker.status()
        assert status["records_produced"]["unknown"] == 3
        counts = ("bytes_produced", "leases_granted", "settled", "failed", "expired")
        assert [status[name] for name in counts] == [4, 3, 1, 1, 1]
        [group] = status["groups"]
        assert (group["topic"], group["group"], group["lag"], group["leased"]) == ("t", "g", 2, 0)


class TestLongPolls:
    def test_a_record_serves_the_poll_in_its_own_commit(self) -> None:
        house = House()
        produce(house, "t", b"a")
        lease(house)
        house.run()
        poll = Poll(house)
        house.disk.calls.clear()
        produce(house, "t", b"b")
        done = acknowledged(house)
        house.run()
        assert poll.found == [(1, b"b")]
        assert done
        assert house.disk.calls["sync"] == 1

    def test_a_poll_may_wait_for_a_topic_that_does_not_exist_yet(self) -> None:
        house = House()
        poll = Poll(house, topic="later")
        produce(house, "earlier", b"x")
        house.run()
        assert poll.tries == 1
        produce(house, "later", b"a")
        house.run()
        assert poll.found == [(0, b"a")]

    def test_a_failed_settle_serves_the_poll(self) -> None:
        house = House()
        produce(house, "t", b"a")
        lease(house)
        house.run()
        poll = Poll(house)
        settle(house, 0, False)
        house.run()
        assert poll.found == [(0, b"a")]

    def test_a_lapsed_lease_serves_the_poll(self) -> None:
        house = House()
        produce(house, "t", b"a")
        lease(house, seconds=5)
        poll = Poll(house)
        house.pass_time(5)
        assert not poll.found
        house.pass_time(0.05)
        assert poll.found == [(0, b"a")]

    def test_the_end_of_a_delay_serves_the_poll(self) -> None:
        house = House()
        produce(house, "t", b"a")
        lease(house)
        settle(house, 0, False, delay_seconds=7)
        poll = Poll(house)
        house.pass_time(6.9)
        assert not poll.found
        house.pass_time(0.2)
        assert poll.found == [(0, b"a")]

    def test_a_frame_cut_off_in_the_middle_of_a_turn_serves_the_poll_too(self) -> None:
        house = House(settings=BrokerSettings(frame_bytes=4096))
        poll = Poll(house)
        produce(house, "t", b"a")
        produce(house, "other", bytes(4000))
        house.run()
        assert poll.found == [(0, b"a")]

    def test_so_does_one_whose_turn_ends_in_a_request_that_must_wait(self) -> None:
        house = House(settings=BrokerSettings(frame_bytes=4096, max_uncommitted_bytes=8000))
        poll = Poll(house)
        produce(house, "t", b"a")
        produce(house, "other", bytes(3000))
        with pytest.raises(Congested):
            produce(house, "other", bytes(4000))
        house.run()
        assert poll.found == [(0, b"a")]

    def test_and_one_that_has_nothing_left_to_commit(self) -> None:
        house = House(options=WalOptions(segment_bytes=64 << 10, free_bytes_min=0))
        poll = Poll(house)
        produce(house, "other", b"x")
        house.turn()
        produce(house, "t", b"a")
        with pytest.raises(Congested):
            produce(house, "t", bytes(100_000))
        house.writer.run()
        assert poll.found == [(0, b"a")]

    def test_polls_of_other_groups_are_left_in_peace_by_a_groups_own_events(self) -> None:
        house = House()
        produce(house, "t", b"a", b"b")
        lease(house, limit=2)
        lease(house, group="other", limit=2)
        house.run()
        poll, other = Poll(house), Poll(house, group="other")
        settle(house, 0)
        settle(house, 1, False)
        house.run()
        assert poll.found == [(1, b"b")]
        assert other.tries == 1

    def test_a_poll_that_waits_in_vain_is_told_so_in_time(self) -> None:
        house = House()
        poll = Poll(house, seconds=3)
        house.pass_time(2.9)
        assert not poll.timed_out
        house.pass_time(0.2)
        assert poll.timed_out
        produce(house, "t", b"a")
        house.run()
        assert poll.tries == 1


class TestManyAtOnce:
    def leased(self, count: int) -> House:
        house = House(settings=BrokerSettings(frame_bytes=1 << 20))
        produce(house, "t", *[b""] * count)
        house.run()
        while lease(house, limit=1000, seconds=5):
            house.run()
        return house

    def test_leases_that_lapse_together_end_over_several_turns(self) -> None:
        """After a restart all leases have the same end: the reactor must not stall on them."""
        house = self.leased(3 * END_DUE_MAX).crash()
        house.clock.rightNow += 6
        left = [house.broker.overview.group_info("t", "g").leased]
        while house.clock.calls and house.clock.calls[0].getTime() <= house.clock.seconds():
            call = house.clock.calls.pop(0)
            call.called = 1
            call.func(*call.args, **call.kw)
            left.append(house.broker.overview.group_info("t", "g").leased)
        steps = [before - after for before, after in pairwise(left)]
        assert sum(steps) == left[0] == 3 * END_DUE_MAX
        assert max(steps) == END_DUE_MAX <= 512, "a step of 1,024 took 20 ms of a million leases"

    def test_lapses_of_many_groups_are_written_in_several_frames(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A frame is made in one go: the more groups it tells of, the longer that takes."""
        monkeypatch.setattr("brokerd.broker.leases.service.LAPSE_FRAME_BYTES", 10_000)
        house = House()
        produce(house, "t", b"x")
        for number in range(100):
            lease(house, group=f"g{number}", seconds=5)
            house.run()
        frames_before = house.broker.group_commit.frames
        house.pass_time(5.05, 5.05)
        assert house.broker.counters.lapsed == 100
        assert house.broker.group_commit.frames > frames_before + 4
        assert house.crash().broker.overview.group_info("t", "g99").leased == 0

    def test_an_acquire_among_them_gets_the_lowest_that_is_free_by_then(self) -> None:
        house = self.leased(3 * END_DUE_MAX)
        house.clock.rightNow += 6
        [(offset, _)] = lease(house, owner="bob")
        assert offset == 0
        house.run()
        house.pass_time(1)
        info = house.broker.overview.group_info("t", "g")
        assert (info.leased, info.ready) == (1, 3 * END_DUE_MAX - 1)
        assert house.crash().broker.overview.group_info("t", "g").leased == 1

    @pytest.mark.pure_only("replaces properties of a class")
    def test_lapses_leave_the_space_that_an_acquire_was_admitted_with(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The log has space for the lapses or for the new leases, but not for both."""
        house = self.leased(END_DUE_MAX)
        space = 3 * END_DUE_MAX * EVENT_PAIR_BYTES // 2
        monkeypatch.setattr(Wal, "room", 0)
        monkeypatch.setattr(Wal, "reserve_room", space)
        settle(house, 0)
        house.run()
        house.clock.rightNow += 6
        leased = lease(house, owner="bob", limit=END_DUE_MAX)
        assert house.broker.group_commit.gathered_bytes <= space
        assert leased == []
        house.pass_time(1)
        assert len(lease(house, owner="bob", limit=END_DUE_MAX)) == END_DUE_MAX - 1


class TestClocks:
    def test_steps_of_the_wall_clock_end_no_lease_and_no_delay(self) -> None:
        for step in (-7200, +1800, +86400):
            house = House()
            produce(house, "t", b"a", b"b")
            lease(house, limit=2, seconds=10)
            settle(house, 1, False, delay_seconds=10)
            house.run()
            house.wall_seconds += step
            house.pass_time(9.9)
            assert lease(house, owner="bob") == []
            house.pass_time(0.2)
            assert len(lease(house, owner="bob", limit=2)) == 2

    def test_append_times_never_go_back_and_go_on_from_the_log_after_a_restart(self) -> None:
        house = House()
        produce(house, "t", b"a")
        house.run()
        house = house.crash(wall_seconds=house.wall_seconds - 3600)
        house.pass_time(2)
        produce(house, "t", b"b")
        house.run()
        times = [read(house, "t", offset).append_time_us for offset in (0, 1)]
        assert times[1] - times[0] == pytest.approx(2 * SECOND_US, abs=10)

    @pytest.mark.parametrize("clean", [True, False])
    def test_a_delay_goes_on_where_it_was_although_the_wall_clock_went_back(
        self, clean: bool
    ) -> None:
        house = House()
        produce(house, "t", b"a")
        lease(house)
        settle(house, 0, False, delay_seconds=10)
        house.run()
        wall = house.wall_seconds - 3600
        if clean:
            house.stop()
        house = house.again(wall_seconds=wall) if clean else house.crash(wall_seconds=wall)
        house.pass_time(9)
        assert lease(house) == []
        house.pass_time(1.1)
        assert lease(house) == [(0, b"a")]

    def test_a_delay_ends_while_the_broker_is_down(self) -> None:
        house = House()
        produce(house, "t", b"a")
        lease(house)
        settle(house, 0, False, delay_seconds=10)
        house.run()
        house = house.crash(wall_seconds=house.wall_seconds + 11)
        assert lease(house) == [(0, b"a")]

    def test_a_delay_is_never_shorter_after_a_restart(self) -> None:
        """The frame that holds the failure may have been begun by a lapse long before."""
        house = House()
        produce(house, "t", b"a", b"b")
        lease(house, limit=1, seconds=1)
        lease(house, limit=1, seconds=60)
        house.pass_time(1)
        house.clock.advance(0.04)
        house.wall_seconds += 0.04
        assert house.broker.overview.group_info("t", "g").leased == 1
        house.clock.advance(0.05)
        house.wall_seconds += 0.05
        settle(house, 1, False, delay_seconds=10)
        assert not acknowledged(house)
        failed_at = house.wall_seconds
        house.run()
        house = house.crash(wall_seconds=failed_at + 9.99)
        assert [offset for offset, _ in lease(house, limit=2)] == [0]

    def test_a_start_long_after_the_last_entry_is_told_and_delays_are_over(self) -> None:
        """Delays follow broker time; removal does not, for the grace."""
        house = House()
        produce(house, "t", b"0")
        lease(house)
        settle(house, 0, success=False, delay_seconds=7000)
        house.run()
        with capturedLogs() as captured:
            house = house.crash(wall_seconds=house.wall_seconds + 7200)
        [event] = [event for event in captured if event.get("event_id") == "clock-ahead"]
        assert event["seconds"] == 7200
        assert lease(house) == [(0, b"0")]
        with capturedLogs() as captured:
            house.pass_time(3601, step=10)
            house.broker.time.time_us()
        assert [event["event_id"] for event in captured if "clock" in event["event_id"]] == [
            "clock-right"
        ]

    def test_a_start_within_the_hour_or_on_a_new_log_tells_nothing(self) -> None:
        with capturedLogs() as captured:
            house = House()
            produce(house, "t", b"0")
            house.run()
            house = house.crash(wall_seconds=house.wall_seconds + 3600)
        assert not [event for event in captured if event.get("event_id") == "clock-ahead"]
        assert not house.broker.time.problem


def test_a_broker_says_when_it_is_ready() -> None:
    house = House()
    assert house.broker.ready
    house.broker.stop()
    assert not house.broker.ready
    assert isinstance(house.broker, Broker)
