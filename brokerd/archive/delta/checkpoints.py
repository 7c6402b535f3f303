# Tests: tests/archive/test_checkpoints.py
"""Makes checkpoints of a Delta log. Readers use a checkpoint instead of the commits before it.

deltalake writes a checkpoint. A sum beside the log proves that it is complete and durable. Only
after that, older commits may be deleted (docs/archive-log.rst, section "Checkpoints").
"""

from __future__ import annotations

import pyarrow as pa

from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.log_files import (
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
)
from brokerd.archive.delta.log_reader import list_log, read_checkpoint
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.bucket import problem_of
from brokerd.archive.storage.store import open_store

EVERY_COMMITS = 20
LAST_CHECKPOINT = "_last_checkpoint"
_HINT = f"{COMMITS}/{LAST_CHECKPOINT}"


def checkpoint_if_due(table: Place, newest: Snapshot, every: int = EVERY_COMMITS) -> bool:
    """Make a checkpoint of the newest version, if the last checkpoint is ``every`` commits behind.

    One process at a time makes it. In a bucket two processes may make it; the last sum decides.

    :return: True if a checkpoint was made.
    :raises OSError: a file is gone.
    :raises ArchiveUnavailable: deltalake failed, or wrote a wrong checkpoint.
    """
    if not _is_due(table, newest.version, every):
        return False
    store = open_store(table)
    if store.fingerprint(SUMS) is None:
        store.make_directory(SUMS)
    with store.exclusive(SUMS) as is_alone:
        if not is_alone:
            return False  # another process makes it
        if _is_due(table, newest.version, every):
            try:
                _remove_unproved(table)
                _make(table, newest)
            except FileNotFoundError:
                if store.is_local:
                    raise
                return False  # another job deleted it as unproved, and makes its own
    return True


def _is_due(table: Place, version: int, every: int) -> bool:
    return version - max(list_log(table).checksummed, default=-1) >= every


def _remove_unproved(table: Place) -> None:
    """Delete the checkpoints after the newest proved checkpoint, and ``_last_checkpoint``, a hint.

    They are incomplete, damaged or foreign, and deltalake would read one. The table was read
    without them, so their commits exist.
    """
    store = open_store(table)
    for version in sorted(list_log(table).checkpoints, reverse=True):
        if _is_proved(table, version):
            break
        store.delete([_checkpoint_path(version)])
    store.delete([_HINT])


def _is_proved(table: Place, version: int) -> bool:
    try:
        return read_checkpoint(table, version) is not None
    except FileNotFoundError:  # no sum
        return False


def _make(table: Place, newest: Snapshot) -> None:
    store = open_store(table)
    _write_checkpoint(table, newest.version)
    path = _checkpoint_path(newest.version)
    data = store.read(path, FILE_BYTES_MAX)
    if not _is_equal(data, newest):
        store.delete([path, _HINT])
        raise ArchiveUnavailable(
            f"{table}: the checkpoint of version {newest.version} that deltalake wrote differs "
            "from the log; it was deleted, and the next commit makes another one"
        )
    for made in (path, _HINT):
        store.sync_file(made)
    store.sync_directory(COMMITS)
    store.put(f"{SUMS}/{sum_name(newest.version)}", encode_sum(newest.version, data))


def _write_checkpoint(table: Place, version: int) -> None:
    """Make deltalake write a checkpoint."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        options = open_store(table).deltalake_options
        DeltaTable(str(table), version=version, storage_options=options).create_checkpoint()
    except (DeltaError, OSError) as error:
        text = problem_of(error)
        raise ArchiveUnavailable(f"{table}: no checkpoint could be made: {text}") from error


def _checkpoint_path(version: int) -> str:
    return f"{COMMITS}/{checkpoint_name(version)}"


def _is_equal(data: bytes, newest: Snapshot) -> bool:
    """Return whether a checkpoint holds the content of a version."""
    found = apply(decode_checkpoint(data), newest.version, None)
    return found.transactions == newest.transactions and _by_path(found).equals(_by_path(newest))


def _by_path(snapshot: Snapshot) -> pa.Table:
    return snapshot.files.sort_by("path").combine_chunks()


def remove_log_before(table: Place, cutoff_ms: int) -> None:
    """Delete log files before the newest sound checkpoint that is older than ``cutoff_ms``.

    Versions that were newest at ``cutoff_ms`` or later stay. Raises the errors of the store.
    """
    store = open_store(table)
    names = list_log(table)
    for kept in sorted(names.checksummed, reverse=True):
        made_ms = store.stat(_checkpoint_path(kept)).changed_ms
        if made_ms < cutoff_ms and read_checkpoint(table, kept) is not None:
            break
    else:
        return
    for directory, name, versions in (
        (COMMITS, commit_name, names.commits),
        (COMMITS, checkpoint_name, names.checkpoints),
        (SUMS, sum_name, names.sums),
    ):
        store.delete(
            f"{directory}/{name(version)}" for version in sorted(versions) if version < kept
        )
