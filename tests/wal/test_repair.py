"""A repaired log verifies, starts, serves every sound record, and knows what it lost."""

from __future__ import annotations

import errno
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import count, cycle

import pytest
from xxhash import xxh3_64_intdigest

from brokerd.errors import DamagedData, NewerFormat, NoSpace
from brokerd.wal import LostRange, SnapshotChunk, Snapshots
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.damage.repair import repair
from brokerd.wal.damage.repair_plan import (
    ActionKind,
    DataPaths,
    RepairPlan,
    merge_ranges,
    plan_repair,
)
from brokerd.wal.damage.verify import VerifyReport, verify
from brokerd.wal.recovery.startup import replay
from brokerd.walformat import EntryKind
from simulator.machine.disk import Call, CrashModel, PowerLost, SimDisk
from tests.wal.rig import PATH, Rig, content, events, records

PATHS = DataPaths.of("data")
STAMP = "20231114T221320Z"
FRAMES = 40


@cache
def whole_log() -> SimDisk:
    """Forty frames in three segments, the last one not sealed; two snapshots."""
    rig = Rig()
    for offset in range(FRAMES):
        rig.put(records(offset, size=4000), events(offset), time_us=offset + 1)
    store = Snapshots(rig.disk, PATHS.state, lambda n: bytes(n))
    for number in range(2):
        store.write(4096 + 8 * number, [SnapshotChunk(1, b"k", 4096, b"a body")])
    return rig.disk.copy()


def log() -> SimDisk:
    return whole_log().fork()


def segments(disk: SimDisk) -> list[str]:
    return [name for name in disk.list(PATH) if name.endswith(".wal")]


def frame_of(disk: SimDisk, offset: int) -> tuple[str, int, int]:
    """(file, position, length) of the frame that holds a record."""
    for name, found in scan_log(disk, PATH):
        for entry in getattr(found, "entries", ()):
            if entry.header.kind == EntryKind.RECORDS and entry.header.base_offset == offset:
                return name, found.position, found.header.length  # type: ignore[union-attr]
    raise AssertionError(f"there is no record {offset}")


def flip(disk: SimDisk, name: str, position: int) -> None:
    content(disk, name)[position] ^= 0xFF


def body(disk: SimDisk, offset: int) -> None:
    """Damage a batch."""
    name, position, _ = frame_of(disk, offset)
    flip(disk, name, position + 64 + 48 + 200)


def frame_header(disk: SimDisk, offset: int) -> None:
    """Damage the header of a frame; its batch is sound."""
    name, position, _ = frame_of(disk, offset)
    flip(disk, name, position + 20)


def headers(disk: SimDisk, offset: int) -> None:
    """Damage the headers of a frame and of its batch, so that nothing tells what was there."""
    name, position, _ = frame_of(disk, offset)
    flip(disk, name, position + 20)
    flip(disk, name, position + 64 + 20)


def no_index(disk: SimDisk, offset: int = 20) -> None:
    """Damage headers, and lose the index that knows what was there."""
    name, _, _ = frame_of(disk, offset)
    headers(disk, offset)
    disk.unlink(f"{PATH}/{name.replace('.wal', '.idx')}")


def no_index_of_the_first(disk: SimDisk) -> None:
    no_index(disk, 0)


def torn(disk: SimDisk) -> None:
    """Lose the end of the last frame."""
    name, position, length = frame_of(disk, FRAMES - 1)
    end = position + length
    content(disk, name)[end - 80 : end] = bytes(80)


def header_block(disk: SimDisk) -> None:
    flip(disk, segments(disk)[1], 20)


def missing(disk: SimDisk) -> None:
    disk.unlink(f"{PATH}/{segments(disk)[1]}")
    disk.sync_directory(PATH)


def rubbish(disk: SimDisk) -> None:
    """A last segment in which nothing can be read."""
    content(disk, segments(disk)[-1])[:] = b"rubbish" * 999


def stray(disk: SimDisk) -> None:
    name, position, length = frame_of(disk, 3)
    lsn = int(name[:20]) + position + length
    disk.create(f"{PATH}/{lsn:020d}.wal").pwrite(b"a stray", 0)


