"""Verify says what is damaged, by file, position and offsets, and changes nothing."""

from __future__ import annotations

import errno
import random
from typing import Any

import msgpack
import pytest

from brokerd.errors import NewerFormat
from brokerd.wal import SNAPSHOT_TOPIC, SnapshotChunk, Snapshots
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.damage.verify import VerifyReport, verify
from brokerd.wal.read.scanner import ScanFrame, ScanGap
from brokerd.walformat import Entry, EntryKind
from brokerd.walformat.index import FileIndex, MemoryIndex
from simulator.machine.disk import Call, SimDisk
from tests.wal.rig import PATH, Rig, content, events, records

STATE = "data/state"


def log(frames: int = 40) -> SimDisk:
    rig = Rig()
    for offset in range(frames):
        rig.put(records(offset, size=4000), events(offset))
    Snapshots(rig.disk, STATE, lambda n: bytes(n)).write(8, [SnapshotChunk(1, b"k", 8, b"a body")])
    return rig.disk.copy()


def check(disk: SimDisk) -> VerifyReport:
    before = disk.files()
    report = verify(disk, PATH, STATE)
    assert disk.files() == before
    return report


def test_a_sound_log_is_counted() -> None:
    report = check(log())
    assert report.sound and report.torn is None
    assert (report.frames, report.entries, report.records) == (40, 80, 40)
    assert (report.segments, report.indexes, report.snapshots) == (3, 2, 1)


def test_a_topic_entry_behind_another_kind_is_named_and_is_no_damage() -> None:
    """Earlier versions wrote PRODUCER entries before those of topics."""
    rig = Rig()
    topic = Entry(EntryKind.TOPIC, 2, 0, 0, 0, msgpack.packb({"op": "created", "name": "t"}))
    producer = Entry(EntryKind.PRODUCER, 1, 0, 0, 0, msgpack.packb({"producer_id": "p"}))
    rig.put(topic, topic, producer, records(0))
    rig.put(producer, topic, records(1))
    report = check(rig.disk.copy())
    second = [found.position for _, found in scan_log(rig.disk, PATH)][1]
    assert report.late_topics == [(rig.files()[0], second)]
    assert report.sound and report.problems == report.late_topics


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (msgpack.packb({"op": "merged", "offset": 3}), "unknown op 'merged'"),
        (msgpack.packb({"op": "start"}), "KeyError('offset')"),
        (msgpack.packb({"op": "archived", "offset": None}), "TypeError"),
        (msgpack.packb({"op": ["start"]}), "TypeError"),
        (msgpack.packb(["start", 3]), "TypeError"),
        (b"\xc1", "FormatError"),
        (b"", "incomplete input"),
    ],
)
def test_a_topic_entry_that_cannot_be_read_is_refused_with_its_place(
    body: bytes, reason: str
) -> None:
    """As a start refuses it: to pass over it would be to give a wrong picture of the log."""
    rig = Rig()
    rig.put(records(0))
    position = rig.wal.durable_lsn
    rig.put(Entry(EntryKind.TOPIC, 7, 0, 0, 0, body))
    with pytest.raises(NewerFormat) as caught:
        verify(rig.disk, PATH, STATE)
    message = str(caught.value)
    assert message.startswith(f"{rig.files()[0]} at {position}: a TOPIC entry of topic id 7 ")
    assert reason in message and message.endswith("use that version")


@pytest.mark.parametrize("operation", ["created", "configured", "deleted", "start", "archived"])
def test_each_topic_entry_of_the_format_is_read(operation: str) -> None:
    rig = Rig()
    rig.put(Entry(EntryKind.TOPIC, 7, 0, 0, 0, msgpack.packb({"op": operation, "offset": 1})))
    assert check(rig.disk.copy()).sound


def test_a_topic_of_a_snapshot_that_cannot_be_read_is_refused_with_the_file() -> None:
    disk = log(3)
    topic = SnapshotChunk(SNAPSHOT_TOPIC, b"k", 8, msgpack.packb({"topic_id": 1}))
    Snapshots(disk, STATE, lambda n: bytes(n)).write(16, [topic])
    with pytest.raises(NewerFormat, match=r"16\.snap: a topic cannot be read"):
        verify(disk, PATH, STATE)


def test_a_torn_tail_is_told_but_is_no_damage() -> None:
    disk = log(3)
    name = disk.list(PATH)[0]
    end = check(disk).next_lsn
    content(disk, name)[end : end + 8] = b"BKfr\1\0\0\0"
    report = check(disk)
    assert report.sound
    assert report.torn is not None and report.torn.position == end


def test_damage_is_told_by_file_position_and_offsets() -> None:
    disk = log()
    name = [name for name in disk.list(PATH) if name.endswith(".wal")][1]
    content(disk, name)[4096 + 64 + 200] ^= 1
    report = check(disk)
    assert not report.sound
    (damage,) = report.damages
    assert damage.name == name and damage.position == 4096
    assert [(lost.first, lost.end) for lost in damage.lost] == [(14, 15)]


