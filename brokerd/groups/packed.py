# Tests: tests/groups/test_packed.py
"""A packed lease store: the bytes of its snapshot, and what can be read from them as they are.

A lease store takes kilobytes in memory. The bytes of a small one take a hundred. `pack` encodes at
time 0, so the times in the bytes are those of the store's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import repeat
from struct import Struct, calcsize
from typing import NamedTuple

from brokerd.groups.bitmaps import FULL, FloorSet, Run
from brokerd.groups.rows import BLOCK_SHIFT
from brokerd.groups.settings import GroupSettings
from brokerd.groups.snapshot import (
    BLOCK_BITS_BYTES,
    COUNT_FIELDS,
    HEADER_FIELDS,
    KEY_FIELDS,
    LEASE_COLUMNS,
    RUN_FIELDS,
    SECTION_HEAD,
    VERSION,
    WORD_BYTES,
    Section,
    owner_json,
)
from brokerd.groups.snapshot_decode import section_ranges, settings_of_text
from brokerd.groups.store import LeaseStore
from brokerd.groups.view import END_OF_OFFSETS, NO_OFFSET
from brokerd.walformat import EventKind, GroupEvent

PACKED_BYTES_MAX = 4_096
"""A store with a longer encoding stays as it is."""
PACKED_ENTRIES_MAX = 64
"""A store with more words, blocks and leases is not encoded, because it would be too long."""

_CONFIGURED = int(EventKind.CONFIGURED)
_SEEK = int(EventKind.SEEK)
_PAUSED = int(EventKind.PAUSED)
_RESUMED = int(EventKind.RESUMED)
_COMMITTED = int(EventKind.COMMITTED)
_DELETED = int(EventKind.DELETED)

_ROW_BYTES: dict[int, int] = {Section.RETURNED: 24, Section.DELAYED: 8, Section.DEAD: 28}
_END_BYTES = SECTION_HEAD.size + COUNT_FIELDS.size
_END_OF_PLAIN = SECTION_HEAD.pack(Section.END, COUNT_FIELDS.size) + COUNT_FIELDS.pack(1)
_HEADER_END = SECTION_HEAD.size + HEADER_FIELDS.size
_PLAIN_BYTES = _HEADER_END + _END_BYTES
_OFFSETS = Struct("<qq")
_OFFSETS_AT = SECTION_HEAD.size + 2
"""Position of floor and cursor in the encoding."""
_TIME = Struct("<q")
_EPOCH_AT = _HEADER_END - _TIME.size - 1
_DEADLINE_AT = calcsize("<" + LEASE_COLUMNS[:1])
_DURATION_AT = calcsize("<" + LEASE_COLUMNS[:6])
"""Bytes of the columns before these of a table of leases, for each lease."""


class Position(NamedTuple):
    """Floor and counts of a group partition."""

    floor: int
    settled_above: int
    """Number of records above the floor that are settled or dead."""
    leased: int
    ready: int
    delayed: int
    dead: int
    committed: int
    last_token: int
    paused: bool

    def lag(self, end: int) -> int:
        """Return the number of records below ``end`` that are neither settled nor dead."""
        return max(end - self.floor - self.settled_above, 0)


def position_of(store: LeaseStore) -> Position:
    """Return the position of a store."""
    return Position(
        store.floor,
        store.settled_above,
        store.leased,
        store.ready,
        store.delayed,
        store.dead,
        store.committed,
        store.last_token,
        store.paused,
    )


def pack(store: LeaseStore) -> bytes | None:
    """Return the bytes of a store; None if it is too large or has blocked records."""
    if store.entries > PACKED_ENTRIES_MAX or store.blocked:
        return None
    packed = b"".join(store.freeze(0).encode())
    return packed if len(packed) <= PACKED_BYTES_MAX else None


def plain(floor: int, token: int) -> bytes:
    """Return the bytes of a store without records above its floor, and without settings."""
    header = HEADER_FIELDS.pack(VERSION, floor, floor, token, NO_OFFSET, 0, False)
    return SECTION_HEAD.pack(Section.HEADER, len(header)) + header + _END_OF_PLAIN


def change(
    packed: bytes,
    own_settings: GroupSettings | None = None,
    floor: int | None = None,
    pauses: bool | None = None,
) -> tuple[bytes, list[GroupEvent]]:
    """Change the settings, seek to a floor, pause or end a pause in the bytes of a plain store.

    Return the new bytes and the events of the change. None leaves a part as it is. An open store
    gives the same, but takes ten times as long.
    """
    fields = HEADER_FIELDS.unpack_from(packed, SECTION_HEAD.size)
    version, first, cursor, token, committed, epoch_us, paused = fields
    text = packed[_HEADER_END : len(packed) - _END_BYTES]
    events: list[GroupEvent] = []
    if own_settings is not None:
        json_text = own_settings.to_json()
        text = json_text.encode()
        events.append((_CONFIGURED, 0, 0, 0, 0, "", json_text))
    if floor is not None:
        first = cursor = floor
        events.append((_SEEK, floor, 0, 0, 0, "", ""))
        if committed != NO_OFFSET:
            committed = floor
            events.append((_COMMITTED, floor, 0, 0, 0, "", ""))
    if pauses is not None and pauses != bool(paused):
        paused = pauses
        events.append((_PAUSED if pauses else _RESUMED, 0, 0, 0, 0, "", ""))
    header = HEADER_FIELDS.pack(version, first, cursor, token, committed, epoch_us, paused) + text
    return SECTION_HEAD.pack(Section.HEADER, len(header)) + header + _END_OF_PLAIN, events


def deletion(packed: bytes) -> GroupEvent:
    """Return the event that deletes a packed store."""
    return (_DELETED, 0, 0, last_token(packed), 0, "", "")


def can_stay_packed(encoded: bytes) -> bool:
    """Return whether the other functions can read an encoding. Older versions must be decoded.

    Raises DamagedData for sections that do not fit together.
    """
    if len(encoded) > PACKED_BYTES_MAX or len(encoded) < _PLAIN_BYTES:
        return False
    section, size, version = Struct("<BIH").unpack_from(encoded)
    if section != Section.HEADER or version != VERSION or size < HEADER_FIELDS.size:
        return False
    *parts, (kind, start, end) = section_ranges(encoded)
    return kind == Section.END and encoded[start:end] == COUNT_FIELDS.pack(len(parts))


def is_plain(packed: bytes) -> bool:
    """Return whether all records below the cursor are settled and forgotten."""
    return len(packed) - _END_BYTES == SECTION_HEAD.size + int.from_bytes(packed[1:5], "little")


def cursor(packed: bytes) -> int:
    """Return the lowest offset that was never leased or settled."""
    offset: int = _OFFSETS.unpack_from(packed, _OFFSETS_AT)[1]
    return offset


def last_token(packed: bytes) -> int:
    """Return the token of the latest grant."""
    token: int = HEADER_FIELDS.unpack_from(packed, SECTION_HEAD.size)[3]
    return token


def may_own(packed: bytes, owner: str) -> bool:
    """Return False if ``owner`` surely has no lease. O(the bytes), a microsecond for most."""
    named = _owner_json(owner)
    return named in packed and any(
        kind == Section.OWNERS and packed.find(named, start, end) >= 0
        for kind, start, end in section_ranges(packed)
    )


_owner_json = lru_cache(maxsize=64)(owner_json)


def lowest_open(packed: bytes) -> int:
    """Return the lowest eligible offset, which may not be assigned yet.

    A group with key order may have to wait for its key. A paused group has none.
    """
    if packed[_HEADER_END - 1]:
        return END_OF_OFFSETS
    lowest = cursor(packed)
    if is_plain(packed):
        return lowest
    ready: dict[int, int] = {}
    for kind, start, end in section_ranges(packed):
        if kind == Section.RETURNED:
            ready.update((key, bits) for key, bits, _ in _blocks(packed, start, end, kind))
        elif kind == Section.DELAYED:
            for key, bits, _ in _blocks(packed, start, end, kind):
                ready[key] &= ~bits
    for key, bits in ready.items():
        if bits:
            lowest = min(lowest, (key << BLOCK_SHIFT) + (bits & -bits).bit_length() - 1)
    return lowest


def settings(packed: bytes) -> GroupSettings | None:
    """Return the group's own settings, if it has any."""
    end = SECTION_HEAD.size + int.from_bytes(packed[1:5], "little")
    return settings_of_text(packed[_HEADER_END:end]) if end > _HEADER_END else None


