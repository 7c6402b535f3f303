# Tests: tests/broker/test_archive_guard.py
"""Tells an archive of this log as it was later than it is now: nothing of that may be used.

When the log is put back to an older copy of itself, or lost its state, it assigns topic ids and
offsets once more. An archive that was made meanwhile has other records there under the same ids.
It shows by knowing more of the log than there is: the job archives what is durable, so an archive
is never ahead of its own log. And it shows by having archived another segment at the place where it
ends: each start of a broker begins a new one, with an id of its own.
"""

from __future__ import annotations

from brokerd.archive.contract.pin import segment_mark
from brokerd.archive.contract.view import ArchiveView, ForeignArchive
from brokerd.broker.archive.pin import ArchivePin
from brokerd.broker.model.state import State
from brokerd.wal import Wal


class ArchiveGuard:
    """Looks at each new version of an archive before it is used."""

    def __init__(self, state: State, wal: Wal, reliance: ArchivePin) -> None:
        self._reliance = reliance
        self._state = state
        self._wal = wal
        self._refused_lsn: int | None = None
        """Up to where an archive knew the log that was refused."""
        self._refused = ""

    def check(self, view: ArchiveView | None) -> None:
        """Raise `ForeignArchive` if the archive is not that of the log as it is now.

        One that knows more of the log than there is is refused from then on: the log grows, and
        would seem to have caught up. An archive that knows less than that one did is another.
        """
        self._reliance.check(view)
        if view is None:
            return
        lsn = max(view.records_lsn, view.events_lsn)
        if self._refused_lsn is None or lsn < self._refused_lsn:
            problem = self._problem(lsn, view.max_topic_id) or self._other_segment(view)
            self._refused_lsn = lsn if problem else None
            self._refused = problem
        if self._refused:
            raise ForeignArchive(
                f"{self._refused}: this log was put back to an older copy, or lost its state. What "
                "it assigns now is in the archive as something else. Stop the broker and bring the "
                "newest log back; or move the archive away and have another made"
            )

    def _problem(self, lsn: int, max_topic_id: int) -> str:
        if lsn > self._wal.durable_lsn:
            return f"it knows the log up to LSN {lsn}, and that ends at {self._wal.durable_lsn}"
        given = self._state.next_topic_id - 1
        if max_topic_id > given:
            return f"it knows topic id {max_topic_id}, and none above {given} was ever given"
        return ""

    def _other_segment(self, view: ArchiveView) -> str:
        """Look at the segment that the archive has last, if the log still has any there."""
        lsn, mark = view.records_lsn, view.segment_mark
        for segment in self._wal.segments() if mark else ():
            if segment.first_lsn < lsn <= segment.end_lsn:
                if segment.end_lsn == lsn and segment_mark(segment.segment_id) == mark:
                    return ""
                return f"it knows the log up to LSN {lsn}, where this log has another segment"
        return ""
