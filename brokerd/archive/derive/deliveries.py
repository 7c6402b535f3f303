# Tests: tests/archive/test_deliveries.py
"""Keeps the table ``deliveries`` up to date: docs/archive-tables.rst.

It is one commit that raises the table's own transaction, so a run that is stopped anywhere is done
again from where the last one ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from xxhash import xxh3_64

from brokerd.archive.cluster.file_check import check_files
from brokerd.archive.cluster.frames import (
    StagedFile,
    add_frame,
    bounds_frame,
    read_files,
    read_staged,
    stage_frame,
    staging,
)
from brokerd.archive.contract.layout import DELIVERIES, EVENTS, ROLLUP_APP
from brokerd.archive.delta.actions import AddFile
from brokerd.archive.delta.table import Table
from brokerd.archive.derive.transforms import ATTEMPTED, OPEN, attempts, deliveries, still_open
from brokerd.archive.run import JobFailed, Run, StepReport
from brokerd.archive.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

DELIVERIES_APP = "brokerd-deliveries"
OPEN_DIRECTORY = f"{DELIVERIES.name}/_open"
"""Where attempts stand that have no outcome yet, below the table: others do not look
there."""
PIECE_BYTES = 8 << 20
"""So much of a file is in memory at once."""
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
    before = _open_attempts(run.store, since)
    begin = since if before is not None else 0
    files = files_since(events.files, begin)
    for checked in check_files(run, EVENTS, files, "deliveries: check events"):
        if checked.problem:
            raise JobFailed(f"{checked.problem}; restore it from a backup")
    added: list[AddFile] = []
    if files:
        with staging(run) as directory, run.described("deliveries"):
            every = _attempts(run, list(files), before, begin, end, directory)
            added = _outcomes(run, every, (since, end), directory)
            _keep_open(run.store, end, _still_open(run, every, end, directory))
    elif before is not None:
        _keep_open(run.store, end, before)
    run.at("before deliveries commit")
    transactions = {DELIVERIES_APP: end}
    if not table.commit(added, (), transactions, now_ms=run.now_ms(), operation="DERIVE"):
        return report  # another job was faster; vacuum deletes the files
    run.at("after deliveries commit")
    _forget_open(run.store, end)
    outcomes = sum(one.stats.rows for one in added)
    report.numbers = {"outcomes": outcomes}
    report.lines = [f"added {outcomes:,} outcomes to the table deliveries"] if outcomes else []
    return report


def files_since(files: pa.Table, lsn: int) -> dict[str, int]:
    """Sizes of files, by path, that hold rows from an LSN on."""
    found = files.select(["path", "size", "last_lsn"]).to_pylist()
    return {row["path"]: row["size"] for row in found if row["last_lsn"] >= lsn}


def _attempts(
    run: Run, files: Sequence[str], before: str | None, begin: int, end: int, directory: str
) -> list[StagedFile]:
    """What became of records, with outcomes and without."""
    from pyspark.sql import functions as F

    lsn = F.col("lsn")
    events = read_files(run, EVENTS, files, _EVENT_COLUMNS).where((lsn >= begin) & (lsn < end))
    known = read_staged(run, OPEN, OPEN_DIRECTORY, [before] if before is not None else [])
    return stage_frame(run, attempts(events, known), f"{directory}/attempts")


def _outcomes(
    run: Run, every: Sequence[StagedFile], lsns: tuple[int, int], directory: str
) -> list[AddFile]:
    """Put those into the table that have an outcome from one LSN to another, exclusive."""
    from pyspark.sql import functions as F

    since, end = lsns
    parts = sum(one.rows for one in every) // FILE_ROWS + 1
    rows = deliveries(_attempted(run, every, directory)).where(F.col("lsn") >= since)
    rows = rows.coalesce(parts).sortWithinPartitions("lsn")
    return add_frame(run, rows, directory, DELIVERIES, f"d-{since}-{end}", "outcome_time")


def _still_open(run: Run, every: Sequence[StagedFile], end: int, directory: str) -> str:
    """A file of those that have none at an LSN."""
    found, bounds = _attempted(run, every, directory), run.bounds
    rest = still_open(found, bounds_frame(run), bounds.next_topic_id, bounds.lsn, end)
    (still,) = stage_frame(run, rest.coalesce(1), f"{directory}/open")
    return still.path


def _attempted(run: Run, every: Sequence[StagedFile], directory: str) -> DataFrame:
    return read_staged(run, ATTEMPTED, f"{directory}/attempts", [one.path for one in every])


# -- What has no outcome yet ---------------------------------------------------------------------


def _open_attempts(store: Store, lsn: int) -> str | None:
    """The file that belongs to a transaction, if it is there and as it was written."""
    for name in sorted(store.names(OPEN_DIRECTORY)):
        path = f"{OPEN_DIRECTORY}/{name}"
        if name.startswith(f"{lsn:020d}-") and name == _open_name(store, lsn, path):
            return path
    return None


def _keep_open(store: Store, lsn: int, path: str) -> None:
    """Let the run that goes on from an LSN find what is in a file, durably."""
    kept = f"{OPEN_DIRECTORY}/{_open_name(store, lsn, path)}"
    if store.exists(kept):
        return  # a run that was stopped made it
    draft = store.create(OPEN_DIRECTORY)
    try:
        for piece in _pieces(store, path):
            draft.write(piece)
        draft.publish(kept)
    finally:
        draft.discard()
    store.sync_directory(DELIVERIES.name)


def _forget_open(store: Store, lsn: int) -> None:
    """Remove what belongs to other transactions."""
    names = [name for name in store.names(OPEN_DIRECTORY) if name.endswith(".parquet")]
    others = [name for name in names if not name.startswith(f"{lsn:020d}-")]
    store.delete([f"{OPEN_DIRECTORY}/{name}" for name in others])


def _open_name(store: Store, lsn: int, path: str) -> str:
    checksum = xxh3_64()
    for piece in _pieces(store, path):
        checksum.update(piece)
    return f"{lsn:020d}-{checksum.hexdigest()}.parquet"


def _pieces(store: Store, path: str) -> Iterator[bytes]:
    """All of a file."""
    file = store.open(path)
    for position in range(0, file.size, PIECE_BYTES):
        yield file.read(position, PIECE_BYTES)