def test_a_bad_index_or_snapshot_is_told() -> None:
    disk = log()
    index = next(name for name in disk.list(PATH) if name.endswith(".idx"))
    content(disk, index)[-1] ^= 1
    snapshot = disk.list(STATE)[0]
    disk.content(f"{STATE}/{snapshot}")[-60] ^= 1
    report = check(disk)
    assert not report.sound and report.damages == []
    assert [bad.name for bad in report.bad_indexes] == [index]
    assert [bad.name for bad in report.bad_snapshots] == [snapshot]


def test_a_snapshot_that_the_disk_cannot_read_is_told() -> None:
    disk = log()
    snapshot = disk.list(STATE)[0]

    def refuse(call: Call) -> None:
        if call.name == "pread" and call.path.endswith(snapshot):
            raise OSError(errno.EIO, "Input/output error")

    disk.enter = refuse
    report = check(disk)
    assert not report.sound and report.damages == []
    assert [bad.name for bad in report.bad_snapshots] == [snapshot]


def test_an_index_that_is_sound_but_says_something_else_is_told() -> None:
    disk = log()
    rig = Rig()
    rig.put(records(0))
    index = next(name for name in disk.list(PATH) if name.endswith(".idx"))
    segment = content(disk, index.replace(".idx", ".wal"))
    wrong = rig.wal._catalog.segments[0].memory_index
    assert wrong is not None
    end = len(segment)
    content(disk, index)[:] = wrong.encode(bytes(segment[16:32]), 0, end)
    assert "not what the segment holds" in check(disk).bad_indexes[0].problem


def test_an_index_may_know_more_than_its_segment_only_of_damaged_places() -> None:
    """It was made before the damage; what it says of sound places must be there."""
    disk = log()
    name = next(name for name in disk.list(PATH) if name.endswith(".wal"))
    index_path = f"{PATH}/{name.replace('.wal', '.idx')}"
    data = bytes(disk.content(index_path))
    segment_id, end = bytes(content(disk, name)[16:32]), len(content(disk, name))
    wrong = MemoryIndex()
    rows = FileIndex(data, segment_id, 0, end).rows(1, 0)
    assert rows is not None
    for row in zip(*rows, strict=True):
        wrong.add(1, 0, *row)
    wrong.add(1, 0, 900, 1, 1, end - 80, 8)
    content(disk, name)[4096 + 64 + 48 + 200] ^= 1
    assert check(disk).bad_indexes == []
    disk.content(index_path)[:] = wrong.encode(segment_id, 0, end)
    assert [bad.name for bad in check(disk).bad_indexes] == [name.replace(".wal", ".idx")]


def test_a_segment_of_rubbish_is_damage() -> None:
    disk = log()
    name = disk.list(PATH)[0].replace(".idx", ".wal")
    content(disk, name)[:] = b"rubbish"
    report = check(disk)
    assert report.damages[0].name == name


def test_a_damaged_header_block_is_told_as_a_start_tells_it() -> None:
    disk = log()
    name = disk.list(PATH)[0].replace(".idx", ".wal")
    content(disk, name)[20] ^= 1
    (damage,) = check(disk).damages
    assert (damage.name, damage.position, damage.end) == (name, 0, 4096)
    assert Rig(disk).report.damages == [damage]


def test_a_running_brokers_log_can_be_verified() -> None:
    rig = Rig()
    for offset in range(40):
        rig.wal.append([records(offset, size=4000)], 1)
        rig.commits.step()
        rig.background.step()
        assert verify(rig.disk, PATH, STATE).sound


