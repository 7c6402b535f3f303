"""Records that topics need not keep go in time and not before, and their space comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from brokerd.broker import BrokerSettings, Congested
from brokerd.broker.model.topics import Partition, TopicSettings
from brokerd.broker.retention.retention import STEP_PARTITIONS, RetentionSettings
from brokerd.broker.topic_admin import TopicAdmin
from brokerd.errors import NoSpace
from brokerd.groups import DeadLetter, LeaseStore
from brokerd.wal import WalOptions
from simulator.machine.bare import STATE_DIR, WAL_DIR
from simulator.machine.disk import SimDisk
from tests.broker.desk import SECOND_US, lease, produce, read
from tests.broker.test_group_admin import fill_the_log
from tests.broker.test_removed_records import GROUPS, SlowClock
from tests.house import House

KIB = 1024
SMALL = WalOptions(segment_bytes=64 * KIB, free_bytes_min=0)
CHECK_SECONDS = 10


def settings(
    retention_seconds: int = 0,
    retention_bytes: int = 0,
    dead_letter_seconds: int = 0,
    snapshot_interval_bytes: int = 1 << 40,
) -> BrokerSettings:
    return BrokerSettings(
        snapshot_interval_bytes=snapshot_interval_bytes,
        retention=RetentionSettings(
            TopicSettings(retention_seconds * SECOND_US, retention_bytes, 0),
            dead_letter_seconds * SECOND_US,
            CHECK_SECONDS * SECOND_US,
        ),
    )


def start(house: House, topic: str = "t", index: int = 0) -> int:
    return house.broker.topics.existing(topic).partitions[index].start_offset


def segments(house: House) -> list[str]:
    return [name for name in house.disk.list(WAL_DIR) if name.endswith(".wal")]


def pass_rounds(house: House, rounds: int = 1) -> None:
    house.pass_time(rounds * CHECK_SECONDS, step=0.5)


def fill(house: House, topic: str, kib: int) -> None:
    """Produce so much, in frames of some size."""
    for _ in range(kib // 10):
        produce(house, topic, bytes(10 * KIB))
        house.run()


def test_topics_without_their_own_time_to_live_have_the_default() -> None:
    ttl_us = 5 * SECOND_US
    defaults = RetentionSettings(TopicSettings(0, 0, ttl_us))
    house = House(settings=BrokerSettings(retention=defaults))
    house.broker.topics.create("own", 1, TopicSettings(ttl_us=2 * ttl_us))
    now_us = house.broker.time.time_us()
    for topic, live_us in ("t", ttl_us), ("own", 2 * ttl_us):
        produce(house, topic, b"x")
        assert read(house, topic, 0).expires_at_us == now_us + live_us


class TestAge:
    def test_records_go_when_they_are_old_and_not_before(self) -> None:
        house = House(settings=settings(retention_seconds=25))
        produce(house, "t", b"0", b"1")
        house.run()
        house.pass_time(15, step=0.5)
        produce(house, "t", b"2")
        house.run()
        house.pass_time(9, step=0.5)
        assert start(house) == 0, "at 24 s"
        house.pass_time(7, step=0.5)
        assert start(house) == 2, "at 31 s, checked at 30"
        assert lease(house, limit=9) == [(2, b"2")]
        house.pass_time(20, step=0.5)
        assert start(house) == 3
        assert house.broker.counters.records_removed["retention_time"] == 3

    def test_a_group_that_was_late_goes_on_with_what_is_left(self) -> None:
        house = House(settings=settings(retention_seconds=15))
        produce(house, "t", b"0", b"1")
        lease(house, limit=2, seconds=1000)
        house.run()
        pass_rounds(house, 1)
        produce(house, "t", b"2")
        house.run()
        pass_rounds(house, 1)
        assert start(house) == 2
        info = house.broker.overview.group_info("t", "g")
        assert (info.lag, info.leased) == (1, 0)
        house = house.crash()
        assert lease(house, limit=9) == [(2, b"2")]

    def test_a_topic_may_have_a_limit_of_its_own_or_none(self) -> None:
        house = House(settings=settings(retention_seconds=5))
        house.broker.topics.create("keep", settings=TopicSettings(retention_us=0))
        house.broker.topics.create("later", settings=TopicSettings(retention_us=25 * SECOND_US))
        for topic in ("t", "keep", "later"):
            produce(house, topic, b"0")
        house.run()
        pass_rounds(house)
        assert [start(house, topic) for topic in ("t", "keep", "later")] == [1, 0, 0]
        pass_rounds(house, 2)
        assert [start(house, topic) for topic in ("t", "keep", "later")] == [1, 0, 1]

    def test_a_clock_that_jumps_removes_nothing_before_the_grace_is_over(self) -> None:
        house = House(settings=settings(retention_seconds=7200))
        produce(house, "t", b"0")
        house.run()
        house.wall_seconds += 86_400
        house.pass_time(3500, step=50)
        assert start(house) == 0
        house.pass_time(200, step=50)
        assert start(house) == 1

    @pytest.mark.parametrize("how", ["none", "crash", "stop"])
    @pytest.mark.parametrize("wrong_while", ["running", "at a start"])
    def test_a_clock_that_was_wrong_for_a_moment_removes_nothing(
        self, how: str, wrong_while: str
    ) -> None:
        """Three days for eight seconds. Broker time stays ahead, also after a restart."""
        house = House(settings=settings(retention_seconds=7200))
        produce(house, "t", b"0")
        house.run()
        house.wall_seconds += 3 * 86_400
        if wrong_while == "at a start":
            house = house.crash(wall_seconds=house.wall_seconds)
        house.pass_time(8, step=1)
        produce(house, "t", b"1")
        house.run()
        house.wall_seconds -= 3 * 86_400
        if how == "crash":
            house = house.crash()
        elif how == "stop":
            house.stop()
            house = house.again(wall_seconds=house.wall_seconds)
        house.pass_time(7000, step=50)
        assert start(house) == 0
        assert house.broker.status()["clock"]["skew_seconds"] > 2 * 86_400
        house.pass_time(300, step=50)
        assert start(house) == 1, "in time"
        house.pass_time(7300, step=50)
        assert start(house) == 1, "this one seems to be of the future"

    def test_a_clock_that_is_wrong_again_after_a_restart_removes_nothing(self) -> None:
        house = House(settings=settings(retention_seconds=7200))
        produce(house, "t", b"0")
        house.run()
        for _ in range(3):
            house = house.crash(wall_seconds=house.wall_seconds + 3 * 86_400)
            house.pass_time(8, step=1)
            produce(house, "t", b"1")
            house.run()
            house.wall_seconds -= 3 * 86_400
            house.pass_time(600, step=50)
        assert start(house) == 0

    def test_all_of_many_partitions_get_their_turn(self) -> None:
        house = House(settings=settings(retention_seconds=5))
        for index in range(2 * STEP_PARTITIONS + 1):
            produce(house, f"t{index}", b"0")
        house.run()
        pass_rounds(house, 2)
        assert all(start(house, f"t{index}") == 1 for index in range(2 * STEP_PARTITIONS + 1))

    def test_a_topic_deleted_while_it_is_looked_up_is_left_alone(self) -> None:
        house = House(settings=settings(retention_seconds=5))
        produce(house, "t", b"0")
        house.run()
        house.wall_seconds += CHECK_SECONDS
        house.clock.advance(CHECK_SECONDS)
        house.broker.topics.delete("t")
        house.run()
        pass_rounds(house)
        assert not house.failures
        assert house.broker.status()["retention"]["errors"] == 0


class TestSize:
    def test_the_newest_bytes_stay(self) -> None:
        house = House(settings=settings(retention_bytes=35 * KIB), options=SMALL)
        fill(house, "t", 200)
        pass_rounds(house)
        assert start(house) == 17, "three of 20"
        assert house.broker.counters.records_removed["retention_bytes"] == 17

    def test_a_topic_within_its_limit_keeps_all(self) -> None:
        house = House(settings=settings(retention_bytes=1 << 30), options=SMALL)
        fill(house, "t", 200)
        pass_rounds(house)
        assert start(house) == 0


class TestDeadLetters:
    def house(self, dead_letter_seconds: int) -> House:
        house = House(
            settings=settings(retention_seconds=5, dead_letter_seconds=dead_letter_seconds)
        )
        produce(house, "t", *[b"%d" % n for n in range(6)])
        for offset in (2, 4):
            house.broker.leases.dead_letter(
                house.broker.leases.group_partition("t", "g", 0, offset), offset, "bad"
            )
        house.run()
        return house

    def test_one_holds_its_record_back_until_it_is_old(self) -> None:
        house = self.house(dead_letter_seconds=35)
        pass_rounds(house, 3)
        assert start(house) == 2
        pass_rounds(house, 1)
        assert start(house) == 6
        assert house.broker.overview.group_info("t", "g").dead == 0
        assert house.broker.counters.dead_letters_removed == 2

    def test_its_age_goes_on_over_a_restart(self) -> None:
        house = self.house(dead_letter_seconds=35)
        pass_rounds(house, 2)
        house = house.crash()
        house.pass_time(12, step=0.5)
        assert start(house) == 2
        house.pass_time(10, step=0.5)
        assert start(house) == 6

    def test_its_age_does_not_go_by_a_wrong_clock(self) -> None:
        house = self.house(dead_letter_seconds=3600)
        pass_rounds(house, 1)
        assert start(house) == 2
        house = house.crash(wall_seconds=house.wall_seconds + 86_400)
        pass_rounds(house, 2)
        house.wall_seconds -= 86_400
        pass_rounds(house, 2)
        assert start(house) == 2

    @pytest.mark.parametrize("groups", ["g", "gh", "ghijklmnopqr"])
    def test_many_old_ones_go_in_one_round_some_at_a_time(
        self, groups: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("brokerd.broker.retention.retention.VISIT_LETTERS_MAX", 10)
        house = House(settings=settings(retention_seconds=5, dead_letter_seconds=25))
        produce(house, "t", *[b""] * 100)
        for group in groups:
            for offset in range(100):
                house.broker.leases.dead_letter(
                    house.broker.leases.group_partition("t", group, 0, offset), offset, "bad"
                )
        house.run()
        pass_rounds(house, 2)
        house.broker.leases.dead_letter(
            house.broker.leases.group_partition("t", "young", 0, 70), 70, "bad"
        )
        pass_rounds(house, 1)
        assert start(house) == 70, "and not past one that is young"
        assert house.broker.counters.dead_letters_removed == 70 * len(groups)

    def test_with_no_time_of_its_own_it_goes_with_its_record(self) -> None:
        house = self.house(dead_letter_seconds=0)
        pass_rounds(house)
        assert start(house) == 6

    def test_a_new_one_with_no_time_of_its_own_goes_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It comes while retention waits for room in the log."""
        calls = 0

        def remove(self: TopicAdmin, starts: list[tuple[Partition, int]], reason: str) -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                leases = house.broker.leases
                leases.dead_letter(leases.group_partition("t", "g", 0, 3), 3, "bad")
                raise Congested("full")
            return really(self, starts, reason)

        really = TopicAdmin.remove
        monkeypatch.setattr(TopicAdmin, "remove", remove)
        house = self.house(dead_letter_seconds=0)
        pass_rounds(house)
        assert (calls, start(house)) == (2, 6)

    def test_one_that_was_purged_holds_nothing(self) -> None:
        house = self.house(dead_letter_seconds=1000)
        house.broker.groups.purge_dead_letters("t", "g")
        pass_rounds(house)
        assert start(house) == 6

    def test_a_trim_takes_it_all_the_same(self) -> None:
        house = self.house(dead_letter_seconds=1000)
        house.broker.topics.trim("t", 0, 5)
        assert house.broker.overview.group_info("t", "g").dead == 0


