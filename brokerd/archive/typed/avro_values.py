# Tests: tests/archive/test_typed_values.py
"""Decodes Avro by its schema: the types of columns, and the values.

A schema whose values could take much more memory than their bytes has no columns: a recursive
schema, an array of items without bytes, or one of records with many such fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Context, Decimal
from io import BytesIO
from typing import Any, NamedTuple

import pyarrow as pa

from brokerd.archive.typed.types import (
    BINARY,
    CONTENT,
    DECIMAL_DIGITS_MAX,
    DEPTH_MAX,
    DOUBLE,
    JSON_TEXT,
    LONG,
    STRING,
    TIMESTAMP,
    ColumnNames,
    Convert,
    Misfit,
    struct_of_content,
    struct_of_fields,
)
from brokerd.archive.typed.values import Decoder, FieldBudget, LibraryMissing, NoColumns
from brokerd.values import Encoding

_PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": LONG,
    "long": LONG,
    "float": DOUBLE,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BINARY,
    "fixed": BINARY,
    "enum": STRING,
    "null": JSON_TEXT,
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
}
_DECIMAL = "brokerd-decimal"
"""The logical type decimal, read by `_read_decimal`. fastavro rounds to the schema's precision."""
_DIGITS = Context(prec=DECIMAL_DIGITS_MAX)
EMPTY_MAX = 8
"""The largest number of fields without bytes in a record of an array or map. Each takes memory."""
_NUMBERS = {"int", "long", "float", "double"}
_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions of fastavro for invalid schemas and values."""


class _Type(NamedTuple):
    """The type of a column."""

    kind: pa.DataType
    convert: Convert | None
    """The conversion of its values, if one is needed."""
    bytes_min: int
    """The least number of bytes of a value."""
    empty: int = 0
    """The number of its parts that never have bytes."""


def avro_decoder(text: bytes, reserved: Iterable[str]) -> Decoder:
    """Return the decoder of a schema. Raises `NoColumns`, `LibraryMissing`."""
    try:
        from fastavro import parse_schema, schemaless_reader
        from fastavro.read import LOGICAL_READERS
        from fastavro.schema import SchemaParseException
    except ModuleNotFoundError as error:
        raise LibraryMissing.of(error) from None
    LOGICAL_READERS[f"bytes-{_DECIMAL}"] = LOGICAL_READERS[f"fixed-{_DECIMAL}"] = _read_decimal
    try:
        definition = _without_logical(json.loads(text), 0)
        parsed: Any = parse_schema(definition)
        builder = _Builder()
        root = builder.build(parsed, reserved, 0)
    except (SchemaParseException, *_ERRORS) as error:
        raise NoColumns(f"invalid Avro schema: {error}") from None
    is_struct = pa.types.is_struct(root.kind)
    kind = root.kind if is_struct else struct_of_content(root.kind)
    convert = root.convert

    def decode(value: bytes, encoding: int) -> dict[str, Any]:
        if encoding == Encoding.MSGPACK:
            raise Misfit("the value is MessagePack, not Avro")
        if not value:
            raise Misfit("empty message")
        stream = BytesIO(value)
        try:
            found: Any = schemaless_reader(stream, parsed, None)
            if convert is not None:
                found = convert(found)
        except _ERRORS as error:
            reason = str(error) or type(error).__name__
            raise Misfit(f"Avro validation failed: {reason}") from None
        left = len(value) - stream.tell()
        if left:
            raise Misfit(f"Avro validation failed: {left} bytes follow the value")
        if not is_struct:
            return {CONTENT: found}
        return {} if found is None else found  # of a union with null

    return Decoder(kind, decode)


def _without_logical(schema: Any, depth: int) -> Any:
    """Return a schema without the logical types that columns do not have."""
    if depth > 4 * DEPTH_MAX:
        raise NoColumns("it is nested too deeply")
    if isinstance(schema, list):
        return [_without_logical(one, depth + 1) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: _without_logical(value, depth + 1) if key in ("type", "items", "values") else value
        for key, value in schema.items()
    }
    if isinstance(schema.get("fields"), list):
        found["fields"] = [_without_logical(one, depth + 1) for one in schema["fields"]]
    logical = schema.get("logicalType")
    if logical == "decimal" and schema.get("type") in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if (
            isinstance(precision, int)
            and isinstance(scale, int)
            and 0 <= scale <= precision
            and 0 < precision <= DECIMAL_DIGITS_MAX
        ):
            return found | {"logicalType": _DECIMAL}
    if (str(schema.get("type")), logical) not in _LOGICAL:
        found.pop("logicalType", None)
    return found


class _Builder:
    """Builds the types of one parsed schema."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []
        self._budget = FieldBudget()
        self._repeated = 0
        """The number of arrays and maps around the present type."""

    def build(self, schema: Any, reserved: Iterable[str], depth: int) -> _Type:
        if depth > DEPTH_MAX:
            raise NoColumns("it is nested too deeply")
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            schema = {"type": schema}
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.build(kind, reserved, depth + 1)
        if "name" in schema and kind in ("record", "error", "enum", "fixed"):
            self._named[schema["name"]] = schema
        if kind in ("record", "error"):
            return self._record(schema, reserved, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "map":
            return self._map(schema, depth)
        size = {"null": 0, "fixed": schema.get("size", 0)}.get(kind, 1)
        if schema.get("logicalType") == _DECIMAL:
            decimal = pa.decimal128(schema["precision"], schema.get("scale", 0))
            return _Type(decimal, None, size, int(not size))
        column = _LOGICAL.get((kind, schema.get("logicalType")), _PRIMITIVES.get(kind))
        if column is None and kind in self._named:
            return self.build(kind, reserved, depth + 1)
        if column is None:
            raise NoColumns(f"the type {kind!r} is unknown")
        return _Type(column, None, size, int(not size))

    def _record(self, schema: Any, reserved: Iterable[str], depth: int) -> _Type:
        name = schema["name"]
        if name in self._open:
            raise NoColumns(f"the type {name} holds itself")
        self._open.append(name)
        names = ColumnNames(reserved)
        fields: list[tuple[str, str, Convert | None]] = []
        kinds: list[tuple[str, str, pa.DataType]] = []
        size = empty = 0
        for field in schema["fields"]:
            self._budget.take()
            found = self.build(field["type"], (), depth + 1)
            column = names.add(field["name"])
            fields.append((field["name"], column, found.convert))
            kinds.append((field["name"], column, found.kind))
            size += found.bytes_min
            empty += found.empty
        self._open.pop()
        if self._repeated and empty > EMPTY_MAX:
            raise NoColumns(f"it has an array or map of {name} with many fields without bytes")
        empty += not fields
        if all(field == column and convert is None for field, column, convert in fields):
            return _Type(struct_of_fields(kinds), None, size, empty)

        def convert_all(value: Any) -> Any:
            return {
                column: value[field] if convert is None else convert(value[field])
                for field, column, convert in fields
            }

        return _Type(struct_of_fields(kinds), convert_all, size, empty)

    def _array(self, schema: Any, depth: int) -> _Type:
        element = self._repeat(schema["items"], depth)
        if not element.bytes_min:
            raise NoColumns("it has an array of items without bytes")
        convert = element.convert
        return _Type(
            pa.list_(pa.field("element", element.kind)),
            None if convert is None else lambda value: [convert(one) for one in value],
            1,
        )

    def _repeat(self, schema: Any, depth: int) -> _Type:
        """Return the type of the items of an array or a map."""
        self._repeated += 1
        element = self.build(schema, (), depth + 1)
        self._repeated -= 1
        return element

    def _map(self, schema: Any, depth: int) -> _Type:
        element = self._repeat(schema["values"], depth)
        convert = element.convert
        return _Type(
            pa.map_(STRING, element.kind),
            None
            if convert is None
            else lambda value: {key: convert(one) for key, one in value.items()},
            1,
        )

    def _union(self, schema: list[Any], depth: int) -> _Type:
        branches = [self.build(one, (), depth + 1) for one in schema]
        others = [
            (one, branch)
            for one, branch in zip(schema, branches, strict=True)
            if _kind_of(one) != "null"
        ]
        if len(others) == 1:
            kind, convert = others[0][1][:2]
            if convert is None:
                return _Type(kind, None, 1)
            return _Type(kind, lambda value: None if value is None else convert(value), 1)
        kinds = {_kind_of(one) for one, _ in others}
        if kinds <= _NUMBERS and not any(isinstance(one, dict) for one, _ in others):
            if kinds <= {"int", "long"}:
                return _Type(LONG, None, 1)
            return _Type(DOUBLE, lambda value: None if value is None else float(value), 1)
        return _Type(JSON_TEXT, lambda value: None if value is None else _json_text(value), 1)


def _read_decimal(data: bytes, schema: Any, reader_schema: Any = None) -> Decimal:
    """Return the decimal of a big-endian integer. Raises ValueError beyond the precision."""
    unscaled = int.from_bytes(data, "big", signed=True)
    if abs(unscaled) >= 10 ** schema["precision"]:
        raise ValueError(f"a decimal has more than {schema['precision']} digits")
    return Decimal(unscaled).scaleb(-schema.get("scale", 0), _DIGITS)


def _kind_of(schema: Any) -> Any:
    return schema.get("type") if isinstance(schema, dict) else schema


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    """Return a value for JSON: bytes as in Avro's JSON encoding, times in ISO 8601."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return str(value) if isinstance(value, Decimal) else value.isoformat()
