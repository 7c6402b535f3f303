# Tests: tests/admin/test_schema_calls.py
"""What the API takes and answers about schemas."""

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
    """With what a new version is compared."""
    versions: list[SchemaVersionShape]
    """Those that are left, in order."""


class SchemaList(Struct):
    """A page of schemas, by name."""

    schemas: list[SchemaShape]
    next: int | None
    """How many to skip for the next page."""


class SchemaTextShape(Struct):
    """A version of a schema with its text."""

    name: str
    compatibility: str
    version: int
    type: str
    definition: str
    """Bytes that are not UTF-8 stand as U+FFFD."""
    created: Time


class NewSchema(Struct, forbid_unknown_fields=True):
    """A version to be registered."""

    type: Word
    """``json``, ``avro``, ``protobuf`` or ``proto``."""
    definition: str


class SchemaChanges(Struct, forbid_unknown_fields=True):
    """What to change of a schema."""

    compatibility: Word


class SchemaMessage(Struct, forbid_unknown_fields=True):
    """A message to be looked at: as text, or its bytes in base64."""

    text: str | None = None
    base64: bytes | None = None


class Verdict(Struct):
    """Whether a message fits."""

    valid: bool
    errors: list[str]
