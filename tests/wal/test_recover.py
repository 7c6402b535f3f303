"""What a start makes of a directory: torn tails are cut, damage is reported, neither is served."""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from brokerd.errors import DamagedData, NewerFormat
from brokerd.wal import LostRange, WalOptions
from brokerd.walformat import Entry, EntryKind, encode_frame, segment_salt
from simulator.machine.disk import CrashModel, SimDisk
from tests.wal.rig import PATH, SMALL, Rig, content, events, records

FRAMES = [
    [records(0)],
    [records(1, 3), events(0)],
    [records(0, topic_id=2), records(4)],
    [events(1)],
    [records(5, 2)],
]


def small_log() -> tuple[SimDisk, str, list[int]]:
    """A log of a few frames, each its own commit: (disk, file name, frame ends in the file)."""
    rig = Rig()
    ends = []
    for number, frame in enumerate(FRAMES):
        rig.put(*frame, time_us=100 + number)
        ends.append(rig.wal.appended_lsn)
    return rig.disk.copy(), rig.files()[0], ends


def entries_of(frames: list[list[Entry]]) -> list[Entry]:
    return [entry for frame in frames for entry in frame]


def spoil_frame(disk: SimDisk, name: str, start: int) -> None:
    """Damage the header of a frame and that of its first entry."""
    for position in (start, start + 64):
        content(disk, name)[position] ^= 1


def reseal(data: bytearray, start: int, end: int, seed: int) -> None:
    """Make the checksum at ``end`` right for the bytes before it."""
    data[end : end + 8] = struct.pack("<Q", xxh3_64_intdigest(bytes(data[start:end]), seed))


