# Tests: tests/schemas/test_checks.py
"""Checks schemas and messages: a request in bytes, an answer in bytes.

A hostile request may take long, use much memory, or end the process. So `brokerd.schemas.checker`
runs the checks in processes of their own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgpack

from brokerd.errors import BrokerdError, IncompatibleSchema, InvalidSchema, SchemaCheckFailed
from brokerd.schemas.values import (
    INSTALL,
    Definition,
    InvalidDefinition,
    Mode,
    SchemaType,
    fault_text,
)

CACHE_MAX = 32
"""Most parsed definitions in the cache."""
CACHE_BYTES_MAX = 2 << 20
"""Most bytes of their texts."""

ERRORS: dict[str, type[BrokerdError]] = {
    kind.__name__: kind for kind in (InvalidSchema, IncompatibleSchema, SchemaCheckFailed)
}
"""Name -> class of the errors that an answer may have in place of texts."""

# -- requests -----------------------------------------------------------------------------------


def registration(new: Definition, older: Sequence[Definition], mode: Mode) -> bytes:
    """Make a request to check a new version against the older ones, latest first.

    The answer has no texts, or is `InvalidSchema`, `IncompatibleSchema` or `SchemaCheckFailed`.
    """
    compared = [] if mode is Mode.NONE else list(older if mode.transitive else older[:1])
    return _packed("registration", new, compared, mode.direction)


def validation(definition: Definition, message: bytes) -> bytes:
    """Make a request to validate a message.

    The answer has the faults of the message, or is `SchemaCheckFailed`.
    """
    return _packed("validation", definition, message)


def _packed(*request: Any) -> bytes:
    packed: bytes = msgpack.packb(request)
    return packed


# -- answers ------------------------------------------------------------------------------------


def texts_of(answer: bytes) -> list[str]:
    """Decode the texts of an answer, or raise its error."""
    kind, texts = msgpack.unpackb(answer)
    if kind:
        raise ERRORS[kind](texts[0])
    found: list[str] = texts
    return found


class Checks:
    """Answers requests, with a cache of parsed definitions."""

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[str, bytes], Any] = OrderedDict()
        self._cache_bytes = 0

    def answer(self, request: bytes) -> bytes:
        """Answer a request of `registration` or `validation`."""
        kind, *arguments = msgpack.unpackb(request)
        try:
            found = (self._registration if kind == "registration" else self._validation)(*arguments)
        except tuple(ERRORS.values()) as refusal:
            return _packed(type(refusal).__name__, [str(refusal)])
        return _packed("", found)

    def _registration(self, new: Any, older: Any, direction: str) -> list[str]:
        definition = _definition(new)
        try:
            schema = self._schema(definition)
        except InvalidDefinition as error:
            raise InvalidSchema(
                f"failed to register schema: invalid schema definition: {error}"
            ) from None
        for old in map(_definition, older):
            reason = self._incompatibility(definition, schema, old, direction)
            if reason is not None:
                raise IncompatibleSchema(
                    "failed to register schema: schema compatibility check failed: "
                    f"{fault_text(reason)} (version {old.version})"
                )
        return []

    def _incompatibility(
        self, definition: Definition, schema: Any, old: Definition, direction: str
    ) -> str | None:
        if definition.type != old.type:
            return f"the type was {old.type}, and is {definition.type}"
        before = self._registered_schema(old)
        reason: str | None = None
        try:
            if direction != "forward":
                reason = schema.incompatibility(before)
            if reason is None and direction != "backward":
                reason = before.incompatibility(schema)
                reason = reason and f"not readable with the old schema: {reason}"
        except RecursionError:
            return "the schemas are nested too deeply to be compared"
        return reason

    def _validation(self, definition: Any, message: bytes) -> list[str]:
        faults: list[str] = self._registered_schema(_definition(definition)).faults(message)
        return faults

    def _registered_schema(self, definition: Definition) -> Any:
        """Parse a registered definition. Raises `SchemaCheckFailed`."""
        try:
            return self._schema(definition)
        except InvalidDefinition as error:  # another version of a package may refuse it
            raise SchemaCheckFailed(f"version {definition.version} cannot be read: {error}") from (
                None
            )

    def _schema(self, definition: Definition) -> Any:
        key = (definition.type, definition.text)
        schema = self._cache.get(key)
        if schema is None:
            schema = _parser(definition.type)(definition.text)
            self._cache[key] = schema
            self._cache_bytes += len(definition.text)
            while len(self._cache) > CACHE_MAX or self._cache_bytes > CACHE_BYTES_MAX:
                (_, text), _ = self._cache.popitem(last=False)
                self._cache_bytes -= len(text)
        else:
            self._cache.move_to_end(key)
        return schema


def _definition(fields: Any) -> Definition:
    version, kind, text = fields
    return Definition(version, SchemaType(kind), text)


def _parser(kind: SchemaType) -> Any:
    """Return the parser for a type. Raises `SchemaCheckFailed` if its package is missing."""
    try:
        if kind is SchemaType.JSON:
            from brokerd.schemas import json_schema

            return json_schema.read
        if kind is SchemaType.AVRO:
            from brokerd.schemas import avro

            return avro.read
        from brokerd.schemas import protobuf

        return protobuf.read
    except ImportError as error:
        raise SchemaCheckFailed(
            f"{kind} schemas need a package that is not installed ({error}): {INSTALL}"
        ) from None
