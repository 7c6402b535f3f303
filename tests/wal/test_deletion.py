"""Segments that nobody needs go, anywhere in the log; what is left is read as before."""

from __future__ import annotations

import errno
import os
import pickle
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from twisted.logger import capturedLogs

from brokerd.errors import DamagedData, RecordRemoved
from brokerd.wal import (
    Coverage,
    CoveragePlan,
    LostRange,
    RealDisk,
    SnapshotChunk,
    Snapshots,
)
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.damage.repair import repair
from brokerd.wal.damage.repair_plan import ActionKind, DataPaths, plan_repair
from brokerd.wal.damage.verify import VerifyReport, verify
from brokerd.wal.deletion.deleted_ranges import DeletedRanges, LsnRange, deleted_ranges, named_range
from brokerd.walformat import EntryKind
from simulator.machine.disk import Call, CrashModel, PowerLost, SimDisk
from tests.wal.rig import PATH, SMALL, Rig, content, records

PATHS = DataPaths.of("data")
LSN_MAX = (1 << 63) - 1
KEEP_ENDS = {(1, 0): 60}
"""With topics 1 and 2 these start offsets keep the first and the last segment of `log`."""


@cache
def whole_log() -> SimDisk:
    rig = Rig()
    rig.put(records(0, topic_id=2))
    for offset in range(60):
        rig.put(records(offset, size=4000), time_us=offset)
    rig.put(records(1, topic_id=2), time_us=60)
    return rig.disk.copy()


def log() -> Rig:
    """Topic 1 in all segments, topic 2 in the first and the last; started again, all sealed."""
    return Rig(whole_log().fork())


def first_offsets(rig: Rig) -> list[int]:
    """The first offset of topic 1 in each segment."""
    firsts: dict[str, int] = {}
    for name, found in scan_log(rig.disk, PATH):
        for entry in getattr(found, "entries", ()):
            if entry.header.kind == EntryKind.RECORDS and entry.header.topic_id == 1:
                firsts.setdefault(name, entry.header.base_offset)
    return list(firsts.values())


def delete(
    rig: Rig, starts: dict[tuple[int, int], int], topic_ids: set[int], below_lsn: int = LSN_MAX
) -> list[str]:
    """Delete what can be; returns the names."""
    removables = rig.wal.deleter.plan_removal(starts, topic_ids, below_lsn).run()
    told: list[tuple[int, Exception | None]] = []
    rig.wal.deleter.delete(removables, lambda count, error: told.append((count, error)))
    rig.run()
    assert told == [(len(removables), None)]
    return [one.name for one in removables]


def snapshot(rig: Rig) -> int:
    """Write two snapshots of all there is; returns the LSN where a start begins."""
    store = Snapshots(rig.disk, PATHS.state, lambda count: bytes(count))
    lsn = rig.wal.appended_lsn
    for start in (lsn - 8, lsn):
        store.write(start, [SnapshotChunk(1, b"k", lsn, b"a body")])
    assert store.second_newest() == lsn - 8
    return lsn


def check(disk: SimDisk) -> VerifyReport:
    return verify(disk, PATH, PATHS.state)


def values(rig: Rig, topic_id: int) -> dict[int, bytes]:
    """What can be read of a topic, by offset."""
    found = {}
    for offset in range(70):
        plan = rig.wal.plan_read(topic_id, 0, offset, 1)
        for batch in plan.run() if plan is not None else ():
            assert batch.base_offset == offset
            found[offset] = batch.body
    return found