class TestReplay:
    def test_frames_come_back_in_order_with_time_and_position(self) -> None:
        disk, _, ends = small_log()
        rig = Rig(disk)
        assert rig.entries() == entries_of(FRAMES)
        assert [frame.end for frame in rig.frames] == ends
        assert [frame.lsn for frame in rig.frames] == [4096, *ends[:-1]]
        assert [frame.time_us for frame in rig.frames] == [100, 101, 102, 103, 104]

    def test_the_report_says_where_everything_goes_on(self) -> None:
        disk, _, ends = small_log()
        report = Rig(disk).report
        assert (report.frames, report.bytes) == (5, ends[-1] - 4096)
        assert report.next_lsn == ends[-1]
        assert report.next_offsets == {(1, 0): 7, (2, 0): 1}
        assert report.cut is None and report.damages == []

    def test_no_entry_of_another_kind_is_taken_for_a_loss(self) -> None:
        """The bodies are none of a loss, so a start that took one for it would fail."""
        rig = Rig()
        kinds = [kind for kind in EntryKind if kind not in (EntryKind.RECORDS, EntryKind.LOST)]
        rig.put(*(Entry(kind, 1, 0, 0, 1, b"body") for kind in kinds))
        again = rig.restart()
        assert [entry.kind for entry in again.entries()] == kinds
        assert again.report.loss_entries == []

    def test_only_frames_from_the_given_position_are_applied(self) -> None:
        disk, _, ends = small_log()
        rig = Rig(disk, from_lsn=ends[2])
        assert rig.entries() == entries_of(FRAMES[3:])
        assert rig.report.next_offsets == {(1, 0): 7, (2, 0): 1}

    def test_writing_goes_on_in_a_new_segment(self) -> None:
        disk, name, ends = small_log()
        rig = Rig(disk)
        rig.put(records(7))
        assert rig.files() == [name, f"{ends[-1]:020d}.wal"]
        assert rig.read(6, 9999) == [b"5", b"6", b"7"]
        assert rig.restart().entries() == [*entries_of(FRAMES), records(7)]

    def test_starting_many_times_adds_no_files(self) -> None:
        disk, name, _ = small_log()
        for _ in range(4):
            rig = Rig(disk)
            assert rig.files() == [name]
            assert len(rig.files(".tmp")) == 1

    def test_sealed_segments_below_the_position_are_not_read(self) -> None:
        rig = Rig()
        for offset in range(40):
            rig.put(records(offset, size=4000))
        last = rig.wal.segments()[-1]
        disk = rig.disk.copy()
        reads: list[str] = []
        disk.enter = lambda call: reads.append(call.path) if call.name == "pread" else None
        after = Rig(disk, from_lsn=last.first_lsn)
        assert [path[-4:] for path in reads if "/" + "0" * 20 in path] == [".wal", ".idx", ".idx"]
        assert after.frames[0].lsn == last.first_lsn + 4096
        assert after.report.next_offsets == {(1, 0): 40}
        assert after.read(0) == [b"0" + b"." * 4000]

    def test_an_empty_directory_is_a_new_log(self) -> None:
        rig = Rig()
        assert rig.frames == [] and rig.report.next_lsn == 0

    def test_leftovers_of_a_crash_are_deleted(self) -> None:
        disk, _, _ = small_log()
        disk.create(f"{PATH}/spare-00.tmp")
        disk.create(f"{PATH}/x.idx.tmp")
        rig = Rig(disk)
        assert "spare-00.tmp" not in rig.files("") and "x.idx.tmp" not in rig.files("")

    def test_accepted_bytes_that_may_be_in_the_cache_only_are_written_and_synced_again(
        self,
    ) -> None:
        disk, name, ends = small_log()
        written: list[tuple[str, str]] = []
        disk.enter = lambda call: written.append((call.name, call.path))
        rig = Rig(disk)
        path = f"{PATH}/{name}"
        assert rig.report.rewritten_bytes == ends[-1] - ends[-2]
        assert written.index(("sync", path)) > written.index(("pwrite", path))

    @pytest.mark.parametrize("has_room", [True, False])
    def test_a_segment_whose_name_could_not_be_synced_is_written_again_under_it(
        self, has_room: bool
    ) -> None:
        """The second sync of the directory would succeed, and leave the name out."""
        rig = Rig()
        rig.put(records(0))
        rig.wal.seal()
        rig.run()
        disk = rig.disk
        disk.forgets_failed_names = True
        disk.fail("sync_directory")
        rig.put(records(1))
        assert rig.fatal
        disk.kill()
        if not has_room:
            disk.fail("create", error=errno.ENOSPC)
        again = Rig(disk, seed=2)
        assert len(again.frames) == 2
        if has_room:
            after = again.restart()
            assert after.entries() == again.entries()
            assert after.report.damages == []

    def test_a_full_disk_at_the_sync_of_a_name_at_the_start_is_not_swallowed(self) -> None:
        rig = Rig()
        rig.put(records(0))
        rig.disk.kill()
        rig.disk.fail("sync_directory", error=errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            Rig(rig.disk, seed=2)

    def test_a_failed_sync_at_the_start_is_not_swallowed(self) -> None:
        disk, _, _ = small_log()
        disk.fail("sync")
        with pytest.raises(OSError):
            Rig(disk)


class TestTornTail:
    def test_cut_at_every_length_the_log_recovers_a_prefix(self) -> None:
        disk, name, ends = small_log()
        whole = bytes(content(disk, name))
        for length in range(4096, ends[-1] + 9):
            torn = disk.copy()
            content(torn, name)[length:] = bytes(len(whole) - length)
            rig = Rig(torn)
            kept = sum(end <= length for end in ends)
            # Trailing zeros of a frame may be cut without harm.
            found = len(rig.frames)
            assert found >= kept
            assert rig.entries() == entries_of(FRAMES[:found])
            assert found == kept or not any(whole[length : ends[found - 1]])
            assert rig.report.damages == []

    def test_the_cut_is_reported_and_stays_cut(self) -> None:
        disk, name, ends = small_log()
        content(disk, name)[ends[-1] - 8 :] = bytes(len(content(disk, name)) - ends[-1] + 8)
        rig = Rig(disk)
        cut = rig.report.cut
        assert cut is not None
        assert (cut.name, cut.position, cut.lsn) == (name, ends[-2], ends[-2])
        assert rig.report.next_offsets == {(1, 0): 5, (2, 0): 1}
        rig.put(records(5))
        again = rig.restart()
        assert again.report.cut is None and again.report.damages == []
        assert again.entries() == [*entries_of(FRAMES[:-1]), records(5)]

    def test_a_tear_before_many_frames_is_read_through_once(self) -> None:
        rig = Rig(options=WalOptions(4 << 20, free_bytes_min=0))
        rig.wal.append([records(0)], 1)
        for offset in range(1, 3_000):
            rig.wal.append([records(offset, size=800)], 1)
        rig.commits.run()
        rig.background.run()
        content(rig.disk, rig.files()[0])[5_000] ^= 1
        rig.disk.calls.clear()
        after = Rig(rig.disk, rig.wal.options)
        assert after.report.cut is not None
        assert rig.disk.calls["pread"] < 20

    def test_a_file_cut_short_recovers_too(self) -> None:
        disk, name, ends = small_log()
        for length in range(4104, ends[-1], 8):
            torn = disk.copy()
            del content(torn, name)[length:]
            rig = Rig(torn)
            assert len(rig.frames) == sum(end <= length for end in ends)
            assert rig.report.damages == []

    @given(st.integers(0, 2**32), st.integers(1, 12), st.booleans())
    def test_a_power_cut_loses_nothing_acknowledged_and_keeps_a_prefix(
        self, seed: int, frames: int, is_partial: bool
    ) -> None:
        dice = random.Random(seed)
        rig = Rig()
        for offset in range(frames):
            rig.wal.append([records(offset, size=dice.choice([0, 900, 9000]))], 1)
            for _ in range(dice.randrange(3)):
                rig.commits.step()
                rig.background.step()
        durable = rig.wal.durable_ticket
        # The commit in flight reaches the disk in pieces, or not at all.
        rig.disk.fail("sync")
        rig.commits.step()
        after = rig.restart(CrashModel.REORDER if is_partial else CrashModel.DROP, dice)
        found = [entry.base_offset for entry in after.entries()]
        assert found == list(range(len(found)))
        assert len(found) >= durable
        assert after.report.damages == []

    @given(st.integers(0, 2**32), st.integers(2, 5))
    def test_through_many_power_cuts_offsets_and_positions_only_grow(
        self, seed: int, lives: int
    ) -> None:
        dice = random.Random(seed)
        rig = Rig()
        next_offset = 0
        for _ in range(lives):
            for offset in range(next_offset, next_offset + dice.randrange(12)):
                rig.wal.append([records(offset, size=dice.choice([0, 900, 9000]))], 1)
                for _ in range(dice.randrange(4)):
                    rig.commits.step()
                    rig.background.step()
                if dice.random() < 0.1:
                    rig.wal.seal()
            acknowledged = next_offset + rig.wal.durable_ticket
            durable_lsn = rig.wal.durable_lsn
            rig = rig.restart(dice.choice(list(CrashModel)), dice)
            assert [e.base_offset for e in rig.entries()] == list(range(len(rig.entries())))
            next_offset = rig.report.next_offsets.get((1, 0), 0)
            assert next_offset == len(rig.entries()) >= acknowledged
            assert rig.report.next_lsn >= durable_lsn
            assert rig.report.damages == []
        for offset in range(next_offset):
            assert rig.read(offset)[0].startswith(b"%d" % offset)

    def test_stale_frames_of_another_segment_never_pass(self) -> None:
        disk, name, ends = small_log()
        stale = encode_frame([records(7)], ends[-1], bytes(16), ends[-1], 9)
        content(disk, name)[ends[-1] : ends[-1] + len(stale)] = stale
        rig = Rig(disk)
        assert rig.entries() == entries_of(FRAMES)
        assert rig.report.cut is not None

    def test_a_frame_of_this_segment_at_another_place_never_passes(self) -> None:
        disk, name, ends = small_log()
        data = content(disk, name)
        copied = bytes(data[ends[0] : ends[1]])
        data[ends[-1] : ends[-1] + len(copied)] = copied
        assert Rig(disk).entries() == entries_of(FRAMES)

    def test_a_frame_inside_a_record_never_passes(self) -> None:
        rig = Rig()
        inner = encode_frame([records(99)], 8192, bytes(16), 8192, 1)
        rig.put(records(0)._replace(body=inner))
        rig.put(records(1))
        content(rig.disk, rig.files()[0])[4096] ^= 1
        found = Rig(rig.disk.copy()).entries()
        assert [entry.base_offset for entry in found] == [0, 1]
        content(rig.disk, rig.files()[0])[4096 + 64] ^= 1
        found = Rig(rig.disk.copy()).entries()
        assert [entry.base_offset for entry in found] == [1]


class TestDamage:
    def test_no_flipped_byte_is_silently_wrong(self) -> None:
        disk, name, ends = small_log()
        everything = entries_of(FRAMES)
        for position in range(ends[-1]):
            if 64 <= position < 4096:
                continue
            bad = disk.copy()
            content(bad, name)[position] ^= 0x10
            rig = Rig(bad)
            found = rig.entries()
            if found == everything:
                is_padding = content(disk, name)[position] == 0
                assert is_padding or rig.report.damages, f"byte {position} was not noticed"
                continue
            assert all(entry in everything for entry in found)
            assert rig.report.damages or rig.report.cut is not None
            if position < ends[-2]:
                assert rig.report.damages, f"byte {position} was synced and is no tear"
                assert found[-1] == everything[-1]

    def test_damage_names_file_position_and_the_offsets_lost(self) -> None:
        disk, name, ends = small_log()
        content(disk, name)[ends[0] + 64 + 48 + 88] ^= 1
        rig = Rig(disk)
        (damage,) = rig.report.damages
        assert (damage.name, damage.position, damage.end) == (name, ends[0], ends[1])
        assert damage.lost == [LostRange(1, 0, 1, 4)]
        assert "entry 0" in damage.problem
        assert "topic id 1 partition 0 offsets 1 to 3" in str(damage)

    def test_the_sound_entries_of_a_damaged_frame_are_still_applied(self) -> None:
        disk, name, ends = small_log()
        content(disk, name)[ends[0] + 64 + 48 + 88] ^= 1
        rig = Rig(disk)
        assert rig.entries() == [records(0), events(0), *entries_of(FRAMES[2:])]
        assert rig.report.next_offsets[1, 0] == 7

    @pytest.mark.parametrize("at", [0, 8, 12, 16, 24, 40, 48, 56])
    def test_entries_of_a_frame_without_a_header_are_used(self, at: int) -> None:
        """They prove by themselves what they are; only the frame is told."""
        disk, name, ends = small_log()
        content(disk, name)[ends[0] + at] ^= 1
        rig = Rig(disk)
        (damage,) = rig.report.damages
        assert (damage.position, damage.end, damage.lost) == (ends[0], ends[1], [])
        assert damage.is_counted
        assert rig.entries() == entries_of(FRAMES)
        assert rig.read(0, 9999) == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]

    @pytest.mark.parametrize("size", [0, 30, 4_000, 5_001])
    def test_all_entries_of_a_long_frame_without_a_header_are_found(self, size: int) -> None:
        """However they lie to the pieces in which they are looked for."""
        rig = Rig(options=WalOptions(segment_bytes=4 << 20, free_bytes_min=0))
        frame = [records(offset, 1, size=size) for offset in range(600)]
        rig.put(*frame)
        rig.put(records(len(frame)))
        content(rig.disk, rig.files()[0])[4096] ^= 1
        again = Rig(rig.disk.copy())
        assert again.entries() == [*frame, records(len(frame))]
        (damage,) = again.report.damages
        assert (damage.position, damage.lost, damage.is_counted) == (4096, [], True)

    def test_an_entry_after_a_long_one_that_is_lost_is_found(self) -> None:
        rig = Rig()
        rig.put(records(0, size=30_000), records(1))
        rig.put(records(2))
        spoil_frame(rig.disk, rig.files()[0], 4096)
        again = Rig(rig.disk.copy())
        assert again.entries() == [records(1), records(2)]
        assert again.report.damages[0].lost == [LostRange(1, 0, 0, 1)]

    def test_a_newer_entry_in_a_frame_without_a_header_is_refused(self) -> None:
        disk, name, ends = small_log()
        data = content(disk, name)
        salt = segment_salt(bytes(data[16:32]))
        data[ends[0] + 64] = 99
        reseal(data, ends[0] + 64, ends[0] + 96, salt)
        data[ends[0]] ^= 1
        with pytest.raises(NewerFormat, match="99"):
            Rig(disk.copy())

    def test_a_damaged_body_in_a_frame_without_a_header_is_told(self) -> None:
        disk, name, ends = small_log()
        content(disk, name)[ends[0]] ^= 1
        content(disk, name)[ends[0] + 64 + 48] ^= 1
        rig = Rig(disk)
        (damage,) = rig.report.damages
        assert (damage.lost, damage.is_counted) == ([LostRange(1, 0, 1, 4)], True)

    def test_entries_without_a_frame_take_the_time_of_the_frame_that_follows(self) -> None:
        """What they delay must not come early; the last one knows no later time."""
        disk, name, ends = small_log()
        content(disk, name)[ends[0]] ^= 1
        assert [frame.time_us for frame in Rig(disk).frames] == [100, 102, 102, 102, 103, 104]

    def test_a_frame_that_left_nothing_is_told_by_the_gap_in_later_offsets(self) -> None:
        disk, name, ends = small_log()
        spoil_frame(disk, name, ends[0])
        rig = Rig(disk)
        (damage,) = rig.report.damages
        assert (damage.position, damage.end) == (ends[0], ends[1])
        assert damage.lost == [LostRange(1, 0, 1, 4)]

    def test_the_index_of_a_sealed_segment_tells_what_was_lost(self) -> None:
        """Whatever became of the headers, and whether or not later offsets leave a gap."""
        rig = Rig()
        for frame in FRAMES:
            rig.put(*frame)
        rig = rig.restart()
        rig.put(records(7))
        name, size = rig.files()[0], rig.wal.segments()[0].size
        for start, lost in ((4096, {0, 1, 2, 3}), (size - 304, {5, 6})):
            disk = rig.disk.copy()
            content(disk, name)[start : start + 304] = bytes(304)
            damages = Rig(disk).report.damages
            told = [one for damage in damages for one in damage.lost]
            assert all(one[:2] == (1, 0) for one in told)
            assert lost == {o for one in told for o in range(one.first, one.end)}

    def test_damage_is_never_served_and_the_rest_is(self) -> None:
        disk, name, ends = small_log()
        content(disk, name)[ends[0] + 64 + 48 + 88] ^= 1
        rig = Rig(disk)
        with pytest.raises(DamagedData, match="offsets 1 to 3"):
            rig.read(2)
        assert rig.read(0, 9999) == [b"0"]
        assert rig.read(4, 9999) == [b"4", b"5", b"6"]

    def test_offsets_lost_with_their_header_are_not_found(self) -> None:
        disk, name, ends = small_log()
        spoil_frame(disk, name, ends[0])
        rig = Rig(disk)
        assert rig.read(0, 9999) == [b"0"]
        assert rig.wal.plan_read(1, 0, 2, 1) is None
        assert rig.read(4, 9999) == [b"4", b"5", b"6"]

    def test_damage_is_reported_at_every_start_that_reads_it(self) -> None:
        disk, name, ends = small_log()
        content(disk, name)[ends[0]] ^= 1
        rig = Rig(disk)
        rig.put(records(7))
        for _ in range(2):
            rig = rig.restart()
            assert len(rig.report.damages) == 1

    def test_zeros_in_the_middle_are_damage(self) -> None:
        disk, name, ends = small_log()
        content(disk, name)[ends[0] : ends[1]] = bytes(ends[1] - ends[0])
        rig = Rig(disk)
        assert [damage.position for damage in rig.report.damages] == [ends[0]]
        assert len(rig.frames) == 4

    def test_what_is_unreadable_at_the_end_of_an_older_segment_is_damage(self) -> None:
        rig = Rig()
        for offset in range(20):
            rig.put(records(offset, size=4000))
        first = rig.wal.segments()[0]
        content(rig.disk, first.name)[-100:] = bytes(100)
        after = Rig(rig.disk.copy())
        assert [damage.name for damage in after.report.damages] == [first.name]
        assert after.report.cut is None
        assert len(after.entries()) == 19

    def test_a_missing_segment_is_damage(self) -> None:
        rig = Rig()
        for offset in range(40):
            rig.put(records(offset, size=4000))
        segments = rig.wal.segments()
        rig.disk.unlink(f"{PATH}/{segments[1].name}")
        after = Rig(rig.disk.copy())
        (damage,) = after.report.damages
        assert "missing" in damage.problem
        assert damage.lost == [LostRange(1, 0, 14, 28)]
        assert after.report.next_offsets == {(1, 0): 40}
        assert after.read(20) == []
        assert len(after.read(28)) == 1

    def test_a_missing_segment_is_noticed_below_the_snapshot_too(self) -> None:
        rig = Rig()
        for offset in range(60):
            rig.put(records(offset, size=4000))
        rig.disk.unlink(f"{PATH}/{rig.wal.segments()[1].name}")
        after = Rig(rig.disk.copy(), from_lsn=rig.wal.appended_lsn)
        assert ["missing" in damage.problem for damage in after.report.damages] == [True]

    def test_a_segment_under_a_wrong_name_is_damage(self) -> None:
        disk, name, _ = small_log()
        disk.rename(f"{PATH}/{name}", f"{PATH}/{80:020d}.wal")
        rig = Rig(disk, from_lsn=80)
        assert rig.entries() == []
        missing, damage = rig.report.damages
        assert "from LSN 0 to 80" in missing.problem
        assert "begins at LSN 0" in damage.problem
        kept = bytes(content(disk, f"{80:020d}.wal"))
        rig.put(records(0))
        assert bytes(content(disk, f"{80:020d}.wal")) == kept
        assert Rig(rig.disk.copy(), from_lsn=80).entries() == [records(0)]

    def test_a_log_that_ends_before_the_snapshot_is_damage_and_its_positions_are_not_used_again(
        self,
    ) -> None:
        disk, _, ends = small_log()
        rig = Rig(disk, from_lsn=ends[-1] + 1000)
        assert len(rig.report.damages) == 1
        assert rig.report.next_lsn >= ends[-1] + 1000
        rig.put(records(7))
        assert Rig(rig.disk.copy(), from_lsn=rig.report.next_lsn).entries() == [records(7)]

    def test_a_snapshot_without_any_log_is_damage(self) -> None:
        rig = Rig(from_lsn=8000)
        assert "the log ends at LSN 0" in rig.report.damages[0].problem
        assert rig.report.next_lsn == 8000

    def test_a_log_whose_first_segments_are_gone_is_damage(self) -> None:
        rig = Rig()
        for offset in range(20):
            rig.put(records(offset, size=4000))
        rig.disk.unlink(f"{PATH}/{rig.wal.segments()[0].name}")
        after = Rig(rig.disk.copy())
        assert "nothing is left" in after.report.damages[0].problem

    def test_a_damaged_segment_header_is_replaced_by_what_the_frames_say(self) -> None:
        disk, name, _ = small_log()
        content(disk, name)[20] ^= 1
        rig = Rig(disk)
        assert rig.entries() == entries_of(FRAMES)
        assert "header checksum" in rig.report.damages[0].problem

    def test_a_segment_that_is_all_rubbish_is_reported_and_left_alone(self) -> None:
        rig = Rig()
        for offset in range(40):
            rig.put(records(offset, size=4000))
        name = rig.wal.segments()[1].name
        content(rig.disk, name)[:] = b"x" * 5000
        after = Rig(rig.disk.copy())
        assert after.report.damages[0].name == name
        assert after.report.next_offsets == {(1, 0): 40}
        assert bytes(content(after.disk, name)) == b"x" * 5000


