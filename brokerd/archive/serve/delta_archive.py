# Tests: tests/archive/test_delta_archive.py
"""The archive as the broker reads it: `brokerd.archive.contract.view`, from the files of the
tables.

A look at an archive that did not change takes some microseconds; one at a new version reads the
commits that came, and makes the map of files anew, in the calling thread. Of what it reads nothing
is believed that a checksum does not prove, so that neither wrong records nor a crash come of it.

A file that a newer version replaced is read as long as it is there; once vacuum took it, an old
version is unavailable. Who asked looks for the newest one and asks that, if it is one to rely on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

import pyarrow as pa

from brokerd.archive.contract.layout import EVENTS, RECORDS
from brokerd.archive.contract.view import ArchivedRows, ArchiveUnavailable, DamagedArchive
from brokerd.archive.delta.log_files import Snapshot
from brokerd.archive.delta.log_reader import DeltaLog
from brokerd.archive.parquet.reader import ArchiveFile
from brokerd.archive.serve.file_cache import CoveredRanges, FileCache
from brokerd.archive.serve.file_map import FileMap, Piece, SharedFile
from brokerd.archive.serve.seek import offset_at_time, offset_of_size
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.lru import LruCache


def open_archive(root: Place, log_id: str) -> DeltaArchive:
    """The archive of a log at a place, whether or not anything is there yet."""
    return DeltaArchive(root, log_id)


class DeltaArchive:
    """`brokerd.archive.contract.view.Archive`, for any number of threads."""

    def __init__(self, root: Place, log_id: str) -> None:
        self.log_id = log_id
        self.open_files = FileCache(root / RECORDS.name)
        self._records = DeltaLog(root / RECORDS.name, log_id)
        self._events = DeltaLog(root / EVENTS.name, log_id)
        self._lock = threading.Lock()
        """Held while the logs are read."""
        self._seen: tuple[Snapshot, Snapshot | None] | None = None
        self._view: DeltaArchiveView | None = None

    def refresh(self) -> DeltaArchiveView | None:
        """The newest version: see `brokerd.archive.contract.view.Archive.refresh`."""
        with self._lock:
            records = self._records.read()
            if records is None:
                self._view = None
                return None
            events = self._read_events()
            before, self._seen = self._seen, (records, events)
            if self._view is not None and before is not None:
                if before[0] is records and before[1] is events:
                    return self._view
                if before[0] is records:
                    self._view = DeltaArchiveView(self, self._view.map, records, events)
                    return self._view
            self._view = DeltaArchiveView(self, FileMap(records.files), records, events)
            pa.default_memory_pool().release_unused()  # what reading the logs took
            return self._view

    def _read_events(self) -> Snapshot | None:
        """The table of events, None while it cannot be read: records are served, and no more."""
        try:
            return self._events.read()
        except ArchiveUnavailable:
            return None


class DeltaArchiveView:
    """`brokerd.archive.contract.view.ArchiveView`."""

    def __init__(
        self, archive: DeltaArchive, files: FileMap, records: Snapshot, events: Snapshot | None
    ) -> None:
        self._open_files = archive.open_files
        self.map = files
        self.log_id = archive.log_id
        self.archive_id, self.records_lsn, self.segment_mark = records.state
        self.version = records.version
        self.events_lsn = 0 if events is None else events.state.lsn
        self.max_topic_id = files.max_topic_id
        self.files = files.files
        self.bytes = files.bytes

    # -- what `ArchiveView` has --------------------------------------------------------------

    def covers(self, topic_id: int, partition: int, first: int, end: int) -> bool:
        """`ArchiveView.covers`: also looks whether files are there, and their footers sound."""
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
        """`ArchiveView.read`: of one row group at most."""
        piece = self._find(topic_id, partition, offset)
        if piece is None:
            return None
        try:
            return self.open(piece).read(topic_id, partition, offset, max_bytes)
        except DamagedArchive as error:
            raise _within(error, piece) from None

    def offset_at_time(self, topic_id: int, partition: int, time_us: int) -> int | None:
        """`ArchiveView.offset_at_time`."""
        return offset_at_time(self, topic_id, partition, time_us)

    def offset_of_size(
        self, topic_id: int, partition: int, below: int, max_bytes: int
    ) -> int | None:
        """`ArchiveView.offset_of_size`, to the record."""
        return offset_of_size(self, topic_id, partition, below, max_bytes)

    # -- its files -----------------------------------------------------------------------------

    @property
    def sizes(self) -> LruCache[int]:
        """Bytes that were counted before: `brokerd.archive.serve.seek`."""
        return self._open_files.sizes

    def path(self, row: int) -> str:
        """The path of a file."""
        return self.map.path(row)

    def content(self, row: int) -> int:
        """Bytes of keys, values and metadata of all records in a file."""
        return self.map.content(row)

    def last_time_us(self, row: int) -> int:
        """The largest append time of a record in a file; -1: it has none."""
        return self.map.last_time_us(row)

    def open(self, piece: Piece) -> ArchiveFile:
        """The file of a piece. Raises as `brokerd.archive.parquet.reader.open_file`."""
        try:
            return self._open_files.open(self.map.path(piece.row), self.map.size(piece.row))
        except DamagedArchive as error:
            raise _within(error, piece) from None

    def pieces(self, topic_id: int, partition: int) -> Sequence[Piece]:
        """What covers a partition, by offset; no piece lies within another."""
        own = self.map.pieces(topic_id, partition)
        shared = self.map.shared(topic_id, partition)
        if not shared:
            return own
        found = [*own, *chain.from_iterable(self._parts(s, topic_id, partition) for s in shared)]
        found.sort(key=lambda piece: (piece.first, -piece.end))
        ends = accumulate((piece.end for piece in found), max, initial=-1)
        return [piece for piece, reached in zip(found, ends, strict=False) if piece.end > reached]

    def _parts(self, shared: SharedFile, topic_id: int, partition: int) -> Iterator[Piece]:
        """What a shared file covers of a partition."""
        for found in self._ranges(shared).of(topic_id, partition):
            yield Piece(found.first, found.end, shared.row, True)

    def _ranges(self, shared: SharedFile) -> CoveredRanges:
        return self._open_files.ranges(self.map.path(shared.row), self.map.size(shared.row))

    def _find(self, topic_id: int, partition: int, offset: int) -> Piece | None:
        """What covers an offset."""
        piece = self.map.find(topic_id, partition, offset)
        return piece or self._find_shared(topic_id, partition, offset)

    def _find_shared(self, topic_id: int, partition: int, offset: int) -> Piece | None:
        """The part of a shared file that covers an offset.

        Files come in the order in which they were written, and so do a partition's offsets, unless
        files were merged: the one in the middle tells in which half to look first.
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
        """The first offset above one that a file covers that can be read; at least the next one."""
        found = [piece.first for piece in self.map.pieces(topic_id, partition)]
        for shared in self.map.shared(topic_id, partition):
            try:
                found += [part.first for part in self._parts(shared, topic_id, partition)]
            except (DamagedArchive, ArchiveUnavailable):
                continue  # which is why somebody asks
        return min((first for first in found if first > offset), default=offset + 1)


def _within(error: DamagedArchive, piece: Piece) -> DamagedArchive:
    """The same problem, said of offsets that the damaged file covers."""
    first, end = max(error.first, piece.first), min(error.end, piece.end)
    return DamagedArchive(str(error), first, end)