class TestWhatIsRemovable:
    def test_a_segment_is_once_all_its_records_are_below_the_start_offsets(self) -> None:
        rig = log()
        names, firsts = rig.files(), first_offsets(rig)
        assert delete(rig, {(1, 0): 0}, {1, 2}) == []
        assert delete(rig, {(1, 0): firsts[2] - 1}, {1, 2}) == []
        assert delete(rig, {(1, 0): firsts[2]}, {1, 2}) == names[1:2]

    def test_what_kept_it_is_asked_first_the_next_time_and_the_rest_after_it(self) -> None:
        rig = log()
        names = rig.files()
        assert delete(rig, {(2, 0): 1}, {1, 2}) == []
        assert delete(rig, {(1, 0): 60, (2, 0): 0}, {1, 2}) == names[1:-1]
        assert delete(rig, {(1, 0): 60, (2, 0): 1}, {1, 2}) == names[:1]

    def test_an_old_record_of_one_topic_pins_its_segment_alone(self) -> None:
        rig = log()
        names = rig.files()
        gone = delete(rig, {(1, 0): 60}, {1, 2})
        assert gone == names[1:-1]
        assert rig.read(0, topic_id=2) == [b"0"]
        assert rig.read(1, topic_id=2) == [b"1"]
        assert rig.read(0)[0].startswith(b"0")

    def test_records_of_deleted_topics_need_no_start_offset(self) -> None:
        rig = log()
        names = rig.files()
        assert delete(rig, {}, {2}) == names[1:-1]

    def test_an_index_that_is_made_again_after_damage_hides_no_records(self) -> None:
        """It lacks partitions that the last plan has passed, so others have their places."""
        rig = Rig()
        for topic_id in range(1, 6):
            rig.put(records(0, topic_id=topic_id))
        rig.wal.seal()
        rig.run()
        plan = rig.wal.deleter.plan_removal({}, {3, 4}, LSN_MAX)
        assert plan.run() == []
        plan.remember()
        (name,) = rig.files()
        entries = [
            entry
            for _, found in scan_log(rig.disk, PATH)
            for entry in getattr(found, "entries", ())
        ]
        for entry in entries[:2]:
            content(rig.disk, name)[entry.position : entry.position + 48] = bytes(48)
        rig.disk.unlink(f"{PATH}/{rig.files('.idx')[0]}")
        for _ in range(2):
            plan = rig.wal.deleter.plan_removal({}, {4}, LSN_MAX)
            assert plan.run() == []
            plan.remember()
        assert delete(rig, {}, set()) == [name]

    def test_nothing_above_the_snapshot_is(self) -> None:
        rig = log()
        names = rig.files()
        second_end = rig.wal.segments()[1].end_lsn
        assert delete(rig, {}, set(), second_end - 1) == names[:1]
        assert delete(rig, {}, set(), second_end) == names[1:2]

    def test_the_segment_being_written_is_not(self) -> None:
        rig = log()
        rig.put(records(2, topic_id=2))
        names = rig.files()
        assert delete(rig, {}, set()) == names[:-1]
        assert rig.files() == names[-1:]

    def test_a_segment_without_records_is(self) -> None:
        rig = log()
        rig.put()
        rig.wal.seal()
        rig.run()
        names = rig.files()
        assert delete(rig, {}, {1, 2}) == names[-1:]

    def test_one_that_is_known_to_be_kept_is_not_looked_at_again(self) -> None:
        rig = log()
        starts = {(1, 0): 60}
        plan = rig.wal.deleter.plan_removal(starts, {1, 2}, LSN_MAX)
        assert len(plan.run()) == 3
        plan.remember()
        opened = rig.disk.calls["open"]
        assert len(rig.wal.deleter.plan_removal(starts, {1, 2}, LSN_MAX).run()) == 3
        assert rig.disk.calls["open"] == opened + 2 * 3

    def test_one_whose_index_has_no_space_yet_is_not(self) -> None:
        rig = log()
        rig.put(records(60))
        rig.disk.fail("create", nth=2, error=errno.ENOSPC)  # the first makes room for frames
        rig.wal.seal()
        rig.run()
        names = rig.files()
        unindexed = [n for n in names if n.replace(".wal", ".idx") not in rig.files(".idx")]
        assert unindexed == names[-1:]
        assert delete(rig, {}, set()) == [name for name in names if name not in unindexed]
        rig.wal.retry_allocation()
        rig.run()
        assert delete(rig, {}, set()) == unindexed

    def test_an_index_that_is_damaged_is_made_again_and_asked(self) -> None:
        rig = log()
        names = rig.files()
        content(rig.disk, names[1].replace(".wal", ".idx"))[70] ^= 1
        assert delete(rig, KEEP_ENDS, {1, 2}) == names[1:-1]


class TestWhatAnArchiveHas:
    """Of topic 1, which is in all segments; topic 2 is removed."""

    def plan(self, rig: Rig, starts: dict[tuple[int, int], int], **changes: Any) -> CoveragePlan:
        plan = rig.wal.deleter.plan_removal(starts, {1, 2}, LSN_MAX)
        assert len(plan.run()) < 3
        plan.remember()
        coverage = Coverage(1, lambda *of: True, LSN_MAX, LSN_MAX, LSN_MAX, LSN_MAX)._replace(
            **changes
        )
        return rig.wal.deleter.plan_coverage(starts, {1, 2}, LSN_MAX, coverage)

    def test_segments_can_go_with_what_must_be_on_record_before(self) -> None:
        rig = log()
        names, firsts = rig.files(), first_offsets(rig)
        found = self.plan(rig, {(2, 0): 2}).run()
        assert [one.name for one in found] == names
        assert [one.archived for one in found] == [[(1, 0, end)] for end in (*firsts[1:], 60)]

    def test_offsets_that_are_removed_are_not_asked_for(self) -> None:
        rig = log()
        firsts = first_offsets(rig)
        asked: list[tuple[int, ...]] = []

        def covers(*of: int) -> bool:
            asked.append(of)
            return True

        start = firsts[1] + 2
        self.plan(rig, {(1, 0): start, (2, 0): 2}, covers=covers).run()
        assert asked[0] == (1, 0, start, firsts[2])

    def test_one_that_is_deleted_meanwhile_is_passed_over(self) -> None:
        rig = log()
        names = rig.files()
        plan = self.plan(rig, {})
        assert delete(rig, KEEP_ENDS, {1, 2}) == names[1:-1]
        assert [one.name for one in plan.run()] == [names[0], names[-1]]


