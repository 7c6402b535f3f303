# Tests: tests/archive/test_store.py
"""The interface of a local store to a disk, and its implementation on the operating system.

`brokerd.archive.storage.local.LocalStore` uses files only through a `Disk`. The simulator has a
disk that loses unsynced bytes and names. Paths are text. Methods raise the OSError of the operating
system, and do not retry.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

from brokerd.archive.storage.regular_file import open_regular


class Status(NamedTuple):
    """Metadata of a file or directory."""

    device: int
    inode: int
    size: int
    changed_ns: int
    """Time of the last write: nanoseconds since the Unix epoch."""
    is_directory: bool


class File(Protocol):
    """An open file. It is closed when the last reference to it is dropped."""

    def pread(self, length: int, position: int) -> bytes:
        """Return ``length`` bytes, fewer at the end of the file."""

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Write all of ``data``."""

    def sync(self) -> None:
        """Make contents and size durable."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Names in a directory are durable only after `sync_directory`."""

    def create(self, path: str, mode: int = 0o666) -> File:
        """Create a file for writing. Raises FileExistsError if the name exists."""

    def open(self, path: str) -> File:
        """Open a regular file for reading. Raises OSError (EINVAL) for another kind of file."""

    def status(self, path: str) -> Status: ...

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory; an empty list if it does not exist."""

    def walk(self, top: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield (directory, names of directories, names of files), as `os.walk` does.

        Skip a directory that is deleted during the walk.
        """

    def mkdir(self, path: str) -> None:
        """Create a directory; no effect if it exists. Its parent must exist."""

    def link(self, old: str, new: str) -> None:
        """Give a file another name. Raises FileExistsError if the name exists."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, and replace an existing file ``new``."""

    def unlink(self, path: str) -> None: ...

    def sync_directory(self, directory: str) -> None:
        """Make the names in a directory durable."""

    def drop_cached(self, path: str) -> None:
        """Drop a file from the page cache, and begin to read it ahead from the disk."""

    def is_writable(self, directory: str) -> bool:
        """Return whether permissions allow creating files in a directory."""

    def lock(self, directory: str) -> AbstractContextManager[bool]:
        """Hold the lock of a directory. Yield False if another process holds it."""


class RealFile:
    """A file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        while len(data) < length:
            more = os.pread(self._descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, memoryview(data)[done:], position + done)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class RealDisk:
    """Implements `Disk` on files of the operating system."""

    def create(self, path: str, mode: int = 0o666) -> File:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return RealFile(os.open(path, flags, mode))

    def open(self, path: str) -> File:
        return RealFile(open_regular(path))

    def status(self, path: str) -> Status:
        found = os.stat(path)
        is_directory = stat.S_ISDIR(found.st_mode)
        return Status(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, is_directory)

    def names(self, directory: str) -> list[str]:
        try:
            return os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def walk(self, top: str) -> Iterator[tuple[str, list[str], list[str]]]:
        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        return os.walk(top, onerror=fail)

    def mkdir(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, directory: str) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def drop_cached(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)

    def is_writable(self, directory: str) -> bool:
        return os.access(directory, os.W_OK | os.X_OK)

    @contextmanager
    def lock(self, directory: str) -> Iterator[bool]:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)
