# Tests: tests/wal/test_reader.py
"""A segment of the log as the broker uses it, and the names of its files."""

from __future__ import annotations

import os
from typing import NamedTuple

from brokerd.wal.disk import Disk, File
from brokerd.walformat import SegmentHeader
from brokerd.walformat.index import GrowingIndex, PartitionSpan


def segment_name(first_lsn: int) -> str:
    return f"{first_lsn:020d}.wal"


def index_name(first_lsn: int) -> str:
    return f"{first_lsn:020d}.idx"


class Lack(NamedTuple):
    """Why a segment stays although an archive should have all of it."""

    number: int
    """The version of the archive that lacks something (`Coverage.number`); 0: nobody can say."""
    span: PartitionSpan
    problem: str


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
        self.ordinal = -1
        """Its number in the catalog: later segments have higher ones."""
        self.deleted = False
        """No new read may want it; its file may be gone."""
        self.removed_spans = 0
        """How many of the partitions in its index have no record left, as far as is known."""
        self.kept_by: PartitionSpan | None = None
        """The next of them, when it was last looked at."""
        self.lack: Lack | None = None
        """What an archive was found to lack of it."""
        self.sizes: dict[tuple[int, int], int] = {}
        """Bytes of the batches of those partitions for which somebody asked."""

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


def trim(disk: Disk, path: str, segment: Segment) -> None:
    """Cut off the tail of a complete segment, and sync it. Raises OSError."""
    file = disk.open(os.path.join(path, segment.name), write=True)
    if file.size() > segment.position:
        file.truncate(segment.position)
    file.sync()
