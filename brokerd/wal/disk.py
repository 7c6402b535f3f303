# Tests: tests/wal/test_disk.py
"""The interface of the log to a disk, and its implementation on the operating system.

The log uses files only through a :class:`Disk`. Tests and the simulator have a disk that loses
unsynced bytes, runs out of space, or fails a call. Paths are text. Positions and sizes are bytes.
Methods raise OSError as the operating system does, and do not retry.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

ZERO_SLICE_BYTES = 1 << 20
_ZEROS = bytes(ZERO_SLICE_BYTES)


class File(Protocol):
    """An open file. It closes itself when the last reference goes."""

    def pread(self, length: int, position: int) -> bytes:
        """Return ``length`` bytes, fewer at the end of the file."""

    def pwrite(self, data: bytes, position: int) -> None:
        """Write all of ``data``."""

    def sync(self) -> None:
        """Call fdatasync. Contents and size are on the disk when this returns."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Names in a directory are durable only after :meth:`sync_directory`."""

    def create(self, path: str) -> File:
        """Create a file for reading and writing. Raises FileExistsError for a used name."""

    def open(self, path: str, write: bool = False) -> File: ...

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted. A missing directory has no names."""

    def make_directory(self, path: str) -> None:
        """Create a missing directory and its parents, durably."""

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def sync_directory(self, directory: str) -> None: ...

    def free_bytes(self, directory: str) -> int:
        """Return the bytes that this user may still write."""

    def file_system(self, path: str) -> str:
        """Return the type of the file system of ``path``, such as ``ext4``, or "" if unknown."""


def write_zeros(file: File, size: int, is_cancelled: Callable[[], bool]) -> None:
    """Fill a new file with ``size`` zero bytes, and sync it slice by slice.

    The sync of a commit then does not wait for a whole segment of dirty pages. Raises OSError, also
    if ``is_cancelled()`` before a slice.
    """
    for position in range(0, size, ZERO_SLICE_BYTES):
        if is_cancelled():
            raise OSError(errno.ECANCELED, "the segment is not needed any more")
        file.pwrite(_ZEROS[: size - position], position)
        file.sync()


def is_full(error: OSError) -> bool:
    """Whether an error means no space on the disk, for this user, or for a file (ulimit -f)."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomically(
    disk: Disk, directory: str, name: str, parts: Iterable[bytes], *, sync_name: bool = True
) -> None:
    """Write a file whole or not at all: temporary name, sync, rename, directory sync.

    Without ``sync_name``, the directory is not synced: a loss of power may take the new name.
    Raises OSError.
    """
    path = os.path.join(directory, name)
    temporary = path + ".tmp"
    if name + ".tmp" in disk.list(directory):
        disk.unlink(temporary)
    file = disk.create(temporary)
    try:
        position = 0
        for part in parts:
            file.pwrite(part, position)
            position += len(part)
        file.sync()
    except OSError:
        file.close()
        disk.unlink(temporary)
        raise
    file.close()
    disk.rename(temporary, path)
    if sync_name:
        disk.sync_directory(directory)


class RealFile:
    """A file descriptor. Its errors name ``path``."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self._path
            raise

    def pread(self, length: int, position: int) -> bytes:
        with self._named():
            data = os.pread(self._descriptor, length, position)
            while len(data) < length:
                more = os.pread(self._descriptor, length - len(data), position + len(data))
                if not more:
                    break
                data += more
        return data

    def pwrite(self, data: bytes, position: int) -> None:
        with self._named():
            done = os.pwrite(self._descriptor, data, position)
            while done < len(data):
                done += os.pwrite(self._descriptor, memoryview(data)[done:], position + done)

    def sync(self) -> None:
        with self._named():
            os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        with self._named():
            os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class RealDisk:
    """Files of the operating system."""

    def create(self, path: str) -> File:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return RealFile(os.open(path, flags, 0o640), path)

    def open(self, path: str, write: bool = False) -> File:
        # A pipe must not block the open until its other end is open.
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK
        return RealFile(os.open(path, flags), path)

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.make_directory(parent)
        os.mkdir(path, 0o750)
        self.sync_directory(parent)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, directory: str) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, directory: str) -> int:
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize

    def file_system(self, path: str) -> str:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
                lines = mounts.read().splitlines()
        except FileNotFoundError:
            return ""
        return file_system_of(os.path.realpath(path), lines)


def file_system_of(path: str, mountinfo: list[str]) -> str:
    """Return the type of the mount of an absolute path, by lines of /proc/self/mountinfo.

    The longest mount point above the path counts. Of equal ones, the later hides the earlier.
    """
    best, found = -1, ""
    for line in mountinfo:
        fields, _, rest = line.partition(" - ")
        point = fields.split(" ")[4].encode().decode("unicode_escape").rstrip("/")
        if (path == point or path.startswith(point + "/")) and len(point) >= best:
            best, found = len(point), rest.split(" ")[0]
    return found