def bad_index(disk: SimDisk) -> None:
    flip(disk, next(name for name in disk.list(PATH) if name.endswith(".idx")), -1)


def bad_snapshot(disk: SimDisk, which: int = -1) -> None:
    disk.content(f"{PATHS.state}/{disk.list(PATHS.state)[which]}")[-60] ^= 1


def both_snapshots(disk: SimDisk) -> None:
    bad_snapshot(disk, 0)
    bad_snapshot(disk, 1)


def snapshot_ahead(disk: SimDisk, lsn: int = 999_000) -> None:
    """The end of the log is gone, and a snapshot was written after it."""
    Snapshots(disk, PATHS.state, lambda n: bytes(n)).write(
        lsn, [SnapshotChunk(1, b"k", lsn + 800, b"a body")]
    )


def everything(disk: SimDisk) -> None:
    for harm in (torn, bad_index, header_block, bad_snapshot, stray):
        harm(disk)
    body(disk, 35)
    headers(disk, 5)
    body(disk, 2)


Harm = Callable[[SimDisk], None]
HARMS: dict[str, tuple[Harm, list[ActionKind], set[int]]] = {
    "torn tail": (torn, [ActionKind.CUT], {39}),
    "a batch": (lambda disk: body(disk, 20), [ActionKind.RECORD], {20}),
    "two headers": (lambda disk: headers(disk, 30), [ActionKind.RECORD], {30}),
    "a frame header that an index makes up for": (
        lambda disk: frame_header(disk, 20),
        [ActionKind.RECORD],
        set(),
    ),
    "two headers of which an index knows": (
        lambda disk: headers(disk, 20),
        [ActionKind.RECORD],
        {20},
    ),
    "one without its index": (no_index, [ActionKind.RECORD], {20}),
    "the first frame": (no_index_of_the_first, [ActionKind.RECORD], {0}),
    "a header block": (header_block, [ActionKind.RESTORE], set()),
    "a missing segment": (missing, [ActionKind.REBUILD, ActionKind.RECORD], set(range(14, 28))),
    "a rubbish segment": (rubbish, [ActionKind.RECORD], set(range(28, 40))),
    "a stray": (stray, [ActionKind.MOVE], set()),
    "an index": (bad_index, [ActionKind.REBUILD], set()),
    "the newest snapshot": (bad_snapshot, [ActionKind.MOVE], set()),
    "both snapshots": (both_snapshots, [ActionKind.MOVE, ActionKind.MOVE], set()),
    "a log that ends before its snapshot": (snapshot_ahead, [ActionKind.RECORD], set()),
    "everything": (
        everything,
        [
            *(
                ActionKind.RESTORE,
                ActionKind.MOVE,
                ActionKind.MOVE,
                ActionKind.REBUILD,
                ActionKind.CUT,
            ),
            *(ActionKind.RECORD, ActionKind.RECORD, ActionKind.RECORD),
        ],
        {2, 5, 35, 39},
    ),
}


@cache
def harmed_log(name: str) -> SimDisk:
    disk = log()
    HARMS[name][0](disk)
    return disk.copy()


def harmed(name: str) -> SimDisk:
    return harmed_log(name).fork()


def run(disk: SimDisk, seed: int = 1) -> tuple[RepairPlan, str | None]:
    plan = plan_repair(disk, PATHS)
    return plan, repair(disk, PATHS, plan, STAMP, random.Random(seed).randbytes)


def check(disk: SimDisk) -> VerifyReport:
    return verify(disk, PATH, PATHS.state)


def readable(rig: Rig) -> set[int]:
    """Offsets that can be read, each with the value that was appended."""
    found = set()
    for offset in range(FRAMES):
        plan = rig.wal.plan_read(1, 0, offset, 1)
        try:
            batches = plan.run() if plan is not None else []
        except DamagedData:
            continue
        if batches:
            assert batches[0].base_offset == offset
            assert batches[0].body == records(offset, size=4000).body
            found.add(offset)
    return found


