# Tests: tests/wal/test_log.py
"""The write-ahead log: append frames, learn when they are durable, read batches back.

Everything here runs in one thread, the reactor's; disk work is handed to committers. A frame
appended while no commit is in flight is written at once; those appended meanwhile are written
together by the next commit, with one fdatasync. A *ticket* is the number of a frame: 1, 2, 3...
The format is docs/wal-format.rst.

A failed write or sync is fatal: ``on_fatal`` is called once, nothing is acknowledged any more, and
nothing is tried again, because what the disk holds is unknown (fsyncgate).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence

from twisted.logger import Logger

from brokerd.errors import NoSpace, StorageFailed
from brokerd.wal.catalog import Catalog
from brokerd.wal.committer import Committer, Mutex
from brokerd.wal.deletion.coverage import Coverage, CoveragePlan
from brokerd.wal.deletion.deleted_ranges import deleted_ranges
from brokerd.wal.deletion.removal import Deleter, Removable, RemovalPlan, StartOffsets, is_kept
from brokerd.wal.disk import Disk
from brokerd.wal.options import MARK_ROOM_BYTES, WalOptions
from brokerd.wal.read.reader import ReadPlan
from brokerd.wal.read.seek import OffsetPlan, SizePlan
from brokerd.wal.recovery.damage_fingerprint import KnownDamage, is_unchanged
from brokerd.wal.recovery.report import Frame, RecoveryReport
from brokerd.wal.recovery.startup import known_places, rebuild_index, replay, tidy
from brokerd.wal.segment import Segment, SegmentStatus
from brokerd.wal.write.allocation import Allocator, Spare, is_full
from brokerd.wal.write.commit import QueuedFrame, SegmentWrite, by_segment, encode_frames, write_all
from brokerd.wal.write.sealer import Sealer
from brokerd.walformat import (
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryKind,
    SegmentHeader,
    encode_segment_header,
    entry_size,
    frame_size,
)
from brokerd.walformat.index import GrowingIndex


class Wal:
    """The log in one directory.

    ``committer`` must run work in order, in one thread; ``background`` runs allocation and the
    sealing of segments; ``random_bytes(n)`` makes segment ids; ``seconds()`` times the recovery;
    locks between threads come from ``make_lock()``.
    Call :meth:`open` first. Callbacks are attributes: ``on_durable(ticket)``, ``on_room()``,
    ``on_fatal(StorageFailed)``.
    """

    _log = Logger()

    def __init__(
        self,
        disk: Disk,
        path: str,
        options: WalOptions,
        committer: Committer,
        background: Committer,
        random_bytes: Callable[[int], bytes],
        seconds: Callable[[], float],
        make_lock: Callable[[], Mutex] = threading.Lock,
    ) -> None:
        self.options = options
        self.on_durable: Callable[[int], None] = lambda ticket: None
        self.on_room: Callable[[], None] = lambda: None
        self.on_sealed: Callable[[], None] = lambda: None
        """Called when a segment is complete, its index on the disk."""
        self.on_short: Callable[[], None] = lambda: None
        """Called when the disk has no room for another segment."""
        self.on_fatal: Callable[[StorageFailed], None] = lambda error: None
        self.busy = False
        """Whether a commit is in flight."""
        self.failed = False
        self.next_ticket = 1
        self.durable_ticket = 0
        self.commits = 0
        """Commits that are durable; each made one frame or more so."""
        self.appended_lsn = 0
        """Just past the last frame appended."""
        self.durable_lsn = 0
        """Just past the last frame that is durable."""
        self._synced_lsn = 0
        self._syncing = False
        self._disk = disk
        self._path = path
        self._committer = committer
        self._background = background
        self._seconds = seconds
        self.bad_indexes = 0
        """Index files that were damaged, or gone, and were made again."""
        self._catalog = Catalog(disk, path, self._rebuild_index, self._open_later, make_lock)
        self._opening: set[Segment] = set()
        self._allocator = Allocator(
            disk, path, background, random_bytes, options.segment_bytes, options.free_bytes_min
        )
        self._allocator.changed = self._room_changed
        self._allocator.least_bytes = SEGMENT_HEADER_BYTES + MARK_ROOM_BYTES + options.reserve
        self._sealer = Sealer(
            disk, path, background, self._catalog, self.fail, self._close_when_idle
        )
        self._sealer.on_sealed = lambda: self.on_sealed()
        self.deleter = Deleter(
            disk, path, background, self._catalog, self.fail, self._close_when_idle
        )
        self._active: Segment | None = None
        self._spare_names: dict[Segment, str] = {}
        self._first_time_us = 0
        self._queue: list[QueuedFrame] = []
        self._is_short = False
        self._seal_wanted = False
        self._closed: Callable[[StorageFailed | None], None] | None = None
        self._is_closing = False

    # -- opening -----------------------------------------------------------------------------

    def open(
        self,
        from_lsn: int,
        apply: Callable[[Frame], None],
        first_lsn: int = 0,
        reached_lsn: int = 0,
        changed: Collection[KnownDamage] = (),
    ) -> RecoveryReport:
        """Replay frames from ``from_lsn`` on and make the log ready for appending.

        The log is known to begin at ``first_lsn``, and to have reached ``reached_lsn`` once: what
        is missing of it is reported. Places that ``changed`` since they were known to be damaged
        are read again wherever they are. Blocks; may run in any thread, before all else. Raises
        NewerFormat, and DamagedData for a file of which nobody can say whether it is a segment, or
        when segments from ``from_lsn`` on were deleted, before anything on disk is changed; and
        OSError.
        """
        began = self._seconds()
        self._disk.make_directory(self._path)
        reached_lsn = max(from_lsn, reached_lsn)
        replayed = replay(self._disk, self._path, from_lsn, apply, first_lsn, reached_lsn, changed)
        tidy(self._disk, self._path, replayed)
        report = replayed.report
        report.known = known_places(self._disk, self._path, report)
        for problem in report.bad_indexes:
            self._tell_bad_index(problem)
        for name in report.odd:
            self._log.warn(
                "{name!r} in {directory} is none of the log's files; it is left alone",
                name=name,
                directory=self._path,
                event_id="odd-entry",
            )
        for segment, spans in replayed.segments:
            self._catalog.add(segment, spans)
            if segment.growing is not None:
                self._sealer.keep(segment)
        self._synced_lsn = self.durable_lsn = self.appended_lsn = report.next_lsn
        spare = self._first_spare()
        if spare is not None:
            self._begin(spare)
        self._tell_shortage()
        report.seconds = self._seconds() - began
        return report

    def is_unchanged(self, known: KnownDamage) -> bool:
        """Whether a place is damaged as it was; asked before :meth:`open`. Raises OSError."""
        return is_unchanged(self._disk, self._path, known)

    def deleted_lsn(self) -> int:
        """Up to where parts of the log are deleted: a replay that begins below misses them.

        For `Snapshots.load_newest`; asked before :meth:`open`. Raises OSError.
        """
        return deleted_ranges(self._disk, self._path).end

    def _first_spare(self) -> Spare | None:
        """A segment to go on with; on a full disk, one that just holds the reserve, if any."""
        size = self.options.segment_bytes
        try:
            spare = self._allocator.prepare_any(size)
        except OSError as error:
            if not is_full(error):
                raise
            self._allocator.error = error.strerror or str(error)
            return None
        if spare.size < size:
            self._allocator.error = f"no space for a segment of {size} bytes"
        return spare

    def _begin(self, spare: Spare) -> None:
        """Go on in a new segment."""
        header = SegmentHeader(spare.segment_id, self.appended_lsn, spare.size, 0)
        segment = Segment(header, GrowingIndex(), spare.file)
        segment.position = SEGMENT_HEADER_BYTES
        self._spare_names[segment] = spare.name
        self._active = segment
        self._allocator.least_bytes = 0

    # -- room --------------------------------------------------------------------------------

    @property
    def _free(self) -> int:
        """Bytes that frames of any sizes, one after another, can be sure to find room in.

        No frame spans segments, so what is left of the active segment and the spare do not add up.
        """
        active = self._active
        rest = 0 if active is None else active.header.size - active.position
        return max(rest, self._allocator.capacity)

    @property
    def room(self) -> int:
        """Bytes of frames that ordinary work may still append."""
        return max(0, self._free - self.options.reserve - MARK_ROOM_BYTES)

    @property
    def reserve_room(self) -> int:
        """Bytes of frames that settles and the like may still append."""
        return max(0, self._free - self.options.last_reserve - MARK_ROOM_BYTES)

    @property
    def last_room(self) -> int:
        """Bytes of frames that what shuts somebody out may still append."""
        return max(0, self._free - MARK_ROOM_BYTES)

    @property
    def allocation_error(self) -> str | None:
        """Why the last allocation failed; work that does not fit ``room`` should be refused."""
        return self._allocator.error

    def request_room(self, size: int) -> None:
        """Ask for ``room`` to become at least ``size`` bytes; ``on_room`` tells how it ended."""
        self._allocator.request(size + self.options.reserve + MARK_ROOM_BYTES)

    def retry_allocation(self) -> None:
        """Try again what failed for lack of space: allocation, and the writing of indexes."""
        self._allocator.retry()
        self._sealer.retry()

    def _room_changed(self) -> None:
        self._tell_shortage()
        if self._active is None:
            spare = self._allocator.take(0)
            if spare is not None:
                self._begin(spare)
                self._allocator.ensure()
        if self._seal_wanted:
            self.seal()
        self._close_when_idle()
        self.on_room()

    def _tell_shortage(self) -> None:
        """Say once that the disk is full, until there is room again."""
        error = self._allocator.error
        if error is not None and not self._is_short:
            self._log.warn(
                "no log segment can be allocated: {error}; free some space",
                error=error,
                event_id="allocation-failed",
            )
            self._is_short = True
            self.on_short()
        self._is_short = error is not None

    # -- appending ---------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry], time_us: int) -> int:
        """Queue one frame and return its ticket.

        The caller has made sure of ``room``, ``reserve_room`` or ``last_room``. Raises NoSpace if
        not, StorageFailed after a failure, ValueError for a frame over FRAME_BYTES_MAX; nothing is
        queued then.
        """
        if self.failed or self._closed is not None:
            raise StorageFailed("the log takes no more frames: it failed or was closed")
        size = frame_size(entries)
        if size > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {size} bytes is over the limit of {FRAME_BYTES_MAX}")
        active = self._place(size)
        if active.position == SEGMENT_HEADER_BYTES:
            self._first_time_us = time_us
        ticket = self.next_ticket
        self.next_ticket = ticket + 1
        self._queue.append(QueuedFrame(ticket, active, active.position, size, entries, time_us))
        active.position += size
        self.appended_lsn = active.end_lsn
        if not self.busy:
            self._start_commit()
        if not self._allocator.spares:
            self._allocator.ensure()
        return ticket

    def _place(self, size: int) -> Segment:
        """The segment that takes the next frame; begins a new one if need be."""
        active = self._active
        if active is not None and active.position + size <= active.header.size:
            return active
        spare = self._allocator.take(size)
        if spare is None:
            raise NoSpace(
                f"no allocated segment has room for a frame of {size} bytes; "
                f"{self.allocation_error or 'wait until one is allocated'}"
            )
        return self._roll(spare)

    def _roll(self, spare: Spare) -> Segment:
        """Close the active segment and begin the next."""
        self._seal_wanted = False
        old = self._active
        if old is not None and old.position > SEGMENT_HEADER_BYTES:
            old.sealed = True
            self._sealer.add(old)
        self._begin(spare)
        assert self._active is not None
        self._allocator.ensure()
        return self._active

    # -- committing --------------------------------------------------------------------------

    def _start_commit(self) -> None:
        self.busy = True
        frames, self._queue = self._queue, []
        sync = self.options.durability == "fsync"
        try:
            writes = [self._write(run) for run in by_segment(frames)]
            self._committer.submit(
                lambda: write_all(self._disk, self._path, writes, sync),
                lambda _, error: self._committed(frames, error),
            )
        except Exception as error:  # these frames never become durable
            self.fail("a commit cannot be made", error)

    def _write(self, frames: list[QueuedFrame]) -> SegmentWrite:
        """The bytes of frames of one segment, and its header if they are the first."""
        segment = frames[0].segment
        assert segment.file is not None, "a segment with frames to be written is open"
        parts = encode_frames(frames, self._synced_lsn)
        spare = self._spare_names.pop(segment, None)
        if spare is None:
            data = b"".join(parts)
            return SegmentWrite(segment.file, frames[0].position, data, segment.name)
        segment.header = segment.header._replace(created_us=frames[0].time_us)
        data = b"".join((encode_segment_header(segment.header), *parts))
        before = None
        if self.options.durability != "fsync" and self._catalog.newest is not None:
            before = self._catalog.newest.file
        self._catalog.add(segment)
        return SegmentWrite(segment.file, 0, data, segment.name, spare, before)

    def _committed(self, frames: list[QueuedFrame], error: Exception | None) -> None:
        if error is not None:
            self.fail("writing to the log failed", error)
            return
        self.busy = False
        if self.failed:
            return
        try:
            for frame in frames:
                self._index(frame)
        except Exception as failure:  # a record that no read finds must not be acknowledged
            self.fail("a commit cannot be indexed", failure)
            return
        last = frames[-1]
        self.commits += 1
        self.durable_ticket = last.ticket
        self.durable_lsn = last.end_lsn
        if self.options.durability == "fsync":
            self._synced_lsn = self.durable_lsn
        if self._queue:
            self._start_commit()
        self._sealer.durable(self.durable_lsn)
        self.on_durable(self.durable_ticket)
        self._close_when_idle()

    def _index(self, frame: QueuedFrame) -> None:
        index = frame.segment.growing
        assert index is not None, "a segment keeps its index in memory until all is durable"
        index.last_time_us = frame.time_us
        position = frame.position + FRAME_HEADER_BYTES
        for kind, topic_id, partition, base_offset, count, body in frame.entries:
            size = len(body)
            if kind == EntryKind.RECORDS and index.add(
                topic_id, partition, base_offset, frame.time_us, count, position, size
            ):
                self._catalog.begins(frame.segment, topic_id, partition, base_offset)
            position += entry_size(size)

    def sync(self) -> None:
        """Sync what was written; for ``interval`` mode, called by its owner's timer.

        Does nothing while the sync before is under way.
        """
        active = self._active
        if self.failed or self._syncing or active is None or active.file is None:
            return
        lsn = self.durable_lsn
        if lsn <= max(self._synced_lsn, active.first_lsn):
            return
        self._syncing = True
        self._committer.submit(active.file.sync, lambda _, error: self._synced(lsn, error))

    def when_synced(self, synced: Callable[[Exception | None], None]) -> None:
        """Call back, now or later, when all that is durable is on the disk, in any mode.

        For what must never know more than the log does after a power cut. The active segment may
        have no name yet, while the one before is still to be synced in the background.
        """
        segments = [*self._sealer.unsynced, *([self._active] if self._active else ())]
        files = [segment.file for segment in segments if segment.file is not None]
        if self.options.durability == "fsync" or not files:
            synced(None)
            return

        def work() -> None:
            for file in files:
                file.sync()

        def done(_: object, error: Exception | None) -> None:
            if error is not None:
                self.fail("syncing the log failed", error)
            synced(error)

        self._committer.submit(work, done)

    def _synced(self, lsn: int, error: Exception | None) -> None:
        self._syncing = False
        if error is not None:
            self.fail("syncing the log failed", error)
        else:
            self._synced_lsn = max(self._synced_lsn, lsn)

    def fail(self, what: str, error: Exception) -> None:
        """Acknowledge nothing any more and take no more frames; the first call tells ``on_fatal``.

        Also for the owner, when it cannot make a frame of what it has applied already.
        """
        if self.failed:
            return
        self.failed = self.deleter.stopped = True
        self._queue.clear()
        problem = str(error) or type(error).__name__
        failure = StorageFailed(
            f"{what}: {problem}; the broker stops and replays at its next start"
        )
        failure.__cause__ = error
        self.on_fatal(failure)
        self._close_when_idle()

    # -- sealing -----------------------------------------------------------------------------

    def seal(self) -> None:
        """Close the active segment as soon as a spare is there; nothing happens if it is empty."""
        active = self._active
        if active is None or active.position == SEGMENT_HEADER_BYTES or self.failed:
            return
        spare = self._allocator.take(0)
        if spare is None:
            self._seal_wanted = True
            self._allocator.ensure()
            return
        self._roll(spare)
        self._sealer.durable(self.durable_lsn)

    @property
    def sealed_lsn(self) -> int:
        """All segments that end at or below this are complete, with their indexes on the disk."""
        for segment in self._catalog.segments:
            if not segment.sealed or segment.growing is not None:
                return segment.first_lsn
        return self.durable_lsn

    def seal_if_older(self, time_us: int) -> None:
        """Seal if the first frame of the active segment is ``seal_age_us`` old by broker time."""
        active = self._active
        if active is None or active.position == SEGMENT_HEADER_BYTES:
            return
        if time_us - self._first_time_us >= self.options.seal_age_us:
            self.seal()

    # -- reading -----------------------------------------------------------------------------

    def plan_read(
        self, topic_id: int, partition: int, offset: int, max_bytes: int
    ) -> ReadPlan | None:
        """Plan to read the batch that holds ``offset`` and what follows it.

        Only durable batches are seen. None if the log holds no batch with the offset. Cheap; run
        the plan in another thread.
        """
        return self._catalog.plan_read(topic_id, partition, offset, max_bytes)

    def time_of(self, topic_id: int, partition: int, offset: int) -> int | None:
        """Broker time at which the record was appended, None if the log does not hold it.

        While the index that tells has to be read first: when the record's segment began.
        """
        return self._catalog.time_of(topic_id, partition, offset)

    def _open_later(self, segment: Segment) -> None:
        """Open a segment and its index in the background."""
        if segment in self._opening:
            return
        self._opening.add(segment)

        def opened(_: object, error: Exception | None) -> None:
            self._opening.discard(segment)
            if error is not None:
                self._log.warn(
                    "the index of {name} can be neither read nor made again: {error}",
                    name=segment.name,
                    error=error,
                    event_id="index-failed",
                )

        self._background.submit(lambda: self._catalog.open(segment), opened)

    def _rebuild_index(self, segment: Segment) -> GrowingIndex:
        """Make the index of a sealed segment again; in the thread of a read."""
        index, error = rebuild_index(self._disk, self._path, segment)
        self._tell_bad_index(f"a read could not use the index of {segment.name}")
        if error is not None:
            self._log.warn(
                "the index of {name} cannot be written: {error}; it is made again when needed",
                name=segment.name,
                error=error,
                event_id="index-failed",
            )
        return index

    def _tell_bad_index(self, problem: str) -> None:
        self.bad_indexes += 1
        self._log.error(
            "{problem}; the index was made again from the segment",
            problem=problem,
            event_id="index-rebuilt",
        )

    def segments(self) -> list[SegmentStatus]:
        """The segments that hold frames, oldest first."""
        return self._catalog.status()

    # -- removing ----------------------------------------------------------------------------

    def plan_offset_at_time(self, topic_id: int, partition: int, time_us: int) -> OffsetPlan:
        """Plan to find a partition's first offset appended at or after broker time ``time_us``.

        Cheap; ``plan.run()``, in another thread, returns it, exactly, or None if the log has no
        such record, and raises DamagedData or OSError if an index can be neither read nor made.
        Only durable records are seen.
        """
        return self._catalog.plan_offset_at_time(topic_id, partition, time_us)

    def plan_offset_of_size(self, topic_id: int, partition: int, max_bytes: int) -> SizePlan:
        """Plan to find the first offset from which on a partition takes at most ``max_bytes``.

        The bytes are those of whole batches in the log, as written. ``plan.run()`` (as above)
        returns the first offset of a batch; the offset after the last batch if that alone is
        larger; None if the log has nothing of the partition. ``plan.look()`` says, besides, how
        many bytes there may be before that. It reads the index of each segment
        once for each partition, and remembers the sum: about 150 bytes for each pair of a segment
        and a partition that somebody asked for.
        """
        return self._catalog.plan_offset_of_size(topic_id, partition, max_bytes)

    def removable(
        self, starts: StartOffsets, topic_ids: Collection[int], below_lsn: int
    ) -> RemovalPlan:
        """Plan to find the segments that can be deleted, for :meth:`delete_segments`.

        These are sealed, end at or below ``below_lsn``, and every record in them is removed: below
        its start offset in ``starts`` by (topic id, partition), or of a topic that is not among
        ``topic_ids``, those of all topics that are not deleted. Both must be durable, as they were
        when the log ended at ``below_lsn`` or above, and may not change before the plan has run.
        Only what ends at or below the start of the second-newest snapshot
        (`Snapshots.second_newest`) may be deleted. Cheap: under 1 us a segment;
        ``plan.run()`` reads the rest in another thread.
        """
        candidates = [
            segment
            for segment in self._sealed_below(below_lsn)
            if segment.kept_by is None or not is_kept(segment.kept_by, starts, topic_ids)
        ]
        return RemovalPlan(self._disk, self._path, self._catalog, candidates, starts, topic_ids)

    def covered(
        self,
        starts: StartOffsets,
        topic_ids: Collection[int],
        below_lsn: int,
        coverage: Coverage,
    ) -> CoveragePlan:
        """Plan to find the segments that can be deleted because an archive has their records.

        The others that a plan of :meth:`removable` has looked at, by the same rules. That records
        may be missing must be on record before: `Removable.archived`. Cheap; ``plan.run()`` asks
        the archive, and wants a thread of its own.
        """
        sealed = self._sealed_below(below_lsn)
        return CoveragePlan(
            self._disk, self._path, self._catalog, sealed, starts, topic_ids, coverage
        )

    def _sealed_below(self, lsn: int) -> list[Segment]:
        return [
            segment
            for segment in self._catalog.segments
            if segment.sealed and segment.growing is None and segment.end_lsn <= lsn
        ]

    def delete_segments(
        self,
        removables: Sequence[Removable],
        done: Callable[[int, Exception | None], None] = lambda count, error: None,
    ) -> None:
        """Delete what a plan of :meth:`removable` found, in the background.

        That they are deleted is on record before the first goes. A crash in between leaves segments
        that are found removable again. ``done(count, error)`` is called once: how many were
        deleted, and why none could be, as when there is no space for the record. A read plan that
        has a segment open reads on; one that still has to open it raises RecordRemoved, and no new
        plan is made. What was appended before is synced first, whatever the durability: the start
        offsets are among it.
        """

        def synced(error: Exception | None) -> None:
            if error is not None:
                done(0, error)
            else:
                self.deleter.delete(removables, done)

        self.when_synced(synced)

    # -- closing -----------------------------------------------------------------------------

    def close(self, closed: Callable[[StorageFailed | None], None]) -> None:
        """Finish what is queued and in flight, sync, and call ``closed(error or None)``."""
        self._closed = closed
        self._allocator.closed = True
        self.deleter.stopped = True
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._closed is None or self._is_closing:
            return
        if self.failed:
            self._is_closing = True
            self._closed(StorageFailed("the log failed before it was closed"))
        elif not (
            self.busy
            or self._queue
            or self._sealer.busy
            or self._allocator.allocating
            or self.deleter.busy
        ):
            self._is_closing = True
            self._committer.submit(self._close_files, self._files_closed)

    def _close_files(self) -> None:
        if self._active is not None and self._active.file is not None:
            self._active.file.sync()
        for spare in self._allocator.spares:
            self._disk.unlink(os.path.join(self._path, spare.name))
        for name in self._spare_names.values():
            self._disk.unlink(os.path.join(self._path, name))

    def _files_closed(self, _: object, error: Exception | None) -> None:
        assert self._closed is not None
        if error is not None:
            self.fail("syncing the log failed", error)
            self._closed(StorageFailed(f"syncing the log failed: {error}"))
            return
        self._active = None
        self._allocator.spares.clear()
        self._closed(None)
