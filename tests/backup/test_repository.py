"""Manifests and files below an address: checks, and deletion of old backups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brokerd.backup.manifest import BackupFailed, parse_path
from brokerd.backup.repository import Repository
from brokerd.errors import DamagedData
from tests.backup.world import BIG, Log, all_files, back_up, read_log, repository, restore_to


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "data")


@pytest.fixture
def where(tmp_path: Path) -> Repository:
    return repository(tmp_path / "backups")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_pruning_deletes_what_no_other_backup_names(
    log: Log, where: Repository, tmp_path: Path
) -> None:
    """Shared files stay; the kept backups restore; numbers are not used again."""
    for _ in range(4):
        log.put(4, BIG)
        log.snapshot()
        back_up(log, where)
    before = set(where.files())
    pruned = where.prune(2)
    assert pruned.backups == [1, 2]
    assert where.numbers() == [3, 4]
    needed = {f.path for n in (3, 4) for f in where.read(n).manifest.files()}
    assert set(where.files()) == needed
    assert pruned.files == len(before - needed) > 0
    assert where.verify([3, 4]).problems == []
    restore_to(where, tmp_path / "restored", number=3)
    assert read_log(tmp_path / "restored")[0] == list(range(12))
    assert where.prune(2) == ([], 0, 0)
    where.prune(1)
    assert back_up(log, where).backup.number == 5


def test_pruning_removes_files_of_interrupted_runs_and_no_others(
    log: Log, where: Repository, tmp_path: Path
) -> None:
    log.put(4, BIG)
    back_up(log, where)
    (tmp_path / "backups" / "wal" / "notes.txt").write_bytes(b"an operator's")
    orphan = tmp_path / "backups" / "wal" / f"{9:020d}-{'a' * 32}-3-{'b' * 16}.wal"
    orphan.write_bytes(b"abc")
    (tmp_path / "backups" / "wal" / "unfinished-01.parquet").write_bytes(b"torn")
    (tmp_path / "backups" / "backups" / ".commit-01.tmp").write_bytes(b"torn")
    assert (where.prune(1).files, orphan.exists()) == (1, False)
    left = [name for name in all_files(tmp_path / "backups") if parse_path(name) is None]
    assert left == ["backups/00000001.backup", "wal/notes.txt"]


def test_pruning_deletes_nothing_if_a_kept_manifest_is_damaged(
    log: Log, where: Repository, tmp_path: Path
) -> None:
    """It is not known which files that backup needs."""
    for _ in range(3):
        log.put(4, BIG)
        back_up(log, where)
    flip(tmp_path / "backups" / "backups" / "00000002.backup")
    before = all_files(tmp_path / "backups")
    with pytest.raises(DamagedData, match=r"00000002.backup is damaged: .*delete this file"):
        where.prune(2)
    assert all_files(tmp_path / "backups") == before


def test_verification_names_each_bad_file_once(log: Log, where: Repository, tmp_path: Path) -> None:
    """Wrong bytes are found by reading; a missing and a short file also without."""
    log.put(9, BIG)
    log.snapshot()
    back_up(log, where)
    back_up(log, where)
    assert where.verify([1, 2]).problems == []
    flipped, short, gone = sorted((tmp_path / "backups" / "wal").glob("*.wal"))[:3]
    flip(flipped)
    os.truncate(short, 10)
    gone.unlink()
    quick = where.verify([1, 2], quick=True).problems
    assert [(short.name in line, gone.name in line) for line in quick] == [
        (True, False),
        (False, True),
    ]
    found = where.verify([1, 2])
    assert len(found.problems) == 3
    assert flipped.name in found.problems[0] and "has wrong bytes" in found.problems[0]
    flip(tmp_path / "backups" / "backups" / "00000002.backup")
    assert len(where.verify([1, 2]).problems) == 4


def test_a_wrong_file_that_is_deleted_is_copied_again(
    log: Log, where: Repository, tmp_path: Path
) -> None:
    """So the earlier backup is sound again, too."""
    log.put(9, BIG)
    back_up(log, where)
    path = min((tmp_path / "backups" / "wal").glob("*.wal"))
    path.unlink()
    assert back_up(log, where).copied.files == 1
    assert where.verify([1, 2]).problems == []


def test_one_process_writes_at_a_time(where: Repository) -> None:
    other = repository(Path(str(where.store.place)))
    with (
        where.lock(),
        pytest.raises(BackupFailed, match="another brokerctl writes to"),
        other.lock(),
    ):
        pass
    with other.lock():
        pass


def test_a_file_that_another_process_deleted_makes_no_backup(
    log: Log, where: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a bucket nothing keeps a prune from running beside a backup."""
    log.put(9, BIG)
    back_up(log, where)
    log.put()
    victim = min((tmp_path / "backups" / "wal").glob("*.wal"))
    monkeypatch.setattr("brokerd.backup.create.open_source", _after(victim.unlink, "open_source"))
    with pytest.raises(BackupFailed, match=f"{victim.name} is gone: another process deletes"):
        back_up(log, where)
    assert where.numbers() == [1]


def _after(work: object, name: str) -> object:
    from brokerd.backup import source

    original = getattr(source, name)

    def call(*arguments: object) -> object:
        result = original(*arguments)
        work()  # type: ignore[operator]
        return result

    return call
