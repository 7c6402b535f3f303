# Tests: tests/schemas/test_avro.py
"""Avro schemas (https://avro.apache.org/docs/1.12.0/specification/), read by the package fastavro.

A message is one value in the binary encoding, without a header. Compatibility follows the section
"Schema Resolution" of the specification.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException

from brokerd.errors import error_text
from brokerd.schemas.values import InvalidDefinition, fault_text

_FASTAVRO_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions of fastavro for invalid schemas and values."""

_PROMOTED = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "string": {"bytes"},
    "bytes": {"string"},
}
"""Reader's primitive type -> writer's types that it can read, besides itself."""


class AvroSchema:
    """A parsed definition; see `brokerd.schemas.values.Schema`."""

    def __init__(self, parsed: Any) -> None:
        self._parsed = parsed
        self.root = parsed
        self.names: dict[str, Any] = {}
        """Full name -> record, enumeration or fixed."""
        _collect_names(parsed, self.names)

    def faults(self, message: bytes) -> list[str]:
        """Return why a message does not fit. A hostile message may end the process."""
        if not message:
            return ["empty message"]
        stream = BytesIO(message)
        try:
            schemaless_reader(stream, self._parsed, None)
        except _FASTAVRO_ERRORS as error:
            reason = error_text(error)
            return [fault_text(f"Avro validation failed: {reason}")]
        left = len(message) - stream.tell()
        return [f"Avro validation failed: {left} bytes follow the value"] if left else []

    def incompatibility(self, old: AvroSchema) -> str | None:
        """Return why this reader's schema does not resolve with the writer's old one."""
        return _Resolution(self.names, old.names).incompatibility(self.root, old.root, "")


def read(text: bytes) -> AvroSchema:
    """Parse a definition. Raises `InvalidDefinition`."""
    try:
        return AvroSchema(parse_schema(json.loads(text.decode())))
    except (SchemaParseException, *_FASTAVRO_ERRORS) as error:
        reason = error_text(error)
        raise InvalidDefinition(fault_text(f"invalid Avro schema: {reason}")) from None


def _collect_names(schema: Any, names: dict[str, Any]) -> None:
    """Collect the named types in a schema, from the outside in."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            if "name" in one:
                names[one["name"]] = one
            waiting += [one[inner] for inner in ("type", "items", "values") if inner in one]
            waiting += [field["type"] for field in one.get("fields", ())]


class _Resolution:
    """Compares a reader's schema with a writer's."""

    def __init__(self, reader_names: dict[str, Any], writer_names: dict[str, Any]) -> None:
        self._reader_names = reader_names
        self._writer_names = writer_names
        self._seen: set[tuple[str, str]] = set()
        """Pairs of records that are already compared."""

    def incompatibility(self, reader: Any, writer: Any, path: str) -> str | None:
        reader, writer = _named(reader, self._reader_names), _named(writer, self._writer_names)
        if isinstance(writer, list):
            for branch in writer:
                reason = self.incompatibility(reader, branch, path)
                if reason is not None:
                    return reason
            return None
        if isinstance(reader, list):
            return self._in_union(reader, writer, path)
        reader_type, writer_type = _type_of(reader), _type_of(writer)
        if reader_type == writer_type:
            compare = _COMPARISONS.get(reader_type)
            return None if compare is None else compare(self, reader, writer, path)
        if writer_type in _PROMOTED.get(reader_type, ()):
            return None
        return f"{path or 'the value'} was {writer_type} in the old schema, and is {reader_type}"

    def _in_union(self, reader: list[Any], writer: Any, path: str) -> str | None:
        for branch in reader:
            before = set(self._seen)
            if self.incompatibility(branch, writer, path) is None:
                return None
            self._seen = before
        return f"{path or 'the value'}: no branch of the union reads {_type_of(writer)}"

    def _record(self, reader: Any, writer: Any, path: str) -> str | None:
        reason = _name_incompatibility(reader, writer, path)
        pair = (reader["name"], writer["name"])
        if reason is not None or pair in self._seen:
            return reason
        self._seen.add(pair)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            name = field["name"]
            names = [name, *field.get("aliases", ())]
            found = next((written[one] for one in names if one in written), None)
            if found is not None:
                reason = self.incompatibility(
                    field["type"], found["type"], f"{path}.{name}".lstrip(".")
                )
                if reason is not None:
                    return reason
            elif "default" not in field:
                return f"new field '{path}.{name}' without a default".replace("'.", "'")
        return None

    def _enum(self, reader: Any, writer: Any, path: str) -> str | None:
        reason = _name_incompatibility(reader, writer, path)
        if reason is not None or "default" in reader:
            return reason
        for symbol in writer["symbols"]:
            if symbol not in reader["symbols"]:
                return f"{path or 'the value'} lacks the symbol {symbol} of the old schema"
        return None

    def _fixed(self, reader: Any, writer: Any, path: str) -> str | None:
        if reader["size"] != writer["size"]:
            return f"{path or 'the value'} had {writer['size']} bytes, and has {reader['size']}"
        return _name_incompatibility(reader, writer, path)

    def _array(self, reader: Any, writer: Any, path: str) -> str | None:
        return self.incompatibility(reader["items"], writer["items"], f"{path}.items".lstrip("."))

    def _map(self, reader: Any, writer: Any, path: str) -> str | None:
        return self.incompatibility(
            reader["values"], writer["values"], f"{path}.values".lstrip(".")
        )


_Compare = Callable[[_Resolution, Any, Any, str], str | None]
_COMPARISONS: dict[str, _Compare] = {
    "record": _Resolution._record,
    "error": _Resolution._record,
    "enum": _Resolution._enum,
    "fixed": _Resolution._fixed,
    "array": _Resolution._array,
    "map": _Resolution._map,
}


def _named(schema: Any, names: dict[str, Any]) -> Any:
    """Resolve a type: the definition of a name, or the type inside an annotated one."""
    if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
        return _named(schema["type"], names)
    return names.get(schema, schema) if isinstance(schema, str) else schema


def _type_of(schema: Any) -> str:
    kind: str = schema["type"] if isinstance(schema, dict) else schema
    return kind


def _name_incompatibility(reader: Any, writer: Any, path: str) -> str | None:
    """Return why two named types differ: other unqualified names, and no alias matches."""
    written = _short(writer["name"])
    if written in (_short(name) for name in (reader["name"], *reader.get("aliases", ()))):
        return None
    return f"{path or 'the value'} was {writer['name']} in the old schema, and is {reader['name']}"


def _short(name: str) -> str:
    return name.rpartition(".")[2]
