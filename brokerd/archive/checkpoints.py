# Tests: tests/archive/test_checkpoints.py
"""Checkpoints of a Delta log, made now and then so that nobody has to read all commits.

deltalake makes them. A sum beside the log proves one and says that it is durable: only then may
commits before it go (docs/archive-log.rst, "Checkpoints").
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from brokerd.archive.deltalog import (
    COMMITS,
    SUMS,
    checkpoint_name,
    commit_name,
    encode_sum,
    sum_name,
    sync_directory,
)
from brokerd.archive.logreader import list_log, proved_checkpoint
from brokerd.archive.view import ArchiveUnavailable

EVERY_COMMITS = 20
LAST_CHECKPOINT = "_last_checkpoint"


def checkpoint_if_due(table: Path, version: int) -> bool:
    """Make a checkpoint of the newest version, if the newest one is so many commits behind.

    One process at a time makes one; the others leave it to that. Raises OSError, and
    ArchiveUnavailable when deltalake cannot do it.
    """
    if not _is_due(table, version):
        return False
    directory = table / SUMS
    if not directory.exists():
        directory.mkdir(exist_ok=True)
        sync_directory(table)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_due(table, version):
            _remove_unproved(table)
            _make(table)
    except BlockingIOError:
        return False  # somebody else makes one
    finally:
        os.close(descriptor)
    return True


def _is_due(table: Path, version: int) -> bool:
    return version - max(list_log(table).proofs, default=-1) >= EVERY_COMMITS


def _remove_unproved(table: Path) -> None:
    """Remove checkpoints that were not finished, so that nobody reads one that is half written.

    The table was read without them, so all commits that they were made of are there.
    """
    names = list_log(table)
    newest = max(names.proofs, default=-1)
    unproved = sorted(version for version in names.checkpoints if version > newest)
    for version in unproved:
        (table / COMMITS / checkpoint_name(version)).unlink()
    if unproved:
        (table / COMMITS / LAST_CHECKPOINT).unlink(missing_ok=True)


def _make(table: Path) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        opened = DeltaTable(table)
        opened.create_checkpoint()
    except DeltaError as error:
        raise ArchiveUnavailable(f"{table}: no checkpoint could be made: {error}") from error
    version = opened.version()
    path = table / COMMITS / checkpoint_name(version)
    for made in (path, table / COMMITS / LAST_CHECKPOINT):
        _sync(made)
    sync_directory(table / COMMITS)
    _write_sum(table, version, encode_sum(version, path.read_bytes()))


def _write_sum(table: Path, version: int, data: bytes) -> None:
    path = table / SUMS / sum_name(version)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data)
    _sync(temporary)
    os.replace(temporary, path)
    sync_directory(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_log_before(table: Path, cutoff_ms: int) -> None:
    """Delete of the log what no version needs that was the newest at ``cutoff_ms`` or later.

    Raises OSError.
    """
    names = list_log(table)
    for kept in sorted(names.proofs, reverse=True):
        made_ns = (table / COMMITS / checkpoint_name(kept)).stat().st_mtime_ns
        if made_ns < cutoff_ms * 1_000_000 and proved_checkpoint(table, kept) is not None:
            break
    else:
        return
    for version in sorted(v for v in names.commits if v < kept):
        (table / COMMITS / commit_name(version)).unlink()
    for version in sorted(v for v in names.checkpoints if v < kept):
        (table / COMMITS / checkpoint_name(version)).unlink()
    for version in sorted(v for v in names.sums if v < kept):
        (table / SUMS / sum_name(version)).unlink()
