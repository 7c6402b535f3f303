# Tests: tests/groups/test_snapshot.py, tests/groups/test_model.py
"""The snapshot of a group partition: a fast freeze, and an encoder for any thread.

A freeze takes milliseconds: it copies or shares the tables of words, blocks and leases, whose
values are immutable. `brokerd.groups.snapshot_decode` decodes. The encoding is a sequence of
sections, little-endian, each of at most about a megabyte::

    u8 section, u32 payload bytes, payload

     1 HEADER         u16 version, i64 floor, i64 cursor, u64 last token, i64 committed, i64 epoch,
                      u8 paused, the group's own settings as JSON if it has any
     2 REASONS        JSON array of [reason]; a dead letter refers to its reason by position
     3 SETTLED        words (u64 key, 128 bytes of bits)
     4 SETTLED_FULL   u64 keys of full words
    12 SETTLED_RUNS   pairs of u64 keys: full words from the first to the second, exclusive
     5 TOUCHED, 6 TOUCHED_FULL, 13 TOUCHED_RUNS   the same
    14 RETURNED       blocks (u64 key, 32 bytes of bits, one row for each bit): u32 grants,
                      u32 failures * 2 + counted, u64 token, i64 first attempt
     8 DELAYED        blocks, row: i64 until ready
    15 DEAD           blocks, row: u32 grants, u32 failures, u32 reason, i64 first attempt,
                      i64 last attempt
    17 OWNERS         JSON array of [owner]; a lease refers to its owner by position
    16 LEASES         u32 count, then columns: i64 offset, i64 until the deadline, u32 owner,
                      u64 token, u32 grants, u32 failures, i64 duration, i64 first attempt
    18 KEYS           u32 count, then columns: u64 offset, u64 key of a leased or returned record
                      of a key-ordered group, 0 for none
    11 END            u32 number of sections before it

Times are microseconds. The epoch is relative to the time of the freeze, attempts are relative to
the epoch. HEADER is first, END last. The other sections may repeat, and their parts add up. OWNERS
precede the LEASES that refer to them. The snapshot file contains checksums. The decoder checks only
that the sections fit together.

The decoder reads older versions. Version 1 had no runs. Versions 1 and 2 always had settings,
mostly those of the configuration; the decoder ignores them. Up to version 3 the header ended with
``committed``, and there were these sections without times of attempts: 7 RETURNED, 9 DEAD, and 10
LEASES, a JSON array of [offset, until the deadline, owner, token, grants, failures, duration].
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain, islice
from struct import Struct, pack
from typing import Any, NamedTuple, TypeVar

from brokerd.groups.attempts import LeaseRow, first_attempt_us
from brokerd.groups.bitmaps import FULL, WORD_BITS, FrozenSet, Run
from brokerd.groups.dead_letters import renumber_reasons
from brokerd.groups.delays import shift_times
from brokerd.groups.redelivery import Redeliveries
from brokerd.groups.rows import BLOCK_OFFSETS, Block
from brokerd.groups.settings import GroupSettings
from brokerd.groups.state import GroupState
from brokerd.groups.tables import Table, freeze_table

VERSION = 4
CHUNK_BYTES = 1 << 20
"""Size at which the encoder begins another section."""
ROWS_PER_CHUNK = 4096
LEASE_COLUMNS = "qqIQIIqq"
KEY_COLUMNS = "QQ"

SECTION_HEAD = Struct("<BI")
HEADER_FIELDS = Struct("<HqqQqqB")
KEY_FIELDS = Struct("<Q")
RUN_FIELDS = Struct("<QQ")
COUNT_FIELDS = Struct("<I")
WORD_BYTES = WORD_BITS // 8
BLOCK_BITS_BYTES = BLOCK_OFFSETS // 8

Part = TypeVar("Part")

_to_json = json.JSONEncoder(separators=(",", ":")).encode


class Section(IntEnum):
    """The kinds of sections."""

    HEADER = 1
    REASONS = 2
    SETTLED = 3
    SETTLED_FULL = 4
    TOUCHED = 5
    TOUCHED_FULL = 6
    OLD_RETURNED = 7
    DELAYED = 8
    OLD_DEAD = 9
    OLD_LEASES = 10
    END = 11
    SETTLED_RUNS = 12
    TOUCHED_RUNS = 13
    RETURNED = 14
    DEAD = 15
    LEASES = 16
    OWNERS = 17
    KEYS = 18


class FrozenGroup(NamedTuple):
    """An immutable copy of a group partition at ``now_us``, which any thread may read."""

    now_us: int
    settings: GroupSettings | None
    """The group's own settings, if any."""
    token: int
    committed: int
    epoch_us: int
    paused: bool
    settled: FrozenSet
    touched: FrozenSet
    returned: Mapping[int, Block]
    former: Mapping[int, LeaseRow] | None
    """Ended leases that hold the attempts of their records: `Redeliveries.former`."""
    former_first: int
    """Lowest offset for which ``former`` counts."""
    delays: Mapping[int, Block]
    dead: Mapping[int, Block]
    reasons: Mapping[int, str]
    leases: Mapping[int, LeaseRow]
    keys: Mapping[int, int]

    def encode(self) -> Iterator[bytes]:
        """Yield the encoding in sections of at most about a megabyte."""
        sections = 0
        for chunk in self._sections():
            sections += 1
            yield chunk
        yield _section(Section.END, COUNT_FIELDS.pack(sections))

    def _sections(self) -> Iterator[bytes]:
        header = HEADER_FIELDS.pack(
            VERSION,
            self.settled.floor,
            self.touched.floor,
            self.token,
            self.committed,
            self.epoch_us - self.now_us,
            self.paused,
        )
        settings = b"" if self.settings is None else self.settings.to_json().encode()
        yield _section(Section.HEADER, header + settings)
        if self.reasons:
            for part in _parts(self.reasons.values(), ROWS_PER_CHUNK):
                yield _section(Section.REASONS, _json([[reason] for reason in part]))
        yield from _set_sections(
            self.settled, Section.SETTLED, Section.SETTLED_FULL, Section.SETTLED_RUNS
        )
        yield from _set_sections(
            self.touched, Section.TOUCHED, Section.TOUCHED_FULL, Section.TOUCHED_RUNS
        )
        # Most tables of most groups are empty, and a section of none costs as much as one of some.
        if self.returned or self.former:
            yield from _block_sections(Section.RETURNED, self._all_returned().items())
        if self.delays:
            yield from _block_sections(Section.DELAYED, shift_times(self.delays, -self.now_us))
        if self.dead:
            yield from _block_sections(Section.DEAD, renumber_reasons(self.dead, self.reasons))
        if self.leases:
            yield from self._lease_sections()
        if self.keys:
            for keys in _parts(self.keys.items(), ROWS_PER_CHUNK):
                yield _section(Section.KEYS, _columns(KEY_COLUMNS, *zip(*keys, strict=True)))

    def _all_returned(self) -> Mapping[int, Block]:
        """Return the rows of returned records, including the former leases."""
        if self.former is None:
            return self.returned
        table = Redeliveries(self._first_us)
        table.blocks = _copy(self.returned)
        table.former, table.first = dict(self.former.items()), self.former_first
        table.write_rows()
        return table.blocks

    def _first_us(self, lease: LeaseRow) -> int:
        first_us = lease[6]
        return first_attempt_us(lease) - self.epoch_us if first_us is None else first_us

    def _lease_sections(self) -> Iterator[bytes]:
        indexes: dict[str, int] = {}
        for part in _parts(self.leases.items(), ROWS_PER_CHUNK):
            offsets, rows = zip(*part, strict=True)
            deadlines, owners, *columns, _ = zip(*rows, strict=True)
            known = len(indexes)
            for owner in owners:
                indexes.setdefault(owner, len(indexes))
            if len(indexes) > known:
                yield _section(Section.OWNERS, _json([[owner] for owner in [*indexes][known:]]))
            firsts = list(map(self._first_us, rows))
            left_us = [deadline_us - self.now_us for deadline_us in deadlines]
            owner_indexes = [indexes[owner] for owner in owners]
            yield _section(
                Section.LEASES,
                _columns(LEASE_COLUMNS, offsets, left_us, owner_indexes, *columns, firsts),
            )


