# Tests: tests/archive/test_typed_tables.py
"""Removes the rows of erased records from the typed tables of a topic: docs/archive-erase.rst.

It works on the tables as they are, also if ``archive.typed`` is off by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from brokerd.archive.contract.layout import RECORDS, parse_records_name
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import is_table
from brokerd.archive.parquet.plain_file import PlainFileReader
from brokerd.archive.run import Run
from brokerd.archive.typed.layouts import RECORD_SCHEMA, REJECTED, ROWS, layout_of, table_name
from brokerd.archive.typed.task import RemovalTask, remove_rows
from brokerd.errors import BrokerdError, DamagedData

_KEYS = pa.schema([RECORD_SCHEMA.field("key")])
_UNREADABLE = (DamagedData, ArchiveUnavailable, FileNotFoundError)
"""Errors of a file that cannot be read."""


class TypedRows(NamedTuple):
    """A file of a typed table with rows of a key."""

    path: str
    """Relative to the archive."""
    rows: int
    live: bool
    """Whether the newest version of the table has the file."""


def erase_typed(run: Run, topic_id: int, key: bytes, problems: list[str]) -> int:
    """Remove the rows of a key whose records are gone, and return their number.

    Each table is changed in one commit. The old files stay.

    :param problems: gets the tables and files that cannot be read. The others lose the rows.
    """
    return sum(
        _erase(run, table, topic_id, key, problems) for table in _tables(run, topic_id, problems)
    )


def _erase(run: Run, table: Table, topic_id: int, key: bytes, problems: list[str]) -> int:
    name = table.layout.name
    records = tuple(path for path in run.tables[RECORDS.name].paths() if _may_hold(path, topic_id))
    removals = []
    for path in table.paths():
        try:
            if not _count(run, f"{name}/{path}", key):
                continue
            found = remove_rows(RemovalTask(run.root, topic_id, name, path, records))
        except _UNREADABLE as error:
            _add(problems, error)
            continue
        if found is not None:
            removals.append(found)
    if not removals:
        return 0
    run.failpoint("before typed rows are erased")
    table.commit(
        [one.added for one in removals if one.added is not None],
        [one.path for one in removals],
        now_ms=run.now_ms(),
        operation="DELETE",
    )
    return sum(one.rows for one in removals)


def delete_old_typed_files(run: Run, topic_id: int, problems: list[str]) -> list[str]:
    """Delete the files that no newest version of the topic's typed tables has; return the paths."""
    deleted = []
    for table in _tables(run, topic_id, problems):
        old = _old_files(run, table, _files(run, table.layout.name))
        if old and not run.store.is_local:
            table.keep_out_earlier_files(now_ms=run.now_ms())
            old = _old_files(run, table, old)
        deleted += old
    run.store.delete(deleted)
    return deleted


def typed_rows(run: Run, topic_id: int, key: bytes, problems: list[str]) -> tuple[TypedRows, ...]:
    """Return the files of the topic's typed tables with rows of the key; add unreadable ones."""
    found = []
    live = {
        f"{table.layout.name}/{path}"
        for table in _tables(run, topic_id, [])
        for path in table.paths()
    }
    for part in (ROWS, REJECTED):
        for path in _files(run, table_name(topic_id, part)):
            try:
                rows = _count(run, path, key)
            except _UNREADABLE as error:
                _add(problems, error)
                continue
            if rows:
                found.append(TypedRows(path, rows, path in live))
    return tuple(found)


def _old_files(run: Run, table: Table, paths: Iterable[str]) -> list[str]:
    """Return the files that the version of a table does not have."""
    live = {f"{table.layout.name}/{path}" for path in table.paths()}
    return [path for path in paths if path not in live]


def _tables(run: Run, topic_id: int, problems: list[str]) -> Iterator[Table]:
    """Yield the typed tables of a topic. A failure ends the work on a table, not on the others."""
    for part in (ROWS, REJECTED):
        name = table_name(topic_id, part)
        if is_table(run.store, name):
            try:
                table = Table(run.root, layout_of(name, RECORD_SCHEMA), run.bounds.log_id)
            except BrokerdError as error:
                problems.append(str(error))
            else:
                yield table


def _files(run: Run, name: str) -> list[str]:
    """Return the Parquet files of a table, relative to the archive. Checkpoints are not listed."""
    return [one.path for one in run.store.list(name) if one.path.endswith(".parquet")]


def _count(run: Run, path: str, key: bytes) -> int:
    """Return the number of rows of a key in a file."""
    tables = PlainFileReader(run.store, path).read(_KEYS)
    return sum(rows["key"].to_pylist().count(key) for rows in tables)


def _add(problems: list[str], error: Exception) -> None:
    """Add the text of an error, unless it is there."""
    text = str(error)
    if isinstance(error, OSError):
        text = f"{error.filename} cannot be read: {error.strerror}"
    if text not in problems:
        problems.append(text)


def _may_hold(path: str, topic_id: int) -> bool:
    name = parse_records_name(path)
    return name.first_topic_id <= topic_id <= name.last_topic_id
