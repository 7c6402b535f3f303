# Tests: tests/wal/test_log.py
"""Encodes the frames of one commit and writes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from brokerd.wal.disk import Disk, File
from brokerd.wal.segment import Segment
from brokerd.walformat import Entry, frame_parts, segment_salt


class QueuedFrame(NamedTuple):
    """A frame with its place in the log."""

    ticket: int
    segment: Segment
    position: int
    size: int
    entries: Sequence[Entry]
    time_us: int

    @property
    def end_lsn(self) -> int:
        return self.segment.first_lsn + self.position + self.size


class SegmentWrite(NamedTuple):
    """Bytes for one segment. ``spare`` is the former name of a segment that begins with them."""

    file: File
    position: int
    encoded: bytes | Callable[[], bytes]
    """The bytes, or a function that makes them in the writer's thread."""
    name: str
    spare: str | None = None
    before: File | None = None
    """The file of the segment before, if it may have unsynced bytes."""

    @property
    def data(self) -> bytes:
        """The bytes; made by each call if they are large."""
        encoded = self.encoded
        return encoded if isinstance(encoded, bytes) else encoded()


def by_segment(frames: list[QueuedFrame]) -> list[list[QueuedFrame]]:
    """Split frames into runs of one segment each."""
    runs: list[list[QueuedFrame]] = []
    for frame in frames:
        if runs and runs[-1][0].segment is frame.segment:
            runs[-1].append(frame)
        else:
            runs.append([frame])
    return runs


def encode_frames(frames: list[QueuedFrame], last_synced: int) -> list[bytes]:
    """Encode frames of one segment as pieces of bytes. Raises ValueError, struct.error."""
    segment = frames[0].segment
    segment_id = segment.header.segment_id
    salt = segment_salt(segment_id)
    parts: list[bytes] = []
    for frame in frames:
        lsn = segment.first_lsn + frame.position
        parts += frame_parts(frame.entries, lsn, segment_id, last_synced, frame.time_us, salt)
    return parts


def encode_large_frames(header: bytes, frames: list[QueuedFrame], last_synced: int) -> bytes:
    """Return the ``header``, if any, and the frames of one segment. Raises as `encode_frames`.

    The copies and checksums of large bodies leave the interpreter to other threads.
    """
    return b"".join((header, *encode_frames(frames, last_synced)))


def write_all(
    disk: Disk, path: str, writes: list[SegmentWrite], sync: bool, seconds: Callable[[], float]
) -> float:
    """Write one commit: one write a segment, one sync. Return how many ``seconds`` it took.

    Runs in the writer's thread. A segment is synced before the next one gets its name. The header
    and first frames of a segment are synced before its name is. Raises OSError.
    """
    began = seconds()
    for write in writes:
        if write.before is not None:
            write.before.sync()
        write.file.pwrite(write.data, write.position)
        if sync or write.spare is not None:
            write.file.sync()
        if write.spare is not None:
            disk.rename(os.path.join(path, write.spare), os.path.join(path, write.name))
            disk.sync_directory(path)
    return seconds() - began
