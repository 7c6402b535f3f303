"""Snapshots are taken while work goes on, never hold what could still be lost, and are verified."""

from __future__ import annotations

import errno
import gc

import msgpack
import pytest

from brokerd.broker import BrokerSettings, GroupSettings
from brokerd.broker.model.snapshot_capture import capture_topic
from brokerd.broker.model.snapshotter import STEP_THINGS
from brokerd.broker.model.state import (
    SNAPSHOT_DELETED_TOPIC,
    SNAPSHOT_GROUP_PARTITION,
    SNAPSHOT_GROUP_PARTITIONS,
    SNAPSHOT_META,
    State,
)
from brokerd.wal import SNAPSHOT_TOPIC, SnapshotChunk
from brokerd.wal.snapshot import SnapshotFile
from simulator.machine.bare import STATE_DIR
from tests.broker.desk import SECOND_US, acknowledged, lease, produce, settle
from tests.house import House

NEVER = BrokerSettings(snapshot_interval_bytes=1 << 40)
OFTEN = BrokerSettings(snapshot_interval_bytes=1)


def snapshots(house: House) -> list[str]:
    return [name for name in house.disk.list(STATE_DIR) if name.endswith(".snap")]


def chunks(house: House, index: int = -1) -> list[SnapshotChunk]:
    """The chunks of a snapshot, by default the newest."""
    name = snapshots(house)[index]
    return list(SnapshotFile(house.disk.open(f"{STATE_DIR}/{name}"), name).chunks())


def working(topics: int, settings: BrokerSettings) -> House:
    """A house with many topics, each with a record leased."""
    house = House(settings=settings)
    for index in range(topics):
        produce(house, f"t{index}", b"0", b"1")
        lease(house, f"t{index}")
    acknowledged(house)
    return house