@pytest.mark.parametrize("name", HARMS)
class TestEveryHarm:
    def test_the_plan_says_what_would_be_done_and_changes_nothing(self, name: str) -> None:
        disk = harmed(name)
        before = disk.files()
        assert [action.kind for action in plan_repair(disk, PATHS).actions] == HARMS[name][1]
        assert disk.files() == before

    def test_the_log_verifies_afterwards(self, name: str) -> None:
        disk = harmed(name)
        run(disk)
        report = check(disk)
        assert report.sound and report.torn is None
        assert bool(report.recorded) == (ActionKind.RECORD in HARMS[name][1])

    def test_every_sound_record_is_still_read_at_its_offset(self, name: str) -> None:
        disk = harmed(name)
        run(disk)
        assert readable(Rig(disk)) == set(range(FRAMES)) - HARMS[name][2]

    def test_a_start_finds_nothing_more_to_say_and_goes_on_behind_it(self, name: str) -> None:
        disk = harmed(name)
        _, end = plan_repair(disk, PATHS), Rig(harmed(name)).report
        run(disk)
        rig = Rig(disk)
        assert rig.report.damages == [] and rig.report.cut is None
        assert rig.report.next_lsn >= end.next_lsn
        assert rig.report.next_offsets == end.next_offsets
        rig.put(records(1000))
        again = rig.restart()
        assert again.report.damages == [] and again.read(1000) == [b"1000"]
        assert check(disk).sound

    def test_a_second_repair_has_nothing_to_do(self, name: str) -> None:
        disk = harmed(name)
        run(disk)
        before = disk.files()
        plan, copies = run(disk, seed=2)
        assert plan.actions == [] and copies is None
        assert disk.files() == before

    def test_every_byte_that_went_is_kept_and_listed(self, name: str) -> None:
        disk = harmed(name)
        before = disk.files()
        plan, copies = run(disk)
        assert copies == f"data/repair/{STAMP}"
        assert assert_copied(disk, before) == len(plan.actions)

    def test_killed_at_any_disk_call_a_second_repair_finishes_the_job(self, name: str) -> None:
        models = cycle(CrashModel)
        for number, disk in enumerate(killed_at_every_call(name)):
            disk.crash(next(models), random.Random(number))
            run(disk, seed=2)
            report = check(disk)
            assert report.sound and report.torn is None
            assert readable(Rig(disk)) == set(range(FRAMES)) - HARMS[name][2]

    def test_killed_at_any_disk_call_a_broker_starts_without_a_second_repair(
        self, name: str
    ) -> None:
        models = cycle(CrashModel)
        before = harmed(name).files()
        for number, disk in enumerate(killed_at_every_call(name)):
            disk.crash(next(models), random.Random(number))
            if not before.items() <= disk.files().items():
                assert_copied(disk, before)
            assert readable(Rig(disk)) == set(range(FRAMES)) - HARMS[name][2]

    @pytest.mark.parametrize("call", ["pwrite", "sync", "create", "rename", "sync_directory"])
    def test_an_error_of_the_disk_is_told_and_a_second_repair_finishes(
        self, name: str, call: str
    ) -> None:
        for number in count(1):
            disk = harmed(name)
            before = disk.calls[call]
            disk.fail(call, number, errno.ENOSPC)
            with suppress(OSError):
                run(disk)
            if disk.calls[call] - before < number:
                break
            run(disk, seed=2)
            assert check(disk).sound


def assert_copied(disk: SimDisk, before: dict[str, bytes]) -> int:
    """A list is there, and all that it names; returns how much that is."""
    copies = f"{PATHS.repair}/{STAMP}"
    items = json.loads(bytes(disk.content(f"{copies}/manifest.json")))["items"]
    for item in items:
        if item["deed"] == ActionKind.RECORD:
            assert item["copy"] is None
            continue
        original = before[f"data/{item['room']}/{item['name']}"]
        copy = bytes(disk.content(f"{copies}/{item['copy']}"))
        assert copy == original[item["position"] : item["end"]]
        assert hashlib.sha256(copy).hexdigest() == item["sha256"]
    return len(items)


