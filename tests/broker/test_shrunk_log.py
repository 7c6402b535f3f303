"""What a start makes of a log that an archive let shrink, when it or its state is damaged."""

from __future__ import annotations

import pytest

from brokerd.archive.contract.bounds import Bounds, decode_bounds
from brokerd.errors import DamagedData
from brokerd.wal.damage.repair import repair
from brokerd.wal.damage.repair_plan import ActionKind, DataPaths, plan_repair
from brokerd.wal.damage.verify import verify
from simulator.directory.state_text import describe
from simulator.machine.bare import STATE_DIR, WAL_DIR
from tests.broker.desk import lease, produce
from tests.broker.shrinking import (
    KIB,
    CountedArchive,
    archive_all,
    fill,
    firsts,
    make,
    marks,
    segments,
    settings,
)
from tests.house import House


class TestDamage:
    """Damage to what is left of the log, when the archive has what came before."""

    def shrunk(self) -> tuple[House, int]:
        """A broker whose log has the newest records of one topic, and the first of them."""
        archive = CountedArchive()
        house = make(archive, settings=settings(200 * KIB, snapshot_interval_bytes=50 * KIB))
        fill(house, 600)
        lease(house, limit=3)
        house.run()
        archive_all(house, archive)
        first = firsts(house)[1, 0]
        assert 20 < first < 45
        house.disk.crash()
        return house, first

    def lose(self, house: House, name: str) -> None:
        for one in (name, name.replace(".wal", ".idx")):
            if one in house.disk.list(WAL_DIR):
                house.disk.unlink(f"{WAL_DIR}/{one}")
        house.disk.sync_directory(WAL_DIR)

    def group_partitions(self, house: House) -> list[str]:
        return [line for line in describe(house.broker) if line.startswith("  ")]

    @pytest.mark.parametrize("number", [0, 1])
    def test_what_is_archived_is_not_called_lost(self, number: int) -> None:
        house, first = self.shrunk()
        before = self.group_partitions(house)
        names = segments(house)
        self.lose(house, names[number])
        report = verify(house.disk.copy(), WAL_DIR, STATE_DIR)
        again = house.again(open_archive=None)
        for damages in (report.damages, again.report.damages):
            (damage,) = damages
            (lost,) = damage.lost
            assert lost[:2] == (1, 0)
            assert lost.first == first if number == 0 else lost.first > first
            assert lost.first < lost.end <= 60
        (partition,) = again.broker.topics.existing("t").partitions
        assert partition.gaps == [(lost.first, lost.end)]
        assert self.group_partitions(again) == [
            line.replace(f"lag {60 - 0}", f"lag {60 - (lost.end - lost.first)}") for line in before
        ]

    def test_snapshots_tell_it_of_a_topic_that_was_quiet_since(self) -> None:
        """What the log said of it is archived, too."""
        archive = CountedArchive()
        house = make(archive, settings=settings(200 * KIB, snapshot_interval_bytes=50 * KIB))
        fill(house, 300, "quiet", "t")
        archive_all(house, archive)
        (mark,) = marks(house)["quiet"]
        assert mark > 0
        fill(house, 600)
        archive_all(house, archive)
        (mark,) = marks(house)["quiet"]
        fill(house, 600)
        archive_all(house, archive)
        produce(house, "quiet", b"at last")
        house.run()
        house.disk.crash()
        self.lose(house, segments(house)[0])
        report = verify(house.disk.copy(), WAL_DIR, STATE_DIR)
        again = house.again(open_archive=None)
        assert marks(again)["quiet"] == [mark]
        for damages in (report.damages, again.report.damages):
            (damage,) = damages
            assert damage.lost
            assert all(lost.first >= mark for lost in damage.lost if lost.topic_id == 1)

    def test_a_repair_puts_no_archived_record_on_record_as_lost(self) -> None:
        house, first = self.shrunk()
        names = segments(house)
        rooms = DataPaths.of("/data")
        data = house.disk.content(f"{WAL_DIR}/{names[1]}")
        data[200] ^= 1
        data[9000] ^= 1
        plan = plan_repair(house.disk, rooms)
        recorded = [action for action in plan.actions if action.kind == ActionKind.RECORD]
        assert recorded
        assert all(lost.first >= first for action in recorded for lost in action.lost)
        repair(house.disk, rooms, plan, "20231114T221320Z", lambda count: b"\7" * count)
        again = house.again(open_archive=None)
        assert again.report.damages == []
        assert again.broker.context.state.recorded

    def test_an_archived_record_that_came_back_damaged_is_not_lost(self) -> None:
        """Somebody brought the segment back, and the archive has what cannot be read of it."""
        archive = CountedArchive()
        house = make(archive)
        fill(house, 600)
        house.run()
        old = house.disk.copy()
        name = segments(house)[0]
        archive_all(house, archive)
        house.disk.crash()
        data = bytearray(old.content(f"{WAL_DIR}/{name}"))
        data[20_000] ^= 1
        house.disk.create(f"{WAL_DIR}/{name}").pwrite(bytes(data), 0)
        house.disk.sync_directory(WAL_DIR)
        before = self.group_partitions(house)
        again = house.again(open_archive=None)
        assert self.group_partitions(again) == before
        assert all(damage.lost == [] for damage in again.report.damages)
        (partition,) = again.broker.topics.existing("t").partitions
        assert partition.gaps == []


