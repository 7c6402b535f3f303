# Tests: tests/wal/test_cut_short.py
"""What indexes tell of the end of a log whose last files are short or gone.

An index is written once its segment is complete and synced, so a sound one proves how far the log
had got and which offsets it held. Only the indexes at the end of the log are asked: what is missing
before another segment is told by that one. The rules are docs/wal-format.rst, section "Reading a
log back". Read-only.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from brokerd.errors import DamagedData
from brokerd.wal.disk import Disk
from brokerd.wal.index_files import load_any_spans
from brokerd.walformat.index import IndexHeader, PartitionSpan

_NAME = re.compile(r"[0-9]{20}\.idx")


class LastIndex(NamedTuple):
    """The header and the directory of a sound index file."""

    header: IndexHeader
    spans: list[PartitionSpan]


class GoneFile:
    """Stands for a segment of which only the index is left: an empty file."""

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
        """Nothing is open."""


def last_indexes(disk: Disk, path: str, from_lsn: int) -> list[LastIndex]:
    """The sound indexes of the segment at ``from_lsn``, and of later ones that are gone, in order.

    A damaged one says nothing here. A later segment that is there was begun by a running broker
    since the caller looked. Raises NewerFormat.
    """
    found = []
    names = disk.list(path)
    for name in sorted(names):
        if _NAME.fullmatch(name) is None or int(name[:20]) < from_lsn:
            continue
        if int(name[:20]) > from_lsn and f"{name[:20]}.wal" in names:
            continue
        try:
            index = LastIndex(*load_any_spans(disk, path, name))
        except (DamagedData, OSError):
            continue  # told where its segment is read, which makes it again
        header = index.header
        if header.first_lsn == int(name[:20]) and header.end_lsn > header.first_lsn:
            found.append(index)
    return found
