"""Damage that is cured, or gets worse, while the broker is down: snapshots hide nothing of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from twisted.logger import LogEvent, capturedLogs

from brokerd.broker import BrokerSettings
from brokerd.wal import LostRange, WalOptions
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.damage.repair import repair
from brokerd.wal.damage.repair_plan import DataPaths, plan_repair
from brokerd.wal.damage.verify import verify
from brokerd.wal.read.scanner import ScanEntry, ScanFrame
from brokerd.walformat import EntryKind
from simulator.machine.bare import STATE_DIR as STATE_PATH
from simulator.machine.bare import WAL_DIR as WAL_PATH
from simulator.machine.bare import BareBroker
from simulator.machine.disk import SimDisk
from tests.broker.desk import lease, produce, settle
from tests.house import House

PATHS = DataPaths.of("/data")
SMALL = WalOptions(segment_bytes=64 << 10, free_bytes_min=0)
SIZE = 9_000
"""Of a value: a segment has some records, a batch each."""

READ_ALOT = BrokerSettings(tail_cache_bytes=0)
Cure = Callable[[SimDisk], None]


def value(offset: int) -> bytes:
    return b"%d" % offset + bytes(SIZE)


def fill(count: int = 40, **changes: Any) -> House:
    """A topic over several segments, one record a frame, and a group that settled the first."""
    house = House(options=SMALL, **changes)
    for offset in range(count):
        produce(house, "t", value(offset))
        house.run()
    [(offset, _)] = lease(house)
    settle(house, offset)
    house.pass_time(0.5)
    return house


def segments(disk: SimDisk) -> list[str]:
    return [name for name in disk.list(WAL_PATH) if name.endswith(".wal")]


def files(disk: SimDisk, path: str) -> list[str]:
    return [f"{path}/{name}" for name in disk.list(path)]


def put(disk: SimDisk, name: str, content: bytes) -> None:
    """Put a file in place, as an operator does while the broker is down."""
    path = f"{WAL_PATH}/{name}"
    if name in disk.list(WAL_PATH):
        disk.unlink(path)
    file = disk.create(path)
    file.pwrite(content, 0)
    file.sync()
    disk.sync_directory(WAL_PATH)


def take(disk: SimDisk, name: str) -> bytes:
    """Take a file away, and give its content."""
    content = bytes(disk.content(f"{WAL_PATH}/{name}"))
    disk.unlink(f"{WAL_PATH}/{name}")
    disk.sync_directory(WAL_PATH)
    return content


def batches(disk: SimDisk) -> dict[int, tuple[str, ScanFrame, ScanEntry]]:
    """Where the log has the batch with each base offset."""
    return {
        entry.header.base_offset: (name, found, entry)
        for name, found in scan_log(disk, WAL_PATH)
        if isinstance(found, ScanFrame)
        for entry in found.entries
        if entry.header.kind == EntryKind.RECORDS
    }


def event_entries(disk: SimDisk) -> list[tuple[str, ScanEntry]]:
    """Where the log has events of groups."""
    return [
        (name, entry)
        for name, found in scan_log(disk, WAL_PATH)
        if isinstance(found, ScanFrame)
        for entry in found.entries
        if entry.header.kind == EntryKind.GROUP_EVENTS
    ]


def flip(disk: SimDisk, *places: tuple[str, int]) -> Cure:
    """Flip bytes of the log; the cure flips them back."""

    def again(disk: SimDisk) -> None:
        for name, position in places:
            disk.flip(f"{WAL_PATH}/{name}", position, 0xFF)

    again(disk)
    return again


def lose_segments(disk: SimDisk, *numbers: int) -> Cure:
    """Segments are gone; the cure brings them back, without their indexes."""
    names = [segments(disk)[number] for number in numbers]
    contents = {name: take(disk, name) for name in names}

    def bring_back(disk: SimDisk) -> None:
        for name, content in contents.items():
            put(disk, name, content)

    return bring_back


def a_missing_segment(disk: SimDisk) -> Cure:
    return lose_segments(disk, 2)


def two_missing_segments(disk: SimDisk) -> Cure:
    return lose_segments(disk, 2, 3)


def a_missing_beginning(disk: SimDisk) -> Cure:
    return lose_segments(disk, 0, 1)


def a_missing_last_segment(disk: SimDisk) -> Cure:
    return lose_segments(disk, -1)


def a_cut_segment(disk: SimDisk) -> Cure:
    """The second half of a file is gone."""
    name = segments(disk)[2]
    content = take(disk, name)
    put(disk, name, content[: len(content) // 2])
    return lambda disk: put(disk, name, content)


def zeros(disk: SimDisk) -> Cure:
    """All of a file was lost but its size."""
    name = segments(disk)[2]
    content = take(disk, name)
    put(disk, name, bytes(len(content)))
    return lambda disk: put(disk, name, content)


def an_entry_header(disk: SimDisk) -> Cure:
    name, _, entry = batches(disk)[17]
    return flip(disk, (name, entry.position + 20))


def an_entry_body(disk: SimDisk) -> Cure:
    name, _, entry = batches(disk)[17]
    return flip(disk, (name, entry.position + 60))


def a_frame_and_its_entry(disk: SimDisk) -> Cure:
    name, frame, entry = batches(disk)[17]
    return flip(disk, (name, frame.position + 30), (name, entry.position + 20))


def the_last_batch(disk: SimDisk) -> Cure:
    name, frame, entry = batches(disk)[39]
    return flip(disk, (name, frame.position + 30), (name, entry.position + 20))


def the_topic(disk: SimDisk) -> Cure:
    """The entry that made the topic, and gave it its name."""
    return flip(disk, (segments(disk)[0], 4096 + 64 + 20))


EVERY_DAMAGE = [
    a_missing_segment,
    two_missing_segments,
    a_missing_beginning,
    a_missing_last_segment,
    a_cut_segment,
    zeros,
    an_entry_header,
    an_entry_body,
    a_frame_and_its_entry,
    the_last_batch,
    the_topic,
]


class Seen(NamedTuple):
    """What clients can see of a broker."""

    names: list[str]
    ends: list[int]
    known: list[dict[int, bytes]]
    """What the group of before gets of each topic."""
    new: list[dict[int, bytes]]
    """What a new group gets."""


def look(disk: SimDisk, snapshots: bool = True) -> Seen:
    """What a broker that starts on the disk shows; the disk stays as it is."""
    disk = disk.copy()
    if not snapshots:
        for path in files(disk, STATE_PATH):
            disk.unlink(path)
    bare = BareBroker(disk, SMALL, random.Random(9).randbytes, READ_ALOT)
    topics = list(bare.broker.topics.all())

    def drained(name: str, group: str) -> dict[int, bytes]:
        found, complaints = bare.drain(name, group)
        assert complaints == []
        return {offset: record.value for (_, offset), record in found.items()}

    return Seen(
        [topic.name for topic in topics],
        [topic.partitions[0].next_offset for topic in topics],
        [drained(topic.name, "g") for topic in topics],
        [drained(topic.name, "new") for topic in topics],
    )


def values(*offsets: int) -> dict[int, bytes]:
    return {offset: value(offset) for offset in offsets}


def events(logs: list[LogEvent], event_id: str) -> list[LogEvent]:
    return [event for event in logs if event.get("event_id") == event_id]


def stopped(house: House) -> SimDisk:
    house.stop()
    return house.disk


def killed(house: House) -> SimDisk:
    house.run()
    house.disk.crash()
    return house.disk


@pytest.fixture(scope="module")
def sound() -> dict[bool, SimDisk]:
    """A directory without damage, by whether its broker was stopped cleanly."""
    return {True: stopped(fill()), False: killed(fill())}


def served_with(disk: SimDisk, clean: bool = True) -> SimDisk:
    """Start a broker on a damaged directory, and stop it."""
    house = House(disk, options=SMALL)
    house.pass_time(0.5)
    return stopped(house) if clean else killed(house)


ends = pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
kinds = pytest.mark.parametrize("damage", EVERY_DAMAGE, ids=lambda one: one.__name__)


@ends
@kinds
class TestCured:
    def test_every_group_gets_every_record(
        self, sound: dict[bool, SimDisk], damage: Callable[[SimDisk], Cure], clean: bool
    ) -> None:
        """Whether the broker that met the damage was stopped or killed."""
        disk = sound[False].copy()
        expected = look(disk)
        assert expected.new == [values(*range(40))]
        assert expected.known == [values(*range(1, 40))]
        cure = damage(disk)
        disk = served_with(disk, clean)
        assert look(disk) != expected
        cure(disk)
        seen = look(disk)
        assert seen == look(disk, snapshots=False)
        assert (seen.names, seen.known, seen.new) == expected[:1] + expected[2:]

    def test_records_of_the_time_in_between_come_too(
        self, sound: dict[bool, SimDisk], damage: Callable[[SimDisk], Cure], clean: bool
    ) -> None:
        # Without a snapshot nothing tells that the last segment was ever there.
        disk = sound[clean or damage is a_missing_last_segment].copy()
        cure = damage(disk)
        house = House(disk, options=SMALL)
        [offset] = produce(house, "t", b"later")
        house.pass_time(0.5)
        disk = stopped(house)
        cure(disk)
        seen = look(disk)
        assert seen == look(disk, snapshots=False)
        found = [(at, found) for new in seen.new for at, found in sorted(new.items())]
        assert [one for one in found if one != (offset, b"later")] == [*values(*range(40)).items()]
        assert (offset, b"later") in found

    def test_a_start_after_the_cure_is_as_sound_as_before(
        self, sound: dict[bool, SimDisk], damage: Callable[[SimDisk], Cure], clean: bool
    ) -> None:
        """Nothing is told as damaged, verify agrees, and the next start is quick again."""
        disk = sound[clean].copy()
        cure = damage(disk)
        disk = served_with(disk)
        cure(disk)
        house = House(disk, options=SMALL)
        assert house.report.damages == []
        assert house.broker.damage.reason == ""
        disk = stopped(house)
        report = verify(disk, WAL_PATH, STATE_PATH)
        assert report.sound, (report.damages, report.bad_indexes, report.bad_snapshots)
        with capturedLogs() as logs:
            house = House(disk, options=SMALL)
        assert house.report.frames == 0
        assert events(logs, "snapshot-outdated") == []


@kinds
class TestStays:
    def test_damage_that_stays_costs_no_start_a_replay(
        self, sound: dict[bool, SimDisk], damage: Callable[[SimDisk], Cure]
    ) -> None:
        disk = sound[False].copy()
        cure = damage(disk)
        disk = served_with(disk)
        seen = look(disk)
        for _ in range(3):
            with capturedLogs() as logs:
                house = House(disk, options=SMALL)
            assert house.report.frames == 0
            assert events(logs, "snapshot-outdated") == []
            disk = stopped(house)
            assert look(disk) == seen
        cure(disk)
        assert look(disk) == look(disk, snapshots=False) != seen


@ends
class TestEventsThatCannotFollow:
    """What a broker did while events were lost may contradict them once they are back."""

    @pytest.mark.parametrize("repaired", [False, True], ids=["", "after a repair"])
    def test_an_event_of_the_time_in_between_is_passed_over(
        self, clean: bool, repaired: bool
    ) -> None:
        """A settle is lost, the lease it ended lapses, and then the settle comes back."""
        house = House()
        produce(house, "t", b"0", b"1")
        house.run()
        lease(house, seconds=1)
        house.run()
        settle(house, 0)
        house.run()
        house.pass_time(0.5)
        disk = killed(house)
        name, entry = event_entries(disk)[-1]
        cure = flip(disk, (name, entry.position + 60))
        if repaired:
            mend(disk)
        house = House(disk)
        house.pass_time(3)
        assert [offset for offset, _ in lease(house)] == [0], "the lease lapsed"
        settle(house, 0)
        house.pass_time(0.5)
        disk = stopped(house) if clean else killed(house)
        cure(disk)
        with capturedLogs() as logs:
            house = House(disk)
        assert len(events(logs, "event-passed-over")) == 1
        assert house.report.damages == []
        assert lease(house) == [(1, b"1")]
        for _ in range(2):
            house.disk.crash()
            house = House(house.disk)

    def test_a_topic_that_was_made_again_keeps_its_name(self, clean: bool) -> None:
        disk = killed(fill(3))
        cure = the_topic(disk)
        house = House(disk, options=SMALL)
        produce(house, "t", b"again")
        house.pass_time(0.5)
        disk = stopped(house) if clean else killed(house)
        cure(disk)
        seen = look(disk)
        assert seen == look(disk, snapshots=False)
        assert seen.new == [values(0, 1, 2), {0: b"again"}]
        assert seen.names == ["lost-topic-1", "t"]


def mend(disk: SimDisk) -> None:
    plan = plan_repair(disk, PATHS)
    assert plan.actions
    repair(disk, PATHS, plan, "20231114T221320Z", random.Random(5).randbytes)
    assert verify(disk, WAL_PATH, STATE_PATH).sound


@ends
@pytest.mark.parametrize("started", [True, False], ids=["started on", "not started on"])
@kinds
class TestCuredAfterARepair:
    """What a repair gave up counts as long as the place is as it was put on record."""

    def test_every_group_gets_every_record(
        self,
        sound: dict[bool, SimDisk],
        damage: Callable[[SimDisk], Cure],
        started: bool,
        clean: bool,
    ) -> None:
        """Whatever lies between: snapshots before and after the repair, or none."""
        disk = sound[clean or damage is a_missing_last_segment].copy()
        expected = look(disk)
        cure = damage(disk)
        mend(disk)
        given_up = look(disk)
        assert given_up.new != expected.new or damage is the_topic
        if started:
            disk = served_with(disk, clean)
            assert look(disk) == given_up
        cure(disk)
        seen = look(disk)
        assert seen == look(disk, snapshots=False)
        assert (seen.names, seen.known, seen.new) == expected[:1] + expected[2:]
        assert verify(disk, WAL_PATH, STATE_PATH).damages == []
        disk = served_with(disk)
        with capturedLogs() as logs:
            assert look(disk) == seen
        assert events(logs, "snapshot-outdated") == []
        assert verify(disk, WAL_PATH, STATE_PATH).sound

    def test_nothing_is_told_of_it_any_more(
        self,
        sound: dict[bool, SimDisk],
        damage: Callable[[SimDisk], Cure],
        started: bool,
        clean: bool,
    ) -> None:
        disk = sound[clean or damage is a_missing_last_segment].copy()
        cure = damage(disk)
        mend(disk)
        if started:
            disk = served_with(disk, clean)
        cure(disk)
        status = House(disk, options=SMALL).broker.status()["damage"]
        assert (status["degraded"], status["recorded_places"]) == ("", 0)


class TestPartly:
    """Some of what was damaged is cured, some is not, some gets worse."""

    def test_one_of_two_missing_segments_that_a_repair_gave_up_comes_back(
        self, sound: dict[bool, SimDisk]
    ) -> None:
        disk = sound[True].copy()
        names = segments(disk)[2:4]
        contents = [take(disk, name) for name in names]
        mend(disk)
        disk = served_with(disk)
        lost = set(range(40)) - look(disk).new[0].keys()
        put(disk, names[0], contents[0])
        seen = look(disk)
        assert seen == look(disk, snapshots=False)
        missing = set(range(40)) - seen.new[0].keys()
        assert missing and missing < lost
        assert len(House(disk.copy(), options=SMALL).report.damages) == 1
        put(disk, names[1], contents[1])
        assert look(disk).new == [values(*range(40))]

    def test_one_of_two_places_in_a_segment_is_cured(self, sound: dict[bool, SimDisk]) -> None:
        """The index was made when both were damaged: it takes in the one and keeps the other."""
        disk = sound[False].copy()
        where = batches(disk)
        (name, _, one), (_, _, other) = where[15], where[17]
        assert where[17][0] == name
        cure = flip(disk, (name, one.position + 20))
        cure_other = flip(disk, (name, other.position + 20))
        for path in files(disk, WAL_PATH):
            if path.endswith(".idx"):
                disk.unlink(path)
        disk = served_with(disk)
        cure(disk)
        seen = look(disk)
        assert seen == look(disk, snapshots=False)
        assert seen.new == [values(*set(range(40)) - {17})]
        disk = served_with(disk)
        cure_other(disk)
        assert look(disk).new == [values(*range(40))]

    @pytest.mark.parametrize(
        ("with_repair", "clean"), [(False, False), (True, False), (True, True)]
    )
    def test_a_place_that_got_worse_is_told_as_new_damage(
        self, sound: dict[bool, SimDisk], with_repair: bool, clean: bool
    ) -> None:
        """Also if a snapshot of before the damage needs nothing of the place."""
        disk = sound[clean].copy()
        name, _, entry = batches(disk)[17]
        flip(disk, (name, entry.position + 60))
        if with_repair:
            mend(disk)
        disk = served_with(disk)
        flip(disk, (name, entry.position + 20))
        with capturedLogs() as logs:
            house = House(disk.copy(), options=SMALL)
        assert len(events(logs, "snapshot-outdated")) == 1
        assert len(house.report.damages) == 1
        assert house.broker.damage.reason
        seen = look(disk)
        assert seen == look(disk, snapshots=False) or clean
        assert seen.new == [values(*set(range(40)) - {17})]
        assert seen.ends[0] >= 40

    def test_what_an_index_tells_of_a_place_that_is_still_damaged_is_kept(
        self, sound: dict[bool, SimDisk]
    ) -> None:
        """It is made again for the sake of another place."""
        disk = sound[False].copy()
        where = batches(disk)
        (name, _, one), (_, frame, other) = where[37], where[39]
        assert where[39][0] == name
        cure = flip(disk, (name, one.position + 20))
        disk = served_with(disk, clean=False)
        flip(disk, (name, frame.position + 30), (name, other.position + 20))
        cure(disk)
        for _ in range(2):
            house = House(disk, options=SMALL)
            [damage] = house.report.damages
            assert damage.lost == [LostRange(1, 0, 39, 40)]
            disk = killed(house)
        assert look(disk).new == [values(*range(39))]

    def test_an_outdated_snapshot_still_knows_how_far_the_log_had_got(
        self, sound: dict[bool, SimDisk]
    ) -> None:
        """One place is cured, and the end of the log is gone."""
        disk = sound[False].copy()
        cure = an_entry_header(disk)
        disk = served_with(disk)
        cure(disk)
        name = batches(disk)[39][0]
        for path in files(disk, WAL_PATH):
            if path >= f"{WAL_PATH}/{name[:20]}":
                disk.unlink(path)
        house = House(disk, options=SMALL)
        assert len(house.report.damages) == 1
        [offset] = produce(house, "t", b"later")
        assert offset >= 40

    def test_a_header_block_that_a_repair_wrote_again_outdates_nothing(
        self, sound: dict[bool, SimDisk]
    ) -> None:
        """It tells nothing that the frames do not tell."""
        disk = sound[False].copy()
        flip(disk, (segments(disk)[1], 20))
        disk = served_with(disk)
        mend(disk)
        with capturedLogs() as logs:
            House(disk, options=SMALL)
        assert events(logs, "snapshot-outdated") == []

    def test_an_older_snapshot_that_does_not_know_the_damage_is_used(
        self, sound: dict[bool, SimDisk]
    ) -> None:
        house = House(sound[True].copy(), options=SMALL)
        assert house.report.frames == 0
        for offset in range(40, 60):
            produce(house, "t", value(offset))
            house.run()
        house.pass_time(0.5)
        disk = killed(house)
        name, _, entry = batches(disk)[50]
        cure = flip(disk, (name, entry.position + 20))
        disk = served_with(disk)
        cure(disk)
        house = House(disk.copy(), options=SMALL)
        assert 20 <= house.report.frames < 40
        assert look(disk) == look(disk, snapshots=False)
        assert look(disk).new == [values(*range(60))]


def test_a_missing_end_is_the_same_after_the_start_that_cut_the_file() -> None:
    """Zeros where a snapshot knows frames, in a file that was not trimmed yet."""
    disk = killed(fill(settings=BrokerSettings(snapshot_interval_bytes=1)))
    name, frame, _ = batches(disk)[39]
    content = take(disk, name)
    put(disk, name, content[: frame.position] + bytes(len(content) - frame.position))
    house = House(disk, options=SMALL)
    assert len(house.report.damages) == 1
    disk = stopped(house)
    with capturedLogs() as logs:
        assert House(disk, options=SMALL).report.frames == 0
    assert events(logs, "snapshot-outdated") == []


def test_damaged_bytes_that_the_disk_refuses_to_read_are_not_taken_for_cured(
    sound: dict[bool, SimDisk],
) -> None:
    """A start that needs none of them does not fail for them."""
    disk = sound[False].copy()
    an_entry_header(disk)
    name, frame, _ = batches(sound[False])[17]
    disk = served_with(disk)
    disk.spoil(f"{WAL_PATH}/{name}", frame.position, frame.header.length)
    assert House(disk, options=SMALL).report.frames == 0


def test_the_operator_is_told_which_place_outdated_a_snapshot(sound: dict[bool, SimDisk]) -> None:
    disk = sound[False].copy()
    cure = an_entry_header(disk)
    disk = served_with(disk)
    cure(disk)
    name, frame, _ = batches(disk)[17]
    with capturedLogs() as logs:
        House(disk, options=SMALL)
    [event] = events(logs, "snapshot-outdated")
    assert event["name"].endswith(".snap")
    assert event["problem"] == f"{name} at {frame.position} is not damaged as it was then"
