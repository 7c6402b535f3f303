# Tests: tests/archive/test_ingest.py
"""Ingests the log into the tables ``records`` and ``events``, one lot after the other.

The job plans a lot from the LSNs of the tables. Spark tasks write it. The job commits it to each
table with the table's new LSN. So the next run continues a stopped run, and no record is added
twice. Vacuum removes files without a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from brokerd.archive.contract.layout import EVENTS, RECORDS, ROLLUP_APP, SEGMENT_APP, Layout
from brokerd.archive.contract.pin import segment_hash
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.table import TableConflict
from brokerd.archive.errors import JobFailed
from brokerd.archive.ingest.plan import Lot, LotLimits, plan_lot
from brokerd.archive.ingest.tasks import Target, TaskProblem, write_events, write_records
from brokerd.archive.journal.copies import delete_copies, send_copies
from brokerd.archive.journal.segment_list import Stop
from brokerd.archive.parquet.writer import FileInfo
from brokerd.archive.run import Run

TRIES = 3
"""How often the job plans a lot again because the broker deleted its segments."""

Task = TypeVar("Task")


@dataclass
class IngestReport:
    """The counts of an ingest, and the reason why it stopped."""

    lots: int = 0
    segments: int = 0
    log_bytes: int = 0
    records: int = 0
    events: int = 0
    files: int = 0
    file_bytes: int = 0
    records_lsn: int = 0
    events_lsn: int = 0
    stop: Stop | None = None


def ingest_log(run: Run, wal: Path, free_bytes: Callable[[], int], report: IngestReport) -> None:
    """Ingest all sealed segments, and count in ``report``.

    Commits before an error stay, and ``report`` counts them.

    :param free_bytes: returns the free space of the archive.
    :raises JobFailed: it cannot continue; so do ArchiveUnavailable, TableConflict and OSError.
    """
    ingest = _Ingest(run, wal, free_bytes, report)
    while report.stop is None:
        ingest.next_lot()


class _Output(NamedTuple):
    """The results of a lot's tasks."""

    files: list[FileInfo]
    problems: list[TaskProblem]


