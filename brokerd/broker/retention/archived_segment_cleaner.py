# Tests: tests/broker/test_segment_cleaner.py, tests/broker/test_sweep_model.py
"""Deletes segments of the log whose records the archive holds.

A segment is deleted under these conditions:

- the last refresh found the archive in order;
- both tables of the archive end at or past the segment's end;
- ``keep_wal_bytes`` of newer log follow, or the disk is full;
- the second-newest snapshot and the last written bounds cover the segment;
- the archive knows every offset of the segment.

The log first records, durably, for each partition that records may be missing, and the pin (the
archive and the LSN up to which the log relies on it).

A separate thread asks the archive, so that an archive that hangs delays nothing else.
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
from brokerd.broker.archive.refresher import ArchiveRefresher
from brokerd.broker.group_commit import Congested, GroupCommit
from brokerd.broker.model.state import State
from brokerd.broker.model.topics import Partition
from brokerd.errors import BrokerdError, NoSpace
from brokerd.wal import Coverage, CoveragePlan, RemovableSegment, RetainedBytes, Wal
from brokerd.worker_pool import WorkerPool

ENDS_PER_FRAME = 100
"""Partitions marked in one frame; this takes about a millisecond of the reactor."""

SetArchivedEnds = Callable[[list[tuple[Partition, int]]], int]
"""`TopicAdmin.set_archived_ends`."""

ArchivedEnd = tuple[tuple[int, int], int]
"""(topic id, partition), and the offset below which records may be missing from the log."""


class Basis(NamedTuple):
    """The durable state when the second-newest snapshot was verified, and that snapshot's LSN."""

    starts: dict[tuple[int, int], int]
    topic_ids: set[int]
    lsn: int
    """End of the log then. Later entries may belong to topics outside ``topic_ids``."""
    snapshot_lsn: int
    bounds_lsn: int
    """Segments that end above wait for new bounds."""


class _Found(NamedTuple):
    """Result of a plan: removable segments, and archived ends, durable before deletion."""

    removables: list[RemovableSegment]
    ends: list[ArchivedEnd]