class TestThreads:
    """Segments belong to the log's own thread; a plan runs in another."""

    def plans(self, rig: Rig, asked: list[int]) -> list[Any]:
        def covers(*of: int) -> bool:
            asked.append(of[2])
            return False

        coverage = Coverage(1, covers, LSN_MAX, LSN_MAX, LSN_MAX, LSN_MAX)
        return [
            rig.wal.deleter.plan_removal({(2, 0): 2}, {1, 2}, LSN_MAX),
            rig.wal.deleter.plan_coverage({(2, 0): 2}, {1, 2}, LSN_MAX, coverage),
            rig.wal.plan_offset_of_size(1, 0, 1 << 30),
        ]

    @pytest.mark.pure_only("a compiled segment has no __dict__ to compare")
    def test_a_run_changes_no_segment_and_what_it_found_is_kept_on_request(self) -> None:
        rig, asked = log(), list[int]()
        for at in range(3):
            before = pickle.dumps([vars(segment) for segment in rig.wal._catalog.segments])
            plan = self.plans(rig, asked)[at]
            thread = threading.Thread(target=plan.run)
            thread.start()
            thread.join()
            seen = [vars(segment) for segment in rig.wal._catalog.segments]
            assert pickle.dumps(seen) == before
            plan.remember()
            assert pickle.dumps(seen) != before
        assert len(asked) == len(rig.files())
        rig.disk.calls.clear()
        for plan in self.plans(rig, asked):
            plan.run()
        assert len(asked) == len(rig.files()), "the archive lacks for good what it lacked"
        assert rig.disk.calls["open"] <= len(rig.files()), "only for the directories of indexes"


class TestReads:
    def test_a_deleted_place_has_no_plan(self) -> None:
        rig = log()
        delete(rig, {(1, 0): 60}, {1, 2})
        assert rig.wal.plan_read(1, 0, 20, 1) is None or rig.wal.plan_read(1, 0, 20, 1).run() == []
        assert rig.wal.time_of(1, 0, 30) is None

    def test_a_plan_from_before_that_has_to_open_the_segment_says_it_is_removed(self) -> None:
        rig = log()
        plan = rig.wal.plan_read(1, 0, 30, 1)
        assert plan is not None
        delete(rig, KEEP_ENDS, {1, 2})
        with pytest.raises(RecordRemoved):
            plan.run()

    def test_a_plan_that_has_the_segment_open_reads_on(self) -> None:
        rig = log()
        rig.read(30)
        plan = rig.wal.plan_read(1, 0, 30, 1)
        assert plan is not None
        delete(rig, {(1, 0): 60}, {1, 2})
        assert [batch.base_offset for batch in plan.run()] == [30]


def test_ranges_are_coalesced_and_asked() -> None:
    some = DeletedRanges([LsnRange(40, 50), LsnRange(10, 20), LsnRange(20, 30)])
    assert list(some) == [(10, 30), (40, 50)]
    assert list(some.missing(0, 60)) == [(0, 10), (30, 40), (50, 60)]
    assert list(some.missing(12, 28)) == []
    assert list(some.missing(25, 45)) == [(30, 40)]
    assert list(some.after(25)) == [(25, 30), (40, 50)]
    assert some.cover(10, 30) and not some.cover(10, 31) and not some.cover(9, 12)
    assert some.end == 50


def test_what_touches_is_one_record() -> None:
    rig = log()
    segments = rig.wal.segments()
    delete(rig, {(1, 0): 28}, {1, 2})
    delete(rig, {(1, 0): 60}, {1, 2})
    assert list(deleted_ranges(rig.disk, PATH)) == [(segments[1].first_lsn, segments[-1].first_lsn)]
    assert len(rig.files(".deleted")) == 1