class TestNewerFormat:
    def newer(self, change: Callable[[bytearray, int], None]) -> SimDisk:
        disk, name, _ = small_log()
        data = content(disk, name)
        change(data, segment_salt(bytes(data[16:32])))
        return disk

    def test_nothing_is_changed_when_the_log_is_newer(self) -> None:
        def segment(data: bytearray, salt: int) -> None:
            data[8] = 2
            reseal(data, 0, 56, 0)

        def frame(data: bytearray, salt: int) -> None:
            data[4096 + 4] = 2
            reseal(data, 4096, 4096 + 56, salt)

        def entry(data: bytearray, salt: int) -> None:
            data[4096 + 64] = 99
            reseal(data, 4096 + 64, 4096 + 96, salt)

        for change in (segment, frame, entry):
            disk = self.newer(change)
            disk.create(f"{PATH}/left.tmp")
            before = disk.files()
            with pytest.raises(NewerFormat, match="upgrade"):
                Rig(disk)
            assert disk.files() == before

    def test_nothing_is_changed_when_the_caller_cannot_apply(self) -> None:
        disk, _, _ = small_log()
        disk.create(f"{PATH}/left.tmp")
        rig = Rig()
        wal = rig.wal
        wal._disk = disk

        def refuse(frame: object) -> None:
            raise NewerFormat("no")

        with pytest.raises(NewerFormat):
            wal.open(0, refuse)
        assert "left.tmp" in disk.list(PATH)


