"""Which backups and files serve a point of the log."""

from __future__ import annotations

import pytest

from brokerd.backup.manifest import (
    BackupFailed,
    FileKey,
    Manifest,
    StoredSegment,
    StoredSnapshot,
    stored_file,
)
from brokerd.backup.points import (
    BackupEnd,
    Choice,
    Point,
    choose,
    history,
    segments_of,
    snapshots_of,
    time_text,
    was_continued,
)
from brokerd.backup.repository import Backup

ID = "ab" * 16
THREE = [BackupEnd(1, 100, 10, 11), BackupEnd(2, 200, 20, 21), BackupEnd(4, 300, 30, 35)]


def numbers(point: Point, backups: list[BackupEnd] = THREE) -> tuple[int, int]:
    holder, base = choose(backups, point)
    return holder.number, base.number


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (Point(), (4, 4)),
        (Point(lsn=300), (4, 4)),
        (Point(lsn=250), (4, 2)),
        (Point(lsn=200), (2, 2)),
        (Point(lsn=199), (2, 1)),
        (Point(lsn=99), (1, 1)),
        (Point(time_us=35), (4, 4)),
        (Point(time_us=30), (4, 4)),
        (Point(time_us=29), (4, 2)),
        (Point(time_us=20), (4, 2)),
        (Point(time_us=5), (1, 1)),
    ],
)
def test_holder_and_base(point: Point, expected: tuple[int, int]) -> None:
    """A later frame may have the time of the last one, so a time looks into the next backup."""
    assert numbers(point) == expected


def test_an_lsn_after_the_newest_backup_is_refused() -> None:
    with pytest.raises(BackupFailed, match="backup 4 ends at LSN 300, before --to-lsn 301"):
        choose(THREE, Point(lsn=301))


def test_a_time_after_the_newest_backup_is_refused() -> None:
    """The log of that time is not in it. Until then nothing may have been written."""
    said = (
        r"^backup 4 was made at 1970-01-01T00:00:00\.000035Z, before --to-time "
        r"1970-01-01T00:00:00\.000036Z; give a time up to 1970-01-01T00:00:00\.000035Z, or"
    )
    with pytest.raises(BackupFailed, match=said):
        choose(THREE, Point(time_us=36))


def test_a_backup_of_a_history_that_a_restore_ended_serves_no_point() -> None:
    """Backup 2 goes further than the newer 3: the log was taken back in between."""
    ends = [BackupEnd(1, 100, 10, 10), BackupEnd(2, 200, 20, 20), BackupEnd(3, 150, 25, 25)]
    assert [one.number for one in history(ends)] == [1, 3]
    assert numbers(Point(lsn=150), ends) == (3, 3)
    assert numbers(Point(lsn=120), ends) == (3, 1)


def test_two_backups_may_end_at_one_lsn() -> None:
    """The first one serves points before it: later ones may lack deleted parts."""
    ends = [BackupEnd(1, 100, 10, 10), BackupEnd(2, 200, 20, 20), BackupEnd(3, 200, 20, 30)]
    assert numbers(Point(lsn=150), ends) == (2, 1)
    assert numbers(Point(lsn=200), ends) == (3, 3)


def test_a_point_has_the_frames_that_end_at_it() -> None:
    assert Point(lsn=100).has(100, 7) and not Point(lsn=100).has(101, 7)
    assert Point(time_us=7).has(100, 7) and not Point(time_us=7).has(100, 8)
    assert Point().has(100, 7)


def segment(first: int, end: int, created_us: int = 0) -> StoredSegment:
    file = stored_file(FileKey("wal", first, ID), end - first, "1" * 16)
    return StoredSegment(first, end, ID, created_us, file)


def backup(
    number: int,
    segments: list[StoredSegment],
    deleted: list[tuple[int, int]] | None = None,
    snapshots: list[tuple[int, int]] | None = None,
) -> Backup:
    file = stored_file(FileKey("snap", 0, ID), 1, "1" * 16)
    found = [StoredSnapshot(*one, file) for one in snapshots or ()]
    lsn = segments[-1].end_lsn
    return Backup(number, Manifest(ID, 0, "", lsn, lsn, segments, deleted or [], found))


