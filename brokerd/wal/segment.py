# Tests: tests/wal/test_reader.py
"""One segment of the log: its state in memory and the names of its files."""

from __future__ import annotations

import os
from typing import NamedTuple

from brokerd.wal.disk import Disk, File
from brokerd.walformat import SegmentHeader
from brokerd.walformat.index import MemoryIndex, PartitionSpan


def segment_name(first_lsn: int) -> str:
    """Return the file name of the segment that begins at an LSN."""
    return f"{first_lsn:020d}.wal"


def index_name(first_lsn: int) -> str:
    """Return the file name of the index of the segment that begins at an LSN."""
    return f"{first_lsn:020d}.idx"


class ArchiveGap(NamedTuple):
    """Records of a segment that the archive should have and lacks."""

    number: int
    """The version of the archive, as `Coverage.number`; 0 if the archive could not be asked."""
    span: PartitionSpan
    problem: str


class Segment:
    """A segment in use. It belongs to the reactor's thread; other threads only read it.

    A plan runs in another thread. Its ``remember`` then stores the results here, in the reactor.
    """

    def __init__(
        self,
        header: SegmentHeader,
        memory_index: MemoryIndex | None = None,
        file: File | None = None,
    ) -> None:
        self.header = header
        self.name = segment_name(header.first_lsn)
        self.memory_index = memory_index
        """The index until its file is written, then None."""
        self.file = file
        """The file while it is open for writing."""
        self.position = 0
        """Where the next frame goes; of a sealed segment, where the last frame ends."""
        self.sealed = False
        self.ordinal = -1
        """The number in the catalog. Later segments have higher numbers."""
        self.deleted = False
        """New reads do not use the segment. Its file may be gone."""
        self.removed_span_count = 0
        """How many partitions at the start of its index have no record left."""
        self.kept_span: PartitionSpan | None = None
        """The first partition that still has records, by the last removal plan."""
        self.archive_gap: ArchiveGap | None = None
        """Records that the archive lacked at the last coverage plan."""
        self.sizes: dict[tuple[int, int], int] = {}
        """Bytes of batches by partition, as far as size plans computed them."""

    @property
    def first_lsn(self) -> int:
        return self.header.first_lsn

    @property
    def end_lsn(self) -> int:
        return self.header.first_lsn + self.position


class SegmentStatus(NamedTuple):
    """One segment as status pages and planners see it."""

    name: str
    first_lsn: int
    end_lsn: int
    size: int
    sealed: bool
    """The segment is trimmed and its index file is in place."""
    segment_id: bytes
    created_us: int
    """Broker time of its first frame."""


def trim(disk: Disk, path: str, segment: Segment) -> None:
    """Cut off the tail of a complete segment, and sync it. Raises OSError."""
    file = disk.open(os.path.join(path, segment.name), write=True)
    if file.size() > segment.position:
        file.truncate(segment.position)
    file.sync()
