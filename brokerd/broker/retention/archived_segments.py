# Tests: tests/broker/test_segment_cleaner.py, tests/broker/test_sweep_model.py
"""Has segments of the log deleted whose records the archive has.

Nothing goes unless the last look found the archive in order, both its tables have got past the
segment's end, and so much newer log follows as is to be kept, unless the disk is full. The archive
knows every offset that goes. For each partition it is on record, durably, that records may be
missing from the log, before any is; and so it is which archive the log relies on, and up to where.

The archive is asked in a thread of its own: one that never answers holds up nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from twisted.logger import Logger

from brokerd.archive.contract.pin import Pin
from brokerd.archive.contract.view import ArchiveView
from brokerd.broker.archive.access import ArchiveSettings
from brokerd.broker.archive.pin import ArchivePin
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.journal import Congested, Journal
from brokerd.broker.model.state import State
from brokerd.broker.model.topics import Partition
from brokerd.errors import BrokerdError, NoSpace
from brokerd.wal import Coverage, CoveragePlan, RemovableSegment, RetainedBytes, Wal, WorkerPool

MARKS = 100
"""Partitions that one frame says of that records may be missing; a millisecond of the reactor."""

MarkArchived = Callable[[list[tuple[Partition, int]]], int]
"""`TopicAdmin.mark_archived`."""

Mark = tuple[tuple[int, int], int]
"""(topic id, partition), and the offset below which its records may be missing."""


class Basis(NamedTuple):
    """What was durable when the second-newest snapshot was verified, and where that begins."""

    starts: dict[tuple[int, int], int]
    topic_ids: set[int]
    lsn: int
    """The log ended there; what comes later may be of topics that are not among these."""
    snapshot_lsn: int


class _Found(NamedTuple):
    """What a plan found: segments that can go, and what must be on record before they do."""

    removables: list[RemovableSegment]
    marks: list[Mark]


class ArchivedSegmentCleaner:
    """Asks the archive in ``archive_thread``, one question at a time.

    ``looked()`` is called when it is known what stays, ``failed(error)`` when nothing can go now,
    ``more()`` when another look may find more.
    """

    _log = Logger()

    def __init__(
        self,
        state: State,
        journal: Journal,
        wal: Wal,
        archive_thread: WorkerPool,
        archived: ArchiveReader,
        pin: ArchivePin,
        mark_archived: MarkArchived,
        settings: ArchiveSettings,
        looked: Callable[[], None],
        failed: Callable[[Exception], None],
        more: Callable[[], None],
    ) -> None:
        self._state = state
        self._journal = journal
        self._wal = wal
        self._archive_thread = archive_thread
        self._archived = archived
        self._pin = pin
        self._mark_archived = mark_archived
        self._settings = settings
        self._looked = looked
        self._failed = failed
        self._more = more
        self._is_running = False
        self._is_wanted = False
        """Whether somebody asked for a look while one was on."""
        self._stopped = False
        self._view: ArchiveView | None = None
        """The version that was asked last; its number counts those before it."""
        self._number = 0
        self.staying = RetainedBytes()
        """What stays although it might go, as of the last look."""

    def stop(self) -> None:
        """Begin nothing any more; what a thread is at comes to nothing."""
        self._stopped = True

    def run(self, basis: Basis) -> None:
        """Delete what can go. While the archive is still being asked, another look comes later."""
        if self._is_running:
            self._is_wanted = True
            return
        coverage = self._coverage(basis.snapshot_lsn)
        if coverage is None:
            self.staying = RetainedBytes()
            return
        self._is_running = True
        plan = self._wal.deleter.plan_coverage(basis.starts, basis.topic_ids, basis.lsn, coverage)
        known = dict(self._state.archived)
        self._archive_thread.submit(
            lambda: _with_marks(plan.run(), known), partial(self._found, plan)
        )

    def _coverage(self, snapshot_lsn: int) -> Coverage | None:
        """What the archive lets go, if it may let go anything."""
        view = self._archived.view if self._settings.delete_segments else None
        if view is not self._view:
            self._view = view
            self._number += 1
        if view is None:
            return None
        end_lsn = self._wal.appended_lsn
        is_full = self._wal.allocation_error is not None
        return Coverage(
            self._number,
            view.covers,
            min(view.records_lsn, view.events_lsn),
            end_lsn if is_full else end_lsn - self._settings.keep_wal_bytes,
            snapshot_lsn,
        )

    def _found(self, plan: CoveragePlan, found: _Found | None, error: Exception | None) -> None:
        plan.remember()
        if self._stopped:
            return
        if error is not None:
            self._finish(error)
            return
        assert found is not None
        if plan.is_cut_short:
            self._is_wanted |= bool(found.removables)
        else:
            self._tell_lack(plan.retained)
            self.staying = plan.retained
            self._looked()
        self._mark(found.marks, MARKS, found.removables)

    def _tell_lack(self, staying: RetainedBytes) -> None:
        """Say once that the archive lacks something, until it lacks nothing."""
        if staying.lack is not None and self.staying.lack is None:
            self._log.warn(
                "{bytes} bytes of the log stay although the archive should have them: {lack}",
                bytes=staying.lacking,
                lack=staying.lack,
                event_id="archive-lacks",
            )

    def _mark(self, marks: list[Mark], lot: int, goes: Sequence[RemovableSegment]) -> None:
        """Put on record that records may be missing, ``lot`` partitions a frame, then delete."""
        while marks and not self._stopped and self._is_in_order:
            try:
                news = self._mark_archived(list(self._partitions(marks[-lot:])))
            except Congested:
                self._journal.when_uncongested(partial(self._mark, marks, lot, goes))
                return
            except BrokerdError as error:
                if isinstance(error, NoSpace) and lot > 1:
                    lot //= 2
                    continue
                self._finish(error)
                return
            del marks[-lot:]
            if news:
                self._journal.when_all_durable(partial(self._mark, marks, lot, goes))
                return
        if self._stopped:
            return
        view = self._view
        if not goes or view is None or not self._is_in_order:
            self._finish(None)
            return
        relied = Pin(view.archive_id, max(one.segment.end_lsn for one in goes))
        self._pin.raise_to(relied, partial(self._delete, goes))

    @property
    def _is_in_order(self) -> bool:
        """Whether the last look found the archive that was asked."""
        asked, view = self._view, self._archived.view
        return asked is not None and view is not None and view.archive_id == asked.archive_id

    def _delete(self, goes: Sequence[RemovableSegment], error: Exception | None) -> None:
        """Delete segments, now that it is on record that the archive has to have them."""
        if self._stopped:
            return
        if error is not None:
            self._finish(error)
        elif self._is_in_order:
            self._wal.deleter.delete(goes, lambda count, error: self._finish(error))
        else:
            self._finish(None)

    def _partitions(self, marks: Sequence[Mark]) -> Iterator[tuple[Partition, int]]:
        """Those that are not deleted by now."""
        for (topic_id, index), end in marks:
            partition = self._state.partition(topic_id, index)
            if partition is not None:
                yield partition, end

    def _finish(self, error: Exception | None) -> None:
        if self._stopped:
            return
        self._is_running = False
        is_wanted, self._is_wanted = self._is_wanted, False
        if error is not None:
            self._failed(error)
        if is_wanted:
            self._more()

    def status(self) -> dict[str, Any]:
        """What went because of the archive, and what stays although it might."""
        staying = self.staying
        return {
            "deleted_segments": self._wal.deleter.archived_segments,
            "deleted_bytes": self._wal.deleter.archived_bytes,
            "behind_bytes": staying.archive,
            "kept_bytes": staying.kept,
            "snapshot_bytes": staying.snapshot,
            "lacking_bytes": staying.lacking,
            "lack": staying.lack,
        }


def _with_marks(removables: list[RemovableSegment], known: Mapping[tuple[int, int], int]) -> _Found:
    """With what must be on record that is not ``known``; in the plan's thread."""
    ends = {
        (topic_id, partition): end  # the last counts: segments are in order
        for removable in removables
        for topic_id, partition, end in removable.archived
        if end > known.get((topic_id, partition), 0)
    }
    return _Found(removables, list(ends.items()))
