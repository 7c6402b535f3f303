"""A broker on a repaired directory: nothing sound is missing, nothing lost is waited for."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from prometheus_client import generate_latest

from brokerd.admin.metrics import make_registry
from brokerd.broker.model.state import State
from brokerd.broker.model.topic_entries import topic_created_entry
from brokerd.broker.model.topics import Topic
from brokerd.errors import DamagedData, UnknownOffset
from brokerd.groups import GroupSettings
from brokerd.wal import Frame, LostRange, RecoveryReport
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.damage.repair import repair
from brokerd.wal.damage.repair_plan import DataPaths, plan_repair
from brokerd.wal.damage.verify import verify
from brokerd.wal.read.scanner import ScanEntry, ScanFrame
from brokerd.wal.recovery.loss_records import Loss, encode_loss
from brokerd.walformat import Entry, EntryKind, EventKind, decode_group_events
from simulator.machine.bare import STATE_DIR, WAL_DIR
from simulator.machine.disk import SimDisk
from tests.broker.desk import lease, produce, read, settle
from tests.house import House

PATHS = DataPaths.of("/data")
Hit = Callable[[Entry | None], bool]


def batch(base_offset: int, topic_id: int = 1) -> Hit:
    return lambda entry: (
        entry is not None and entry[:4] == (EntryKind.RECORDS, topic_id, 0, base_offset)
    )


def kind(which: EntryKind) -> Hit:
    return lambda entry: entry is not None and entry.kind == which


def is_lease_of(offset: int) -> Hit:
    def hit(entry: Entry | None) -> bool:
        if entry is None or entry.kind != EntryKind.GROUP_EVENTS:
            return False
        _, events = decode_group_events(entry.body, entry.count)
        return any(event[:2] == (EventKind.LEASED, offset) for event in events)

    return hit


def places(disk: SimDisk, hit: Hit) -> list[tuple[str, ScanFrame, ScanEntry]]:
    return [
        (name, found, entry)
        for name, found in scan_log(disk, WAL_DIR)
        if isinstance(found, ScanFrame)
        for entry in found.entries
        if hit(entry.entry)
    ]


def rot(disk: SimDisk, hit: Hit, frame: bool = False) -> None:
    """Damage the bodies of entries, or their headers and those of their frames."""
    found = places(disk, hit)
    assert found, "there is nothing to damage"
    for name, in_frame, entry in found:
        for position in (
            (in_frame.position + 30, entry.position + 20) if frame else (entry.position + 48,)
        ):
            disk.flip(f"{WAL_DIR}/{name}", position, 0xFF)


def mend(disk: SimDisk) -> None:
    plan = plan_repair(disk, PATHS)
    assert plan.actions
    repair(disk, PATHS, plan, "20231114T221320Z", random.Random(5).randbytes)
    assert verify(disk, WAL_DIR, STATE_DIR).sound


def drain(house: House, group: str) -> list[tuple[int, bytes]]:
    found = []
    while more := lease(house, group=group, limit=9):
        found += more
    return found


def lag(house: House, group: str) -> int:
    return house.broker.overview.group_info("t", group).lag


def busy(count: int = 8) -> House:
    """A topic with a record a frame, and a group that has settled the first of them."""
    house = House()
    for number in range(count):
        produce(house, "t", b"%d" % number)
        house.run()
    assert lease(house) == [(0, b"0")]
    settle(house, 0)
    house.run()
    house.pass_time(0.5)
    return house


@pytest.mark.parametrize("clean", [False, True], ids=["after a crash", "after a clean stop"])
@pytest.mark.parametrize("frame", [False, True], ids=["a body", "all headers"])
class TestOneRecord:
    def repaired(self, clean: bool, frame: bool) -> House:
        house = busy()
        if clean:
            house.stop()
        house.disk.crash()
        rot(house.disk, batch(3), frame)
        mend(house.disk)
        return house.again()

    def test_a_start_has_nothing_to_report(self, clean: bool, frame: bool) -> None:
        house = self.repaired(clean, frame)
        assert house.report.damages == []
        assert house.broker.damage.reason == ""

    def test_a_known_group_gets_every_sound_record_and_no_more(
        self, clean: bool, frame: bool
    ) -> None:
        house = self.repaired(clean, frame)
        assert lag(house, "g") == 6
        assert drain(house, "g") == [(n, b"%d" % n) for n in (1, 2, 4, 5, 6, 7)]
        assert list(house.broker.leases.dead_letters("t", "g")) == []

    def test_and_so_does_a_new_one(self, clean: bool, frame: bool) -> None:
        house = self.repaired(clean, frame)
        assert drain(house, "new") == [(n, b"%d" % n) for n in (0, 1, 2, 4, 5, 6, 7)]

    def test_offsets_go_on(self, clean: bool, frame: bool) -> None:
        house = self.repaired(clean, frame)
        assert produce(house, "t", b"8") == [8]
        house.run()
        assert [read(house, "t", n).value for n in (2, 4, 8)] == [b"2", b"4", b"8"]

    @pytest.mark.parametrize("end", [House.crash, lambda house: (house.stop(), house.again())[1]])
    def test_it_stays_so_after_more_starts(
        self, clean: bool, frame: bool, end: Callable[[House], House]
    ) -> None:
        house = self.repaired(clean, frame)
        house.run()
        for _ in range(3):
            house = end(house)
            assert house.report.damages == []
            assert lag(house, "g") == 6
            assert produce(house, "t", b"") == [8]
            house.disk.crash()
            house = house.again()
        assert drain(house, "new")[3][0] == 4


class TestWhatIsTold:
    """A repaired broker is not degraded, and its loss is not forgotten."""

    def repaired(self) -> House:
        house = busy()
        house.disk.crash()
        rot(house.disk, batch(3))
        mend(house.disk)
        return house.again()

    @pytest.mark.parametrize("starts", [0, 1, 3])
    def test_the_status_tells_what_is_on_record_at_every_later_start(self, starts: int) -> None:
        """Also when snapshots have made the record unnecessary."""
        house = self.repaired()
        for _ in range(starts):
            produce(house, "u", b"x")
            house.run()
            house.stop()
            house = house.again()
        damage = house.broker.status()["damage"]
        assert (damage["degraded"], damage["places"], damage["records"]) == ("", 0, 0)
        assert (damage["recorded_places"], damage["recorded_records"]) == (1, 1)
        [shown] = damage["recorded"]
        assert shown["lost"] == [{"topic": "t", "partition": 0, "first": 3, "last": 3}]
        assert shown["file"].endswith(".wal") and shown["position"] < shown["end"]
        json.dumps(damage)

    def test_metrics_tell_it(self) -> None:
        house = self.repaired()
        text = generate_latest(make_registry(house.broker.status())).decode()
        assert "brokerd_recorded_damages 1.0" in text
        assert "brokerd_recorded_lost_records 1.0" in text

    def test_a_read_of_a_record_on_record_is_no_news(self) -> None:
        house = self.repaired()
        with pytest.raises(DamagedData):
            read(house, "t", 3)
        damage = house.broker.status()["damage"]
        assert (damage["degraded"], damage["reads"], damage["records"]) == ("", 1, 0)

    def test_new_damage_beside_it_is_news(self) -> None:
        house = self.repaired()
        house.disk.crash()
        rot(house.disk, batch(4))
        house = house.again()
        damage = house.broker.status()["damage"]
        assert damage["degraded"] and (damage["places"], damage["recorded_places"]) == (1, 1)
        rot(house.disk, batch(6))
        for offset in (3, 4, 6):
            with pytest.raises(DamagedData):
                read(house, "t", offset)
        assert house.broker.status()["damage"]["places"] == 2


def test_the_last_record_is_lost_and_its_offset_is_not_given_again() -> None:
    house = busy()
    house.disk.crash()
    rot(house.disk, batch(7))
    mend(house.disk)
    house = house.again()
    assert lag(house, "g") == 6
    assert produce(house, "t", b"new") == [8]


def test_offsets_that_a_lost_frame_may_have_held_are_not_given_again() -> None:
    house = busy()
    house.disk.crash()
    for offset in (6, 7):
        rot(house.disk, batch(offset), frame=True)
    expected = house.disk.copy()
    mend(house.disk)
    house, unrepaired = house.again(), house.again(disk=expected)
    [offset] = produce(house, "t", b"new")
    assert offset > 7
    assert [offset] == produce(unrepaired, "t", b"new")
    assert lag(house, "g") == 6
    house.run()
    assert read(house.crash(), "t", offset).value == b"new"


def test_damage_that_a_broker_started_on_before_is_repaired_as_well() -> None:
    house = busy()
    house.disk.crash()
    rot(house.disk, batch(7), frame=True)
    house = house.again()
    [offset] = produce(house, "t", b"new")
    house.run()
    house = house.crash()
    [next_offset] = produce(house, "t", b"newer")
    house.run()
    house.disk.crash()
    mend(house.disk)
    house = house.again()
    assert [value for _, value in drain(house, "g")][-2:] == [b"new", b"newer"]
    assert produce(house, "t", b"newest") == [next_offset + 1]
    assert next_offset == offset + 1


def test_a_lost_name_of_a_topic_is_as_lost_as_before_the_repair() -> None:
    house = busy()
    house.disk.crash()
    rot(house.disk, kind(EntryKind.TOPIC))
    mend(house.disk)
    house = house.again()
    assert house.report.damages == []
    assert [topic.name for topic in house.broker.topics.all()] == ["lost-topic-1"]
    assert read(house, "lost-topic-1", 5).value == b"5"


def test_events_that_contradict_what_is_left_do_not_stop_the_start() -> None:
    """A lease is lost, and what ended it is not."""
    house = busy()
    lease(house, owner="bob", seconds=1)
    house.run()
    house.pass_time(3)
    house.disk.crash()
    name, _, entry = next(place for place in places(house.disk, is_lease_of(1)))
    house.disk.flip(f"{WAL_DIR}/{name}", entry.position + 48, 0xFF)
    mend(house.disk)
    house = house.again()
    assert house.report.damages == []
    assert lag(house, "g") == 7


def test_offsets_on_record_as_lost_are_not_given_again_whatever_else_is_known() -> None:
    """The record alone is enough."""
    state = State(GroupSettings())
    loss = Loss("a.wal", 4096, 5000, 7, "rot", [LostRange(1, 0, 3, 9)])
    state.begin_replay(0, 0)
    topic = topic_created_entry(Topic(1, "t", 1))
    state.apply(Frame(4096, 4200, 0, [topic, encode_loss(loss)]))
    state.end_replay(RecoveryReport())
    assert state.by_name["t"].partitions[0].next_offset == 9


def test_a_repaired_log_that_loses_its_snapshots_is_read_from_the_beginning() -> None:
    house = busy()
    house.stop()
    rot(house.disk, batch(3))
    mend(house.disk)
    for name in house.disk.list(STATE_DIR):
        house.disk.unlink(f"{STATE_DIR}/{name}")
    house = house.again()
    assert house.report.damages == [] and len(house.report.recorded) == 1
    assert [offset for offset, _ in drain(house, "g")] == [1, 2, 4, 5, 6, 7]
    with pytest.raises(UnknownOffset):
        house.broker.leases.group_partition("t", "g", 0, 8)


@pytest.mark.parametrize("seed", range(30))
def test_a_repair_changes_nothing_of_what_a_broker_makes_of_the_log(seed: int) -> None:
    """The same offsets go on, the same records can be read, with a repair and without."""
    dice = random.Random(seed)
    house = busy(12)
    if dice.random() < 0.5:
        house.stop()
        house = house.again()
        produce(house, "t", b"after")
        house.run()
    house.disk.crash()
    for _ in range(dice.randrange(1, 5)):
        path = f"{WAL_DIR}/{dice.choice([n for n in house.disk.list(WAL_DIR) if '.wal' in n])}"
        size = len(house.disk.content(path).rstrip(b"\0"))
        house.disk.flip(path, dice.randrange(size), dice.randrange(1, 256))
    mended = house.disk.copy()
    if not plan_repair(mended, PATHS).actions:
        return
    mend(mended)
    before, after = house.again(), house.again(disk=mended)
    assert after.report.damages == []
    for old, new in zip(before.broker.topics.all(), after.broker.topics.all(), strict=True):
        assert (old.topic_id, old.name) == (new.topic_id, new.name)
        assert old.partitions[0].next_offset == new.partitions[0].next_offset
    assert readable(before) == readable(after)


def readable(house: House) -> dict[tuple[str, int], bytes]:
    found = {}
    for topic in house.broker.topics.all():
        for offset in range(20):
            plan = house.wal.plan_read(topic.topic_id, 0, offset, 1)
            try:
                batches = plan.run() if plan is not None else []
            except DamagedData:
                continue
            if batches:
                found[topic.name, offset] = batches[0].body
    return found


class TestASegmentIsGone:
    """A repair of a log that lost a whole file, and every start after it."""

    def harmed(self, which: int) -> House:
        """Records in three segments, stopped cleanly; one file is gone."""
        house = busy(4)
        for number in range(4, 12, 4):
            house.stop()
            house = house.again()
            for value in range(number, number + 4):
                produce(house, "t", b"%d" % value)
                house.run()
        house.stop()
        names = [name for name in house.disk.list(WAL_DIR) if name.endswith(".wal")]
        house.disk.unlink(f"{WAL_DIR}/{sorted(names)[which]}")
        return house

    def test_the_repair_names_the_records_that_only_the_snapshot_knows(self) -> None:
        house = self.harmed(-1)
        plan = plan_repair(house.disk, PATHS)
        assert [action.lost for action in plan.actions] == [(LostRange(1, 0, 8, 12),)]
        mend(house.disk)
        assert house.again().broker.status()["damage"]["recorded_records"] == 4

    def test_no_group_waits_for_the_end_that_is_gone(self) -> None:
        house = self.harmed(-1)
        mend(house.disk)
        house = house.again()
        for group in ("new", "newer"):
            assert [offset for offset, _ in drain(house, group)] == list(range(8))
            assert list(house.broker.leases.dead_letters("t", group)) == []
        assert lag(house, "g") == 7
        house.stop()
        house = house.again()
        assert [offset for offset, _ in drain(house, "late")] == list(range(8))
        assert produce(house, "t", b"") == [12]
        assert house.broker.status()["damage"]["degraded"] == ""

    def test_nor_when_the_snapshots_go_after_the_repair(self) -> None:
        house = self.harmed(-1)
        mend(house.disk)
        for name in house.disk.list(STATE_DIR):
            house.disk.unlink(f"{STATE_DIR}/{name}")
        house = house.again()
        assert [offset for offset, _ in drain(house, "new")] == list(range(8))
        assert list(house.broker.leases.dead_letters("t", "new")) == []
        assert produce(house, "t", b"")[0] >= 12

    @pytest.mark.parametrize("which", [0, 1, -1], ids=["the first", "the middle", "the last"])
    def test_it_stays_on_record_however_new_the_snapshot_is(self, which: int) -> None:
        house = self.harmed(which)
        mend(house.disk)
        for _ in range(4):
            house = house.again()
            damage = house.broker.status()["damage"]
            assert (damage["degraded"], damage["recorded_places"]) == ("", 1)
            produce(house, "t", b"more")
            house.run()
            house.stop()
        assert verify(house.disk, WAL_DIR, STATE_DIR).sound
