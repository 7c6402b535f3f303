# Tests: tests/test_walformat.py
"""The body of a GROUP_EVENTS entry (docs/wal-format.rst, section "Group events")."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from brokerd.walformat.columns import ColumnReader, encode_column, pad
from brokerd.walformat.layout import Bytes, FormatError

EVENTS_HEADER_BYTES = 72
ENTRY_EVENTS_MAX = 1 << 20

_EVENTS = struct.Struct("<IIII B7x q q Q I4x I4x I4x")
EVENTS_PEEK = struct.Struct("<I24xI12xB7xq")
"""From an entry's ``count`` on: count, kinds of columns, constants of event kind and offset. So a
scan looks at an entry without decoding it."""
EVENTS_PEEK_AT = 20
"""Where an entry's header has its ``count``."""
_EVENT_CODES = ("B", "q", "q", "Q", "I", "I", "I")
_ALL_CONSTANT = 0x1111111


class EventKind(IntEnum):
    """The kind of an event of a consumer group. The section lists the fields of each kind."""

    LEASED = 1
    EXTENDED = 2
    SETTLED = 3
    FAILED = 4
    RELEASED = 5
    EXPIRED = 6
    DEAD = 7
    COMMITTED = 8
    SETTLED_RANGE = 9
    SEEK = 10
    CONFIGURED = 11
    DELETED = 12
    PAUSED = 13
    RESUMED = 14
    REPLAYED = 15
    PURGED = 16


OWN_KINDS = bytes(range(1, EventKind.DEAD + 1))
"""Kinds of events whose offset is that of their record."""

GroupEvent = tuple[int, int, int, int, int, str, str]
"""(kind, offset, amount, token, count, owner, reason)"""


def _strings(texts: Sequence[str]) -> tuple[bytes, bytes]:
    """Encode a string table as (column of lengths, joined bytes)."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return pad(struct.pack(f"<{len(encoded)}I", *map(len, encoded))), b"".join(encoded)


def _one_event(event: GroupEvent) -> tuple[list[str], list[int]]:
    """Return one event as (owner and reason unless empty, constants of the seven columns)."""
    kind, offset, amount, token, count, owner, reason = event
    texts = [text for text in (owner, reason) if text]
    owner_at = 1 if owner else 0
    reason_at = len(texts) if reason else 0
    return texts, [kind, offset, amount, token, count, owner_at, reason_at]


def _event_columns(events: Sequence[GroupEvent]) -> tuple[list[str], list[Sequence[int]]]:
    """Return events as (owners and reasons, each once; the seven columns of numbers)."""
    columns: list[Any] = list(zip(*events, strict=True))
    owners, reasons, count = columns[5], columns[6], len(events)
    if owners.count(owners[0]) == count and reasons.count(reasons[0]) == count:
        texts, (*_, owner_at, reason_at) = _one_event(events[0])
        columns[5:] = [(owner_at,) * count, (reason_at,) * count]
        return texts, columns
    index = {"": 0}
    for at in (5, 6):
        column = columns[at]
        if column.count(column[0]) == count:  # as most reasons are
            columns[at] = (index.setdefault(column[0], len(index)),) * count
        else:
            for text in dict.fromkeys(column):
                index.setdefault(text, len(index))
            columns[at] = list(map(index.__getitem__, column))
    return list(index)[1:], columns


def encode_group_events(group: str, events: Sequence[GroupEvent]) -> bytes:
    """Encode the body of a GROUP_EVENTS entry.

    Raises ValueError for no events, too many, or a number that does not fit.
    """
    if not 1 <= len(events) <= ENTRY_EVENTS_MAX:
        raise ValueError(f"an entry holds 1 to {ENTRY_EVENTS_MAX} events, not {len(events)}")
    kinds, data = _ALL_CONSTANT, b""
    try:
        if len(events) == 1:
            texts, constants = _one_event(events[0])
        else:
            texts, fields = _event_columns(events)
            columns = list(map(encode_column, _EVENT_CODES, fields))
            kinds = sum(column[0] << 4 * at for at, column in enumerate(columns))
            constants = [column[1] for column in columns]
            data = b"".join(column[2] for column in columns)
        lengths, table = _strings([group, *texts])
        head = _EVENTS.pack(kinds, len(texts) + 1, len(table), 0, *constants)
    except struct.error as error:
        raise ValueError(f"a number of the events does not fit its column: {error}") from None
    return b"".join((head, data, lengths, table))


def _read_strings(reader: ColumnReader, count: int, total: int) -> list[str]:
    reader.rows = count
    pieces = reader.cut(reader.numbers("I"), total)
    try:
        return [piece.decode("utf-8", "surrogatepass") for piece in pieces]
    except UnicodeDecodeError as error:
        raise FormatError(f"a string of the table is not UTF-8: {error}") from None


def decode_group_events(body: Bytes, count: int) -> tuple[str, list[GroupEvent]]:
    """Decode a body of ``count`` events as (group, events). Raises FormatError."""
    body = bytes(body)
    if len(body) < EVENTS_HEADER_BYTES or not 1 <= count <= ENTRY_EVENTS_MAX:
        raise FormatError(f"a body of {len(body)} bytes is not an entry of {count} events")
    kinds, texts_count, text_bytes, _, *constants = _EVENTS.unpack_from(body)
    reader = ColumnReader(body, count, EVENTS_HEADER_BYTES)
    fields: list[Sequence[int]] = []
    for shift, code in enumerate(_EVENT_CODES):
        column = reader.column(kinds >> 4 * shift & 15, code, constants[shift])
        if column is None:
            raise FormatError("a column of group events must not be absent")
        fields.append((column,) * count if isinstance(column, int) else column)
    texts = _read_strings(reader, texts_count, text_bytes)
    if not texts or reader.position != len(body):
        raise FormatError("the string table does not end with the body")
    group, texts[0] = texts[0], ""
    if max(max(fields[5]), max(fields[6])) >= len(texts):
        raise FormatError("an event names a string that the table does not have")
    owners = [texts[at] for at in fields[5]]
    reasons = [texts[at] for at in fields[6]]
    return group, list(zip(*fields[:5], owners, reasons, strict=True))
