# Tests: tests/wal/test_reader.py
"""All segments of a log and, for every partition, which of them hold it.

Memory: 12 bytes for each pair of segment and partition that it holds, 8 for each segment, plus the
indexes of the sealed segments read last (``OPEN_SEGMENTS_MAX`` of them and ``OPEN_INDEX_BYTES`` at
most, or one that is larger, besides those that reads under way use), plus the indexes of segments
not sealed yet. Nothing grows with the number of records.

All of it belongs to one thread, the reactor's. Only plans run in others. A running plan calls
:meth:`Catalog.open`, which may have to make an index again, and reads segments and their growing
indexes: a row of those is complete once its last column is there.
"""

from __future__ import annotations

import errno
import os
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from brokerd.errors import DamagedData, RecordRemoved
from brokerd.wal.committer import Mutex
from brokerd.wal.disk import Disk, File
from brokerd.wal.index_files import load_index
from brokerd.wal.read.reader import PlannedRows, ReadPlan
from brokerd.wal.read.seek import OffsetPlan, Part, SizePlan, TimePlan
from brokerd.wal.segment import Segment, SegmentStatus
from brokerd.walformat.index import GrowingIndex, PartitionSpan, Rows, SegmentIndex

OPEN_SEGMENTS_MAX = 64
OPEN_INDEX_BYTES = 32 << 20
SAYS_NOTHING_OF_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

Opened = tuple[File, SegmentIndex]
_NOWHERE = array("q"), array("I")


