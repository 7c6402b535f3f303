# Tests: tests/codecs/test_mamamia_batches.py
"""Decodes batch bodies of the usual shape in one step, without a walk.

The functions return None for any other body. The walk then finds its error or reads its unusual
fields. A test compares the results of both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import repeat
from operator import itemgetter
from struct import Struct, calcsize, unpack
from typing import Any, TypeGuard

from msgpack import unpackb

from brokerd.codecs.mamamia.packing import UNDECODABLE, any_extension, has_control_characters
from brokerd.codecs.mamamia.values import (
    MAX_BATCH,
    MAX_MESSAGE_ID,
    MAX_PARTITION,
    MAX_REASON_BYTES,
    SECONDS_MAX,
    BatchMessage,
    BatchSettle,
    ProduceBatch,
    SettleBatch,
)
from brokerd.values import MAX_NAME_BYTES, Encoding

PLAIN_BYTES = 256 * 1024
"""Longer bodies are walked, which builds no objects from a false length."""

PLAIN_VALUES_BYTES = 128 * 1024
PLAIN_VALUES_MAX = 1_024
"""The largest batch whose values `plain_values` cuts out: a fraction of a millisecond."""

_AROUND_PAYLOAD = (
    (b"\x82\xa7payload", b"\xa8metadata\xc0"),
    (b"\x81\xa7payload", b""),
)
"""The bytes before and after the payload in a message without other fields."""
_BIN8, _BIN16 = 0xC4, 0xC5
_BIN_HEADER_BYTES = {_BIN8: 2, _BIN16: 3}
_UNUSUAL = frozenset(("ttl", "delay"))
_BARE = frozenset(("payload",))
_WITH_METADATA = frozenset(("payload", "metadata"))
_SETTLE_FIELDS = 3
_ID_KEY, _TOKEN_KEY, _SUCCESS = b"\xaamessage_id", b"\xa5token", b"\xa7success\xc3"
_SETTLE_KEYS = (_ID_KEY, _TOKEN_KEY, _SUCCESS)
"""The keys of a settle, with the value of the last one."""
_UNSIGNED = {0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q"}
"""The code of `struct` for the number after each first byte."""
_FIXINT_END = 0x80
_settle_fields = itemgetter("message_id", "success", "token")
_EXTENSION = object()
_new = tuple.__new__  # half the cost of calling a NamedTuple
_new_settle: Callable[[tuple[Any, ...]], BatchSettle] = partial(_new, BatchSettle)
_new_message: Callable[[tuple[Any, ...]], BatchMessage] = partial(_new, BatchMessage)


def plain_settle_batch(body: bytes) -> SettleBatch | None:
    """Return a SETTLE_BATCH, or None: walk it."""
    fields = _plain_map(body)
    if fields is None:
        return None
    log_id, group_id, client_id = map(fields.get, ("log_id", "group_id", "client_id"))
    settles = _plain_items(fields, "settles")
    if settles is None or not (_is_name(log_id) and _is_name(group_id) and _is_name(client_id)):
        return None
    bare = _bare_settles(settles)
    if bare is not None:
        return SettleBatch(log_id, group_id, client_id, bare)
    read = []
    for item in settles:
        if type(item) is not dict or "success" not in item:
            return None
        message_id = item.get("message_id")
        token = item.get("token")
        delay = item.get("delay")
        if (
            type(message_id) is not int
            or not 0 <= message_id <= MAX_MESSAGE_ID
            or (token is not None and type(token) is not int)
            or (delay is None and "delay" in item)
        ):
            return None
        if delay is not None:
            if type(delay) not in (int, float) or not 0 <= delay <= SECONDS_MAX:
                return None
            delay = float(delay)
        reason = item.get("reason")
        if reason is None:
            reason = ""
        elif (
            type(reason) is not str
            or len(reason.encode()) > MAX_REASON_BYTES
            or has_control_characters(reason)
        ):
            return None
        dead = bool(item.get("dead"))
        settle = (message_id, bool(item["success"]), token, delay, reason, dead)
        read.append(_new(BatchSettle, settle))
    return SettleBatch(log_id, group_id, client_id, tuple(read))


def plain_produce_batch(body: bytes) -> ProduceBatch | None:
    """Return a PRODUCE_BATCH without metadata, TTL and delay, or None: walk it."""
    fields = _plain_map(body)
    if fields is None:
        return None
    log_id = fields.get("log_id")
    messages = _plain_items(fields, "messages")
    if messages is None or not _is_name(log_id):
        return None
    values = _bare_values(messages)
    if values is not None:
        nothing = repeat(None)
        rows = zip(values, repeat(Encoding.BYTES), nothing, nothing, nothing, nothing, nothing)
        read = list(map(_new_message, rows))
    else:
        read = []
    for item in messages if values is None else ():
        if (
            type(item) is not dict
            or item.get("metadata") is not None
            or not item.keys().isdisjoint(_UNUSUAL)
        ):
            return None
        value = item.get("payload")
        key = item.get("key")
        partition = item.get("partition")
        encoding = Encoding.BYTES
        if type(value) is str:
            value, encoding = value.encode(), Encoding.TEXT
        elif type(value) is not bytes:
            return None
        if type(key) is str:
            key = key.encode()
        elif key is not None and type(key) is not bytes:
            return None
        if partition is not None and (
            type(partition) is not int or not 0 <= partition <= MAX_PARTITION
        ):
            return None
        read.append(_new(BatchMessage, (value, encoding, None, key, partition, None, None)))
    producer_id, sequence = fields.get("producer_id"), fields.get("sequence")
    if not (producer_id is None and sequence is None) and not (
        type(producer_id) is str
        and 0 < len(producer_id.encode()) <= MAX_NAME_BYTES
        and type(sequence) is int
        and 0 <= sequence <= MAX_MESSAGE_ID
    ):
        return None
    return ProduceBatch(log_id, tuple(read), producer_id, sequence)


def plain_values(body: bytes, start: int, count: int) -> Sequence[bytes] | None:
    """Return the payloads of ``count`` messages that fill a body from ``start`` to its end.

    Each message has a payload of the type bin, of up to 65,535 bytes, and no other field, or
    metadata of nil after it. Returns None for any other messages: decode the body. No object is
    made but the payloads.
    """
    if not 0 < count <= PLAIN_VALUES_MAX or len(body) > PLAIN_VALUES_BYTES:
        return None
    for before, after in _AROUND_PAYLOAD:
        if (
            body.startswith(before, start)
            and body.endswith(after)
            and len(body) > start + len(before)
        ):
            equal = _equal_values(body, start, count, before, after)
            return _any_values(body, start, count, before, after) if equal is None else equal
    return None


def _equal_values(
    body: bytes, start: int, count: int, before: bytes, after: bytes
) -> Sequence[bytes] | None:
    """Return what `plain_values` does if all payloads have the length of the first, else None.

    The messages have one length, so they are cut by one layout. Each step is one call for all.
    """
    size, rest = divmod(len(body) - start, count)
    kind = start + len(before)
    if body[kind] not in _BIN_HEADER_BYTES:
        return None
    first = kind + _BIN_HEADER_BYTES[body[kind]]
    length = size - (first - start) - len(after)
    if rest or length != int.from_bytes(body[kind + 1 : first], "big"):
        return None
    values = _equal_layout(count, first - start, length, len(after)).unpack_from(body, start)
    # The layout leaves out the bytes between the values; they must repeat those around the first.
    all_equal = body.startswith((after + body[start:first]).join(values), first)
    return values if all_equal else None


@lru_cache(maxsize=16)
def _equal_layout(count: int, before: int, length: int, after: int) -> Struct:
    """Return the layout of values with so many other bytes before and after each."""
    return Struct(f"{before}x{length}s{after}x" * count)


def _any_values(
    body: bytes, start: int, count: int, before: bytes, after: bytes
) -> Sequence[bytes] | None:
    """Return what `plain_values` does, for payloads of any lengths."""
    values: list[bytes] = []
    between = after + before
    position = start + len(before)
    end = 0
    try:
        while len(values) < count:
            if body[position] == _BIN8:
                first = position + 2
                end = first + body[position + 1]
            elif body[position] == _BIN16:
                first = position + 3
                end = first + (body[position + 1] << 8 | body[position + 2])
            else:
                return None
            values.append(body[first:end])
            if not body.startswith(between, end):
                break
            position = end + len(between)
    except IndexError:
        return None
    # The last message ends with the body.
    return values if len(values) == count and end + len(after) == len(body) else None


def plain_settles(
    body: bytes, start: int, count: int
) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the message ids and tokens of ``count`` settles that fill a body from ``start`` on.

    Each settle has a message id, a token and success, which is true, and no other field. All have
    their fields in the order of the first one, and numbers of its widths. Returns None for any
    other settles: decode the body. Consecutive numbers are a `range`.
    """
    if count <= 0:
        return None
    size, rest = divmod(len(body) - start, count)
    row = body[start : start + size]
    if rest or row[:1] != b"\x83":
        return None
    places: dict[bytes, int] = {}
    position = 1
    for _ in _SETTLE_KEYS:
        for key in _SETTLE_KEYS:
            if row.startswith(key, position):
                break
        else:
            return None
        places[key] = position = position + len(key)
        if key is not _SUCCESS:
            if position >= size:
                return None
            code = _UNSIGNED.get(row[position])
            position += 1 if code is None else 1 + calcsize(code)
    if position != size or len(places) < len(_SETTLE_KEYS):
        return None
    # Without their numbers, all rows are equal to the first one. So each is such a map.
    rows = bytearray(memoryview(body)[start:])
    message_ids = _cut_numbers(rows, places[_ID_KEY], size)
    tokens = _cut_numbers(rows, places[_TOKEN_KEY], size)
    if message_ids is None or tokens is None or rows != rows[:size] * count:
        return None
    highest = message_ids[-1] if type(message_ids) is range else max(message_ids)
    return (message_ids, tokens) if highest <= MAX_MESSAGE_ID else None


