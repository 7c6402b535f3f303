"""Restores to a point, and restores that are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from brokerd.archive.contract.bounds import Bounds, encode_bounds
from brokerd.archive.contract.pin import decode_pin
from brokerd.backup.manifest import BackupFailed
from brokerd.backup.points import Point
from brokerd.backup.restore import Identity
from brokerd.errors import DamagedData, DirectoryLocked
from brokerd.wal import DirectoryLock
from tests.backup.world import (
    BIG,
    LOG_ID,
    SECOND,
    Log,
    all_files,
    back_up,
    read_log,
    repository,
    restore_to,
)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "data")


def test_every_frame_is_a_point(log: Log, tmp_path: Path) -> None:
    """By LSN, on the boundary and inside of the next frame; by time; the log goes on after it."""
    where = repository(tmp_path / "backups")
    ends = []
    for count in range(7):
        ends.append(log.put(1, BIG))
        if count in (1, 4):
            log.snapshot()
            back_up(log, where)
    back_up(log, where, now_us=8 * SECOND)
    for kept, end in enumerate(ends, 1):
        points = [Point(lsn=end), Point(time_us=kept * SECOND + 7)]
        points += [Point(lsn=end + 8)] if kept < 7 else []
        for number, point in enumerate(points):
            target = tmp_path / f"{kept}-{number}"
            restored = restore_to(where, target, point=point)
            assert (restored.lsn, restored.time_us) == (end, kept * SECOND), point
            values, report = read_log(target)
            assert values == list(range(kept)), point
            assert report.problems == []
    Log(tmp_path / "5-0").put(1)
    values, report = read_log(tmp_path / "5-0")
    assert (values, report.problems) == (list(range(6)), [])


def test_a_point_comes_back_that_the_broker_has_deleted_since(log: Log, tmp_path: Path) -> None:
    where = repository(tmp_path / "backups")
    log.put(5, BIG)
    back_up(log, where)
    lsn = log.put(5, BIG)
    log.put(1, BIG)
    first_deleted = log.segments()[1]
    log.snapshot()
    log.snapshot()
    log.delete_below(first_deleted)
    back_up(log, where)
    restore_to(where, tmp_path / "restored", point=Point(lsn=lsn))
    values, report = read_log(tmp_path / "restored")
    assert (values, report.problems, report.deleted) == (list(range(10)), [], [])


def test_a_point_before_everything_is_refused_with_the_first_time(log: Log, tmp_path: Path) -> None:
    log.put(2)
    back_up(log, repository(tmp_path / "backups"))
    said = "backup 1 has no frame up to .*: its log begins at LSN 0, at 1970-01-01T00:00:01"
    for point in (Point(lsn=4000), Point(time_us=SECOND - 1)):
        with pytest.raises(BackupFailed, match=said):
            restore_to(repository(tmp_path / "backups"), tmp_path / "restored", point=point)
    assert not (tmp_path / "restored").exists()


def test_the_log_of_before_serves_no_point_after_a_restore(log: Log, tmp_path: Path) -> None:
    """A log that was taken back goes on otherwise; its backups go to the same place."""
    where = repository(tmp_path / "backups")
    lsn = log.put(4, BIG)
    back_up(log, where)
    log.put(4, BIG)
    back_up(log, where)
    restore_to(where, tmp_path / "second", point=Point(lsn=lsn), identity=Identity(""))
    second = Log(tmp_path / "second", seed=2)
    second.put(1)
    back_up(second, where)
    second.put(1)
    back_up(second, where)
    restore_to(where, tmp_path / "third", point=Point(time_us=5 * SECOND))
    assert read_log(tmp_path / "third")[0] == [0, 1, 2, 3, 4]
    assert read_log(tmp_path / "third")[1].problems == []
    restore_to(where, tmp_path / "newest")
    assert read_log(tmp_path / "newest")[0] == [0, 1, 2, 3, 4, 5]
    restore_to(where, tmp_path / "first", number=2)
    assert read_log(tmp_path / "first")[0] == list(range(8))


def test_a_log_that_outgrew_the_log_of_before_has_points_of_its_own(
    log: Log, tmp_path: Path
) -> None:
    """The first backup after a restore may end above the last one before it."""
    where = repository(tmp_path / "backups")
    log.put(1)
    back_up(log, where)
    cut = log.put(2)
    lsn = log.put(2)
    log.snapshot()
    log.put(1)
    back_up(log, where)
    restore_to(where, tmp_path / "second", point=Point(lsn=cut), identity=Identity(""))
    second = Log(tmp_path / "second", seed=2)
    second.count = 50  # records that the log of before did not have
    ends = [second.put() for _ in range(20)]
    assert ends[-1] > where.read(2).manifest.lsn
    back_up(second, where)
    for point in (Point(lsn=lsn), Point(lsn=ends[1]), Point(lsn=where.read(2).manifest.lsn + 8)):
        target = tmp_path / f"to-{point.lsn}"
        restore_to(where, target, point=point)
        values, report = read_log(target)
        taken = [50 + number for number, end in enumerate(ends) if end <= (point.lsn or 0)]
        assert (values, report.problems) == ([0, 1, 2, *taken], [])
        assert report.snapshots == 0, "the snapshot has events that this log never had"
    restore_to(where, tmp_path / "first", number=2)
    assert read_log(tmp_path / "first")[0] == list(range(6))


@pytest.mark.parametrize("content", ["wal/00000000000000000000.wal", "notes.txt"])
def test_a_directory_with_files_is_left_alone(log: Log, tmp_path: Path, content: str) -> None:
    log.put()
    back_up(log, repository(tmp_path / "backups"))
    path = tmp_path / "target" / content
    path.parent.mkdir(parents=True)
    path.write_bytes(b"dear")
    with pytest.raises(BackupFailed, match="is not an empty directory: it has '"):
        restore_to(repository(tmp_path / "backups"), tmp_path / "target")
    assert all_files(tmp_path / "target") == [content]


def test_an_empty_directory_is_taken_and_a_file_or_a_link_is_not(log: Log, tmp_path: Path) -> None:
    log.put()
    where = repository(tmp_path / "backups")
    back_up(log, where)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "file").write_bytes(b"")
    for name in ("link", "file"):
        with pytest.raises(BackupFailed):
            restore_to(where, tmp_path / name)
    restore_to(where, tmp_path / "empty")
    assert read_log(tmp_path / "empty")[0] == [0]
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o700
    with pytest.raises(BackupFailed, match="is a mount point"):
        restore_to(where, Path("/proc"))


def test_an_interrupted_restore_leaves_no_data_directory_and_is_begun_anew(
    log: Log, tmp_path: Path
) -> None:
    """Files of a killed restore are replaced. Two restores of one directory exclude one another."""
    log.put(5, BIG)
    where = repository(tmp_path / "backups")
    back_up(log, where)
    left = tmp_path / ".restored.restoring"
    for name in ("wal/00000000000000000000.wal", "wal/00000000000000000009.wal", "state/log_id"):
        (left / name).parent.mkdir(parents=True, exist_ok=True)
        (left / name).write_bytes(b"torn")
    other = DirectoryLock(str(left))
    with pytest.MonkeyPatch.context() as patch:
        # A process may lock a file twice, so the other's lock is pretended.
        patch.setattr("fcntl.lockf", _refuse)
        with pytest.raises(DirectoryLocked):
            restore_to(where, tmp_path / "restored")
    assert (left / "wal" / "00000000000000000009.wal").exists()
    assert not (tmp_path / "restored").exists()
    other.release()
    restore_to(where, tmp_path / "restored")
    assert read_log(tmp_path / "restored")[0] == list(range(5))
    assert not left.exists()


def _refuse(*arguments: object) -> None:
    raise BlockingIOError


@pytest.mark.parametrize("kind", ["wal", "idx", "snap"])
@pytest.mark.parametrize("fault", ["flipped", "short", "gone"])
def test_a_bad_file_of_a_backup_is_named_and_nothing_is_restored(
    log: Log, tmp_path: Path, kind: str, fault: str
) -> None:
    log.put(5, BIG)
    log.snapshot()
    where = repository(tmp_path / "backups")
    back_up(log, where)
    path = next((tmp_path / "backups").glob(f"*/*.{kind}"))
    data = bytearray(path.read_bytes())
    if fault == "gone":
        path.unlink()
    else:
        data[-1] ^= 1
        path.write_bytes(data[:-1] if fault == "short" else data)
    with pytest.raises(DamagedData, match=rf"{path.name} (is missing|has .*)\. Nothing was"):
        restore_to(where, tmp_path / "restored")
    assert all_files(tmp_path / ".restored.restoring") == ["lock"]
    assert not (tmp_path / "restored").exists()


def test_bounds_come_back_with_the_whole_log_of_the_same_id_only(log: Log, tmp_path: Path) -> None:
    """They say how far the log was, which is not true of a log that was cut off."""
    lsn = log.put(3)
    bounds = Bounds(LOG_ID, lsn, 1, True, 2, [], reached_lsn=lsn)
    (log.state_path / "bounds").write_bytes(encode_bounds(bounds))
    where = repository(tmp_path / "backups")
    back_up(log, where)
    same = Identity("")
    restore_to(where, tmp_path / "same", identity=same)
    restore_to(where, tmp_path / "copy")
    restore_to(where, tmp_path / "cut", identity=same, point=Point(time_us=2 * SECOND))
    found = [(tmp_path / name / "state" / "bounds").exists() for name in ("same", "copy", "cut")]
    assert found == [True, False, False]
    assert read_log(tmp_path / "cut")[1].sound


def test_the_pin_of_a_log_that_is_cut_is_not_beyond_its_end(log: Log, tmp_path: Path) -> None:
    """Otherwise a start would take the end of the log for lost."""
    first = log.put(1)
    log.pin("a" * 16, log.put(1))
    back_up(log, repository(tmp_path / "backups"))
    restore_to(repository(tmp_path / "backups"), tmp_path / "cut", point=Point(lsn=first))
    pin = decode_pin((tmp_path / "cut" / "state" / "archived").read_bytes())
    assert pin == ("a" * 16, first)
    assert read_log(tmp_path / "cut")[1].sound


def test_a_full_disk_is_found_before_the_first_byte(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.put(5, BIG)
    back_up(log, repository(tmp_path / "backups"))
    monkeypatch.setattr("brokerd.wal.disk.RealDisk.free_bytes", lambda self, path: 1000)
    with pytest.raises(BackupFailed, match="has 1000 bytes of free space, and the restore needs"):
        restore_to(repository(tmp_path / "backups"), tmp_path / "restored")


def test_no_backups_and_no_such_backup(log: Log, tmp_path: Path) -> None:
    where = repository(tmp_path / "backups")
    with pytest.raises(BackupFailed, match="holds no backups"):
        restore_to(where, tmp_path / "restored")
    log.put()
    back_up(log, where)
    with pytest.raises(BackupFailed, match="has no backup 7"):
        restore_to(where, tmp_path / "restored", number=7)
    assert sorted(os.listdir(tmp_path)) == ["backups", "data"]
