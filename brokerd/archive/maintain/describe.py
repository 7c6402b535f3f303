# Tests: tests/archive/test_describe.py
"""Gives the files of older versions the statistics by which other programs skip files.

Commits of older versions lack null counts, topics and groups (docs/archive-log.rst, "Commits"). A
task reads these columns of a file. A commit adds the file again with its statistics and without a
change of data. When all files of a table have them, a commit names their columns in the table's
properties: other programs would skip files that lack the statistics of a named column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from brokerd.archive.cluster.attempts import retry_later, task_error_text
from brokerd.archive.contract.layout import EVENTS, LAYOUTS, RECORDS, Layout, arrow_schema
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.actions import AddFile
from brokerd.archive.delta.log_files import FileStats
from brokerd.archive.delta.table import Table
from brokerd.archive.errors import JobFailed
from brokerd.archive.parquet.column_facts import ColumnFacts
from brokerd.archive.parquet.plain_file import PlainFileReader
from brokerd.archive.parquet.reader import open_file
from brokerd.archive.run import Run, StepReport, count_text
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store
from brokerd.errors import DamagedData


class _Task(NamedTuple):
    """A file to read."""

    root: Place
    table: str
    path: str
    size: int
    stats: FileStats


class _Failure(NamedTuple):
    """The reason why a file was not read."""

    text: str


def describe_files(run: Run) -> StepReport:
    """Add statistics to files that lack them, at most ``lot_bytes`` a table, and return the report.

    Raises JobFailed for unreadable files, ArchiveUnavailable, ForeignArchive and TableConflict.
    """
    report, problems, total = StepReport("describe"), list[str](), 0
    for layout in LAYOUTS.values():
        table = run.tables.newest(layout)
        tasks = _tasks(run, table)
        size = sum(task.size for task in tasks)
        with run.spark.here(size <= run.settings.local_lot_bytes):
            results = run.spark.map(f"describe {layout.name}", _describe, tasks)
        found = [one for one in results if isinstance(one, AddFile)]
        problems += [one.text for one in results if isinstance(one, _Failure)]
        if found:
            run.failpoint(f"before {layout.name} are described")
            table.describe(found, now_ms=run.now_ms())
        if not _undescribed(table):
            table.name_statistics(now_ms=run.now_ms())
        total += len(found)
    report.numbers["files"] = total
    if total:
        report.lines.append(f"added statistics of {count_text(total, 'older file')}")
    if problems:
        raise JobFailed("; ".join(problems[:3]))
    return report


def _undescribed(table: Table) -> pa.Table:
    """Return the files with rows that lack statistics."""
    files = table.files
    return files.filter(pc.and_(pc.equal(files["described"], 0), pc.greater(files["rows"], 0)))


def _tasks(run: Run, table: Table) -> list[_Task]:
    tasks: list[_Task] = []
    total = 0
    for row in _undescribed(table).to_pylist():
        path, size = row.pop("path"), row.pop("size")
        if tasks and total + size > run.settings.lot_bytes:
            break
        tasks.append(_Task(run.root, table.layout.name, path, size, FileStats(**row)))
        total += size
    return tasks


def _describe(task: _Task) -> AddFile | _Failure:
    try:
        return _read(task)
    except (DamagedData, ArchiveUnavailable, OSError) as error:
        retry_later(error)
        return _Failure(task_error_text(error))


def _read(task: _Task) -> AddFile:
    layout = LAYOUTS[task.table]
    nullable = [column.name for column in layout.file_columns() if column.nullable]
    names = list(dict.fromkeys([*layout.skipping, *nullable]))
    facts = ColumnFacts(names, layout.texts)
    minimum: dict[str, int | str] = {}
    maximum: dict[str, int | str] = {}
    for rows in _rows(task, layout, names):
        facts.update(rows)
        for name in layout.statistics:
            found = pc.min_max(rows[name].cast(pa.int64())).as_py()
            minimum[name] = min(found["min"], minimum.get(name, found["min"]))
            maximum[name] = max(found["max"], maximum.get(name, found["max"]))
    for name, (low, high) in facts.texts.items():
        minimum[name], maximum[name] = low, high
    nulls = {column.name: facts.nulls.get(column.name, 0) for column in layout.file_columns()}
    stats = task.stats._replace(described=1)
    return AddFile(task.path, task.size, stats, minimum, maximum, nulls)


def _rows(task: _Task, layout: Layout, names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield columns of a file, one row group at a time."""
    if layout in (RECORDS, EVENTS):
        file = open_file(task.root / layout.name, task.path, task.size)
        for group in range(len(file.groups)):
            yield file.read_table([group], names)
        return
    schema = arrow_schema(layout)
    wanted = pa.schema([schema.field(name) for name in names])
    store = open_store(task.root)
    yield from PlainFileReader(store, f"{layout.name}/{task.path}").read(wanted)
