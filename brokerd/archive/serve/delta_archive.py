# Tests: tests/archive/test_delta_archive.py
"""Implements `brokerd.archive.contract.view` on the Delta tables of an archive.

A refresh without a new version takes some microseconds. With a new version it reads the new
commits, and rebuilds the map of files, in the calling thread. A checksum verifies every byte before
use, so damage causes neither wrong records nor a crash.

An old version stays readable until vacuum deletes its files. Then reads raise ArchiveUnavailable,
and the caller refreshes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

import pyarrow as pa

from brokerd.archive.contract.layout import EVENTS, RECORDS
from brokerd.archive.contract.view import (
    ArchivedRows,
    ArchiveUnavailable,
    DamagedArchive,
    EventPlace,
    EventSlice,
)
from brokerd.archive.delta.log_files import Snapshot
from brokerd.archive.delta.log_reader import DeltaLog
from brokerd.archive.parquet.reader import ArchiveFile
from brokerd.archive.serve.event_search import event_files, search_events
from brokerd.archive.serve.file_cache import CoveredRanges, FileCache
from brokerd.archive.serve.file_map import FileMap, Piece, SharedFile
from brokerd.archive.serve.seek import offset_at_time, offset_of_size
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.lru import LruCache


class DeltaArchive:
    """Implements `brokerd.archive.contract.view.Archive`, for any number of threads.

    :param root: the address of the archive, which need not exist yet.
    """

    def __init__(self, root: Place, log_id: str) -> None:
        self.log_id = log_id
        self.open_files = FileCache(root / RECORDS.name)
        self.event_files = FileCache(root / EVENTS.name)
        self._records = DeltaLog(root / RECORDS.name, log_id)
        self._events = DeltaLog(root / EVENTS.name, log_id)
        self._lock = threading.Lock()
        """Is held during reads of the Delta logs."""
        self._seen: tuple[Snapshot, Snapshot | None] | None = None
        self._view: DeltaArchiveView | None = None

    def refresh(self) -> DeltaArchiveView | None:
        """Implements `brokerd.archive.contract.view.Archive.refresh`."""
        with self._lock:
            records = self._records.read()
            if records is None:
                self._view = None
                return None
            events = self._read_events()
            before, self._seen = self._seen, (records, events)
            if events is not None and (before is None or before[1] is not events):
                self.event_files.retain(events.files["path"])
            if self._view is not None and before is not None:
                if before[0] is records and before[1] is events:
                    return self._view
                if before[0] is records:
                    self._view = DeltaArchiveView(self, self._view.map, records, events)
                    return self._view
            self._view = DeltaArchiveView(self, FileMap(records.files), records, events)
            self.open_files.retain(records.files["path"])
            pa.default_memory_pool().release_unused()  # memory of reading the logs
            return self._view

    def _read_events(self) -> Snapshot | None:
        """Read the table ``events``. If it is unavailable, return None, and serve only records."""
        try:
            return self._events.read()
        except ArchiveUnavailable:
            return None


class DeltaArchiveView:
    """Implements `brokerd.archive.contract.view.ArchiveView`."""

    def __init__(
        self, archive: DeltaArchive, files: FileMap, records: Snapshot, events: Snapshot | None
    ) -> None:
        self._open_files = archive.open_files
        self._open_event_files = archive.event_files
        self._events = events
        self.map = files
        self.log_id = archive.log_id
        self.archive_id, self.records_lsn, self.segment_hash = records.state
        self.version = records.version
        self.events_lsn = 0 if events is None else events.state.lsn
        self.max_topic_id = files.max_topic_id
        self.files = files.files
        self.bytes = files.bytes

    # -- `ArchiveView` -----------------------------------------------------------------------

    def covers(self, topic_id: int, partition: int, first: int, end: int) -> bool:
        """Implements `ArchiveView.covers`. Also checks that files exist with sound footers."""
        while first < end:
            piece = self._find(topic_id, partition, first)
            if piece is None:
                return False
            try:
                self._open_files.check(self.map.path(piece.row), self.map.size(piece.row))
            except DamagedArchive as error:
                raise _within(error, piece) from None
            first = piece.end
        return True

    def read(
        self, topic_id: int, partition: int, offset: int, max_bytes: int
    ) -> ArchivedRows | None:
        """Implements `ArchiveView.read`. Reads one row group at most."""
        piece = self._find(topic_id, partition, offset)
        if piece is None:
            return None
        try:
            return self.open(piece).read(topic_id, partition, offset, max_bytes)
        except DamagedArchive as error:
            raise _within(error, piece) from None

    def offset_at_time(self, topic_id: int, partition: int, time_us: int) -> int | None:
        """Implements `ArchiveView.offset_at_time`."""
        return offset_at_time(self, topic_id, partition, time_us)

    def offset_of_size(
        self, topic_id: int, partition: int, below: int, max_bytes: int
    ) -> int | None:
        """Implements `ArchiveView.offset_of_size`, exact to one record."""
        return offset_of_size(self, topic_id, partition, below, max_bytes)

    # -- `EventView` --------------------------------------------------------------------------

    def record_lsn(self, topic_id: int, partition: int, offset: int) -> int:
        """Implements `EventView.record_lsn`."""
        piece = self._find(topic_id, partition, offset)
        return 0 if piece is None else self.open(piece).lsn_before(topic_id, partition, offset)

    def events(
        self, topic_id: int, partition: int, offset: int, from_lsn: int, place: EventPlace
    ) -> EventSlice:
        """Implements `EventView.events`."""
        files = [] if self._events is None else event_files(self._events.files)
        open_file = self._open_event_files.open
        return search_events(files, open_file, topic_id, partition, offset, from_lsn, place)

    # -- `brokerd.archive.serve.seek.Files` ----------------------------------------------------

    @property
    def sizes(self) -> LruCache[int]:
        """Return the cache of counted bytes."""
        return self._open_files.sizes

    def path(self, row: int) -> str:
        """Return the path of a file."""
        return self.map.path(row)

    def content(self, row: int) -> int:
        """Return the bytes of keys, values and metadata in a file."""
        return self.map.content(row)

    def last_time_us(self, row: int) -> int:
        """Return the largest append time in a file; -1 if it has no rows."""
        return self.map.last_time_us(row)

    def open(self, piece: Piece) -> ArchiveFile:
        """Open a piece's file. Raises the errors of `brokerd.archive.parquet.reader.open_file`."""
        try:
            return self._open_files.open(self.map.path(piece.row), self.map.size(piece.row))
        except DamagedArchive as error:
            raise _within(error, piece) from None

    def pieces(self, topic_id: int, partition: int) -> Sequence[Piece]:
        """Return the covered pieces of a partition by offset. No piece lies within another."""
        own = self.map.pieces(topic_id, partition)
        shared = self.map.shared(topic_id, partition)
        if not shared:
            return own
        found = [*own, *chain.from_iterable(self._parts(s, topic_id, partition) for s in shared)]
        found.sort(key=lambda piece: (piece.first, -piece.end))
        ends = accumulate((piece.end for piece in found), max, initial=-1)
        return [piece for piece, reached in zip(found, ends, strict=False) if piece.end > reached]

    def _parts(self, shared: SharedFile, topic_id: int, partition: int) -> Iterator[Piece]:
        """Yield the covered pieces of a partition in a shared file."""
        for found in self._ranges(shared).of(topic_id, partition):
            yield Piece(found.first, found.end, shared.row, True)

    def _ranges(self, shared: SharedFile) -> CoveredRanges:
        return self._open_files.ranges(self.map.path(shared.row), self.map.size(shared.row))

    def _find(self, topic_id: int, partition: int, offset: int) -> Piece | None:
        """Return the piece that covers an offset, or None."""
        piece = self.map.find(topic_id, partition, offset)
        return piece or self._find_shared(topic_id, partition, offset)

    def _find_shared(self, topic_id: int, partition: int, offset: int) -> Piece | None:
        """Return the piece of a shared file that covers an offset, or None.

        Files are in the order of writing. A partition's offsets follow it unless files were merged.
        So a binary search examines the likely half first.
        """
        candidates, passed_over = self.map.shared(topic_id, partition), list[SharedFile]()
        problem: DamagedArchive | ArchiveUnavailable | None = None
        while candidates or passed_over:
            if not candidates:
                candidates, passed_over = passed_over, []
            at = len(candidates) // 2
            shared, before, after = candidates[at], candidates[:at], candidates[at + 1 :]
            candidates = before + after
            try:
                ranges = self._ranges(shared)
            except (DamagedArchive, ArchiveUnavailable) as error:
                problem = error
                continue
            found = ranges.find(topic_id, partition, offset)
            if found is not None:
                return Piece(found.first, found.end, shared.row, True)
            side = ranges.side(topic_id, partition, offset)
            if side < 0:
                candidates, passed_over = before, passed_over + after
            elif side > 0:
                candidates, passed_over = after, passed_over + before
        if isinstance(problem, DamagedArchive):
            end = self._next_known(topic_id, partition, offset)
            raise DamagedArchive(str(problem), offset, end)
        if problem is not None:
            raise problem
        return None

    def _next_known(self, topic_id: int, partition: int, offset: int) -> int:
        """Return the next offset that a readable file covers, or ``offset`` + 1."""
        found = [piece.first for piece in self.map.pieces(topic_id, partition)]
        for shared in self.map.shared(topic_id, partition):
            try:
                found += [part.first for part in self._parts(shared, topic_id, partition)]
            except (DamagedArchive, ArchiveUnavailable):
                continue  # the file is unreadable
        return min((first for first in found if first > offset), default=offset + 1)


def _within(error: DamagedArchive, piece: Piece) -> DamagedArchive:
    """Return an error that is limited to the offsets of a piece."""
    first, end = max(error.first, piece.first), min(error.end, piece.end)
    return DamagedArchive(str(error), first, end)
