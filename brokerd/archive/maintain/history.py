# Tests: tests/archive/test_history.py, tests/archive/test_history_tables.py
"""Merges the files of the tables ``events`` and ``deliveries``, and removes old files.

docs/archive-tables.rst has the rules. Each change is a separate commit.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from brokerd.archive.contract.layout import DELIVERIES, EVENTS, HOURLY, arrow_schema
from brokerd.archive.delta.actions import AddFile, add_file, add_plain_file
from brokerd.archive.delta.table import Table
from brokerd.archive.derive.deliveries import DELIVERIES_APP
from brokerd.archive.derive.hourly import DAY_US, HOURLY_APP
from brokerd.archive.errors import JobFailed
from brokerd.archive.maintain.merge_policy import neighbours_to_merge, pieces
from brokerd.archive.maintain.rewrite import RewriteFailure, RewriteResult, RewriteUnit, rewrite
from brokerd.archive.parquet.plain_file import PlainFileReader, PlainFileWriter
from brokerd.archive.run import Run, StepReport, count_text
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store

NO_LSN = 1 << 63


class HistoryFile(NamedTuple):
    """A live file of a table whose rows are in the order of the log."""

    path: str
    size: int
    rows: int
    first_lsn: int
    last_lsn: int
    last_time_us: int


def maintain_history(run: Run) -> StepReport:
    """Remove old files, merge small files, and return the report.

    Change nothing if the run is limited to topics. A failed merge leaves its files unchanged, and
    raises JobFailed after all other work.

    Raises JobFailed, ArchiveUnavailable, ForeignArchive, NewerFormat, TableConflict, OSError.
    """
    report, problems = StepReport("history"), list[str]()
    if run.only is not None:
        return report
    for layout, used_by, app in (
        (EVENTS, DELIVERIES, DELIVERIES_APP),
        (DELIVERIES, HOURLY, HOURLY_APP),
    ):
        table = run.tables.newest(layout)
        used_lsn = NO_LSN
        if run.settings.derived:
            used_lsn = run.tables.newest(used_by).transaction(app)
        rows = _remove_old(run, table, used_lsn)
        try:
            files = _merge(run, table, problems) if run.settings.merge else 0
        except JobFailed as error:
            problems.append(str(error))
            files = 0
        report.numbers |= {f"old_{layout.name}": rows, f"merged_{layout.name}": files}
        if rows:
            report.lines.append(f"removed {rows:,} old {layout.name}")
        if files:
            report.lines.append(f"merged {count_text(files, 'file')} of {layout.name}")
    if problems:
        raise JobFailed("; ".join(problems[:3]))
    return report


def _files(table: Table) -> list[HistoryFile]:
    """Return the live files by LSN."""
    rows = table.files.select(list(HistoryFile._fields)).to_pylist()
    files = [HistoryFile(**row) for row in rows]
    return sorted(files, key=lambda file: (file.first_lsn, file.path))


def _remove_old(run: Run, table: Table, used_lsn: int) -> int:
    """Remove files that hold only old rows, and return the number of rows.

    :param used_lsn: the derived table includes the rows below this LSN.
    """
    days, bounds = run.settings.events_days, run.bounds
    if not (days and bounds.time_settled):
        return 0
    cutoff_us = bounds.time_us - days * DAY_US
    old = [f for f in _files(table) if f.last_time_us < cutoff_us and f.last_lsn < used_lsn]
    if old:
        run.failpoint(f"before {table.layout.name} are removed")
        paths = [file.path for file in old]
        table.commit([], paths, now_ms=run.now_ms(), operation="DELETE")
    return sum(file.rows for file in old)


# -- Merging -------------------------------------------------------------------------------------


class _MergeResult(NamedTuple):
    """The result of merging several groups of files."""

    paths: list[str]
    """The merged files, which are removed."""
    added: list[AddFile]
    """The new files."""
    problems: list[str]
    """The reasons why other groups were not merged."""


def _merge(run: Run, table: Table, problems: list[str]) -> int:
    """Merge neighbours by the merge policy, and return the number of merged files.

    Add to ``problems`` the reason why a group was not merged.
    """
    files = _files(table)
    sizes = [file.size for file in files]
    runs = neighbours_to_merge(sizes, run.settings.file_bytes, run.merge_growth)
    groups = [[files[at].path for at in piece] for piece in pieces(runs)]
    if not groups:
        return 0
    merge = _merge_events if table.layout is EVENTS else _merge_deliveries
    result = merge(run, groups)
    problems += result.problems
    if result.paths:
        run.failpoint(f"before {table.layout.name} are merged")
        table.commit(
            result.added,
            result.paths,
            now_ms=run.now_ms(),
            operation="OPTIMIZE",
            data_change=False,
        )
    return len(result.paths)


def _merge_events(run: Run, groups: Sequence[Sequence[str]]) -> _MergeResult:
    log_id = run.bounds.log_id
    units = [RewriteUnit(run.root, EVENTS.name, log_id, tuple(paths)) for paths in groups]
    results = run.spark.map("merge events", rewrite, units)
    done = [one for one in results if isinstance(one, RewriteResult)]
    return _MergeResult(
        [path for one in done for path in one.paths],
        [add_file(info) for one in done for info in one.added],
        [one.text for one in results if isinstance(one, RewriteFailure)],
    )


class _MergeTask(NamedTuple):
    """Files of deliveries to merge into one."""

    root: Place
    paths: tuple[str, ...]


def _merge_deliveries(run: Run, groups: Sequence[Sequence[str]]) -> _MergeResult:
    tasks = [_MergeTask(run.root, tuple(paths)) for paths in groups]
    added = run.spark.map("merge deliveries", _merge_task, tasks)
    return _MergeResult([path for paths in groups for path in paths], added, [])


def _merge_task(task: _MergeTask) -> AddFile:
    """Write the rows of some files into one file, in their order."""
    store, table = open_store(task.root), DELIVERIES.name
    schema, layout = arrow_schema(DELIVERIES), DELIVERIES
    with PlainFileWriter(store, table, schema, layout.statistics, layout.texts) as writer:
        for path in task.paths:
            for rows in PlainFileReader(store, f"{table}/{path}").read(schema):
                writer.write(rows)
        name = f"d-merged-{secrets.token_hex(8)}.parquet"
        info = writer.close(f"{table}/{name}")
    return add_plain_file(info._replace(path=name), "outcome_time")
