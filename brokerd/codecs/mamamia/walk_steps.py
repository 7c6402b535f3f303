# Tests: tests/codecs/test_mamamia_steps.py
"""Walks a large request body in steps, so that a caller can do other work between them.

The result is that of `packing.walk`. A body of 10 MB may hold millions of objects, and a walk of it
takes seconds. msgpack's ``Unpacker`` keeps its place where bytes are missing. So it gets the body
in pieces, and each piece is one step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from msgpack import OutOfData, Unpacker, unpackb

from brokerd.codecs.mamamia.packing import (
    ARRAY,
    CONTAINER_FIRST_BYTES,
    DEPTH_GUARD,
    FIELD_KEYS,
    KEY_FIRST_BYTES,
    KINDS,
    MAP,
    UNDECODABLE,
    Field,
    Fields,
    any_extension,
    array_size,
    checked,
    walk_map,
)
from brokerd.codecs.mamamia.values import MAX_BATCH, BodyError, RequestError
from brokerd.errors import without_traceback

PIECE_BYTES: Final = 8_192
"""Bytes of a body that one step walks: about half a millisecond, if they are all empty maps. So a
slice takes 1.5 ms at most."""
ITEMS: Final = 64
"""Items of a batch that one step walks, if they are shorter."""
_LONG_ITEMS = 32_768
"""Longer lists of values are freed in steps."""
_HEADER_BYTES_MAX = 5

Result = TypeVar("Result")
DecodeSteps = Generator[None, None, Result]
"""Yields after each step; its return value is the result."""
Decode = Callable[[Fields], Any]


def finish(steps: DecodeSteps[Result]) -> Result:
    """Run all steps at once and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result