class TestTaking:
    def test_a_snapshot_follows_every_so_many_bytes_of_log(self) -> None:
        house = House(settings=BrokerSettings(snapshot_interval_bytes=20_000))
        counts = []
        for _ in range(6):
            produce(house, "t", bytes(9_000))
            house.pass_time(0.01)
            counts.append(house.broker.status()["snapshots_written"])
        assert counts == [0, 0, 1, 1, 1, 2]
        assert len(snapshots(house)) == 2

    def test_what_could_still_be_lost_is_in_no_snapshot(self) -> None:
        house = working(3, OFTEN)
        house.turn()
        house.clock.advance(1)
        assert len(house.snapshot_writer) == 0, "the commit is not done yet"
        house.writer.step()
        house.pass_time(0.02)
        assert house.broker.status()["snapshots_written"] == 1

    def test_many_things_are_captured_in_steps_each_at_its_own_place_in_the_log(self) -> None:
        house = working(STEP_THINGS, OFTEN)
        house.turn()
        for topic in ("late", "t0"):
            produce(house, topic, b"x")
            house.writer.step()
            house.turn()
        house.pass_time(0.05, step=0.005)
        written = chunks(house, 0)
        kinds = [chunk.kind for chunk in written]
        assert kinds == (
            [SNAPSHOT_META] + [SNAPSHOT_TOPIC, SNAPSHOT_GROUP_PARTITIONS] * STEP_THINGS
        )
        assert len({chunk.lsn for chunk in written}) > 1

    def test_work_between_the_steps_is_neither_lost_nor_done_twice(self) -> None:
        """Topics, groups and records that come while a snapshot is being taken."""
        house = working(STEP_THINGS, OFTEN)
        house.turn()
        for index in range(0, STEP_THINGS, 3):
            topic = f"t{index}"
            settle(house, 0, False, topic)
            produce(house, topic, b"2")
            lease(house, topic, limit=2)
            settle(house, 1, topic=topic)
            lease(house, topic, "new", limit=1)
            produce(house, f"new{index}", b"0")
            acknowledged(house)
            house.clock.advance(0.002)
            house.writer.step()
        house.run()
        house.pass_time(0.2)
        before = house.broker.status()["groups"]
        for group in before:
            group.pop("oldest_age_seconds")
        assert house.broker.status()["snapshots_written"] > 0
        house = house.crash()
        assert house.report.frames < 3 + STEP_THINGS // 3, "the snapshot was used"
        after = house.broker.status()["groups"]
        for group in after:
            group.pop("oldest_age_seconds")
        assert sorted(after, key=str) == sorted(before, key=str)
        [group_partition] = house.broker.topics.existing("t0").groups["g"].partitions
        assert [(lease.offset, lease.failures) for lease in group_partition.store.leases()] == [
            (0, 1)
        ]

    def test_a_topic_that_is_deleted_meanwhile_stands_in_it_as_deleted(self) -> None:
        house = working(3 * STEP_THINGS, NEVER)
        house.run()
        house.broker.snapshotter.begin()
        for name in ("t0", f"t{3 * STEP_THINGS - 1}"):
            house.broker.topics.delete(name)
        house.run()
        house.pass_time(0.2)
        of_first = [chunk.kind for chunk in chunks(house) if chunk.key.split(b"/")[0] == b"1"]
        of_last = [chunk.kind for chunk in chunks(house) if chunk.key.split(b"/")[0] == b"600"]
        assert of_first == of_last == [SNAPSHOT_DELETED_TOPIC]

    def test_a_crash_in_the_middle_costs_nothing(self) -> None:
        house = working(STEP_THINGS, OFTEN)
        house.turn()
        house.writer.step()
        house.clock.advance(0.01)
        house = house.crash()
        assert snapshots(house) == []
        assert house.broker.status()["topics"] == STEP_THINGS
        assert all(group["leased"] == 1 for group in house.broker.status()["groups"])

    def test_a_large_step_ends_when_its_time_is_over(self) -> None:
        house = working(50, NEVER)
        house.run()
        seconds = house.clock.seconds

        def slow() -> float:
            house.clock.rightNow += 0.001
            return seconds()

        house.clock.seconds = slow  # type: ignore[method-assign]
        frozen: list[int] = []
        snapshotter = house.broker.snapshotter
        add = snapshotter._add
        snapshotter._add = lambda thing: (frozen.append(1), add(thing))[1]  # type: ignore
        snapshotter.begin()
        assert 0 < len(frozen) < 50

    def test_a_finished_snapshot_is_left_as_it_is(self) -> None:
        """A timer of the taking may come after the writing."""
        house = House(settings=OFTEN)
        for _ in range(2):
            produce(house, "t", b"0")
            house.run()
        assert len(chunks(house)) == 2
        house.pass_time(0.02)
        assert len(chunks(house)) == 2
        assert house.crash().broker.topics.find("t") is not None

    def test_leases_and_delays_in_a_snapshot_go_on(self) -> None:
        house = House(settings=OFTEN)
        produce(house, "t", b"0", b"1")
        lease(house, seconds=50, limit=2)
        settle(house, 1, False, delay_seconds=20)
        acknowledged(house)
        house.run()
        house.pass_time(15)
        house = house.crash(settings=NEVER)
        house.pass_time(4)
        assert lease(house, owner="bob") == []
        house.pass_time(1.1)
        assert lease(house, owner="bob", limit=2) == [(1, b"1")]
        house.pass_time(45)
        assert lease(house, owner="bob") == [(0, b"0")]


def leased(house: House, topic: str = "t") -> dict[str, list[int]]:
    """The offsets leased of a topic, by group."""
    groups = house.broker.topics.existing(topic).groups
    return {
        name: [
            lease.offset
            for group_partition in group.partitions
            for lease in group_partition.store.leases()
        ]
        for name, group in groups.items()
    }