class TestIndexes:
    def log(self) -> Rig:
        rig = Rig()
        for offset in range(40):
            rig.put(records(offset, size=4000), records(offset, topic_id=2))
        return rig

    def test_a_missing_index_is_rebuilt(self) -> None:
        rig = self.log()
        name = rig.files(".idx")[0]
        data = bytes(content(rig.disk, name))
        rig.disk.unlink(f"{PATH}/{name}")
        after = Rig(rig.disk.copy(), from_lsn=rig.wal.appended_lsn)
        assert bytes(content(after.disk, name)) == data
        assert after.report.rebuilt_indexes == 2
        assert after.read(3, topic_id=2) == [b"3"]

    def test_an_index_with_any_wrong_byte_is_rebuilt(self) -> None:
        rig = self.log()
        name = rig.files(".idx")[0]
        data = bytes(content(rig.disk, name))
        for position in range(0, len(data), 3):
            disk = rig.disk.copy()
            content(disk, name)[position] ^= 1
            after = Rig(disk, from_lsn=rig.wal.appended_lsn)
            assert after.read(3) == [b"3" + b"." * 4000]
            assert after.read(3, topic_id=2) == [b"3"]
            assert bytes(content(disk, name)) == data

    def test_an_index_of_another_segment_is_rebuilt(self) -> None:
        rig = self.log()
        first, second = rig.files(".idx")[:2]
        content(rig.disk, first)[:] = content(rig.disk, second)
        after = Rig(rig.disk.copy(), from_lsn=rig.wal.appended_lsn)
        assert after.read(3, topic_id=2) == [b"3"]

    def test_a_disk_without_space_keeps_the_index_in_memory(self) -> None:
        rig = self.log()
        disk = rig.disk.copy()
        for name in rig.files(".idx"):
            disk.unlink(f"{PATH}/{name}")
        disk.capacity = disk.used_bytes - (1 << 20)
        after = Rig(disk)
        assert after.files(".idx") == []
        assert after.read(3, topic_id=2) == [b"3"]
        disk.capacity = None
        after.wal.retry_allocation()
        after.run()
        assert len(after.files(".idx")) == len(after.files())
        assert after.read(3, topic_id=2) == [b"3"]


