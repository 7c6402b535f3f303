# Tests: tests/wal/test_repair.py
"""Copies of the bytes that a repair changes, with a list of them: ``manifest.json``.

The list is written last. A directory without a list belongs to a repair that changed nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, NamedTuple

from brokerd.wal.disk import Disk, write_atomically

PIECE_BYTES = 1 << 20
MANIFEST = "manifest.json"


class ByteRange(NamedTuple):
    """Bytes ``position`` to ``end`` of a file."""

    path: str
    position: int
    end: int


class BackupWriter:
    """Writes copies and their list into one directory without a list. Raises OSError."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._items: list[dict[str, Any]] = []

    def copy(self, source: ByteRange, name: str, facts: dict[str, Any]) -> None:
        """Copy bytes to a file ``name``, and list it with ``facts``."""
        self._disk.make_directory(self._directory)
        target = os.path.join(self._directory, name)
        if name in self._disk.list(self._directory):
            self._disk.unlink(target)
        digest = hashlib.sha256()
        original = self._disk.open(source.path)
        copy = self._disk.create(target)
        for position in range(source.position, source.end, PIECE_BYTES):
            data = original.pread(min(PIECE_BYTES, source.end - position), position)
            copy.pwrite(data, position - source.position)
            digest.update(data)
        copy.sync()
        self._items.append(facts | {"copy": name, "sha256": digest.hexdigest()})

    def list_only(self, facts: dict[str, Any]) -> None:
        """List ``facts`` of something that needs no copy."""
        self._items.append(facts | {"copy": None, "sha256": None})

    def finish(self, stamp: str) -> None:
        """Write the list, durably. The originals may change after that.

        The names of the directory and of its parent too: an earlier repair may have made them, and
        ended before it synced them.
        """
        self._disk.make_directory(self._directory)
        content = {"format": 1, "made": stamp, "items": self._items}
        data = json.dumps(content, indent=1).encode()
        write_atomically(self._disk, self._directory, MANIFEST, [data])
        parent = os.path.dirname(self._directory)
        for directory in (parent, os.path.dirname(parent)):
            self._disk.sync_directory(directory)
