# Tests: tests/broker/test_retention.py, tests/broker/test_segment_cleaner.py
"""Has segments of the log deleted that hold nothing any more that anybody needs.

A segment goes when all its records are removed and the second-newest snapshot, which is read again
and verified each time, begins at or past its end: then two snapshots hold whatever else it says.
What removed the records is durable before. Then `ArchivedSegmentCleaner` deletes those whose
records the archive has, by the same snapshot.

While an archive is in use, a segment without records stays until its events are in it, too, unless
the disk is full.

Snapshots follow the growth of the log. Where it does not grow, segments that could go wait for
them; so one is taken when those waiting are worth more than it costs: when they have more bytes
than the last snapshot and at least a segment, or when the disk is full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from twisted.logger import Logger

from brokerd.broker.archive.access import ArchiveSettings
from brokerd.broker.archive.pin import ArchivePin
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.context import Context
from brokerd.broker.journal import BATCH_FRAME_BYTES
from brokerd.broker.model.snapshotter import Snapshotter
from brokerd.broker.retention.archived_segments import ArchivedSegmentCleaner, Basis, MarkArchived
from brokerd.errors import BrokerdError, error_text
from brokerd.wal import RemovableSegment, RemovalPlan, WorkerPool


class SegmentCleaner:
    """Looks for segments that can go. ``snapshot_thread`` is the one that writes snapshots."""

    _log = Logger()

    def __init__(
        self,
        context: Context,
        snapshotter: Snapshotter,
        readers: WorkerPool,
        snapshot_thread: WorkerPool,
        archive_thread: WorkerPool,
        archived: ArchiveReader,
        pin: ArchivePin,
        mark_archived: MarkArchived,
        settings: ArchiveSettings,
    ) -> None:
        self._state = context.state
        self._journal = context.journal
        self._wal = context.wal
        self._snapshotter = snapshotter
        self._readers = readers
        self._snapshot_thread = snapshot_thread
        self._archived = archived
        self._archive_sweep = ArchivedSegmentCleaner(
            context.state,
            context.journal,
            context.wal,
            archive_thread,
            archived,
            pin,
            mark_archived,
            settings,
            looked=lambda: self._take_snapshot_for(self.waiting_bytes),
            failed=self._tell,
            more=self.wake,
        )
        self._done: list[Callable[[], None]] = []
        """Told when the run that is on is over."""
        self._next: list[Callable[[], None]] = []
        """Told when the run after it is."""
        self._is_running = False
        self._stopped = False
        self._removed_waiting_bytes = 0
        self._events_waiting_bytes = 0
        """Of segments without records that stay until the archive has their events."""
        self.errors = 0
        self.last_error: str | None = None

    def start(self) -> None:
        """Begin to look whenever there may be more to delete, not only when asked to."""
        self._archived.on_version.append(self.wake)
        self._wal.on_disk_full = self.wake
        self._snapshotter.on_written = self._snapshot_written

    def stop(self) -> None:
        """Begin nothing any more; what a thread is at comes to nothing."""
        self._stopped = True
        self._archive_sweep.stop()

    def status(self) -> dict[str, Any]:
        """What went because of the archive, and what stays although it might."""
        return {**self._archive_sweep.status(), "events_bytes": self._events_waiting_bytes}

    @property
    def waiting_bytes(self) -> int:
        """Bytes of segments that could go but for the snapshots."""
        return self._removed_waiting_bytes + self._archive_sweep.staying.snapshot

    def wake(self) -> None:
        """Delete what can go, soon."""
        if not self._next:
            self.run(lambda: None)

    def run(self, done: Callable[[], None]) -> None:
        """Delete what can go; then call ``done``, unless stopped before.

        Nobody waits for the archive. A call while another run is on has one more made after it, for
        all such calls.
        """
        self._next.append(done)
        if not (self._is_running or self._stopped):
            self._begin()

    def _begin(self) -> None:
        self._is_running = True
        self._done, self._next = self._next, []
        starts, topic_ids = dict(self._state.starts), set(self._state.by_id)
        lsn = self._wal.appended_lsn

        def durable() -> None:
            self._snapshot_thread.submit(
                self._snapshotter.second_newest,
                lambda snapshot_lsn, error: self._covered(
                    Basis(starts, topic_ids, lsn, snapshot_lsn or 0), error
                ),
            )

        self._journal.when_all_durable(durable)

    def _covered(self, basis: Basis, error: Exception | None) -> None:
        if self._finished(error):
            return
        self.last_error = None
        plan = self._wal.deleter.plan_removal(basis.starts, basis.topic_ids, basis.lsn)
        self._readers.submit(plan.run, lambda found, error: self._found(basis, plan, found, error))

    def _found(
        self,
        basis: Basis,
        plan: RemovalPlan,
        found: Sequence[RemovableSegment] | None,
        error: Exception | None,
    ) -> None:
        plan.remember()
        if self._finished(error):
            return
        assert found is not None
        found = self._with_events(found)
        goes = [one for one in found if one.segment.end_lsn <= basis.snapshot_lsn]
        waits = [one for one in found if one.segment.end_lsn > basis.snapshot_lsn]
        self._removed_waiting_bytes = sum(one.size for one in waits)
        self._take_snapshot_for(self._removed_waiting_bytes)
        self._archive_sweep.run(basis)
        if goes:
            self._wal.deleter.delete(goes, lambda count, error: self._deleted(error))
        else:
            self._finish()

    def _with_events(self, found: Sequence[RemovableSegment]) -> list[RemovableSegment]:
        """Those whose events need not stay; the others are counted."""
        events_lsn = self._archived.events_lsn
        if events_lsn is None or self._wal.allocation_error is not None:
            self._events_waiting_bytes = 0
            return [*found]
        self._events_waiting_bytes = sum(
            one.size for one in found if one.segment.end_lsn > events_lsn
        )
        return [one for one in found if one.segment.end_lsn <= events_lsn]

    def _deleted(self, error: Exception | None) -> None:
        if not self._finished(error):
            self._finish()

    # -- snapshots ------------------------------------------------------------------------------

    def _snapshot_written(self) -> None:
        if self.waiting_bytes:
            self.wake()

    def _take_snapshot_for(self, waiting_bytes: int) -> None:
        """If they are worth it, at the next frame boundary.

        A mark makes one, so that no two snapshots begin together.
        """
        if not self._is_worth_a_snapshot(waiting_bytes):
            return
        self._snapshotter.wanted = True
        if not self._journal.gathered_bytes:
            with suppress(BrokerdError):  # else the next frame will do
                self._journal.admit_events(BATCH_FRAME_BYTES)
                self._journal.mark()

    def _is_worth_a_snapshot(self, waiting_bytes: int) -> bool:
        if self._wal.allocation_error is not None:
            return waiting_bytes > 0
        cost = max(self._wal.options.segment_bytes, self._snapshotter.last_bytes)
        return waiting_bytes >= cost

    # -- the end --------------------------------------------------------------------------------

    def _finished(self, error: Exception | None) -> bool:
        """Whether that was all, because of an error, which is told, or of a stop."""
        if self._stopped:
            return True
        if error is None:
            return False
        self._tell(error)
        self._finish()
        return True

    def _tell(self, error: Exception) -> None:
        self.errors += 1
        self.last_error = error_text(error)
        self._log.error(
            "segments that are not needed cannot be deleted now: {error}",
            error=error,
            event_id="segments-not-deleted",
        )

    def _finish(self) -> None:
        self._is_running = False
        done, self._done = self._done, []
        for one in done:
            one()
        if self._next and not (self._is_running or self._stopped):
            self._begin()
