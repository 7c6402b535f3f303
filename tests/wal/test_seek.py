"""Offsets by time, by size, and the first that is left: from indexes, of sealed segments or not."""

from __future__ import annotations

import pytest

from tests.wal.rig import Rig, content, records


def log(batches: int = 40, size: int = 4000) -> Rig:
    """Batches of two records each, at times 10, 20, 30..., 14 or so a segment."""
    rig = Rig()
    for number in range(batches):
        rig.put(records(2 * number, 2, size=size // 2), time_us=10 * (number + 1))
    return rig


def at_time(rig: Rig, time_us: int, topic_id: int = 1, partition: int = 0) -> int | None:
    return rig.wal.plan_offset_at_time(topic_id, partition, time_us).run()


def of_size(rig: Rig, max_bytes: int, topic_id: int = 1, partition: int = 0) -> int | None:
    return rig.wal.plan_offset_of_size(topic_id, partition, max_bytes).run()


class TestByTime:
    @pytest.mark.parametrize("again", [False, True])
    def test_it_is_the_first_record_appended_then_or_later(self, again: bool) -> None:
        rig = log()
        assert len(rig.files()) >= 3
        if again:
            rig = Rig(rig.disk.copy())
        for time_us in range(0, 415, 5):
            expected = 2 * max(0, -(-time_us // 10) - 1)
            assert at_time(rig, time_us) == (expected if time_us <= 400 else None), time_us

    def test_a_segment_whose_header_lost_its_time_is_found_all_the_same(self) -> None:
        disk = log().disk.copy()
        name = Rig(disk.copy()).files()[1]
        content(disk, name)[:64] = bytes(64)
        rig = Rig(disk)
        for time_us in range(10, 410, 10):
            assert at_time(rig, time_us) == 2 * (time_us // 10 - 1)

    def test_a_partition_that_the_log_does_not_hold_has_none(self) -> None:
        assert at_time(log(3), 0, partition=1) is None
        assert at_time(Rig(), 0) is None

    def test_partitions_that_are_in_few_segments_are_found(self) -> None:
        rig = log(3)
        rig.put(records(0, topic_id=2), time_us=35)
        for number in range(3, 30):
            rig.put(records(2 * number, 2, size=2000), time_us=10 * (number + 1))
        rig.put(records(1, topic_id=2), time_us=500)
        for again in (rig, Rig(rig.disk.copy())):
            assert at_time(again, 35, topic_id=2) == 0
            assert at_time(again, 36, topic_id=2) == 1
            assert at_time(again, 501, topic_id=2) is None


class TestBySize:
    @pytest.mark.parametrize("again", [False, True])
    def test_what_follows_has_at_most_so_many_bytes_and_one_batch_more_has_more(
        self, again: bool
    ) -> None:
        rig = log()
        sizes = [len(records(2 * number, 2, size=2000).body) for number in range(40)]
        if again:
            rig = Rig(rig.disk.copy())
        for _ in range(2):
            for kept in range(1, 41):
                total = sum(sizes[40 - kept :])
                assert of_size(rig, total) == 80 - 2 * kept
                assert of_size(rig, total - 1) == 80 - 2 * (kept - 1)
        assert of_size(rig, sum(sizes) * 2) == 0
        assert of_size(rig, 0) == 80

    def test_what_is_left_of_the_limit_is_told_if_all_fits(self) -> None:
        """For whoever knows of records before those of the log."""
        rig = log(3)
        total = sum(len(records(2 * number, 2, size=2000).body) for number in range(3))
        looks = [rig.wal.plan_offset_of_size(1, 0, total + more).measure() for more in (-1, 0, 7)]
        assert looks == [(2, 0), (0, 0), (0, 7)]
        assert rig.wal.plan_offset_of_size(9, 0, 5).measure() == (None, 5)

    def test_what_was_appended_since_counts(self) -> None:
        rig = log(3)
        size = len(records(0, 2, size=2000).body)
        for number in range(3, 60):
            assert of_size(rig, 2 * size + 100) == 2 * number - 4
            rig.put(records(2 * number, 2, size=2000), time_us=10 * (number + 1))

    def test_a_partition_that_the_log_does_not_hold_has_none(self) -> None:
        assert of_size(log(3), 10, topic_id=9) is None
