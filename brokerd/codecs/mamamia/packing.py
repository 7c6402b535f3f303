# Tests: tests/codecs/test_mamamia_requests.py
"""MessagePack in the Mamamia format: a safe walk of maps, and headers.

A body is walked in two steps. First msgpack's ``skip`` follows the declared lengths, fails where
bytes are missing, and builds no objects. Then every value is decoded, which finds bad UTF-8, wrong
map keys and bad timestamps. A large value is decoded with hooks that drop each inner array and map
after its check.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from msgpack import Unpacker, packb, unpackb
from msgpack.exceptions import UnpackException

from brokerd.codecs.mamamia.values import MAX_BATCH, BodyError, RequestError
from brokerd.values import Encoding

Key = str | bytes

UNDECODABLE = (ValueError, UnpackException)
"""Exceptions of msgpack for undecodable bytes (UnicodeDecodeError is a ValueError)."""

SHALLOW_BYTES = 1_000
"""A value of this size can neither nest too deep nor declare many missing items."""
_WHOLE_BYTES = 65_536
"""Larger values are decoded with hooks that drop their inner objects."""
# An answer nests a payload deeper than its request did. A decode below eight arrays makes sure
# that the clients that receive the payload can decode it too.
DEPTH_GUARD = b"\x91" * 8

ARRAY = [None]
MAP: dict[str, Any] = {"": None}
"""Placeholders of an array and a map too large to keep as objects; true, like these."""


def _drop_map(_: object) -> None:
    return None


def _drop_array(_: object) -> None:
    return None


def any_extension(code: int, data: bytes) -> None:
    """Accept an extension type, which is stored and returned unchanged.

    Refuse MessagePack's own codes, below 0: Python clients decode only the timestamp, -1.
    """
    if code < 0:
        raise ValueError(f"extension type {code} is reserved, and no client could read it")


def _kinds() -> list[str]:
    kinds = ["an int"] * 256
    spans = {
        "a map": (0x80, 0x8F),
        "an array": (0x90, 0x9F),
        "a str": (0xA0, 0xBF),
        "nil": (0xC0, 0xC0),
        "a bool": (0xC2, 0xC3),
        "a bin": (0xC4, 0xC6),
        "an extension": (0xC7, 0xC9),
        "a float": (0xCA, 0xCB),
    }
    spans_high = {
        "an extension": (0xD4, 0xD8),
        "a str": (0xD9, 0xDB),
        "an array": (0xDC, 0xDD),
        "a map": (0xDE, 0xDF),
    }
    for table in (spans, spans_high):
        for name, (first, last) in table.items():
            kinds[first : last + 1] = [name] * (last + 1 - first)
    return kinds


KINDS = _kinds()
"""The name of an object's type by its first byte (MessagePack specification, Formats)."""
KEY_FIRST_BYTES = frozenset(n for n in range(256) if KINDS[n] in ("a str", "a bin"))
CONTAINER_FIRST_BYTES = frozenset(n for n in range(256) if KINDS[n] in ("a map", "an array"))
_BYTES, _TEXT, _MSGPACK = int(Encoding.BYTES), int(Encoding.TEXT), int(Encoding.MSGPACK)
_new = tuple.__new__  # half the cost of calling a NamedTuple


class Field(NamedTuple):
    """One value of a map."""

    raw: bytes
    value: Any
    """The decoded object; for a large array or map a placeholder of its type and truth."""
    start: int
    """Position of `raw` in the body."""
    items: list[Fields | Field] | None = None
    """The walked items of the array that the caller of `walk` named (at most MAX_BATCH)."""

    @property
    def kind(self) -> str:
        return KINDS[self.raw[0]]


Fields = dict[Key, Field]
"""The values of a map at `FIELD_KEYS`. The last value of a repeated key counts."""

FIELD_KEYS: frozenset[object] = frozenset(
    (
        *("log_id", "payload", "metadata", "key", "partition", "ttl", "delay", "messages"),
        *("producer_id", "sequence", "group_id", "client_id", "duration", "wait", "max"),
        *("message_id", "success", "reason", "dead", "token", "settles", "message_ids"),
        "schedule_id",
    )
)
"""The keys of all requests. Values at other keys are checked and dropped: millions of them may
stand in one body."""


def checked(raw: bytes) -> Any:
    """Decode one whole array or map of sound structure.

    :raises BodyError: it cannot be decoded.
    """
    try:
        if len(raw) <= SHALLOW_BYTES:
            return unpackb(raw, ext_hook=any_extension)
        if len(raw) <= _WHOLE_BYTES:
            unpackb(DEPTH_GUARD + raw, ext_hook=any_extension)
        else:
            unpackb(
                DEPTH_GUARD + raw,
                ext_hook=any_extension,
                object_hook=_drop_map,
                list_hook=_drop_array,
            )
    except UNDECODABLE as error:
        raise BodyError(f"the body is not MessagePack of this format: {error}") from error
    return MAP if KINDS[raw[0]] == "a map" else ARRAY


