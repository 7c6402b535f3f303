# Tests: tests/archive/test_history.py
"""Keeps the tables ``events`` and ``deliveries`` in few files, and as long as it is configured.

What goes, and what is merged, is docs/archive-tables.rst. Each is a commit of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from brokerd.archive.cluster.frames import added_plain
from brokerd.archive.contract.layout import DELIVERIES, EVENTS, HOURLY, arrow_schema
from brokerd.archive.delta.actions import AddFile, add_file
from brokerd.archive.delta.table import Table
from brokerd.archive.derive.deliveries import DELIVERIES_APP
from brokerd.archive.derive.hourly import DAY_US, HOURLY_APP
from brokerd.archive.maintain.merge_policy import neighbours_to_merge, pieces
from brokerd.archive.maintain.rewrite import Refused, Rewritten, Unit, rewrite
from brokerd.archive.parquet.plain_file import PlainFileReader, PlainFileWriter
from brokerd.archive.run import JobFailed, Run, StepReport, counted
from brokerd.archive.storage.store import Place, open_store

NO_LSN = 1 << 63


class File(NamedTuple):
    """A live file of a table whose rows are in the order of the log."""

    path: str
    size: int
    rows: int
    first_lsn: int
    last_lsn: int
    last_time_us: int


def keep_history(run: Run) -> StepReport:
    """Remove what is too old, and merge small files; nothing if only some topics are meant.

    What cannot be merged stays as it is, and is told at the end, when all else is done.

    Raises JobFailed, ArchiveUnavailable, ForeignArchive, NewerFormat, TableConflict, OSError.
    """
    report, problems = StepReport("history"), list[str]()
    if run.only is not None:
        return report
    for layout, used_by, app in (
        (EVENTS, DELIVERIES, DELIVERIES_APP),
        (DELIVERIES, HOURLY, HOURLY_APP),
    ):
        table = Table(run.root, layout, run.bounds.log_id)
        used_lsn = NO_LSN
        if run.settings.derived:
            used_lsn = Table(run.root, used_by, run.bounds.log_id).transaction(app)
        rows = _remove_old(run, table, used_lsn)
        try:
            files = _merge(run, table, problems) if run.settings.merge else 0
        except JobFailed as error:
            problems.append(str(error))
            files = 0
        report.numbers |= {f"old_{layout.name}": rows, f"merged_{layout.name}": files}
        if rows:
            report.lines.append(f"removed {rows:,} {layout.name} that are too old")
        if files:
            report.lines.append(f"merged {counted(files, 'file')} of {layout.name}")
    if problems:
        raise JobFailed("; ".join(problems[:3]))
    return report


def _files(table: Table) -> list[File]:
    """Live files by LSN."""
    rows = table.files.select(list(File._fields)).to_pylist()
    return sorted((File(**row) for row in rows), key=lambda file: (file.first_lsn, file.path))


def _remove_old(run: Run, table: Table, used_lsn: int) -> int:
    """Remove files whose rows are all too old, unless a derived table needs them; gives the rows.

    :param used_lsn: no derived table needs what is below.
    """
    days, bounds = run.settings.events_days, run.bounds
    if not (days and bounds.time_settled):
        return 0
    cutoff_us = bounds.time_us - days * DAY_US
    old = [f for f in _files(table) if f.last_time_us < cutoff_us and f.last_lsn < used_lsn]
    if old:
        run.at(f"before {table.layout.name} are removed")
        paths = [file.path for file in old]
        table.commit([], paths, now_ms=run.now_ms(), operation="DELETE")
    return sum(file.rows for file in old)


# -- Merging -------------------------------------------------------------------------------------


class _Merged(NamedTuple):
    """What became of files that were to be merged."""

    paths: list[str]
    """Those that were."""
    added: list[AddFile]
    """What takes their place."""
    problems: list[str]
    """Why others were not."""


def _merge(run: Run, table: Table, problems: list[str]) -> int:
    """Merge neighbours that are worth it; gives how many files there were of them.

    Adds to ``problems`` why some stay as they are.
    """
    files = _files(table)
    runs = neighbours_to_merge([file.size for file in files], run.settings.file_bytes)
    some = [[files[at].path for at in piece] for piece in pieces(runs)]
    if not some:
        return 0
    merge = _merge_events if table.layout is EVENTS else _merge_deliveries
    merged = merge(run, some)
    problems += merged.problems
    if merged.paths:
        run.at(f"before {table.layout.name} are merged")
        table.commit(merged.added, merged.paths, now_ms=run.now_ms(), operation="OPTIMIZE")
    return len(merged.paths)


def _merge_events(run: Run, some: Sequence[Sequence[str]]) -> _Merged:
    log_id = run.bounds.log_id
    units = [Unit(run.root, EVENTS.name, log_id, tuple(paths)) for paths in some]
    results = run.map("merge events", rewrite, units)
    done = [one for one in results if isinstance(one, Rewritten)]
    return _Merged(
        [path for one in done for path in one.paths],
        [add_file(info) for one in done for info in one.added],
        [one.text for one in results if isinstance(one, Refused)],
    )


class _Join(NamedTuple):
    """Files of deliveries that one takes the place of."""

    root: Place
    paths: tuple[str, ...]


def _merge_deliveries(run: Run, some: Sequence[Sequence[str]]) -> _Merged:
    tasks = [_Join(run.root, tuple(paths)) for paths in some]
    new = run.map("merge deliveries", _join, tasks)
    return _Merged([path for paths in some for path in paths], new, [])


def _join(task: _Join) -> AddFile:
    """Write the rows of some files into one, in their order."""
    store, table = open_store(task.root), DELIVERIES.name
    schema, statistics = arrow_schema(DELIVERIES), DELIVERIES.statistics
    with PlainFileWriter(store, table, schema, statistics) as writer:
        for path in task.paths:
            for rows in PlainFileReader(store, f"{table}/{path}").read(schema):
                writer.write(rows)
        name = f"d-merged-{secrets.token_hex(8)}.parquet"
        info = writer.close(f"{table}/{name}")
    return added_plain(info._replace(path=name), "outcome_time")
