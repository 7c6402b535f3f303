# Tests: tests/schemas/test_checks.py
"""Looks at schemas and messages: a question in bytes, an answer in bytes.

What is asked may be hostile, and take long, or much memory, or end the process: the broker has it
done by `brokerd.schemas.checker`, in processes of their own.
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

KEPT_MAX = 32
"""Definitions that are kept as they were read, of `KEPT_BYTES_MAX` in all."""
KEPT_BYTES_MAX = 2 << 20

ERRORS: dict[str, type[BrokerdError]] = {
    kind.__name__: kind for kind in (InvalidSchema, IncompatibleSchema, SchemaCheckFailed)
}
"""What an answer may be in place of texts."""

# -- questions ----------------------------------------------------------------------------------


def registration(new: Definition, olds: Sequence[Definition], mode: Mode) -> bytes:
    """May ``new`` be registered, where there are ``olds``, the latest first?

    The answer is no text, or `InvalidSchema`, `IncompatibleSchema` or `SchemaCheckFailed`.
    """
    compared = [] if mode is Mode.NONE else list(olds if mode.transitive else olds[:1])
    return _packed("registration", new, compared, mode.direction)


def validation(definition: Definition, message: bytes) -> bytes:
    """Why does a message not fit? The answer has no texts if it does; or `SchemaCheckFailed`."""
    return _packed("validation", definition, message)


def _packed(*question: Any) -> bytes:
    packed: bytes = msgpack.packb(question)
    return packed


# -- answers ------------------------------------------------------------------------------------


def texts_of(answer: bytes) -> list[str]:
    """What an answer says. Raises the error that it is."""
    kind, texts = msgpack.unpackb(answer)
    if kind:
        raise ERRORS[kind](texts[0])
    found: list[str] = texts
    return found


class Checks:
    """Answers questions, and keeps what was read of the newest definitions."""

    def __init__(self) -> None:
        self._read: OrderedDict[tuple[str, bytes], Any] = OrderedDict()
        self._read_bytes = 0

    def answer(self, question: bytes) -> bytes:
        """See `registration` and `validation`."""
        kind, *arguments = msgpack.unpackb(question)
        try:
            found = (self._registration if kind == "registration" else self._validation)(*arguments)
        except tuple(ERRORS.values()) as refusal:
            return _packed(type(refusal).__name__, [str(refusal)])
        return _packed("", found)

    def _registration(self, new: Any, olds: Any, direction: str) -> list[str]:
        wanted = _definition(new)
        try:
            made = self._schema(wanted)
        except InvalidDefinition as error:
            raise InvalidSchema(
                f"failed to register schema: invalid schema definition: {error}"
            ) from None
        for old in map(_definition, olds):
            why = self._why_not(wanted, made, old, direction)
            if why is not None:
                raise IncompatibleSchema(
                    "failed to register schema: schema compatibility check failed: "
                    f"{fault_text(why)} (version {old.version})"
                )
        return []

    def _why_not(
        self, wanted: Definition, made: Any, old: Definition, direction: str
    ) -> str | None:
        if wanted.type != old.type:
            return f"the type was {old.type}, and is {wanted.type}"
        before = self._known(old)
        why: str | None = None
        try:
            if direction != "forward":
                why = made.why_not_reads(before)
            if why is None and direction != "backward":
                why = before.why_not_reads(made)
                why = why and f"not readable with the old schema: {why}"
        except RecursionError:
            return "the schemas are nested too deeply to be compared"
        return why

    def _validation(self, definition: Any, message: bytes) -> list[str]:
        faults: list[str] = self._known(_definition(definition)).faults(message)
        return faults

    def _known(self, definition: Definition) -> Any:
        """The schema of a definition that was registered. Raises `SchemaCheckFailed`."""
        try:
            return self._schema(definition)
        except InvalidDefinition as error:  # another version of a package may read less
            raise SchemaCheckFailed(f"version {definition.version} cannot be read: {error}") from (
                None
            )

    def _schema(self, definition: Definition) -> Any:
        key = (definition.type, definition.text)
        schema = self._read.get(key)
        if schema is None:
            schema = _reader(definition.type)(definition.text)
            self._read[key] = schema
            self._read_bytes += len(definition.text)
            while len(self._read) > KEPT_MAX or self._read_bytes > KEPT_BYTES_MAX:
                (_, text), _ = self._read.popitem(last=False)
                self._read_bytes -= len(text)
        else:
            self._read.move_to_end(key)
        return schema


def _definition(fields: Any) -> Definition:
    version, kind, text = fields
    return Definition(version, SchemaType(kind), text)


def _reader(kind: SchemaType) -> Any:
    """What reads definitions of a type. Raises `SchemaCheckFailed` without its package."""
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
