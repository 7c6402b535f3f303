# Tests: tests/wal/test_log.py
"""The write-ahead log: append frames, learn when they are durable, read batches.

The log runs in the reactor's thread, and worker pools do its disk work. A frame that is appended
while no commit is in flight is written at once. Frames that are appended during a commit share the
next commit and its fdatasync, up to `COMMIT_BYTES`. A *ticket* is the number of a frame: 1, 2, 3...
The format is docs/wal-format.rst.

A failed write or sync is fatal, because the content of the disk is then unknown. The log calls
``on_fatal`` once, acknowledges nothing any more, and does not retry.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial

from twisted.logger import Logger

from brokerd.errors import NoSpace, StorageFailed, error_text
from brokerd.histogram import Histogram
from brokerd.wal.catalog import Catalog
from brokerd.wal.deletion.deleted_ranges import deleted_ranges
from brokerd.wal.deletion.segment_deleter import SegmentDeleter
from brokerd.wal.disk import Disk, is_full
from brokerd.wal.event_indexes import EventIndexes
from brokerd.wal.options import MARK_ROOM_BYTES, WalOptions
from brokerd.wal.read.event_scan import EventScan, RecordEventFilter, SegmentSpan
from brokerd.wal.read.reader import ReadPlan
from brokerd.wal.read.seek import OffsetPlan, SizePlan
from brokerd.wal.recovery.damage_fingerprint import DamageFingerprint, is_unchanged
from brokerd.wal.recovery.report import NOTHING_KNOWN, Frame, KnownEnd, RecoveryReport
from brokerd.wal.recovery.startup import clean_up, fingerprint_damages, rebuild_index, replay
from brokerd.wal.segment import Segment, SegmentStatus
from brokerd.wal.write.allocation import Allocator, SpareSegment
from brokerd.wal.write.commit import (
    QueuedFrame,
    SegmentWrite,
    by_segment,
    encode_frames,
    encode_large_frames,
    write_all,
)
from brokerd.wal.write.sealer import Sealer
from brokerd.walformat import (
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    LARGE_BODY_BYTES,
    SEGMENT_HEADER_BYTES,
    Entry,
    SegmentHeader,
    encode_segment_header,
    frame_size,
)
from brokerd.walformat.index import MemoryIndex
from brokerd.worker_pool import CommitPool, FailStopPool, Mutex, WorkerPool

AWAITED_BYTES = 256 << 10
"""Largest commit for which the reactor waits."""
COMMIT_BYTES = 4 << 20
"""Most bytes of the frames of a commit, unless it has one frame only."""
WAIT_SECONDS = 0.001
"""Longest time for which the reactor waits for a commit. A stuck sync then goes on without it."""
PASSED_COMMITS_MAX = 64
"""Most commits that the reactor does not wait for after a wait in vain."""


class Wal:
    """The log in one directory. Call :meth:`open` first.

    ``writer`` runs writes in order, in one thread. ``background`` allocates, seals and deletes
    segments. ``random_bytes(n)`` makes segment ids, ``seconds()`` times the recovery, and
    ``make_lock()`` makes locks between threads.
    """

    _log = Logger()

    def __init__(
        self,
        disk: Disk,
        path: str,
        options: WalOptions,
        writer: CommitPool,
        background: WorkerPool,
        random_bytes: Callable[[int], bytes],
        seconds: Callable[[], float],
        make_lock: Callable[[], Mutex] = threading.Lock,
    ) -> None:
        self.options = options
        self.on_durable: Callable[[int], None] = lambda ticket: None
        """Called when all frames up to a ticket are durable."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when an allocation has ended."""
        self.on_sealed: list[Callable[[], None]] = []
        """Called when a segment is complete and its index is on the disk."""
        self.on_disk_full: Callable[[], None] = lambda: None
        """Called when the disk has no room for another segment."""
        self.on_fatal: Callable[[StorageFailed], None] = lambda error: None
        """Called once when the log fails."""
        self.busy = False
        """Whether a commit is in flight."""
        self.failed = False
        self._memory_failure = StorageFailed(
            "memory ran out; the broker stops and replays at its next start"
        )
        """Made in advance, for a failure without memory for its text."""
        self.next_ticket = 1
        self.durable_ticket = 0
        self.commits = 0
        """Number of durable commits, each of one frame or more."""
        self.appended_lsn = 0
        """The LSN after the last appended frame."""
        self.durable_lsn = 0
        """The LSN after the last durable frame."""
        self._synced_lsn = 0
        self._syncing = False
        self._commit_is_awaited = False
        """Whether `wait_if_quick` waits for the commit in flight."""
        self._passed_commits = 0
        """How many commits were not awaited after the last wait, if that was in vain."""
        self._commits_to_pass = 0
        """How many of these are left."""
        self._disk = disk
        self._path = path
        self._writer = FailStopPool(writer, self.fail)
        self._wait = writer.wait
        self._background = background = FailStopPool(background, self.fail)
        self._seconds = seconds
        self.bad_indexes = 0
        """Number of damaged or missing index files that were made again."""
        self.event_indexes = EventIndexes(
            disk, path, os.path.join(os.path.dirname(path), "event-index")
        )
        self._catalog = Catalog(disk, path, self._rebuild_index, self._open_later, make_lock)
        self._opening: set[Segment] = set()
        self._allocator = Allocator(
            disk, path, background, random_bytes, options.segment_bytes, options.free_bytes_min
        )
        self._allocator.changed = self._room_changed
        base_bytes = SEGMENT_HEADER_BYTES + MARK_ROOM_BYTES
        self._allocator.small_bytes = base_bytes + options.reserve
        self._allocator.least_bytes = base_bytes + max(
            options.reserve // 4, 2 * options.last_reserve
        )
        self._sealer = Sealer(
            disk, path, background, self._catalog, self.fail, self._close_when_idle
        )
        self._sealer.on_sealed = self._report_sealed
        self.deleter = SegmentDeleter(
            disk,
            path,
            background,
            self._catalog,
            self.when_synced,
            self.fail,
            self._close_when_idle,
        )
        self._active: Segment | None = None
        self._spare_names: dict[Segment, str] = {}
        self._first_time_us = 0
        self._queue: list[QueuedFrame] = []
        self.shortage: str | None = None
        """Why the last allocation failed, until one succeeds; unlike ``allocation_error`` it stays
        while an allocation is tried again."""
        self.commit_times = Histogram()
        """Times of commits, from their start to their end in the reactor."""
        self.write_times = Histogram()
        """Times of their writes and syncs in the writer's thread."""
        self._commit_began: float | None = None
        self._sync_began: float | None = None
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
        changed: Collection[DamageFingerprint] = (),
        known: KnownEnd = NOTHING_KNOWN,
    ) -> RecoveryReport:
        """Replay frames from ``from_lsn`` on and make the log ready for appending.

        The log is known to begin at ``first_lsn`` and to have reached ``reached_lsn`` once, and
        ``known``. Missing parts are reported. Places in ``changed``, damage that has changed since
        the snapshot, are read again wherever they are. Blocks, and may run in any thread.

        Raises NewerFormat, and DamagedData for a file that may or may not be a segment, for a file
        in place of another segment, or for deleted segments from ``from_lsn`` on. Nothing on disk
        has changed then. Raises OSError.
        """
        began = self._seconds()
        self._disk.make_directory(self._path)
        reached_lsn = max(from_lsn, reached_lsn)
        result = replay(
            self._disk, self._path, from_lsn, apply, first_lsn, reached_lsn, changed, known
        )
        clean_up(self._disk, self._path, result)
        report = result.report
        report.damage_fingerprints = fingerprint_damages(self._disk, self._path, report)
        for problem in report.bad_indexes:
            self._report_bad_index(problem)
        for name in report.foreign_names:
            self._log.warn(
                "{name!r} in {directory} does not belong to the log; it is left alone",
                name=name,
                directory=self._path,
                event_id="odd-entry",
            )
        for segment, spans in result.segments:
            self._catalog.add(segment, spans)
            if segment.memory_index is not None:
                self._sealer.add_unindexed(segment)
        self._synced_lsn = self.durable_lsn = self.appended_lsn = report.next_lsn
        spare = self._first_spare()
        if spare is not None:
            self._begin(spare)
        self._report_shortage()
        report.seconds = self._seconds() - began
        return report

    def is_unchanged(self, known: DamageFingerprint) -> bool:
        """Whether a damaged place is as it was. Call it before :meth:`open`. Raises OSError."""
        return is_unchanged(self._disk, self._path, known)

    def deleted_lsn(self) -> int:
        """Return the end of the deleted parts of the log. A replay cannot begin below it.

        For `Snapshots.load_newest`, before :meth:`open`. Raises OSError.
        """
        return deleted_ranges(self._disk, self._path).end

    def _first_spare(self) -> SpareSegment | None:
        """Allocate the first segment.

        On a nearly full disk, the segment has only room for the reserve, or a part of it. Returns
        None on a full disk.
        """
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

    def _begin(self, spare: SpareSegment) -> None:
        """Continue in a new segment."""
        header = SegmentHeader(spare.segment_id, self.appended_lsn, spare.size, 0)
        segment = Segment(header, MemoryIndex(), spare.file)
        segment.position = SEGMENT_HEADER_BYTES
        self._spare_names[segment] = spare.name
        self._active = segment
        self._allocator.small_bytes = 0

    # -- room --------------------------------------------------------------------------------

    @property
    def _free(self) -> int:
        """Bytes that frames of any sizes can use.

        A frame does not span segments, so the rest of the active segment and the spare do not add
        up.
        """
        active, spare_bytes = self._active, self._allocator.capacity
        rest = 0 if active is None else active.header.size - active.position
        return rest if rest > spare_bytes else spare_bytes

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
        """Bytes of frames that changes which take access away may still append."""
        return max(0, self._free - MARK_ROOM_BYTES)

    @property
    def allocation_error(self) -> str | None:
        """The error of the last allocation if it failed and was not retried, else None.

        While it is set, ``room`` does not grow. Callers then refuse work that needs more.
        """
        return self._allocator.error

    def request_room(self, size: int) -> None:
        """Ask for a spare so that ``room`` is at least ``size`` bytes.

        The log calls ``on_room`` when the allocation succeeds or fails.
        """
        self._allocator.request(size + self.options.reserve + MARK_ROOM_BYTES)

    def retry_allocation(self) -> None:
        """Retry the allocation and the index writes that failed for lack of space."""
        self._allocator.retry()
        self._sealer.retry()

    def _room_changed(self) -> None:
        self._report_shortage()
        if self._active is None:
            spare = self._allocator.take(0)
            if spare is not None:
                self._begin(spare)
                self._allocator.ensure()
        if self._seal_wanted:
            self.seal()
        self._close_when_idle()
        self.on_room()

    def _report_shortage(self) -> None:
        """Log that the disk is full, once until an allocation succeeds."""
        error, before = self._allocator.error, self.shortage
        self.shortage = error
        if error is not None and before is None:
            self._log.warn(
                "no log segment can be allocated: {error}; free some space",
                error=error,
                event_id="allocation-failed",
            )
            self.on_disk_full()

    # -- appending ---------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry], time_us: int) -> int:
        """Queue one frame and return its ticket.

        The caller checks ``room``, ``reserve_room`` or ``last_room`` first. Raises NoSpace if
        the frame does not fit, StorageFailed after a failure, and ValueError for a frame over
        FRAME_BYTES_MAX. After an error the frame is not queued.
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
        """Return the segment for the next frame. Begins a new one if the active one is full."""
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

    def _roll(self, spare: SpareSegment) -> Segment:
        """Close the active segment and begin the next one."""
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

    @property
    def commit_seconds(self) -> float:
        """Time for which the commit or sync under way has waited for the disk; 0 without one."""
        began = [one for one in (self._commit_began, self._sync_began) if one is not None]
        return self._seconds() - min(began) if began else 0.0

    def _start_commit(self) -> None:
        self.busy = True
        self._commit_began = self._seconds()
        frames = self._next_frames()
        self._commit_is_awaited = False
        if self._commits_to_pass:
            self._commits_to_pass -= 1
        else:
            self._commit_is_awaited = sum(frame.size for frame in frames) <= AWAITED_BYTES
        sync = self.options.durability == "fsync"
        try:
            writes = [self._write(run) for run in by_segment(frames)]
            self._writer.submit(
                lambda: write_all(self._disk, self._path, writes, sync, self._seconds),
                lambda seconds, error: self._committed(frames, seconds, error),
            )
        except Exception as error:  # these frames never become durable
            self.fail("a commit cannot be made", error)

    def _next_frames(self) -> list[QueuedFrame]:
        """Take the frames of the next commit from the queue.

        Small frames do not wait for a large one behind them.
        """
        queue, size = self._queue, 0
        for count, frame in enumerate(queue):
            size += frame.size
            if count and size > COMMIT_BYTES:
                self._queue = queue[count:]
                return queue[:count]
        self._queue = []
        return queue

    def _write(self, frames: list[QueuedFrame]) -> SegmentWrite:
        """Encode frames of one segment, with its header if they are the first.

        The writer's thread encodes large ones.
        """
        segment = frames[0].segment
        assert segment.file is not None, "a segment with frames to be written is open"
        last_synced = self._synced_lsn
        is_large = frames[-1].position + frames[-1].size - frames[0].position >= LARGE_BODY_BYTES
        parts = [] if is_large else encode_frames(frames, last_synced)
        data: bytes | Callable[[], bytes]
        spare = self._spare_names.pop(segment, None)
        if spare is None:
            if is_large:
                data = partial(encode_large_frames, b"", frames, last_synced)
            else:
                data = b"".join(parts)
            return SegmentWrite(segment.file, frames[0].position, data, segment.name)
        segment.header = segment.header._replace(created_us=frames[0].time_us)
        header = encode_segment_header(segment.header)
        if is_large:
            data = partial(encode_large_frames, header, frames, last_synced)
        else:
            data = b"".join((header, *parts))
        before = None
        if self.options.durability != "fsync" and self._catalog.newest is not None:
            before = self._catalog.newest.file
        self._catalog.add(segment)
        return SegmentWrite(segment.file, 0, data, segment.name, spare, before)

    def wait_if_quick(self) -> None:
        """Wait for the commit in flight, if it is small and will probably be quick.

        ``on_durable`` is called before this returns if the commit ends in `WAIT_SECONDS`. After a
        wait in vain the next commit is not awaited, after another one the next two, then four, and
        so on: with a slow disk hardly any is. The time of a commit beside other work of the reactor
        does not count, because its thread waits for the interpreter then.
        """
        if not self.busy or not self._commit_is_awaited:
            return
        ticket = self.durable_ticket
        self._wait(WAIT_SECONDS)
        if self.durable_ticket != ticket:
            self._passed_commits = 0
        else:
            self._commit_is_awaited = False
            self._passed_commits = min(2 * self._passed_commits or 1, PASSED_COMMITS_MAX)
            self._commits_to_pass = self._passed_commits

    def _committed(
        self, frames: list[QueuedFrame], seconds: float | None, error: Exception | None
    ) -> None:
        if error is not None:
            self.fail("writing to the log failed", error)
            return
        assert seconds is not None, "a commit without an error has a time"
        self.busy = False
        self.write_times.observe(seconds)
        if self._commit_began is not None:
            self.commit_times.observe(self._seconds() - self._commit_began)
            self._commit_began = None
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
        self._sealer.complete_below(self.durable_lsn)
        self.on_durable(self.durable_ticket)
        self._close_when_idle()

    def _index(self, frame: QueuedFrame) -> None:
        index = frame.segment.memory_index
        assert index is not None, "a segment keeps its index in memory until all is durable"
        firsts = index.add_frame(frame.entries, frame.time_us, frame.position + FRAME_HEADER_BYTES)
        for topic_id, partition, base_offset in firsts:
            self._catalog.add_partition(frame.segment, topic_id, partition, base_offset)

    def sync(self) -> None:
        """Sync the written frames, in ``interval`` mode. The owner's timer calls it.

        Does nothing while another sync is under way.
        """
        active = self._active
        if self.failed or self._syncing or active is None or active.file is None:
            return
        lsn = self.durable_lsn
        if lsn <= max(self._synced_lsn, active.first_lsn):
            return
        self._syncing = True
        self._sync_began = self._seconds()
        self._writer.submit(active.file.sync, lambda _, error: self._synced(lsn, error))

    def when_synced(self, synced: Callable[[Exception | None], None]) -> None:
        """Call back, now or later, when all durable frames are synced, in any mode.

        Other files that refer to these frames are written after that. The active segment may have
        no name yet, and the one before may still wait for its sync in the background.
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

        self._writer.submit(work, done)

    def _synced(self, lsn: int, error: Exception | None) -> None:
        self._syncing = False
        self._sync_began = None
        if error is not None:
            self.fail("syncing the log failed", error)
        else:
            self._synced_lsn = max(self._synced_lsn, lsn)

    def fail(self, what: str, error: Exception) -> None:
        """Stop acknowledging and appending. The first call calls ``on_fatal``.

        The owner calls it too, if it cannot make a frame of changes that it has applied.
        """
        if self.failed:
            return
        self.failed = self.deleter.stopped = True
        self._queue.clear()
        try:
            failure = StorageFailed(
                f"{what}: {error_text(error)}; the broker stops and replays at its next start"
            )
            failure.__cause__ = error
        except MemoryError:
            failure = self._memory_failure
        self.on_fatal(failure)
        self._close_when_idle()

    # -- sealing -----------------------------------------------------------------------------

    def seal(self) -> bool:
        """Seal the active segment unless it is empty. Without a spare, seal it later.

        Returns whether the next frame begins a segment.
        """
        active = self._active
        if active is None or active.position == SEGMENT_HEADER_BYTES or self.failed:
            return True
        spare = self._allocator.take(0)
        if spare is None:
            self._seal_wanted = True
            self._allocator.ensure()
            return False
        self._roll(spare)
        self._sealer.complete_below(self.durable_lsn)
        return True

    @property
    def sealed_lsn(self) -> int:
        """The LSN up to which all segments are complete, with their indexes on the disk."""
        for segment in self._catalog.segments:
            if not segment.sealed or segment.memory_index is not None:
                return segment.first_lsn
        return self.durable_lsn

    def seal_if_older(self, time_us: int) -> None:
        """Seal the active segment if its first frame is ``seal_age_us`` old by broker time."""
        active = self._active
        if active is None or active.position == SEGMENT_HEADER_BYTES:
            return
        if time_us - self._first_time_us >= self.options.seal_age_us:
            self.seal()

    # -- reading -----------------------------------------------------------------------------

    def plan_read(
        self, topic_id: int, partition: int, offset: int, max_bytes: int
    ) -> ReadPlan | None:
        """Plan to read the batch with ``offset`` and the durable batches that follow.

        Returns None if the log holds no batch with the offset. Cheap. Run the plan in another
        thread.
        """
        return self._catalog.plan_read(topic_id, partition, offset, max_bytes)

    def time_of(self, topic_id: int, partition: int, offset: int) -> int | None:
        """Return the broker time at which a record was appended, None if it is not in the log.

        If the index has to be read first, the answer is the time at which the segment began.
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

    def _rebuild_index(self, segment: Segment) -> MemoryIndex:
        """Make the index of a sealed segment again, in the thread of a read.

        The caller holds `Catalog.open_lock`, so that threads count one after the other.
        """
        index, error = rebuild_index(self._disk, self._path, segment)
        self._report_bad_index(f"a read could not use the index of {segment.name}")
        if error is not None:
            self._log.warn(
                "the index of {name} cannot be written: {error}; it is made again when needed",
                name=segment.name,
                error=error,
                event_id="index-failed",
            )
        return index

    def _report_sealed(self) -> None:
        for sealed in self.on_sealed:
            sealed()

    def _report_bad_index(self, problem: str) -> None:
        self.bad_indexes += 1
        self._log.error(
            "{problem}; the index was made again from the segment",
            problem=problem,
            event_id="index-rebuilt",
        )

    def segments(self) -> list[SegmentStatus]:
        """Return the segments with frames, oldest first."""
        return self._catalog.status()

    def last_segment(self) -> SegmentHeader | None:
        """Return the header of the segment with the last appended frame.

        None if that segment is deleted, or if the last part of the log is missing.
        """
        last = self._active
        if last is None or last.position == SEGMENT_HEADER_BYTES:
            last = self._catalog.newest
        if last is None or last.deleted or last.end_lsn != self.appended_lsn:
            return None
        return last.header

    def lsn_before(self, topic_id: int, partition: int, offset: int) -> int:
        """Return an LSN that is not above that of a record; 0 if it is unknown."""
        return self._catalog.lsn_before(topic_id, partition, offset)

    def plan_events(
        self,
        topic_id: int,
        partition: int,
        offset: int,
        from_lsn: int,
        events_filter: RecordEventFilter,
        follows_archive: bool,
    ) -> EventScan:
        """Plan to find the durable events of groups about a record, in segments from an LSN on.

        If the scan ``follows_archive``, events below ``from_lsn`` were searched there. Cheap: call
        ``step`` in another thread until the scan is done.
        """
        spans = [
            SegmentSpan(
                segment.name,
                segment.header.segment_id,
                segment.first_lsn,
                SEGMENT_HEADER_BYTES,
                min(segment.end_lsn, self.durable_lsn) - segment.first_lsn,
            )
            for segment in self._catalog.segments
            if segment.end_lsn > from_lsn
        ]
        return EventScan(
            self._disk,
            self._path,
            topic_id,
            partition,
            offset,
            spans,
            events_filter,
            self.event_indexes.load,
            from_lsn if follows_archive else None,
        )

    def plan_offset_at_time(self, topic_id: int, partition: int, time_us: int) -> OffsetPlan:
        """Plan to find the first offset appended at or after broker time ``time_us``.

        Cheap. ``plan.run()``, in another thread, returns the exact offset, or None if the log has
        no such durable record.
        """
        return self._catalog.plan_offset_at_time(topic_id, partition, time_us)

    def plan_offset_of_size(self, topic_id: int, partition: int, max_bytes: int) -> SizePlan:
        """Plan to find the first offset from which on a partition takes at most ``max_bytes``.

        The bytes are those of whole batches in the log. ``plan.run()``, in another thread, returns
        the first offset of a batch. It returns the offset after the last batch if that batch alone
        is larger, and None if the log has no batch of the partition. ``plan.measure()`` also
        returns how many bytes may lie before that. ``plan.remember()`` keeps the size of each
        sealed segment: about 150 bytes for each pair of segment and partition.
        """
        return self._catalog.plan_offset_of_size(topic_id, partition, max_bytes)

    # -- closing -----------------------------------------------------------------------------

    def close(self, closed: Callable[[StorageFailed | None], None]) -> None:
        """Finish all queued work, sync, and call ``closed(error or None)``."""
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
            self._writer.submit(self._close_files, self._files_closed)

    def _close_files(self) -> None:
        active = self._active
        if active is not None and active.file is not None and self._synced_lsn < self.durable_lsn:
            active.file.sync()
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
        self._catalog.drop_files()
        self._closed(None)
