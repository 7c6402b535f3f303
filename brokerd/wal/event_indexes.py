# Tests: tests/wal/test_event_index.py
"""Event indexes in a directory beside the log (docs/wal-format.rst, "Event index of a sealed
segment").

The reactor's thread calls nothing here: the disk is slow. One thread builds or removes at a time;
others may load.
"""

from __future__ import annotations

import os
import re
from typing import Final

from brokerd.errors import DamagedData, NewerFormat
from brokerd.wal.disk import Disk, File, write_atomically
from brokerd.wal.segment import SegmentStatus
from brokerd.walformat import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    FormatError,
    UnsupportedFormat,
    parse_frame_header,
    segment_salt,
)
from brokerd.walformat.event_index import EventIndex, EventIndexBuilder

SLICE_BYTES: Final = 2 << 20
"""Bytes that one step of a build reads, or one frame if that is larger."""

_NAME: Final = re.compile(r"[0-9]{20}\.evx")


class EventIndexes:
    """The index files in ``path`` of the segments in ``wal_path``."""

    def __init__(self, disk: Disk, wal_path: str, path: str) -> None:
        self._disk = disk
        self._wal_path = wal_path
        self._path = path

    def names(self) -> set[int]:
        """Return the first LSNs of the segments that have an index file. Raises OSError."""
        found = self._disk.list(self._path)
        return {int(name[:20]) for name in found if _NAME.fullmatch(name)}

    def remove(self, first_lsn: int) -> None:
        """Delete an index file. Raises OSError."""
        self._disk.unlink(self._file(first_lsn))

    def load(self, segment_id: bytes, first_lsn: int, end_lsn: int) -> EventIndex | None:
        """Load the index of a segment; None if it has none. Raises OSError.

        Deletes a file that is damaged or of another segment, so that it is made again.
        """
        try:
            file = self._disk.open(self._file(first_lsn))
        except FileNotFoundError:
            return None
        try:
            return EventIndex(file.pread(file.size(), 0), segment_id, first_lsn, end_lsn)
        except UnsupportedFormat:
            return None
        except FormatError:
            self.remove(first_lsn)
            return None
        finally:
            file.close()

    def build(self, segment: SegmentStatus) -> EventIndexBuild:
        """Begin to make the index of a sealed segment."""
        return EventIndexBuild(self._disk, self._wal_path, self._path, segment)

    def _file(self, first_lsn: int) -> str:
        return os.path.join(self._path, index_name(first_lsn))


def index_name(first_lsn: int) -> str:
    """Return the name of the file of the segment that begins at an LSN."""
    return f"{first_lsn:020d}.evx"


class EventIndexBuild:
    """Makes one index, a slice of the segment in each step."""

    def __init__(self, disk: Disk, wal_path: str, path: str, segment: SegmentStatus) -> None:
        self._disk = disk
        self._wal_path = wal_path
        self._path = path
        self._segment = segment
        self._end = segment.end_lsn - segment.first_lsn
        self._salt = segment_salt(segment.segment_id)
        self._builder = EventIndexBuilder()
        self._position = SEGMENT_HEADER_BYTES

    def step(self) -> bool:
        """Read the next slice, or write the file at the end. Returns whether the file is written.

        Raises DamagedData if the segment has damaged frames, NewerFormat, and OSError.
        """
        if self._position < self._end:
            file = self._disk.open(os.path.join(self._wal_path, self._segment.name))
            try:
                self._read(file)
            except UnsupportedFormat as error:
                raise NewerFormat(f"{self._segment.name}: {error}") from None
            except FormatError as error:
                raise DamagedData(f"{self._segment.name}: {error}") from None
            finally:
                file.close()
            return False
        parts = self._builder.encode(
            self._segment.segment_id, self._segment.first_lsn, self._segment.end_lsn
        )
        self._disk.make_directory(self._path)
        write_atomically(self._disk, self._path, index_name(self._segment.first_lsn), parts)
        return True

    def _read(self, file: File) -> None:
        """Add the whole frames of the next slice. Raises FormatError."""
        data = file.pread(min(SLICE_BYTES, self._end - self._position), self._position)
        at = 0
        while at + FRAME_HEADER_BYTES <= len(data):
            header = parse_frame_header(data, self._salt, at)
            if header.lsn != self._segment.first_lsn + self._position + at:
                raise FormatError(f"the frame at {self._position + at} is of another place")
            end = at + header.length
            if end > len(data):
                if at:
                    break
                data = file.pread(header.length, self._position)
                if len(data) < end:
                    raise FormatError(f"the frame at {self._position} is cut short")
            self._builder.add_frame(self._position + at, data, at + FRAME_HEADER_BYTES, end)
            at = end
        if not at:
            raise FormatError(f"the file ends at {self._position + len(data)}")
        self._position += at
