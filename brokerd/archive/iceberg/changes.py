# Tests: tests/archive/test_iceberg.py
"""Reads the changes of a Delta table: the files that each version adds and removes.

`brokerd.archive.delta.log_reader` has verified the log. In contrast to it, this module also reads
the smallest and the largest values of each file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from brokerd.archive.contract.layout import ROLLUP_APP
from brokerd.archive.delta.log_files import (
    COMMITS,
    FILE_BYTES_MAX,
    checkpoint_name,
    commit_name,
    decode_commit,
)
from brokerd.archive.delta.log_reader import list_log
from brokerd.archive.delta.table import Table
from brokerd.archive.storage.store import open_store


class DataFile(NamedTuple):
    """A file of a table, as the Delta log describes it."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    minimum: Mapping[str, Any]
    """The smallest values of some columns. Times are texts."""
    maximum: Mapping[str, Any]
    nulls: Mapping[str, int]


class Change(NamedTuple):
    """The files that a version adds and removes."""

    version: int
    time_ms: int
    """The wall clock of the commit."""
    lsn: int | None
    """The LSN up to which the table holds the log since this version. None: as before."""
    data_change: bool
    """False if the added files have exactly the rows of the removed files."""
    added: Sequence[DataFile]
    removed: Sequence[str]


class _Stats(msgspec.Struct, rename="camel"):
    num_records: int
    min_values: dict[str, Any] = {}
    max_values: dict[str, Any] = {}
    null_count: dict[str, int] = {}


class _Add(msgspec.Struct, rename="camel"):
    path: str
    size: int
    data_change: bool
    stats: str


class _Remove(msgspec.Struct, rename="camel"):
    path: str
    data_change: bool


class _Transaction(msgspec.Struct, rename="camel"):
    app_id: str
    version: int


class _CommitInfo(msgspec.Struct):
    timestamp: int = 0


class _Line(msgspec.Struct, rename="camel"):
    commit_info: _CommitInfo | None = None
    add: _Add | None = None
    remove: _Remove | None = None
    txn: _Transaction | None = None


_LINES = msgspec.json.Decoder(_Line)
_STATS = msgspec.json.Decoder(_Stats)


def changes_after(table: Table, version: int) -> Iterator[Change] | None:
    """Yield the changes of the versions after ``version``, up to the table's snapshot.

    :return: None if the log no longer has all these commits.
    """
    present = list_log(table.path).commits
    wanted = range(version + 1, table.version + 1)
    if not present.issuperset(wanted):
        return None
    return (_change(table, one) for one in wanted)


def whole_table(table: Table, time_ms: int) -> Change:
    """Return the live files as one change.

    :param time_ms: the time of the change if the newest commit is gone.
    """
    base, files = _checkpoint(table)
    for version in range(base + 1, table.version + 1):
        change = _change(table, version)
        time_ms = change.time_ms
        for path in change.removed:
            files.pop(path, None)
        files.update({file.path: file for file in change.added})
    lsn = table.transaction(ROLLUP_APP) or None
    return Change(table.version, time_ms, lsn, True, list(files.values()), ())


def _checkpoint(table: Table) -> tuple[int, dict[str, DataFile]]:
    """Return the newest proved checkpoint and its files; version -1 without one."""
    names = list_log(table.path)
    proved = [one for one in names.checksummed if one <= table.version]
    version = max(proved, default=-1)
    if version < 0:
        return version, {}
    store = open_store(table.path)
    data = store.read(f"{COMMITS}/{checkpoint_name(version)}", FILE_BYTES_MAX)
    columns = ["add.path", "add.size", "add.stats"]
    adds = pq.ParquetFile(pa.BufferReader(data)).read(columns, use_threads=False)["add"]
    found = (one for one in adds.to_pylist() if one is not None)
    files = [_data_file(one["path"], one["size"], one["stats"]) for one in found]
    return version, {file.path: file for file in files}


def _change(table: Table, version: int) -> Change:
    name = f"{COMMITS}/{commit_name(version)}"
    data = open_store(table.path).read(name, FILE_BYTES_MAX)
    decode_commit(data, table.path / name)  # proves it
    lines = _LINES.decode_lines(data)
    adds = [line.add for line in lines if line.add is not None]
    removes = [line.remove for line in lines if line.remove is not None]
    times = [line.commit_info.timestamp for line in lines if line.commit_info is not None]
    lsns = [
        line.txn.version for line in lines if line.txn is not None and line.txn.app_id == ROLLUP_APP
    ]
    return Change(
        version,
        times[0],
        lsns[-1] if lsns else None,
        any(one.data_change for one in adds) or any(one.data_change for one in removes),
        [_data_file(one.path, one.size, one.stats) for one in adds],
        [unquote(one.path) for one in removes],
    )


def _data_file(path: str, size: int, text: str) -> DataFile:
    stats = _STATS.decode(text)
    return DataFile(
        unquote(path), size, stats.num_records, stats.min_values, stats.max_values, stats.null_count
    )