class Catalog:
    """Finds batches.

    ``rebuild(segment)`` must make the segment's index again, and should write its file; it blocks
    and runs in the thread of a read. ``open_later(segment)`` must call :meth:`open` in another
    thread, soon.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        rebuild: Callable[[Segment], GrowingIndex],
        open_later: Callable[[Segment], None],
        make_lock: Callable[[], Mutex] = threading.Lock,
    ) -> None:
        self._disk = disk
        self._path = path
        self._rebuild = rebuild
        self._open_later = open_later
        self._segments: dict[int, Segment] = {}
        self._began_us = array("q")
        """By ordinal: broker time of a segment's first frame, or of one before it."""
        self.newest: Segment | None = None
        """The last that was added."""
        self._where: dict[tuple[int, int], tuple[array[int], array[int]]] = {}
        self._open: OrderedDict[Segment, Opened] = OrderedDict()
        self._open_bytes = 0
        """What the indexes in ``_open`` take."""
        self._lock = threading.Lock()
        """Guards ``_open`` and ``_open_bytes``; held for moments only."""
        self.opening = make_lock()
        """Held while a sealed segment is opened or deleted, which the reactor never does."""

    @property
    def segments(self) -> list[Segment]:
        """Those that are not deleted, in order."""
        return list(self._segments.values())

    def add(self, segment: Segment, spans: Iterable[PartitionSpan] = ()) -> None:
        """Add the newest segment, with what it holds already."""
        segment.ordinal = len(self._began_us)
        before_us = self._began_us[-1] if self._began_us else 0
        self._began_us.append(max(segment.header.created_us, before_us))
        self._segments[segment.ordinal] = self.newest = segment
        for span in spans:
            self.begins(segment, span.topic_id, span.partition, span.first_offset)

    def begins(self, segment: Segment, topic_id: int, partition: int, first_offset: int) -> None:
        """A segment got its first batch of a partition; segments come in order."""
        where = self._where.get((topic_id, partition))
        if where is None:
            where = self._where[topic_id, partition] = (array("q"), array("I"))
        where[0].append(first_offset)
        where[1].append(segment.ordinal)

    def remove(self, segment: Segment, partitions: Iterable[tuple[int, int]]) -> None:
        """Forget a segment with batches of these partitions; plans that want it find it gone."""
        segment.deleted = True
        del self._segments[segment.ordinal]
        for key in partitions:
            where = self._where.get(key)
            at = 0 if where is None else bisect_left(where[1], segment.ordinal)
            if where is not None and at < len(where[1]) and where[1][at] == segment.ordinal:
                del where[0][at], where[1][at]
                if not where[0]:
                    del self._where[key]

    def status(self) -> list[SegmentStatus]:
        return [
            SegmentStatus(
                segment.name,
                segment.first_lsn,
                segment.end_lsn,
                segment.position if segment.sealed else segment.header.size,
                segment.sealed and segment.growing is None,
                segment.header.segment_id,
            )
            for segment in self.segments
        ]

    def time_of(self, topic_id: int, partition: int, offset: int) -> int | None:
        """Broker time of the frame that appended the record, None if it is not in the log.

        Never waits for the disk: while the index that tells is not at hand it is opened elsewhere,
        and the answer is the time at which the record's segment began, which is earlier.
        """
        segment = self._segment_of(topic_id, partition, offset)
        if segment is None:
            return None
        opened = self._opened(segment)
        if opened is None:
            self._open_later(segment)
            return segment.header.created_us
        rows = self._rows(segment, opened[1], topic_id, partition)
        row = rows.find(offset)
        return None if row < 0 else rows.time_us[row]

    def plan_read(
        self, topic_id: int, partition: int, offset: int, max_bytes: int
    ) -> ReadPlan | None:
        """Plan to read the batch that holds ``offset`` and what follows it, as one run of offsets.

        None if no batch in the log holds the offset. Cheap: segments whose index is not at hand
        are opened by the plan's ``run``, which also may find that none of them holds it.
        """
        where = self._where.get((topic_id, partition))
        at = -1 if where is None else bisect_right(where[0], offset) - 1
        if where is None or at < 0:
            return None
        pieces: list[Callable[[], PlannedRows]] = []
        first, left = offset, max_bytes
        for ordinal in where[1][at : at + OPEN_SEGMENTS_MAX]:
            segment = self._segments.get(ordinal)
            if segment is None:  # deleted, and its index did not know this partition
                break
            opened = self._opened(segment)
            if opened is None:
                pieces.append(partial(self._open_rows, segment, topic_id, partition, first))
            else:
                rows = self._rows(segment, opened[1], topic_id, partition)
                piece = _planned(segment, opened[0], rows, first)
                if piece.row < 0:
                    return None
                pieces.append(partial(_same, piece))
                left -= piece.span_bytes
            first = -1
            if left <= 0:
                break
        return ReadPlan(topic_id, partition, pieces, max_bytes)

    def plan_offset_at_time(self, topic_id: int, partition: int, time_us: int) -> OffsetPlan:
        """Plan to find the first offset appended at or after a time."""
        firsts, ordinals = self._where.get((topic_id, partition), _NOWHERE)
        stop = bisect_left(ordinals, time_us, key=self._began_us.__getitem__)
        first = max(0, stop - 1)
        while first > 0 and not self._knows_its_time(ordinals[first]):
            first -= 1
        parts = self._parts(topic_id, partition, firsts[first:stop], ordinals[first:stop])
        return TimePlan(parts, firsts[stop] if stop < len(firsts) else None, time_us)

    def _knows_its_time(self, ordinal: int) -> bool:
        segment = self._segments.get(ordinal)
        return segment is not None and segment.header.created_us == self._began_us[ordinal]

    def plan_offset_of_size(self, topic_id: int, partition: int, max_bytes: int) -> SizePlan:
        """Plan to find the first offset from which on there are at most ``max_bytes``."""
        firsts, ordinals = self._where.get((topic_id, partition), _NOWHERE)
        parts = self._parts(topic_id, partition, firsts[::-1], ordinals[::-1])
        return SizePlan((topic_id, partition), parts, max_bytes)

    def _parts(
        self, topic_id: int, partition: int, firsts: array[int], ordinals: array[int]
    ) -> Iterator[Part]:
        """What segments hold of a partition; a thread may go through it, once."""
        segments = list(map(self._segments.get, ordinals))
        return (
            Part(
                first,
                partial(self._load_rows, segment, topic_id, partition),
                segment.sizes,
                segment.growing is None,
            )
            for first, segment in zip(firsts, segments, strict=True)
            if segment is not None
        )

    def _load_rows(self, segment: Segment, topic_id: int, partition: int) -> Rows:
        index = segment.growing or self.open(segment)[1]
        return self._rows(segment, index, topic_id, partition)

    def _segment_of(self, topic_id: int, partition: int, offset: int) -> Segment | None:
        """The segment that holds an offset, if any does."""
        where = self._where.get((topic_id, partition))
        at = -1 if where is None else bisect_right(where[0], offset) - 1
        return None if where is None or at < 0 else self._segments.get(where[1][at])

    def _rows(self, segment: Segment, index: SegmentIndex, topic_id: int, partition: int) -> Rows:
        rows = index.rows(topic_id, partition)
        if rows is None:
            raise DamagedData(
                f"the index of {segment.name} lost topic id {topic_id} partition {partition}"
            )
        return rows

    def _open_rows(
        self, segment: Segment, topic_id: int, partition: int, first: int
    ) -> PlannedRows:
        file, index = self.open(segment)
        return _planned(segment, file, self._rows(segment, index, topic_id, partition), first)

    # -- opening -----------------------------------------------------------------------------

    def _opened(self, segment: Segment) -> Opened | None:
        """A segment's file and index when both are at hand."""
        growing, file = segment.growing, segment.file  # `sealed` may take them away meanwhile
        if growing is not None and file is not None:
            return file, growing
        with self._lock:
            found = self._open.get(segment)
            if found is not None:
                self._open.move_to_end(segment)
        return found

    def open(self, segment: Segment) -> Opened:
        """Open a segment and read its index, made again if need be. Blocks; in any thread.

        Raises DamagedData, OSError, and RecordRemoved for a segment that was deleted.
        """
        with self.opening:
            found = self._opened(segment)
            if found is not None:
                return found
            if segment.deleted:
                raise RecordRemoved(f"{segment.name} was deleted: nobody needs it any more")
            try:
                return self._open_now(segment)
            except (DamagedData, OSError) as error:
                if getattr(error, "errno", None) in SAYS_NOTHING_OF_THE_FILE:
                    raise
                return self._keep(segment, self._rebuild(segment))

    def _open_now(self, segment: Segment) -> Opened:
        return self._keep(segment, segment.growing or load_index(self._disk, self._path, segment))

    def _keep(self, segment: Segment, index: SegmentIndex) -> Opened:
        opened = self._disk.open(os.path.join(self._path, segment.name)), index
        with self._lock:
            self._forget(segment)
            self._open[segment] = opened
            self._open_bytes += index.size
            while len(self._open) > 1 and (
                len(self._open) > OPEN_SEGMENTS_MAX or self._open_bytes > OPEN_INDEX_BYTES
            ):
                self._forget(next(iter(self._open)))
        return opened

    def _forget(self, segment: Segment) -> None:
        opened = self._open.pop(segment, None)
        if opened is not None:
            self._open_bytes -= opened[1].size

    def sealed(self, segment: Segment) -> None:
        """The segment's index file is in place: use it from now on."""
        segment.growing = None
        segment.file = None
        self.let_go(segment)

    def let_go(self, segment: Segment) -> None:
        """Keep neither the file nor the index of a segment open."""
        with self._lock:
            self._forget(segment)


def _planned(segment: Segment, file: File, rows: Rows, first: int) -> PlannedRows:
    """The rows of a segment from the one that holds ``first`` on (-1 if none does), or all."""
    row = 0 if first < 0 else rows.find(first)
    segment_id = segment.header.segment_id
    return PlannedRows(file, segment.name, segment_id, rows, row, len(rows.base_offset))


def _same(piece: PlannedRows) -> PlannedRows:
    return piece
