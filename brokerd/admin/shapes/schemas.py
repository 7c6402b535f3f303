# Tests: tests/admin/test_schema_calls.py
"""Requests and answers about schemas; see `brokerd.admin.shapes.common`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from brokerd.admin.shapes.common import Time

Word = Annotated[str, Meta(max_length=100)]


class SchemaVersionShape(Struct):
    """A version of a schema, without its text."""

    version: int
    type: str
    definition_bytes: int
    created: Time


class SchemaShape(Struct):
    """A schema."""

    name: str
    compatibility: str
    """The mode: which versions a new version must be compatible with."""
    versions: list[SchemaVersionShape]
    """Existing versions in order."""


class SchemaList(Struct):
    """A page of schemas, by name."""

    schemas: list[SchemaShape]
    next: int | None
    """``first`` of the next page."""


class SchemaTextShape(Struct):
    """A version of a schema with its text."""

    name: str
    compatibility: str
    version: int
    type: str
    definition: str
    """Bytes that are not UTF-8 are replaced by U+FFFD."""
    created: Time


class NewSchema(Struct, forbid_unknown_fields=True):
    """A version to register."""

    type: Word
    """``json``, ``avro``, ``protobuf`` or ``proto``."""
    definition: str


class SchemaChanges(Struct, forbid_unknown_fields=True):
    """Settings of a schema to change."""

    compatibility: Word


class SchemaMessage(Struct, forbid_unknown_fields=True):
    """A message to validate: as text, or its bytes in base64."""

    text: str | None = None
    base64: bytes | None = None


class Verdict(Struct):
    """Whether a message is valid, and its faults."""

    valid: bool
    errors: list[str]