CHANGES = {"create", "pwrite", "sync", "truncate", "rename", "unlink", "sync_directory"}


def killed_at_every_call(name: str) -> Iterator[SimDisk]:
    """A disk for each call of a repair that changes something: power goes before that call."""
    fresh = harmed(name)
    for number in count():
        disk = fresh.fork()
        left = iter(range(number))

        def enter(call: Call, left: Iterator[int] = left) -> None:
            if call.name in CHANGES and next(left, None) is None:
                raise PowerLost

        disk.enter = enter
        try:
            run(disk)
        except PowerLost:
            disk.enter = lambda call: None
            yield disk
        else:
            assert number > 5, "a repair makes more calls than that"
            return


@pytest.mark.parametrize("model", CrashModel)
def test_killed_with_everything_wrong_every_way_of_losing_power_is_survived(
    model: CrashModel,
) -> None:
    for number, disk in enumerate(killed_at_every_call("everything")):
        disk.crash(model, random.Random(number))
        run(disk, seed=2)
        assert check(disk).sound
        assert readable(Rig(disk)) == set(range(FRAMES)) - HARMS["everything"][2]


class TestLosses:
    def lost(self, disk: SimDisk) -> list[tuple[LostRange, ...]]:
        return [a.lost for a in plan_repair(disk, PATHS).actions if a.kind == ActionKind.RECORD]

    @pytest.mark.parametrize("name", ["a batch", "two headers", "the first frame"])
    def test_lost_offsets_are_told(self, name: str) -> None:
        [offset] = HARMS[name][2]
        assert self.lost(harmed(name)) == [(LostRange(1, 0, offset, offset + 1),)]

    def test_an_index_tells_the_last_ones_of_a_partition(self) -> None:
        rig = Rig()
        rig.put(records(0, topic_id=2))
        rig.put(records(1, topic_id=2))
        for offset in range(20):
            rig.put(records(offset, size=4000))
        disk = rig.disk.copy()
        name = segments(disk)[0]
        second = [found.position for _, found in scan_log(disk, PATH)][1]
        flip(disk, name, second + 20)
        flip(disk, name, second + 64 + 20)
        assert self.lost(disk) == [(LostRange(2, 0, 1, 2),)]

    def test_those_of_a_missing_segment_too(self) -> None:
        assert self.lost(harmed("a missing segment")) == [(LostRange(1, 0, 14, 28),)]

    def test_damage_on_record_that_rots_further_is_damage_again(self) -> None:
        disk = harmed("a batch")
        run(disk)
        name, position, _ = frame_of(disk, 20)
        flip(disk, name, position + 64 + 48 + 300)
        assert len(check(disk).damages) == 1
        run(disk, seed=2)
        assert check(disk).sound

    def test_new_damage_next_to_it_is_damage(self) -> None:
        disk = harmed("a batch")
        run(disk)
        body(disk, 21)
        report = check(disk)
        assert [d.lost for d in report.damages] == [[LostRange(1, 0, 21, 22)]]
        assert [d.lost for d in report.recorded] == [[LostRange(1, 0, 20, 21)]]

    def test_a_record_that_is_damaged_itself_brings_the_damage_back(self) -> None:
        disk = harmed("a batch")
        run(disk)
        name = segments(disk)[-1]
        flip(disk, name, 4096 + 64 + 50)
        report = check(disk)
        assert not report.sound or report.torn is not None
        run(disk, seed=2)
        assert check(disk).sound

    def test_ranges_that_touch_are_told_as_one(self) -> None:
        ranges = [LostRange(1, 0, 5, 6), LostRange(1, 1, 6, 7), LostRange(1, 0, 2, 5)]
        assert merge_ranges(ranges) == [LostRange(1, 0, 2, 6), LostRange(1, 1, 6, 7)]