class _Ingest:
    """One call of `ingest_log`."""

    def __init__(
        self, run: Run, wal: Path, free_bytes: Callable[[], int], report: IngestReport
    ) -> None:
        self._run = run
        self._wal = wal
        self._free_bytes = free_bytes
        self._report = report
        self._lot_bytes = run.settings.lot_bytes
        self._before: Stop | None = None
        self._names: dict[int, str] = {}
        self._tries = 0
        self._update_lsns()

    def _update_lsns(self) -> None:
        run, report = self._run, self._report
        report.records_lsn = run.tables[RECORDS.name].transaction(ROLLUP_APP)
        report.events_lsn = run.tables[EVENTS.name].transaction(ROLLUP_APP)
        if not run.store.is_local:
            delete_copies(run.store, min(report.records_lsn, report.events_lsn))

    def next_lot(self) -> None:
        """Plan, write and commit a lot. Set ``stop`` in the report if no lot can follow."""
        try:
            lot = self._plan()
            self._run.failpoint("planned")
            if not lot.segments:
                self._report.stop = lot.stop
                return
            with self._run.spark.here(lot.bytes <= self._run.settings.local_lot_bytes):
                target = self._target(lot)
                records, events = self._write_all(target, lot)
        except FileNotFoundError as error:
            self._handle(TaskProblem("gone", f"{error.filename} is gone"), 0)
            return
        problems = [*records.problems, *events.problems]
        if problems:
            self._discard(RECORDS, records.files)
            self._discard(EVENTS, events.files)
            self._handle(min(problems, key=lambda one: one.lsn), len(lot.segments))
            return
        try:
            committed = [
                self._commit(RECORDS, lot, records.files, self._report.records_lsn),
                self._commit(EVENTS, lot, events.files, self._report.events_lsn),
            ]
        except TableConflict:
            self._discard(RECORDS, self._uncommitted(RECORDS, records.files))
            self._discard(EVENTS, self._uncommitted(EVENTS, events.files))
            raise
        self._tries = 0
        if any(committed):
            self._report.lots += 1
            self._report.segments += len(lot.segments)
            self._report.log_bytes += lot.bytes
        self._report.stop = lot.stop
        self._update_lsns()

    def _plan(self) -> Lot:
        return plan_lot(
            self._wal,
            self._run.bounds,
            self._report.records_lsn,
            self._report.events_lsn,
            LotLimits(self._lot_bytes, self._run.settings.file_bytes, self._free_bytes()),
            self._before,
            self._names,
        )

    def _target(self, lot: Lot) -> Target:
        """Return the target of the tasks. Send copies if they cannot read the journal."""
        run = self._run
        if run.tasks_have_journal:
            return Target(run.root, run.bounds.log_id)
        copies = send_copies(run.store, lot.segments)
        run.failpoint("journal sent")
        return Target(run.root, run.bounds.log_id, copies, run.settings.lot_bytes)

    def _write_all(self, target: Target, lot: Lot) -> tuple[_Output, _Output]:
        """Write the files of both tables."""
        records = self._write("records", write_records, [(target, one) for one in lot.records])
        events = self._write("events", write_events, [(target, one) for one in lot.events])
        return records, events

    def _write(
        self,
        table: str,
        write: Callable[[Task], FileInfo | TaskProblem | None],
        tasks: Sequence[Task],
    ) -> _Output:
        results = self._run.spark.map(f"rollup {table}", write, tasks)
        self._run.failpoint(f"{table} written")
        files = [one for one in results if isinstance(one, FileInfo)]
        return _Output(files, [one for one in results if isinstance(one, TaskProblem)])

    def _discard(self, layout: Layout, files: Sequence[FileInfo]) -> None:
        """Delete files that get no commit, because disk space may be short."""
        self._run.store.delete([f"{layout.name}/{info.path}" for info in files])

    def _handle(self, problem: TaskProblem, segments: int) -> None:
        """Make the next plan avoid a problem. Raises JobFailed if no plan can."""
        if problem.kind == "damaged":
            reason = (
                f"{problem.text}; nothing after it is archived until the broker knows of the "
                "damage: restart the broker, or run `brokerctl wal repair`"
            )
            self._before = Stop(problem.lsn, reason, True)
        elif problem.kind == "full":
            if segments == 1:
                raise JobFailed(f"{problem.text}; free some space")
            self._lot_bytes = 1
        else:
            self._tries += 1
            if self._tries > TRIES:
                raise JobFailed(
                    f"{problem.text}: the broker deletes files faster than they are planned; run "
                    "again"
                )

    def _uncommitted(self, layout: Layout, files: Sequence[FileInfo]) -> list[FileInfo]:
        """Return the files that the newest version of a table lacks."""
        named = set(self._run.tables.newest(layout).paths())
        return [info for info in files if info.path not in named]

    def _commit(self, layout: Layout, lot: Lot, files: Sequence[FileInfo], lsn: int) -> bool:
        """Add files to a table, and count them.

        :param lsn: the table's LSN when the lot was planned.
        :return: False if the table already held the lot, because a run stopped between the tables.
        :raises TableConflict: another job was faster.
        """
        run, report = self._run, self._report
        run.failpoint(f"before {layout.name} commit")
        committed = run.tables[layout.name].commit(
            [add_file(info) for info in files],
            (),
            {ROLLUP_APP: lot.end_lsn},
            marks={SEGMENT_APP: segment_hash(lot.segments[-1].segment_id)},
            now_ms=run.now_ms(),
        )
        run.failpoint(f"after {layout.name} commit")
        if not committed and lsn >= lot.end_lsn:
            return False
        if not committed and (not files or self._uncommitted(layout, files)):
            raise TableConflict(f"{run.root / layout.name}: another job ingested this log first")
        report.files += len(files)
        report.file_bytes += sum(info.size for info in files)
        rows = sum(info.rows for info in files)
        if layout is RECORDS:
            report.records += rows
        else:
            report.events += rows
        return True
