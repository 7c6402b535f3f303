# Tests: tests/archive/test_vacuum.py
"""What of a table's directory may be deleted, by the wall clock that Delta goes by.

A file stays as long as a version needs it that was the newest one in the last hours, and so does
any file that is younger: whoever is writing it has not committed it yet. Only Parquet files and our
own temporary files are ever deleted, none of them below a name that begins with ``_`` or ``.``, as
the Delta protocol has it for vacuum.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from brokerd.archive.checkpoints import remove_log_before
from brokerd.archive.deltalog import COMMITS, FILE_BYTES_MAX, SUMS, commit_name, decode_commit
from brokerd.archive.logreader import list_log
from brokerd.archive.regular import read_regular

HOUR_MS = 3_600_000
LOG_HOURS = 7 * 24
"""Commits stay so long at least."""


def vacuum(table: Path, live: Collection[str], hours: int, now_ms: int) -> list[str]:
    """Delete what is not needed.

    :param live: paths of the files of the newest version, relative to the table.
    :return: paths of the deleted files, relative to the table.
    :raises OSError: the disk refuses.
    :raises ArchiveUnavailable: a commit is damaged.
    """
    cutoff_ms = now_ms - hours * HOUR_MS
    kept = {*live, *_removed_since(table, cutoff_ms)}
    found = [path for path in _old_files(table, cutoff_ms) if path not in kept]
    for path in found:
        (table / path).unlink()
    for temporary in _temporary(table):
        if _is_old(temporary, cutoff_ms):
            temporary.unlink()
    remove_log_before(table, now_ms - max(hours, LOG_HOURS) * HOUR_MS)
    return found


def _removed_since(table: Path, cutoff_ms: int) -> Iterator[str]:
    """Files that commits removed since then: versions before these commits need them."""
    for version in list_log(table).commits:
        path = table / COMMITS / commit_name(version)
        if not _is_old(path, cutoff_ms):
            yield from decode_commit(read_regular(path, FILE_BYTES_MAX), path).removed


def _temporary(table: Path) -> Iterator[Path]:
    """What a stopped job, or deltalake in it, left of the log's files."""
    yield from (table / COMMITS).glob(".commit-*.tmp")
    yield from (table / COMMITS).glob("*#*")
    yield from (table / SUMS).glob("*.tmp")


def _old_files(table: Path, cutoff_ms: int) -> Iterator[str]:
    for directory, below, names in os.walk(table):
        below[:] = sorted(name for name in below if not name.startswith(("_", ".")))
        for name in sorted(names):
            path = Path(directory, name)
            if name.endswith(".parquet") and _is_old(path, cutoff_ms):
                yield path.relative_to(table).as_posix()


def _is_old(path: Path, cutoff_ms: int) -> bool:
    return path.stat().st_mtime_ns < cutoff_ms * 1_000_000
