# Tests: tests/broker/test_bounds.py
"""Settings of the archive, and the means to reach it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.archive.contract.view import Archive
from brokerd.wal import Disk
from brokerd.worker_pool import WorkerPool


@dataclass(frozen=True)
class ArchiveSettings:
    """Settings of the archive; etc/brokerd.toml gives the reasons."""

    poll_us: int = 5_000_000
    delete_segments: bool = True
    keep_wal_bytes: int = 1 << 30
    behind_us: int = 86_400_000_000
    """Age of an unarchived segment at which the archive counts as behind; 0: never."""


class ArchiveAccess(NamedTuple):
    """Means to open and read the archive."""

    open: Callable[[str], Archive]
    """Returns the archive of the log with this id. `Archive.refresh` makes the first read."""
    threads: WorkerPool
    """Threads that refresh and read the archive, so that a slow archive delays nothing else."""
    disk: Disk
    state_path: str
    """The directory of ``log_id``, ``bounds`` and the snapshots."""
    random_bytes: Callable[[int], bytes]
    place: str = "DATA_DIR/archive"
    """The archive's location for messages."""