class TestAStartAfterwards:
    def test_it_reads_what_is_left_and_goes_on_behind_the_end(self) -> None:
        rig = log()
        kept = {topic_id: values(rig, topic_id) for topic_id in (1, 2)}
        lsn = snapshot(rig)
        gone = delete(rig, KEEP_ENDS, {1, 2})
        assert len(gone) == 3
        again = rig.restart(from_lsn=lsn)
        assert again.report.damages == [] and again.report.bad_indexes == []
        assert again.report.next_lsn == lsn
        assert again.report.next_offsets == {(1, 0): 60, (2, 0): 2}
        left = values(again, 1)
        assert left and left.items() < kept[1].items()
        assert values(again, 2) == kept[2]
        assert check(again.disk).sound
        again.put(records(60))
        assert again.read(60) == [b"60"]
        assert Rig(again.disk.copy(), from_lsn=lsn).read(60) == [b"60"]

    def test_of_a_log_all_of_which_is_deleted(self) -> None:
        rig = log()
        lsn = snapshot(rig)
        delete(rig, {}, set())
        assert rig.files() == []
        again = rig.restart(from_lsn=lsn)
        assert again.report.damages == [] and again.report.next_lsn == lsn
        assert check(again.disk).sound
        again.put(records(60))
        third = again.restart(from_lsn=lsn)
        assert third.report.damages == [] and third.read(60) == [b"60"]
        assert check(third.disk).sound

    def test_verify_says_what_was_deleted(self) -> None:
        rig = log()
        segments = rig.wal.segments()
        snapshot(rig)
        delete(rig, KEEP_ENDS, {1, 2})
        report = check(rig.disk)
        assert report.deleted == [(segments[1].first_lsn, segments[-1].first_lsn)]
        assert report.segments == 2

    def test_dump_passes_over_it(self) -> None:
        rig = log()
        delete(rig, KEEP_ENDS, {1, 2})
        problems = [getattr(found, "problem", None) for _, found in scan_log(rig.disk, PATH)]
        assert set(problems) == {None}

    @pytest.mark.parametrize("number", range(5))
    def test_a_segment_that_is_lost_beside_it_is_still_told(self, number: int) -> None:
        rig = log()
        names = rig.files()
        ends = [segment.end_lsn for segment in rig.wal.segments()]
        lsn = snapshot(rig)
        removables = rig.wal.deleter.plan_removal({}, set(), LSN_MAX).run()
        rig.wal.deleter.delete([one for at, one in enumerate(removables) if at != number])
        rig.run()
        assert rig.files() == names[number : number + 1]
        rig.disk.unlink(f"{PATH}/{names[number]}")
        rig.disk.unlink(f"{PATH}/{names[number].replace('.wal', '.idx')}")
        rig.put(records(60))
        (damage,) = rig.restart(from_lsn=lsn).report.damages
        first = int(names[number][:20])
        assert (damage.name, damage.position) == (names[number], 0)
        assert first + damage.end == ends[number]
        assert [one[:3] for one in map(place, check(rig.disk).damages)] == [place(damage)]

    def test_records_that_were_removed_are_not_called_lost_by_other_damage(self) -> None:
        rig = log()
        firsts = first_offsets(rig)
        lsn = snapshot(rig)
        delete(rig, {(1, 0): firsts[3]}, {1, 2})
        name = rig.files()[0]
        content(rig.disk, name)[-100] ^= 1
        rig.disk.unlink(f"{PATH}/{name.replace('.wal', '.idx')}")
        report = Rig(rig.disk.copy(), from_lsn=lsn).report
        (damage,) = report.damages
        report.keep_needed({(1, 0): firsts[3]})
        assert report.holes == []
        assert [one for one in damage.lost if one.first >= firsts[3]] == []

    @pytest.mark.parametrize("number", range(4))
    def test_one_that_is_lost_before_it_at_the_end_is_told_too(self, number: int) -> None:
        rig = log()
        names = rig.files()
        lsn = snapshot(rig)
        removables = rig.wal.deleter.plan_removal({}, set(), LSN_MAX).run()
        rig.wal.deleter.delete([one for at, one in enumerate(removables) if at != number])
        rig.run()
        for suffix in (".wal", ".idx"):
            rig.disk.unlink(f"{PATH}/{names[number][:20]}{suffix}")
        rig.disk.sync_directory(PATH)
        again = rig.restart(from_lsn=lsn)
        assert [damage.name for damage in again.report.damages] == [names[number]]
        assert again.report.next_lsn == lsn

    def test_indexes_that_a_crash_left_are_deleted_and_tell_of_nothing(self) -> None:
        rig = log()
        lsn = snapshot(rig)
        indexes = {name: bytes(content(rig.disk, name)) for name in rig.files(".idx")}
        delete(rig, {}, set())
        for name, data in indexes.items():
            rig.disk.create(f"{PATH}/{name}").pwrite(data, 0)
        assert check(rig.disk).sound
        again = Rig(rig.disk.copy(), from_lsn=lsn)
        assert again.report.damages == [] and again.report.foreign_names == []
        assert again.report.next_lsn == lsn
        assert again.files(".idx") == []

    def test_records_that_a_wider_one_replaced_are_deleted(self) -> None:
        rig = log()
        lsn = snapshot(rig)
        delete(rig, {}, set())
        rig.disk.create(f"{PATH}/{8:020d}-{80:020d}.deleted")
        assert Rig(rig.disk.copy(), from_lsn=lsn).files(".deleted") == [
            f"{0:020d}-{lsn:020d}.deleted"
        ]

    def test_the_log_may_begin_far_behind_what_was_deleted(self) -> None:
        """More may have been deleted than would be believed to be missing."""
        far = 17 << 30
        disk = SimDisk()
        disk.create(f"{PATH}/{0:020d}-{far:020d}.deleted")
        rig = Rig(disk, from_lsn=far)
        rig.put(records(7))
        assert rig.files() == [f"{far:020d}.wal"]
        with pytest.raises(DamagedData, match=f"from LSN 0 to {far} was deleted"):
            Rig(rig.disk.copy())
        assert Rig(rig.disk.copy(), from_lsn=far).report.damages == []

    def test_a_segment_of_which_nothing_can_be_read_follows_it(self) -> None:
        rig = log()
        lsn = rig.wal.appended_lsn
        delete(rig, KEEP_ENDS, {1, 2})
        last = rig.files()[-1]
        data = content(rig.disk, last)
        data[:] = bytes(len(data))
        report = Rig(rig.disk.copy(), from_lsn=lsn).report
        assert report.damages[-1].name == last

    def test_a_start_without_a_snapshot_is_refused_until_a_repair_gives_it_up(self) -> None:
        """What groups and topics did then is not known: nobody may take offsets for new."""
        rig = log()
        segments = rig.wal.segments()
        delete(rig, KEEP_ENDS, {1, 2})
        before = rig.disk.files()
        end_lsn = segments[-1].first_lsn
        with pytest.raises(DamagedData, match=f"a snapshot of LSN {end_lsn} or later"):
            rig.restart()
        assert rig.disk.files() == before
        assert [place(damage) for damage in check(rig.disk).damages] == [
            (segments[1].name, 0, end_lsn - segments[1].first_lsn)
        ]
        plan = plan_repair(rig.disk, PATHS)
        assert [action.kind for action in plan.actions] == [ActionKind.RECORD]
        repair(rig.disk, PATHS, plan, "20231114T221320Z", lambda count: b"\7" * count)
        assert check(rig.disk).sound
        report = Rig(rig.disk).report
        assert report.damages == []
        assert [damage.name for damage in report.recorded] == [segments[1].name]

    def test_a_start_from_a_snapshot_inside_what_was_deleted_misses_only_the_rest(self) -> None:
        rig = log()
        segments = rig.wal.segments()
        delete(rig, KEEP_ENDS, {1, 2})
        inside = segments[2].first_lsn + 4096
        with pytest.raises(DamagedData, match=f"LSN {inside} to {segments[-1].first_lsn}"):
            rig.restart(from_lsn=inside)


