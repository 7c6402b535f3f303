# Tests: tests/archive/test_vacuum.py
"""Deletes files that a table no longer needs, by the wall clock.

A file stays while a version needs it that was the newest version in the last hours. A younger file
stays, too: its writer may not have committed it yet. Vacuum deletes only Parquet files and
brokerd's temporary files. It skips directories that begin with ``_`` or ``.`` (Delta protocol).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from brokerd.archive.delta.checkpoints import remove_log_before
from brokerd.archive.delta.log_files import COMMITS, FILE_BYTES_MAX, SUMS, decode_commit
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import Entry, Store, open_store

HOUR_MS = 3_600_000
BUCKET_HOURS = 24
"""The least age of a deleted file in a bucket: a run of another machine, which no lock keeps out,
may commit a younger one."""
LOG_HOURS = 7 * 24
"""The least age of a deleted commit."""


def least_hours(store: Store, hours: int) -> int:
    """Return the least age of a deleted file, in hours, for ``archive.vacuum_hours``."""
    return hours if store.is_local else max(hours, BUCKET_HOURS)


def vacuum(table: Place, live: Collection[str], hours: int, now_ms: int) -> list[str]:
    """Delete the files that no recent version needs.

    :param live: paths of the files of the newest version, relative to the table.
    :return: paths of the deleted files, relative to the table.
    :raises OSError: another process deleted a file at the same time.
    :raises ArchiveUnavailable: the disk or the server reports an error, or a commit is damaged.
    """
    store = open_store(table)
    cutoff_ms = now_ms - hours * HOUR_MS
    log = list(store.list(COMMITS, hidden=True))
    kept = {*live, *_removed_since(store, log, cutoff_ms)}
    young_ms = now_ms - least_hours(store, hours) * HOUR_MS
    found = [
        entry.path
        for entry in store.list()
        if entry.path.endswith(".parquet")
        and entry.changed_ms < young_ms
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
    """Delete incomplete files of stopped jobs beside the tables. Raises the errors of the store."""
    store = open_store(root)
    cutoff_ms = now_ms - hours * HOUR_MS
    names = [name for name in store.names("") if name.startswith(".put-")]
    store.delete(name for name in names if store.stat(name).changed_ms < cutoff_ms)


def _removed_since(store: Store, log: list[Entry], cutoff_ms: int) -> Iterator[str]:
    """Yield files that commits since ``cutoff_ms`` removed. Older versions need them."""
    for entry in log:
        stem, _, suffix = _name(entry).partition(".")
        is_commit = suffix == "json" and len(stem) == 20 and stem.isascii() and stem.isdigit()
        if is_commit and entry.changed_ms >= cutoff_ms:
            data = store.read(entry.path, FILE_BYTES_MAX)
            yield from decode_commit(data, store.place / entry.path).removed


def _is_temporary(entry: Entry) -> bool:
    """Return whether a file of the log is incomplete, left by a stopped job or its deltalake."""
    directory, _, name = entry.path.rpartition("/")
    if directory.partition("/")[0] == SUMS:
        return name.endswith(".tmp")
    is_ours = name.startswith(".commit-") and name.endswith(".tmp")
    return directory == COMMITS and (is_ours or "#" in name)


def _name(entry: Entry) -> str:
    return entry.path.rpartition("/")[2]
