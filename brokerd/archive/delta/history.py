# Tests: tests/archive/test_log_files.py, tests/spark/test_as_of.py
"""Lists the versions of a table that its Delta log still has, with their times and LSNs."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from brokerd.archive.contract.layout import ROLLUP_APP
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.log_files import COMMITS, FILE_BYTES_MAX, commit_name, decode_commit
from brokerd.archive.delta.log_reader import list_log
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store


class VersionInfo(NamedTuple):
    """A version of a table."""

    version: int
    time_ms: int
    """The wall clock of the commit."""
    lsn: int | None
    """The LSN up to which the version holds the log; None if no commit that is left tells it."""


class _Transaction(msgspec.Struct, rename="camel"):
    app_id: str
    version: int


class _CommitInfo(msgspec.Struct):
    timestamp: int = 0


class _Line(msgspec.Struct, rename="camel"):
    commit_info: _CommitInfo | None = None
    txn: _Transaction | None = None


_LINES = msgspec.json.Decoder(_Line)


def list_versions(table: Place) -> list[VersionInfo]:
    """Return the versions whose commits exist, from the oldest on.

    :raises ArchiveUnavailable: a commit is damaged or cannot be read.
    :raises ForeignArchive: another program changed the table.
    """
    store, lsn = open_store(table), None
    found: list[VersionInfo] = []
    for version in sorted(list_log(table).commits):
        path = f"{COMMITS}/{commit_name(version)}"
        try:
            data = store.read(path, FILE_BYTES_MAX)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and version not in list_log(table).commits:
                continue  # vacuum deleted it since the listing
            raise ArchiveUnavailable(f"{table / path} cannot be read: {error}") from error
        decode_commit(data, table / path)  # proves it
        lines = _LINES.decode_lines(data)
        times = [line.commit_info.timestamp for line in lines if line.commit_info is not None]
        for line in lines:
            if line.txn is not None and line.txn.app_id == ROLLUP_APP:
                lsn = line.txn.version
        found.append(VersionInfo(version, times[0], lsn))
    return found