class TestLostState:
    """All snapshots are lost, and the log that they stood for is in the archive."""

    def shrunk(self) -> House:
        archive = CountedArchive()
        house = make(archive)
        fill(house, 300, "t", "gone")
        produce(house, "t", b"last")
        house.run()
        archive_all(house, archive)
        house.stop()
        assert marks(house)["gone"][0] > 20
        return house

    def lose_snapshots(self, house: House, how: str) -> None:
        names = house.disk.list(STATE_DIR)
        snapshots = [name for name in names if name.endswith(".snap")]
        assert len(snapshots) == 2
        for name in snapshots if how == "flipped" else names:
            if how == "flipped":
                house.disk.content(f"{STATE_DIR}/{name}")[100] ^= 1
            else:
                house.disk.unlink(f"{STATE_DIR}/{name}")
        house.disk.sync_directory(STATE_DIR)

    @pytest.mark.parametrize("how", ["flipped", "deleted"])
    def test_a_start_is_refused_and_says_what_to_do(self, how: str) -> None:
        house = self.shrunk()
        whole = house.disk.copy()
        self.lose_snapshots(house, how)
        before = house.disk.files()
        with pytest.raises(DamagedData, match=r"Nothing was changed\. Bring back state/"):
            house.again()
        assert house.disk.files() == before
        for name in whole.list(STATE_DIR):
            if how == "deleted":
                house.disk.create(f"{STATE_DIR}/{name}")
            data = bytes(whole.content(f"{STATE_DIR}/{name}"))
            house.disk.content(f"{STATE_DIR}/{name}")[:] = data
        assert list(describe(house.again().broker)) == list(describe(house.broker))

    def test_after_a_repair_nothing_is_given_again_and_no_topic_passes_for_deleted(self) -> None:
        house = self.shrunk()
        before = house.broker.context.state.next_topic_id
        self.lose_snapshots(house, "flipped")
        rooms = DataPaths.of("/data")
        plan = plan_repair(house.disk, rooms)
        repair(house.disk, rooms, plan, "20231114T221320Z", lambda count: b"\7" * count)
        house = house.again()
        for name in ("new", "newer"):
            assert house.report.damages == []
            old = house.broker.context.state.partition(1, 0)
            assert old is None or old.next_offset >= 31
            new = house.broker.topics.create(name)
            assert new.topic_id >= before
            before = new.topic_id + 1
            assert published(house).next_topic_id == 1, "of no id it is known that it was deleted"
            house = house.crash()
        house.stop()
        assert published(house.again()).next_topic_id == 1

    def test_a_sound_log_knows_all_of_its_topics(self) -> None:
        assert published(self.shrunk().again()).next_topic_id == 3

    def wipe(self, house: House, name: str, number: int) -> House:
        """Damage the beginning of a frame, by its number in the segment, and start again."""
        data = house.disk.content(f"{WAL_DIR}/{name}")
        at = -1
        for _ in range(number):
            at = data.index(b"BKfr", at + 1)
        data[at : at + 120] = bytes(120)
        return house.again()

    def test_topics_that_a_snapshot_tells_of_are_known_whatever_the_log_lost(self) -> None:
        house = make(CountedArchive())
        for name in "abc":
            produce(house, name, b"0")
            house.run()
        house.stop()
        house = self.wipe(house, segments(house)[0], 2)
        assert house.report.damages
        assert published(house).next_topic_id == 4
        house.broker.topics.create("d")
        house.broker.topics.delete("d")
        house.pass_time(61, step=1)
        assert published(house).next_topic_id == 5

    def test_topics_that_are_newer_than_the_snapshot_may_be_lost(self) -> None:
        house = make(CountedArchive())
        for name in "abc":
            produce(house, name, b"0")
            house.run()
        house.stop()
        house = house.again()
        for name in "defg":
            produce(house, name, b"0")
            house.run()
        house.pass_time(1)
        house.disk.crash()
        house = self.wipe(house, segments(house)[1], 2)
        assert house.report.damages
        assert published(house).next_topic_id == 4
        assert house.broker.topics.create("new").topic_id >= 8


def published(house: House) -> Bounds:
    """What the broker has the archive's job know."""
    house.pass_time(2, step=0.5)
    file = house.disk.open(f"{STATE_DIR}/bounds")
    return decode_bounds(file.pread(file.size(), 0))