class TestTurns:
    @pytest.mark.parametrize(("slow", "expected"), [(False, [6]), (True, [3, 3])])
    def test_a_slice_moves_some_and_the_others_follow(
        self, slow: bool, expected: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moved: list[int] = []

        def remove(self: TopicAdmin, starts: list[tuple[Partition, int]], reason: str) -> int:
            moved.append(len(starts))
            return really(self, starts, reason)

        really = TopicAdmin.remove
        monkeypatch.setattr(TopicAdmin, "remove", remove)
        house = House(settings=settings(retention_seconds=5))
        topic = house.broker.topics.create("t", 6)
        for partition in topic.partitions:
            house.broker.appender.append(partition, b"x")
        house.run()
        if slow:
            house.broker.slices.clock = SlowClock(house.clock)
        house.pass_time(CHECK_SECONDS + 1, step=0.01)
        assert [partition.start_offset for partition in topic.partitions] == [1] * 6
        assert moved == expected

    def crowd(self) -> House:
        """A house with a dead letter in each of 40 groups, which are old after 4 rounds."""
        house = House(settings=settings(retention_seconds=5, dead_letter_seconds=35))
        produce(house, "t", *[b"x"] * 9)
        for number in range(GROUPS):
            self.bury(house, f"g{number:02}", 7)
        house.run()
        pass_rounds(house, 3)
        assert start(house) == 7
        house.broker.slices.clock = SlowClock(house.clock)
        return house

    def bury(self, house: House, group: str, offset: int) -> None:
        group_partition = house.broker.leases.group_partition("t", group, 0, offset)
        house.broker.leases.dead_letter(group_partition, offset, "bad")

    def watch_reads(self, monkeypatch: pytest.MonkeyPatch, read: Callable[[], None]) -> None:
        """Call ``read`` whenever the dead letters of a group are read."""

        def dead_letters(self: LeaseStore, first: int, end: int) -> Iterator[DeadLetter]:
            read()
            return really(self, first, end)

        really = LeaseStore.dead_letters
        monkeypatch.setattr(LeaseStore, "dead_letters", dead_letters)

    def test_the_dead_letters_of_a_few_groups_are_read_in_a_step(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All in one step took 0.4 s for 6,000 groups that settled removed records first."""
        reads: list[float] = []
        house = self.crowd()
        self.watch_reads(monkeypatch, lambda: reads.append(house.clock.seconds()))
        house.pass_time(CHECK_SECONDS + 1, step=0.01)
        assert len(reads) == GROUPS
        assert max(Counter(reads).values()) <= 5
        assert start(house) == 9

    @pytest.mark.parametrize(
        ("after", "framed"), [(GROUPS // 2, False), (GROUPS // 2, True), (GROUPS, False)]
    )
    @pytest.mark.parametrize("group", ["g00", "g39", "new"])
    def test_a_letter_that_comes_while_groups_are_read_is_held(
        self, group: str, after: int, framed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its group was read already, is read later, or is new."""
        reads = 0

        def bury_after_some() -> None:
            nonlocal reads
            reads += 1
            if reads == after:
                self.bury(house, group, 8)
                if framed:
                    house.broker.group_commit.end_frame_early()

        house = self.crowd()
        self.watch_reads(monkeypatch, bury_after_some)
        house.pass_time(CHECK_SECONDS + 1, step=0.01)
        assert reads == GROUPS
        assert start(house) == 8
        assert house.broker.overview.group_info("t", group).dead == 1
        house = house.crash()
        assert start(house) == 8
        assert house.broker.overview.group_info("t", group).dead == 1

    def test_a_fault_ends_the_round_and_the_next_one_begins(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error is in the status, and nothing is removed that is not known to be old."""

        def fail() -> None:
            raise MemoryError

        house = self.crowd()
        with monkeypatch.context() as patch:
            self.watch_reads(patch, fail)
            house.pass_time(CHECK_SECONDS + 1, step=0.01)
        assert start(house) == 7
        assert house.broker.retention.status()["errors"] == 1
        house.pass_time(CHECK_SECONDS + 1, step=0.01)
        assert start(house) == 9


class TestSegments:
    def test_segments_go_when_two_snapshots_hold_what_else_they_said(self) -> None:
        house = House(
            settings=settings(retention_bytes=35 * KIB, snapshot_interval_bytes=100 * KIB),
            options=SMALL,
        )
        fill(house, "t", 1000)
        assert len(segments(house)) > 15
        pass_rounds(house, 2)
        assert len(segments(house)) <= 8, "what the snapshots do not cover, and what is prepared"
        [group_partition_read] = [read(house, "t", start(house))]
        assert group_partition_read.value == bytes(10 * KIB)
        house = house.crash()
        assert house.report.damages == []
        assert start(house) == 97
        assert len(lease(house, limit=9)) == 3
        assert produce(house, "t", b"new") == [100]

    def test_a_segment_stays_until_its_last_record_is_removed(self) -> None:
        house = House(
            settings=replace(
                settings(snapshot_interval_bytes=100 * KIB), tail_cache_bytes=0, read_cache_bytes=0
            ),
            options=SMALL,
        )
        fill(house, "t", 400)
        before = len(segments(house))
        for offset in range(1, 14):
            house.broker.topics.trim("t", 0, offset)
            house.run()
            pass_rounds(house)
            assert read(house, "t", offset).value == bytes(10 * KIB)
        assert len(segments(house)) == before - 2

    def test_a_record_that_stays_pins_its_own_segment_alone(self) -> None:
        house = House(
            settings=settings(retention_bytes=35 * KIB, snapshot_interval_bytes=100 * KIB),
            options=SMALL,
        )
        fill(house, "t", 300)
        house.broker.topics.create("old", settings=TopicSettings(retention_bytes=0))
        produce(house, "old", b"kept")
        fill(house, "t", 600)
        pass_rounds(house, 2)
        assert len(segments(house)) <= 9
        house = house.crash(settings=BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0))
        assert house.report.damages == []
        assert read(house, "old", 0).value == b"kept"

    def test_those_of_a_deleted_topic_go_although_the_log_does_not_grow(self) -> None:
        """Snapshots are taken for it: one a round."""
        house = House(settings=settings(), options=SMALL)
        fill(house, "t", 600)
        house.broker.topics.delete("t")
        house.run()
        before = len(segments(house))
        pass_rounds(house, 4)
        assert len(segments(house)) <= 4 < before
        written = house.broker.status()["snapshots_written"]
        assert written == 2
        pass_rounds(house, 4)
        produce(house, "u", b"0")
        house.run()
        house.pass_time(0.2)
        assert house.broker.status()["snapshots_written"] == written
        house = house.crash()
        assert house.report.damages == []
        assert [topic.name for topic in house.broker.topics.all()] == ["u"]

    def test_no_snapshot_is_taken_for_less_than_a_segment(self) -> None:
        house = House(settings=settings(), options=SMALL)
        fill(house, "t", 100)
        house.broker.topics.delete("t")
        pass_rounds(house, 5)
        assert 0 < house.broker.status()["retention"]["waiting_bytes"] < 64 * KIB
        assert house.broker.status()["snapshots_written"] == 0

    def test_a_start_from_a_snapshot_knows_what_was_removed(self) -> None:
        house = House(settings=settings(snapshot_interval_bytes=100 * KIB), options=SMALL)
        fill(house, "t", 600)
        house.broker.topics.trim("t", 0, 59)
        house.stop()
        before = len(segments(house))
        house = house.again()
        assert house.report.frames == 0
        pass_rounds(house, 4)
        assert len(segments(house)) < before - 5

    def test_none_goes_before_what_removed_its_records_is_durable(self) -> None:
        house = House(settings=settings(snapshot_interval_bytes=100 * KIB), options=SMALL)
        fill(house, "t", 600)
        house.pass_time(0.2)
        before = segments(house)
        house.wall_seconds += CHECK_SECONDS
        house.broker.topics.delete("t")
        house.clock.advance(CHECK_SECONDS)
        for _ in range(20):
            for thread in (house.background, house.readers, house.snapshot_writer):
                thread.step()
            house.clock.advance(0.01)
        assert set(before) <= set(segments(house)), "nobody wrote the deletion yet"
        house.run()
        house.pass_time(1)
        assert len(segments(house)) < len(before)

    def test_none_goes_while_an_older_snapshot_is_damaged(self) -> None:
        house = House(settings=settings(snapshot_interval_bytes=100 * KIB), options=SMALL)
        fill(house, "t", 600)
        house.pass_time(0.2)
        older = sorted(name for name in house.disk.list(STATE_DIR) if name.endswith(".snap"))[0]
        house.disk.content(f"{STATE_DIR}/{older}")[100] ^= 1
        before = segments(house)
        house.broker.topics.delete("t")
        house.run()
        house.clock.advance(CHECK_SECONDS)
        for _ in range(5):
            house.snapshot_writer.step()
            house.readers.step()
            house.turn()
        assert set(before) <= set(segments(house))

    def test_damage_elsewhere_does_not_make_lost_records_of_removed_ones(self) -> None:
        house = House(
            settings=settings(retention_bytes=85 * KIB, snapshot_interval_bytes=100 * KIB),
            options=SMALL,
        )
        house.broker.topics.create("old", settings=TopicSettings(retention_bytes=0))
        produce(house, "old", b"first")
        produce(house, "t", b"first too")
        fill(house, "t", 600)
        produce(house, "old", b"second")
        pass_rounds(house, 2)
        first = segments(house)[0]
        for name in (first, first.replace(".wal", ".idx")):
            house.disk.unlink(f"{WAL_DIR}/{name}")
        house.disk.sync_directory(WAL_DIR)
        house = house.crash()
        (damage,) = house.report.damages
        topic_id = house.broker.topics.existing("old").topic_id
        assert damage.lost == [(topic_id, 0, 0, 1)]
        assert read(house, "old", 1).value == b"second"
        assert len(lease(house, limit=99)) == 61 - start(house)

    def test_a_topic_that_is_made_while_it_is_looked_at_keeps_its_own(self) -> None:
        house = House(settings=settings(), options=SMALL)
        fill(house, "t", 300)
        house.broker.topics.delete("t")
        house.run()
        house.clock.advance(CHECK_SECONDS)
        for number in range(30):
            produce(house, "late", b"%d" % number + bytes(10 * KIB))
            while house.writer.step() or house.background.step():
                house.turn()
        pass_rounds(house, 3)
        fill(house, "later", 300)
        pass_rounds(house, 6)
        house = house.crash(settings=BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0))
        assert [read(house, "late", number).value[:2] for number in (0, 29)] == [b"0\0", b"29"]

    def test_what_was_removed_is_durable_before_its_segment_goes(self) -> None:
        """After a crash at any moment the log is whole for what its topics say they keep."""
        house = House(
            settings=settings(retention_bytes=35 * KIB, snapshot_interval_bytes=100 * KIB),
            options=SMALL,
        )
        fill(house, "t", 600)
        house.run()
        house.clock.advance(CHECK_SECONDS)
        for _ in range(200):
            disk = house.disk.copy()
            disk.crash()
            again = house.again(disk=disk)
            assert again.report.damages == []
            first = start(again)
            assert [offset for offset, _ in lease(again, limit=99)] == list(range(first, 60))
            for thread in (house.writer, house.background, house.readers, house.snapshot_writer):
                if thread.step():
                    break
            else:
                break
            house.clock.advance(0.01)
        assert start(again) == 57


class TestFullDisk:
    ROOM = WalOptions(segment_bytes=64 * KIB, reserve_bytes=8 * KIB, free_bytes_min=128 * KIB)

    def full(self) -> House:
        """A broker that has taken all that the disk holds."""
        house = House(SimDisk(1 << 20), settings(), self.ROOM)
        with pytest.raises(NoSpace):
            for _ in range(1000):
                try:
                    produce(house, "t", bytes(5 * KIB))
                except Congested:
                    house.run()
        house.run()
        return house

    def produces(self, house: House) -> bool:
        house.wal.retry_allocation()
        house.run()
        try:
            produce(house, "new", bytes(5 * KIB))
        except (NoSpace, Congested):
            return False
        house.run()
        return True

    @pytest.mark.parametrize("trims", [True, False])
    def test_what_is_removed_makes_room_again(self, trims: bool) -> None:
        house = self.full()
        end = house.broker.topics.existing("t").partitions[0].next_offset
        if trims:
            house.broker.topics.trim("t", 0, end)
        else:
            house.broker.topics.delete("t")
        house.run()
        assert not self.produces(house)
        pass_rounds(house, 4)
        assert all(self.produces(house) for _ in range(20))
        assert not house.failures
        house = house.crash()
        assert house.report.damages == []
        names = [one.name for one in house.broker.topics.all()]
        assert names == (["t", "new"] if trims else ["new"])

    def test_a_disk_with_no_room_at_all_costs_nothing_but_the_round(self) -> None:
        house = self.full()
        house.broker.topics.delete("t")
        house.run()
        house.disk.capacity = 0
        pass_rounds(house, 4)
        assert not house.failures
        house.disk.capacity = 1 << 20
        pass_rounds(house, 4)
        assert self.produces(house)


def look_up_without_room(house: House) -> None:
    """Let a round find what is to go, at a moment when the log has no room to say so."""
    house.pass_time(CHECK_SECONDS - 0.5, step=0.5)
    house.clock.advance(0.5)
    fill_the_log(house)
    assert house.readers.step()


class TestTrouble:
    def test_a_lookup_that_fails_is_told_and_tried_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house = House(settings=settings(retention_seconds=5))
        produce(house, "t", b"0")
        house.run()

        class Broken:
            def run(self) -> int:
                raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(house.wal, "plan_offset_at_time", lambda *of: Broken())
            pass_rounds(house)
            status = house.broker.status()["retention"]
            assert status["errors"] == 1
            assert "topic 't' partition 0: " in status["last_error"]
        pass_rounds(house)
        assert start(house) == 1
        assert house.broker.status()["retention"]["last_error"] is None

    @pytest.mark.parametrize("limits", [(5, 0), (0, 1)])
    def test_a_wait_for_log_space_is_no_failure_and_no_longer_than_that(
        self, limits: tuple[int, int]
    ) -> None:
        house = House(settings=settings(*limits), options=SMALL)
        produce(house, "t", b"0")
        house.run()
        produce(house, "t", b"1")
        house.run()
        look_up_without_room(house)
        assert start(house) == 0
        house.run()
        assert start(house) > 0
        assert house.broker.status()["retention"]["errors"] == 0
        pass_rounds(house)
        assert house.broker.status()["retention"]["errors"] == 0

    def test_a_stop_while_it_waits_for_log_space_ends_it(self) -> None:
        house = House(settings=settings(retention_seconds=5), options=SMALL)
        produce(house, "t", b"0")
        house.run()
        look_up_without_room(house)
        house.stop()
        assert house.clock.getDelayedCalls() == []
        assert start(house.again()) == 0

    def test_a_stop_in_the_middle_of_a_round_ends_it(self) -> None:
        house = House(settings=settings(retention_seconds=5))
        produce(house, "t", b"0")
        house.run()
        house.wall_seconds += CHECK_SECONDS
        house.clock.advance(CHECK_SECONDS)
        house.stop()
        assert house.clock.getDelayedCalls() == []
        assert start(house.again()) == 0
