# Tests: tests/archive/test_ingest.py
"""Takes the log into the tables ``records`` and ``events``, lot by lot.

A lot is planned from what the tables say that they have, written by tasks of Spark, and committed
to each table with the LSN that it then has the log up to. So a run that is stopped anywhere is gone
on with by the next one, and nothing is added twice. What tasks left behind that no commit names is
removed by vacuum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from brokerd.archive.contract.layout import EVENTS, RECORDS, ROLLUP_APP, SEGMENT_APP, Layout
from brokerd.archive.contract.pin import segment_mark
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.table import Table
from brokerd.archive.ingest.plan import Lot, plan_lot
from brokerd.archive.ingest.tasks import Problem, Target, write_events, write_records
from brokerd.archive.journal.copies import delete_copies, send_copies
from brokerd.archive.journal.segment_list import Stop
from brokerd.archive.parquet.writer import FileInfo
from brokerd.archive.run import JobFailed, Run

TRIES = 3
"""How often a lot is planned whose segments the broker deletes meanwhile."""

Task = TypeVar("Task")


@dataclass
class RolledUp:
    """What was taken into the tables, and why no more."""

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


def roll_up(
    run: Run,
    wal: Path,
    tables: Mapping[str, Table],
    free_bytes: Callable[[], int],
    done: RolledUp,
) -> None:
    """Take all that is sealed into the tables, and count it in ``done``.

    ``free_bytes`` tells how much may be written to the archive.

    :raises JobFailed: it cannot go on; so do ArchiveUnavailable, TableConflict and OSError. What
        is committed stays, and is in ``done``.
    """
    rolling = _Rolling(run, wal, tables, free_bytes, done)
    while done.stop is None:
        rolling.next_lot()


class _Written(NamedTuple):
    """What the tasks of a lot returned."""

    files: list[FileInfo]
    problems: list[Problem]


class _Rolling:
    """A run of `roll_up`."""

    def __init__(
        self,
        run: Run,
        wal: Path,
        tables: Mapping[str, Table],
        free_bytes: Callable[[], int],
        done: RolledUp,
    ) -> None:
        self.done = done
        self._run = run
        self._wal = wal
        self._records = tables[RECORDS.name]
        self._events = tables[EVENTS.name]
        self._free_bytes = free_bytes
        self._lot_bytes = run.settings.lot_bytes
        self._before: Stop | None = None
        self._names: dict[int, str] = {}
        self._tries = 0
        self._look()

    def _look(self) -> None:
        """See what the tables have."""
        self.done.records_lsn = self._records.transaction(ROLLUP_APP)
        self.done.events_lsn = self._events.transaction(ROLLUP_APP)
        if not self._run.store.is_local:
            delete_copies(self._run.store, min(self.done.records_lsn, self.done.events_lsn))

    def next_lot(self) -> None:
        """Plan a lot, write it and commit it; or set why not."""
        try:
            lot = self._plan()
        except FileNotFoundError as error:
            self._go_round(Problem("gone", f"{error.filename} is gone"), 0)
            return
        self._run.at("planned")
        if not lot.segments:
            self.done.stop = lot.stop
            return
        try:
            target = self._target(lot)
        except FileNotFoundError as error:
            self._go_round(Problem("gone", f"{error.filename} is gone"), 0)
            return
        records = self._write("records", write_records, [(target, one) for one in lot.records])
        events = self._write("events", write_events, [(target, one) for one in lot.events])
        problems = [*records.problems, *events.problems]
        if problems:
            self._discard(RECORDS, records.files)
            self._discard(EVENTS, events.files)
            self._go_round(min(problems, key=lambda one: one.lsn), len(lot.segments))
            return
        committed = [
            self._commit(RECORDS, self._records, lot, records.files),
            self._commit(EVENTS, self._events, lot, events.files),
        ]
        self._tries = 0
        if any(committed):
            self.done.lots += 1
            self.done.segments += len(lot.segments)
            self.done.log_bytes += lot.bytes
        self.done.stop = lot.stop
        self._look()

    def _plan(self) -> Lot:
        return plan_lot(
            self._wal,
            self._run.bounds,
            self.done.records_lsn,
            self.done.events_lsn,
            lot_bytes=self._lot_bytes,
            file_bytes=self._run.settings.file_bytes,
            room_bytes=self._free_bytes(),
            before=self._before,
            names=self._names,
        )

    def _target(self, lot: Lot) -> Target:
        """Where tasks write, and what they read if they may not have the journal."""
        run = self._run
        if run.tasks_have_journal:
            return Target(run.root, run.bounds.log_id)
        copies = send_copies(run.store, lot.segments)
        run.at("journal sent")
        return Target(run.root, run.bounds.log_id, copies, run.settings.lot_bytes)

    def _write(
        self, what: str, write: Callable[[Task], FileInfo | Problem | None], tasks: Sequence[Task]
    ) -> _Written:
        written = self._run.map(f"rollup {what}", write, tasks)
        self._run.at(f"{what} written")
        files = [one for one in written if isinstance(one, FileInfo)]
        return _Written(files, [one for one in written if isinstance(one, Problem)])

    def _discard(self, layout: Layout, files: Sequence[FileInfo]) -> None:
        """Delete files that no commit will name: the disk may be short."""
        self._run.store.delete([f"{layout.name}/{info.path}" for info in files])

    def _go_round(self, problem: Problem, segments: int) -> None:
        """See to it that the next plan goes better, if one can."""
        if problem.kind == "damaged":
            reason = (
                f"{problem.text}; nothing from there on is archived until the broker knows of the "
                "damage: restart it, or run `brokerctl wal repair`"
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
                    f"{problem.text}: journal files go as fast as they are planned; run again"
                )

    def _commit(self, layout: Layout, table: Table, lot: Lot, files: Sequence[FileInfo]) -> bool:
        """Add files to a table, and count them.

        :return: False if the table held the lot already. Files are discarded then: another job
            was faster.
        """
        self._run.at(f"before {layout.name} commit")
        committed = table.commit(
            [add_file(info) for info in files],
            (),
            {ROLLUP_APP: lot.end_lsn},
            marks={SEGMENT_APP: segment_mark(lot.segments[-1].segment_id)},
            now_ms=self._run.now_ms(),
        )
        self._run.at(f"after {layout.name} commit")
        if not committed:
            named = set(table.paths())
            self._discard(layout, [info for info in files if info.path not in named])
            return False
        self.done.files += len(files)
        self.done.file_bytes += sum(info.size for info in files)
        rows = sum(info.rows for info in files)
        if layout is RECORDS:
            self.done.records += rows
        else:
            self.done.events += rows
        return True
