# Tests: tests/wal/test_reader.py
"""All segments of a log and, for every partition, which of them hold it.

Memory: 12 bytes for each pair of segment and partition that it holds, plus the indexes and files of
the ``OPEN_SEGMENTS_MAX`` sealed segments read last (mapped, so pages belong to the system), plus
the indexes of segments not sealed yet. Nothing grows with the number of records.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from brokerd.errors import DamagedData
from brokerd.wal.disk import Disk, File
from brokerd.wal.index import GrowingIndex, MappedIndex, PartitionSpan, Rows, SegmentIndex
from brokerd.wal.reader import PlannedRows, ReadPlan
from brokerd.walformat import SegmentHeader

OPEN_SEGMENTS_MAX = 64


def segment_name(first_lsn: int) -> str:
    return f"{first_lsn:020d}.wal"


def index_name(first_lsn: int) -> str:
    return f"{first_lsn:020d}.idx"


class Segment:
    """A segment in use. ``growing`` is its index until an index file has been written."""

    def __init__(
        self, header: SegmentHeader, growing: GrowingIndex | None = None, file: File | None = None
    ) -> None:
        self.header = header
        self.name = segment_name(header.first_lsn)
        self.growing = growing
        self.file = file
        """The file while it is open for writing."""
        self.position = 0
        """Where the next frame goes; where frames end, once sealed."""
        self.sealed = False
        self.last_time_us = 0
        self.ordinal = -1
        """Its place in the catalog."""

    @property
    def first_lsn(self) -> int:
        return self.header.first_lsn

    @property
    def end_lsn(self) -> int:
        return self.header.first_lsn + self.position


class SegmentStatus(NamedTuple):
    """One segment, for status pages and planners."""

    name: str
    first_lsn: int
    end_lsn: int
    size: int
    sealed: bool
    """No more will be written, the tail is cut off, the index file is in place."""
    segment_id: bytes


class Catalog:
    """Finds batches. ``rebuild(segment)`` must write the segment's index file again."""

    def __init__(self, disk: Disk, path: str, rebuild: Callable[[Segment], None]) -> None:
        self._disk = disk
        self._path = path
        self._rebuild = rebuild
        self._segments: list[Segment] = []
        self._where: dict[tuple[int, int], tuple[array[int], array[int]]] = {}
        self._open: OrderedDict[Segment, tuple[File, SegmentIndex]] = OrderedDict()

    @property
    def segments(self) -> list[Segment]:
        return self._segments

    def add(self, segment: Segment, spans: Iterable[PartitionSpan] = ()) -> None:
        """Add the newest segment, with what it holds already."""
        segment.ordinal = len(self._segments)
        self._segments.append(segment)
        for span in spans:
            self.begins(segment, span.topic_id, span.partition, span.first_offset)

    def begins(self, segment: Segment, topic_id: int, partition: int, first_offset: int) -> None:
        """A segment got its first batch of a partition; segments come in order."""
        where = self._where.get((topic_id, partition))
        if where is None:
            where = self._where[topic_id, partition] = (array("q"), array("I"))
        where[0].append(first_offset)
        where[1].append(segment.ordinal)

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
            for segment in self._segments
        ]

    def first_offset(self, topic_id: int, partition: int) -> int | None:
        """The lowest offset of a partition in the log, None if there is none."""
        where = self._where.get((topic_id, partition))
        return None if where is None else where[0][0]

    def time_of(self, topic_id: int, partition: int, offset: int) -> int | None:
        """Broker time of the frame that appended the record, None if it is not in the log."""
        found = self._find(topic_id, partition, offset)
        return None if found is None else found.rows.time_us[found.row]

    def next_readable(self, topic_id: int, partition: int, offset: int) -> int | None:
        """The lowest offset at or above ``offset`` that the log holds a batch for."""
        if self._find(topic_id, partition, offset) is not None:
            return offset
        firsts, ordinals = self._where.get((topic_id, partition), (array("q"), array("I")))
        at = max(bisect_right(firsts, offset) - 1, 0)
        for ordinal in ordinals[at : at + 2]:
            _, rows = self._load(self._segments[ordinal], topic_id, partition)
            row = bisect_right(rows.base_offset, offset)
            if row < len(rows.base_offset):
                return rows.base_offset[row]
        return None

    def plan_read(
        self, topic_id: int, partition: int, offset: int, max_bytes: int
    ) -> ReadPlan | None:
        """Plan to read the batch that holds ``offset`` and what follows it, as one run of offsets.

        None if no batch in the log holds the offset. Cheap; the plan's ``run`` does the reading.
        """
        found = self._find(topic_id, partition, offset)
        if found is None:
            return None
        pieces: list[PlannedRows] = []
        _, ordinals = self._where[topic_id, partition]
        at, row, left = found.at, found.row, max_bytes
        while left > 0 and at < len(ordinals):
            segment = self._segments[ordinals[at]]
            file, rows = self._load(segment, topic_id, partition)
            stop = len(rows.base_offset)
            pieces.append(
                PlannedRows(file, segment.name, segment.header.segment_id, rows, row, stop)
            )
            left -= rows.position[stop - 1] + rows.body_bytes[stop - 1] - rows.position[row]
            at, row = at + 1, 0
        return ReadPlan(topic_id, partition, pieces, max_bytes)

    class _Found(NamedTuple):
        at: int
        rows: Rows
        row: int

    def _find(self, topic_id: int, partition: int, offset: int) -> _Found | None:
        where = self._where.get((topic_id, partition))
        if where is None:
            return None
        at = bisect_right(where[0], offset) - 1
        if at < 0:
            return None
        _, rows = self._load(self._segments[where[1][at]], topic_id, partition)
        row = rows.find(offset)
        return None if row < 0 else self._Found(at, rows, row)

    def _load(self, segment: Segment, topic_id: int, partition: int) -> tuple[File, Rows]:
        if segment.growing is not None and segment.file is not None:
            file, rows = segment.file, segment.growing.rows(topic_id, partition)
        else:
            file, index = self._open_sealed(segment)
            rows = index.rows(topic_id, partition)
        if rows is None:
            raise DamagedData(
                f"the index of {segment.name} lost topic id {topic_id} partition {partition}; "
                "run brokerctl wal verify"
            )
        return file, rows

    def _open_sealed(self, segment: Segment) -> tuple[File, SegmentIndex]:
        found = self._open.get(segment)
        if found is not None:
            self._open.move_to_end(segment)
            return found
        index: SegmentIndex
        if segment.growing is not None:
            index = segment.growing
        else:
            try:
                index = self._map(segment)
            except (DamagedData, FileNotFoundError):
                self._rebuild(segment)
                index = self._map(segment)
        file = self._disk.open(os.path.join(self._path, segment.name))
        self._open[segment] = file, index
        if len(self._open) > OPEN_SEGMENTS_MAX:
            self._open.popitem(last=False)
        return file, index

    def _map(self, segment: Segment) -> MappedIndex:
        path = os.path.join(self._path, index_name(segment.first_lsn))
        return MappedIndex(self._disk.open(path).map())

    def sealed(self, segment: Segment) -> None:
        """The segment's index file is in place: use it from now on."""
        segment.growing = None
        segment.file = None
        self._open.pop(segment, None)
