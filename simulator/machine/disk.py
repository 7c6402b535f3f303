# Tests: tests/simulator/test_disk.py, tests/wal/test_disk.py
"""A disk in memory that loses unsynced data, fills up, rots, and fails on demand.

It behaves like :class:`brokerd.wal.disk.RealDisk` and records the operations that no sync has made
durable. :meth:`SimDisk.crash` keeps some of them, by one of four models (docs/simulator.rst).

Every call passes ``enter`` before its effect and ``leave`` after it. A hook may block while other
threads run, and may raise. The effect is atomic. Paths are text, positions and sizes bytes. The
same calls and random numbers give the same bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from brokerd.wal.disk import File
from simulator.machine.crash import CrashModel, EntryChange, Unsynced, names_after, survivors
from simulator.machine.page_cache import CachedFile, sectors

__all__ = ["Call", "CrashModel", "PowerLost", "ShortWrite", "SimDisk", "SimFile"]

BLOCK_BYTES = 4096
"""Size of a block; files take whole blocks."""

_UNLIMITED = 1 << 40
_JUNK_FILES = 8
_JUNK_BYTES = 64 << 10


class Call(NamedTuple):
    """One call of the disk. ``position`` and ``length`` are 0 for calls without them."""

    number: int
    """From 1, over the life of the disk."""
    name: str
    path: str
    position: int
    length: int


class PowerLost(BaseException):
    """The machine or the process has ended. A BaseException, so that no handler continues."""


class ShortWrite(OSError):
    """Raised by ``enter`` of a pwrite: the first ``written_bytes`` are written, the others fail."""

    def __init__(self, error: int, written_bytes: int) -> None:
        super().__init__(error, os.strerror(error))
        self.written_bytes = written_bytes


class _Failure(NamedTuple):
    nth: int
    error: int
    written_bytes: int | None


class SimFile:
    """An open file of a :class:`SimDisk`. After a crash or a kill it raises PowerLost."""

    def __init__(self, disk: SimDisk, file: CachedFile, path: str, writable: bool) -> None:
        self._disk = disk
        self._file = file
        self._path = path
        self._writable = writable
        self._boot = disk.boots
        self._is_open = True

    def pread(self, length: int, position: int) -> bytes:
        call = self._begin("pread", position, length)
        data = self._file.seen.read(length, position)
        self._disk.leave(call)
        return data

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        self._need_writable(errno.EBADF)
        try:
            call = self._begin("pwrite", position, len(data))
        except ShortWrite as fault:
            self._check()
            self._disk._write(self._file, data[: fault.written_bytes], position)
            raise
        self._disk._write(self._file, data, position)
        self._disk.leave(call)

    def sync(self) -> None:
        """Make all earlier writes durable. A failure loses them: see docs/simulator.rst."""
        covered = self._disk._order
        try:
            call = self._begin("sync")
        except OSError:
            self._check()
            self._file.lose(self._disk._next_order(), covered)
            raise
        self._file.sync(covered)
        self._disk.leave(call)

    def truncate(self, size: int) -> None:
        self._need_writable(errno.EINVAL)
        call = self._begin("truncate", size)
        self._disk._resize(self._file, size)
        self._disk.leave(call)

    def size(self) -> int:
        """Return the size in bytes, without a call of the disk."""
        self._check()
        return len(self._file.seen.data)

    def close(self) -> None:
        """Close the file, without a call of the disk; closing twice is harmless."""
        self._is_open = False

    def _begin(self, name: str, position: int = 0, length: int = 0) -> Call:
        self._check()
        call = self._disk._begin(name, self._path, position, length)
        self._check()
        return call

    def _check(self) -> None:
        if self._boot != self._disk.boots:
            raise PowerLost(f"{self._path} was opened before the crash")
        if not self._is_open:
            raise _error(errno.EBADF, self._path)

    def _need_writable(self, error: int) -> None:
        self._check()
        if not self._writable:
            raise _error(error, self._path)


class SimDisk:
    """Files in memory. ``capacity`` is in bytes, None for no limit.

    Directories need no creation. A rename stays within its directory.
    """

    def __init__(self, capacity: int | None = None, file_system: str = "memory") -> None:
        self.capacity = capacity
        """Bytes of whole blocks that files may take; beyond it, ENOSPC."""
        self.quota: int | None = None
        """Such a limit for this user, unknown to ``free_bytes``; beyond it, EDQUOT."""
        self.enter: Callable[[Call], None] = _ignore
        """Called before the effect of each call; may block, and raise OSError or PowerLost."""
        self.leave: Callable[[Call], None] = _ignore
        """Called after the effect; may block, and raise PowerLost."""
        self.forgets_failed_names = False
        """Whether a later sync does not make durable the names of a failed ``sync_directory``."""
        self.calls: Counter[str] = Counter()
        """Number of calls by name."""
        self.boots = 0
        """Number of crashes and kills, which end all open files."""
        self._file_system = file_system
        self._calls_made = 0
        self._order = 0
        self._files_made = 0
        self._seen: dict[str, CachedFile] = {}
        self._durable: dict[str, CachedFile] = {}
        self._changes: list[EntryChange] = []
        self._lost_names: dict[str, int] = {}
        """The last change of names that a failed sync of a directory covered."""
        self._junk: deque[bytes] = deque(maxlen=_JUNK_FILES)
        self._failures: dict[str, _Failure] = {}

    # -- faults --------------------------------------------------------------------------------

    def fail(
        self, name: str, nth: int = 1, error: int = errno.EIO, written_bytes: int | None = None
    ) -> None:
        """Make the ``nth`` call of this name from now on fail with ``error``, once.

        Of a pwrite, the first ``written_bytes`` still reach the file.
        """
        self._failures[name] = _Failure(self.calls[name] + nth, error, written_bytes)

    def spoil(self, path: str, position: int, length: int) -> None:
        """Make the sectors of a range unreadable (EIO), until each is written whole."""
        file = self._file(path)
        for image in file.images():
            image.bad.update(
                start for start in sectors(position, length) if start < len(image.data)
            )

    def flip(self, path: str, position: int, mask: int) -> None:
        """Rot: change bits of a byte, in the cache and on the disk."""
        file = self._file(path)
        for image in file.images():
            if position < len(image.data):
                image.own_data()[position] ^= mask

    # -- ends ----------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process: open files are gone, all writes stay in the cache, unsynced."""
        self.boots += 1
        self._failures.clear()

    def crash(self, model: CrashModel = CrashModel.DROP, random: Random | None = None) -> None:
        """Lose power. Survivors become durable, open files end, and armed failures are cancelled.

        ``random`` decides the survivors of TEAR and REORDER; by default a Random of seed 0.
        """
        self.kill()
        files = self._files()
        held = [bytes(file.seen.data[:_JUNK_BYTES]) for file in files]
        junk = [data for data in [*self._junk, *held] if data]
        unsynced = Unsynced(self._durable, self._changes, files, junk)
        left = survivors(unsynced, model, random or Random(0))
        for file in files:
            file.settle(left.images[file.number])
        self._durable = left.names
        self._seen = dict(left.names)
        self._changes.clear()
        self._lost_names.clear()

    def fork(self) -> SimDisk:
        """Return an independent disk in the same state, without open files and hooks."""
        twin = SimDisk(self.capacity, self._file_system)
        self._copy_to(twin)
        return twin

    def _copy_to(self, twin: SimDisk) -> None:
        """Give an empty disk the state of this one."""
        twin.quota = self.quota
        twin.calls = self.calls.copy()
        twin._order = self._order
        twin._calls_made = self._calls_made
        twin._files_made = self._files_made
        files = {file.number: file.copy() for file in self._files()}
        twin._seen = {path: files[file.number] for path, file in self._seen.items()}
        twin._durable = {path: files[file.number] for path, file in self._durable.items()}
        twin._changes = [
            change._replace(file=files[change.file.number]) for change in self._changes
        ]
        twin.forgets_failed_names = self.forgets_failed_names
        twin._lost_names = self._lost_names.copy()
        twin._junk = self._junk.copy()
        twin._failures = self._failures.copy()

    def copy(self) -> SimDisk:
        """Return another disk with the same files, all of them synced."""
        twin = self.fork()
        twin.crash(CrashModel.KEEP)
        return twin

    # -- views from outside: none of these is a call
    # ------------------------------------------------

    def content(self, path: str) -> bytearray:
        """Return the bytes of a file as seen, for reading or for damage in place.

        Damage of a synced file is durable; otherwise a crash undoes it.
        """
        return self._file(path).hand_out()

    def files(self) -> dict[str, bytes]:
        """Return every file as seen, by path, in order of the paths."""
        return {path: bytes(self._seen[path].seen.data) for path in sorted(self._seen)}

    def paths(self, directory: str) -> list[str]:
        """Return the paths of a directory as seen, in order."""
        return sorted(path for path in self._seen if os.path.dirname(path) == directory)

    def read(self, path: str) -> bytes:
        """Return all bytes of a file as seen. Raises OSError if it does not exist."""
        return bytes(self._file(path).seen.data)

    def size_of(self, path: str) -> int:
        """Return the size of a file as seen, in bytes. Raises OSError if it does not exist."""
        return len(self._file(path).seen.data)

    def digest(self) -> str:
        """Return the SHA-256, in hex, of the names and contents as seen."""
        total = hashlib.sha256()
        for path, data in self.files().items():
            for part in (path.encode("utf-8", "surrogateescape"), data):
                total.update(len(part).to_bytes(8, "little"))
                total.update(part)
        return total.hexdigest()

    @property
    def used_bytes(self) -> int:
        """The size of all named files in bytes, in whole blocks."""
        return sum(_in_blocks(len(file.seen.data)) for file in self._seen.values())

    # -- Disk ----------------------------------------------------------------------------------

    def create(self, path: str) -> File:
        call = self._begin("create", path)
        if path in self._seen:
            raise _error(errno.EEXIST, path)
        self._files_made += 1
        file = CachedFile(self._files_made)
        self._change(None, path, file)
        opened = SimFile(self, file, path, True)
        self.leave(call)
        return opened

    def open(self, path: str, write: bool = False) -> File:
        call = self._begin("open", path)
        opened = SimFile(self, self._file(path), path, write)
        self.leave(call)
        return opened

    def list(self, directory: str) -> list[str]:
        call = self._begin("list", directory)
        start = f"{directory}/"
        names = sorted(
            path[len(start) :]
            for path in self._seen
            if path.startswith(start) and "/" not in path[len(start) :]
        )
        self.leave(call)
        return names

    def make_directory(self, path: str) -> None:
        """Count as a call; directories need no creation here."""
        self.leave(self._begin("make_directory", path))

    def rename(self, old: str, new: str) -> None:
        call = self._begin("rename", new)
        file = self._file(old)
        if os.path.dirname(old) != os.path.dirname(new):
            raise _error(errno.EXDEV, new)
        self._bury(new)
        self._change(old, new, file)
        self.leave(call)

    def unlink(self, path: str) -> None:
        call = self._begin("unlink", path)
        file = self._file(path)
        self._bury(path)
        self._change(path, None, file)
        self.leave(call)

    def sync_directory(self, directory: str) -> None:
        """Make all earlier changes of names durable. See `forgets_failed_names`."""
        covered = self._order
        try:
            call = self._begin("sync_directory", directory)
        except OSError:
            if self.forgets_failed_names:
                self._lost_names[directory] = covered
            raise
        lost = self._lost_names.get(directory, 0)
        own = [
            change
            for change in self._changes
            if change.directory == directory and change.order <= covered
        ]
        synced = [change for change in own if change.order > lost]
        self._durable = names_after(self._durable, synced)
        self._changes = [change for change in self._changes if change not in own]
        self.leave(call)

    def free_bytes(self, directory: str) -> int:
        call = self._begin("free_bytes", directory)
        free = _UNLIMITED if self.capacity is None else max(0, self.capacity - self.used_bytes)
        self.leave(call)
        return free

    def file_system(self, path: str) -> str:
        return self._file_system

    # -- inside --------------------------------------------------------------------------------

    def _begin(self, name: str, path: str, position: int = 0, length: int = 0) -> Call:
        """Count a call, and let ``enter`` or an armed failure stop it."""
        self.calls[name] += 1
        self._calls_made += 1
        nth = self.calls[name]
        call = Call(self._calls_made, name, path, position, length)
        self.enter(call)
        failure = self._failures.get(name)
        if failure is not None and failure.nth == nth:
            del self._failures[name]
            if failure.written_bytes is not None:
                raise ShortWrite(failure.error, failure.written_bytes)
            raise _error(failure.error, path)
        return call

    def _next_order(self) -> int:
        self._order += 1
        return self._order

    def _files(self) -> tuple[CachedFile, ...]:
        """Return the files with a name now or after some crash, in order of creation."""
        found = [*self._durable.values(), *(change.file for change in self._changes)]
        by_number = {file.number: file for file in found}
        return tuple(by_number[number] for number in sorted(by_number))

    def _file(self, path: str) -> CachedFile:
        if path not in self._seen:
            raise _error(errno.ENOENT, path)
        return self._seen[path]

    def _change(self, removed: str | None, added: str | None, file: CachedFile) -> None:
        directory = os.path.dirname(added or removed or "")
        change = EntryChange(self._next_order(), directory, removed, added, file)
        self._changes.append(change)
        self._seen = names_after(self._seen, [change])

    def _bury(self, path: str) -> None:
        """Remove a name; after a crash the file's bytes may turn up in other files."""
        if path in self._seen and self._seen[path].seen.data:
            self._junk.append(bytes(self._seen[path].seen.data[:_JUNK_BYTES]))

    def _write(self, file: CachedFile, data: bytes | memoryview, position: int) -> None:
        """Write as many bytes as fit; raise OSError if some do not."""
        end = position + len(data)
        reach, error = self._room(file)
        file.write(self._next_order(), position, data[: max(0, reach - position)])
        if end > reach:
            raise OSError(error, os.strerror(error))

    def _resize(self, file: CachedFile, size: int) -> None:
        reach, error = self._room(file)
        if size > max(reach, len(file.seen.data)):
            raise OSError(error, os.strerror(error))
        file.resize(self._next_order(), size)

    def _room(self, file: CachedFile) -> tuple[int, int]:
        """Return the largest possible size of a file, and the error beyond it."""
        if self.quota is None and self.capacity is None:
            return _UNLIMITED, 0
        limits = [(self.quota, errno.EDQUOT), (self.capacity, errno.ENOSPC)]
        used = self.used_bytes
        taken = _in_blocks(len(file.seen.data))
        room = [
            (taken + max(0, limit - used) // BLOCK_BYTES * BLOCK_BYTES, error)
            for limit, error in limits
            if limit is not None
        ]
        return min(room)


def _in_blocks(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _error(error: int, path: str) -> OSError:
    return OSError(error, os.strerror(error), path)


def _ignore(call: Call) -> None:
    """Do nothing: the default hook."""
