# Tests: tests/archive/test_typed_values.py
"""Decodes Protocol Buffers by their schema: the types of columns, and the values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from brokerd.archive.typed.types import (
    BINARY,
    DEPTH_MAX,
    DOUBLE,
    JSON_TEXT,
    LONG,
    STRING,
    TIMESTAMP,
    ColumnNames,
    Convert,
    Misfit,
    struct_of_fields,
)
from brokerd.archive.typed.values import (
    CELLS_MAX,
    TOO_MANY_CELLS,
    Decoder,
    FieldBudget,
    LibraryMissing,
    NoColumns,
)
from brokerd.values import Encoding

_UINT64 = pa.decimal128(20, 0)
_KINDS = {
    **dict.fromkeys(("double", "float"), DOUBLE),
    **dict.fromkeys(("int32", "int64", "sint32", "sint64", "sfixed32", "sfixed64"), LONG),
    **dict.fromkeys(("uint32", "fixed32"), LONG),
    **dict.fromkeys(("uint64", "fixed64"), _UINT64),
    "bool": pa.bool_(),
    "string": STRING,
    "bytes": BINARY,
    "enum": STRING,
}
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_ERRORS = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions for values that JSON cannot express, such as an ``Any`` of an unknown type, and for
fields with the name of a method."""
_VARINT, _BYTES, _GROUP_BEGIN, _GROUP_END = 0, 2, 3, 4
_FIXED_BYTES = {1: 8, 5: 4}
"""Wire types."""
_DEPTH_MAX = 100
"""The library refuses deeper values."""
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999, the range of the type Timestamp."""


class _Type(NamedTuple):
    """The type of a column, and the conversion of its values, if one is needed."""

    kind: pa.DataType
    convert: Convert | None


def protobuf_decoder(text: bytes, reserved: Iterable[str]) -> Decoder:
    """Return the decoder of a schema. Raises `NoColumns`, `LibraryMissing`."""
    try:
        from google.protobuf.json_format import Error as JsonError
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        from brokerd.schemas import protobuf
        from brokerd.schemas.values import InvalidDefinition
    except ModuleNotFoundError as error:
        raise LibraryMissing.of(error) from None
    try:
        root = protobuf.read(text).root
    except InvalidDefinition as error:
        raise NoColumns(str(error)) from None
    kind, convert = _Builder().struct(root, reserved, ())
    message_class = GetMessageClass(root)
    limit = _SizeLimit(root)

    def decode(value: bytes, encoding: int) -> dict[str, Any]:
        if encoding == Encoding.MSGPACK:
            raise Misfit("the value is MessagePack, not Protobuf")
        if not value:
            raise Misfit("empty message")
        if limit.is_exceeded(value):
            raise Misfit(TOO_MANY_CELLS)
        try:
            message = message_class.FromString(value)
            missing = message_class.FindInitializationErrors(message)
            if missing:
                raise Misfit("missing required field: %", missing[0])
            found: dict[str, Any] = convert(message)
        except DecodeError as error:
            raise Misfit(f"invalid Protobuf wire format: {error}") from None
        except (JsonError, *_ERRORS) as error:
            raise Misfit(f"invalid Protobuf message: {error}") from None
        return found

    return Decoder(kind, decode)


class _Builder:
    """Builds the types of one schema."""

    def __init__(self) -> None:
        self._budget = FieldBudget()

    def struct(
        self, root: Any, reserved: Iterable[str], around: tuple[str, ...]
    ) -> tuple[pa.StructType, Convert]:
        """Return the type of a message, and its conversion."""
        names = ColumnNames(reserved)
        fields: list[tuple[str, str, Convert | None, bool]] = []
        kinds = []
        for field in root.fields:
            self._budget.take()
            column = names.add(field.name)
            found = self._field(field, (*around, root.full_name))
            fields.append((field.name, column, found.convert, field.has_presence))
            kinds.append((field.name, column, found.kind))

        def convert_all(message: Any) -> Any:
            found = {}
            for name, column, convert, has_presence in fields:
                if has_presence and not type(message).HasField(message, name):
                    continue
                value = getattr(message, name)
                found[column] = value if convert is None else convert(value)
            return found

        return struct_of_fields(kinds), convert_all

    def _field(self, field: Any, around: tuple[str, ...]) -> _Type:
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            value = self._single(message.fields_by_name["value"], around)
            convert = value.convert
            return _Type(
                pa.map_(STRING, value.kind),
                lambda found: {
                    _key(key): one if convert is None else convert(one)
                    for key, one in found.items()
                },
            )
        single = self._single(field, around)
        if not field.is_repeated:
            return single
        one = single.convert
        return _Type(
            pa.list_(pa.field("element", single.kind)),
            list if one is None else lambda found: [one(item) for item in found],
        )

    def _single(self, field: Any, around: tuple[str, ...]) -> _Type:
        """Return the type of one value of a field."""
        from brokerd.schemas.protobuf import type_of

        message = field.message_type
        if message is None:
            name = type_of(field)
            if name == "enum":
                return _Type(STRING, _enum(field.enum_type))
            return _Type(_KINDS[name], Decimal if _KINDS[name] == _UINT64 else None)
        if message.full_name == _TIMESTAMP:
            return _Type(TIMESTAMP, _timestamp)
        if message.full_name in _WRAPPERS:
            inner = self._single(message.fields_by_name["value"], around)
            unwrap = inner.convert
            return _Type(
                inner.kind, lambda found: found.value if unwrap is None else unwrap(found.value)
            )
        if message.full_name in around or len(around) >= DEPTH_MAX or _is_recursive(message):
            return _Type(JSON_TEXT, _json_text)
        return _Type(*self.struct(message, (), around))


class _SizeLimit:
    """Detects values whose messages take much more memory than their bytes.

    The library reserves memory for all fields of a message, also for absent ones. So this class
    counts fields by the wire format (https://protobuf.dev/programming-guides/encoding/) before the
    library sees the value.
    """

    def __init__(self, root: Any) -> None:
        self._root = root.full_name
        self._inner: dict[str, dict[int, tuple[str, int]]] = {}
        """By message: tag -> name and number of fields of the message that a field holds."""
        waiting = [root]
        while waiting:
            kind = waiting.pop()
            if kind.full_name in self._inner:
                continue
            fields = [*kind.fields, *kind.file.pool.FindAllExtensions(kind)]
            inner = {_tag(one): one.message_type for one in fields if one.message_type}
            self._inner[kind.full_name] = {
                tag: (one.full_name, 1 + len(one.fields)) for tag, one in inner.items()
            }
            waiting += inner.values()
        widths = (width for fields in self._inner.values() for _, width in fields.values())
        self._widest = max(widths, default=0)

    def is_exceeded(self, value: bytes) -> bool:
        """Return whether the messages in a value have more than `CELLS_MAX` fields."""
        if len(value) // 2 * self._widest <= CELLS_MAX:
            return False  # a message takes two bytes at least
        try:
            return self._count(value) > CELLS_MAX
        except (IndexError, ValueError):
            return False  # the library refuses the value

    def _count(self, data: bytes) -> int:
        """Count the fields up to the limit. Raises IndexError and ValueError for invalid data."""
        total = 0
        outer = [([self._root], 0, len(data))]
        while outer:
            groups, at, end = outer.pop()
            while at < end and total <= CELLS_MAX:
                if len(outer) + len(groups) > _DEPTH_MAX + 1:
                    return 0
                tag, at = _varint(data, at)
                wire = tag & 7
                if wire == _VARINT:
                    _, at = _varint(data, at)
                elif wire in _FIXED_BYTES:
                    at += _FIXED_BYTES[wire]
                elif wire == _GROUP_END:
                    groups.pop()
                else:
                    inner, width = self._inner.get(groups[-1], {}).get(tag, ("", 0))
                    total += width
                    if wire == _GROUP_BEGIN:
                        groups.append(inner)
                        continue
                    size, at = _varint(data, at)
                    if inner:
                        outer.append((groups, at + size, end))
                        groups, end = [inner], at + size
                    else:
                        at += size
        return total


def _tag(field: Any) -> int:
    """Return the tag of a field with a message. With the other wire type the field is unknown."""
    wire = _GROUP_BEGIN if field.type == field.TYPE_GROUP else _BYTES
    return int(field.number) << 3 | wire


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and its end."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at + 1
        shift += 7
        if shift > 63:
            raise ValueError


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _is_recursive(root: Any) -> bool:
    """Return whether a message may hold a message of its own type."""
    seen: set[str] = set()
    waiting = [root]
    while waiting:
        for field in waiting.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name == root.full_name:
                return True
            if inner is not None and inner.full_name not in seen:
                seen.add(inner.full_name)
                waiting.append(inner)
    return False


def _enum(kind: Any) -> Convert:
    names = {number: value.name for number, value in kind.values_by_number.items()}
    return lambda number: names.get(number, str(number))


def _timestamp(value: Any) -> int:
    if not _SECONDS_MIN <= value.seconds <= _SECONDS_MAX or not 0 <= value.nanos < 10**9:
        raise Misfit("a Timestamp is not between the years 1 and 9999")
    seconds: int = value.seconds * 1_000_000 + value.nanos // 1000
    return seconds


def _json_text(message: Any) -> str:
    from google.protobuf.json_format import MessageToDict

    found = MessageToDict(message, preserving_proto_field_name=True)
    return json.dumps(found, ensure_ascii=False, allow_nan=False)