def _freeze_leases(state: GroupState) -> Mapping[int, LeaseRow]:
    """Return the rows of all leases, also of those in runs."""
    if type(state._leases) is not dict:
        state._split_all()
    rows = freeze_table(state._leases)
    if not state._runs.leased:
        return rows
    return dict(chain(rows.items(), *[run.rows() for run in state._runs.runs]))


def freeze(state: GroupState, now_us: int) -> FrozenGroup:
    """Return an immutable copy of ``state``, in milliseconds for any size."""
    return FrozenGroup(
        now_us,
        state.settings if state.configured else None,
        state._token,
        state.committed,
        state._epoch_us,
        state.paused,
        state._settled.freeze(),
        state._touched.freeze(),
        freeze_table(state._returned.blocks),
        None if state._returned.former is None else freeze_table(state._returned.former),
        state._returned.first,
        freeze_table(state._delays.rows.blocks),
        freeze_table(state._dead.blocks),
        dict(state._dead.reasons.texts),
        _freeze_leases(state),
        {} if state._order is None else freeze_table(state._order.keys),
    )


def _copy(rows: Mapping[int, Block]) -> Table[Block]:
    """Return a table that may grow. A plain ``dict(rows)`` would fix its type for mypyc."""
    return dict(rows.items())


def _section(section: Section, payload: bytes) -> bytes:
    return SECTION_HEAD.pack(section, len(payload)) + payload


