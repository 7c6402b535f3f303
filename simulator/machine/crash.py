# Tests: tests/simulator/test_disk.py
"""Compute which unsynced operations survive a loss of power, by one of four models.

docs/simulator.rst, section "Crash models", defines them with sources. Every function depends only
on its arguments and the given random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from random import Random
from typing import NamedTuple

from simulator.machine.page_cache import (
    SECTOR_BYTES,
    CachedFile,
    Image,
    Lost,
    Operation,
    Resize,
    Write,
    sectors,
)


class CrashModel(StrEnum):
    """Which unsynced data survives a loss of power."""

    DROP = "drop"
    """None of it."""
    KEEP = "keep"
    """All of it."""
    TEAR = "tear"
    """A prefix of it, and a piece of the last write."""
    REORDER = "reorder"
    """Any sectors, any size that the file had, and a prefix of the changes of each directory."""


class EntryChange(NamedTuple):
    """An atomic change of a directory. Paths are complete."""

    order: int
    directory: str
    removed: str | None
    added: str | None
    file: CachedFile


class Unsynced(NamedTuple):
    """A disk at the moment of the crash."""

    names: dict[str, CachedFile]
    """Files by path, in the durable directories."""
    changes: list[EntryChange]
    """Unsynced changes of directories, in order."""
    files: tuple[CachedFile, ...]
    """The files that a name may lead to after the crash, in order of creation."""
    junk: list[bytes]
    """Older contents that blocks may still hold."""


class Survivors(NamedTuple):
    """A disk after a crash."""

    names: dict[str, CachedFile]
    images: dict[int, Image]
    """Images by number of the file."""


def survivors(before: Unsynced, model: CrashModel, random: Random) -> Survivors:
    """Return the survivors of a crash by a model; the disk stays unchanged."""
    return _MODELS[model](before, random)


def names_after(
    names: dict[str, CachedFile], changes: Iterable[EntryChange]
) -> dict[str, CachedFile]:
    """Return the directories after some changes."""
    after = dict(names)
    for change in changes:
        if change.removed is not None:
            after.pop(change.removed, None)
        if change.added is not None:
            after[change.added] = change.file
    return after


def _drop(before: Unsynced, random: Random) -> Survivors:
    return Survivors(before.names, {file.number: file.durable for file in before.files})


def _keep(before: Unsynced, random: Random) -> Survivors:
    names = names_after(before.names, before.changes)
    return Survivors(names, {file.number: file.seen for file in before.files})


# -- TEAR ------------------------------------------------------------------------------------------


def _tear(before: Unsynced, random: Random) -> Survivors:
    orders = [order for file in before.files for order in file.unsynced_orders()]
    orders = sorted([*orders, *(change.order for change in before.changes)])
    count = random.randint(0, len(orders))
    last = orders[count - 1] if count else 0
    changes = [change for change in before.changes if change.order <= last]
    images = {file.number: _torn(file, last, random) for file in before.files}
    return Survivors(names_after(before.names, changes), images)


def _torn(file: CachedFile, last: int, random: Random) -> Image:
    """Return a file with the operations up to ``last``, of which a write arrives in part."""
    image = file.durable.copy()
    for operation in file.history():
        if isinstance(operation, Lost):
            reach = len(image.data) - operation.position
            if reach > 0 and random.random() < 0.5:
                image.write(operation.position, operation.data[:reach])
        elif operation.order == last and isinstance(operation, Write):
            image.write(operation.position, operation.data[: _torn_bytes(operation, random)])
        elif operation.order <= last:
            image.apply(operation)
    return image


def _torn_bytes(write: Write, random: Random) -> int:
    """Draw how many bytes of a write arrive: mostly to the end of a sector, sometimes any."""
    if random.random() < 0.25:
        return random.randint(1, len(write.data))
    start = random.choice(sectors(write.position, len(write.data)))
    return min(len(write.data), start + SECTOR_BYTES - write.position)


# -- REORDER ---------------------------------------------------------------------------------------


def _reorder(before: Unsynced, random: Random) -> Survivors:
    changes: list[EntryChange] = []
    for directory in sorted({change.directory for change in before.changes}):
        own = [change for change in before.changes if change.directory == directory]
        changes += own[: random.randint(0, len(own))]
    chance = random.choice((0.1, 0.5, 0.9))
    images = {file.number: _reordered(file, before.junk, chance, random) for file in before.files}
    return Survivors(names_after(before.names, changes), images)


def _reordered(file: CachedFile, junk: list[bytes], chance: float, random: Random) -> Image:
    """Return a file with any versions of its sectors and one of the sizes that it had."""
    cache, platter = file.durable.copy(), file.durable.copy()
    sizes_left = random.randint(0, _size_changes(file))
    size = reach = len(platter.data)
    for operation in file.history():
        before = len(cache.data)
        cache.apply(operation)
        after = len(cache.data)
        if after != before and sizes_left:
            sizes_left -= 1
            size = reach = after
            if after < len(platter.data):
                platter.resize(after)
        elif after != before:
            # This size does not survive. Data past the smaller of both sizes goes to blocks that
            # the file will not have.
            reach = min(reach, after)
        for start, data in _versions(operation, cache):
            if start >= reach:
                continue
            if random.random() < chance:
                platter.write(start, data)
            elif start >= len(platter.data) and junk and random.random() < 0.5:
                platter.write(start, _junk_sector(junk, random))
    if size != len(platter.data):
        platter.resize(size)
    return platter


def _size_changes(file: CachedFile) -> int:
    size = len(file.durable.data)
    count = 0
    for operation in file.history():
        before = size
        if isinstance(operation, Resize):
            size = operation.size
        elif isinstance(operation, Write):
            size = max(size, operation.position + len(operation.data))
        count += size != before
    return count


def _versions(operation: Operation, cache: Image) -> list[tuple[int, bytes]]:
    """Return the sectors that an operation writes, and their bytes."""
    if isinstance(operation, Lost):
        return [(operation.position, operation.data)]
    if isinstance(operation, Resize):
        return []
    touched = sectors(operation.position, len(operation.data))
    return [(start, cache.sector(start)) for start in touched]


def _junk_sector(junk: list[bytes], random: Random) -> bytes:
    source = random.choice(junk)
    start = random.choice(sectors(0, len(source)))
    return source[start : start + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")


_MODELS: dict[CrashModel, Callable[[Unsynced, Random], Survivors]] = {
    CrashModel.DROP: _drop,
    CrashModel.KEEP: _keep,
    CrashModel.TEAR: _tear,
    CrashModel.REORDER: _reorder,
}
