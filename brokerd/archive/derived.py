# Tests: tests/archive/test_derived.py
"""Keeps the table ``deliveries`` up to date: docs/archive-tables.rst.

It is one commit that raises the table's own transaction, so a run that is stopped anywhere is done
again from where the last one ended.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from xxhash import xxh3_64

from brokerd.archive.checking import check_files
from brokerd.archive.frames import (
    adopt,
    bounds_frame,
    read_files,
    read_parquet,
    staging,
    write_frame,
)
from brokerd.archive.layout import DELIVERIES, EVENTS, ROLLUP_APP
from brokerd.archive.running import JobFailed, Run, StepReport
from brokerd.archive.store_local import sync_directory
from brokerd.archive.table import Added, Table
from brokerd.archive.transforms import ATTEMPTED, OPEN, attempts, deliveries, still_open

if TYPE_CHECKING:
    import pyarrow as pa

DELIVERIES_APP = "brokerd-deliveries"
OPEN_DIRECTORY = "_open"
"""Where attempts stand that have no outcome yet, below the table: others do not look there."""
FILE_ROWS = 1_000_000
"""A file of deliveries has about so many."""

_EVENT_COLUMNS = (
    *("topic", "topic_id", "partition", "group_name", "lsn", "seq", "time", "kind", "offset"),
    *("count", "owner", "reason"),
)


def derive_deliveries(run: Run) -> StepReport:
    """Add the outcomes of the events that came since the last run.

    Raises JobFailed, ArchiveUnavailable, ForeignArchive, NewerFormat, TableConflict.
    """
    report = StepReport("deliveries")
    events = Table(run.root, EVENTS, run.bounds.log_id)
    table = Table(run.root, DELIVERIES, run.bounds.log_id)
    since, end = table.transaction(DELIVERIES_APP), events.transaction(ROLLUP_APP)
    if end <= since:
        return report
    run.at("before deliveries")
    before = _open_attempts(table.directory, since)
    begin = since if before is not None else 0
    files = files_since(events.files, begin)
    for checked in check_files(run, EVENTS, files, "deliveries: check events"):
        if checked.problem:
            raise JobFailed(f"{checked.problem}; bring it back from a backup")
    added: list[Added] = []
    if files:
        with staging(run) as directory, run.described("deliveries"):
            paths, still = _attempts(run, list(files), before, (begin, since, end), directory)
            added = adopt(table.directory, DELIVERIES, paths, f"d-{since}-{end}", "outcome_time")
            _keep_open(table.directory, end, still)
    elif before is not None:
        _keep_open(table.directory, end, before)
    run.at("before deliveries commit")
    table.commit(added, (), {DELIVERIES_APP: end}, now_ms=run.now_ms(), operation="DERIVE")
    run.at("after deliveries commit")
    _forget_open(table.directory, end)
    outcomes = sum(one.facts.rows for one in added)
    report.numbers = {"outcomes": outcomes}
    report.lines = [f"added {outcomes:,} outcomes to the table deliveries"] if outcomes else []
    return report


def files_since(files: pa.Table, lsn: int) -> dict[str, int]:
    """Sizes of files, by path, that hold rows from an LSN on."""
    found = files.select(["path", "size", "last_lsn"]).to_pylist()
    return {row["path"]: row["size"] for row in found if row["last_lsn"] >= lsn}


def _attempts(
    run: Run,
    files: Sequence[str],
    before: Path | None,
    lsns: tuple[int, int, int],
    directory: Path,
) -> tuple[list[Path], Path]:
    """Files of what became of records: outcomes, and, in one, what has none yet."""
    from pyspark.sql import functions as F

    begin, since, end = lsns
    spark, bounds = run.spark(), run.bounds
    lsn = F.col("lsn")
    events = read_files(run, EVENTS, files, _EVENT_COLUMNS).where((lsn >= begin) & (lsn < end))
    known = spark.createDataFrame([], OPEN)
    if before is not None:
        known = read_parquet(run, OPEN, [before])
    every = write_frame(run, attempts(events, known), directory / "attempts")
    found = read_parquet(run, ATTEMPTED, every)
    rest = still_open(found, bounds_frame(run), bounds.next_topic_id, bounds.lsn, end)
    (still,) = write_frame(run, rest.coalesce(1), directory / "open")
    parts = sum(pq.read_metadata(path).num_rows for path in every) // FILE_ROWS + 1
    outcomes = deliveries(found).where(lsn >= since).coalesce(parts)
    return write_frame(run, outcomes.sortWithinPartitions("lsn"), directory / "outcomes"), still


# -- What has no outcome yet ---------------------------------------------------------------------


def _open_attempts(table: Path, lsn: int) -> Path | None:
    """The file that belongs to a transaction, if it is there and as it was written."""
    for path in sorted((table / OPEN_DIRECTORY).glob(f"{lsn:020d}-*.parquet")):
        if path.name == _open_name(lsn, path):
            return path
    return None


def _keep_open(table: Path, lsn: int, file: Path) -> None:
    """Let the run that goes on from an LSN find a file, durably."""
    directory = table / OPEN_DIRECTORY
    directory.mkdir(exist_ok=True)
    with open(file, "rb") as data:
        os.fsync(data.fileno())
    with suppress(FileExistsError):  # a run that was stopped made it
        os.link(file, directory / _open_name(lsn, file))
    sync_directory(directory)
    sync_directory(table)


def _forget_open(table: Path, lsn: int) -> None:
    """Remove what belongs to other transactions."""
    for path in (table / OPEN_DIRECTORY).glob("*.parquet"):
        if not path.name.startswith(f"{lsn:020d}-"):
            path.unlink()


def _open_name(lsn: int, file: Path) -> str:
    checksum = xxh3_64()
    with open(file, "rb") as data:
        while piece := data.read(1 << 20):
            checksum.update(piece)
    return f"{lsn:020d}-{checksum.hexdigest()}.parquet"
