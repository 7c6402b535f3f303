"""Segments that nobody needs go, anywhere in the log; what is left is read as before."""

from __future__ import annotations

import pytest

from brokerd.errors import RecordRemoved
from brokerd.wal.deleted import DeletedRanges, LsnRange, deleted_ranges
from tests.wal.rig import PATH, Rig, records

LSN_MAX = (1 << 63) - 1


def log(batches: int = 60) -> Rig:
    """Topic 1 in all segments, topic 2 in the first and the last."""
    rig = Rig()
    rig.put(records(0, topic_id=2))
    for offset in range(batches):
        rig.put(records(offset, size=4000))
    rig.put(records(1, topic_id=2))
    return rig


def delete(
    rig: Rig, starts: dict[tuple[int, int], int], topic_ids: set[int], below_lsn: int = LSN_MAX
) -> list[str]:
    """Delete what can be; returns the names."""
    removables = rig.wal.removable(starts, topic_ids, below_lsn).run()
    told: list[tuple[int, Exception | None]] = []
    rig.wal.delete_segments(removables, lambda count, error: told.append((count, error)))
    rig.run()
    assert told == [(len(removables), None)]
    return [one.name for one in removables]


class TestWhatIsRemovable:
    def test_a_segment_is_once_all_its_records_are_below_the_start_offsets(self) -> None:
        rig = log()
        names = rig.files()
        firsts = [15 * number - 1 for number in range(1, 5)]
        assert delete(rig, {(1, 0): 0}, {1, 2}) == []
        start = 28
        assert delete(rig, {(1, 0): start}, {1, 2}) == names[1:2], firsts

    def test_an_old_record_of_one_topic_pins_its_segment_alone(self) -> None:
        rig = log()
        names = rig.files()
        gone = delete(rig, {(1, 0): 60}, {1, 2})
        assert gone == names[1:-1]
        assert rig.read(0, topic_id=2) == [b"0"]
        assert rig.read(1, topic_id=2) == [b"1"]
        assert rig.wal.first_offset(1, 0) == 0

    def test_records_of_deleted_topics_need_no_start_offset(self) -> None:
        rig = log()
        names = rig.files()
        assert delete(rig, {}, {2}) == names[1:-1]

    def test_nothing_above_the_snapshot_is(self) -> None:
        rig = log()
        names = rig.files()
        second_end = rig.wal.segments()[1].end_lsn
        assert delete(rig, {}, set(), second_end - 1) == names[:1]
        assert delete(rig, {}, set(), second_end) == names[1:2]

    def test_the_segment_being_written_is_not(self) -> None:
        rig = log()
        assert delete(rig, {}, set()) == rig.files()[:-1] or len(rig.files()) == 1
        assert len(rig.files()) == 1


class TestReads:
    def test_a_deleted_place_has_no_plan(self) -> None:
        rig = log()
        delete(rig, {(1, 0): 60}, {1, 2})
        assert rig.wal.plan_read(1, 0, 20, 1) is None or rig.wal.plan_read(1, 0, 20, 1).run() == []
        assert rig.wal.time_of(1, 0, 30) is None

    def test_a_plan_from_before_that_has_to_open_the_segment_says_it_is_removed(self) -> None:
        rig = Rig(log().disk.copy())
        plan = rig.wal.plan_read(1, 0, 30, 1)
        assert plan is not None
        delete(rig, {(1, 0): 60}, {1, 2})
        with pytest.raises(RecordRemoved):
            plan.run()

    def test_a_plan_that_has_the_segment_open_reads_on(self) -> None:
        rig = Rig(log().disk.copy())
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