def _cut_numbers(rows: bytearray, first: int, size: int) -> Sequence[int] | None:
    """Return the number at ``first`` of each row of ``size`` bytes, and write zeros in its place.

    The first byte of the number in the first row decides about its width. Returns None if a number
    of one byte is none in another row.
    """
    code = _UNSIGNED.get(rows[first], "")
    width = calcsize(code) if code else 1
    first += 1 if code else 0
    count = len(rows) // size
    column, zeros = bytearray(count * width), bytes(count)
    for byte in range(first, first + width):
        column[byte - first :: width] = rows[byte::size]
        rows[byte::size] = zeros
    if not code and max(column) >= _FIXINT_END:
        return None
    numbers = unpack(f">{count}{code or 'B'}", column)
    run = range(numbers[0], numbers[0] + count)
    return run if numbers == tuple(run) else numbers


def _bare_values(messages: list[Any]) -> list[bytes] | None:
    """Return the payloads of messages that have no other field, or metadata of nil.

    Each step is one call for all messages. Returns None for any other messages.
    """
    shape = _shape(messages)
    if shape == _WITH_METADATA:
        if list(map(itemgetter("metadata"), messages)).count(None) < len(messages):
            return None
    elif shape != _BARE:
        return None
    values = list(map(itemgetter("payload"), messages))
    return values if set(map(type, values)) == {bytes} else None