def raise_floor(packed: bytes, floor: int) -> bytes:
    """Settle the records below ``floor`` in the bytes of a plain store."""
    first, _ = _OFFSETS.unpack_from(packed, _OFFSETS_AT)
    if floor <= first:
        return packed
    changed = bytearray(packed)
    _OFFSETS.pack_into(changed, _OFFSETS_AT, floor, floor)
    return bytes(changed)


def floor(packed: bytes) -> int:
    """Return the lowest offset that is neither settled nor dead."""
    offset: int = _OFFSETS.unpack_from(packed, _OFFSETS_AT)[0]
    return offset


def restart(packed: bytes, at_us: int, now_us: int, behind_us: int) -> tuple[bytes, int | None]:
    """Restart every lease with its full duration, as `LeaseStore.resume` does.

    Times in ``packed`` are relative to ``at_us``. Return bytes with times relative to ``now_us``,
    and the time at which the first lease or delay ends, if there is one.
    """
    shift_us = at_us - behind_us - now_us
    changed = bytearray(packed)
    _TIME.pack_into(changed, _EPOCH_AT, _TIME.unpack_from(packed, _EPOCH_AT)[0] + shift_us)
    due: list[int] = []
    for kind, start, end in () if is_plain(packed) else section_ranges(packed):
        if kind == Section.LEASES:
            count = COUNT_FIELDS.unpack_from(packed, start)[0]
            times = Struct(f"<{count}q")
            columns = start + COUNT_FIELDS.size
            durations = times.unpack_from(packed, columns + _DURATION_AT * count)
            left = [duration if duration > 0 else -1 for duration in durations]
            times.pack_into(changed, columns + _DEADLINE_AT * count, *left)
            due.append(now_us + min(left) + 1)
        elif kind == Section.DELAYED:
            for _, bits, rows_at in _blocks(packed, start, end, kind):
                times = Struct(f"<{bits.bit_count()}q")
                ready = [one + shift_us for one in times.unpack_from(packed, rows_at)]
                times.pack_into(changed, rows_at, *ready)
                due.append(now_us + min(ready))
    return bytes(changed), min(due, default=None)


