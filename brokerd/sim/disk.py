# Tests: tests/sim/test_disk.py, tests/wal/test_disk.py
"""A disk in memory that can lose what was not synced, fill up, and fail on demand.

Contents, sizes and directory entries each exist twice: as the running process sees them, and as a
power cut would leave them. :meth:`SimDisk.crash` goes over to the second.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable

from brokerd.wal.disk import File

_BLOCK_BYTES = 512


class _Node:
    """One file's bytes: as seen, as synced, and the writes between them."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.pending: list[tuple[int, bytes]] = []


class SimFile:
    """An open file of a :class:`SimDisk`."""

    def __init__(self, disk: SimDisk, node: _Node, name: str, write: bool) -> None:
        self._disk = disk
        self._node = node
        self._name = name
        self._write = write

    def pread(self, length: int, position: int) -> bytes:
        self._disk.called("pread", self._name)
        return bytes(self._node.data[position : position + length])

    def pwrite(self, data: bytes, position: int) -> None:
        self._writable()
        self._disk.called("pwrite", self._name)
        content = self._node.data
        growth = max(0, position + len(data) - len(content))
        self._disk.take(growth)
        content.extend(bytes(growth))
        content[position : position + len(data)] = data
        self._node.pending.append((position, bytes(data)))

    def sync(self) -> None:
        self._disk.called("sync", self._name)
        self._node.synced = bytes(self._node.data)
        self._node.pending.clear()

    def truncate(self, size: int) -> None:
        self._writable()
        self._disk.called("truncate", self._name)
        self._disk.take(size - len(self._node.data))
        del self._node.data[size:]
        self._node.data.extend(bytes(size - len(self._node.data)))

    def size(self) -> int:
        return len(self._node.data)

    def map(self) -> memoryview:
        return memoryview(bytes(self._node.data))

    def close(self) -> None:
        """Nothing to give back."""

    def _writable(self) -> None:
        if not self._write:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._name)


class SimDisk:
    """Files in memory. ``capacity`` is in bytes, None for no limit.

    ``calls`` counts calls by name: create, open, pread, pwrite, sync, truncate, rename, unlink,
    sync_directory. :meth:`fail` arms a failure.
    """

    def __init__(self, capacity: int | None = None, file_system: str = "memory") -> None:
        self.capacity = capacity
        self.calls: Counter[str] = Counter()
        self.on_call: Callable[[str, str], None] | None = None
        self._used = 0
        self._file_system = file_system
        self._seen: dict[str, _Node] = {}
        self._durable: dict[str, _Node] = {}
        self._failures: dict[str, tuple[int, int]] = {}

    def fail(self, name: str, nth: int = 1, error: int = errno.EIO) -> None:
        """Make the ``nth`` call of this name from now on fail with ``error``, once."""
        self._failures[name] = (self.calls[name] + nth, error)

    def called(self, name: str, path: str) -> None:
        """Count a call, and fail it if it is armed."""
        self.calls[name] += 1
        if self.on_call is not None:
            self.on_call(name, path)
        nth, error = self._failures.get(name, (0, 0))
        if nth == self.calls[name]:
            del self._failures[name]
            raise OSError(error, os.strerror(error), path)

    def take(self, size: int) -> None:
        """Use ``size`` more bytes (or give some back), or fail with ENOSPC."""
        if size > 0 and self.capacity is not None and self._used + size > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._used += size

    def crash(self, survives: Callable[[str, int, bytes], bool] | None = None) -> None:
        """Lose what was not synced, and disarm all failures.

        ``survives(path, position, block)`` decides for each 512-byte piece of an unsynced write
        whether it reached the disk all the same; by default none did.
        """
        for path, node in self._durable.items():
            data = bytearray(node.synced)
            for position, written in node.pending if survives is not None else ():
                for start in range(0, len(written), _BLOCK_BYTES):
                    block = written[start : start + _BLOCK_BYTES]
                    if survives is not None and survives(path, position + start, block):
                        end = position + start + len(block)
                        data.extend(bytes(max(0, end - len(data))))
                        data[end - len(block) : end] = block
            node.data = data
            node.synced = bytes(data)
            node.pending.clear()
        self._failures.clear()
        self.on_call = None
        self._seen = dict(self._durable)
        self._used = sum(len(node.data) for node in self._seen.values())

    def content(self, path: str) -> bytearray:
        """The bytes of a file, to look at or to damage; a crash takes damage back."""
        return self._seen[path].data

    def copy(self) -> SimDisk:
        """Another disk with the same files, all of it synced."""
        other = SimDisk(self.capacity, self._file_system)
        for path, node in self._seen.items():
            twin = other._seen[path] = other._durable[path] = _Node()
            twin.data[:] = node.data
            twin.synced = bytes(node.data)
        other._used = self._used
        return other

    # -- Disk ----------------------------------------------------------------------------------

    def create(self, path: str) -> File:
        self.called("create", path)
        if path in self._seen:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        node = self._seen[path] = _Node()
        return SimFile(self, node, path, True)

    def open(self, path: str, write: bool = False) -> File:
        self.called("open", path)
        return SimFile(self, self._node(path), path, write)

    def list(self, directory: str) -> list[str]:
        return sorted(
            os.path.basename(path) for path in self._seen if os.path.dirname(path) == directory
        )

    def make_directory(self, path: str) -> None:
        """Directories need no making here."""

    def rename(self, old: str, new: str) -> None:
        self.called("rename", new)
        node = self._node(old)
        if new in self._seen:
            self._used -= len(self._seen[new].data)
        del self._seen[old]
        self._seen[new] = node

    def unlink(self, path: str) -> None:
        self.called("unlink", path)
        self._used -= len(self._node(path).data)
        del self._seen[path]

    def sync_directory(self, directory: str) -> None:
        self.called("sync_directory", directory)
        kept = {p: n for p, n in self._durable.items() if os.path.dirname(p) != directory}
        seen = {p: n for p, n in self._seen.items() if os.path.dirname(p) == directory}
        self._durable = kept | seen

    def free_bytes(self, directory: str) -> int:
        return 1 << 40 if self.capacity is None else self.capacity - self._used

    def file_system(self, path: str) -> str:
        return self._file_system

    def _node(self, path: str) -> _Node:
        if path not in self._seen:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._seen[path]
