# Tests: tests/simulator/test_disk.py
"""One file of the simulated disk: the page cache, the durable image, and unsynced operations.

Readers see the page cache. A sync applies the unsynced operations to the image, a failed sync loses
them, and a crash lets some of them survive. docs/simulator.rst has the rules and their sources.
Positions and sizes are bytes.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

SECTOR_BYTES = 512
"""Size of a sector, which a disk writes whole or not at all, except for a torn write."""


class Write(NamedTuple):
    """Written bytes, at least one."""

    order: int
    position: int
    data: bytes


class Resize(NamedTuple):
    """A new size, by truncation or by a growing write whose bytes were lost."""

    order: int
    size: int


class Lost(NamedTuple):
    """A sector that a failed sync dropped: it may be on the disk, and no later sync writes it."""

    order: int
    position: int
    data: bytes


Operation = Write | Resize | Lost
"""An operation on a file. ``order`` is its place among all operations of the disk."""


def sectors(position: int, length: int) -> range:
    """Return the starts of the sectors that ``length`` bytes touch; empty for no bytes."""
    if not length:
        return range(0)
    return range(position - position % SECTOR_BYTES, position + length, SECTOR_BYTES)


class Image:
    """The bytes of a file in one place, and the starts of its unreadable sectors.

    Copies share bytes until one of them changes, because disks are forked more often than written.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.bad: set[int] = set()
        self._is_shared = False

    def copy(self) -> Image:
        twin = Image()
        twin.data = self.data
        twin.bad = self.bad.copy()
        twin._is_shared = self._is_shared = True
        return twin

    def own_data(self) -> bytearray:
        """Return the bytes for a change that no copy shares."""
        if self._is_shared:
            self.data = bytearray(self.data)
            self._is_shared = False
        return self.data

    def apply(self, operation: Operation) -> None:
        """Apply an operation to this image; a lost sector changes nothing."""
        if isinstance(operation, Write):
            self.write(operation.position, operation.data)
        elif isinstance(operation, Resize):
            self.resize(operation.size)

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write bytes, and grow as needed. A bad sector that is written whole is good again."""
        if position > len(self.data):
            self.resize(position)
        end = position + len(data)
        self.own_data()[position:end] = data
        for start in sectors(position, len(data)) if self.bad else ():
            if position <= start and min(start + SECTOR_BYTES, len(self.data)) <= end:
                self.bad.discard(start)

    def resize(self, size: int) -> None:
        """Truncate, or append zeros."""
        data = self.own_data()
        del data[size:]
        data.extend(bytes(size - len(data)))
        self.bad = {start for start in self.bad if start < size}

    def sector(self, start: int) -> bytes:
        """Return the bytes of a sector; fewer at the end of the file."""
        return bytes(self.data[start : start + SECTOR_BYTES])

    def read(self, length: int, position: int) -> bytes:
        """Return the bytes up to the end of the file; raise OSError with EIO for a bad sector."""
        if self.bad and not self.bad.isdisjoint(sectors(position, length)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(self.data[position : position + length])


class CachedFile:
    """One file under any names. ``number`` is its place in the order of creation."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen = Image()
        self.durable = Image()
        self._unsynced: list[Write | Resize] = []
        self._lost: dict[int, Lost] = {}

    def copy(self) -> CachedFile:
        """Return an independent file in the same state."""
        twin = CachedFile(self.number)
        twin.seen = self.seen.copy()
        twin.durable = self.durable.copy()
        twin._unsynced = self._unsynced.copy()
        twin._lost = self._lost.copy()
        return twin

    def hand_out(self) -> bytearray:
        """Return the bytes as seen, for damage in place. Damage of a synced file is durable."""
        if not self._unsynced and not self._lost:
            self.durable = self.seen
        return self.seen.own_data()

    def images(self) -> list[Image]:
        """Return the images that hold the bytes, each once."""
        return [self.seen] if self.durable is self.seen else [self.seen, self.durable]

    def settle(self, image: Image) -> None:
        """Take an image as the whole durable content."""
        self.durable = image
        self.seen = image.copy()
        self._unsynced.clear()
        self._lost.clear()

    def unsynced_orders(self) -> list[int]:
        """Return the order of each operation that a sync would make durable."""
        return [operation.order for operation in self._unsynced]

    def history(self) -> list[Operation]:
        """Return all operations that are not durable, in order."""
        lost = sorted(self._lost.values())
        return sorted([*self._unsynced, *lost], key=lambda operation: operation.order)

    def write(self, order: int, position: int, data: bytes | memoryview) -> None:
        """Write into the cache. An empty write changes nothing, not even the size."""
        if not data:
            return
        self._part()
        self.seen.write(position, data)
        start, end = position, position + len(data)
        if self._lost:
            start, end = self._with_lost_neighbours(start, end)
        self._unsynced.append(Write(order, start, bytes(self.seen.data[start:end])))

    def _with_lost_neighbours(self, start: int, end: int) -> tuple[int, int]:
        # The cache writes back whole sectors, with their lost bytes.
        first, last = sectors(start, end - start)[0], sectors(start, end - start)[-1]
        if first in self._lost:
            start = first
        if last in self._lost:
            end = min(last + SECTOR_BYTES, len(self.seen.data))
        return start, end

    def resize(self, order: int, size: int) -> None:
        """Truncate the cache, or grow it with zeros."""
        self._part()
        self.seen.resize(size)
        self._unsynced.append(Resize(order, size))

    def _part(self) -> None:
        if self.durable is self.seen:
            self.durable = self.seen.copy()

    def sync(self, covered: int) -> None:
        """Make operations up to the order ``covered`` durable, without lost sectors."""
        left = []
        for operation in self._unsynced:
            if operation.order > covered:
                left.append(operation)
                continue
            self.durable.apply(operation)
            self._supersede(operation)
        self._unsynced = left

    def _supersede(self, durable: Write | Resize) -> None:
        """Forget lost sectors that are durable in a later version, or cut off."""
        if not self._lost:
            return
        if isinstance(durable, Write):
            over = list(sectors(durable.position, len(durable.data)))
        else:
            over = [start for start in self._lost if start >= durable.size]
        for start in over:
            if start in self._lost and self._lost[start].order < durable.order:
                del self._lost[start]

    def lose(self, order: int, covered: int) -> None:
        """Fail a sync: its operations stay visible, and no later sync writes their bytes.

        The file system keeps the new size, which a later sync can still make durable.
        """
        left: list[Write | Resize] = []
        touched: set[int] = set()
        size = len(self.durable.data)
        for operation in self._unsynced:
            if operation.order > covered:
                left.append(operation)
            elif isinstance(operation, Resize):
                left.append(operation)
                size = operation.size
            else:
                end = operation.position + len(operation.data)
                touched.update(sectors(operation.position, len(operation.data)))
                if end > size:
                    left.append(Resize(operation.order, end))
                    size = end
        for start in sorted(touched):
            self._lost[start] = Lost(order, start, self.seen.sector(start))
        self._unsynced = left
