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

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from twisted.logger import Logger

from brokerd.errors import NoSpace, StorageFailed
from brokerd.wal.allocation import Allocator, Spare
from brokerd.wal.catalog import Catalog, Segment, SegmentStatus
from brokerd.wal.committer import Committer
from brokerd.wal.disk import Disk, File
from brokerd.wal.index import GrowingIndex
from brokerd.wal.opening import rebuild_index, replay, tidy, trim, write_index
from brokerd.wal.reader import ReadPlan
from brokerd.wal.recovery import Frame, RecoveryReport
from brokerd.walformat import (
    FRAME_HEADER_BYTES,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryKind,
    SegmentHeader,
    encode_segment_header,
    entry_size,
    frame_parts,
    frame_size,
    segment_salt,
)

MARK_ROOM_BYTES = 4096
"""Kept even from settles, so that marks can always be written."""


@dataclass(frozen=True)
class WalOptions:
    """How a log is kept. Raises ValueError for sizes that make no sense."""

    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    durability: Literal["fsync", "interval", "os"] = "fsync"
    """When a frame counts as durable: synced, or (the two others) written. With ``interval`` the
    owner calls ``Wal.sync`` at the interval of its choice."""
    seal_age_us: int = 900_000_000
    reserve_bytes: int = 4 << 20
    """Of the allocated space, what only settles may use; at most an eighth of a segment."""
    free_bytes_min: int = 64 << 20
    """Allocation leaves this much of the disk to snapshots, indexes and the archive."""

    def __post_init__(self) -> None:
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(
                f"segment_bytes must be {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}, "
                f"not {self.segment_bytes}"
            )

    @property
    def reserve(self) -> int:
        return min(self.reserve_bytes, self.segment_bytes // 8)


class _Queued(NamedTuple):
    ticket: int
    segment: Segment
    position: int
    size: int
    entries: Sequence[Entry]
    time_us: int


class _Write(NamedTuple):
    """Bytes for one segment. With ``spare`` the segment begins with them: rename it."""

    file: File
    position: int
    data: bytes
    spare: str | None
    name: str
    before: File | None
    """The segment before, if it may have bytes that were never synced."""


def _write_all(disk: Disk, path: str, writes: list[_Write], sync: bool) -> None:
    """One commit, in the writer's thread. Raises OSError."""
    for index, write in enumerate(writes):
        if write.before is not None:
            write.before.sync()
        write.file.pwrite(write.data, write.position)
        if sync or write.spare is not None or index + 1 < len(writes):
            write.file.sync()
        if write.spare is not None:
            disk.rename(os.path.join(path, write.spare), os.path.join(path, write.name))
            disk.sync_directory(path)


class Wal:
    """The log in one directory.

    ``committer`` must run work in order, in one thread; ``background`` runs allocation and the
    sealing of segments; ``random_bytes(n)`` makes segment ids; ``seconds()`` times the recovery.
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
    ) -> None:
        self.options = options
        self.on_durable: Callable[[int], None] = lambda ticket: None
        self.on_room: Callable[[], None] = lambda: None
        self.on_fatal: Callable[[StorageFailed], None] = lambda error: None
        self.busy = False
        """Whether a commit is in flight."""
        self.failed = False
        self.next_ticket = 1
        self.durable_ticket = 0
        self.appended_lsn = 0
        """Just past the last frame appended."""
        self.durable_lsn = 0
        """Just past the last frame that is durable."""
        self._synced_lsn = 0
        self._disk = disk
        self._path = path
        self._committer = committer
        self._background = background
        self._seconds = seconds
        self._catalog = Catalog(disk, path, lambda s: rebuild_index(disk, path, s))
        self._allocator = Allocator(
            disk, path, background, random_bytes, options.segment_bytes, options.free_bytes_min
        )
        self._allocator.changed = self._room_changed
        self._active: Segment | None = None
        self._spare_names: dict[Segment, str] = {}
        self._salt = 0
        self._first_time_us = 0
        self._queue: list[_Queued] = []
        self._sealing: list[Segment] = []
        self._unindexed: list[Segment] = []
        self._finishing = 0
        self._seal_wanted = False
        self._closed: Callable[[StorageFailed | None], None] | None = None
        self._is_closing = False

    # -- opening -----------------------------------------------------------------------------

    def open(self, from_lsn: int, apply: Callable[[Frame], None]) -> RecoveryReport:
        """Replay frames from ``from_lsn`` on and make the log ready for appending.

        Blocks; may run in any thread, before all else. Raises NewerFormat before anything on disk
        is changed, and OSError.
        """
        began = self._seconds()
        self._disk.make_directory(self._path)
        replayed = replay(self._disk, self._path, from_lsn, apply)
        tidy(self._disk, self._path, replayed)
        report = replayed.report
        for segment, spans in replayed.segments:
            self._catalog.add(segment, spans)
            if segment.growing is not None:
                self._unindexed.append(segment)
        self._synced_lsn = self.durable_lsn = self.appended_lsn = report.next_lsn
        spare = self._first_spare()
        if spare is not None:
            self._begin(spare)
        report.seconds = self._seconds() - began
        return report

    def _first_spare(self) -> Spare | None:
        """A segment to go on with; on a full disk, one that just holds the reserve."""
        smallest = SEGMENT_HEADER_BYTES + MARK_ROOM_BYTES + self.options.reserve
        for size, keep in (
            (self.options.segment_bytes, self.options.free_bytes_min),
            (smallest, 0),
        ):
            try:
                return self._allocator.prepare(size, keep)
            except OSError as error:
                self._allocator.error = error.strerror or str(error)
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
        return None

    def _begin(self, spare: Spare) -> None:
        """Go on in a new segment."""
        header = SegmentHeader(spare.segment_id, self.appended_lsn, spare.size, 0)
        segment = Segment(header, GrowingIndex(), spare.file)
        segment.position = SEGMENT_HEADER_BYTES
        self._spare_names[segment] = spare.name
        self._active = segment
        self._salt = segment_salt(spare.segment_id)

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
        return max(0, self._free - MARK_ROOM_BYTES)

    @property
    def starved(self) -> bool:
        """Space is being allocated: work that does not fit ``room`` should wait for ``on_room``."""
        return self._allocator.allocating

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
        unindexed, self._unindexed = self._unindexed, []
        for segment in unindexed:
            self._finish(segment)

    def _room_changed(self) -> None:
        if self._allocator.error is not None:
            self._log.warn(
                "no log segment can be allocated: {error}",
                error=self._allocator.error,
                event_id="allocation-failed",
            )
        if self._active is None:
            spare = self._allocator.take(0)
            if spare is not None:
                self._begin(spare)
                self._allocator.ensure()
        if self._seal_wanted:
            self.seal()
        self._close_when_idle()
        self.on_room()

    # -- appending ---------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry], time_us: int) -> int:
        """Queue one frame and return its ticket.

        The caller has made sure of ``room`` (or ``reserve_room``). Raises NoSpace if it has not,
        and StorageFailed after a failure; nothing is queued then.
        """
        if self.failed or self._closed is not None:
            raise StorageFailed("the log takes no more frames: it failed or was closed")
        size = frame_size(entries)
        active = self._place(size)
        if active.position == SEGMENT_HEADER_BYTES:
            self._first_time_us = time_us
        ticket = self.next_ticket
        self.next_ticket = ticket + 1
        self._queue.append(_Queued(ticket, active, active.position, size, entries, time_us))
        active.position += size
        active.last_time_us = time_us
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
            self._sealing.append(old)
        self._begin(spare)
        assert self._active is not None
        self._allocator.ensure()
        return self._active

    # -- committing --------------------------------------------------------------------------

    def _start_commit(self) -> None:
        self.busy = True
        frames, self._queue = self._queue, []
        writes: list[_Write] = []
        first = 0
        for index, frame in enumerate(frames, 1):
            if index == len(frames) or frames[index].segment is not frame.segment:
                writes.append(self._write(frames[first:index]))
                first = index
        sync = self.options.durability == "fsync"
        self._committer.submit(
            lambda: _write_all(self._disk, self._path, writes, sync),
            lambda _, error: self._committed(frames, error),
        )

    def _write(self, frames: list[_Queued]) -> _Write:
        """The bytes of frames that follow one another in one segment."""
        segment = frames[0].segment
        file = segment.file
        assert file is not None, "a segment with frames to be written is open"
        segment_id = segment.header.segment_id
        salt = self._salt if segment is self._active else segment_salt(segment_id)
        parts: list[bytes] = []
        spare = self._spare_names.pop(segment, None)
        before = None
        if spare is not None:
            segment.header = segment.header._replace(created_us=frames[0].time_us)
            parts.append(encode_segment_header(segment.header))
            if self.options.durability != "fsync" and self._catalog.segments:
                before = self._catalog.segments[-1].file
            self._catalog.add(segment)
        for frame in frames:
            lsn = segment.first_lsn + frame.position
            parts += frame_parts(
                frame.entries, lsn, segment_id, self._synced_lsn, frame.time_us, salt
            )
        position = 0 if spare is not None else frames[0].position
        return _Write(file, position, b"".join(parts), spare, segment.name, before)

    def _committed(self, frames: list[_Queued], error: Exception | None) -> None:
        if error is not None:
            self._fail("writing to the log failed", error)
            return
        self.busy = False
        if self.failed:
            return
        for frame in frames:
            self._index(frame)
        last = frames[-1]
        self.durable_ticket = last.ticket
        self.durable_lsn = last.segment.first_lsn + last.position + last.size
        if self.options.durability == "fsync":
            self._synced_lsn = self.durable_lsn
        if self._queue:
            self._start_commit()
        if self._sealing:
            self._finish_sealed()
        self.on_durable(self.durable_ticket)
        self._close_when_idle()

    def _index(self, frame: _Queued) -> None:
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
        """Sync what was written; for ``interval`` mode, called by its owner's timer."""
        active = self._active
        if self.failed or active is None or active.file is None:
            return
        lsn = self.durable_lsn
        if lsn <= max(self._synced_lsn, active.first_lsn):
            return
        self._committer.submit(active.file.sync, lambda _, error: self._synced(lsn, error))

    def _synced(self, lsn: int, error: Exception | None) -> None:
        if error is not None:
            self._fail("syncing the log failed", error)
        else:
            self._synced_lsn = max(self._synced_lsn, lsn)

    def _fail(self, what: str, error: Exception) -> None:
        """Acknowledge nothing any more."""
        if self.failed:
            return
        self.failed = True
        self._queue.clear()
        failure = StorageFailed(f"{what}: {error}; the broker stops and replays at its next start")
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
        self._finish_sealed()

    def seal_if_older(self, time_us: int) -> None:
        """Seal if the first frame of the active segment is ``seal_age_us`` old by broker time."""
        active = self._active
        if active is None or active.position == SEGMENT_HEADER_BYTES:
            return
        if time_us - self._first_time_us >= self.options.seal_age_us:
            self.seal()

    def _finish_sealed(self) -> None:
        while self._sealing and self._sealing[0].end_lsn <= self.durable_lsn:
            self._finish(self._sealing.pop(0))

    def _finish(self, segment: Segment) -> None:
        """Trim a complete segment and write its index, in the background."""
        self._finishing += 1

        def work() -> OSError | None:
            trim(self._disk, self._path, segment)
            return write_index(self._disk, self._path, segment)

        self._background.submit(work, lambda result, error: self._finished(segment, result, error))

    def _finished(
        self, segment: Segment, index_error: OSError | None, error: Exception | None
    ) -> None:
        self._finishing -= 1
        if error is not None:
            self._fail(f"trimming {segment.name} failed", error)
            return
        if index_error is None:
            self._catalog.sealed(segment)
            self._log.info("{name} is sealed", name=segment.name, event_id="segment-sealed")
        else:
            self._unindexed.append(segment)
            self._log.warn(
                "the index of {name} cannot be written: {error}; it stays in memory",
                name=segment.name,
                error=index_error,
                event_id="index-failed",
            )
        self._close_when_idle()

    # -- reading -----------------------------------------------------------------------------

    def plan_read(
        self, topic_id: int, partition: int, offset: int, max_bytes: int
    ) -> ReadPlan | None:
        """Plan to read the batch that holds ``offset`` and what follows it.

        Only durable batches are seen. None if the log holds no batch with the offset: see
        :meth:`next_readable`. Cheap; run the plan in another thread.
        """
        return self._catalog.plan_read(topic_id, partition, offset, max_bytes)

    def first_offset(self, topic_id: int, partition: int) -> int | None:
        """The lowest offset of a partition in the log, None if it has none there."""
        return self._catalog.first_offset(topic_id, partition)

    def next_readable(self, topic_id: int, partition: int, offset: int) -> int | None:
        """The lowest offset from ``offset`` on that the log holds, beyond what damage took."""
        return self._catalog.next_readable(topic_id, partition, offset)

    def time_of(self, topic_id: int, partition: int, offset: int) -> int | None:
        """Broker time at which the record was appended, None if the log does not hold it."""
        return self._catalog.time_of(topic_id, partition, offset)

    def segments(self) -> list[SegmentStatus]:
        """The segments that hold frames, oldest first."""
        return self._catalog.status()

    # -- closing -----------------------------------------------------------------------------

    def close(self, closed: Callable[[StorageFailed | None], None]) -> None:
        """Finish what is queued and in flight, sync, and call ``closed(error or None)``."""
        self._closed = closed
        self._allocator.closed = True
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._closed is None or self._is_closing:
            return
        if self.failed:
            self._is_closing = True
            self._closed(StorageFailed("the log failed before it was closed"))
        elif not (self.busy or self._queue or self._finishing or self._allocator.allocating):
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
            self._fail("syncing the log failed", error)
            self._closed(StorageFailed(f"syncing the log failed: {error}"))
            return
        self._active = None
        self._allocator.spares.clear()
        self._closed(None)
