# Tests: tests/wal/test_repair.py
"""LOST entries, in which a repair records damage (docs/wal-format.rst, "Damage on record").

A record holds the checksum of the damaged bytes. A place that rots further is new damage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgpack

from brokerd.errors import NewerFormat
from brokerd.wal.disk import Disk
from brokerd.wal.recovery.damage_fingerprint import DamageFingerprint, damage_checksum
from brokerd.wal.recovery.report import Damage, LostRange
from brokerd.walformat import Entry, EntryKind


class Loss(NamedTuple):
    """Recorded damage. Positions are bytes in the file, ``end`` is exclusive."""

    file: str
    position: int
    end: int
    checksum: int
    problem: str
    lost: list[LostRange]

    @property
    def place(self) -> DamageFingerprint:
        """The fingerprint of the place. A repair leaves no other file inside of it."""
        return DamageFingerprint(self.file, self.position, self.end, self.checksum)


def encode_loss(loss: Loss) -> Entry:
    """Encode a LOST entry."""
    body = msgpack.packb(loss._asdict() | {"lost": [list(lost) for lost in loss.lost]})
    return Entry(EntryKind.LOST, 0, 0, 0, len(loss.lost), body)


def decode_loss(entry: Entry) -> Loss:
    """Decode a LOST entry. Raises NewerFormat for a body that this version cannot read."""
    try:
        fields = msgpack.unpackb(entry.body)
        loss = Loss(**fields)
        return loss._replace(lost=[LostRange(*lost) for lost in loss.lost])
    except (ValueError, TypeError) as error:
        raise NewerFormat(
            f"an entry that records damage cannot be read ({error}); upgrade brokerd"
        ) from None


def make_loss(disk: Disk, path: str, damage: Damage) -> Loss:
    """Make the record of damage as it is on the disk now. Raises OSError."""
    checksum = damage_checksum(disk, path, damage.name, damage.position, damage.end)
    return Loss(
        damage.name, damage.position, damage.end, checksum, damage.problem, list(damage.lost)
    )


def split_recorded(
    disk: Disk, path: str, damages: Iterable[Damage], records: Iterable[Entry]
) -> tuple[list[Damage], list[Damage]]:
    """Split damage into (new damage, recorded damage) by the LOST entries. Raises OSError."""
    checksums: dict[tuple[str, int, int], set[int]] = {}
    for loss in map(decode_loss, records):
        checksums.setdefault((loss.file, loss.position, loss.end), set()).add(loss.checksum)
    new: list[Damage] = []
    recorded: list[Damage] = []
    for damage in damages:
        place = (damage.name, damage.position, damage.end)
        known = checksums.get(place, ())
        is_recorded = bool(known) and damage_checksum(disk, path, *place) in known
        (recorded if is_recorded else new).append(damage)
    return new, recorded
