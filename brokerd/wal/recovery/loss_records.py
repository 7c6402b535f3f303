# Tests: tests/wal/test_repair.py
"""Damage that a repair has put on record: LOST entries, and what they say of damage found again.

The layout and the rules are docs/wal-format.rst, section "Damage on record". A record holds the
checksum of the damaged bytes, so that a place that rots further is new damage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgpack

from brokerd.errors import NewerFormat
from brokerd.wal.disk import Disk
from brokerd.wal.recovery.damage_fingerprint import KnownDamage, damaged_checksum
from brokerd.wal.recovery.report import Damage, LostRange
from brokerd.walformat import Entry, EntryKind


class Loss(NamedTuple):
    """A damaged place on record; positions are bytes in the file, ``end`` is exclusive."""

    file: str
    position: int
    end: int
    checksum: int
    problem: str
    lost: list[LostRange]

    @property
    def place(self) -> KnownDamage:
        """The place as it was recorded; a repair leaves no file inside of one."""
        return KnownDamage(self.file, self.position, self.end, self.checksum)


def encode_loss(loss: Loss) -> Entry:
    """The log entry that puts damage on record."""
    body = msgpack.packb(loss._asdict() | {"lost": [list(lost) for lost in loss.lost]})
    return Entry(EntryKind.LOST, 0, 0, 0, len(loss.lost), body)


def decode_loss(entry: Entry) -> Loss:
    """What a LOST entry says. Raises NewerFormat for a body that this version cannot read."""
    try:
        fields = msgpack.unpackb(entry.body)
        loss = Loss(**fields)
        return loss._replace(lost=[LostRange(*lost) for lost in loss.lost])
    except (ValueError, TypeError) as error:
        raise NewerFormat(
            f"an entry that records damage cannot be read ({error}); upgrade brokerd"
        ) from None


def record_of(disk: Disk, path: str, damage: Damage) -> Loss:
    """The record of damage as it is on the disk now. Raises OSError."""
    checksum = damaged_checksum(disk, path, damage.name, damage.position, damage.end)
    return Loss(
        damage.name, damage.position, damage.end, checksum, damage.problem, list(damage.lost)
    )


def tell_apart(
    disk: Disk, path: str, damages: Iterable[Damage], records: Iterable[Entry]
) -> tuple[list[Damage], list[Damage]]:
    """(new damages, those on record), by the LOST entries of the log. Raises OSError."""
    known: dict[tuple[str, int, int], set[int]] = {}
    for loss in map(decode_loss, records):
        known.setdefault((loss.file, loss.position, loss.end), set()).add(loss.checksum)
    new: list[Damage] = []
    recorded: list[Damage] = []
    for damage in damages:
        place = (damage.name, damage.position, damage.end)
        checksums = known.get(place, ())
        is_known = bool(checksums) and damaged_checksum(disk, path, *place) in checksums
        (recorded if is_known else new).append(damage)
    return new, recorded
