"""Which files of a log's directory are its segments, and what a start makes of the others."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
from pathlib import Path

import pytest

from brokerd.errors import DamagedData
from brokerd.wal import Frame, LostRange, RealDisk, RecoveryReport, Wal
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.damage.repair_plan import DataPaths, plan_repair
from brokerd.wal.damage.verify import verify
from brokerd.wal.deletion.deleted_ranges import LsnRange, deleted_name
from brokerd.wal.recovery.directory import MISSING_BYTES_MAX, segment_files
from brokerd.wal.segment import index_name, segment_name
from brokerd.walformat import SegmentHeader, encode_frame, encode_segment_header
from simulator.machine.disk import SimDisk
from simulator.machine.inline import InlinePool
from tests.wal.rig import PATH, SMALL, Rig, records

FAR = (MISSING_BYTES_MAX + (1 << 20)) & ~7
"""Farther than what is taken for missing segments."""
SEGMENT = 63_008
"""Bytes of each sealed segment of `filled`."""


def filled(count: int = 40) -> Rig:
    """A log of some segments, 14 records in each."""
    rig = Rig()
    for offset in range(count):
        rig.put(records(offset, size=4000))
    return rig


def put_file(disk: SimDisk, lsn: int, data: bytes) -> str:
    name = f"{lsn:020d}.wal"
    file = disk.create(f"{PATH}/{name}")
    if data:
        file.pwrite(data, 0)
    return name


def foreign_segment(lsn: int) -> bytes:
    """A sound segment of a log that begins at ``lsn`` and is not ours."""
    segment_id = bytes(range(16))
    frame = encode_frame([records(1000)], lsn + 4096, segment_id, lsn, 1)
    return encode_segment_header(SegmentHeader(segment_id, lsn, 1 << 16, 0)) + frame


class TestAFileBeyondTheEnd:
    @pytest.mark.parametrize("data", [b"", b"x" * 5000, bytes(5000)])
    @pytest.mark.parametrize("distance", [8, 1 << 20, FAR, 1 << 52])
    def test_with_nothing_in_it_is_no_segment_and_the_start_asks_to_move_it(
        self, data: bytes, distance: int
    ) -> None:
        rig = filled()
        disk = rig.disk.copy()
        name = put_file(disk, rig.wal.appended_lsn + (1 << 16) + distance, data)
        before = disk.list(PATH)
        with pytest.raises(DamagedData, match=rf"{PATH}/{name} .*nothing in it.*move it away"):
            Rig(disk)
        assert disk.list(PATH) == before
        disk.unlink(f"{PATH}/{name}")
        after = Rig(disk)
        assert len(after.entries()) == 40
        assert after.report.damages == []

    def test_a_sound_one_says_that_segments_between_are_missing(self) -> None:
        """It may be our own: what it holds is served, and what is missing is damage."""
        rig = filled(14)
        disk = rig.disk.copy()
        lsn = rig.wal.appended_lsn + (1 << 30)
        put_file(disk, lsn, foreign_segment(lsn))
        after = Rig(disk)
        (damage,) = after.report.damages
        assert damage.end == lsn
        assert damage.lost == [LostRange(1, 0, 14, 1000)]
        assert after.read(1000) == [b"1000"]

    def test_a_sound_one_too_far_away_is_not_believed(self) -> None:
        rig = filled(14)
        disk = rig.disk.copy()
        lsn = rig.wal.appended_lsn + FAR
        name = put_file(disk, lsn, foreign_segment(lsn))
        with pytest.raises(DamagedData, match=rf"{name} .* bytes after the end of .*move it away"):
            Rig(disk)

    def test_it_is_believed_when_the_log_is_known_to_have_come_so_far(self) -> None:
        rig = filled(14)
        disk = rig.disk.copy()
        lsn = rig.wal.appended_lsn + FAR
        put_file(disk, lsn, foreign_segment(lsn))
        after = Rig(disk, from_lsn=lsn)
        assert after.read(1000) == [b"1000"]

    def test_a_file_of_rubbish_where_the_log_goes_on_is_a_damaged_segment(self) -> None:
        """Also when the segment before it was not trimmed yet."""
        for is_trimmed in (True, False):
            rig = filled()
            last = rig.wal.segments()[-1]
            before = rig.wal.segments()[-2]
            disk = rig.disk.copy()
            disk.content(f"{PATH}/{last.name}")[:] = b"x" * 5000
            if not is_trimmed:
                disk.content(f"{PATH}/{before.name}").extend(bytes(9000))
            after = Rig(disk)
            assert [damage.name for damage in after.report.damages] == [last.name]

    def test_rubbish_in_the_unused_tail_of_a_segment_is_not_believed(self) -> None:
        rig = Rig()
        rig.put(records(0))
        disk = rig.disk.copy()
        put_file(disk, 8192, b"x" * 100)
        with pytest.raises(DamagedData, match="move it away"):
            Rig(disk)


class TestAMissingBeginning:
    def test_it_is_damage_also_where_a_snapshot_makes_it_unnecessary(self) -> None:
        rig = filled(60)
        rig.disk.unlink(f"{PATH}/{rig.wal.segments()[0].name}")
        first_left = rig.wal.segments()[1].first_lsn
        after = Rig(rig.disk.copy(), from_lsn=rig.wal.appended_lsn)
        (damage,) = after.report.damages
        assert (damage.position, damage.end) == (0, first_left)
        assert "nothing is left" in damage.problem
        assert damage.lost == [LostRange(1, 0, 0, 14)]

    def test_it_is_none_where_the_log_is_known_to_begin_later(self) -> None:
        rig = filled(60)
        rig.disk.unlink(f"{PATH}/{rig.wal.segments()[0].name}")
        first_left = rig.wal.segments()[1].first_lsn
        assert open_log(rig.disk.copy(), first_lsn=first_left).damages == []
        assert len(open_log(rig.disk.copy(), first_lsn=first_left - 8).damages) == 1

    def test_verify_tells_it_too(self) -> None:
        rig = filled(60)
        rig.disk.unlink(f"{PATH}/{rig.wal.segments()[0].name}")
        (damage,) = verify(rig.disk, PATH, "none").damages
        assert damage.lost == [LostRange(1, 0, 0, 14)]


class TestALogThatWasLonger:
    def test_its_end_is_damage_and_positions_are_not_used_again(self) -> None:
        rig = filled(10)
        end = rig.wal.appended_lsn
        report = open_log(rig.disk.copy(), reached_lsn=end + 1001)
        (damage,) = report.damages
        assert (damage.position, damage.end) == (end, end + 1001)
        assert f"ends at LSN {end}" in damage.problem
        assert damage.problem.endswith(f"if a file is missing, it is {segment_name(end)}")
        assert report.next_lsn >= end + 1001


def make_odd(path: Path, kind: str) -> None:
    """Put something there that is no file."""
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(path.parent):
            listening.bind(path.name)  # its whole path may be too long for a socket


class TestOddEntries:
    """On a real file system."""

    def start(
        self, path: Path, thread: InlinePool | None = None, from_lsn: int = 0
    ) -> tuple[Wal, RecoveryReport, list[Frame]]:
        thread = InlinePool() if thread is None else thread
        wal = Wal(
            RealDisk(),
            str(path),
            SMALL,
            thread,
            thread,
            random.Random(str(sorted(os.listdir(path)) if path.exists() else 0)).randbytes,
            lambda: 0.0,
        )
        frames: list[Frame] = []
        return wal, wal.open(from_lsn, frames.append), frames

    def log(self, path: Path) -> int:
        """A log of some segments; where it ends."""
        thread = InlinePool()
        wal, _, _ = self.start(path, thread)
        for offset in range(20):
            wal.append([records(offset, size=4000)], 1)
            thread.run()
        return wal.appended_lsn

    def test_names_that_are_none_of_the_logs_are_told_and_left_alone(self, tmp_path: Path) -> None:
        end = self.log(tmp_path)
        odd = ["notes", "1.wal", "\u0660" * 20 + ".wal", "9" * 20 + ".wal", "9" * 20 + ".idx"]
        for name in odd:
            (tmp_path / name).write_bytes(b"mine")
        (tmp_path / "dir").mkdir()
        (tmp_path / "x.tmp").mkdir()
        (tmp_path / "spare-0.tmp").write_bytes(b"")
        _, report, frames = self.start(tmp_path)
        assert sorted(report.foreign_names) == sorted([*odd, "dir", "x.tmp"])
        assert (len(frames), report.damages, report.next_lsn) == (20, [], end)
        assert all((tmp_path / name).read_bytes() == b"mine" for name in odd)
        assert (tmp_path / "x.tmp").is_dir()
        assert not (tmp_path / "spare-0.tmp").exists()

    @pytest.mark.parametrize("kind", ["directory", "pipe", "socket"])
    @pytest.mark.parametrize("distance", [-100_000, 1 << 16, 1 << 52])
    def test_what_is_no_file_is_no_segment_whatever_its_name(
        self, tmp_path: Path, kind: str, distance: int
    ) -> None:
        end = self.log(tmp_path)
        odd = tmp_path / f"{max(end + distance, 8):020d}.wal"
        make_odd(odd, kind)
        _, report, frames = self.start(tmp_path)
        assert (len(frames), report.next_lsn) == (20, end)
        (damage,) = report.damages
        assert damage.name == odd.name
        assert "not a regular file" in damage.problem
        assert odd.exists()
        assert not verify(RealDisk(), str(tmp_path), "none").sound
        assert any(name == odd.name for name, _ in scan_log(RealDisk(), str(tmp_path)))

    @pytest.mark.parametrize("kind", ["directory", "pipe", "socket"])
    def test_a_repair_asks_to_move_it_and_changes_nothing(self, tmp_path: Path, kind: str) -> None:
        self.log(tmp_path / "wal")
        odd = tmp_path / "wal" / f"{8:020d}.wal"
        make_odd(odd, kind)
        with pytest.raises(DamagedData, match=rf"{odd.name}.* not a regular file.*move it out"):
            plan_repair(RealDisk(), DataPaths.of(str(tmp_path)))

    @pytest.mark.parametrize("kind", ["directory", "pipe", "socket"])
    def test_one_in_the_way_of_the_next_segment_must_be_moved(
        self, tmp_path: Path, kind: str
    ) -> None:
        end = self.log(tmp_path)
        make_odd(tmp_path / f"{end:020d}.wal", kind)
        expected = rf"{end:020d}\.wal is not a regular file.*move it away"
        with pytest.raises(DamagedData, match=expected):
            self.start(tmp_path)

    @pytest.mark.parametrize("within", [False, True])
    def test_directories_with_names_of_a_deleted_range_stay(
        self, tmp_path: Path, within: bool
    ) -> None:
        """One is a record like an empty file: only the name counts. The log does not need it if it
        lies within another one, nor the index of a deleted segment."""
        end = self.log(tmp_path)
        record = tmp_path / deleted_name(LsnRange(8, 16))
        record.mkdir()
        index = tmp_path / index_name(8)
        index.mkdir()
        if within:
            (tmp_path / deleted_name(LsnRange(8, 24))).touch()
        _, report, _ = self.start(tmp_path, from_lsn=end)
        assert (report.damages, report.next_lsn) == ([], end)
        assert record.is_dir() and index.is_dir()
        assert not (tmp_path / f"{record.name}.tmp").exists()

    def test_a_link_to_a_segment_is_a_segment(self, tmp_path: Path) -> None:
        path = tmp_path / "wal"
        self.log(path)
        first = path / f"{0:020d}.wal"
        first.rename(tmp_path / "elsewhere")
        first.symlink_to(tmp_path / "elsewhere")
        _, report, frames = self.start(path)
        assert (len(frames), report.damages) == (20, [])

    def test_a_link_that_leads_nowhere_is_told(self, tmp_path: Path) -> None:
        self.log(tmp_path)
        first = tmp_path / f"{0:020d}.wal"
        first.unlink()
        first.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(DamagedData, match=rf"{first.name} is a link that leads nowhere"):
            self.start(tmp_path)

    def test_an_index_that_is_a_directory_is_made_again_in_memory(self, tmp_path: Path) -> None:
        self.log(tmp_path)
        index = tmp_path / f"{0:020d}.idx"
        index.unlink()
        index.mkdir()
        wal, report, _ = self.start(tmp_path)
        assert len(report.bad_indexes) == 1
        plan = wal.plan_read(1, 0, 3, 1)
        assert plan is not None
        assert [batch.base_offset for batch in plan.run()] == [3]
        assert index.is_dir()


def test_a_segment_that_may_not_be_read_stops_the_start_and_is_named() -> None:
    rig = filled()
    disk = rig.disk.copy()
    disk.fail("open", 2, errno.EACCES)
    with pytest.raises(PermissionError) as caught:
        Rig(disk)
    assert str(caught.value.filename).endswith(".wal")


def open_log(disk: SimDisk, first_lsn: int = 0, reached_lsn: int = 0) -> RecoveryReport:
    wal = Wal(disk, PATH, SMALL, InlinePool(), InlinePool(), random.Random(7).randbytes, float)
    return wal.open(0, lambda frame: None, first_lsn, reached_lsn)


class TestTheEndOfASegmentBeforeDeletedOnes:
    """`segment_files` gives each segment the LSN at which it ends, or should end."""

    def ends(
        self, deleted: tuple[int, int], gone: set[int], grow: int = 0, cut: int = 0
    ) -> list[tuple[int, int | None, bool]]:
        """Return first LSN, end and whether it is missing of each segment of a log of five.

        ``deleted`` is a recorded deletion, and ``gone`` the numbers of the files that are gone. The
        file of the segment 1 is that many bytes longer or shorter.
        """
        rig = filled(60)
        disk = rig.disk.copy()
        disk.create(f"{PATH}/{deleted_name(LsnRange(*deleted))}")
        for number in gone:
            disk.unlink(f"{PATH}/{segment_name(number * SEGMENT)}")
        if grow or cut:
            disk.open(f"{PATH}/{segment_name(SEGMENT)}", True).truncate(SEGMENT + grow - cut)
        return [(one.first_lsn, one.next_lsn, one.is_missing) for one in segment_files(disk, PATH)]

    def sound(self, *numbers: int) -> list[tuple[int, int | None, bool]]:
        """Return whole segments, of which the segment 4 is the last one."""
        return [(n * SEGMENT, (n + 1) * SEGMENT if n < 4 else None, False) for n in numbers]

    def test_it_ends_where_the_deleted_ones_began(self) -> None:
        assert self.ends((2 * SEGMENT, 3 * SEGMENT), {2}) == self.sound(0, 1, 3, 4)

    def test_it_should_reach_the_deleted_ones_if_it_is_cut_short(self) -> None:
        assert self.ends((2 * SEGMENT, 3 * SEGMENT), {2}, cut=800) == self.sound(0, 1, 3, 4)

    def test_it_ends_at_the_next_file_if_others_were_deleted_after_that(self) -> None:
        assert self.ends((3 * SEGMENT, 4 * SEGMENT), {3}) == self.sound(0, 1, 2, 4)

    def test_a_file_that_outlived_its_deletion_is_whole_and_the_missing_one_is_named(self) -> None:
        """Its index is sound: it is not that of another segment."""
        missing = (2 * SEGMENT, 3 * SEGMENT, True)
        found = self.ends((SEGMENT, 2 * SEGMENT), {2})
        assert found == [*self.sound(0, 1), missing, *self.sound(3, 4)]

    def test_a_file_that_outlived_its_deletion_may_be_cut_short(self) -> None:
        short = (SEGMENT, 2 * SEGMENT - 800, False)
        assert self.ends((SEGMENT, 3 * SEGMENT), {2}, cut=800) == [
            *self.sound(0), short, *self.sound(3, 4)
        ]  # fmt: skip

    def test_no_file_reaches_into_the_next_one(self) -> None:
        assert self.ends((SEGMENT, 4 * SEGMENT), set(), grow=800) == self.sound(0, 1, 2, 3, 4)
        assert self.ends((SEGMENT, 2 * SEGMENT), set(), grow=800) == self.sound(0, 1, 2, 3, 4)

    def test_a_deletion_that_begins_inside_of_a_file_says_nothing_about_its_end(self) -> None:
        (_, (first, end, _), *_) = self.ends((SEGMENT + 4096, 3 * SEGMENT), {2})
        assert (first, end) == (SEGMENT, 3 * SEGMENT)