def test_recovery_with_a_large_frame_and_other_segment_sizes() -> None:
    rig = Rig()
    rig.put(records(0))
    rig.wal.request_room(2_000_000)
    rig.run()
    rig.put(records(1, size=1_900_000))
    rig.put(records(2))
    disk = rig.disk.copy()
    after = Rig(disk, WalOptions(1 << 20, free_bytes_min=0))
    assert [len(entry.body) > 1_000_000 for entry in after.entries()] == [False, True, False]
    assert SMALL.segment_bytes < 1 << 20


@pytest.mark.parametrize("content", [b"", b"x" * 5000, None])
def test_a_stray_file_with_the_name_of_a_place_inside_a_segment_cuts_nothing(
    content: bytes | None,
) -> None:
    """It is reported and left alone; ``None`` is a copy of the segment's own beginning."""
    rig = Rig()
    for offset in range(200):
        rig.put(records(offset, size=100))
    disk = rig.disk.copy()
    [name] = Rig(disk.copy()).files()[:1]
    stray = f"{PATH}/{8192:020}.wal"
    with_stray = disk.create(stray)
    if content is None:
        content = disk.open(f"{PATH}/{name}").pread(9000, 0)
    if content:
        with_stray.pwrite(content, 0)
    after = Rig(disk.copy())
    assert after.read(199) == [b"199" + b"." * 100]
    assert [damage.name for damage in after.report.damages] == [f"{8192:020}.wal"]
    assert bytes(after.disk.open(stray).pread(10_000, 0)) == content
    assert len(after.restart().entries()) == 200