class Running:
    """A broker that goes on whenever somebody else uses its disk."""

    def __init__(self, seed: int) -> None:
        self.rig = Rig()
        self.dice = random.Random(seed)
        self.snapshots = Snapshots(self.rig.disk, STATE, lambda n: bytes(n))
        self.offset = 0
        self.busy = False
        for _ in range(self.dice.randrange(60)):
            self.go_on()
        self.rig.disk.enter = self.enter

    def enter(self, call: Call) -> None:
        if not self.busy:
            self.busy = True
            for _ in range(self.dice.choice((0, 0, 1, 1, 3, 20))):
                self.go_on()
            self.busy = False

    def go_on(self) -> None:
        wal, dice = self.rig.wal, self.dice
        what = dice.random()
        if what < 0.4:
            if wal.room > 20_000 and self.offset < 300:
                size = dice.choice((0, 100, 4000, 15_000))
                wal.append([records(self.offset, size=size)], self.offset)
                self.offset += 1
        elif what < 0.7:
            self.rig.commits.step()
        elif what < 0.95:
            self.rig.background.step()
        elif wal.durable_lsn:
            chunk = SnapshotChunk(1, b"k", wal.durable_lsn, b"a body")
            if f"{wal.durable_lsn:020d}.snap" not in self.rig.disk.list(STATE):
                self.snapshots.write(wal.durable_lsn, [chunk])
        if dice.random() < 0.02:
            below_lsn = self.snapshots.second_newest() or 0
            removables = wal.deleter.plan_removal({(1, 0): self.offset}, {1}, below_lsn).run()
            wal.deleter.delete([one for one in removables if dice.random() < 0.7])


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("window_bytes", [4096, 1 << 20])
def test_whatever_its_broker_does_meanwhile_is_no_damage(
    window_bytes: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames and files come and go between any two looks at the disk, many of them or few."""
    monkeypatch.setattr("brokerd.wal.read.scanner.WINDOW_BYTES", window_bytes)
    running = Running(seed)
    for _ in range(4):
        report = verify(running.rig.disk, PATH, STATE)
        assert report.damages == []
        assert (report.bad_indexes, report.bad_snapshots) == ([], [])
        assert report.sound


class Beside:
    """A disk whose first read of a place sees what was written after it, and not what was there."""

    def __init__(self, disk: SimDisk, path: str, position: int, end: int) -> None:
        self._disk = disk
        self._path = path
        self._place = slice(position, end)
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, write: bool = False) -> Any:
        file = self._disk.open(path, write)
        if path == self._path:
            pread = file.pread

            def late(length: int, position: int) -> bytes:
                data = bytearray(pread(length, position))
                if position <= self._place.start and len(data) + position >= self._place.stop:
                    self.reads += 1
                    if self.reads == 1:
                        start, stop = self._place.start - position, self._place.stop - position
                        data[start:stop] = bytes(stop - start)
                return bytes(data)

            file.pread = late  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("part", ["frame", "body"])
def test_a_read_that_sees_the_later_of_two_writes_alone_is_no_damage(part: str) -> None:
    """The system copies page by page while the broker writes."""
    rig = Rig()
    for offset in range(3):
        rig.put(records(offset, size=4000))
    [name] = rig.files()
    second = [found for _, found in scan_log(rig.disk, PATH)][1]
    assert isinstance(second, ScanFrame)
    end = second.position + second.header.length
    start = second.position if part == "frame" else end - 80
    disk = Beside(rig.disk, f"{PATH}/{name}", start, end)
    report = verify(disk, PATH, STATE)  # type: ignore[arg-type]
    assert disk.reads > 1
    assert report.sound
    assert report.frames == 3


def test_a_segment_that_goes_away_meanwhile_is_no_damage() -> None:
    """A start removes the last one if nothing in it counts."""
    rig = Rig()
    rig.put(records(0))
    disk = rig.disk.copy()
    name = f"{rig.wal.appended_lsn:020d}.wal"
    disk.create(f"{PATH}/{name}")

    def enter(call: Call) -> None:
        if call.name == "open" and call.path.endswith(name):
            disk.unlink(call.path)

    disk.enter = enter
    report = verify(disk, PATH, STATE)
    assert report.sound
    assert (report.segments, report.frames) == (1, 1)


def test_an_index_that_goes_away_meanwhile_is_no_damage() -> None:
    disk = log()

    def enter(call: Call) -> None:
        if call.name == "open" and call.path.endswith(".idx"):
            disk.unlink(call.path)

    disk.enter = enter
    report = verify(disk, PATH, STATE)
    assert report.sound
    assert report.indexes == 0


def test_damage_is_found_although_the_broker_runs() -> None:
    """In the segment that it writes, too, once what follows has been synced."""
    running = Running(7)
    running.rig.run()
    running.rig.put(records(running.offset))
    running.rig.put(records(running.offset + 1))
    segment = running.rig.wal.segments()[-1]
    disk = running.rig.disk
    disk.flip(f"{PATH}/{segment.name}", 4096 + 30, 0xFF)
    running.offset += 2
    (damage,) = verify(disk, PATH, STATE).damages
    assert (damage.name, damage.position) == (segment.name, 4096)


def test_walk_lists_frames_and_what_is_none() -> None:
    disk = log(3)
    name = disk.list(PATH)[0]
    frames = [found for _, found in scan_log(disk, PATH)]
    assert all(isinstance(found, ScanFrame) for found in frames) and len(frames) == 3
    second = frames[1]
    assert [found.position for _, found in scan_log(disk, PATH, second.position)] == [
        found.position for found in frames[1:]
    ]
    content(disk, name)[second.position] ^= 1
    kinds = [type(found) for _, found in scan_log(disk, PATH)]
    assert kinds == [ScanFrame, ScanGap, ScanFrame]


def test_walk_goes_on_behind_a_segment_that_cannot_be_read() -> None:
    disk = log()
    names = [name for name in disk.list(PATH) if name.endswith(".wal")]
    content(disk, names[0])[:] = b"rubbish" * 10
    content(disk, names[1])[20] ^= 1
    walked = list(scan_log(disk, PATH))
    unreadable = [
        (name, found.position, found.end) for name, found in walked if isinstance(found, ScanGap)
    ]
    assert unreadable == [(names[0], 0, int(names[1][:-4])), (names[1], 0, 4096)]
    frames = [name for name, found in walked if isinstance(found, ScanFrame)]
    assert set(frames) == {names[1], names[2]}