class _Probe:
    """Finds where the objects of a body end, without building them."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._fed = 0
        self._unpacker = Unpacker(max_buffer_size=max(len(body), 1), ext_hook=any_extension)
        self.position = 0
        """Where the next object begins."""

    def _feed(self) -> None:
        """Feed a piece. Raises `OutOfData` at the end of the body."""
        if self._fed >= len(self._body):
            raise OutOfData("the body ends too early")
        self._unpacker.feed(self._body[self._fed : self._fed + PIECE_BYTES])
        self._fed += PIECE_BYTES

    def skip(self) -> DecodeSteps[int]:
        """Pass over the next object and return where it ends."""
        while True:
            try:
                self._unpacker.skip()
            except OutOfData:
                self._feed()
                yield
            else:
                self.position = self._unpacker.tell()
                return self.position

    def enter(self, is_map: bool) -> int:
        """Pass over the header of the container at the position; return the count of items."""
        while self._fed < self.position + _HEADER_BYTES_MAX and self._fed < len(self._body):
            self._feed()
        unpacker = self._unpacker
        count: int = unpacker.read_map_header() if is_map else unpacker.read_array_header()
        self.position = unpacker.tell()
        return count


def walk_steps(
    body: bytes, array_key: str | None = None, decode: Decode | None = None
) -> DecodeSteps[Fields]:
    """Return in steps what `packing.walk` returns, and raise its errors.

    Positions in the fields of the array's items are those in the item. With ``decode``, the items
    that are maps are decoded as they come, so that the fields of one item at a time are in memory.
    The `RequestError` of ``decode`` takes the place of its item, and later maps are not decoded.
    """
    probe = _Probe(body)
    try:
        if KINDS[body[0]] == "a map":
            fields = yield from _map_steps(probe, body, array_key, decode)
        else:
            yield from _value_steps(probe, body)
            fields = None
    except UNDECODABLE as error:
        raise BodyError(f"the body is not one MessagePack object: {error}") from error
    except IndexError:
        raise BodyError("the body is not one MessagePack object: it ends too early") from None
    if probe.position != len(body):
        raise BodyError("the body is more than one MessagePack object")
    if fields is None:
        raise RequestError(f"the body must be a map, not {KINDS[body[0]]}")
    return fields


def _map_steps(
    probe: _Probe, body: bytes, array_key: str | None, decode: Decode | None
) -> DecodeSteps[Fields]:
    fields: Fields = {}
    for number in range(probe.enter(True)):
        if number % ITEMS == 0:
            yield
        start = probe.position
        if body[start] not in KEY_FIRST_BYTES:
            raise BodyError("a map key is neither str nor bin")
        key = unpackb(body[start : (yield from probe.skip())])
        start = probe.position
        items = (yield from _items_steps(probe, body, decode)) if key == array_key else None
        if items is not None:
            fields[key] = Field(body[start : start + 1], ARRAY, start, items)
        else:
            field = yield from _value_steps(probe, body)
            if key in FIELD_KEYS:
                fields[key] = field
    return fields


def _items_steps(
    probe: _Probe, body: bytes, decode: Decode | None
) -> DecodeSteps[list[Any] | None]:
    """Return the items of an array; None for another type or a longer array than MAX_BATCH."""
    if not 0 < array_size(body, probe.position) <= MAX_BATCH:
        return None
    items: list[Any] = []
    for number in range(probe.enter(False)):
        if number % ITEMS == 0:
            yield
        start = probe.position
        if KINDS[body[start]] == "a map":
            fields = yield from _item_steps(probe, body)
            if decode is None:
                items.append(fields)
                continue
            try:
                items.append(decode(fields))
            except RequestError as error:
                items.append(without_traceback(error))
                decode = _skip
        else:
            items.append((yield from _value_steps(probe, body)))
    return items


def _skip(fields: Fields) -> None:
    """Decode nothing: an item before was refused."""


def _item_steps(probe: _Probe, body: bytes) -> DecodeSteps[Fields]:
    """Return the fields of an item that is a map."""
    start = probe.position
    raw = body[start : (yield from probe.skip())]
    if len(raw) > PIECE_BYTES:
        return (yield from _map_steps(_Probe(raw), raw, None, None))
    unpacker = Unpacker(max_buffer_size=len(raw), ext_hook=any_extension)
    unpacker.feed(raw)
    return walk_map(unpacker, raw, None)


def _value_steps(probe: _Probe, body: bytes) -> DecodeSteps[Field]:
    """Return the checked object at the position."""
    start = probe.position
    is_container = body[start] in CONTAINER_FIRST_BYTES
    raw = body[start : (yield from probe.skip())]
    if not is_container:
        return Field(raw, unpackb(raw, ext_hook=any_extension), start)
    if len(raw) <= PIECE_BYTES:
        return Field(raw, checked(raw), start)
    yield from _check_steps(raw)
    return Field(raw, MAP if KINDS[raw[0]] == "a map" else ARRAY, start)


def _check_steps(raw: bytes) -> DecodeSteps[None]:
    """Decode a large array or map of sound structure, and keep none of its objects.

    Long lists live until the end: to free one takes as long as to build it, so that is done in
    steps, too. A map comes as a list of pairs, because a large dict grows in long steps.
    """
    long: list[list[Any]] = []

    def drop(items: list[Any]) -> None:
        if len(items) > _LONG_ITEMS:
            long.append(items)

    unpacker = Unpacker(
        max_buffer_size=len(raw) + len(DEPTH_GUARD),
        ext_hook=any_extension,
        list_hook=drop,
        object_pairs_hook=drop,
    )
    unpacker.feed(DEPTH_GUARD)
    for position in range(0, len(raw), PIECE_BYTES):
        unpacker.feed(raw[position : position + PIECE_BYTES])
        try:
            unpacker.unpack()
        except OutOfData:
            yield
        except UNDECODABLE as error:
            raise BodyError(f"the body is not MessagePack of this format: {error}") from error
    for items in long:
        while items:
            del items[-_LONG_ITEMS:]
            yield
