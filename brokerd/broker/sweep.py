# Tests: tests/broker/test_sweep.py, tests/broker/test_sweep_model.py
"""Has segments of the log deleted that hold nothing any more that anybody needs.

A segment goes when all its records are removed, or the archive has them, and the second-newest
snapshot, which is read again and verified each time, begins at or past its end: then two snapshots
hold whatever else it says. What removed the records is durable before; so is, for each partition,
that records may be missing because the archive has them.

Because of an archive nothing goes unless the last look found it in order, both its tables have got
past the segment's end, and so much newer log follows as is to be kept, unless the disk is full.

Snapshots follow the growth of the log. Where it does not grow, segments that could go wait for
them; so one is taken when those waiting are worth more than it costs: when they have more bytes
than the last snapshot and at least a segment, or when the disk is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from twisted.logger import Logger

from brokerd.archive.view import ArchiveView
from brokerd.broker.archive_access import ArchiveSettings
from brokerd.broker.archived import Archived
from brokerd.broker.journal import BATCH_FRAME_BYTES, Congested, Journal
from brokerd.broker.snapshotter import Snapshotter
from brokerd.broker.state import State
from brokerd.broker.topics import Partition
from brokerd.errors import BrokerdError, NoSpace
from brokerd.wal import Committer, Coverage, Removable, RemovalPlan, Staying, Wal

MARKS = 100
"""Partitions that one frame says of that records may be missing; a millisecond of the reactor."""

MarkArchived = Callable[[list[tuple[Partition, int]]], int]
"""`TopicChanges.mark_archived`."""

Mark = tuple[tuple[int, int], int]
"""(topic id, partition), and the offset below which its records may be missing."""


class _Found(NamedTuple):
    """What a plan found: segments that can go, and what must be on record before they do."""

    removables: list[Removable]
    marks: list[Mark]


class Sweep:
    """Looks for segments that can go.

    ``snapshot_thread`` is the one that writes snapshots; plans run in ``planners``, where they may
    ask the archive.
    """

    _log = Logger()

    def __init__(
        self,
        state: State,
        journal: Journal,
        wal: Wal,
        snapshotter: Snapshotter,
        planners: Committer,
        snapshot_thread: Committer,
        archived: Archived,
        mark_archived: MarkArchived,
        settings: ArchiveSettings,
    ) -> None:
        self._state = state
        self._journal = journal
        self._wal = wal
        self._snapshotter = snapshotter
        self._planners = planners
        self._snapshot_thread = snapshot_thread
        self._archived = archived
        self._mark_archived = mark_archived
        self._settings = settings
        self._done: list[Callable[[], None]] = []
        """Told when the run that is on is over."""
        self._next: list[Callable[[], None]] = []
        """Told when the run after it is."""
        self._is_running = False
        self._stopped = False
        self._view: ArchiveView | None = None
        """The version of the archive that was asked last; its number counts those before it."""
        self._number = 0
        self._staying = Staying()
        self.errors = 0
        self.last_error: str | None = None
        self.waiting_bytes = 0
        """Bytes of segments that could go but for the snapshots."""

    def start(self) -> None:
        """Begin to look whenever there may be more to delete, not only when asked to."""
        self._archived.on_version.append(self.wake)
        self._wal.on_short = self.wake
        self._snapshotter.on_written = self._snapshot_written

    def stop(self) -> None:
        self._stopped = True

    def status(self) -> dict[str, Any]:
        """What went because of the archive, and what stays although it might."""
        staying = self._staying
        return {
            "deleted_segments": self._wal.deleter.archived_segments,
            "deleted_bytes": self._wal.deleter.archived_bytes,
            "behind_bytes": staying.archive,
            "kept_bytes": staying.kept,
            "snapshot_bytes": staying.snapshot,
            "lacking_bytes": staying.lacking,
            "lack": staying.lack,
        }

    def wake(self) -> None:
        """Delete what can go, soon."""
        if not self._next:
            self.run(lambda: None)

    def run(self, done: Callable[[], None]) -> None:
        """Delete what can go; then call ``done``, unless stopped before.

        A call while another run is on has one more made after it, for all such calls.
        """
        self._next.append(done)
        if not (self._is_running or self._stopped):
            self._begin()

    def _begin(self) -> None:
        self._is_running = True
        self._done, self._next = self._next, []
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
        self.last_error = None
        plan = self._wal.removable(starts, topic_ids, lsn, self._coverage(covered_lsn or 0))
        known = dict(self._state.archived)
        self._planners.submit(
            lambda: _found(plan.run(), known), partial(self._found, plan, covered_lsn or 0)
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

    def _found(
        self, plan: RemovalPlan, covered_lsn: int, found: _Found | None, error: Exception | None
    ) -> None:
        if self._finished(error):
            return
        assert found is not None
        goes = [one for one in found.removables if one.segment.end_lsn <= covered_lsn]
        waits = [one for one in found.removables if one.segment.end_lsn > covered_lsn]
        self.waiting_bytes = sum(one.size for one in waits) + plan.staying.snapshot
        if self.waiting_bytes and self._is_worth_a_snapshot():
            self._take_snapshot()
        if plan.is_cut_short and goes:
            self.wake()
        else:
            self._tell_lack(plan.staying)
        self._mark(found.marks, MARKS, goes)

    def _tell_lack(self, staying: Staying) -> None:
        """Say once that the archive lacks something, until it lacks nothing."""
        if staying.lack is not None and self._staying.lack is None:
            self._log.warn(
                "{bytes} bytes of the log stay although the archive should have them: {lack}",
                bytes=staying.lacking,
                lack=staying.lack,
                event_id="archive-lacks",
            )
        self._staying = staying

    # -- what the archive lets go ---------------------------------------------------------------

    def _mark(self, marks: list[Mark], lot: int, goes: Sequence[Removable]) -> None:
        """Put on record that records may be missing, ``lot`` partitions a frame, then delete."""
        if self._stopped:
            return
        if self._archived.view is None:
            marks, goes = [], _without_archived(goes)
        while marks:
            try:
                news = self._mark_archived(list(self._partitions(marks[-lot:])))
            except Congested:
                self._journal.when_uncongested(partial(self._mark, marks, lot, goes))
                return
            except NoSpace as error:
                if lot > 1:
                    lot //= 2
                    continue
                self._tell(error)
                marks, goes = [], _without_archived(goes)
            except BrokerdError as error:
                self._finished(error)
                return
            else:
                del marks[-lot:]
                if news:
                    self._journal.when_all_durable(partial(self._mark, marks, lot, goes))
                    return
        if goes:
            self._wal.delete_segments(goes, lambda count, error: self._deleted(error))
        else:
            self._finish()

    def _partitions(self, marks: Sequence[Mark]) -> Iterator[tuple[Partition, int]]:
        """Those that are not deleted by now."""
        for (topic_id, index), end in marks:
            partition = self._state.partition(topic_id, index)
            if partition is not None:
                yield partition, end

    def _deleted(self, error: Exception | None) -> None:
        if not self._finished(error):
            self._finish()

    # -- snapshots ------------------------------------------------------------------------------

    def _snapshot_written(self) -> None:
        if self.waiting_bytes:
            self.wake()

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
        self.last_error = str(error)
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


def _found(removables: list[Removable], known: Mapping[tuple[int, int], int]) -> _Found:
    """With what must be on record that is not ``known``; in the plan's thread."""
    ends = {
        (topic_id, partition): end  # the last counts: segments are in order
        for removable in removables
        for topic_id, partition, end in removable.archived
        if end > known.get((topic_id, partition), 0)
    }
    return _Found(removables, list(ends.items()))


def _without_archived(removables: Sequence[Removable]) -> list[Removable]:
    """Those whose records are removed."""
    return [one for one in removables if not one.archived]
