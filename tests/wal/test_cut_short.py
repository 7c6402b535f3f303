"""The last segment cut short or gone: the loss is told, and nothing is used a second time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerd.errors import DamagedData
from brokerd.wal import LostRange
from brokerd.wal.damage.repair import repair
from brokerd.wal.damage.repair_plan import DataPaths, plan_repair
from brokerd.wal.damage.verify import verify
from brokerd.walformat import SEGMENT_BYTES_MAX
from brokerd.walformat.index import MemoryIndex
from simulator.machine.disk import SimDisk
from tests.wal.rig import PATH, SMALL, Rig, content, records

PATHS = DataPaths.of("data")


def log(count: int) -> Rig:
    """A log with 14 records in a segment; the last has no index yet."""
    rig = Rig()
    for offset in range(count):
        rig.put(records(offset, size=4000))
    return rig


def sealed(count: int) -> Rig:
    """A log that was started again, so that its last segment has an index too."""
    return Rig(log(count).disk.copy())


def last_of(rig: Rig) -> str:
    return rig.wal.segments()[-1].name


def cut(rig: Rig, length: int) -> SimDisk:
    disk, name = rig.disk.copy(), last_of(rig)
    del content(disk, name)[length:]
    return disk


def gone(rig: Rig) -> SimDisk:
    disk = rig.disk.copy()
    disk.unlink(f"{PATH}/{last_of(rig)}")
    return disk


def starts(disk: SimDisk) -> Iterator[Rig]:
    """Three starts: two that append nothing, and one after a record was appended."""
    first = Rig(disk)
    yield first
    second = Rig(first.disk.copy(), seed=2)
    yield second
    offset = max(second.report.next_offsets.values(), default=0)
    second.put(records(offset))
    yield Rig(second.disk.copy(), seed=3)


def assert_told(disk: SimDisk, end_lsn: int) -> None:
    """Verify and every start tell the loss, go on above it, and leave the file as it is."""
    before = disk.files()
    assert not verify(disk, PATHS.wal, PATHS.state).sound
    places = []
    for rig in starts(disk.copy()):
        assert rig.report.next_lsn >= end_lsn
        places.append([damage[:3] for damage in map(_place, rig.report.damages)])
        for path, data in before.items():
            if path.endswith(".wal"):
                assert rig.disk.files()[path][: len(data)] == data
                assert len(rig.disk.files()[path]) == len(data)
    assert places[0]
    assert places[0] == places[1] == places[2]


def _place(damage: object) -> tuple[str, int, int]:
    return damage.name, damage.position, damage.end  # type: ignore[attr-defined]


def assert_repaired(disk: SimDisk) -> None:
    """A repair puts the loss on record, once and for all."""
    plan = plan_repair(disk, PATHS)
    assert plan.actions
    repair(disk, PATHS, plan, "20231114T221320Z", lambda count: b"\7" * count)
    assert verify(disk, PATHS.wal, PATHS.state).sound
    assert plan_repair(disk, PATHS).actions == []
    assert Rig(disk).report.damages == []


class TestNothingLeftOfIt:
    """Less than the 64 bytes that tell what the segment was, and no index."""

    @pytest.mark.parametrize("length", [0, 10, 63])
    @pytest.mark.parametrize("count", [5, 40])
    def test_all_that_a_segment_can_hold_is_lost_and_it_is_not_written_over(
        self, count: int, length: int
    ) -> None:
        rig = log(count)
        first_lsn = rig.wal.segments()[-1].first_lsn
        assert_told(cut(rig, length), first_lsn + SEGMENT_BYTES_MAX)

    @pytest.mark.parametrize("length", [0, 10])
    def test_a_repair_puts_it_on_record(self, length: int) -> None:
        assert_repaired(cut(log(40), length))


class TestNoFrameLeft:
    """The header block says how long the file was; no crash leaves a segment without a frame."""

    @pytest.mark.parametrize("length", [64, 100, 4095, 4096])
    @pytest.mark.parametrize("count", [5, 40])
    def test_all_that_was_allocated_is_lost(self, count: int, length: int) -> None:
        rig = log(count)
        first_lsn = rig.wal.segments()[-1].first_lsn
        assert_told(cut(rig, length), first_lsn + SMALL.segment_bytes)

    @pytest.mark.parametrize("length", [64, 4096])
    def test_a_repair_puts_it_on_record(self, length: int) -> None:
        assert_repaired(cut(log(40), length))


class TestAnIndexIsLeft:
    """It tells where the segment ended, and its offsets."""

    @pytest.mark.parametrize("length", [0, 10, 64, 4095, 4096, 5000, 8000, 20000])
    @pytest.mark.parametrize("count", [10, 40])
    def test_of_a_segment_that_is_short(self, count: int, length: int) -> None:
        rig = sealed(count)
        disk = cut(rig, length)
        assert_told(disk, rig.wal.appended_lsn)
        for again in starts(disk):
            assert again.report.next_offsets[1, 0] >= count
            lost = again.report.damages[-1].lost if again.report.damages else []
            assert lost == [] or lost[-1].end == count

    @pytest.mark.parametrize("count", [10, 40])
    def test_of_a_segment_that_is_gone(self, count: int) -> None:
        rig = sealed(count)
        disk = gone(rig)
        assert_told(disk, rig.wal.appended_lsn)
        report = Rig(disk).report
        assert report.next_offsets == {(1, 0): count}
        assert report.damages[-1].lost == [LostRange(1, 0, count // 14 * 14, count)]

    def test_below_a_snapshot_too(self) -> None:
        rig = sealed(40)
        after = Rig(gone(rig), from_lsn=rig.wal.appended_lsn)
        assert after.report.damages

    @pytest.mark.parametrize("length", [0, 64, 4096, 20000])
    def test_a_repair_puts_a_short_one_on_record(self, length: int) -> None:
        assert_repaired(cut(sealed(40), length))

    @pytest.mark.parametrize("count", [10, 40])
    def test_a_repair_puts_a_gone_one_on_record(self, count: int) -> None:
        assert_repaired(gone(sealed(count)))

    def test_an_index_of_another_segment_says_that_the_file_may_be_the_wrong_one(self) -> None:
        """Its segment id is not that of the file, and nothing says which of the two is ours."""
        rig = log(5)
        name = last_of(rig).replace(".wal", ".idx")
        other = Rig(Rig(seed=9).disk.copy())
        for offset in range(12):
            other.put(records(offset, size=4000))
        foreign = content(Rig(other.disk.copy()).disk, name)
        disk = rig.disk.copy()
        disk.create(f"{PATH}/{name}").pwrite(bytes(foreign), 0)
        before = disk.files()
        with pytest.raises(DamagedData, match=rf"another segment .* if {name} is of another log"):
            Rig(disk)
        assert disk.files() == before
        disk.unlink(f"{PATH}/{name}")
        report = Rig(disk).report
        assert report.damages == []
        assert report.next_offsets == {(1, 0): 5}

    def test_an_index_inside_of_the_segment_says_nothing(self) -> None:
        rig, index = log(5), MemoryIndex()
        index.add(1, 0, 100, 1, 9, 4160, 100)
        disk = rig.disk.copy()
        data = index.encode(bytes(16), 8192, 1 << 16)
        disk.create(f"{PATH}/{8192:020d}.idx").pwrite(data, 0)
        report = Rig(disk).report
        assert report.damages == []
        assert report.next_offsets == {(1, 0): 5}


def test_a_sealed_log_is_sound_and_is_not_written_again_at_a_start() -> None:
    rig = sealed(40)
    again = Rig(rig.disk.copy())
    assert again.report.damages == []
    assert again.report.rewritten_bytes == 0
    assert again.report.next_offsets == {(1, 0): 40}
    assert verify(rig.disk.copy(), PATHS.wal, PATHS.state).sound
