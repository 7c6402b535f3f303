# Tests: tests/archive/test_deliveries.py
"""Maintains the table ``deliveries``: docs/archive-tables.rst.

A run makes one commit, which raises the table's own transaction. After a stopped run, the next run
begins at the last commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from xxhash import xxh3_64

from brokerd.archive.cluster.file_check import check_files
from brokerd.archive.contract.layout import DELIVERIES, EVENTS, ROLLUP_APP
from brokerd.archive.delta.actions import AddFile
from brokerd.archive.derive.transforms import ATTEMPTS, OPEN, attempts, deliveries, open_attempts
from brokerd.archive.errors import JobFailed
from brokerd.archive.parquet.plain_file import StagedFile
from brokerd.archive.run import Run, StepReport
from brokerd.archive.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

DELIVERIES_APP = "brokerd-deliveries"
OPEN_DIRECTORY = f"{DELIVERIES.name}/_open"
"""The directory of open attempts, below the table. Readers of Delta tables ignore such a name."""
CHUNK_BYTES = 8 << 20
"""The bytes of a file that are in memory at once."""
FILE_ROWS = 1_000_000
"""The approximate number of rows of a file of deliveries."""

_EVENT_COLUMNS = (
    *("topic", "topic_id", "partition", "group_name", "lsn", "seq", "time", "kind", "offset"),
    *("count", "owner", "reason"),
)


def derive_deliveries(run: Run) -> StepReport:
    """Add the outcomes of the events since the last run, and return the counts.

    Raises JobFailed, ArchiveUnavailable, ForeignArchive, NewerFormat, TableConflict.
    """
    report = StepReport("deliveries")
    events, table = run.tables.newest(EVENTS), run.tables.newest(DELIVERIES)
    since, end = table.transaction(DELIVERIES_APP), events.transaction(ROLLUP_APP)
    if end <= since:
        return report
    run.failpoint("before deliveries")
    earlier = _find_open(run.store, since)
    begin = since if earlier is not None else 0
    files = files_since(events.files, begin)
    for check in check_files(run.spark, events.path, files, "deliveries: check events"):
        if check.problem:
            raise JobFailed(f"{check.problem}; restore it from a backup")
    added: list[AddFile] = []
    if files:
        with run.frames.staging() as directory, run.spark.job_group("deliveries"):
            staged = _stage_attempts(run, list(files), earlier, begin, end, directory)
            added = _add_outcomes(run, staged, (since, end), directory)
            _save_open(run.store, end, _stage_open(run, staged, end, directory))
    elif earlier is not None:
        _save_open(run.store, end, earlier)
    run.failpoint("before deliveries commit")
    transactions = {DELIVERIES_APP: end}
    if not table.commit(added, (), transactions, now_ms=run.now_ms(), operation="DERIVE"):
        return report  # another job was faster; vacuum deletes the files
    run.failpoint("after deliveries commit")
    _delete_other_open(run.store, end)
    outcomes = sum(one.stats.rows for one in added)
    report.numbers = {"outcomes": outcomes}
    if outcomes:
        noun = "outcome" if outcomes == 1 else "outcomes"
        report.lines = [f"added {outcomes:,} {noun} to the table deliveries"]
    return report


def files_since(files: pa.Table, lsn: int) -> dict[str, int]:
    """Return the sizes in bytes, by path, of the files with rows from an LSN on."""
    rows = files.select(["path", "size", "last_lsn"]).to_pylist()
    return {row["path"]: row["size"] for row in rows if row["last_lsn"] >= lsn}


def _stage_attempts(
    run: Run, files: Sequence[str], earlier: str | None, begin: int, end: int, directory: str
) -> list[StagedFile]:
    """Stage the attempts of new events and of earlier open attempts, and return the files."""
    from pyspark.sql import functions as F

    lsn = F.col("lsn")
    events = run.frames.read(EVENTS, files, _EVENT_COLUMNS).where((lsn >= begin) & (lsn < end))
    paths = [earlier] if earlier is not None else []
    open_before = run.frames.read_staged(OPEN, OPEN_DIRECTORY, paths)
    return run.frames.stage(attempts(events, open_before), f"{directory}/attempts")


def _add_outcomes(
    run: Run, staged: Sequence[StagedFile], lsns: tuple[int, int], directory: str
) -> list[AddFile]:
    """Write the attempts with an outcome between two LSNs, and return the files for a commit."""
    from pyspark.sql import functions as F

    since, end = lsns
    parts = sum(one.rows for one in staged) // FILE_ROWS + 1
    rows = deliveries(_read_attempts(run, staged, directory)).where(F.col("lsn") >= since)
    rows = rows.coalesce(parts).sortWithinPartitions("lsn")
    return run.frames.add(rows, directory, DELIVERIES, f"d-{since}-{end}", "outcome_time")


def _stage_open(run: Run, staged: Sequence[StagedFile], end: int, directory: str) -> str:
    """Stage one file of the attempts without an outcome, and return its path."""
    rows, bounds = _read_attempts(run, staged, directory), run.bounds
    floors = run.frames.bounds(bounds)
    still_open = open_attempts(rows, floors, bounds.next_topic_id, bounds.lsn, end)
    (file,) = run.frames.stage(still_open.coalesce(1), f"{directory}/open")
    return file.path


def _read_attempts(run: Run, staged: Sequence[StagedFile], directory: str) -> DataFrame:
    paths = [one.path for one in staged]
    return run.frames.read_staged(ATTEMPTS, f"{directory}/attempts", paths)


# -- Files of open attempts ----------------------------------------------------------------------


def _find_open(store: Store, lsn: int) -> str | None:
    """Return the path of a transaction's undamaged file, or None."""
    for name in sorted(store.names(OPEN_DIRECTORY)):
        path = f"{OPEN_DIRECTORY}/{name}"
        if name.startswith(f"{lsn:020d}-") and name == _open_name(store, lsn, path):
            return path
    return None


def _save_open(store: Store, lsn: int, path: str) -> None:
    """Copy a file durably to the name of a transaction."""
    target = f"{OPEN_DIRECTORY}/{_open_name(store, lsn, path)}"
    if store.exists(target):
        return  # an earlier, stopped run saved it
    output = store.create(OPEN_DIRECTORY)
    try:
        for chunk in _chunks(store, path):
            output.write(chunk)
        output.publish(target)
    finally:
        output.discard()


def _delete_other_open(store: Store, lsn: int) -> None:
    """Delete the files of other transactions."""
    names = [name for name in store.names(OPEN_DIRECTORY) if name.endswith(".parquet")]
    others = [name for name in names if not name.startswith(f"{lsn:020d}-")]
    store.delete([f"{OPEN_DIRECTORY}/{name}" for name in others])


def _open_name(store: Store, lsn: int, path: str) -> str:
    checksum = xxh3_64()
    for chunk in _chunks(store, path):
        checksum.update(chunk)
    return f"{lsn:020d}-{checksum.hexdigest()}.parquet"


def _chunks(store: Store, path: str) -> Iterator[bytes]:
    file = store.open(path)
    for position in range(0, file.size, CHUNK_BYTES):
        yield file.read(position, CHUNK_BYTES)
