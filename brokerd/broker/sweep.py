# Tests: tests/broker/test_retention.py
"""Has segments of the log deleted that hold nothing any more that anybody needs.

A segment goes when all its records are removed and the second-newest snapshot, which is read again
and verified each time, begins at or past its end: then two snapshots hold whatever else it says.
What removed the records is durable before.

Snapshots follow the growth of the log. Where it does not grow, segments that could go wait for
them; so one is taken when those waiting are worth more than it costs: when they have more bytes
than the last snapshot and at least a segment, or when the disk is full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from twisted.logger import Logger

from brokerd.broker.journal import BATCH_FRAME_BYTES, Journal
from brokerd.broker.snapshotter import Snapshotter
from brokerd.broker.state import State
from brokerd.errors import BrokerdError
from brokerd.wal import Committer, Removable, Wal


class Sweep:
    """Looks for segments that can go. ``snapshot_thread`` is the one that writes snapshots."""

    _log = Logger()

    def __init__(
        self,
        state: State,
        journal: Journal,
        wal: Wal,
        snapshotter: Snapshotter,
        readers: Committer,
        snapshot_thread: Committer,
    ) -> None:
        self._state = state
        self._journal = journal
        self._wal = wal
        self._snapshotter = snapshotter
        self._readers = readers
        self._snapshot_thread = snapshot_thread
        self._done: Callable[[], None] = lambda: None
        self._stopped = False
        self.errors = 0
        self.last_error: str | None = None
        self.waiting_bytes = 0
        """Bytes of segments that could go but for the snapshots."""

    def stop(self) -> None:
        self._stopped = True

    def run(self, done: Callable[[], None]) -> None:
        """Delete what can go; then call ``done``, unless stopped before. One call at a time."""
        self._done = done
        starts, topic_ids = dict(self._state.starts), set(self._state.by_id)
        lsn = self._wal.appended_lsn  # what comes later may be of topics that are not among these

        def durable() -> None:
            self._snapshot_thread.submit(
                self._snapshotter.second_newest,
                lambda covered, error: self._covered(starts, topic_ids, lsn, covered, error),
            )

        self._journal.when_all_durable(durable)

    def _covered(
        self,
        starts: dict[tuple[int, int], int],
        topic_ids: set[int],
        lsn: int,
        covered_lsn: int | None,
        error: Exception | None,
    ) -> None:
        if self._finished(error):
            return
        plan = self._wal.removable(starts, topic_ids, lsn)
        self._readers.submit(
            plan.run, lambda found, error: self._found(covered_lsn or 0, found, error)
        )

    def _found(
        self, covered_lsn: int, found: Sequence[Removable] | None, error: Exception | None
    ) -> None:
        if self._finished(error):
            return
        assert found is not None
        goes = [one for one in found if one.segment.end_lsn <= covered_lsn]
        waits = [one for one in found if one.segment.end_lsn > covered_lsn]
        self.waiting_bytes = sum(one.size for one in waits)
        if waits and self._is_worth_a_snapshot():
            self._take_snapshot()
        if goes:
            self._wal.delete_segments(goes, lambda count, error: self._deleted(error))
        else:
            self._done()

    def _deleted(self, error: Exception | None) -> None:
        if not self._finished(error):
            self._done()

    def _take_snapshot(self) -> None:
        """At the next frame boundary. A mark makes one, so that no two snapshots begin together."""
        self._snapshotter.wanted = True
        if not self._journal.gathered_bytes:
            with suppress(BrokerdError):  # else the next frame will do
                self._journal.admit_events(BATCH_FRAME_BYTES)
                self._journal.mark()

    def _is_worth_a_snapshot(self) -> bool:
        if self._wal.allocation_error is not None:
            return True
        cost = max(self._wal.options.segment_bytes, self._snapshotter.last_bytes)
        return self.waiting_bytes >= cost

    def _finished(self, error: Exception | None) -> bool:
        """Whether that was all, because of an error, which is told, or of a stop."""
        if self._stopped:
            return True
        if error is None:
            self.last_error = None
            return False
        self.errors += 1
        self.last_error = str(error)
        self._log.error(
            "segments that are not needed cannot be deleted now: {error}",
            error=error,
            event_id="segments-not-deleted",
        )
        self._done()
        return True
