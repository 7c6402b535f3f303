"""Backups of a log that grows, and what a restore of each gives back."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.archive.contract.log_id import decode_log_id
from brokerd.backup.create import Progress, create_backup
from brokerd.backup.manifest import BackupFailed
from brokerd.backup.points import Point
from brokerd.backup.restore import Identity
from brokerd.errors import DamagedData
from brokerd.wal import RealDisk
from brokerd.walformat import Entry, EntryKind
from tests.backup.world import (
    BIG,
    LOG_ID,
    NEW_ID,
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


def test_a_restore_has_every_record_and_a_sound_log(log: Log, tmp_path: Path) -> None:
    """Of sealed segments and of the open one, with their indexes and the snapshots."""
    lsn = log.put(10, BIG)
    log.snapshot()
    created = back_up(log, repository(tmp_path / "backups"))
    assert created.backup.manifest.lsn == lsn
    restored = restore_to(repository(tmp_path / "backups"), tmp_path / "restored")
    values, report = read_log(tmp_path / "restored")
    assert values == list(range(10))
    assert report.problems == []
    assert (report.next_lsn, report.snapshots, report.indexes) == (lsn, 1, len(log.segments()) - 1)
    assert (restored.lsn, restored.time_us) == (lsn, 10_000_000)


def test_a_broker_goes_on_with_a_restored_log(log: Log, tmp_path: Path) -> None:
    """Also after the last frame of a segment that was open."""
    log.put(4, BIG)
    back_up(log, repository(tmp_path / "backups"))
    restore_to(repository(tmp_path / "backups"), tmp_path / "restored")
    Log(tmp_path / "restored").put(4)
    values, report = read_log(tmp_path / "restored")
    assert values == list(range(8))
    assert report.sound


def test_the_restored_log_has_a_new_id_unless_it_takes_the_place_of_the_original(
    log: Log, tmp_path: Path
) -> None:
    """The archive of the original belongs to the original."""
    from brokerd.backup.restore import Identity

    log.put()
    back_up(log, repository(tmp_path / "backups"))
    restore_to(repository(tmp_path / "backups"), tmp_path / "copy")
    restore_to(repository(tmp_path / "backups"), tmp_path / "same", identity=Identity(""))
    ids = [
        decode_log_id((tmp_path / name / "state" / "log_id").read_bytes())
        for name in ("copy", "same")
    ]
    assert ids == [NEW_ID, LOG_ID]


def test_the_next_backup_copies_only_what_is_new(log: Log, tmp_path: Path) -> None:
    """Closed segments are copied once; the open one again, and not if nothing was written."""
    where = repository(tmp_path / "backups")
    log.put(10, BIG)
    first = back_up(log, where)
    again = back_up(log, where)
    assert (again.copied.files, again.backup.number) == (0, 2)
    log.put()
    third = back_up(log, where)
    assert third.copied.files == 1
    before = {file.path for file in first.backup.manifest.files()}
    new = [file.path for file in third.backup.manifest.files() if file.path not in before]
    assert new == [third.backup.manifest.segments[-1].file.path]
    for number, count in ((1, 10), (2, 10), (3, 11)):
        restore_to(where, tmp_path / f"restored-{number}", number=number)
        assert read_log(tmp_path / f"restored-{number}")[0] == list(range(count))


def test_an_interrupted_backup_is_gone_on_with(log: Log, tmp_path: Path) -> None:
    """The last good one stays usable; complete files are not copied again, others are removed."""
    where = repository(tmp_path / "backups")
    log.put(3, BIG)
    back_up(log, where)
    log.put(9, BIG)

    class Killed(BaseException):
        pass

    def kill(progress: Progress) -> None:
        if progress.files == 2:
            raise Killed

    with pytest.raises(Killed):
        create_backup(RealDisk(), str(log.data_dir), where, 0, on_progress=kill)
    (tmp_path / "backups" / "wal" / "unfinished-0123456789abcdef.parquet").write_bytes(b"torn")
    restore_to(where, tmp_path / "before")
    assert read_log(tmp_path / "before")[0] == [0, 1, 2]
    total = back_up(log, repository(tmp_path / "other")).copied.files
    resumed = back_up(log, where)
    assert resumed.copied.files < total - 2
    assert not [name for name in all_files(tmp_path / "backups") if "unfinished" in name]
    restore_to(where, tmp_path / "after")
    assert read_log(tmp_path / "after")[0] == list(range(12))


def test_deleted_segments_stay_deleted_and_are_no_loss(log: Log, tmp_path: Path) -> None:
    """The deleted part and the snapshots above it are in the backup."""
    log.put(9, BIG)
    log.snapshot()
    log.delete_below(log.snapshot())
    log.put(2, BIG)
    back_up(log, repository(tmp_path / "backups"))
    restore_to(repository(tmp_path / "backups"), tmp_path / "restored")
    values, report = read_log(tmp_path / "restored")
    assert values[-2:] == [9, 10] and 0 not in values
    assert report.sound and report.deleted


def test_an_older_backup_keeps_what_the_broker_deleted_since(log: Log, tmp_path: Path) -> None:
    where = repository(tmp_path / "backups")
    log.put(9, BIG)
    back_up(log, where)
    log.snapshot()
    log.delete_below(log.snapshot())
    back_up(log, where)
    restore_to(where, tmp_path / "first", number=1)
    restore_to(where, tmp_path / "second", number=2)
    assert read_log(tmp_path / "first")[0] == list(range(9))
    assert 0 not in read_log(tmp_path / "second")[0]


def test_a_log_that_was_taken_back_has_no_index_of_before(log: Log, tmp_path: Path) -> None:
    """The index has the same size: only a frame without records was cut off."""
    where = repository(tmp_path / "backups")
    lsn = log.put(3)
    log.wal.append([Entry(EntryKind.MARK, 0, 0, 0, 0, b"")], 4_000_000)
    log.run()
    log.seal()
    back_up(log, where)
    restore_to(where, tmp_path / "second", point=Point(lsn=lsn), identity=Identity(""))
    second = Log(tmp_path / "second", seed=2)
    for number in (2, 3):
        back_up(second, where)
        assert where.read(number).manifest.segments[0].index is None
        restore_to(where, tmp_path / f"of-{number}")
        values, report = read_log(tmp_path / f"of-{number}")
        assert (values, report.problems, report.next_lsn) == ([0, 1, 2], [], lsn)


def test_another_log_is_refused(log: Log, tmp_path: Path) -> None:
    log.put()
    back_up(log, repository(tmp_path / "backups"))
    other = Log(tmp_path / "other", NEW_ID)
    other.put()
    with pytest.raises(BackupFailed, match=f"holds backups of log {LOG_ID}, and .* {NEW_ID}"):
        back_up(other, repository(tmp_path / "backups"))


def test_a_directory_that_is_none_of_a_broker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackupFailed, match="is no data directory"):
        create_backup(RealDisk(), str(tmp_path), repository(tmp_path / "backups"), 0)
    assert all_files(tmp_path) == []


def test_damage_is_told_when_it_is_copied(log: Log, tmp_path: Path) -> None:
    """The backup is made, with a line for each place; a restore refuses it unless asked."""
    log.put(9, BIG)
    path = log.wal_path / f"{log.segments()[1]:020d}.wal"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    where = repository(tmp_path / "backups")
    (line,) = back_up(log, where).backup.manifest.damage
    assert line.startswith(f"{path.name} at 4096: entry 0 at 4160: the body of RECORDS")
    with pytest.raises(DamagedData, match=f"the log is damaged: {path.name} at .*--allow-damage"):
        restore_to(where, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    restored = restore_to(where, tmp_path / "restored", allow_damage=True)
    assert len(restored.report.damages) == 1
    assert len(read_log(tmp_path / "restored")[0]) == 8


def test_damage_since_a_backup_does_not_replace_the_good_copy(log: Log, tmp_path: Path) -> None:
    """A closed segment is copied once, while it was sound."""
    where = repository(tmp_path / "backups")
    log.put(9, BIG)
    back_up(log, where)
    path = log.wal_path / f"{log.segments()[1]:020d}.wal"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    back_up(log, where)
    restore_to(where, tmp_path / "restored")
    assert read_log(tmp_path / "restored")[0] == list(range(9))
