# Tests: tests/wal/test_repair.py
"""Copies of what a repair is going to change, and the list of them: ``manifest.json``.

The list is written last, so a directory without one is of a repair that changed nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, NamedTuple

from brokerd.wal.disk import Disk, write_atomically

PIECE_BYTES = 1 << 20
MANIFEST = "manifest.json"


class Source(NamedTuple):
    """Bytes ``position`` to ``end`` of a file."""

    path: str
    position: int
    end: int


class Copies:
    """Copies into one directory, which must be new or without a list. Methods raise OSError."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._items: list[dict[str, Any]] = []

    def add(self, source: Source, name: str, facts: dict[str, Any]) -> None:
        """Copy a stretch of a file under ``name``, and list it with ``facts``."""
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

    def note(self, facts: dict[str, Any]) -> None:
        """List something of which no copy is needed."""
        self._items.append(facts | {"copy": None, "sha256": None})

    def finish(self, stamp: str) -> None:
        """Write the list; from then on the originals may be changed."""
        self._disk.make_directory(self._directory)
        content = {"format": 1, "made": stamp, "items": self._items}
        data = json.dumps(content, indent=1).encode()
        write_atomically(self._disk, self._directory, MANIFEST, [data])