@pytest.mark.parametrize(
    ("deleted", "expected"),
    [
        ([], True),
        ([(0, 100)], True),
        ([(0, 200)], True),
        ([(0, 250)], True),
        ([(0, 400)], True),
        ([(0, 150)], False),
        ([(0, 100), (150, 200)], False),
        ([(0, 240)], False),
        ([(210, 400)], False),
    ],
)
def test_a_deleted_part_ends_where_a_segment_of_the_older_backup_does_or_it_is_another_log(
    deleted: list[tuple[int, int]], expected: bool
) -> None:
    """The last segment of the older backup, 200 to 250, may have grown since, up to 400."""
    older = backup(1, [segment(0, 100), segment(100, 200), segment(200, 250)])
    newer = backup(2, [segment(400, 500)], deleted)
    assert was_continued(older.manifest, newer.manifest) == expected


def spans(choice: Choice, point: Point) -> list[tuple[int, int]]:
    return [(one.first_lsn, one.end_lsn) for one in segments_of(choice, point)]


def test_segments_are_the_bases_and_then_the_holders() -> None:
    """The base has what the broker deleted since, and only a part of its last segment."""
    base = backup(1, [segment(0, 100), segment(100, 150)])
    holder = backup(2, [segment(100, 200), segment(200, 300)], [(0, 100)])
    assert spans(Choice(holder, base), Point(lsn=180)) == [(0, 100), (100, 200)]
    assert spans(Choice(holder, base), Point(lsn=201)) == [(0, 100), (100, 200), (200, 300)]


def test_times_leave_out_segments_that_begin_later() -> None:
    base = backup(1, [segment(0, 100, 1)])
    holder = backup(2, [segment(0, 100, 1), segment(100, 200, 5), segment(200, 300, 7)])
    assert spans(Choice(holder, base), Point(time_us=6)) == [(0, 100), (100, 200)]
    assert spans(Choice(holder, base), Point(time_us=5)) == [(0, 100), (100, 200)]
    assert spans(Choice(holder, base), Point(time_us=4)) == [(0, 100)]


@pytest.mark.parametrize("point", [Point(lsn=280), Point(time_us=280)])
def test_a_part_that_was_deleted_between_two_backups_is_named(point: Point) -> None:
    base = backup(1, [segment(0, 100)])
    holder = backup(2, [segment(200, 300)], [(0, 200)])
    said = "the log after LSN 100 is in no backup: .* before backup 2. Nearest points: LSN 100, and"
    with pytest.raises(BackupFailed, match=f"{said} LSN 300"):
        segments_of(Choice(holder, base), point)


def test_a_part_at_the_end_that_was_deleted_is_named_too() -> None:
    base = backup(1, [segment(0, 100)])
    holder = backup(2, [segment(200, 300)], [(0, 200)])
    with pytest.raises(BackupFailed, match="the log after LSN 100 is in no backup"):
        segments_of(Choice(holder, base), Point(lsn=190))


def test_snapshots_that_reach_beyond_the_cut_are_left_out() -> None:
    one = backup(1, [segment(0, 300)], snapshots=[(50, 60), (100, 220)])
    assert [s.start_lsn for s in snapshots_of(Choice(one, one), 220)] == [50, 100]
    assert [s.start_lsn for s in snapshots_of(Choice(one, one), 219)] == [50]
    assert snapshots_of(Choice(one, one), 59) == []


def test_deleted_parts_need_a_snapshot_below_the_cut() -> None:
    one = backup(3, [segment(100, 300)], [(0, 100)], [(90, 95), (100, 220)])
    assert len(snapshots_of(Choice(one, one), 220)) == 2
    said = "backup 3 cannot be restored to LSN 219: .* below LSN 100, .* to LSN 220"
    with pytest.raises(BackupFailed, match=said):
        snapshots_of(Choice(one, one), 219)


def test_times_are_utc_to_the_microsecond() -> None:
    assert time_text(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"
