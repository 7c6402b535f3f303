"""Backups in a bucket: the same as in a directory."""

from __future__ import annotations

from pathlib import Path

from brokerd.archive.storage.address import ObjectAddress
from brokerd.archive.storage.store import open_store
from brokerd.backup.repository import Repository
from tests.archive.s3 import bucket, s3_server
from tests.backup.world import BIG, Log, back_up, read_log, restore_to

__all__ = ["bucket", "s3_server"]


def test_a_bucket_holds_incremental_backups(bucket: ObjectAddress, tmp_path: Path) -> None:
    """Made, verified, pruned, restored."""
    where = Repository(open_store(bucket))
    log = Log(tmp_path / "data")
    log.put(5, BIG)
    log.snapshot()
    back_up(log, where)
    log.put(1)
    with where.lock():
        assert back_up(log, where).copied.files == 1
    assert where.verify([1, 2]).problems == []
    assert where.prune(1).files == 1
    restore_to(where, tmp_path / "restored")
    values, report = read_log(tmp_path / "restored")
    assert (values, report.problems) == (list(range(6)), [])
