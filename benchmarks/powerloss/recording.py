# Tests: tests/powerloss/test_replay.py
"""A recording of a file system: each operation that changed it, and each sync, in order.

The file is a sequence of MessagePack arrays, an :class:`Operation` each. Files and directories have
numbers, which outlive their names; the root is number 1. A position in a recording is a count of
operations. While the recorder runs, the file ``RECORDING.count`` holds the position, 8 bytes in the
machine's byte order, for other processes to map.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgpack

ROOT = 1
_COUNT = struct.Struct("@Q")  # Native: copied in one piece, not byte by byte.
_BUFFER_BYTES = 1 << 20


class Kind(StrEnum):
    """The kind of an operation."""

    CREATE = "create"
    """A new file ``number`` gets the name ``name`` in ``directory``."""
    MKDIR = "mkdir"
    """A new directory ``number`` gets the name ``name`` in ``directory``."""
    LINK = "link"
    """The file ``number`` gets another name."""
    RENAME = "rename"
    """``number``, named ``name`` in ``directory``, becomes ``new_name`` in ``new_directory``."""
    UNLINK = "unlink"
    """The file or directory ``number`` loses the name ``name`` in ``directory``."""
    WRITE = "write"
    """``data`` is written at ``position``."""
    RESIZE = "resize"
    """The size becomes ``position``."""
    SYNC = "sync"
    """A sync of a file or directory ended; it covers the operations before ``position``."""


class Operation(NamedTuple):
    """One operation. Positions of files are bytes; those of a SYNC count operations."""

    kind: Kind
    number: int
    directory: int = 0
    name: str = ""
    position: int = 0
    data: bytes = b""
    new_directory: int = 0
    new_name: str = ""


class Recorder:
    """Appends operations to a new recording."""

    def __init__(self, path: Path) -> None:
        self.position = 0
        self._file = path.open("xb", buffering=_BUFFER_BYTES)
        self._pack = msgpack.Packer(unicode_errors="surrogateescape").pack
        self._count = _map_count(path, create=True)

    def append(self, operation: Operation) -> None:
        """Append an operation, then advance the position for other processes."""
        self._file.write(self._pack(operation))
        self.position += 1
        _COUNT.pack_into(self._count, 0, self.position)

    def close(self) -> None:
        """Write out the buffer and close the files."""
        self._file.close()
        self._count.close()


class Position:
    """Reads the position of a recording that another process appends to."""

    def __init__(self, path: Path) -> None:
        self._count = _map_count(path, create=False)

    def __call__(self) -> int:
        position: int = _COUNT.unpack_from(self._count, 0)[0]
        return position


def read_recording(path: Path) -> Iterator[Operation]:
    """Yield the operations of a recording in order."""
    with path.open("rb") as file:
        unpacker = msgpack.Unpacker(
            file, use_list=False, unicode_errors="surrogateescape", max_buffer_size=0
        )
        for kind, *rest in unpacker:
            yield Operation(Kind(kind), *rest)


def _map_count(path: Path, create: bool) -> mmap.mmap:
    count = path.with_name(path.name + ".count")
    if create:
        count.write_bytes(_COUNT.pack(0))
    with count.open("r+b") as file:
        return mmap.mmap(file.fileno(), _COUNT.size)