def position(packed: bytes) -> Position:
    """Return the position of a packed store. O(its bytes)."""
    header = HEADER_FIELDS.unpack_from(packed, SECTION_HEAD.size)
    _, floor, _, token, committed, _, paused = header
    if is_plain(packed):
        return Position(floor, 0, 0, 0, 0, 0, committed, token, bool(paused))
    rows = dict.fromkeys(_ROW_BYTES, 0)
    leased = 0
    words: dict[int, int] = {}
    runs: list[Run] = []
    for kind, start, end in section_ranges(packed):
        if kind in _ROW_BYTES:
            blocks = _blocks(packed, start, end, kind)
            rows[kind] += sum(bits.bit_count() for _, bits, _ in blocks)
        elif kind == Section.LEASES:
            leased += COUNT_FIELDS.unpack_from(packed, start)[0]
        elif kind == Section.SETTLED:
            step = KEY_FIELDS.size + WORD_BYTES
            for at in range(start, end, step):
                bits = packed[at + KEY_FIELDS.size : at + step]
                words[KEY_FIELDS.unpack_from(packed, at)[0]] = int.from_bytes(bits, "little")
        elif kind == Section.SETTLED_FULL:
            keys = (key for (key,) in KEY_FIELDS.iter_unpack(packed[start:end]))
            words.update(zip(keys, repeat(FULL)))
        elif kind == Section.SETTLED_RUNS:
            runs += RUN_FIELDS.iter_unpack(packed[start:end])
    settled = FloorSet()
    settled.load(floor, words, runs)
    delayed = rows[Section.DELAYED]
    return Position(
        floor,
        settled.above,
        leased,
        rows[Section.RETURNED] - delayed,
        delayed,
        rows[Section.DEAD],
        committed,
        token,
        bool(paused),
    )


def _blocks(packed: bytes, start: int, end: int, kind: int) -> Iterator[tuple[int, int, int]]:
    """Yield key, bits and position of the rows of each block of a section."""
    row_bytes = _ROW_BYTES[kind]
    while start < end:
        bits_at = start + KEY_FIELDS.size
        rows_at = bits_at + BLOCK_BITS_BYTES
        bits = int.from_bytes(packed[bits_at:rows_at], "little")
        yield KEY_FIELDS.unpack_from(packed, start)[0], bits, rows_at
        start = rows_at + bits.bit_count() * row_bytes
