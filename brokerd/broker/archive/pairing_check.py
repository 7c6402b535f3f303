# Tests: tests/broker/test_pairing_check.py
"""Refuses an archive of a later state of the log.

A log that an operator restores from an older copy, or that lost its state, assigns the same topic
ids and offsets again. An archive made before that holds other records under the same ids. Two
checks find such an archive:

- The archive is ahead of the log. The rollup archives durable entries only, so the right archive is
  never ahead.
- The last archived segment has another id or end than the log's segment at that LSN. Each start of
  a broker begins a new segment with a new id. A segment that lost its end may seem to reach up to
  the next file, once its index is lost too; the lost part does not count.

The log keeps that segment while the archive is refused. Without it, the next start would find
nothing against the archive.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.archive.contract.bounds import DamagedPlace, damaged_lsns
from brokerd.archive.contract.pairing import RESTORE_LOG, SegmentEnd, TableState, log_problem
from brokerd.archive.contract.ranges import DisjointRanges
from brokerd.archive.contract.view import ArchiveView, ForeignArchive
from brokerd.broker.archive.pin import ArchivePin
from brokerd.broker.context import Context


class PairingCheck:
    """Checks each new version of an archive before the broker uses it.

    ``places`` returns the known damaged places of the log.
    """

    def __init__(
        self, context: Context, pin: ArchivePin, places: Callable[[], set[DamagedPlace]]
    ) -> None:
        self._pin = pin
        self._places = places
        self._state = context.state
        self._wal = context.wal
        self._refused_lsn: int | None = None
        """The end LSN of the archive that the guard refused."""
        self._refused_id = ""
        """The id of that archive."""
        self._refused = ""
        self._proof_lsn = 0
        """The end LSN of the table ``records`` of the archive that was checked last."""

    def needs(self, first_lsn: int, end_lsn: int) -> bool:
        """Return whether a restart needs a segment of the log to refuse the archive again."""
        return bool(self._refused) and first_lsn < self._proof_lsn <= end_lsn

    def check(self, view: ArchiveView | None) -> None:
        """Raise `ForeignArchive` if the archive does not match the current log.

        The guard keeps refusing an archive that was ahead of the log once, because the growing log
        seems to catch up. Another id, or a lower end LSN, is that of another archive.
        """
        if view is None:
            self._pin.check(None)
            return
        records = TableState(view.archive_id, view.records_lsn, view.segment_hash)
        self._pin.check(records)
        self._proof_lsn = view.records_lsn
        lsn = max(view.records_lsn, view.events_lsn)
        refused_lsn = self._refused_lsn if view.archive_id == self._refused_id else None
        if refused_lsn is None or lsn < refused_lsn:
            events = TableState(view.archive_id, view.events_lsn, 0)
            problem = self._problem(view.max_topic_id, records, events)
            self._refused_lsn = lsn if problem else None
            self._refused_id = view.archive_id
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
                end_lsn = segment.end_lsn
                if lsn < end_lsn <= DisjointRanges(damaged_lsns(self._places())).end_of(lsn):
                    end_lsn = lsn  # all after it is lost
                return SegmentEnd(end_lsn, segment.segment_id)
        return None
