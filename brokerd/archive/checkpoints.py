# Tests: tests/archive/test_checkpoints.py
"""Checkpoints of a Delta log, made now and then so that nobody has to read all commits.

deltalake makes them. A sum beside the log proves one and says that it is durable: only then may
commits before it go (docs/archive-log.rst, "Checkpoints").
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pyarrow as pa

from brokerd.archive.deltalog import (
    COMMITS,
    FILE_BYTES_MAX,
    SUMS,
    Snapshot,
    apply,
    checkpoint_name,
    commit_name,
    decode_checkpoint,
    encode_sum,
    sum_name,
    sync_directory,
)
from brokerd.archive.logreader import list_log, proved_checkpoint
from brokerd.archive.regular import read_regular
from brokerd.archive.view import ArchiveUnavailable

EVERY_COMMITS = 20
LAST_CHECKPOINT = "_last_checkpoint"


def checkpoint_if_due(table: Path, newest: Snapshot, every: int = EVERY_COMMITS) -> bool:
    """Make a checkpoint of the newest version, if the last one is ``every`` commits behind.

    One process at a time makes one; the others leave it to that. Raises OSError, and
    ArchiveUnavailable when deltalake cannot do it, or makes one that says something else.
    """
    if not _is_due(table, newest.version, every):
        return False
    directory = table / SUMS
    if not directory.exists():
        directory.mkdir(exist_ok=True)
        sync_directory(table)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_due(table, newest.version, every):
            _remove_unproved(table)
            _make(table, newest)
    except BlockingIOError:
        return False  # somebody else makes one
    finally:
        os.close(descriptor)
    return True


def _is_due(table: Path, version: int, every: int) -> bool:
    return version - max(list_log(table).proofs, default=-1) >= every


def _remove_unproved(table: Path) -> None:
    """Remove the checkpoints after the newest one that is proved: unfinished, damaged, or others'.

    Else deltalake would begin with one of them. The table was read without them, so all commits
    that they were made of are there. What names the newest is no more than a hint.
    """
    for version in sorted(list_log(table).checkpoints, reverse=True):
        if _is_proved(table, version):
            break
        (table / COMMITS / checkpoint_name(version)).unlink()
    (table / COMMITS / LAST_CHECKPOINT).unlink(missing_ok=True)


def _is_proved(table: Path, version: int) -> bool:
    try:
        return proved_checkpoint(table, version) is not None
    except FileNotFoundError:  # it has no sum
        return False


def _make(table: Path, newest: Snapshot) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        opened = DeltaTable(table, version=newest.version)
        opened.create_checkpoint()
    except DeltaError as error:
        raise ArchiveUnavailable(f"{table}: no checkpoint could be made: {error}") from error
    path = table / COMMITS / checkpoint_name(newest.version)
    data = read_regular(path, FILE_BYTES_MAX)
    if not _says(data, newest):
        path.unlink()
        (table / COMMITS / LAST_CHECKPOINT).unlink(missing_ok=True)
        raise ArchiveUnavailable(
            f"{table}: the checkpoint of version {newest.version} that deltalake made is not what "
            "the log says; it was removed, and another is tried with the next commit"
        )
    for made in (path, table / COMMITS / LAST_CHECKPOINT):
        _sync(made)
    sync_directory(table / COMMITS)
    _write_sum(table, newest.version, encode_sum(newest.version, data))


def _says(data: bytes, newest: Snapshot) -> bool:
    """Whether a checkpoint is that of a version."""
    found = apply(decode_checkpoint(data), newest.version, None)
    return found.transactions == newest.transactions and _by_path(found).equals(_by_path(newest))


def _by_path(snapshot: Snapshot) -> pa.Table:
    return snapshot.files.sort_by("path").combine_chunks()


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
