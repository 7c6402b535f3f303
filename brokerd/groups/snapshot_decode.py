# Tests: tests/groups/test_snapshot.py, tests/groups/test_model.py
"""Decodes the snapshot of a group partition, of this version or an older one.

`brokerd.groups.snapshot` describes the layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import repeat
from struct import Struct, calcsize, unpack_from
from typing import Any

from brokerd.errors import DamagedData, InvalidRequest, NewerFormat
from brokerd.groups.bitmaps import FULL, Run
from brokerd.groups.rows import OffsetRows
from brokerd.groups.settings import GroupSettings
from brokerd.groups.snapshot import (
    BLOCK_BITS_BYTES,
    COUNT_FIELDS,
    HEADER_FIELDS,
    KEY_COLUMNS,
    KEY_FIELDS,
    LEASE_COLUMNS,
    RUN_FIELDS,
    SECTION_HEAD,
    VERSION,
    WORD_BYTES,
    Section,
)
from brokerd.groups.state import GroupState, word_of_block

OLD_HEADER_FIELDS = Struct("<HqqQq")
"""The header up to version 3: version, floor, cursor, last token, committed."""
OLD_RETURNED_LAYOUT = Struct("<IIQ")
OLD_DEAD_LAYOUT = Struct("<III")
OLD_LEASE_TYPES = (int, int, str, int, int, int, int)

SETTINGS_KEPT = LAYOUTS_KEPT = 64
"""Sizes of caches of decoded values that many groups share."""


def load(state: GroupState, data: bytes | Iterable[bytes], now_us: int) -> None:
    """Load a snapshot into a new ``state``, with times relative to ``now_us``.

    The state keeps its settings if the snapshot has none. Attempts from an older version without
    times count as attempts at ``now_us``.
    Raises DamagedData for sections that do not fit together, NewerFormat for a later version.
    """
    decoder: _Decoder | None = None
    found = 0
    for section, payload in _split(data):
        if section == Section.HEADER:
            decoder = _Decoder(state, payload, now_us)
        elif decoder is None:
            raise DamagedData(f"group snapshot: section {section} comes before the header")
        elif section == Section.END:
            if payload != COUNT_FIELDS.pack(found):
                raise DamagedData(
                    f"group snapshot: {found} sections, its end mark has another count"
                )
            decoder.finish()
            return
        else:
            decoder.add(section, payload)
        found += 1
    raise DamagedData(f"group snapshot: it ends after {found} sections without an end mark")


class _Decoder:
    """Reads a state, section by section."""

    def __init__(self, state: GroupState, header: bytes, now_us: int) -> None:
        self.state = state
        self.now_us = now_us
        self.settled: dict[int, int] = {}
        self.touched: dict[int, int] = {}
        self.settled_runs: list[Run] = []
        self.touched_runs: list[Run] = []
        self._owners: list[str] = []
        self._reasons: list[str] = []
        self._keys: dict[int, int] = {}
        self._floor = self._cursor = 0
        self._read_header(header)

    def add(self, section: int, payload: bytes) -> None:
        """Read one section between the header and the end."""
        reader = _READERS.get(section)
        if reader is None:
            raise DamagedData(f"group snapshot: section {section} is unknown")
        reader(self, payload)

    def finish(self) -> None:
        """Derive the queues, the owners and the ready records."""
        state = self.state
        state._settled.load(self._floor, self.settled, self.settled_runs)
        state._touched.load(self._cursor, self.touched, self.touched_runs)
        try:
            state._dead.load(self._reasons)
        except IndexError:
            raise DamagedData("group snapshot: a dead letter has an unknown reason") from None
        leases = state._leases
        if leases:
            state._deadlines.refill([(lease[0], offset) for offset, lease in leases.items()])
        for offset, lease in leases.items():
            owned = state._owners.get(lease[1])
            if owned is None:
                state._owners[lease[1]] = {offset}
            else:
                owned.add(offset)
        if state._delays.count:
            state._delays.load(self.now_us)
        for key, (bits, _) in state._returned.blocks.items():
            waiting, _ = state._delays.rows.blocks.get(key, (0, b""))
            if bits & ~waiting:
                state._ready.add_word(*word_of_block(key, bits & ~waiting))
        state._reorder(self._keys)

    def _read_header(self, payload: bytes) -> None:
        state, fields = self.state, OLD_HEADER_FIELDS
        if len(payload) < fields.size:
            raise DamagedData(f"group snapshot: the header has {len(payload)} bytes")
        version, self._floor, self._cursor, token, committed = fields.unpack_from(payload)
        if not 1 <= version <= VERSION:
            raise NewerFormat(
                f"group snapshot: version {version}, this brokerd reads {VERSION}; upgrade it"
            )
        if version > 3:
            fields = HEADER_FIELDS
            if len(payload) < fields.size:
                raise DamagedData(f"group snapshot: the header has {len(payload)} bytes")
            *_, epoch_us, paused = fields.unpack_from(payload)
            state._epoch_us = self.now_us + epoch_us
            state.paused = bool(paused)
        state._token = token
        state.committed = committed
        if payload[fields.size :] and version > 2:
            self._read_settings(payload[fields.size :])

    def _read_settings(self, text: bytes) -> None:
        self.state.settings = settings_of_text(text)
        self.state.configured = True

    def read_reasons(self, payload: bytes) -> None:
        self._reasons += [reason for (reason,) in _array(payload, (str,))]

    def read_owners(self, payload: bytes) -> None:
        self._owners += [owner for (owner,) in _array(payload, (str,))]

    def read_leases(self, payload: bytes) -> None:
        offsets, left_us, owners, *columns = _columns(LEASE_COLUMNS, payload)
        if owners and max(owners) >= len(self._owners):
            raise DamagedData("group snapshot: a lease has an unknown owner")
        deadlines = [self.now_us + left for left in left_us]
        rows = zip(deadlines, map(self._owners.__getitem__, owners), *columns, strict=True)
        self.state._leases.update(zip(offsets, rows, strict=True))

    def read_keys(self, payload: bytes) -> None:
        self._keys.update(zip(*_columns(KEY_COLUMNS, payload), strict=True))

    def read_old_leases(self, payload: bytes) -> None:
        for offset, left_us, *rest in _array(payload, OLD_LEASE_TYPES):
            self.state._leases[offset] = (self.now_us + left_us, *rest, self.now_us)


_READERS: dict[int, Callable[[_Decoder, bytes], None]] = {
    Section.REASONS: _Decoder.read_reasons,
    Section.SETTLED: lambda decoder, payload: decoder.settled.update(_words(payload)),
    Section.SETTLED_FULL: lambda decoder, payload: decoder.settled.update(_full_words(payload)),
    Section.SETTLED_RUNS: lambda decoder, payload: decoder.settled_runs.extend(_runs(payload)),
    Section.TOUCHED: lambda decoder, payload: decoder.touched.update(_words(payload)),
    Section.TOUCHED_FULL: lambda decoder, payload: decoder.touched.update(_full_words(payload)),
    Section.TOUCHED_RUNS: lambda decoder, payload: decoder.touched_runs.extend(_runs(payload)),
    Section.RETURNED: lambda decoder, payload: _read_blocks(decoder.state._returned, payload),
    Section.DELAYED: lambda decoder, payload: _read_blocks(decoder.state._delays.rows, payload),
    Section.DEAD: lambda decoder, payload: _read_blocks(decoder.state._dead, payload),
    Section.OWNERS: _Decoder.read_owners,
    Section.LEASES: _Decoder.read_leases,
    Section.KEYS: _Decoder.read_keys,
    Section.OLD_RETURNED: lambda decoder, payload: _read_old_blocks(
        decoder.state._returned, OLD_RETURNED_LAYOUT, payload, (decoder.now_us,)
    ),
    Section.OLD_DEAD: lambda decoder, payload: _read_old_blocks(
        decoder.state._dead, OLD_DEAD_LAYOUT, payload, (decoder.now_us, decoder.now_us)
    ),
    Section.OLD_LEASES: _Decoder.read_old_leases,
}


@lru_cache(SETTINGS_KEPT)
def settings_of_text(text: bytes) -> GroupSettings:
    """Return the settings in a header. Raises DamagedData."""
    try:
        return GroupSettings.from_json(text.decode())
    except (InvalidRequest, UnicodeDecodeError) as error:
        raise DamagedData(f"group snapshot: {error}") from None


def _split(data: bytes | Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (section, payload) of each section."""
    for chunk in (data,) if isinstance(data, bytes) else data:
        for section, start, end in section_ranges(chunk):
            yield section, chunk[start:end]