def place(damage: object) -> tuple[str, int, int]:
    return damage.name, damage.position, damage.end  # type: ignore[attr-defined]


class TestDamageInIt:
    """Damage that is known, and whose segment is deleted, is not damage that was cured."""

    def test_it_is_unchanged(self) -> None:
        rig = log()
        content(rig.disk, rig.files()[1])[5000] ^= 1
        rig = rig.restart()
        (known,) = rig.report.damage_fingerprints
        lsn = snapshot(rig)
        delete(rig, KEEP_ENDS, {1, 2})
        assert rig.wal.is_unchanged(known)
        assert rig.restart(from_lsn=lsn).wal.is_unchanged(known)

    def test_it_is_changed_if_the_file_comes_back(self) -> None:
        rig = log()
        name = rig.files()[1]
        before = bytes(content(rig.disk, name))
        content(rig.disk, name)[5000] ^= 1
        rig = rig.restart()
        (known,) = rig.report.damage_fingerprints
        delete(rig, KEEP_ENDS, {1, 2})
        rig.disk.create(f"{PATH}/{name}").pwrite(before, 0)
        assert not rig.wal.is_unchanged(known)

    def test_it_stays_on_record(self) -> None:
        rig = log()
        content(rig.disk, rig.files()[1])[5000] ^= 1
        plan = plan_repair(rig.disk, PATHS)
        repair(rig.disk, PATHS, plan, "20231114T221320Z", lambda count: b"\7" * count)
        rig = Rig(rig.disk)
        lsn = rig.wal.segments()[-2].end_lsn
        assert delete(rig, {(1, 0): 60, (2, 0): 2}, {1, 2}, lsn)
        report = rig.restart(from_lsn=lsn).report
        assert len(report.loss_entries) == 1 and report.stale_losses == []
        assert report.damages == []


