# Tests: tests/broker/test_cured.py, tests/wal/test_damage_fingerprint.py
"""Fingerprints of damaged places, which tell whether damage has changed.

State that was built from a damaged log lacks the damaged entries. When the place is cured, or more
of it is damaged, that state no longer matches the log. A snapshot therefore names the damage of its
time, and a start compares it before it uses the snapshot (docs/wal-format.rst, section "Snapshot").
Only the damaged bytes are read.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from xxhash import xxh3_64

from brokerd.wal.deletion.deleted_ranges import deleted_ranges
from brokerd.wal.disk import Disk

PIECE_BYTES = 1 << 20

NOT_A_FILE = (errno.EISDIR, errno.ESPIPE, errno.ENXIO)
"""Errors of opening or reading a directory, a pipe or a socket."""


class DamageFingerprint(NamedTuple):
    """A damaged place. Positions are bytes from the start of ``file``, ``end`` is exclusive."""

    file: str
    position: int
    end: int
    checksum: int
    """Of the bytes that the file has there. The file may be short, or missing."""
    inside: tuple[str, ...] = ()
    """Other segment files that begin in the place: a missing one may come back."""

    def lies_in(self, first_lsn: int, end_lsn: int) -> bool:
        """Whether a part of the place lies between two LSNs."""
        if not _is_segment(self.file):
            return False
        start = int(self.file[:20])
        return start + self.position < end_lsn and first_lsn < start + self.end


def fingerprint_damage(
    disk: Disk, path: str, file: str, position: int, end: int
) -> DamageFingerprint:
    """Return the fingerprint of a damaged place as it is now. Raises OSError."""
    checksum = damage_checksum(disk, path, file, position, end)
    inside = _inside(disk, path, file, position, end)
    return DamageFingerprint(file, position, end, checksum, inside)


def is_unchanged(disk: Disk, path: str, known: DamageFingerprint) -> bool:
    """Whether a damaged place is as it was. Raises OSError.

    A place that the disk cannot read is unchanged, and so is a place that was deleted since.
    """
    try:
        if _is_deleted(disk, path, known):
            return True
        return fingerprint_damage(disk, path, *known[:3]) == known
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return True


def _is_deleted(disk: Disk, path: str, known: DamageFingerprint) -> bool:
    """Whether all segments of a place were deleted."""
    if not _is_segment(known.file):
        return False
    first_lsn = int(known.file[:20])
    first, end = first_lsn + known.position, first_lsn + known.end
    is_there = known.file in disk.list(path) or _inside(disk, path, *known[:3])
    return not is_there and deleted_ranges(disk, path).cover(first, end)


def damage_checksum(disk: Disk, path: str, name: str, position: int, end: int) -> int:
    """Return the checksum of the bytes that a file has of a damaged place. Raises OSError.

    A missing file has no bytes.
    """
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
        if error.errno not in NOT_A_FILE:
            raise
    return digest.intdigest()


def _inside(disk: Disk, path: str, name: str, position: int, end: int) -> tuple[str, ...]:
    """Return the names of other segment files that begin in a place."""
    if not _is_segment(name):
        return ()
    first_lsn = int(name[:20])
    low, high = f"{first_lsn + position:020d}", f"{first_lsn + end:020d}"
    names = sorted(disk.list(path))
    return tuple(n for n in names if n.endswith(".wal") and n != name and low <= n[:-4] < high)


def _is_segment(name: str) -> bool:
    return name[:20].isdecimal()
