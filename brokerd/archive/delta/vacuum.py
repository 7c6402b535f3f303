# Tests: tests/archive/test_vacuum.py
"""What of a table's directory may be deleted, by the wall clock that Delta goes by.

A file stays as long as a version needs it that was the newest one in the last hours, and so does
any file that is younger: whoever is writing it has not committed it yet. Only Parquet files and our
own temporary files are ever deleted, none of them below a name that begins with ``_`` or ``.``, as
the Delta protocol has it for vacuum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from brokerd.archive.delta.checkpoints import remove_log_before
from brokerd.archive.delta.log_files import COMMITS, FILE_BYTES_MAX, SUMS, decode_commit
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import Entry, Store, open_store

HOUR_MS = 3_600_000
LOG_HOURS = 7 * 24
"""Commits stay so long at least."""


def vacuum(table: Place, live: Collection[str], hours: int, now_ms: int) -> list[str]:
    """Delete what is not needed.

    :param live: paths of the files of the newest version, relative to the table.
    :return: paths of the deleted files, relative to the table.
    :raises OSError: a file is gone that was there before.
    :raises ArchiveUnavailable: the disk refuses, or a commit is damaged.
    """
    store = open_store(table)
    cutoff_ms = now_ms - hours * HOUR_MS
    log = list(store.list(COMMITS, hidden=True))
    kept = {*live, *_removed_since(store, log, cutoff_ms)}
    found = [
        entry.path
        for entry in store.list()
        if entry.path.endswith(".parquet")
        and entry.changed_ms < cutoff_ms
        and entry.path not in kept
    ]
    store.delete(found)
    log += store.list(SUMS, hidden=True)
    store.delete(
        entry.path for entry in log if _is_temporary(entry) and entry.changed_ms < cutoff_ms
    )
    remove_log_before(table, now_ms - max(hours, LOG_HOURS) * HOUR_MS)
    return found


def remove_temporaries(root: Place, hours: int, now_ms: int) -> None:
    """Delete files beside the tables that a stopped job was writing. Raises as the store does."""
    store = open_store(root)
    cutoff_ms = now_ms - hours * HOUR_MS
    names = [name for name in store.names("") if name.startswith(".put-")]
    store.delete(name for name in names if store.stat(name).changed_ms < cutoff_ms)


def _removed_since(store: Store, log: list[Entry], cutoff_ms: int) -> Iterator[str]:
    """Files that commits removed since then: versions before these commits need them."""
    for entry in log:
        stem, _, suffix = _name(entry).partition(".")
        is_commit = suffix == "json" and len(stem) == 20 and stem.isascii() and stem.isdigit()
        if is_commit and entry.changed_ms >= cutoff_ms:
            data = store.read(entry.path, FILE_BYTES_MAX)
            yield from decode_commit(data, store.place / entry.path).removed


def _is_temporary(entry: Entry) -> bool:
    """Whether a stopped job, or deltalake in it, left it of the log's files."""
    directory, _, name = entry.path.rpartition("/")
    if directory == SUMS:
        return name.endswith(".tmp")
    is_ours = name.startswith(".commit-") and name.endswith(".tmp")
    return directory == COMMITS and (is_ours or "#" in name)


def _name(entry: Entry) -> str:
    return entry.path.rpartition("/")[2]