class TestCrashes:
    def swept(self) -> Iterator[tuple[SimDisk, int, int]]:
        """A disk after each call of a deletion of three segments, in two lots."""
        for stop in range(1, 100):
            rig = log()
            lsn = snapshot(rig)
            firsts = first_offsets(rig)
            calls = 0

            def enter(call: Call, stop: int = stop) -> None:
                nonlocal calls
                calls += call.name not in ("open", "pread", "list", "free_bytes")
                if calls == stop:
                    raise PowerLost("here")

            rig.disk.enter = enter
            try:
                assert delete(rig, {(1, 0): firsts[2]}, {1, 2})
                assert delete(rig, KEEP_ENDS, {1, 2})
            except PowerLost:
                rig.disk.enter = lambda call: None
                yield rig.disk, lsn, stop
            else:
                return

    @pytest.mark.parametrize("model", list(CrashModel))
    def test_a_start_after_one_finds_nothing_wrong_and_the_deletion_can_be_finished(
        self, model: CrashModel
    ) -> None:
        whole = values(log(), 2)
        count = 0
        for disk, lsn, stop in self.swept():
            count += 1
            disk.crash(model, random.Random(stop))
            assert check(disk.fork()).sound
            rig = Rig(disk, from_lsn=lsn)
            assert rig.report.damages == [] and rig.report.foreign_names == []
            assert rig.report.next_lsn == lsn
            assert values(rig, 2) == whole
            delete(rig, KEEP_ENDS, {1, 2})
            assert len(rig.files()) == 2
            rig.put(records(60))
            assert check(disk.fork()).sound
            last = rig.restart(from_lsn=lsn)
            assert last.report.damages == [] and last.read(60) == [b"60"]
            assert len(last.files(".deleted")) == 1
            names = {name[:20] for name in last.files()}
            assert {name[:20] for name in last.files(".idx")} <= names
        assert count > 10


