# Tests: tests/wal/test_reader.py
"""Finds the segments that hold a partition, and plans reads from them.

Memory: 12 bytes for each pair of segment and partition, and 8 for each segment. The catalog caches
the files and indexes of at most ``OPEN_SEGMENTS_MAX`` sealed segments. The indexes take at most
``OPEN_INDEX_BYTES``, or one larger index. Segments that are not sealed have their indexes in
memory. Nothing grows with the number of records.

The catalog belongs to the reactor's thread. A plan that runs in another thread calls only
:meth:`Catalog.open`, and reads segments and their indexes in memory. A row of such an index is
complete once its last column is there.
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
from brokerd.wal.disk import Disk, File
from brokerd.wal.index_files import load_index
from brokerd.wal.read.reader import ReadPlan, RowRange
from brokerd.wal.read.seek import OffsetPlan, SegmentPart, SizePlan, TimePlan
from brokerd.wal.segment import Segment, SegmentStatus
from brokerd.walformat.index import MemoryIndex, PartitionSpan, Rows, SegmentIndex
from brokerd.worker_pool import Mutex

OPEN_SEGMENTS_MAX = 64
OPEN_INDEX_BYTES = 32 << 20

_RESOURCE_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of the process, which do not mean that an index is bad."""

OpenSegment = tuple[File, SegmentIndex]
_NO_SEGMENTS = array("q"), array("I")