def _columns(codes: str, *columns: Sequence[int]) -> bytes:
    """Return a u32 count and the columns, each of integers of one struct code."""
    count = len(columns[0])
    return COUNT_FIELDS.pack(count) + b"".join(
        [pack(f"<{count}{code}", *column) for code, column in zip(codes, columns, strict=True)]
    )


def owner_json(owner: str) -> bytes:
    """Return the bytes of an owner among those of the section OWNERS."""
    return _json([owner])


def _json(items: list[Any]) -> bytes:
    return _to_json(items).encode()


def _parts(items: Iterable[Part], size: int) -> Iterator[list[Part]]:
    left = iter(items)
    while part := list(islice(left, size)):
        yield part


def _gather(section: Section, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield sections of about `CHUNK_BYTES` made of these pieces."""
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


def _set_sections(
    members: FrozenSet, partly: Section, full: Section, of_runs: Section
) -> Iterator[bytes]:
    """Yield the sections of a set of offsets: its words, then its runs."""
    if members.words:
        yield from _word_sections(partly, full, members.words)
    if members.runs:
        yield from _run_sections(of_runs, members.runs)


def _word_sections(partly: Section, full: Section, words: Mapping[int, int]) -> Iterator[bytes]:
    yield from _gather(full, (KEY_FIELDS.pack(key) for key, word in words.items() if word == FULL))
    yield from _gather(
        partly,
        (
            KEY_FIELDS.pack(key) + word.to_bytes(WORD_BYTES, "little")
            for key, word in words.items()
            if word != FULL
        ),
    )


def _run_sections(section: Section, runs: list[Run]) -> Iterator[bytes]:
    return _gather(section, (RUN_FIELDS.pack(*run) for run in runs))


def _block_sections(section: Section, blocks: Iterable[tuple[int, Block]]) -> Iterator[bytes]:
    return _gather(
        section,
        (
            KEY_FIELDS.pack(key) + bits.to_bytes(BLOCK_BITS_BYTES, "little") + rows
            for key, (bits, rows) in blocks
        ),
    )
