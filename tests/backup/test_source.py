"""Consistent cuts of a log that a broker writes and deletes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.archive.contract.bounds import Bounds, encode_bounds
from brokerd.backup.manifest import BackupFailed, FileKey
from brokerd.backup.points import END, Point
from brokerd.backup.source import Source, open_source
from brokerd.errors import DamagedData
from brokerd.wal import RealDisk
from brokerd.wal.disk import File
from brokerd.walformat import SEGMENT_HEADER_BYTES
from tests.backup.world import (
    BIG,
    LOG_ID,
    Log,
    back_up,
    read_log,
    repository,
    restore_to,
)
from tests.wal.rig import records


class BusyDisk(RealDisk):
    """A disk on which something happens before a call: ``list`` or ``open`` of a name."""

    def __init__(self, moment: str, work: Callable[[], object], times: int = 1) -> None:
        self._moment = moment
        self._work = work
        self.left = times

    def _reached(self, call: str) -> None:
        if self.left and call.endswith(self._moment):
            self.left -= 1
            self._work()

    def list(self, directory: str) -> list[str]:
        self._reached(f"list {directory}")
        return super().list(directory)

    def open(self, path: str, write: bool = False) -> File:
        self._reached(f"open {path}")
        return super().open(path, write)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "data")


def open_log(log: Log, disk: RealDisk | None = None) -> Source:
    return open_source(disk or RealDisk(), str(log.data_dir), lambda key, size: False)


@pytest.mark.parametrize("moment", ["/state", "/wal", ".wal", ".idx", ".snap", "/archived"])
def test_what_was_written_before_the_begin_is_there_and_the_cut_is_sound(
    log: Log, tmp_path: Path, moment: str
) -> None:
    """Wherever in the run the broker appends, seals, takes snapshots and deletes."""
    log.put(9, BIG)
    log.snapshot()
    log.snapshot()

    def work() -> None:
        log.put(5, BIG)
        log.snapshot()
        log.delete_below(log.snapshot())
        log.put(1)

    disk = BusyDisk(moment, work)
    where = repository(tmp_path / "backups")
    back_up(log, where, disk)
    assert disk.left == 0
    restore_to(where, tmp_path / "restored")
    values, report = read_log(tmp_path / "restored")
    assert report.sound
    kept = [segment.first_lsn for segment in where.read(1).manifest.segments]
    assert values == list(range(values[0], values[-1] + 1))
    assert values[-1] >= 8
    assert kept[0] == 0 or report.deleted, "a segment is missing only if it was deleted"


def test_open_files_survive_their_deletion(log: Log, tmp_path: Path) -> None:
    """Segments that the broker deletes between the cut and their copy."""
    log.put(9, BIG)
    source = open_log(log)
    log.snapshot()
    log.delete_below(log.snapshot())
    sizes = [len(one.file.file.pread(1 << 20, 0)) for one in source.segments if one.file.file]
    assert [*map(min, sizes, (one.file.size for one in source.segments))] == [
        one.file.size for one in source.segments
    ]


def test_a_frame_that_is_being_written_is_cut_off(log: Log) -> None:
    """Its header is there, and its last bytes are not."""
    lsn = log.put(2)
    end = log.put(1, 2000)
    path = log.wal_path / f"{log.segments()[-1]:020d}.wal"
    data = bytearray(path.read_bytes())
    data[end - 1000 : end] = bytes(1000)
    path.write_bytes(data)
    source = open_log(log)
    assert (source.lsn, source.time_us) == (lsn, 2_000_000)
    assert source.segments[-1].file.size == lsn


def put_together(log: Log, count: int) -> list[int]:
    """Append frames; all but the first share a commit. Return the end of each."""
    ends = []
    for _ in range(count):
        log.count += 1
        log.wal.append([records(log.count - 1)], log.count * 1_000_000)
        ends.append(log.wal.appended_lsn)
    log.run()
    return ends


def test_a_backup_after_a_power_loss_ends_where_the_next_start_cuts(
    log: Log, tmp_path: Path
) -> None:
    """The disk took the second frame of the last commit, and not the first."""
    lsn, torn, _ = put_together(log, 3)
    path = log.wal_path / f"{log.segments()[-1]:020d}.wal"
    data = bytearray(path.read_bytes())
    data[lsn:torn] = bytes(torn - lsn)
    path.write_bytes(data)
    where = repository(tmp_path / "backups")
    made = back_up(log, where).backup.manifest
    restore_to(where, tmp_path / "restored")
    assert read_log(tmp_path / "restored")[0] == [0]
    assert (made.lsn, made.time_us, made.damage) == (lsn, 1_000_000, [])


@pytest.mark.parametrize("witness", ["later frame", "bounds"])
def test_a_backup_goes_on_after_damage_to_what_was_synced(
    log: Log, tmp_path: Path, witness: str
) -> None:
    lsn, damaged, end = put_together(log, 3)
    if witness == "later frame":
        end = log.put()
    else:
        bounds = Bounds(LOG_ID, end, 1, True, 2, [], reached_lsn=end)
        (log.state_path / "bounds").write_bytes(encode_bounds(bounds))
    path = log.wal_path / f"{log.segments()[-1]:020d}.wal"
    data = bytearray(path.read_bytes())
    data[lsn:damaged] = bytes(damaged - lsn)
    path.write_bytes(data)
    made = back_up(log, repository(tmp_path / "backups")).backup.manifest
    assert made.lsn == end
    assert len(made.damage) == 1


@pytest.mark.parametrize("witness", ["damaged frame", "index"])
def test_a_backup_goes_on_after_damage_before_a_damaged_end(log: Log, witness: str) -> None:
    """A frame that is being written tells what was synced, and so does the index of a segment."""
    lsn, damaged, kept = put_together(log, 3)
    if witness == "index":
        log.seal()
    else:
        log.put(1, 2000)
    path = log.wal_path / f"{log.segments()[-1]:020d}.wal"
    data = bytearray(path.read_bytes())
    data[lsn:damaged] = bytes(damaged - lsn)
    data[kept + 1000 :] = bytes(len(data[kept + 1000 :]))
    path.write_bytes(data)
    source = open_log(log)
    assert (source.lsn, source.time_us) == (kept, 3_000_000)


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("left", [1000, 0])
def test_a_segment_without_a_sound_frame_is_left_out(
    log: Log, tmp_path: Path, before: int, left: int
) -> None:
    """As by the next start. The end of a later log is not before that of this one."""
    lsn = log.put(before) if before else 0
    log.seal()
    log.put(1, 2000)
    path = log.wal_path / f"{log.segments()[-1]:020d}.wal"
    data = bytearray(path.read_bytes())
    data[SEGMENT_HEADER_BYTES + left :] = bytes(len(data) - SEGMENT_HEADER_BYTES - left)
    path.write_bytes(data)
    where = repository(tmp_path / "backups")
    made = back_up(log, where).backup.manifest
    assert (made.lsn, made.time_us, made.damage) == (lsn, before * 1_000_000, [])
    restore_to(where, tmp_path / "restored")
    assert read_log(tmp_path / "restored")[0] == [*range(before)]
    second = Log(log.data_dir, seed=2)
    second.put(2)
    back_up(second, where)
    restore_to(where, tmp_path / "point", point=Point(lsn=lsn) if lsn else END)
    assert read_log(tmp_path / "point")[0] == [*range(before or 2)]


@pytest.mark.parametrize("witness", ["bounds", "snapshot", "index"])
def test_a_last_segment_that_is_all_damaged_ends_where_it_was_synced(
    log: Log, tmp_path: Path, witness: str
) -> None:
    """And is left out if a restored log would lack the proof of that. Its allocated size is larger.

    The later end would hide the backup from points, once the log goes on below it.
    """
    lsn = log.put(3)
    log.seal()
    end = log.put(2)
    path = log.wal_path / f"{log.segments()[-1]:020d}.wal"
    if witness == "bounds":
        bounds = Bounds(LOG_ID, end, 1, True, 2, [], reached_lsn=end)
        (log.state_path / "bounds").write_bytes(encode_bounds(bounds))
    elif witness == "snapshot":
        log.snapshot()
    else:
        log.seal()
    data = bytearray(path.read_bytes())
    data[SEGMENT_HEADER_BYTES : end - lsn] = b"x" * (end - lsn - SEGMENT_HEADER_BYTES)
    path.write_bytes(data)
    where = repository(tmp_path / "backups")
    made = back_up(log, where).backup.manifest
    assert (made.lsn, made.time_us) == (lsn if witness == "bounds" else end, 3_000_000)
    assert made.damage
    restore_to(where, tmp_path / "restored", allow_damage=witness != "bounds")
    assert read_log(tmp_path / "restored")[0] == [0, 1, 2]
    if witness != "index":
        second = Log(log.data_dir, seed=2)
        second.put(20)
        back_up(second, where)
        restore_to(where, tmp_path / "point", point=Point(lsn=made.lsn), allow_damage=True)


@pytest.mark.parametrize("fault", ["last frame", "last file"])
def test_a_log_that_lost_its_end_is_told(log: Log, tmp_path: Path, fault: str) -> None:
    """The bounds say that it was on the disk."""
    log.put()
    log.seal()
    lsn = log.put(2)
    bounds = Bounds(LOG_ID, lsn, 1, True, 2, [], reached_lsn=lsn)
    (log.state_path / "bounds").write_bytes(encode_bounds(bounds))
    assert back_up(log, repository(tmp_path / "sound")).backup.manifest.damage == []
    path = log.wal_path / f"{log.segments()[-1]:020d}.wal"
    if fault == "last file":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[lsn - int(path.stem) - 8] ^= 1
        path.write_bytes(data)
    made = back_up(log, repository(tmp_path / "backups")).backup.manifest
    assert made.damage[-1] == (
        f"the log ends at LSN {made.lsn}, and by state/bounds it was on the disk up to {lsn}"
    )


def test_a_log_that_changes_all_the_time_is_given_up(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerd.backup.source.ATTEMPTS", 2)
    log.put(30, BIG)
    log.snapshot()
    ends = iter(log.segments()[1:])
    disk = BusyDisk(".idx", lambda: log.delete_below(next(ends, 0)), 1000)
    with pytest.raises(BackupFailed, match=r"each of 2 attempts .* Run the backup again"):
        open_log(log, disk)


def test_a_pin_that_changes_meanwhile_is_read_again(log: Log) -> None:
    """Deleted segments may be in the archive of the new pin only."""
    log.put(9, BIG)
    disk = BusyDisk(".idx", lambda: log.pin("a" * 16, 4096))
    assert open_log(log, disk).pin == ("a" * 16, 4096)


def test_stored_files_are_not_kept_open(log: Log) -> None:
    """So an incremental backup of a large log needs few descriptors."""
    log.put(9, BIG)
    stored: list[FileKey] = []

    def is_stored(key: FileKey, size: int) -> bool:
        stored.append(key)
        return True

    source = open_source(RealDisk(), str(log.data_dir), is_stored)
    assert all(one.file.file is None for one in source.segments)
    assert {key.kind for key in stored} == {"wal", "idx"}


def test_bounds_of_the_log_are_opened_and_others_are_not(log: Log) -> None:
    log.put()

    def bounds(log_id: str) -> bytes:
        return encode_bounds(Bounds(log_id, 4096, 1, True, 2, [], reached_lsn=4096))

    path = log.state_path / "bounds"
    path.write_bytes(bounds(LOG_ID))
    found = open_log(log).bounds
    assert found is not None and found.key == FileKey("bounds", 4096, LOG_ID)
    for other in (bounds("f" * 32), bounds(LOG_ID)[:-9], b""):
        path.write_bytes(other)
        assert open_log(log).bounds is None


def test_a_damaged_snapshot_is_left_out_and_told(log: Log) -> None:
    log.put()
    lsn = log.snapshot()
    path = log.state_path / f"{lsn:020d}.snap"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    log.put()
    newer = log.snapshot()
    source = open_log(log)
    assert [one.start_lsn for one in source.snapshots] == [newer]
    assert [line.split(" at ")[0] for line in source.damage] == [path.name]
    path.unlink()
    path.mkdir()
    assert [line.split(" at ")[0] for line in open_log(log).damage] == [path.name]


def test_without_a_snapshot_above_deleted_segments_there_is_no_backup(log: Log) -> None:
    """It could not be restored."""
    log.put(9, BIG)
    log.delete_below(log.snapshot())
    for path in log.state_path.glob("*.snap"):
        path.unlink()
    with pytest.raises(BackupFailed, match="no sound snapshot begins above the deleted segments"):
        open_log(log)


@pytest.mark.parametrize("name", ["log_id", "archived"])
def test_a_damaged_file_that_decides_is_named_with_the_remedy(log: Log, name: str) -> None:
    log.put()
    (log.state_path / name).write_bytes(b"junk")
    with pytest.raises(DamagedData, match=f"state/{name}: .*restart the broker"):
        open_log(log)