class TestSizes:
    """GroupPartitions share chunks, or have several."""

    def test_small_groups_share_a_chunk(self) -> None:
        house = House(settings=NEVER)
        produce(house, "t", b"0")
        names = [f"group-{number}" for number in range(50)]
        for name in names:
            lease(house, group=name)
        house.stop()
        assert [chunk.kind for chunk in chunks(house)] == [
            SNAPSHOT_META,
            SNAPSHOT_TOPIC,
            SNAPSHOT_GROUP_PARTITIONS,
        ]
        assert leased(house.again()) == {name: [0] for name in names}

    def test_a_shared_chunk_is_closed_when_it_is_large(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("brokerd.broker.model.snapshot_capture.CHUNK_BYTES", 1_000)
        house = House(settings=NEVER)
        produce(house, "t", b"0")
        names = [f"group-{number}" for number in range(50)]
        for name in names:
            lease(house, group=name)
        house.stop()
        sizes = [
            len(chunk.body) for chunk in chunks(house) if chunk.kind == SNAPSHOT_GROUP_PARTITIONS
        ]
        assert len(sizes) > 5
        assert max(sizes) < 1_200
        assert leased(house.again()) == {name: [0] for name in names}

    def test_a_large_group_partition_has_several_chunks_beside_groups_that_share_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("brokerd.broker.model.snapshot_capture.SHARED_BYTES", 1_000)
        count = 100
        house = House(settings=NEVER)
        produce(house, "t", *[b"x"] * count)
        for group in ("first", "large", "last"):
            lease(house, group=group, limit=count if group == "large" else 2)
        house.stop()
        written = [(chunk.kind, chunk.more) for chunk in chunks(house)][2:]
        of_large = [more for kind, more in written if kind == SNAPSHOT_GROUP_PARTITION]
        assert len(of_large) > 4 and of_large == [True] * (len(of_large) - 1) + [False]
        assert [kind for kind, _ in written if kind != SNAPSHOT_GROUP_PARTITION] == [
            SNAPSHOT_GROUP_PARTITIONS
        ]
        assert leased(house.again()) == {
            "first": [0, 1],
            "large": list(range(count)),
            "last": [0, 1],
        }

    def test_groups_copied_at_one_place_in_the_log_share_a_chunk_and_others_do_not(self) -> None:
        house = House(settings=NEVER)
        produce(house, "t", b"0", b"1")
        names = [f"group-{number}" for number in range(2 * STEP_THINGS)]
        for name in names:
            lease(house, group=name)
        acknowledged(house)
        house.broker.snapshotter.begin()
        for name in names:
            settle(house, 0, group=name)
            lease(house, group=name)
        house.run()
        house.pass_time(0.2)
        lsns = [chunk.lsn for chunk in chunks(house) if chunk.kind == SNAPSHOT_GROUP_PARTITIONS]
        assert len(set(lsns)) == len(lsns) > 1
        house = house.crash()
        assert house.report.frames > 0, "some of it is told by the log alone"
        assert leased(house) == {name: [1] for name in names}

    def test_group_partitions_of_older_versions_each_in_one_chunk_are_read(self) -> None:
        house = working(2, NEVER)
        topic = house.broker.topics.existing("t1")
        state = State(GroupSettings())
        topic_chunk = capture_topic(topic, 80)()
        fields = {
            "topic_id": topic.topic_id,
            "partition": 0,
            "group": "g",
            "time_us": 5,
            "store": b"".join(topic.groups["g"].partitions[0].store.freeze(7).encode()),
        }
        group_partition_chunk = SnapshotChunk(
            SNAPSHOT_GROUP_PARTITION, b"2/0/g", 80, msgpack.packb(fields)
        )
        state.load_all([topic_chunk, group_partition_chunk])
        [group_partition] = state.by_name["t1"].groups["g"].partitions
        assert [(lease.offset, lease.token) for lease in group_partition.store.leases()] == [(0, 1)]

    def test_reading_a_snapshot_makes_nothing_that_only_a_collection_would_free(self) -> None:
        """A start leaves the collector alone until the state is there."""
        house = House(settings=NEVER)
        produce(house, "t", b"0", b"1", b"2")
        for number in range(20):
            lease(house, group=f"group-{number}", limit=2)
            settle(house, 0, False, group=f"group-{number}")
        house.stop()
        written = chunks(house)
        state = State(GroupSettings())
        gc.collect()
        gc.disable()
        try:
            state.load_all(written)
            assert gc.collect() == 0
        finally:
            gc.enable()


class TestStopping:
    def test_a_clean_stop_leaves_nothing_to_replay(self) -> None:
        house = working(5, NEVER)
        house.stop()
        house = house.again()
        assert house.report.frames == 0
        assert house.broker.status()["topics"] == 5
        assert all(group["leased"] == 1 for group in house.broker.status()["groups"])

    def test_a_stop_in_the_middle_of_a_snapshot_writes_only_the_last_one(self) -> None:
        house = working(STEP_THINGS, OFTEN)
        house.turn()
        house.stop()
        assert len(snapshots(house)) == 1
        assert house.clock.getDelayedCalls() == []
        assert house.again().report.frames == 0

    def test_starting_and_stopping_without_work_changes_nothing(self) -> None:
        house = working(2, NEVER)
        for _ in range(4):
            house.stop()
            house = house.again()
        assert len(snapshots(house)) == 1
        assert house.broker.status()["topics"] == 2


class TestTrouble:
    def test_a_damaged_snapshot_is_passed_over_for_the_one_before(self) -> None:
        house = House(settings=OFTEN)
        for _ in range(3):
            produce(house, "t", b"x")
            lease(house)
            acknowledged(house)
            house.pass_time(0.2)
        older, newest = snapshots(house)[-2:]
        house.disk.crash()
        house.disk.content(f"{STATE_DIR}/{newest}")[100] ^= 1
        house = house.again(settings=NEVER)
        assert house.broker.status()["snapshot_lsn"] == int(older[:20])
        assert house.broker.overview.group_info("t", "g").leased == 3
        assert produce(house, "t", b"y") == [3]

    def test_without_any_good_snapshot_all_of_the_log_is_replayed(self) -> None:
        house = House(settings=OFTEN)
        for _ in range(3):
            produce(house, "t", b"x")
            lease(house)
            acknowledged(house)
            house.pass_time(0.2)
        house.disk.crash()
        for name in snapshots(house):
            house.disk.content(f"{STATE_DIR}/{name}")[60] ^= 1
        house = house.again(settings=NEVER)
        assert house.broker.status()["snapshot_lsn"] == 0
        assert house.broker.overview.group_info("t", "g").leased == 3

    @pytest.mark.parametrize("call", ["create", "pwrite", "sync", "rename"])
    def test_a_snapshot_that_cannot_be_written_is_told_and_the_next_one_is_tried(
        self, call: str
    ) -> None:
        house = House(settings=OFTEN)
        produce(house, "t", b"x")
        acknowledged(house)
        house.turn()
        house.writer.run()
        house.background.run()
        house.clock.advance(0.01)
        assert len(house.snapshot_writer) == 1
        house.disk.fail(call, error=errno.ENOSPC)
        house.snapshot_writer.step()
        status = house.broker.status()
        assert "No space" in status["snapshot_error"]
        assert not house.failures
        produce(house, "t", b"y")
        house.pass_time(0.2)
        status = house.broker.status()
        assert (status["snapshot_error"], status["snapshots_written"]) == (None, 1)
        house = house.crash()
        assert produce(house, "t", b"z") == [2]

    def test_the_time_of_a_snapshot_counts_when_the_wall_clock_went_back(self) -> None:
        house = working(1, NEVER)
        house.stop()
        house = house.again(wall_seconds=house.wall_seconds - 86_400)
        assert house.broker.time.time_us() >= 1_700_000_000 * SECOND_US
