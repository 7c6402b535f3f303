# Tests: tests/simulator/test_tree_disk.py
"""A simulated disk with directories, hard links and times, for the files of an archive.

It implements `brokerd.archive.storage.disk.Disk`. A directory is an entry of its parent: a loss of
power drops an entry that no sync of the parent covered, with everything below it. ``root`` exists
from the start.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from random import Random

from brokerd.archive.storage.disk import Status
from simulator.machine.crash import CrashModel
from simulator.machine.disk import SimDisk, SimFile
from simulator.machine.page_cache import CachedFile

_devices = count(1)


class TreeDisk(SimDisk):
    """Files and directories in memory, below ``root``."""

    def __init__(self, root: str = "/sim") -> None:
        super().__init__()
        self.root = root
        self.now_ns = 1_700_000_000 * 1_000_000_000
        """The clock of the disk."""
        self._device = next(_devices)
        """Differs for each disk, so that no cache takes a file for that of another disk."""
        self._directories: set[int] = set()
        """Numbers of the files that are directories."""
        self._changed_ns: dict[int, int] = {}
        """Time of the last write, by number of the file."""
        self._root_changes = 0

    # -- ends ----------------------------------------------------------------------------------

    def crash(self, model: CrashModel = CrashModel.DROP, random: Random | None = None) -> None:
        """Lose power. Files below a lost directory are lost, too."""
        super().crash(model, random)
        for path in sorted(self._seen):  # a directory comes before its files
            parent = os.path.dirname(path)
            if parent != self.root and parent not in self._seen:
                del self._seen[path]
        self._durable = dict(self._seen)

    def fork(self) -> TreeDisk:
        twin = TreeDisk(self.root)
        self._copy_to(twin)
        twin.now_ns = self.now_ns
        twin._directories = self._directories.copy()
        twin._changed_ns = self._changed_ns.copy()
        twin._root_changes = self._root_changes
        return twin

    # -- looking in from outside ---------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        return {path: data for path, data in super().files().items() if not self._is_tree(path)}

    def directories(self) -> list[str]:
        """Return the paths of all directories below the root, in order."""
        return [path for path in sorted(self._seen) if self._is_tree(path)]

    # -- Disk ----------------------------------------------------------------------------------

    def create(self, path: str, mode: int = 0o666) -> SimFile:
        self._need_parent(path)
        opened = super().create(path)
        assert isinstance(opened, SimFile)
        return opened

    def open(self, path: str, write: bool = False) -> SimFile:
        if self._is_tree(path):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        opened = super().open(path, write)
        assert isinstance(opened, SimFile)
        return opened

    def status(self, path: str) -> Status:
        if path == self.root:
            return Status(self._device, 0, 0, self.now_ns + self._root_changes, True)
        file = self._file(path)
        changed_ns = self._changed_ns.get(file.number, 0)
        is_directory = file.number in self._directories
        return Status(self._device, file.number, len(file.seen.data), changed_ns, is_directory)

    def names(self, directory: str) -> list[str]:
        return self.list(directory)

    def walk(self, top: str) -> Iterator[tuple[str, list[str], list[str]]]:
        if top != self.root and not self._is_tree(top):
            return
        names = self.list(top)
        below = [name for name in names if self._is_tree(f"{top}/{name}")]
        yield top, below, [name for name in names if name not in below]
        for name in below:
            yield from self.walk(f"{top}/{name}")

    def mkdir(self, path: str) -> None:
        if path == self.root or self._is_tree(path):
            return
        self._need_parent(path)
        call = self._begin("mkdir", path)
        if path in self._seen:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._files_made += 1
        file = CachedFile(self._files_made)
        self._directories.add(file.number)
        self._change(None, path, file)
        self.leave(call)

    def link(self, old: str, new: str) -> None:
        call = self._begin("link", new)
        file = self._file(old)
        if new in self._seen:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        self._need_parent(new)
        self._change(None, new, file)
        self.leave(call)

    def drop_cached(self, path: str) -> None:
        """No effect: reads show the cache, durable or not."""

    def is_writable(self, directory: str) -> bool:
        return True

    @contextmanager
    def lock(self, directory: str) -> Iterator[bool]:
        """Give True: one process at a time uses this disk."""
        self.status(directory)
        yield True

    # -- inside --------------------------------------------------------------------------------

    def _is_tree(self, path: str) -> bool:
        return path in self._seen and self._seen[path].number in self._directories

    def _need_parent(self, path: str) -> None:
        parent = os.path.dirname(path)
        if parent != self.root and not self._is_tree(parent):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _change(self, removed: str | None, added: str | None, file: CachedFile) -> None:
        super()._change(removed, added, file)
        parent = os.path.dirname(added or removed or "")
        if parent == self.root:
            self._root_changes += 1
        else:
            self._touch(self._file(parent))
        if file.number not in self._changed_ns:
            self._touch(file)

    def _write(self, file: CachedFile, data: bytes | memoryview, position: int) -> None:
        super()._write(file, data, position)
        self._touch(file)

    def _touch(self, file: CachedFile) -> None:
        # The order of the change keeps two changes at the same moment apart.
        self._changed_ns[file.number] = self.now_ns + self._order