class ArchivedSegmentCleaner:
    """Runs one plan at a time in ``archive_thread``.

    Calls ``on_examined()`` when `retained` is up to date, ``on_error(error)`` when a run fails, and
    ``on_more()`` when another run may find more segments.
    """

    _log = Logger()

    def __init__(
        self,
        state: State,
        group_commit: GroupCommit,
        wal: Wal,
        archive_thread: WorkerPool,
        archive_refresher: ArchiveRefresher,
        pin: ArchivePin,
        set_archived_ends: SetArchivedEnds,
        settings: ArchiveSettings,
        on_examined: Callable[[], None],
        on_error: Callable[[Exception], None],
        on_more: Callable[[], None],
    ) -> None:
        self._state = state
        self._group_commit = group_commit
        self._wal = wal
        self._archive_thread = archive_thread
        self._archive_refresher = archive_refresher
        self._pin = pin
        self._set_archived_ends = set_archived_ends
        self._settings = settings
        self._on_examined = on_examined
        self._on_error = on_error
        self._on_more = on_more
        self.is_running = False
        self._is_wanted = False
        """Whether another run was requested during the current run."""
        self._stopped = False
        self._view: ArchiveView | None = None
        """The version of the archive of the last plan; ``_number`` counts versions."""
        self._number = 0
        self.retained = RetainedBytes()
        """Bytes of segments that the last run kept, by reason."""

    def stop(self) -> None:
        """Start no more work and ignore the results of threads."""
        self._stopped = True

    def run(self, basis: Basis) -> None:
        """Delete removable segments. A call during a run requests another run after it."""
        if self.is_running:
            self._is_wanted = True
            return
        coverage = self._coverage(basis)
        if coverage is None:
            self.retained = RetainedBytes()
            return
        self.is_running = True
        plan = self._wal.deleter.plan_coverage(basis.starts, basis.topic_ids, basis.lsn, coverage)
        known = dict(self._state.archived)
        self._archive_thread.submit(
            lambda: _with_marks(plan.run(), known), partial(self._found, plan)
        )

    def _coverage(self, basis: Basis) -> Coverage | None:
        """Return the part of the log that the archive covers; None if no segment may go."""
        view = self._archive_refresher.view if self._settings.delete_segments else None
        if view is not self._view:
            self._view = view
            self._number += 1
        if view is None:
            return None
        end_lsn = self._wal.appended_lsn
        is_full = self._wal.shortage is not None
        return Coverage(
            self._number,
            view.covers,
            min(view.records_lsn, view.events_lsn),
            end_lsn if is_full else end_lsn - self._settings.keep_wal_bytes,
            basis.snapshot_lsn,
            basis.bounds_lsn,
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
            self._report_lack(plan.retained)
            self.retained = plan.retained
            self._on_examined()
        self._write_ends(found.ends, ENDS_PER_FRAME, found.removables)

    def _report_lack(self, retained: RetainedBytes) -> None:
        """Log that the archive lacks records, once until it is complete again."""
        if retained.lack is not None and self.retained.lack is None:
            self._log.warn(
                "the log keeps {bytes} bytes because the archive lacks records: {lack}",
                bytes=retained.lacking,
                lack=retained.lack,
                event_id="archive-lacks",
            )

    def _write_ends(
        self, ends: list[ArchivedEnd], count: int, removables: Sequence[RemovableSegment]
    ) -> None:
        """Write the ends of ``count`` partitions a frame, then raise the pin and delete."""
        while ends and not self._stopped and self._is_in_order:
            try:
                news = self._set_archived_ends(list(self._partitions(ends[-count:])))
            except Congested:
                self._group_commit.when_uncongested(
                    partial(self._write_ends, ends, count, removables)
                )
                return
            except BrokerdError as error:
                if isinstance(error, NoSpace) and count > 1:
                    count //= 2
                    continue
                self._finish(error)
                return
            del ends[-count:]
            if news:
                self._group_commit.when_all_durable(
                    partial(self._write_ends, ends, count, removables)
                )
                return
        if self._stopped:
            return
        view = self._view
        if not removables or view is None or not self._is_in_order:
            self._finish(None)
            return
        pin = Pin(view.archive_id, max(one.segment.end_lsn for one in removables))
        self._pin.raise_to(pin, partial(self._delete, removables))

    @property
    def _is_in_order(self) -> bool:
        """Whether the last refresh found the archive that the plan used, with as much of the log.

        An operator may take an archive back to an older version.
        """
        asked, view = self._view, self._archive_refresher.view
        return (
            asked is not None
            and view is not None
            and view.archive_id == asked.archive_id
            and view.records_lsn >= asked.records_lsn
            and view.events_lsn >= asked.events_lsn
        )

    def _delete(self, removables: Sequence[RemovableSegment], error: Exception | None) -> None:
        """Delete segments after the pin is durable."""
        if self._stopped:
            return
        if error is not None:
            self._finish(error)
        elif self._is_in_order:
            self._wal.deleter.delete(removables, lambda count, error: self._finish(error))
        else:
            self._finish(None)

    def _partitions(self, ends: Sequence[ArchivedEnd]) -> Iterator[tuple[Partition, int]]:
        """Yield the partitions that still exist, with their archived ends."""
        for (topic_id, index), end in ends:
            partition = self._state.partition(topic_id, index)
            if partition is not None:
                yield partition, end

    def _finish(self, error: Exception | None) -> None:
        if self._stopped:
            return
        self.is_running = False
        is_wanted, self._is_wanted = self._is_wanted, False
        if error is not None:
            self._on_error(error)
        if is_wanted:
            self._on_more()

    def status(self) -> dict[str, Any]:
        """Return counts of deleted segments and of bytes that stay, by reason."""
        retained = self.retained
        return {
            "deleted_segments": self._wal.deleter.archived_segments,
            "deleted_bytes": self._wal.deleter.archived_bytes,
            "behind_bytes": retained.archive,
            "kept_bytes": retained.kept,
            "snapshot_bytes": retained.snapshot,
            "lacking_bytes": retained.lacking,
            "lack": retained.lack,
        }


def _with_marks(removables: list[RemovableSegment], known: Mapping[tuple[int, int], int]) -> _Found:
    """Return the segments, and archived ends not ``known`` yet. Runs in the plan's thread."""
    ends = {
        (topic_id, partition): end  # the last counts: segments are in order
        for removable in removables
        for topic_id, partition, end in removable.archived
        if end > known.get((topic_id, partition), 0)
    }
    return _Found(removables, list(ends.items()))
