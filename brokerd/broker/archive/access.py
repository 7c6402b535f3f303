# Tests: tests/broker/test_bounds.py
"""What a broker is given to have an archive, and what it is told to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.archive.contract.view import Archive
from brokerd.wal import Disk, WorkerPool


@dataclass(frozen=True)
class ArchiveSettings:
    """What the broker does about its archive; see etc/brokerd.toml for the reasons."""

    poll_us: int = 5_000_000
    delete_segments: bool = True
    keep_wal_bytes: int = 1 << 30


class ArchiveAccess(NamedTuple):
    """How a broker comes to its archive."""

    open: Callable[[str], Archive]
    """Gives the archive of the log with this id. Reads nothing: `Archive.refresh` does."""
    threads: WorkerPool
    """Where the archive is refreshed and read, so that nothing else waits for a slow one."""
    disk: Disk
    state_path: str
    """The directory of ``log_id`` and ``bounds``, which is that of the snapshots."""
    random_bytes: Callable[[int], bytes]
    place: str = "DATA_DIR/archive"
    """Where the archive is, for people."""
