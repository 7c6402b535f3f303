# Tests: tests/wal/test_deletion.py
"""Plans which segments can be deleted, and deletes them in the background."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Sequence

from twisted.logger import Logger

from brokerd.wal.catalog import Catalog
from brokerd.wal.deletion.coverage import Coverage, CoveragePlan
from brokerd.wal.deletion.deleted_ranges import LsnRange, record_deletion
from brokerd.wal.deletion.removal import (
    RemovableSegment,
    RemovalPlan,
    StartOffsets,
    has_records,
)
from brokerd.wal.disk import Disk
from brokerd.wal.segment import Segment, index_name
from brokerd.worker_pool import WorkerPool

DeleteDone = Callable[[int, Exception | None], None]
"""(number of deleted segments, why the others are not deleted)"""


class SegmentDeleter:
    """Records a batch of segments as deleted, then deletes them one by one.

    ``when_synced`` is `Wal.when_synced`. ``failed(what, error)`` is called if the record may not be
    on the disk, which is fatal like any failed sync. ``idle()`` is called when a batch is done.
    """

    _log = Logger()

    def __init__(
        self,
        disk: Disk,
        path: str,
        background: WorkerPool,
        catalog: Catalog,
        when_synced: Callable[[Callable[[Exception | None], None]], None],
        failed: Callable[[str, Exception], None],
        idle: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._path = path
        self._background = background
        self._catalog = catalog
        self._when_synced = when_synced
        self._failed = failed
        self._idle = idle
        self._batches: deque[tuple[list[RemovableSegment], DeleteDone]] = deque()
        self._replaced: list[str] = []
        """Records that wider ones replaced. Only the background thread uses it."""
        self.busy = False
        """Whether a batch is under way."""
        self.stopped = False
        """Set to end after the segment under way."""
        self.segments = 0
        """Number of deleted segments."""
        self.bytes = 0
        """Bytes of their files."""
        self.archived_segments = 0
        """Number of deleted segments whose records an archive has."""
        self.archived_bytes = 0

    def plan_removal(
        self, starts: StartOffsets, topic_ids: Collection[int], below_lsn: int
    ) -> RemovalPlan:
        """Plan to find the segments that can be deleted, for :meth:`delete`.

        These are sealed, end at or below ``below_lsn``, and all their records are removed. A record
        is removed if it lies below its start offset in ``starts``, by (topic id, partition), or if
        its topic is not in ``topic_ids``. Both must be durable, as of when the log ended at
        ``below_lsn`` or above, and may not change before the plan has run. A segment may be deleted
        only if it ends at or below `Snapshots.second_newest`.

        Cheap: under 1 us a segment. ``plan.run()`` reads the rest in another thread.
        """
        candidates = [
            segment
            for segment in self._sealed_below(below_lsn)
            if segment.kept_span is None or not has_records(segment.kept_span, starts, topic_ids)
        ]
        return RemovalPlan(self._disk, self._path, self._catalog, candidates, starts, topic_ids)

    def plan_coverage(
        self,
        starts: StartOffsets,
        topic_ids: Collection[int],
        below_lsn: int,
        coverage: Coverage,
    ) -> CoveragePlan:
        """Plan to find the segments that can be deleted because an archive has their records.

        They come from the other segments of a plan of :meth:`plan_removal`, by the same rules.
        Before such a segment is deleted, `RemovableSegment.archived` must be on record. Cheap.
        ``plan.run()`` asks the archive in a thread of its own.
        """
        segments = self._sealed_below(below_lsn)
        return CoveragePlan(
            self._disk, self._path, self._catalog, segments, starts, topic_ids, coverage
        )

    def _sealed_below(self, lsn: int) -> list[Segment]:
        return [
            segment
            for segment in self._catalog.segments
            if segment.sealed and segment.memory_index is None and segment.end_lsn <= lsn
        ]

    def delete(
        self,
        segments: Sequence[RemovableSegment],
        done: DeleteDone = lambda count, error: None,
    ) -> None:
        """Delete the segments that a plan found, then call ``done(count, error)``.

        All appended frames are synced first, since they hold the start offsets. Then the deletion
        is recorded, and then the segments go. After a crash in between, the segments are found
        removable again. ``error`` is why segments are left, such as no space for the record. A read
        plan that has a segment open reads on. A plan that still has to open it raises
        RecordRemoved.
        """

        def synced(error: Exception | None) -> None:
            if error is not None:
                done(0, error)
                return
            self._batches.append(([] if self.stopped else list(segments), done))
            if not self.busy:
                self._next_batch()

        self._when_synced(synced)

    def _next_batch(self) -> None:
        self.busy = bool(self._batches)
        if not self._batches:
            self._idle()
            return
        batch, done = self._batches.popleft()
        left = deque(one for one in batch if not one.segment.deleted)
        ranges = [LsnRange(one.segment.first_lsn, one.segment.end_lsn) for one in left]
        count = len(left)
        if not left:
            done(0, None)
            self._next_batch()
            return

        def finish(error: Exception | None) -> None:
            done(count - len(left), error)
            self._next_batch()

        def recorded(result: OSError | None, error: Exception | None) -> None:
            if error is not None:
                self._failed("recording deleted segments failed", error)
            if error is not None or result is not None:
                finish(error or result)
            else:
                self._delete_next(left, finish)

        self._background.submit(lambda: self._record(ranges), recorded)

    def _record(self, ranges: list[LsnRange]) -> OSError | None:
        """Record ranges as deleted. Returns the error if no file could be created."""
        try:
            self._replaced += record_deletion(self._disk, self._path, ranges)
        except OSError as error:
            return error
        self._disk.sync_directory(self._path)
        return None

    def _delete_next(
        self, left: deque[RemovableSegment], finish: Callable[[Exception | None], None]
    ) -> None:
        """Delete one segment. The catalog removes it first, so that new reads do not use it."""

        def cleaned_up(result: OSError | None, error: Exception | None) -> None:
            if error is not None:
                self._failed("deleting segments failed", error)
            finish(error or result)

        if not left or self.stopped:
            self._background.submit(self._clean_up, cleaned_up)
            return
        removable = left.popleft()
        self._catalog.remove(removable.segment, removable.partitions)

        def unlinked(_: object, error: Exception | None) -> None:
            if error is not None:
                self._log.warn(
                    "{name} cannot be deleted: {error}; the next start tries again",
                    name=removable.name,
                    error=error,
                    event_id="segment-not-deleted",
                )
            else:
                self._count(removable)
            self._delete_next(left, finish)

        self._background.submit(lambda: self._unlink(removable.segment), unlinked)

    def _count(self, removable: RemovableSegment) -> None:
        """Count and log a deleted segment."""
        self.segments += 1
        self.bytes += removable.size
        why = "its records are removed"
        if removable.archived:
            self.archived_segments += 1
            self.archived_bytes += removable.size
            why = "the archive has its records"
        self._log.info(
            "{name} is deleted: {why}", name=removable.name, why=why, event_id="segment-deleted"
        )

    def _unlink(self, segment: Segment) -> None:
        with self._catalog.open_lock:  # a read must not make the index again meanwhile
            self._catalog.evict(segment)
            for name in (index_name(segment.first_lsn), segment.name):
                self._disk.unlink(os.path.join(self._path, name))

    def _clean_up(self) -> OSError | None:
        """Delete the replaced records, now that the wider ones are durable.

        Returns the error if one could not be deleted.
        """
        replaced, self._replaced = self._replaced, []
        try:
            for name in replaced:
                self._disk.unlink(os.path.join(self._path, name))
        except OSError as error:
            return error
        self._disk.sync_directory(self._path)
        return None