class Catalog:
    """All segments of a log.

    ``rebuild(segment)`` makes the index of a segment again and should write its file. It blocks,
    and runs in the thread of a read. ``open_later(segment)`` has another thread call :meth:`open`.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        rebuild: Callable[[Segment], MemoryIndex],
        open_later: Callable[[Segment], None],
        make_lock: Callable[[], Mutex] = threading.Lock,
    ) -> None:
        self._disk = disk
        self._path = path
        self._rebuild = rebuild
        self._open_later = open_later
        self._segments: dict[int, Segment] = {}
        """The segments by ordinal, without deleted ones."""
        self._start_times_us = array("q")
        """By ordinal: broker time of the first frame, or of an earlier one if that is lost."""
        self.newest: Segment | None = None
        """The segment that was added last."""
        self._locations: dict[tuple[int, int], tuple[array[int], array[int]]] = {}
        """By partition: first offsets, and ordinals of the segments with them."""
        self._open: OrderedDict[Segment, OpenSegment] = OrderedDict()
        self._open_bytes = 0
        """Bytes of the indexes in ``_open``."""
        self._lock = threading.Lock()
        """Guards ``_open`` and ``_open_bytes``, for moments only."""
        self.open_lock = make_lock()
        """Held while a sealed segment is opened or deleted. The reactor never takes it."""

    @property
    def segments(self) -> list[Segment]:
        """The segments in order, without deleted ones."""
        return list(self._segments.values())

    def add(self, segment: Segment, spans: Iterable[PartitionSpan] = ()) -> None:
        """Add the newest segment, which already holds ``spans``."""
        segment.ordinal = len(self._start_times_us)
        before_us = self._start_times_us[-1] if self._start_times_us else 0
        self._start_times_us.append(max(segment.header.created_us, before_us))
        self._segments[segment.ordinal] = self.newest = segment
        for span in spans:
            self.add_partition(segment, span.topic_id, span.partition, span.first_offset)

    def add_partition(
        self, segment: Segment, topic_id: int, partition: int, first_offset: int
    ) -> None:
        """Note the first batch of a partition in a segment. Segments come in order."""
        location = self._locations.get((topic_id, partition))
        if location is None:
            location = self._locations[topic_id, partition] = (array("q"), array("I"))
        location[0].append(first_offset)
        location[1].append(segment.ordinal)

    def remove(self, segment: Segment, partitions: Iterable[tuple[int, int]]) -> None:
        """Remove a segment with batches of these partitions. Plans that open it fail."""
        segment.deleted = True
        del self._segments[segment.ordinal]
        for key in partitions:
            firsts, ordinals = self._locations.get(key, _NO_SEGMENTS)
            at = bisect_left(ordinals, segment.ordinal)
            if at < len(ordinals) and ordinals[at] == segment.ordinal:
                del firsts[at], ordinals[at]
                if not firsts:
                    del self._locations[key]

    def status(self) -> list[SegmentStatus]:
        return [
            SegmentStatus(
                segment.name,
                segment.first_lsn,
                segment.end_lsn,
                segment.position if segment.sealed else segment.header.size,
                segment.sealed and segment.memory_index is None,
                segment.header.segment_id,
                segment.header.created_us,
            )
            for segment in self.segments
        ]

    def time_of(self, topic_id: int, partition: int, offset: int) -> int | None:
        """Return the broker time of the frame that appended a record, None if it is not here.

        Does not wait for the disk. If the index is not in memory, the answer is the earlier time
        at which the segment began, and another thread opens the index.
        """
        firsts, ordinals = self._locations.get((topic_id, partition), _NO_SEGMENTS)
        at = bisect_right(firsts, offset) - 1
        segment = self._segments.get(ordinals[at]) if at >= 0 else None
        if segment is None:
            return None
        cached = self._cached(segment)
        if cached is None:
            self._open_later(segment)
            return segment.header.created_us
        rows = _rows(segment, cached[1], topic_id, partition)
        row = rows.find(offset)
        return None if row < 0 else rows.time_us[row]

    def plan_read(
        self, topic_id: int, partition: int, offset: int, max_bytes: int
    ) -> ReadPlan | None:
        """Plan to read the batch with ``offset`` and the batches that follow it without a gap.

        Returns None if no batch in the log holds the offset. The plan's ``run`` opens segments
        whose index is not in memory. It may then find that no batch holds the offset.
        """
        firsts, ordinals = self._locations.get((topic_id, partition), _NO_SEGMENTS)
        at = bisect_right(firsts, offset) - 1
        if at < 0:
            return None
        ranges: list[Callable[[], RowRange]] = []
        first, left = offset, max_bytes
        for ordinal in ordinals[at : at + OPEN_SEGMENTS_MAX]:
            segment = self._segments.get(ordinal)
            if segment is None:  # deleted, and its index did not name this partition
                break
            cached = self._cached(segment)
            if cached is None:
                ranges.append(partial(self._open_range, segment, topic_id, partition, first))
            else:
                found = _row_range(segment, cached, topic_id, partition, first)
                if found.row < 0:
                    return None
                ranges.append(partial(_row_range, segment, cached, topic_id, partition, first))
                left -= found.span_bytes
            first = -1
            if left <= 0:
                break
        return ReadPlan(topic_id, partition, ranges, max_bytes)

    def lsn_before(self, topic_id: int, partition: int, offset: int) -> int:
        """Return an LSN that is not above that of a record: the beginning of its segment.

        Returns 0 if no segment has the record or an earlier one of its partition.
        """
        firsts, ordinals = self._locations.get((topic_id, partition), _NO_SEGMENTS)
        at = bisect_right(firsts, offset) - 1
        segment = self._segments.get(ordinals[at]) if at >= 0 else None
        return 0 if segment is None else segment.first_lsn

    def plan_offset_at_time(self, topic_id: int, partition: int, time_us: int) -> OffsetPlan:
        """Plan to find the first offset appended at or after a time."""
        firsts, ordinals = self._locations.get((topic_id, partition), _NO_SEGMENTS)
        stop = bisect_left(ordinals, time_us, key=self._start_times_us.__getitem__)
        first = max(0, stop - 1)
        while first > 0 and not self._has_own_time(ordinals[first]):
            first -= 1
        parts = self._parts(topic_id, partition, firsts[first:stop], ordinals[first:stop])
        return TimePlan(parts, firsts[stop] if stop < len(firsts) else None, time_us)

    def _has_own_time(self, ordinal: int) -> bool:
        """Whether the header of a segment still has its time."""
        segment = self._segments.get(ordinal)
        return segment is not None and segment.header.created_us == self._start_times_us[ordinal]

    def plan_offset_of_size(self, topic_id: int, partition: int, max_bytes: int) -> SizePlan:
        """Plan to find the first offset from which on there are at most ``max_bytes``."""
        firsts, ordinals = self._locations.get((topic_id, partition), _NO_SEGMENTS)
        parts = self._parts(topic_id, partition, firsts[::-1], ordinals[::-1])
        return SizePlan((topic_id, partition), parts, max_bytes)

    def _parts(
        self, topic_id: int, partition: int, firsts: array[int], ordinals: array[int]
    ) -> Iterator[SegmentPart]:
        """Yield what each segment holds of a partition. One thread may iterate, once."""
        segments = list(map(self._segments.get, ordinals))
        return (
            SegmentPart(
                first,
                partial(self._load_rows, segment, topic_id, partition),
                segment.sizes,
                segment.memory_index is None,
            )
            for first, segment in zip(firsts, segments, strict=True)
            if segment is not None
        )

    def _load_rows(self, segment: Segment, topic_id: int, partition: int) -> Rows:
        index = segment.memory_index or self.open(segment)[1]
        return _rows(segment, index, topic_id, partition)

    def _open_range(self, segment: Segment, topic_id: int, partition: int, first: int) -> RowRange:
        return _row_range(segment, self.open(segment), topic_id, partition, first)

    # -- opening -----------------------------------------------------------------------------

    def _cached(self, segment: Segment) -> OpenSegment | None:
        """Return a segment's file and index if both are open."""
        index, file = segment.memory_index, segment.file  # `complete` may clear them meanwhile
        if index is not None and file is not None:
            return file, index
        with self._lock:
            cached = self._open.get(segment)
            if cached is not None:
                self._open.move_to_end(segment)
        return cached

    def open(self, segment: Segment) -> OpenSegment:
        """Open a segment and load its index, or make the index again. Blocks, in any thread.

        Raises DamagedData, OSError, and RecordRemoved for a deleted segment.
        """
        with self.open_lock:
            cached = self._cached(segment)
            if cached is not None:
                return cached
            if segment.deleted:
                raise RecordRemoved(f"{segment.name} is deleted")
            try:
                index = segment.memory_index or load_index(self._disk, self._path, segment)
                return self._cache(segment, index)
            except (DamagedData, OSError) as error:
                if getattr(error, "errno", None) in _RESOURCE_ERRORS:
                    raise
                return self._cache(segment, self._rebuild(segment))

    def _cache(self, segment: Segment, index: SegmentIndex) -> OpenSegment:
        opened = self._disk.open(os.path.join(self._path, segment.name)), index
        with self._lock:
            self._drop(segment)
            self._open[segment] = opened
            self._open_bytes += index.size
            while len(self._open) > 1 and (
                len(self._open) > OPEN_SEGMENTS_MAX or self._open_bytes > OPEN_INDEX_BYTES
            ):
                self._drop(next(iter(self._open)))
        return opened

    def _drop(self, segment: Segment) -> None:
        cached = self._open.pop(segment, None)
        if cached is not None:
            self._open_bytes -= cached[1].size

    def complete(self, segment: Segment) -> None:
        """Use the index file of a segment from now on."""
        segment.memory_index = None
        segment.file = None
        self.evict(segment)

    def drop_files(self) -> None:
        """Drop all open files. Each closes when its last reader ends; a later read opens it again.

        Call this only when no frame is left to be written.
        """
        for segment in self._segments.values():
            segment.file = None
        with self._lock:
            self._open.clear()
            self._open_bytes = 0

    def evict(self, segment: Segment) -> None:
        """Drop the open file and index of a segment."""
        with self._lock:
            self._drop(segment)


def _rows(segment: Segment, index: SegmentIndex, topic_id: int, partition: int) -> Rows:
    """Return the batches of a partition. Raises DamagedData if the index has none."""
    rows = index.rows(topic_id, partition)
    if rows is None:
        raise DamagedData(
            f"the index of {segment.name} lost topic id {topic_id} partition {partition}"
        )
    return rows


def _row_range(
    segment: Segment, opened: OpenSegment, topic_id: int, partition: int, first: int
) -> RowRange:
    """Return the rows from the batch with ``first`` on, or all rows if ``first`` is negative."""
    file, index = opened
    rows = _rows(segment, index, topic_id, partition)
    row = 0 if first < 0 else rows.find(first)
    segment_id = segment.header.segment_id
    return RowRange(file, segment.name, segment_id, rows, row, len(rows.base_offset))