def section_ranges(chunk: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (section, start, end) of each payload of a chunk. Raises DamagedData."""
    position = 0
    while position < len(chunk):
        if len(chunk) - position < SECTION_HEAD.size:
            raise DamagedData(f"group snapshot: {len(chunk) - position} stray bytes at the end")
        section, size = SECTION_HEAD.unpack_from(chunk, position)
        position += SECTION_HEAD.size
        if len(chunk) - position < size:
            raise DamagedData(
                f"group snapshot: section {section} needs {size} bytes, "
                f"{len(chunk) - position} are left"
            )
        yield section, position, position + size
        position += size


def _words(payload: bytes) -> Iterator[tuple[int, int]]:
    step = KEY_FIELDS.size + WORD_BYTES
    _check_step("words", payload, step)
    for position in range(0, len(payload), step):
        bits = payload[position + KEY_FIELDS.size : position + step]
        yield KEY_FIELDS.unpack_from(payload, position)[0], int.from_bytes(bits, "little")


def _full_words(payload: bytes) -> Iterator[tuple[int, int]]:
    _check_step("words", payload, KEY_FIELDS.size)
    return zip((key for (key,) in KEY_FIELDS.iter_unpack(payload)), repeat(FULL))


def _runs(payload: bytes) -> list[Run]:
    _check_step("runs", payload, RUN_FIELDS.size)
    runs = list(RUN_FIELDS.iter_unpack(payload))
    if any(first >= end for first, end in runs):
        raise DamagedData("group snapshot: a run of words ends before it begins")
    return runs


def _check_step(what: str, payload: bytes, step: int) -> None:
    if len(payload) % step:
        raise DamagedData(f"group snapshot: {len(payload)} bytes of {what} of {step} each")


def _columns(codes: str, payload: bytes) -> list[tuple[int, ...]]:
    """Return columns of integers of these struct codes; the payload begins with their count."""
    count = COUNT_FIELDS.unpack_from(payload)[0] if len(payload) >= COUNT_FIELDS.size else -1
    layouts, size = _column_layouts(codes, count)
    if size != len(payload):
        raise DamagedData(f"group snapshot: {len(payload)} bytes for columns of {count} rows")
    return [unpack_from(layout, payload, position) for layout, position in layouts]


@lru_cache(LAYOUTS_KEPT)
def _column_layouts(codes: str, count: int) -> tuple[list[tuple[str, int]], int]:
    """Return (struct format, position) of each column of ``count`` rows, and the end position."""
    layouts = []
    position = COUNT_FIELDS.size
    for code in codes if count >= 0 else "":
        layout = f"<{count}{code}"
        layouts.append((layout, position))
        position += calcsize(layout)
    return layouts, position


def _array(payload: bytes, types: tuple[type, ...]) -> list[Any]:
    """Return the rows of a JSON section, each with items of these types."""
    try:
        rows = json.loads(payload)
    except ValueError as error:
        raise DamagedData(f"group snapshot: a section is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise DamagedData("group snapshot: a section holds no array")
    for row in rows:
        if not isinstance(row, list) or tuple(map(type, row)) != types:
            raise DamagedData("group snapshot: a section holds a row of other types")
    return rows


def _blocks(row_bytes: int, payload: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (key, bits, packed rows) of each block."""
    position = 0
    while position < len(payload):
        start = position + KEY_FIELDS.size + BLOCK_BITS_BYTES
        key = int.from_bytes(payload[position : position + KEY_FIELDS.size], "little")
        bits = int.from_bytes(payload[position + KEY_FIELDS.size : start], "little")
        position = start + bits.bit_count() * row_bytes
        if position > len(payload):
            raise DamagedData("group snapshot: a block of rows is cut short")
        yield key, bits, payload[start:position]


def _read_blocks(table: OffsetRows, payload: bytes) -> None:
    for key, bits, rows in _blocks(table.row_bytes, payload):
        table.blocks[key] = (bits, rows)
        table.count += bits.bit_count()


def _read_old_blocks(
    table: OffsetRows, layout: Struct, payload: bytes, times: tuple[int, ...]
) -> None:
    """Read blocks whose rows end before the times of the attempts."""
    for key, bits, rows in _blocks(layout.size, payload):
        whole = [table.layout.pack(*row, *times) for row in layout.iter_unpack(rows)]
        table.blocks[key] = (bits, b"".join(whole))
        table.count += len(whole)