def walk(body: bytes, array_key: str | None = None) -> Fields:
    """Return the checked values of a request's map; walk the items of the array `array_key` too.

    :raises BodyError: the body is not exactly one object.
    :raises RequestError: the object is not a map.
    """
    unpacker = Unpacker(max_buffer_size=max(len(body), 1), ext_hook=any_extension)
    unpacker.feed(body)
    try:
        if KINDS[body[0]] == "a map":
            fields = walk_map(unpacker, body, array_key)
        else:
            _walk_value(unpacker, body, 0)
            fields = None
    except UNDECODABLE as error:
        raise BodyError(f"the body is not one MessagePack object: {error}") from error
    except IndexError:
        raise BodyError("the body is not one MessagePack object: it ends too early") from None
    if unpacker.tell() != len(body):
        raise BodyError("the body is more than one MessagePack object")
    if fields is None:
        raise RequestError(f"the body must be a map, not {KINDS[body[0]]}")
    return fields


def walk_map(unpacker: Unpacker, body: bytes, array_key: str | None) -> Fields:
    fields: Fields = {}
    unpack, tell = unpacker.unpack, unpacker.tell
    count = unpacker.read_map_header()
    start = tell()
    for _ in range(count):
        if body[start] not in KEY_FIRST_BYTES:
            raise BodyError("a map key is neither str nor bin")
        key = unpack()
        start = tell()
        items = _walk_items(unpacker, body, start) if key == array_key else None
        if items is not None:
            fields[key] = Field(body[start : start + 1], ARRAY, start, items)
        elif body[start] in CONTAINER_FIRST_BYTES:
            field = _walk_value(unpacker, body, start)
            if key in FIELD_KEYS:
                fields[key] = field
        else:  # as _walk_value would, without its call
            value = unpack()
            if key in FIELD_KEYS:
                fields[key] = _new(Field, (body[start : tell()], value, start, None))
        start = tell()
    return fields


def _walk_value(unpacker: Unpacker, body: bytes, start: int) -> Field:
    """Return the checked object at `start`."""
    if body[start] in CONTAINER_FIRST_BYTES:
        unpacker.skip()
        raw = body[start : unpacker.tell()]
        return Field(raw, checked(raw), start)
    value = unpacker.unpack()
    return Field(body[start : unpacker.tell()], value, start)


def _walk_items(unpacker: Unpacker, body: bytes, start: int) -> list[Fields | Field] | None:
    """Return the items of an array; None for another type or a longer array than MAX_BATCH."""
    if not 0 < array_size(body, start) <= MAX_BATCH:
        return None
    items: list[Fields | Field] = []
    for _ in range(unpacker.read_array_header()):
        item_start = unpacker.tell()
        if KINDS[body[item_start]] == "a map":
            items.append(walk_map(unpacker, body, None))
        else:
            items.append(_walk_value(unpacker, body, item_start))
    return items


def array_size(body: bytes, start: int) -> int:
    """Return the declared number of items of the array at `start`; 0 for another type."""
    first = body[start]
    if first & 0xF0 == 0x90:
        return first & 0x0F
    width = {0xDC: 2, 0xDD: 4}.get(first, 0)
    return int.from_bytes(body[start + 1 : start + 1 + width], "big")


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def has_control_characters(text: str) -> bool:
    """Whether any character is of Unicode category Cc."""
    return _CONTROL.search(text) is not None


def pack(value: object) -> bytes:
    """Return one object in the profile of this format (page, MessagePack profile)."""
    packed: bytes = packb(value)
    return packed


def pack_str(utf8: bytes) -> bytes:
    """A *str* of these UTF-8 bytes, with the shortest header."""
    size = len(utf8)
    if size < 32:
        return _FIXSTR[size] + utf8
    if size < 0x100:
        return b"\xd9" + size.to_bytes(1, "big") + utf8
    if size < 0x10000:
        return b"\xda" + size.to_bytes(2, "big") + utf8
    return b"\xdb" + size.to_bytes(4, "big") + utf8


_FIXSTR = [bytes([0xA0 | size]) for size in range(32)]


def pack_bin(data: bytes) -> bytes:
    """A *bin*, with the shortest header."""
    size = len(data)
    if size < 0x100:
        return _BIN8[size] + data
    if size < 0x10000:
        return b"\xc5" + size.to_bytes(2, "big") + data
    return b"\xc6" + size.to_bytes(4, "big") + data


_BIN8 = [bytes([0xC4, size]) for size in range(256)]


def pack_array_header(count: int) -> bytes:
    """The header of an *array*, the shortest."""
    if count < 16:
        return bytes([0x90 | count])
    if count < 0x10000:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def pack_value(value: bytes, encoding: int) -> bytes:
    """Return a record's value as the MessagePack object that was received."""
    if encoding == _BYTES:
        return pack_bin(value)
    if encoding == _TEXT:
        return pack_str(value)
    return value


def packed_length(value: bytes, encoding: int) -> int:
    """Return the length of the result of `pack_value`."""
    size = len(value)
    if encoding == _MSGPACK:
        return size
    if encoding == _TEXT and size < 32:
        return size + 1
    return size + (2 if size < 0x100 else 3 if size < 0x10000 else 5)