class TestSpace:
    def test_that_of_a_segment_that_was_read_comes_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No file stays open that has no name any more."""
        monkeypatch.chdir(tmp_path)
        disk = RealDisk()
        disk.make_directory(PATH)
        for name, data in log().disk.files().items():
            disk.create(name).pwrite(data, 0)
        rig = Rig(disk)  # type: ignore[arg-type]
        assert rig.read(30)
        before = disk.list(PATH)
        delete(rig, KEEP_ENDS, {1, 2})
        assert len(before) - len(disk.list(PATH)) == 5
        targets = []
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # that of the listing itself
                targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        assert [one for one in targets if str(tmp_path) in one and "deleted" in one] == []


class TestFailures:
    def test_no_space_for_the_record_deletes_nothing(self) -> None:
        rig = log()
        names = rig.files()
        removables = rig.wal.deleter.plan_removal(KEEP_ENDS, {1, 2}, LSN_MAX).run()
        told: list[tuple[int, Exception | None]] = []
        rig.disk.fail("create", error=errno.ENOSPC)
        rig.wal.deleter.delete(removables, lambda count, error: told.append((count, error)))
        rig.run()
        assert told[0][0] == 0 and isinstance(told[0][1], OSError)
        assert rig.files() == names and rig.fatal == []
        assert delete(rig, KEEP_ENDS, {1, 2}) == names[1:-1]

    def test_a_record_that_may_not_be_on_the_disk_is_fatal_and_deletes_nothing(self) -> None:
        rig = log()
        names = rig.files()
        removables = rig.wal.deleter.plan_removal(KEEP_ENDS, {1, 2}, LSN_MAX).run()
        rig.disk.fail("sync_directory")
        rig.wal.deleter.delete(removables)
        rig.run()
        assert len(rig.fatal) == 1
        assert rig.files() == names

    def test_a_failed_sync_after_the_deletion_is_fatal(self) -> None:
        """It may have covered the name of a new segment."""
        rig = log()
        removables = rig.wal.deleter.plan_removal(KEEP_ENDS, {1, 2}, LSN_MAX).run()
        told: list[tuple[int, Exception | None]] = []
        rig.disk.fail("sync_directory", nth=2)
        rig.wal.deleter.delete(removables, lambda count, error: told.append((count, error)))
        rig.run()
        assert len(rig.fatal) == 1
        assert [(count, type(error)) for count, error in told] == [(len(removables), OSError)]

    def test_a_record_whose_sync_failed_is_written_again_by_the_next_start(self) -> None:
        """The second sync of the directory would succeed, and leave the record out."""
        rig = log()
        rig.disk.forgets_failed_names = True
        removables = rig.wal.deleter.plan_removal(KEEP_ENDS, {1, 2}, LSN_MAX).run()
        rig.disk.fail("sync_directory")
        rig.wal.deleter.delete(removables)
        rig.run()
        assert rig.fatal and rig.files(".deleted")
        rig.disk.kill()
        again = Rig(rig.disk, from_lsn=rig.wal.durable_lsn, seed=2)
        assert delete(again, KEEP_ENDS, {1, 2})
        after = again.restart(from_lsn=again.wal.durable_lsn)
        assert after.files(".deleted") == rig.files(".deleted")
        assert after.report.damages == []

    def test_a_file_that_the_system_keeps_is_told_and_the_rest_goes(self) -> None:
        rig = log()
        names = rig.files()
        removables = rig.wal.deleter.plan_removal(KEEP_ENDS, {1, 2}, LSN_MAX).run()
        rig.disk.fail("unlink", nth=2, error=errno.EPERM)
        with capturedLogs() as logs:
            rig.wal.deleter.delete(removables)
            rig.run()
        assert rig.files() == [names[0], names[1], names[-1]]
        assert rig.fatal == []
        told = [event["event_id"] for event in logs]
        assert told.count("segment-not-deleted") == 1 and told.count("segment-deleted") == 2
        again = rig.restart(from_lsn=rig.wal.durable_lsn)
        assert again.report.damages == []
        assert delete(again, KEEP_ENDS, {1, 2}) == [names[1]]

    def test_a_close_waits_for_the_segment_under_way_alone(self) -> None:
        rig = log()
        removables = rig.wal.deleter.plan_removal(KEEP_ENDS, {1, 2}, LSN_MAX).run()
        told: list[tuple[int, Exception | None]] = []
        rig.wal.deleter.delete(removables, lambda count, error: told.append((count, error)))
        rig.background.step()
        closed: list[object] = []
        rig.wal.close(closed.append)
        rig.commits.run()
        assert closed == []
        rig.run()
        assert closed == [None] and told == [(1, None)]

    def test_after_a_failure_nothing_is_deleted(self) -> None:
        rig = log()
        removables = rig.wal.deleter.plan_removal(KEEP_ENDS, {1, 2}, LSN_MAX).run()
        names = rig.files()
        rig.wal.fail("writing failed", OSError("here"))
        rig.wal.deleter.delete(removables)
        rig.run()
        assert rig.files() == names

    def test_after_a_close_nothing_is_deleted(self) -> None:
        rig = log()
        names = rig.files()
        removables = rig.wal.deleter.plan_removal(KEEP_ENDS, {1, 2}, LSN_MAX).run()
        rig.wal.close(lambda error: None)
        rig.run()
        told: list[tuple[int, Exception | None]] = []
        rig.wal.deleter.delete(removables, lambda count, error: told.append((count, error)))
        rig.run()
        assert told == [(0, None)] and rig.files() == names
        assert rig.files(".deleted") == []

    @pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
    def test_what_was_appended_before_is_synced_first(
        self, durability: Literal["fsync", "interval", "os"]
    ) -> None:
        """Start offsets that a loss of power takes back would leave records that are gone."""
        rig = Rig(whole_log().fork(), replace(SMALL, durability=durability))
        lsn = snapshot(rig)
        rig.put(records(60))
        rig.put(records(61))  # the first of a segment is synced in any case
        assert delete(rig, KEEP_ENDS, {1, 2}, lsn)
        again = rig.restart(from_lsn=lsn)
        assert again.report.damages == [] and again.read(61) == [b"61"]

    def test_a_sync_before_it_that_fails_is_fatal_and_nothing_is_deleted(self) -> None:
        rig = Rig(whole_log().fork(), replace(SMALL, durability="os"))
        rig.put(records(60))
        names = rig.files()
        removables = rig.wal.deleter.plan_removal(KEEP_ENDS, {1, 2}, LSN_MAX).run()
        told: list[tuple[int, Exception | None]] = []
        rig.disk.fail("sync")
        rig.wal.deleter.delete(removables, lambda count, error: told.append((count, error)))
        rig.run()
        assert len(rig.fatal) == 1 and told[0][0] == 0
        assert rig.files() == names

    def test_segments_named_twice_are_deleted_once(self) -> None:
        rig = log()
        removables = rig.wal.deleter.plan_removal(KEEP_ENDS, {1, 2}, LSN_MAX).run()
        told: list[tuple[int, Exception | None]] = []
        for _ in range(2):
            rig.wal.deleter.delete(removables, lambda count, error: told.append((count, error)))
        rig.run()
        assert told == [(3, None), (0, None)]


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            f"{8:020d}-{8:020d}.deleted",
            f"{9:020d}-{8:020d}.deleted",
            f"{0:020d}-{1 << 63:020d}.deleted",
            f"{0:020d}-{8:020d}.delete",
            f"{0:019d}-{8:020d}.deleted",
        ],
    )
    def test_other_names_say_nothing_and_are_odd(self, name: str) -> None:
        rig = log()
        rig.disk.create(f"{PATH}/{name}")
        assert named_range(name) is None
        assert Rig(rig.disk.copy()).report.foreign_names == [name]

    def test_what_is_named_and_still_there_is_used(self) -> None:
        """It says that nothing is lost by an absence; it is no order to delete."""
        rig = log()
        before = values(rig, 1)
        rig.disk.create(f"{PATH}/{0:020d}-{rig.wal.appended_lsn:020d}.deleted")
        again = Rig(rig.disk.copy(), from_lsn=rig.wal.appended_lsn)
        assert again.report.damages == []
        assert values(again, 1) == before

    def test_one_that_lies_inside_of_a_segment_ends_nothing(self) -> None:
        rig = log()
        before = values(rig, 1)
        first = rig.wal.segments()[1].first_lsn
        rig.disk.create(f"{PATH}/{first + 8000:020d}-{first + 9000:020d}.deleted")
        again = Rig(rig.disk.copy(), from_lsn=rig.wal.appended_lsn)
        assert again.report.damages == []
        assert values(again, 1) == before


class TestAnOutdatedSnapshot:
    def store(self, disk: SimDisk, *bodies: bytes) -> Snapshots:
        store = Snapshots(disk, PATHS.state, lambda count: bytes(count))
        for number, body in enumerate(bodies):
            store.write(1000 + 8 * number, [SnapshotChunk(1, b"k", 1000, body)])
        return store

    def why(self, chunk: SnapshotChunk) -> str | None:
        return "cured" if chunk.body == b"old" else None

    def load(self, store: Snapshots, oldest_lsn: int) -> tuple[int | None, list[str]]:
        """Where the snapshot begins that is used, and what is told of that."""
        with capturedLogs() as logs:
            loaded = store.load_newest(self.why, oldest_lsn)
        told = [event["event_id"] for event in logs]
        return None if loaded is None else loaded.start_lsn, told

    def test_is_used_when_the_log_before_it_is_deleted(self) -> None:
        store = self.store(SimDisk(), b"old", b"old")
        outdated = ["snapshot-outdated"] * 2
        assert self.load(store, 0) == (None, outdated)
        for oldest_lsn in (1, 1000, 1008):
            assert self.load(store, oldest_lsn) == (1008, [*outdated, "outdated-state-used"])
        assert self.load(store, 1009) == (None, outdated)

    def test_is_not_used_when_there_is_another_that_is_above_too(self) -> None:
        store = self.store(SimDisk(), b"new", b"old")
        assert self.load(store, 1000) == (1000, ["snapshot-outdated"])
        assert self.load(store, 1001) == (1008, ["snapshot-outdated", "outdated-state-used"])


class TestSecondNewest:
    def test_there_must_be_two(self) -> None:
        disk = SimDisk()
        store = Snapshots(disk, PATHS.state, lambda count: bytes(count))
        assert store.second_newest() is None
        for lsn, expected in ((8, None), (16, 8), (24, 16)):
            store.write(lsn, [SnapshotChunk(1, b"k", lsn, b"body")])
            assert store.second_newest() == expected

    def test_one_that_is_damaged_holds_nothing(self) -> None:
        disk = SimDisk()
        store = Snapshots(disk, PATHS.state, lambda count: bytes(count))
        for lsn in (8, 16):
            store.write(lsn, [SnapshotChunk(1, b"k", lsn, b"body")])
        disk.content(f"{PATHS.state}/{8:020d}.snap")[-60] ^= 1
        with capturedLogs() as logs:
            assert store.second_newest() is None
        assert [event["event_id"] for event in logs] == ["snapshot-damaged"]


def test_lost_ranges_are_clipped_at_the_start() -> None:
    rig = log()
    report = rig.report
    report.holes = [LostRange(1, 0, 5, 10), LostRange(1, 0, 15, 30), LostRange(1, 1, 0, 3)]
    report.keep_needed({(1, 0): 20})
    assert report.holes == [LostRange(1, 0, 20, 30), LostRange(1, 1, 0, 3)]
