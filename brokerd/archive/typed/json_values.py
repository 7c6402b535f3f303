# Tests: tests/archive/test_typed_values.py
"""Decodes JSON by a JSON Schema: the types of columns, and the values.

A value fits if it has the types, the required fields and no forbidden field. Other keywords, such
as ``pattern``, are not checked. A ``$ref`` leads into the schema itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

import msgpack
import pyarrow as pa

from brokerd.archive.typed.types import (
    CONTENT,
    DEPTH_MAX,
    DOUBLE,
    JSON_TEXT,
    LONG,
    STRING,
    ColumnNames,
    Convert,
    Misfit,
    converted,
    struct_of_content,
    struct_of_fields,
)
from brokerd.archive.typed.values import Decoder, FieldBudget, NoColumns
from brokerd.values import Encoding

PACKED_BYTES_MAX = 1 << 20
"""Longer MessagePack does not fit, because one byte may take 64 bytes of memory as an object."""
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_ROUNDED_MIN, _ROUNDED_MAX = 2.0**53, 2.0**64
"""Double rounds integers from the first on. Columns of integers end below the second."""
_TOO_LARGE = Decimal("Infinity")
"""A JSON number beyond double. Infinity as float comes from MessagePack."""
_KINDS = {
    bool: "boolean",
    int: "integer",
    float: "number",
    Decimal: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


class _Type(NamedTuple):
    """The type of a column, and the conversion of its values."""

    kind: pa.DataType
    convert: Convert


def json_decoder(text: bytes, reserved: Iterable[str]) -> Decoder:
    """Return the decoder of a schema. Raises `NoColumns`."""
    try:
        definition = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoColumns(f"it is not JSON: {error}") from None
    builder = _Builder(definition)
    root = builder.resolve(definition)
    if isinstance(root, dict) and _type_names(root) == {"object"} and _object_properties(root):
        kind, convert = builder.struct(root, reserved, [id(root)])
    else:
        kind, inner = builder.build(definition, [])
        kind = struct_of_content(kind)
        convert = _wrap(inner)

    def decode(value: bytes, encoding: int) -> dict[str, Any]:
        found: dict[str, Any] = convert(_load(value, encoding))
        return found

    return Decoder(kind, decode)


def _wrap(convert: Convert) -> Convert:
    return lambda value: {CONTENT: convert(value)}


def _load(value: bytes, encoding: int) -> Any:
    try:
        if encoding == Encoding.MSGPACK:
            if len(value) > PACKED_BYTES_MAX:
                raise Misfit(f"MessagePack of {len(value)} bytes is too long")
            return msgpack.unpackb(value)
        if not value:
            raise Misfit("empty message")
        return json.loads(value.decode(), parse_constant=_refuse_constant, parse_float=_parse_float)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        what = "MessagePack" if encoding == Encoding.MSGPACK else "JSON"
        raise Misfit(f"invalid {what} message: {str(error) or type(error).__name__}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parse_float(text: str) -> float | int | Decimal:
    """Return a JSON number with fraction or exponent, or `_TOO_LARGE`.

    An integer that double would round is an int.
    """
    value = float(text)
    size = abs(value)
    if size < _ROUNDED_MIN:
        return value
    if size == float("inf"):
        return _TOO_LARGE
    exact = Decimal(text) if size <= _ROUNDED_MAX else None
    return int(exact) if exact is not None and exact == exact.to_integral_value() else value


def _mismatch(expected: str, value: Any) -> Misfit:
    got = _KINDS.get(type(value), type(value).__name__)
    return Misfit(f"type mismatch at %: expected {expected}, got {got}")


# -- Scalars -------------------------------------------------------------------------------------


def _boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise _mismatch("boolean", value)
    return value


def _integer(value: Any) -> Any:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int and value is not _TOO_LARGE:
        raise _mismatch("integer", value)
    if not _INT_MIN <= value <= _INT_MAX:
        raise Misfit("the integer at % has more than 64 bits")
    return value


def _number(value: Any) -> Any:
    if type(value) is float:
        return value
    if value is _TOO_LARGE:
        raise Misfit("the number at % is too large")
    if type(value) is not int:
        raise _mismatch("number", value)
    try:
        return float(value)
    except OverflowError:
        raise Misfit("the number at % is too large") from None


def _string(value: Any) -> Any:
    if type(value) is not str:
        raise _mismatch("string", value)
    return value


def _null(value: Any) -> Any:
    if value is not None:
        raise _mismatch("null", value)


def _text(value: Any) -> Any:
    try:
        return None if value is None else _encode(value)
    except (ValueError, TypeError, RecursionError):
        raise Misfit("JSON cannot express the value at %") from None


_SCALARS = {
    "boolean": _Type(pa.bool_(), _boolean),
    "integer": _Type(LONG, _integer),
    "number": _Type(DOUBLE, _number),
    "string": _Type(STRING, _string),
    "null": _Type(JSON_TEXT, _null),
}
_ANY = _Type(JSON_TEXT, _text)


def _nullable(one: _Type) -> _Type:
    convert = one.convert
    return _Type(one.kind, lambda value: None if value is None else convert(value))


# -- Schemas -------------------------------------------------------------------------------------


def _object_properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


class _Builder:
    """Builds the types of one schema. ``seen`` has the schemas around a place, by identity."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._budget = FieldBudget()

    def resolve(self, schema: Any) -> Any:
        """Follow references; None if one leads nowhere or in a circle."""
        for _ in range(DEPTH_MAX):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            schema = self._target(schema["$ref"])
        return None

    def _target(self, reference: str) -> Any:
        found = self._root
        if reference != "#" and not reference.startswith("#/"):
            return None
        for step in reference[2:].split("/") if len(reference) > 1 else ():
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, dict) else None
        return found

    def build(self, schema: Any, seen: list[int]) -> _Type:
        """Return the type of a schema; JSON text if it has none."""
        schema = self.resolve(schema)
        if not isinstance(schema, dict) or id(schema) in seen or len(seen) >= DEPTH_MAX:
            return _ANY
        seen = [*seen, id(schema)]
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in schema:
                return self._one_of(schema, keyword, seen)
        names = _type_names(schema)
        if names is None:
            return _ANY
        is_nullable = "null" in names and len(names) > 1
        rest = names - {"null"} if is_nullable else names
        if rest == {"integer", "number"}:
            rest = {"number"}
        if len(rest) != 1:
            return _ANY
        (name,) = rest
        if name == "array":
            found = self._array(schema, seen)
        elif name == "object":
            found = self._object(schema, seen)
        else:
            found = _SCALARS.get(name, _ANY)
        return _nullable(found) if is_nullable else found

    def _one_of(self, schema: dict[str, Any], keyword: str, seen: list[int]) -> _Type:
        """Return the type of the only choice besides null."""
        choices = schema[keyword]
        if not isinstance(choices, list) or _type_names(schema) is not None:
            return _ANY
        choices = [self.resolve(one) for one in choices]
        others = [one for one in choices if one != {"type": "null"}]
        if len(others) != 1:
            return _ANY
        found = self.build(others[0], seen)
        return _nullable(found) if len(others) < len(choices) else found

    def _array(self, schema: dict[str, Any], seen: list[int]) -> _Type:
        items = schema.get("items")
        element = _ANY if "prefixItems" in schema else self.build(items, seen)
        convert = element.convert

        def convert_all(value: Any) -> Any:
            if type(value) is not list:
                raise _mismatch("array", value)
            return [converted(convert, one, "items") for one in value]

        return _Type(pa.list_(pa.field("element", element.kind)), convert_all)

    def _object(self, schema: dict[str, Any], seen: list[int]) -> _Type:
        if _object_properties(schema):
            return self.struct(schema, (), seen)
        more = schema.get("additionalProperties")
        if not isinstance(more, dict) or "patternProperties" in schema or "properties" in schema:
            return _ANY
        element = self.build(more, seen)
        convert = element.convert

        def convert_all(value: Any) -> Any:
            if type(value) is not dict:
                raise _mismatch("object", value)
            for key in value:
                if type(key) is not str:  # MessagePack
                    raise Misfit("JSON cannot express a key at %")
            return {key: converted(convert, one, key) for key, one in value.items()}

        return _Type(pa.map_(STRING, element.kind), convert_all)

    def struct(self, schema: dict[str, Any], reserved: Iterable[str], seen: list[int]) -> _Type:
        """Return the struct of an object's properties."""
        names = ColumnNames(reserved)
        required = schema.get("required")
        listed = required if isinstance(required, list) else []
        needed = [one for one in listed if isinstance(one, str)]
        fields = []
        kinds = []
        for name, inner in _object_properties(schema).items():
            self._budget.take()
            column, found = names.add(name), self.build(inner, seen)
            fields.append((name, column, found.convert))
            kinds.append((name, column, found.kind))
        known = frozenset(name for name, *_ in fields)
        is_closed = schema.get("additionalProperties") is False
        is_closed = is_closed and "patternProperties" not in schema

        def convert_all(value: Any) -> Any:
            if type(value) is not dict:
                raise _mismatch("object", value)
            for name in needed:
                if name not in value:
                    raise Misfit("missing required field: %", name)
            if is_closed and not value.keys() <= known:
                unknown = next(name for name in value if name not in known)
                raise Misfit("unexpected field: %", str(unknown))
            found = {}
            name = ""
            try:
                for name, column, convert in fields:
                    if name in value:
                        found[column] = convert(value[name])
            except Misfit as misfit:
                raise misfit.inside(name) from None
            return found

        return _Type(struct_of_fields(kinds), convert_all)


def _type_names(schema: dict[str, Any]) -> set[str] | None:
    """Return the types of a schema's values; None if any."""
    found = schema.get("type")
    if isinstance(found, str):
        return {found}
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        return set(found)
    if "properties" in schema:
        return {"object"}
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and choices:
        return {_KINDS[type(one)] for one in choices}
    return None
