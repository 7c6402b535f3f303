# Tests: tests/codecs/test_mamamia_answers.py
"""Encodes answers, on the server. Every function returns one complete frame.

Keys have the order of the reference server. These functions do not check the frame limit: use
`answer_length` before a record is stored or leased, and `BATCH_ROOM` with `batch_item_length` while
a batch is gathered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct, calcsize, unpack
from struct import pack as pack_numbers

from brokerd.codecs.mamamia.frames import frame
from brokerd.codecs.mamamia.packing import (
    pack,
    pack_array_header,
    pack_bin,
    pack_str,
    pack_value,
    packed_length,
)
from brokerd.codecs.mamamia.values import MAX_LENGTH, Command, GroupState

_U8 = Struct(">BB").pack
_U16 = Struct(">BH").pack
_U32 = Struct(">BI").pack
_U64 = Struct(">BQ").pack
_HEADER = Struct(">IBB").pack

_PRODUCED = b"\x01\x01\x81\xaamessage_id"
_PRODUCED_BY_WIDTH = {
    width: (len(_PRODUCED) + width).to_bytes(4, "big") + _PRODUCED for width in (1, 2, 3, 5, 9)
}
_PRODUCED_1, _PRODUCED_2, _PRODUCED_3, _PRODUCED_5, _PRODUCED_9 = _PRODUCED_BY_WIDTH.values()
_SMALL = [bytes([number]) for number in range(128)]

_ACQUIRED = b"\x81\xa7message\x84\xa2id"
_LOG_ID = b"\xa6log_id"
_PAYLOAD = b"\xa7payload"
_METADATA = b"\xa8metadata"
_KEY = b"\xa3key"
_NIL = b"\xc0"
_ACQUIRED_NOTHING = frame(Command.ACQUIRE_NEXT, b"\x81\xa7message" + _NIL)
_SETTLED = frame(Command.SETTLE, b"\x81\xa6status\xa7settled")
_FLOAT = Struct(">Bd").pack
_ID_BYTES_MAX = 9

SETTLED = "settled"
"""The result of a settle that was accepted."""

_MESSAGES = b"\x81\xa8messages"
_ARRAY_BYTES_MAX = 3  # an array of up to MAX_BATCH items
BATCH_ROOM = MAX_LENGTH - 2 - len(_MESSAGES) - _ARRAY_BYTES_MAX
"""Largest size of all items of one ACQUIRE_BATCH answer, in bytes."""
_ALIKE_MIN = 8
"""Fewer rows of an ACQUIRE_BATCH answer are made one by one."""
ITEM_BYTES_MAX = 128
"""Upper bound of the bytes of an item besides value, metadata and key."""


def _unsigned(number: int) -> bytes:
    """Return an int of 0 to 2^64 - 1 in its shortest form."""
    if number < 0x80:
        return _SMALL[number]
    if number < 0x100:
        return _U8(0xCC, number)
    if number < 0x10000:
        return _U16(0xCD, number)
    if number < 0x100000000:
        return _U32(0xCE, number)
    return _U64(0xCF, number)


def produced(message_id: int) -> bytes:
    """The answer to PRODUCE: ``{message_id}``."""
    if message_id < 0x80:
        return _PRODUCED_1 + _SMALL[message_id]
    if message_id < 0x100:
        return _PRODUCED_2 + _U8(0xCC, message_id)
    if message_id < 0x10000:
        return _PRODUCED_3 + _U16(0xCD, message_id)
    if message_id < 0x100000000:
        return _PRODUCED_5 + _U32(0xCE, message_id)
    return _PRODUCED_9 + _U64(0xCF, message_id)


def produced_run(first_id: int, count: int) -> bytes:
    """The answers to ``count`` PRODUCE requests with ids from ``first_id`` on."""
    last_id = first_id + count - 1
    if first_id >= 0x10000 and last_id < 0x100000000:
        return b"".join([_PRODUCED_5 + _U32(0xCE, one) for one in range(first_id, last_id + 1)])
    return b"".join(map(produced, range(first_id, last_id + 1)))


def scheduled(schedule_id: int) -> bytes:
    """The answer to a PRODUCE with a delay: ``{schedule_id}``."""
    return frame(Command.PRODUCE, b"\x81\xabschedule_id" + _unsigned(schedule_id))


def acquired(
    message_id: int, log_id: str, value: bytes, encoding: int, metadata: bytes | None
) -> bytes:
    """The answer to ACQUIRE_NEXT with a message; `metadata` is a MessagePack map or None."""
    body = b"".join(
        (
            _ACQUIRED,
            _unsigned(message_id),
            _LOG_ID,
            pack_str(log_id.encode()),
            _PAYLOAD,
            pack_value(value, encoding),
            _METADATA,
            metadata or _NIL,
        )
    )
    return _HEADER(len(body) + 2, 1, 2) + body


def acquired_run(log_id: str, messages: Iterable[tuple[int, bytes]]) -> bytes:
    """The answers to several ACQUIRE_NEXT requests: (id, value) of messages that are bytes."""
    before_value = _LOG_ID + pack_str(log_id.encode()) + _PAYLOAD
    after_value = _METADATA + _NIL
    around = 2 + len(_ACQUIRED) + len(before_value) + len(after_value)
    parts: list[bytes] = []
    for message_id, value in messages:
        number, packed = _unsigned(message_id), pack_bin(value)
        parts += (
            _HEADER(around + len(number) + len(packed), 1, 2),
            _ACQUIRED,
            number,
            before_value,
            packed,
            after_value,
        )
    return b"".join(parts)


def acquired_nothing() -> bytes:
    """The answer to ACQUIRE_NEXT without a message: ``{message: nil}``."""
    return _ACQUIRED_NOTHING


def settled() -> bytes:
    """The answer to SETTLE: ``{status: "settled"}``."""
    return _SETTLED


def error(command: int, text: str) -> bytes:
    """``{error: text}``, as the answer to any command (0 to 255)."""
    return frame(command, b"\x81\xa5error" + pack_str(text.encode()))


def answer_length(log_id: str, value: bytes, encoding: int, metadata: bytes | None) -> int:
    """Return the length field of this record's ACQUIRE_NEXT answer with the largest id.

    The caller refuses a PRODUCE if it is over MAX_LENGTH (page, Sizes).
    """
    name_bytes = len(log_id.encode())
    return (
        2
        + len(_ACQUIRED)
        + _ID_BYTES_MAX
        + len(_LOG_ID)
        + name_bytes
        + (1 if name_bytes < 32 else 2)
        + len(_PAYLOAD)
        + packed_length(value, encoding)
        + len(_METADATA)
        + len(metadata or _NIL)
    )


def extended(remaining: float) -> bytes:
    """The answer to EXTEND: ``{remaining}``, in seconds."""
    return frame(Command.EXTEND, b"\x81\xa9remaining" + _FLOAT(0xCB, remaining))


def produced_batch(
    message_ids: Sequence[int | None], schedule_ids: Sequence[int | None] | None = None
) -> bytes:
    """The answer to PRODUCE_BATCH: ``{message_ids}`` in the order of the messages.

    `schedule_ids` are those of the delayed messages, if there are any.
    """
    body = b"\xabmessage_ids" + pack(list(message_ids))
    if schedule_ids is None:
        return frame(Command.PRODUCE_BATCH, b"\x81" + body)
    scheduled = b"\xacschedule_ids" + pack(list(schedule_ids))
    return frame(Command.PRODUCE_BATCH, b"\x82" + body + scheduled)


def batch_item_length(
    value: bytes, encoding: int, metadata: bytes | None, key: bytes | None
) -> int:
    """Return an upper bound of the length of `batch_item`'s result.

    Add items to an ACQUIRE_BATCH answer while the sum stays within BATCH_ROOM. A record that fits
    an ACQUIRE_NEXT answer always fits alone.
    """
    bare = _bare_item_length(value, encoding, metadata)
    full = bare + _leased_length(key)
    return full if full <= BATCH_ROOM else bare


def batch_item(
    message_id: int,
    value: bytes,
    encoding: int,
    metadata: bytes | None,
    key: bytes | None,
    token: int,
    grants: int,
    remaining: float,
) -> bytes:
    """One message of an ACQUIRE_BATCH answer, for `acquired_batch`.

    `remaining` is seconds. A message too large to be sent with `key`, `token`, `grants` and
    `remaining` is written without them (page, ACQUIRE_BATCH).
    """
    full_length = _bare_item_length(value, encoding, metadata) + _leased_length(key)
    bare = b"".join(
        (
            b"\xa2id",
            _unsigned(message_id),
            _PAYLOAD,
            pack_value(value, encoding),
            _METADATA,
            metadata or _NIL,
        )
    )
    if full_length > BATCH_ROOM:
        return b"\x83" + bare
    return b"".join(
        (
            b"\x87",
            bare,
            _KEY,
            _NIL if key is None else pack_bin(key),
            b"\xa5token",
            _unsigned(token),
            b"\xa6grants",
            _unsigned(grants),
            b"\xa9remaining",
            _FLOAT(0xCB, remaining),
        )
    )


def _bare_item_length(value: bytes, encoding: int, metadata: bytes | None) -> int:
    return (
        1
        + 3
        + _ID_BYTES_MAX
        + len(_PAYLOAD)
        + packed_length(value, encoding)
        + len(_METADATA)
        + len(metadata or _NIL)
    )


def _leased_length(key: bytes | None) -> int:
    key_length = 1 if key is None else packed_length(key, 0)
    return len(_KEY) + key_length + 6 + 9 + 7 + 9 + 10 + 9


def acquired_batch(items: Sequence[bytes]) -> bytes:
    """The answer to ACQUIRE_BATCH from `batch_item`s: at most MAX_BATCH, within BATCH_ROOM."""
    return frame(
        Command.ACQUIRE_BATCH, b"".join((_MESSAGES, pack_array_header(len(items)), *items))
    )


def acquired_bytes(
    message_ids: Sequence[int],
    values: Sequence[bytes],
    keys: Sequence[bytes | None],
    tokens: Sequence[int],
    grants: Sequence[int],
    remaining: Sequence[float],
) -> bytes:
    """The answer to ACQUIRE_BATCH for values of bytes without metadata, from columns.

    The columns are those of `batch_item`. The answer is that of `acquired_batch`, made in a few
    calls. All rows with all their fields fit into BATCH_ROOM.
    """
    columns = message_ids, values, keys, tokens, grants, remaining
    alike = _rows_alike(*columns) if len(values) >= _ALIKE_MIN else []
    if alike:
        return frame(Command.ACQUIRE_BATCH, b"".join(alike))
    items = [
        {
            "id": message_id,
            "payload": value,
            "metadata": None,
            "key": key,
            "token": token,
            "grants": granted,
            "remaining": seconds,
        }
        for message_id, value, key, token, granted, seconds in zip(*columns, strict=True)
    ]
    return frame(Command.ACQUIRE_BATCH, _MESSAGES + pack(items))


def _rows_alike(
    message_ids: Sequence[int],
    values: Sequence[bytes],
    keys: Sequence[bytes | None],
    tokens: Sequence[int],
    grants: Sequence[int],
    remaining: Sequence[float],
) -> list[bytes]:
    """Return the parts of the answer of `acquired_bytes`, or none if its rows are not alike.

    Rows are alike if their headers are, and they have no key: only ids, values and tokens differ.
    """
    count, lengths = len(values), list(map(len, values))
    id_width, token_width = _width_of_all(message_ids), _width_of_all(tokens)
    one_length = lengths.count(lengths[0]) == count
    length_width = _width_of_all(lengths[:1] if one_length else lengths, _BIN_WIDTHS)
    if (
        id_width is None
        or token_width is None
        or length_width is None
        or keys.count(None) < count
        or grants.count(grants[0]) < count
        or remaining.count(remaining[0]) < count
    ):
        return []
    before = b"\x87\xa2id" + id_width[0]
    payload = _PAYLOAD + length_width[0]
    between = _METADATA + _NIL + _KEY + _NIL + b"\xa5token" + token_width[0]
    rest = b"\xa6grants" + _unsigned(grants[0]) + b"\xa9remaining" + _FLOAT(0xCB, remaining[0])
    # A piece is the end of one row, after its value, and the begin of the next. All have one
    # length, so the numbers are written by columns, each byte of them in all pieces at once.
    token_at = len(between)
    head_at = token_at + calcsize(token_width[1]) + len(rest)
    id_at = head_at + len(before)
    length_at = id_at + calcsize(id_width[1]) + len(payload)
    size = length_at + calcsize(length_width[1])
    piece = b"".join(
        (
            between.ljust(head_at - len(rest)),
            rest,
            before.ljust(length_at - len(payload) - head_at),
            payload,
            lengths[0].to_bytes(size - length_at, "big"),
        )
    )
    pieces = bytearray(piece * (count + 1))
    last = count * size
    _write_numbers(pieces, size + token_at, len(pieces), size, token_width[1], tokens)
    _write_numbers(pieces, id_at, last, size, id_width[1], message_ids)
    if not one_length:
        _write_numbers(pieces, length_at, last, size, length_width[1], lengths)
    parts = [b""] * (2 * count + 1)
    parts[0] = _MESSAGES + pack_array_header(count) + pieces[head_at:size]
    parts[1::2] = values
    parts[2:-1:2] = unpack(f"{size}s" * (count - 1), memoryview(pieces)[size:last])
    parts[-1] = bytes(pieces[last : last + head_at])
    return parts


def _write_numbers(
    rows: bytearray, first: int, end: int, size: int, code: str, numbers: Sequence[int]
) -> None:
    """Write a number into each row of ``size`` bytes, at ``first`` in the first row."""
    packed = pack_numbers(f">{len(numbers)}{code}", *numbers)
    width = calcsize(code)
    for byte in range(width):
        rows[first + byte : end : size] = packed[byte::width]


_Width = tuple[int, bytes, str]
"""The numbers below the first field have this first byte and this code of `struct`."""
_UNSIGNED_WIDTHS: tuple[_Width, ...] = (
    (0x80, b"", "B"),
    (0x100, b"\xcc", "B"),
    (0x10000, b"\xcd", "H"),
    (1 << 32, b"\xce", "I"),
    (1 << 64, b"\xcf", "Q"),
)
_BIN_WIDTHS: tuple[_Width, ...] = (
    (0x100, b"\xc4", "B"),
    (0x10000, b"\xc5", "H"),
    (1 << 32, b"\xc6", "I"),
)


def _width_of_all(
    numbers: Sequence[int], widths: Sequence[_Width] = _UNSIGNED_WIDTHS
) -> tuple[bytes, str] | None:
    """Return first byte and code of the shortest form of the numbers; None if they differ.

    A range rises.
    """
    if type(numbers) is range:
        lowest, highest = numbers[0], numbers[-1]
    else:
        lowest, highest = min(numbers), max(numbers)
    for bound, first_byte, code in widths:
        if lowest < bound:
            return (first_byte, code) if highest < bound else None
    return None


def settled_batch(results: Sequence[str]) -> bytes:
    """The answer to SETTLE_BATCH: SETTLED or an error text for each settle, in order."""
    return frame(Command.SETTLE_BATCH, b"\x81\xa7results" + pack(list(results)))


def group_info(state: GroupState) -> bytes:
    """The answer to GROUP_INFO."""
    return frame(Command.GROUP_INFO, pack(state._asdict()))


def released(count: int) -> bytes:
    """The answer to RELEASE: the number of ended leases."""
    return frame(Command.RELEASE, pack({"released": count}))


def cancelled(was_cancelled: bool) -> bytes:
    """The answer to CANCEL."""
    return frame(Command.CANCEL, pack({"cancelled": was_cancelled}))
