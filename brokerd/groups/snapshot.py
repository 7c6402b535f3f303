# Tests: tests/groups/test_snapshot.py, tests/groups/test_model.py
"""A group partition at one moment: taken in milliseconds, encoded at leisure, decoded at start.

Freezing copies the dicts of words, blocks and leases; what they hold never changes. The encoding is
a sequence of sections, little-endian, each of at most about a megabyte::

    u8 section, u32 payload bytes, payload

    HEADER     u16 version, i64 floor, i64 cursor, u64 last token, i64 committed, settings as JSON
               if the group was given any, else nothing
    REASONS    JSON array of [reason]; a dead letter names its reason by position
    SETTLED    words (u64 key, 128 bytes of bits), TOUCHED the same; a payload of
               keys alone (SETTLED_FULL, TOUCHED_FULL) means full words, one of pairs
               of keys (SETTLED_RUNS, TOUCHED_RUNS) full words from the first key to
               the second, exclusive
    RETURNED   blocks (u64 key, 32 bytes of bits, one row for each bit): u32 grants,
               u32 failures * 2 + counted, u64 token
    DELAYED    blocks, row: i64 microseconds until ready
    DEAD       blocks, row: u32 grants, u32 failures, u32 reason
    LEASES     JSON array of [offset, microseconds until the deadline, owner, token,
               grants, failures, duration]
    END        u32 number of sections before it

HEADER comes first, END last; the others may repeat, their parts add up. The snapshot file around it
carries checksums; this encoding only notices what does not fit together. Version 1 had no runs.
Versions 1 and 2 always had settings, as a rule those of the configuration; they are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from brokerd.errors import DamagedData, InvalidRequest, NewerFormat
from brokerd.groups.bitmaps import FULL, WORD_BITS, FrozenSet, Run
from brokerd.groups.delays import moved
from brokerd.groups.rows import BLOCK_OFFSETS, Block, OffsetRows
from brokerd.groups.settings import GroupSettings
from brokerd.groups.state import GroupState, LeaseRow, word_of_block

VERSION = 3
CHUNK_BYTES = 1 << 20
"""A section is closed when it has grown to this size."""
ROWS_PER_CHUNK = 4096
LEASE_TYPES = (int, int, str, int, int, int, int)

_SECTION = Struct("<BI")
_HEADER = Struct("<HqqQq")
_KEY = Struct("<Q")
_RUN = Struct("<QQ")
_COUNT = Struct("<I")
_WORD_BYTES = WORD_BITS // 8
_BLOCK_BITS_BYTES = BLOCK_OFFSETS // 8

State = TypeVar("State", bound=GroupState)
Part = TypeVar("Part")


class Section(IntEnum):
    """What a section holds."""

    HEADER = 1
    REASONS = 2
    SETTLED = 3
    SETTLED_FULL = 4
    TOUCHED = 5
    TOUCHED_FULL = 6
    RETURNED = 7
    DELAYED = 8
    DEAD = 9
    LEASES = 10
    END = 11
    SETTLED_RUNS = 12
    TOUCHED_RUNS = 13


class FrozenGroup(NamedTuple):
    """A group partition as it was at ``now_us``. Nothing in it changes; any thread may read it."""

    now_us: int
    settings: GroupSettings | None
    """Those that the group was given, if any."""
    token: int
    committed: int
    settled: FrozenSet
    touched: FrozenSet
    returned: dict[int, Block]
    delays: dict[int, Block]
    dead: dict[int, Block]
    reasons: list[str]
    leases: dict[int, LeaseRow]

    def encode(self) -> Iterator[bytes]:
        """The encoding, in sections of at most about a megabyte."""
        sections = 0
        for chunk in self._sections():
            sections += 1
            yield chunk
        yield _section(Section.END, _COUNT.pack(sections))

    def _sections(self) -> Iterator[bytes]:
        header = _HEADER.pack(
            VERSION, self.settled.floor, self.touched.floor, self.token, self.committed
        )
        settings = b"" if self.settings is None else self.settings.to_json().encode()
        yield _section(Section.HEADER, header + settings)
        for part in _parts(self.reasons, ROWS_PER_CHUNK):
            yield _section(Section.REASONS, _json([[reason] for reason in part]))
        yield from _word_sections(Section.SETTLED, Section.SETTLED_FULL, self.settled.words)
        yield from _run_sections(Section.SETTLED_RUNS, self.settled.runs)
        yield from _word_sections(Section.TOUCHED, Section.TOUCHED_FULL, self.touched.words)
        yield from _run_sections(Section.TOUCHED_RUNS, self.touched.runs)
        yield from _block_sections(Section.RETURNED, self.returned)
        yield from _block_sections(Section.DELAYED, moved(self.delays, -self.now_us))
        yield from _block_sections(Section.DEAD, self.dead)
        for offsets in _parts(list(self.leases), ROWS_PER_CHUNK):
            rows = [self._lease(offset, self.leases[offset]) for offset in offsets]
            yield _section(Section.LEASES, _json(rows))

    def _lease(self, offset: int, lease: LeaseRow) -> tuple[object, ...]:
        return (offset, lease[0] - self.now_us, *lease[1:])


def freeze(state: GroupState, now_us: int) -> FrozenGroup:
    """A copy of ``state``. O(words, blocks and leases), none of which is looked into."""
    return FrozenGroup(
        now_us,
        state.settings if state.configured else None,
        state._token,
        state.committed,
        state._settled.frozen(),
        state._touched.frozen(),
        state._returned.blocks.copy(),
        state._delays.rows.blocks.copy(),
        state._dead.blocks.copy(),
        list(state._reasons),
        state._leases.copy(),
    )


def decode(
    make: type[State], data: bytes | Iterable[bytes], now_us: int, settings: GroupSettings
) -> State:
    """The state that was frozen and encoded, with times counted from ``now_us``.

    ``settings`` are for a group that was not given any.
    Raises DamagedData when the sections do not fit together, NewerFormat for a later version.
    """
    chunks = (data,) if isinstance(data, bytes) else data
    state: State | None = None
    settled: dict[int, int] = {}
    touched: dict[int, int] = {}
    runs: dict[int, list[Run]] = {Section.SETTLED_RUNS: [], Section.TOUCHED_RUNS: []}
    floor = cursor = found = 0
    for section, payload in (part for chunk in chunks for part in _split(chunk)):
        if section == Section.HEADER:
            state, floor, cursor = _read_header(make, payload, settings)
        elif state is None:
            raise DamagedData(f"group snapshot: section {section} comes before the header")
        elif section == Section.END:
            if payload != _COUNT.pack(found):
                raise DamagedData(f"group snapshot: {found} sections, its end mark says otherwise")
            state._settled.load(floor, settled, runs[Section.SETTLED_RUNS])
            state._touched.load(cursor, touched, runs[Section.TOUCHED_RUNS])
            _derive(state, now_us)
            return state
        elif section in (Section.SETTLED, Section.SETTLED_FULL):
            settled.update(_read_words(section == Section.SETTLED_FULL, payload))
        elif section in (Section.TOUCHED, Section.TOUCHED_FULL):
            touched.update(_read_words(section == Section.TOUCHED_FULL, payload))
        elif section in runs:
            runs[section] += _read_runs(payload)
        else:
            _read_into(state, section, payload, now_us)
        found += 1
    raise DamagedData(f"group snapshot: it stops after {found} sections, before its end mark")


def _section(section: Section, payload: bytes) -> bytes:
    return _SECTION.pack(section, len(payload)) + payload


def _split(chunk: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(chunk):
        if len(chunk) - position < _SECTION.size:
            raise DamagedData(f"group snapshot: {len(chunk) - position} stray bytes at the end")
        section, size = _SECTION.unpack_from(chunk, position)
        position += _SECTION.size
        if len(chunk) - position < size:
            raise DamagedData(
                f"group snapshot: section {section} needs {size} bytes, "
                f"{len(chunk) - position} are left"
            )
        yield section, chunk[position : position + size]
        position += size


def _json(items: list[Any]) -> bytes:
    return json.dumps(items, separators=(",", ":")).encode()


def _parts(items: list[Part], size: int) -> Iterator[list[Part]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _gather(section: Section, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Sections made of these pieces, each closed when it is large enough."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            yield _section(section, b"".join(gathered))
            gathered, size = [], 0
    if gathered:
        yield _section(section, b"".join(gathered))


def _word_sections(partly: Section, full: Section, words: dict[int, int]) -> Iterator[bytes]:
    yield from _gather(full, (_KEY.pack(key) for key, word in words.items() if word == FULL))
    yield from _gather(
        partly,
        (
            _KEY.pack(key) + word.to_bytes(_WORD_BYTES, "little")
            for key, word in words.items()
            if word != FULL
        ),
    )


def _run_sections(section: Section, runs: list[Run]) -> Iterator[bytes]:
    return _gather(section, (_RUN.pack(*run) for run in runs))


def _block_sections(section: Section, blocks: dict[int, Block]) -> Iterator[bytes]:
    return _gather(
        section,
        (
            _KEY.pack(key) + bits.to_bytes(_BLOCK_BITS_BYTES, "little") + rows
            for key, (bits, rows) in blocks.items()
        ),
    )


def _read_header(
    make: type[State], payload: bytes, settings: GroupSettings
) -> tuple[State, int, int]:
    if len(payload) < _HEADER.size:
        raise DamagedData(f"group snapshot: the header has {len(payload)} bytes")
    version, floor, cursor, token, committed = _HEADER.unpack_from(payload)
    if not 1 <= version <= VERSION:
        raise NewerFormat(
            f"group snapshot: version {version}, this brokerd reads {VERSION}; upgrade it"
        )
    state = make(settings)
    given = payload[_HEADER.size :]
    if given and version == VERSION:
        try:
            state.settings = GroupSettings.from_json(given.decode())
        except (InvalidRequest, UnicodeDecodeError) as error:
            raise DamagedData(f"group snapshot: {error}") from None
        state.configured = True
    state._token = token
    state.committed = committed
    return state, floor, cursor


def _read_words(full: bool, payload: bytes) -> dict[int, int]:
    step = _KEY.size + (0 if full else _WORD_BYTES)
    if len(payload) % step:
        raise DamagedData(f"group snapshot: {len(payload)} bytes of words of {step} each")
    words = {}
    for position in range(0, len(payload), step):
        bits = payload[position + _KEY.size : position + step]
        key = _KEY.unpack_from(payload, position)[0]
        words[key] = FULL if full else int.from_bytes(bits, "little")
    return words


def _read_runs(payload: bytes) -> list[Run]:
    if len(payload) % _RUN.size:
        raise DamagedData(f"group snapshot: {len(payload)} bytes of runs of {_RUN.size} each")
    runs = list(_RUN.iter_unpack(payload))
    if any(first >= end for first, end in runs):
        raise DamagedData("group snapshot: a run of words ends before it begins")
    return runs


def _read_into(state: GroupState, section: int, payload: bytes, now_us: int) -> None:
    if section == Section.RETURNED:
        _read_blocks(state._returned, payload)
    elif section == Section.DELAYED:
        _read_blocks(state._delays.rows, payload)
    elif section == Section.DEAD:
        _read_blocks(state._dead, payload)
    elif section == Section.REASONS:
        for reason in _read_array(section, payload, (str,)):
            state._reasons[reason[0]] = len(state._reasons)
    elif section == Section.LEASES:
        for offset, remaining_us, *rest in _read_array(section, payload, LEASE_TYPES):
            state._leases[offset] = (now_us + remaining_us, *rest)
    else:
        raise DamagedData(f"group snapshot: section {section} is unknown")


def _read_array(section: int, payload: bytes, types: tuple[type, ...]) -> list[Any]:
    """The rows of a JSON section, each with items of these types."""
    try:
        rows = json.loads(payload)
    except ValueError as error:
        raise DamagedData(f"group snapshot: section {section} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise DamagedData(f"group snapshot: section {section} holds no array")
    for row in rows:
        if not isinstance(row, list) or tuple(map(type, row)) != types:
            raise DamagedData(f"group snapshot: section {section} holds a row of other types")
    return rows


def _read_blocks(table: OffsetRows, payload: bytes) -> None:
    position = 0
    while position < len(payload):
        start = position + _KEY.size + _BLOCK_BITS_BYTES
        key = int.from_bytes(payload[position : position + _KEY.size], "little")
        bits = int.from_bytes(payload[position + _KEY.size : start], "little")
        position = start + bits.bit_count() * table.row_bytes
        if position > len(payload):
            raise DamagedData("group snapshot: a block of rows is cut short")
        table.blocks[key] = (bits, payload[start:position])
        table.count += bits.bit_count()


def _derive(state: GroupState, now_us: int) -> None:
    """Make what is not written: the queues, the owners, and which records are ready."""
    for offset, lease in state._leases.items():
        state._owners.setdefault(lease[1], set()).add(offset)
    state._deadlines.refill([(lease[0], offset) for offset, lease in state._leases.items()])
    state._delays.load(now_us)
    for key, (bits, _) in state._returned.blocks.items():
        waiting, _ = state._delays.rows.blocks.get(key, (0, b""))
        if bits & ~waiting:
            state._ready.add_word(*word_of_block(key, bits & ~waiting))
