# Tests: tests/broker/test_archive_guard.py
"""Tells an archive of this log as it was later than it is now: nothing of that may be used.

When the log is put back to an older copy of itself, or lost its state, it assigns topic ids and
offsets once more. An archive that was made meanwhile has other records there under the same ids.
It shows by knowing more of the log than there is: the job archives what is durable, so an archive
is never ahead of its own log.
"""

from __future__ import annotations

from brokerd.archive.view import ArchiveView, ForeignArchive
from brokerd.broker.state import State
from brokerd.wal import Wal


class ArchiveGuard:
    """Looks at each new version of an archive before it is used."""

    def __init__(self, state: State, wal: Wal) -> None:
        self._state = state
        self._wal = wal
        self._refused_lsn: int | None = None
        """Up to where an archive knew the log that was refused."""
        self._refused = ""

    def check(self, view: ArchiveView) -> None:
        """Raise `ForeignArchive` if the archive knows more of the log than there is.

        It is refused from then on: the log grows, and would seem to have caught up. An archive that
        knows less than that one did is another.
        """
        lsn = max(view.records_lsn, view.events_lsn)
        if self._refused_lsn is None or lsn < self._refused_lsn:
            problem = self._problem(lsn, view.max_topic_id)
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
