# Tests: tests/broker/test_archive_guard.py
"""Tells an archive of this log as it was later than it is now: nothing of that may be used.

When the log is put back to an older copy of itself, or lost its state, it assigns topic ids and
offsets once more. An archive that was made meanwhile has other records there under the same ids.
It shows by knowing more of the log than there is: the job archives what is durable, so an archive
is never ahead of its own log. And it shows by having archived another segment at the place where it
ends: each start of a broker begins a new one, with an id of its own.
"""

from __future__ import annotations

from brokerd.archive.contract.pairing import RESTORE_LOG, SegmentEnd, TableState, log_problem
from brokerd.archive.contract.view import ArchiveView, ForeignArchive
from brokerd.broker.archive.pin import ArchivePin
from brokerd.broker.context import Context


class ArchiveGuard:
    """Looks at each new version of an archive before it is used."""

    def __init__(self, context: Context, pin: ArchivePin) -> None:
        self._pin = pin
        self._state = context.state
        self._wal = context.wal
        self._refused_lsn: int | None = None
        """Up to where an archive knew the log that was refused."""
        self._refused = ""

    def check(self, view: ArchiveView | None) -> None:
        """Raise `ForeignArchive` if the archive is not that of the log as it is now.

        One that knows more of the log than there is is refused from then on: the log grows, and
        would seem to have caught up. An archive that knows less than that one did is another.
        """
        if view is None:
            self._pin.check(None)
            return
        records = TableState(view.archive_id, view.records_lsn, view.segment_mark)
        self._pin.check(records)
        lsn = max(view.records_lsn, view.events_lsn)
        if self._refused_lsn is None or lsn < self._refused_lsn:
            events = TableState(view.archive_id, view.events_lsn, 0)
            problem = self._problem(view.max_topic_id, records, events)
            self._refused_lsn = lsn if problem else None
            self._refused = problem
        if self._refused:
            raise ForeignArchive(f"{self._refused}: {RESTORE_LOG}")

    def _problem(self, max_topic_id: int, records: TableState, events: TableState) -> str:
        largest = self._state.next_topic_id - 1
        if max_topic_id > largest:
            return f"the archive holds topic id {max_topic_id}, but the log assigned {largest} last"
        end_lsn = self._wal.durable_lsn
        problems = (log_problem(table, end_lsn, self._segment_at) for table in (records, events))
        return next(filter(None, problems), "")

    def _segment_at(self, lsn: int) -> SegmentEnd | None:
        for segment in self._wal.segments():
            if segment.first_lsn < lsn <= segment.end_lsn:
                return SegmentEnd(segment.end_lsn, segment.segment_id)
        return None
