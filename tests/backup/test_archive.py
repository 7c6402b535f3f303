"""The archive that a backup names, and the check before a log goes on with an archive."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from brokerd.archive.contract.layout import ROLLUP_APP, SEGMENT_APP
from brokerd.archive.contract.pin import segment_hash
from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive
from brokerd.archive.delta.tables import ensure_tables
from brokerd.backup.archive import read_archive
from brokerd.backup.create import Created, create_backup
from brokerd.backup.manifest import BackupFailed
from brokerd.backup.restore import Identity
from brokerd.errors import ConfigError
from brokerd.wal import RealDisk
from tests.backup.world import BIG, LOG_ID, NEW_ID, Log, read_log, repository, restore_to

NOW_MS = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "data")
    log.put(8, BIG)
    return log


def archive_to(log: Log, place: Path, lsn: int) -> None:
    """Let an archive hold the log below an LSN, where a segment ends."""
    before = max(first for first in log.segments() if first < lsn)
    header = next(s for s in log.wal.segments() if s.first_lsn == before)
    tables = ensure_tables(place, LOG_ID, NOW_MS)
    marks = {SEGMENT_APP: segment_hash(header.segment_id)}
    for name in ("records", "events"):
        tables[name].commit([], transactions={ROLLUP_APP: lsn}, marks=marks, now_ms=NOW_MS)


def archive_id(place: Path) -> str:
    found = read_archive(place, LOG_ID)
    assert found is not None
    return found[0].id


def back_up_with(log: Log, where: Path, archive: Path) -> Created:
    def named(log_id: str) -> object:
        found = read_archive(archive, log_id)
        return None if found is None else found[0]

    return create_backup(RealDisk(), str(log.data_dir), repository(where), 0, named)  # type: ignore[arg-type]


def test_a_backup_names_its_archive_with_the_versions(log: Log, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    lsn = log.segments()[2]
    archive_to(log, place, lsn)
    found = back_up_with(log, tmp_path / "backups", place).backup.manifest.archive
    assert found is not None
    assert (found.address, found.lsn) == (str(place), lsn)
    assert found.versions == {"records": 1, "events": 1, "deliveries": 0, "hourly": 0}
    assert len(found.id) == 16


def test_without_its_libraries_only_an_archive_that_exists_is_an_error(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker alone, without pyarrow, has backups."""
    place = tmp_path / "archive"
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "brokerd.archive.delta.log_reader", None)
        assert read_archive(place, LOG_ID) is None
        archive_to(log, place, log.segments()[1])
        with pytest.raises(ConfigError, match="needs a library that is not installed"):
            read_archive(place, LOG_ID)


def test_there_is_no_archive_or_another_logs(log: Log, tmp_path: Path) -> None:
    assert read_archive(tmp_path / "archive", LOG_ID) is None
    archive_to(log, tmp_path / "archive", log.segments()[1])
    with pytest.raises(ForeignArchive, match=f"is the archive of log '{LOG_ID}'"):
        read_archive(tmp_path / "archive", NEW_ID)


def test_a_log_that_takes_the_place_of_the_original_goes_on_with_its_archive(
    log: Log, tmp_path: Path
) -> None:
    place = tmp_path / "archive"
    archive_to(log, place, log.segments()[2])
    log.pin(archive_id(place), log.segments()[2])
    back_up_with(log, tmp_path / "backups", place)
    restore_to(repository(tmp_path / "backups"), tmp_path / "restored", identity=Identity(""))
    assert read_log(tmp_path / "restored")[1].sound


def test_an_archive_that_is_ahead_is_refused_with_the_versions_to_take_it_back_to(
    log: Log, tmp_path: Path
) -> None:
    """The restored log would give its offsets again; a copy with an id of its own does not mind."""
    place = tmp_path / "archive"
    archive_to(log, place, log.segments()[1])
    back_up_with(log, tmp_path / "backups", place)
    log.put(8, BIG)
    archive_to(log, place, log.segments()[-1])
    where = repository(tmp_path / "backups")
    said = (
        f"the archive holds the log up to LSN {log.segments()[-1]}, but the log ends at .* "
        "Nothing was restored: take .* back to the versions of the backup .records 1, events 1"
    )
    with pytest.raises(BackupFailed, match=said):
        restore_to(where, tmp_path / "restored", identity=Identity(""))
    assert not (tmp_path / "restored").exists()
    restore_to(where, tmp_path / "copy")


def test_the_archive_of_a_log_that_went_another_way_is_refused(log: Log, tmp_path: Path) -> None:
    """The segment that ends where the archive ends is another one."""
    place = tmp_path / "archive"
    back_up_with(log, tmp_path / "backups", place)
    other = Log(tmp_path / "other", seed=9)
    other.put(8, BIG)
    archive_to(other, place, other.segments()[1])
    with pytest.raises(BackupFailed, match="where the log has another segment"):
        restore_to(
            repository(tmp_path / "backups"), tmp_path / "restored", identity=Identity("", place)
        )


def test_a_segment_that_lost_its_end_still_ends_where_it_was_archived(
    log: Log, tmp_path: Path
) -> None:
    """Without its index it seems to reach up to the next file."""
    place = tmp_path / "archive"
    lsn, end_lsn = log.segments()[1:3]
    segment = log.wal_path / f"{lsn:020d}.wal"
    archived = end_lsn - BIG
    with segment.open("r+b") as file:
        file.truncate(archived - lsn)
    segment.with_suffix(".idx").unlink()
    archive_to(log, place, archived)
    back_up_with(log, tmp_path / "backups", place)
    restore_to(
        repository(tmp_path / "backups"),
        tmp_path / "restored",
        identity=Identity(""),
        allow_damage=True,
    )


def test_a_pinned_archive_has_to_be_there_and_the_right_one(log: Log, tmp_path: Path) -> None:
    place, other = tmp_path / "archive", tmp_path / "other"
    archive_to(log, place, log.segments()[2])
    archive_to(log, other, log.segments()[2])
    log.pin(archive_id(place), log.segments()[2])
    create_backup(RealDisk(), str(log.data_dir), repository(tmp_path / "backups"), 0)
    where = repository(tmp_path / "backups")
    for archive, error, said in (
        (None, BackupFailed, "the backup does not name its address: give --archive URI"),
        (other, ForeignArchive, "is another archive"),
        (tmp_path / "none", ArchiveUnavailable, "does not exist, but the log has deleted"),
    ):
        with pytest.raises(error, match=said):
            restore_to(where, tmp_path / "restored", identity=Identity("", archive))
    restore_to(where, tmp_path / "restored", identity=Identity("", place))
