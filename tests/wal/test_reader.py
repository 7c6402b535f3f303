"""Reading batches back: what is found, in how many reads, across segments, verified each time."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import DamagedData
from brokerd.wal import RealDisk, Wal, catalog
from brokerd.walformat.entries import Entry, EntryKind, entry_size
from brokerd.walformat.index import FileIndex, MemoryIndex, PartitionSpan, merge_indexes
from simulator.machine.inline import InlinePool
from tests.wal.rig import PATH, SMALL, Rig, content, events, records


class TestReading:
    def test_the_whole_batch_that_holds_the_offset_comes_back(self) -> None:
        rig = Rig()
        rig.put(records(0, 10))
        (batch,) = rig.wal.plan_read(1, 0, 7, 1).run()  # type: ignore[union-attr]
        assert (batch.base_offset, batch.count) == (0, 10)

    def test_what_follows_comes_too_while_it_fits(self) -> None:
        rig = Rig()
        for offset in range(10):
            rig.put(records(offset, size=100))
        size = len(records(0, size=100).body)
        for batches in range(1, 11):
            assert len(rig.read(0, size * batches)) == batches
            assert len(rig.read(0, size * batches + size - 1)) == batches

    def test_at_least_one_batch_comes_however_large(self) -> None:
        rig = Rig()
        rig.put(records(0, size=5000))
        assert len(rig.read(0, 1)) == 1

    def test_offsets_outside_the_log_are_not_found(self) -> None:
        rig = Rig()
        rig.put(records(5))
        for key in ((1, 0, 4), (1, 0, 6), (1, 1, 5), (2, 0, 5)):
            assert rig.wal.plan_read(*key, 100) is None
            assert rig.wal.time_of(*key) is None

    def test_only_durable_batches_are_seen(self) -> None:
        rig = Rig()
        rig.put(records(0))
        rig.wal.append([records(1)], 1)
        assert rig.wal.plan_read(1, 0, 1, 1) is None
        rig.commits.step()
        assert rig.read(1) == [b"1"]

    def test_partitions_and_topics_do_not_mix(self) -> None:
        rig = Rig()
        for offset in range(5):
            rig.put(
                records(offset, topic_id=1, partition=0),
                records(offset * 10, topic_id=1, partition=1),
                records(offset * 100, topic_id=2),
                events(offset),
            )
        assert rig.read(0, 999) == [b"0", b"1", b"2", b"3", b"4"]
        assert rig.read(20, topic_id=1, partition=1) == [b"20"]
        assert rig.read(300, topic_id=2) == [b"300"]

    def test_the_time_of_a_record_is_that_of_its_frame(self) -> None:
        rig = Rig()
        rig.put(records(0, 3), time_us=70)
        rig.put(records(3), time_us=80)
        assert [rig.wal.time_of(1, 0, offset) for offset in range(5)] == [70, 70, 70, 80, None]

    def test_reads_run_across_segments_sealed_active_and_after_a_restart(self) -> None:
        rig = Rig()
        for offset in range(60):
            rig.put(records(offset, size=3000), records(offset, topic_id=2))
        assert len(rig.wal.segments()) >= 4
        for is_after in (False, True):
            now = rig.restart() if is_after else rig
            for first in (0, 13, 59):
                values = now.read(first, 10**6, topic_id=2)
                assert values == [b"%d" % offset for offset in range(first, 60)]

    def test_a_plan_made_before_sealing_still_runs_after_it(self) -> None:
        rig = Rig()
        rig.put(records(0), records(0, topic_id=2))
        plan = rig.wal.plan_read(1, 0, 0, 100)
        rig.wal.seal()
        rig.put(records(1))
        rig.run()
        assert plan is not None
        assert [batch.base_offset for batch in plan.run()] == [0]

    def test_neighbouring_batches_are_read_in_one_go(self) -> None:
        rig = Rig()
        for offset in range(200):
            rig.put(records(offset))
        rig.disk.calls.clear()
        assert len(rig.read(0, 10**6)) == 200
        assert rig.disk.calls["pread"] == 1

    def test_far_batches_are_read_apart_so_that_little_is_read_in_vain(self) -> None:
        rig = Rig()
        for offset in range(3):
            rig.put(records(offset), records(offset, topic_id=2, size=17_000))
        rig.disk.calls.clear()
        assert len(rig.read(0, 10**6)) == 3
        assert rig.disk.calls["pread"] == 3

    def test_more_segments_than_are_kept_open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(catalog, "OPEN_SEGMENTS_MAX", 2)
        rig = Rig()
        for offset in range(60):
            rig.put(records(offset, size=4000))
        for offset in (0, 20, 40, 0, 59):
            assert rig.read(offset)[0].startswith(b"%d." % offset)


SPOILS = ["gone", "rotten", "another segment's", "unreadable", "0", "50", "88", "150"]
"""What happens to an index file; a number is the length that is left of it."""


class TestMissingIndex:
    """An index file that is gone, or wrong, while the broker runs."""

    def rig(self, spoil: str) -> Rig:
        rig = Rig()
        for offset in range(3):
            rig.put(records(offset), time_us=70 + offset)
        rig.wal.seal()
        rig.run()
        (name,) = rig.files(".idx")
        if spoil == "gone":
            rig.disk.unlink(f"{PATH}/{name}")
        elif spoil == "rotten":
            content(rig.disk, name)[-1] ^= 1
        elif spoil == "another segment's":
            rig.put(records(0, topic_id=2))
            rig.wal.seal()
            rig.run()
            content(rig.disk, name)[:] = content(rig.disk, rig.files(".idx")[1])
        elif spoil == "unreadable":
            rig.disk.fail("open", 1, errno.EACCES)
        else:
            del content(rig.disk, name)[int(spoil) :]
        rig.disk.calls.clear()
        return rig

    @pytest.mark.parametrize("spoil", SPOILS)
    def test_the_read_makes_it_again_and_its_planning_reads_nothing(self, spoil: str) -> None:
        rig = self.rig(spoil)
        plan = rig.wal.plan_read(1, 0, 1, 10**6)
        assert not rig.disk.calls
        assert plan is not None
        assert [batch.base_offset for batch in plan.run()] == [1, 2]
        assert rig.wal.time_of(1, 0, 1) == 71
        assert len(rig.files(".idx")) == len(rig.wal.segments())

    @pytest.mark.parametrize("spoil", ["gone", "rotten"])
    def test_the_time_of_a_record_is_that_of_its_segment_until_it_is_made_in_the_background(
        self, spoil: str
    ) -> None:
        rig = self.rig(spoil)
        began = rig.wal.time_of(1, 0, 0)
        for _ in range(3):
            assert rig.wal.time_of(1, 0, 1) == began != 71
        assert len(rig.background) == 1
        assert not rig.disk.calls
        rig.run()
        assert rig.wal.time_of(1, 0, 1) == 71

    def test_a_disk_without_room_for_it_is_no_end_of_the_broker(self) -> None:
        rig = self.rig("gone")
        rig.disk.fail("create", 1, errno.ENOSPC)
        rig.wal.time_of(1, 0, 1)
        rig.run()
        assert rig.fatal == []
        assert rig.files(".idx") == []
        assert rig.wal.time_of(1, 0, 1) == 71
        assert rig.read(0, 10**6) == [b"0", b"1", b"2"]

    @pytest.mark.parametrize("spoil", ["rotten", "50"])
    def test_what_happens_to_it_while_it_is_in_use_changes_nothing(self, spoil: str) -> None:
        rig = self.rig("gone")
        assert rig.read(0) == [b"0"]
        (name,) = rig.files(".idx")
        data = content(rig.disk, name)
        if spoil == "rotten":
            data[88:] = bytes(len(data) - 88)
        else:
            del data[int(spoil) :]
        assert rig.read(0, 10**6) == [b"0", b"1", b"2"]
        assert rig.wal.time_of(1, 0, 2) == 72

    def test_an_offset_that_turns_out_to_be_lost_reads_as_nothing(self) -> None:
        rig = self.rig("gone")
        plan = rig.wal.plan_read(1, 0, 3, 1)
        assert plan is not None and plan.run() == []


def test_large_indexes_leave_when_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "OPEN_INDEX_BYTES", 1000)
    rig = Rig()
    for segment in range(3):
        for offset in range(10):
            rig.put(records(segment * 10 + offset))
        rig.wal.seal()
        rig.run()

    def opened(offset: int) -> int:
        before = rig.disk.calls["open"]
        assert rig.read(offset) == [b"%d" % offset]
        return rig.disk.calls["open"] - before

    assert [opened(offset) for offset in (0, 1, 10, 2, 20, 0, 20, 10)] == [2, 0, 2, 0, 2, 0, 0, 2]


class TestDamage:
    def test_a_wrong_byte_is_noticed_and_named(self) -> None:
        rig = Rig()
        rig.put(records(0, 4))
        data = content(rig.disk, rig.files()[0])
        data[4096 + 64 + 48 + 88] ^= 1
        with pytest.raises(DamagedData, match=r"0000\.wal at 4160.*topic id 1.*offsets 0 to 3"):
            rig.read(1)

    def test_batches_before_the_damage_come_back_first(self) -> None:
        rig = Rig()
        position = 0
        for offset in range(5):
            position = rig.wal.appended_lsn if offset == 3 else position
            rig.put(records(offset))
        content(rig.disk, rig.files()[0])[position + 64] ^= 1
        assert rig.read(0, 10**6) == [b"0", b"1", b"2"]
        with pytest.raises(DamagedData):
            rig.read(3, 10**6)
        assert rig.read(4, 10**6) == [b"4"]

    def test_a_disk_that_cannot_read_now_says_nothing_of_the_bytes(self) -> None:
        rig = Rig()
        rig.put(records(0))
        rig.disk.fail("pread", 1, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            rig.read(0)
        assert rig.read(0) == [b"0"]

    def test_a_batch_in_the_place_of_another_is_noticed(self) -> None:
        rig = Rig()
        rig.put(records(0))
        first = rig.wal.appended_lsn
        rig.put(records(1))
        data = content(rig.disk, rig.files()[0])
        size = rig.wal.appended_lsn - first
        data[4096:first] = data[first : first + size]
        with pytest.raises(DamagedData, match="not the one"):
            rig.read(0)


batches = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=40
)


class TestIndex:
    @given(batches)
    def test_the_file_answers_as_the_memory_does(self, added: list[tuple[int, int, int]]) -> None:
        growing = MemoryIndex()
        ends: dict[tuple[int, int], int] = {}
        for row, (topic_id, partition, count) in enumerate(added):
            base = ends.get((topic_id, partition), 0)
            is_first = growing.add(topic_id, partition, base, row, count, 4096 + row * 8, row)
            assert is_first == ((topic_id, partition) not in ends)
            ends[topic_id, partition] = base + count
        data = growing.encode(bytes(16), 0, 99)
        loaded = FileIndex(data, bytes(16), 0, 99)
        assert list(loaded.spans()) == list(growing.spans())
        for topic_id in range(5):
            for partition in range(4):
                rows, said = growing.rows(topic_id, partition), loaded.rows(topic_id, partition)
                assert (rows is None) == (said is None)
                if rows is None or said is None:
                    continue
                assert list(map(list, rows)) == list(map(list, said))
                for offset in range(-1, ends[topic_id, partition] + 2):
                    assert said.find(offset) == rows.find(offset)
                    is_held = 0 <= offset < ends[topic_id, partition]
                    assert (rows.find(offset) >= 0) == is_held

    @given(st.lists(batches, max_size=4))
    def test_a_frame_is_added_as_its_batches_one_by_one(
        self, frames: list[list[tuple[int, int, int]]]
    ) -> None:
        """Entries of other kinds are no batches, and take their place in the frame."""
        alone, together = MemoryIndex(), MemoryIndex()
        ends: dict[tuple[int, int], int] = {}
        for time_us, frame in enumerate(frames):
            entries, firsts, position = [], [], 4096
            for topic_id, partition, count in frame:
                kind = EntryKind.RECORDS if topic_id < 3 else EntryKind.GROUP_EVENTS
                base = ends.get((topic_id, partition), 0)
                ends[topic_id, partition] = base + count
                body = bytes(count * 3)
                entries.append(Entry(kind, topic_id, partition, base, count, body))
                row = topic_id, partition, base, time_us, count, position, len(body)
                if kind == EntryKind.RECORDS and alone.add(*row):
                    firsts.append(row[:3])
                position += entry_size(len(body))
            alone.last_time_us = time_us
            assert together.add_frame(entries, time_us, 4096) == firsts
        assert together.encode(bytes(16), 0, 99) == alone.encode(bytes(16), 0, 99)
        assert together.size == alone.size

    def test_the_exact_bytes(self) -> None:
        growing = MemoryIndex()
        growing.add(7, 1, 5, 1000, 3, 4160, 99)
        growing.last_time_us = 1000
        data = growing.encode(bytes(range(16)), 4096, 8192)
        assert data == bytes.fromhex(
            "42524b4449445800 0100 0000 01000000 000102030405060708090a0b0c0d0e0f"
            "0010000000000000 0020000000000000 0100000000000000 e803000000000000"
            "3cbd77a9d99a4486 3fc6f830177d0de6 e2affa0623c7f89a"
            "0700000000000000 01000000 00000000 0500000000000000 0800000000000000 00000000 01000000"
            "0500000000000000 e803000000000000 0300000000000000 4010000000000000 6300000000000000"
        )

    def test_a_gap_left_by_damage_is_not_found(self) -> None:
        growing = MemoryIndex()
        growing.add(1, 0, 0, 0, 2, 0, 0)
        growing.add(1, 0, 5, 0, 2, 0, 0)
        rows = growing.rows(1, 0)
        assert rows is not None
        assert [rows.find(offset) for offset in range(8)] == [0, 0, -1, -1, -1, 1, 1, -1]
        assert list(growing.spans()) == [PartitionSpan(1, 0, 0, 7, 0, 2)]

    def test_two_indexes_of_one_segment_make_one(self) -> None:
        """The times of the one that was written count: the other may have met a lost header."""
        said, found = MemoryIndex(), MemoryIndex()
        for offset, time_us in ((0, 10), (2, 12)):
            said.add(1, 0, offset, time_us, 1, 4096 + 8 * offset, 1)
        for offset, time_us in ((0, 11), (1, 11)):
            found.add(1, 0, offset, time_us, 1, 4096 + 8 * offset, 1)
        found.add(2, 0, 0, 13, 1, 8192, 1)
        found.last_time_us = 14
        both = merge_indexes(said, found)
        rows = both.rows(1, 0)
        assert rows is not None
        assert list(zip(rows.base_offset, rows.time_us, strict=True)) == [(0, 10), (1, 11), (2, 12)]
        assert (both.batches, both.last_time_us) == (4, 14)
        assert [span[:4] for span in both.spans()] == [(1, 0, 0, 3), (2, 0, 0, 1)]

    def test_a_hundred_thousand_small_batches_cost_28_bytes_each(self) -> None:
        growing = MemoryIndex()
        for offset in range(100_000):
            growing.add(1, 0, offset, 0, 1, offset, 1)
        assert len(growing.encode(bytes(16), 0, 0)) < 100_000 * 28 + 200


def test_on_a_real_disk_reads_go_by_index_files_too(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "wal")
    commits, background = InlinePool(), InlinePool()
    dice = random.Random(1)

    def fresh() -> Wal:
        return Wal(RealDisk(), path, SMALL, commits, background, dice.randbytes, lambda: 0.0)

    wal = fresh()
    wal.open(0, lambda frame: None)
    for offset in range(40):
        wal.append([records(offset, size=4000)], 1)
        commits.run()
        background.run()
    for now in (wal, fresh()):
        if now is not wal:
            assert now.open(0, lambda frame: None).frames == 40
        plan = now.plan_read(1, 0, 3, 10**6)
        assert plan is not None
        assert [batch.base_offset for batch in plan.run()] == list(range(3, 40))
