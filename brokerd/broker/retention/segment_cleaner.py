# Tests: tests/broker/test_retention.py, tests/broker/test_segment_cleaner.py
"""Deletes segments of the log without records, and has archived segments deleted.

A segment can be deleted when all its records are removed and the second-newest snapshot begins at
or past the segment's end, because two snapshots then hold the rest of its content. The cleaner
reads and verifies that snapshot in each run. The removal of the records is durable first. Then
`ArchivedSegmentCleaner` deletes segments whose records the archive holds, by the same snapshot.

While an archive is in use, a segment without records stays until the archive holds its events,
unless the disk is full. While an archive is refused, the segment that proves it wrong stays. After
a start no segment goes before the archive is checked, because any may be that one. If the disk is
full, the cleaner waits 30 s for that check (`SILENT_SECONDS` of the refresher).

`brokerd-rollup` learns the names of topics from ``state/bounds`` and from later segments. So a
segment stays until the last written bounds cover it. When the disk is full, the cleaner requests
the bounds at once, and deletes without them if this write fails: they may need the space. A write
that failed before the disk was full says nothing about the space, and does not count.

The growth of the log triggers snapshots. A log that does not grow delays the deletion of segments.
So the cleaner requests a snapshot when the waiting segments have more bytes than the last snapshot
and than one segment, or when the disk is full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from twisted.logger import Logger

from brokerd.broker.archive.access import ArchiveSettings
from brokerd.broker.archive.bounds_writer import BoundsWriter
from brokerd.broker.archive.pairing_check import PairingCheck
from brokerd.broker.archive.pin import ArchivePin
from brokerd.broker.archive.refresher import ArchiveRefresher
from brokerd.broker.context import Context
from brokerd.broker.group_commit import ENTRY_OVERHEAD_BYTES
from brokerd.broker.model.snapshotter import Snapshotter
from brokerd.broker.retention.archived_segment_cleaner import (
    ArchivedSegmentCleaner,
    Basis,
    SetArchivedEnds,
)
from brokerd.errors import BrokerdError, error_text
from brokerd.wal import RemovableSegment, RemovalPlan
from brokerd.worker_pool import WorkerPool


class SegmentCleaner:
    """Finds and deletes segments. ``snapshot_thread`` is the thread that writes snapshots."""

    _log = Logger()

    def __init__(
        self,
        context: Context,
        snapshotter: Snapshotter,
        read_threads: WorkerPool,
        snapshot_thread: WorkerPool,
        archive_thread: WorkerPool,
        archive_refresher: ArchiveRefresher,
        pairing_check: PairingCheck,
        pin: ArchivePin,
        bounds: BoundsWriter | None,
        set_archived_ends: SetArchivedEnds,
        settings: ArchiveSettings,
    ) -> None:
        self._state = context.state
        self._group_commit = context.group_commit
        self._wal = context.wal
        self._snapshotter = snapshotter
        self._read_threads = read_threads
        self._snapshot_thread = snapshot_thread
        self._archive_refresher = archive_refresher
        self._pairing_check = pairing_check
        self._bounds = bounds
        self._archived_segment_cleaner = ArchivedSegmentCleaner(
            context.state,
            context.group_commit,
            context.wal,
            archive_thread,
            archive_refresher,
            pin,
            set_archived_ends,
            settings,
            on_examined=self._examined,
            on_error=self._report,
            on_more=self.wake,
        )
        self._done: list[Callable[[], None]] = []
        """Called when the current run ends."""
        self._next: list[Callable[[], None]] = []
        """Called when the next run ends."""
        self._is_running = False
        self._stopped = False
        self._removed_waiting_bytes = 0
        self._events_waiting_bytes = 0
        """Bytes of segments without records that wait for the archive to hold their events."""
        self._proof_bytes = 0
        """Bytes of the segment without records that proves a refused archive wrong."""
        self._removed_unbounded_bytes = 0
        """Bytes of segments without records that wait for new bounds."""
        self._shortage_number = 0
        """Counts how often the disk was found full."""
        self._bounds_failed_at: int | None = None
        """The number of the shortage in which the last requested write of the bounds failed.

        The disk may be found full again during a write, each second if it has room for less than is
        wanted. So the number is that of the failure, and not of the request.
        """
        self.errors = 0
        self.last_error: str | None = None

    def start(self) -> None:
        """Run also after each archive version, and when the disk is full.

        Run after each snapshot and after each write of the bounds, if segments wait for it. A run
        that is under way goes by the earlier ones, so after a write another run follows it.
        """
        self._archive_refresher.on_version.append(self.wake)
        self._wal.on_disk_full = self._disk_full
        self._snapshotter.on_written = self._snapshot_written
        if self._bounds is not None:
            self._bounds.on_written = self._bounds_written

    def stop(self) -> None:
        """Start no more work and ignore the results of threads."""
        self._stopped = True
        self._archived_segment_cleaner.stop()

    def status(self) -> dict[str, Any]:
        """Return counts of deleted segments and of bytes that stay, by reason."""
        return {
            **self._archived_segment_cleaner.status(),
            "events_bytes": self._events_waiting_bytes,
            "proof_bytes": self._proof_bytes,
            "bounds_bytes": self.bounds_waiting_bytes,
        }

    @property
    def waiting_bytes(self) -> int:
        """Bytes of segments that wait for a snapshot."""
        return self._removed_waiting_bytes + self._archived_segment_cleaner.retained.snapshot

    @property
    def bounds_waiting_bytes(self) -> int:
        """Bytes of segments that wait for the next write of the bounds."""
        return self._removed_unbounded_bytes + self._archived_segment_cleaner.retained.bounds

    def wake(self) -> None:
        """Start a run soon."""
        if not self._next:
            self.run(lambda: None)

    def run(self, done: Callable[[], None]) -> None:
        """Delete removable segments, then call ``done``, unless `stop` comes first.

        ``done`` does not wait for the archive. All calls during a run share one more run after it.
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
                lambda snapshot_lsn, error: self._plan_removal(
                    Basis(starts, topic_ids, lsn, snapshot_lsn or 0, self._bounds_lsn(lsn)), error
                ),
            )

        self._group_commit.when_all_durable(durable)

    def _bounds_lsn(self, end_lsn: int) -> int:
        """Return the LSN below which no segment waits for the bounds."""
        if self._bounds is None:
            return end_lsn
        if self._wal.shortage is not None and self._bounds_failed_at == self._shortage_number:
            return end_lsn
        return self._bounds.lsn

    def _plan_removal(self, basis: Basis, error: Exception | None) -> None:
        if self._is_over(error):
            return
        self.last_error = None
        plan = self._wal.deleter.plan_removal(basis.starts, basis.topic_ids, basis.lsn)
        self._read_threads.submit(
            plan.run, lambda found, error: self._found(basis, plan, found, error)
        )

    def _found(
        self,
        basis: Basis,
        plan: RemovalPlan,
        found: Sequence[RemovableSegment] | None,
        error: Exception | None,
    ) -> None:
        plan.remember()
        if self._is_over(error):
            return
        assert found is not None
        found = self._with_events(self._without_proof(found))
        ready = [one for one in found if one.segment.end_lsn <= basis.snapshot_lsn]
        waiting = [one for one in found if one.segment.end_lsn > basis.snapshot_lsn]
        unbounded = [one for one in ready if one.segment.end_lsn > basis.bounds_lsn]
        ready = [one for one in ready if one.segment.end_lsn <= basis.bounds_lsn]
        self._removed_waiting_bytes = sum(one.size for one in waiting)
        self._removed_unbounded_bytes = sum(one.size for one in unbounded)
        self._take_snapshot_for(self._removed_waiting_bytes)
        self._request_bounds_for(self._removed_unbounded_bytes)
        self._archived_segment_cleaner.run(basis)
        if ready:
            self._wal.deleter.delete(ready, lambda count, error: self._deleted(error))
        else:
            self._finish()

    def _without_proof(self, found: Sequence[RemovableSegment]) -> list[RemovableSegment]:
        """Return segments that no restart needs to refuse the archive; count the other's bytes."""
        needs = self._pairing_check.needs
        left = [one for one in found if not needs(one.segment.first_lsn, one.segment.end_lsn)]
        self._proof_bytes = sum(one.size for one in found) - sum(one.size for one in left)
        return left

    def _with_events(self, found: Sequence[RemovableSegment]) -> list[RemovableSegment]:
        """Return segments whose events the archive holds; count the bytes of the others."""
        refresher = self._archive_refresher
        events_lsn = refresher.events_lsn
        needs_room = self._wal.shortage is not None
        if needs_room and refresher.is_unchecked and not refresher.is_silent:
            needs_room = False  # not before it is known whether a segment proves the archive wrong
            refresher.refresh(lambda error: self.wake())
        if events_lsn is None or needs_room:
            self._events_waiting_bytes = 0
            return [*found]
        self._events_waiting_bytes = sum(
            one.size for one in found if one.segment.end_lsn > events_lsn
        )
        return [one for one in found if one.segment.end_lsn <= events_lsn]

    def _deleted(self, error: Exception | None) -> None:
        if not self._is_over(error):
            self._finish()

    # -- snapshots and bounds -------------------------------------------------------------------

    def _snapshot_written(self) -> None:
        if self.waiting_bytes or self._is_under_way:
            self.wake()

    def _bounds_written(self) -> None:
        self._bounds_failed_at = None
        if self.bounds_waiting_bytes or self._is_under_way:
            self.wake()

    @property
    def _is_under_way(self) -> bool:
        """Whether a run goes by the snapshot and the bounds of its beginning."""
        return self._is_running or self._archived_segment_cleaner.is_running

    def _disk_full(self) -> None:
        self._shortage_number += 1
        self.wake()

    def _request_bounds_for(self, waiting_bytes: int) -> None:
        """Write the bounds at once if the disk is full; else a write follows each new segment."""
        if self._bounds is not None and waiting_bytes and self._wal.shortage is not None:
            self._bounds.request(self._bounds_tried)

    def _bounds_tried(self, error: Exception | None) -> None:
        if error is not None:
            self._bounds_failed_at = self._shortage_number
        self.wake()

    def _examined(self) -> None:
        self._take_snapshot_for(self.waiting_bytes)
        self._request_bounds_for(self._archived_segment_cleaner.retained.bounds)

    def _take_snapshot_for(self, waiting_bytes: int) -> None:
        """Request a snapshot at the next frame boundary, if ``waiting_bytes`` are worth one.

        A mark makes that boundary, so that two snapshots never begin together.
        """
        if not self._is_worth_a_snapshot(waiting_bytes):
            return
        self._snapshotter.wanted = True
        if not self._group_commit.gathered_bytes:
            with suppress(BrokerdError):  # the next frame makes the boundary
                self._group_commit.admit_events(ENTRY_OVERHEAD_BYTES)
                self._group_commit.mark()

    def _is_worth_a_snapshot(self, waiting_bytes: int) -> bool:
        if self._wal.shortage is not None:
            return waiting_bytes > 0
        cost = max(self._wal.options.segment_bytes, self._snapshotter.last_bytes)
        return waiting_bytes >= cost

    # -- the end --------------------------------------------------------------------------------

    def _is_over(self, error: Exception | None) -> bool:
        """Return whether an error or a stop ended the run; report the error."""
        if self._stopped:
            return True
        if error is None:
            return False
        self._report(error)
        self._finish()
        return True

    def _report(self, error: Exception) -> None:
        self.errors += 1
        self.last_error = error_text(error)
        self._log.error(
            "the broker cannot delete segments now: {error}",
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
