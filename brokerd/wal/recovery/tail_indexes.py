# Tests: tests/wal/test_cut_short.py, tests/wal/test_damage_fingerprint.py
"""Index files at the end of a log whose last segments are short or missing.

The log writes an index once its segment is complete and synced. So a sound index proves how far the
log had got, and which offsets it held. Only indexes at the end matter: elsewhere the next segment
shows where the missing part ends. The rules are docs/wal-format.rst, section "Reading a log back".
Read-only.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from brokerd.errors import DamagedData
from brokerd.wal.disk import Disk
from brokerd.wal.index_files import load_any_spans
from brokerd.walformat.index import IndexHeader, PartitionSpan

_NAME = re.compile(r"[0-9]{20}\.idx")


class TailIndex(NamedTuple):
    """The header and the directory of a sound index file."""

    header: IndexHeader
    spans: list[PartitionSpan]


class MissingFile:
    """An empty file in place of a missing segment whose index is left."""

    def size(self) -> int:
        return 0

    def pread(self, length: int, position: int) -> bytes:
        return b""

    def pwrite(self, data: bytes, position: int) -> None:
        raise FileNotFoundError("the segment is gone")

    def sync(self) -> None:
        raise FileNotFoundError("the segment is gone")

    def truncate(self, size: int) -> None:
        raise FileNotFoundError("the segment is gone")

    def close(self) -> None:
        """Do nothing, since nothing is open."""


def find_tail_indexes(disk: Disk, path: str, from_lsn: int) -> list[TailIndex]:
    """Return the sound indexes of the segment at ``from_lsn`` and of later missing segments.

    A later segment that exists was begun by a running broker since the caller listed the directory.
    Damaged indexes are left out: where the segment is read, its index is made again. Raises
    NewerFormat.
    """
    found = []
    names = disk.list(path)
    for name in sorted(names):
        if _NAME.fullmatch(name) is None or int(name[:20]) < from_lsn:
            continue
        if int(name[:20]) > from_lsn and f"{name[:20]}.wal" in names:
            continue
        try:
            index = TailIndex(*load_any_spans(disk, path, name))
        except (DamagedData, OSError):
            continue
        header = index.header
        if header.first_lsn == int(name[:20]) and header.end_lsn > header.first_lsn:
            found.append(index)
    return found