class TestRefusals:
    def refused(self, disk: SimDisk, error: type[Exception], match: str) -> None:
        before = disk.files()
        with pytest.raises(error, match=match):
            run(disk)
        assert disk.files() == before

    def test_a_newer_format_is_not_touched(self) -> None:
        disk = harmed("a batch")
        snapshot = disk.list(PATHS.state)[0]
        newer_snapshot(disk, snapshot)
        self.refused(disk, NewerFormat, "upgrade")

    def test_a_segment_with_the_name_of_another_is_not_touched(self) -> None:
        disk = log()
        first = segments(disk)[0]
        data = bytes(content(disk, first))
        content(disk, segments(disk)[1])[:] = data
        self.refused(disk, DamagedData, f"says {first}.*give it back its name")

    def test_no_room_for_copies_is_said_before_anything_changes(self) -> None:
        disk = harmed("everything")
        disk.capacity = disk.used_bytes + 1000
        self.refused(disk, NoSpace, r"needs \d+ bytes.*nothing was changed")
        disk.capacity = None
        run(disk)
        assert check(disk).sound


def newer_snapshot(disk: SimDisk, name: str) -> None:
    data = disk.content(f"{PATHS.state}/{name}")
    data[8] = 9
    data[48:56] = xxh3_64_intdigest(bytes(data[:48]), 0).to_bytes(8, "little")


def test_more_than_is_plausible_may_be_missing_when_a_snapshot_knows_of_it() -> None:
    disk = log()
    snapshot_ahead(disk, 20 << 30)
    run(disk)
    assert check(disk).sound


def test_two_repairs_in_one_second_have_directories_of_their_own() -> None:
    disk = harmed("a batch")
    run(disk)
    body(disk, 21)
    _, copies = run(disk, seed=2)
    assert copies == f"data/repair/{STAMP}-2"


def test_the_names_of_the_copies_are_durable_before_the_first_change() -> None:
    """A repair that was killed may have made the directories, and not synced them."""
    disk = harmed("everything")
    calls: list[tuple[str, str]] = []
    disk.enter = lambda call: calls.append((call.name, call.path)) if call.name in CHANGES else None
    run(disk)
    changed = next(at for at, one in enumerate(calls) if not one[1].startswith(PATHS.repair))
    while calls[changed] == ("sync_directory", "data"):
        changed += 1
    assert not calls[changed][1].startswith(PATHS.repair)
    for directory in (f"{PATHS.repair}/{STAMP}", PATHS.repair, "data"):
        assert ("sync_directory", directory) in calls[:changed]


def test_a_sound_log_is_left_as_it_is() -> None:
    disk = log()
    before = disk.files()
    assert run(disk)[1] is None
    assert disk.files() == before


def test_what_comes_after_the_record_is_replayed() -> None:
    """The entry that records damage is one of the log, with a place in it."""
    disk = harmed("a batch")
    run(disk)
    found = []
    replay(disk, PATH, 0, found.append)
    kinds = [entry.kind for frame in found for entry in frame.entries]
    assert kinds[-1] == EntryKind.LOST and kinds.count(EntryKind.LOST) == 1


@pytest.mark.parametrize(
    "damage", [lambda disk: body(disk, 20), lambda disk: headers(disk, 3), missing, torn, bad_index]
)
def test_examining_reads_the_log_once_and_a_repair_once_more(
    damage: Callable[[SimDisk], None],
) -> None:
    disk = log()
    damage(disk)
    read: list[int] = []
    size = sum(len(disk.content(f"{PATH}/{name}")) for name in disk.list(PATH))
    last = len(content(disk, segments(disk)[-1]))

    def leave(call: Call) -> None:
        if call.name == "pread" and call.path.endswith(".wal"):
            read.append(min(call.length, len(disk.content(call.path)) - call.position))

    disk.leave = leave
    plan = plan_repair(disk, PATHS)
    headers_bytes = 60_000  # of segments, looked at again and again
    assert sum(read) < size + headers_bytes
    read.clear()
    repair(disk, PATHS, plan, STAMP, random.Random(5).randbytes)
    assert sum(read) < size + last + headers_bytes  # the last one is read when it gets its index