def _shape(items: list[Any]) -> frozenset[Any] | None:
    """Return the keys of items that are maps with the same keys in the same order, else None."""
    if set(map(type, items)) != {dict}:
        return None
    shapes = set(map(tuple, items))
    return frozenset(shapes.pop()) if len(shapes) == 1 else None


def _bare_settles(settles: list[Any]) -> tuple[BatchSettle, ...] | None:
    """Return settles that have a message id, success and a token, and no other field.

    Each step is one call for all settles. Returns None for any other settles.
    """
    if set(map(type, settles)) != {dict} or set(map(len, settles)) != {_SETTLE_FIELDS}:
        return None
    try:
        ids, successes, tokens = zip(*map(_settle_fields, settles), strict=True)
    except KeyError:
        return None
    if (
        set(map(type, ids)) != {int}
        or set(map(type, tokens)) != {int}
        or set(map(type, successes)) != {bool}
        or not 0 <= min(ids) <= max(ids) <= MAX_MESSAGE_ID
    ):
        return None
    rows = zip(ids, successes, tokens, repeat(None), repeat(""), repeat(False))
    return tuple(map(_new_settle, rows))


def _extension(code: int, data: bytes) -> object:
    """Return an object that no field accepts, so that the body is walked."""
    any_extension(code, data)
    return _EXTENSION


def _plain_map(body: bytes) -> dict[Any, Any] | None:
    if len(body) > PLAIN_BYTES:
        return None
    try:
        fields = unpackb(body, ext_hook=_extension)
    except UNDECODABLE:
        return None
    return fields if type(fields) is dict else None


def _plain_items(fields: dict[Any, Any], key: str) -> list[Any] | None:
    items = fields.get(key)
    return items if type(items) is list and 1 <= len(items) <= MAX_BATCH else None


def _is_name(name: object) -> TypeGuard[str]:
    return (
        type(name) is str
        and len(name) <= MAX_NAME_BYTES
        and len(name.encode()) <= MAX_NAME_BYTES
        and not has_control_characters(name)
    )
