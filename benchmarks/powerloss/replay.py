# Tests: tests/powerloss/test_replay.py
"""Build from a recording the directory after a power loss.

Three models, in the terms of docs/simulator.rst. Names and bytes are independent: a name is durable
once its directory is synced, bytes are durable once their file is synced.

* ``synced``: only synced data is left (DROP).
* ``sectors``: any sectors of 512 bytes, any size that a file had, and of each directory a
  prefix of its changes (REORDER).
* ``metadata``: all names and all sizes are left, and any sectors of the unsynced bytes; the other
  sectors are zeros.

A rename to another directory is two changes, one of each directory. A power loss may leave both
names or none until both directories are synced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import islice
from pathlib import Path
from random import Random

from simulator.machine.crash import CrashModel, EntryChange, Survivors, Unsynced, survivors
from simulator.machine.page_cache import CachedFile, Image, Resize, Write, sectors

from .recording import ROOT, Kind, Operation

_FILE_MODE, _DIRECTORY_MODE = 0o640, 0o750


class Model(StrEnum):
    """The part of the unsynced data that a power loss leaves."""

    SYNCED = "synced"
    SECTORS = "sectors"
    METADATA = "metadata"


class Replay:
    """A disk to which the operations of a recording are applied in order."""

    def __init__(self) -> None:
        self.position = 0
        """The number of applied operations."""
        self._files: dict[int, CachedFile] = {ROOT: CachedFile(ROOT)}
        """Files and directories; directories are empty."""
        self._directories = {ROOT}
        self._durable: dict[str, CachedFile] = {}
        """The file for each durable "directory/name"."""
        self._changes: dict[int, list[EntryChange]] = {}
        """By directory, in order: the changes that no sync has made durable."""
        self._calls: dict[Kind, Callable[[Operation], None]] = {
            Kind.CREATE: self._create,
            Kind.MKDIR: self._mkdir,
            Kind.LINK: self._link,
            Kind.RENAME: self._rename,
            Kind.UNLINK: self._unlink,
            Kind.WRITE: self._write,
            Kind.RESIZE: self._resize,
            Kind.SYNC: self._sync,
        }

    def apply(self, operation: Operation) -> None:
        """Apply the next operation."""
        self._calls[operation.kind](operation)
        self.position += 1

    def lose_power(self, model: Model, random: Random) -> Survivors:
        """Choose and return the content that a power loss leaves now; the disk stays unchanged."""
        changes = [change for some in self._changes.values() for change in some]
        changes.sort(key=lambda change: change.order)
        reachable = [*self._durable.values(), *(change.file for change in changes)]
        files = {file.number: file for file in reachable}
        unsynced = Unsynced(self._durable, changes, tuple(files.values()), [])
        if model is Model.SYNCED:
            return survivors(unsynced, CrashModel.DROP, random)
        if model is Model.SECTORS:
            return survivors(unsynced, CrashModel.REORDER, random)
        kept = survivors(unsynced, CrashModel.KEEP, random)
        chance = random.choice((0.0, 0.5, 0.9))
        images = {file.number: _without_data(file, chance, random) for file in files.values()}
        return Survivors(kept.names, images)

    def write(self, left: Survivors, path: Path) -> None:
        """Write the survivors of a power loss into a new directory."""
        entries: dict[int, list[tuple[str, CachedFile]]] = {}
        for place, file in left.names.items():
            directory, _, name = place.partition("/")
            entries.setdefault(int(directory), []).append((name, file))
        path.mkdir(mode=_DIRECTORY_MODE)
        written: dict[int, Path] = {}
        rest = [(ROOT, path)]
        while rest:
            directory_number, directory_path = rest.pop()
            for name, file in entries.get(directory_number, ()):
                place_path = directory_path / name
                if file.number in self._directories:
                    place_path.mkdir(mode=_DIRECTORY_MODE)
                    rest.append((file.number, place_path))
                elif file.number in written:
                    os.link(written[file.number], place_path)
                else:
                    _write_file(place_path, left.images[file.number])
                    written[file.number] = place_path

    # -- operations ------------------------------------------------------------------------------

    def _create(self, operation: Operation) -> None:
        self._files[operation.number] = CachedFile(operation.number)
        self._link(operation)

    def _mkdir(self, operation: Operation) -> None:
        self._directories.add(operation.number)
        self._create(operation)

    def _link(self, operation: Operation) -> None:
        self._change(operation, added=_place(operation.directory, operation.name))

    def _unlink(self, operation: Operation) -> None:
        self._change(operation, removed=_place(operation.directory, operation.name))

    def _rename(self, operation: Operation) -> None:
        old = _place(operation.directory, operation.name)
        new = _place(operation.new_directory, operation.new_name)
        if operation.directory == operation.new_directory:
            self._change(operation, removed=old, added=new)
            return
        self._change(operation, removed=old)
        self._change(operation._replace(directory=operation.new_directory), added=new)

    def _change(
        self, operation: Operation, removed: str | None = None, added: str | None = None
    ) -> None:
        directory = operation.directory
        file = self._files[operation.number]
        change = EntryChange(self.position, str(directory), removed, added, file)
        self._changes.setdefault(directory, []).append(change)

    def _write(self, operation: Operation) -> None:
        file = self._files[operation.number]
        file.write(self.position, operation.position, operation.data)

    def _resize(self, operation: Operation) -> None:
        self._files[operation.number].resize(self.position, operation.position)

    def _sync(self, operation: Operation) -> None:
        covered = operation.position - 1
        if operation.number not in self._directories:
            self._files[operation.number].sync(covered)
            return
        changes = self._changes.get(operation.number, [])
        for change in changes:
            if change.order <= covered:
                if change.removed is not None:
                    self._durable.pop(change.removed, None)
                if change.added is not None:
                    self._durable[change.added] = change.file
        self._changes[operation.number] = [one for one in changes if one.order > covered]


def replay_to(operations: Iterable[Operation], position: int) -> Replay:
    """Apply the first ``position`` operations and return the disk."""
    replay = Replay()
    for operation in islice(operations, position):
        replay.apply(operation)
    return replay


def _place(directory: int, name: str) -> str:
    return f"{directory}/{name}"


def _without_data(file: CachedFile, chance: float, random: Random) -> Image:
    """Return the file with its last size; an unsynced sector is new or old."""
    disk, cache = file.durable.copy(), file.durable.copy()
    for operation in file.history():
        cache.apply(operation)
        if isinstance(operation, Resize):
            disk.resize(operation.size)
        elif isinstance(operation, Write):
            disk.resize(len(cache.data))
            for start in sectors(operation.position, len(operation.data)):
                if random.random() < chance:
                    disk.write(start, cache.sector(start))
    return disk


def _write_file(path: Path, image: Image) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
    with open(descriptor, "wb") as file:
        file.write(image.data)
