# Tests: tests/broker/test_cured.py
"""Damaged places as they were when somebody looked, and whether they still are.

State that was made while the log was damaged is the state of that log: it leaves out what the
damage may have held. When the place is cured, or rots further, it is the state of no log that there
is. So a snapshot names the places that were damaged when it was taken, and a start compares them
before it uses it (docs/wal-format.rst, section "Snapshot"). Only the damaged bytes are read.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from xxhash import xxh3_64

from brokerd.wal.deletion.deleted_ranges import deleted_ranges
from brokerd.wal.disk import Disk

PIECE_BYTES = 1 << 20

_IS_NO_FILE = (errno.EISDIR, errno.ESPIPE, errno.ENXIO)
"""What opening or reading a directory, a pipe or a socket says."""


class KnownDamage(NamedTuple):
    """A damaged place; positions are bytes from the start of ``file``, ``end`` is exclusive."""

    file: str
    position: int
    end: int
    checksum: int
    """Of the bytes that the file has there: it may be short, or gone."""
    inside: tuple[str, ...] = ()
    """Names of other segment files that begin in the place: one that was missing may come back."""

    def lies_in(self, first_lsn: int, end_lsn: int) -> bool:
        """Whether any of it lies between two LSNs."""
        if not self.file[:20].isdecimal():
            return False  # no segment
        start = int(self.file[:20])
        return start + self.position < end_lsn and first_lsn < start + self.end


def known_damage(disk: Disk, path: str, file: str, position: int, end: int) -> KnownDamage:
    """A damaged place of a log's directory as it is now. Raises OSError."""
    checksum = damaged_checksum(disk, path, file, position, end)
    return KnownDamage(file, position, end, checksum, _inside(disk, path, file, position, end))


def is_unchanged(disk: Disk, path: str, known: KnownDamage) -> bool:
    """Whether a place is damaged as it was. One that the disk refuses to read is not cured.

    Nor is one that was deleted since, on purpose. Raises OSError.
    """
    try:
        if _is_deleted(disk, path, known):
            return True
        return known_damage(disk, path, *known[:3]) == known
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return True


def _is_deleted(disk: Disk, path: str, known: KnownDamage) -> bool:
    """Whether all segments of a place were deleted."""
    if not known.file[:20].isdecimal():
        return False  # no segment
    first_lsn = int(known.file[:20])
    first, end = first_lsn + known.position, first_lsn + known.end
    is_there = known.file in disk.list(path) or _inside(disk, path, *known[:3])
    return not is_there and deleted_ranges(disk, path).cover(first, end)


def damaged_checksum(disk: Disk, path: str, name: str, position: int, end: int) -> int:
    """The checksum of what a file has of a damaged place; it may be gone. Raises OSError."""
    digest = xxh3_64()
    try:
        file = disk.open(os.path.join(path, name))
        while position < end:
            data = file.pread(min(PIECE_BYTES, end - position), position)
            if not data:
                break
            digest.update(data)
            position += len(data)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in _IS_NO_FILE:
            raise
    return digest.intdigest()


def _inside(disk: Disk, path: str, name: str, position: int, end: int) -> tuple[str, ...]:
    """Other segment files whose names are LSNs of the place."""
    if not name[:20].isdecimal():
        return ()  # no segment
    first_lsn = int(name[:20])
    low, high = f"{first_lsn + position:020d}", f"{first_lsn + end:020d}"
    names = sorted(disk.list(path))
    return tuple(n for n in names if n.endswith(".wal") and n != name and low <= n[:-4] < high)
