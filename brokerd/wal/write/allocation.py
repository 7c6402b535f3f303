# Tests: tests/wal/test_log.py
"""Allocates segments ahead of need, so that a full disk is met before work is accepted.

The allocator always has a spare segment of the ordinary size, or prepares one. A larger frame gets
a larger spare on request. If the disk has no room for an ordinary segment and the log has none at
all, the allocator makes a small one, with room for the reserve or a part of it. A spare has a
temporary name and contains synced zeros. The first commit to it writes its header and renames it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import NamedTuple

from brokerd.errors import error_text
from brokerd.wal.disk import Disk, File, is_full, write_zeros
from brokerd.walformat import SEGMENT_HEADER_BYTES
from brokerd.worker_pool import WorkerPool

_SIZE_STEP = 4096


class SpareSegment(NamedTuple):
    """An allocated segment that is not part of the log yet."""

    name: str
    file: File
    segment_id: bytes
    size: int

    @property
    def capacity(self) -> int:
        """Bytes of frames that fit."""
        return self.size - SEGMENT_HEADER_BYTES


class Allocator:
    """Keeps spare segments. ``changed()`` is called in the reactor's thread after an allocation.

    ``error`` is the reason of a failed allocation. Then nothing is allocated until :meth:`retry`.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        background: WorkerPool,
        random_bytes: Callable[[int], bytes],
        segment_bytes: int,
        free_bytes_min: int,
    ) -> None:
        self._disk = disk
        self._path = path
        self._background = background
        self._random_bytes = random_bytes
        self._segment_bytes = segment_bytes
        self._free_bytes_min = free_bytes_min
        self._wanted = 0
        self.small_bytes = 0
        """Size of the segment to make if the disk has no room for an ordinary one. 0: make none."""
        self.least_bytes = 0
        """The least size of such a segment, if the disk has less room."""
        self.changed: Callable[[], None] = lambda: None
        self.spares: list[SpareSegment] = []
        self.capacity = 0
        """Bytes of frames that fit into the largest spare."""
        self.allocating = False
        self.error: str | None = None
        self.closed = False
        """Set to end the allocation under way and to begin no other."""

    def prepare(self, size: int, free_bytes_min: int | None = None) -> SpareSegment:
        """Allocate one segment, and block. Raises OSError or MemoryError, and then leaves no file.

        If the log is closed during the allocation, it ends early with an OSError.
        """
        size += -size % _SIZE_STEP
        keep = self._free_bytes_min if free_bytes_min is None else free_bytes_min
        free = self._disk.free_bytes(self._path)
        if free - size < keep:
            raise OSError(
                errno.ENOSPC,
                f"no space for a segment of {size} bytes: {free} are free, {keep} must stay free",
            )
        segment_id = self._random_bytes(16)
        name = f"spare-{segment_id.hex()}.tmp"
        path = os.path.join(self._path, name)
        file = self._disk.create(path)
        try:
            write_zeros(file, size, lambda: self.closed)
        except Exception:
            file.close()
            self._disk.unlink(path)
            raise
        return SpareSegment(name, file, segment_id, size)

    def prepare_any(self, size: int) -> SpareSegment:
        """Allocate a segment of ``size`` bytes, or a small one. Raises OSError.

        Each restart on a full disk leaves less than it found: the used part of the last segment,
        and its index. So the small segment takes most of what is left.
        """
        small_bytes = self.small_bytes
        try:
            return self.prepare(size)
        except OSError as error:
            if not small_bytes or not is_full(error):
                raise
        free = self._disk.free_bytes(self._path)
        # Some blocks are for other files of the broker, and for the file system itself.
        for room in (free - free // 32, free - free // 8):
            part = min(small_bytes, room - room % _SIZE_STEP)
            if part < self.least_bytes:
                break
            try:
                return self.prepare(part, 0)
            except OSError as error:
                if not is_full(error):
                    raise
        return self.prepare(small_bytes, 0)

    def request(self, capacity: int) -> None:
        """Ask for a spare with room for ``capacity`` bytes of frames."""
        self._wanted = max(self._wanted, capacity)
        self.ensure()

    def ensure(self) -> None:
        """Allocate a missing spare, unless an allocation is under way or has failed."""
        if self.allocating or self.error is not None or self.closed:
            return
        if self._wanted > self.capacity and self._wanted > self._ordinary_capacity:
            self._allocate(self._wanted + SEGMENT_HEADER_BYTES)
        elif not self.spares:
            self._allocate(self._segment_bytes)

    @property
    def _ordinary_capacity(self) -> int:
        return self._segment_bytes - SEGMENT_HEADER_BYTES

    def retry(self) -> None:
        """Try again after a failure."""
        if self.error is not None:
            self.error = None
            self.ensure()
            if not self.allocating:
                self.changed()

    def take(self, frame_bytes: int) -> SpareSegment | None:
        """Take the smallest spare with room for a frame. Returns None if no spare has room."""
        fitting = [spare for spare in self.spares if spare.capacity >= frame_bytes]
        if not fitting:
            return None
        spare = min(fitting, key=lambda spare: spare.size)
        self.spares.remove(spare)
        self._measure()
        return spare

    def _measure(self) -> None:
        self.capacity = max((spare.capacity for spare in self.spares), default=0)

    def _allocate(self, size: int) -> None:
        self._background.submit(lambda: self.prepare_any(size), self._allocated)
        self.allocating = True

    def _allocated(self, spare: SpareSegment | None, error: Exception | None) -> None:
        self.allocating = False
        if spare is not None:
            self.spares.append(spare)
            self._measure()
        elif not self.closed:
            assert error is not None, "work without a result has an error"
            self.error = getattr(error, "strerror", None) or error_text(error)
        if spare is None or spare.capacity >= self._wanted:
            self._wanted = 0
        self.ensure()
        self.changed()
