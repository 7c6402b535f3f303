# Tests: tests/codecs/test_flymq_schemas.py
"""Schemas: requests and answers, free of bytes. Layouts: docs/protocols/flymq.rst, 0x10 to 0x15.

The answer to PRODUCE_WITH_SCHEMA is that to PRODUCE. The answer to DELETE_SCHEMA is OKMSG.
"""

from __future__ import annotations

from typing import NamedTuple


class RegisterSchema(NamedTuple):
    name: str
    type: str
    definition: bytes
    sdk: bool = True
    """Whether the type has the layout of the SDKs."""


class GetSchema(NamedTuple):
    name: str
    version: int = 0
    """0: the latest."""


class ListSchemas(NamedTuple):
    name: str = ""
    """Empty: all."""


class ValidateSchema(NamedTuple):
    name: str
    message: bytes


class ProduceWithSchema(NamedTuple):
    topic: str
    value: bytes
    schema: str
    schema_first: bool = False
    """Whether the schema precedes the value, as in the Go client."""


class DeleteSchema(NamedTuple):
    name: str
    version: int = 0
    """0: all of them."""


SchemaRequest = (
    RegisterSchema | GetSchema | ListSchemas | ValidateSchema | ProduceWithSchema | DeleteSchema
)


class SchemaInfo(NamedTuple):
    """A version of a schema; the answer to REGISTER_SCHEMA."""

    name: str
    type: str
    version: int


class SchemaList(NamedTuple):
    schemas: tuple[SchemaInfo, ...]


class SchemaText(NamedTuple):
    """The answer to GET_SCHEMA."""

    schema: SchemaInfo
    definition: bytes
    compatibility: str
    created_seconds: int
    """Since the Unix epoch."""


class Validity(NamedTuple):
    """The answer to VALIDATE_SCHEMA."""

    valid: bool
    errors: tuple[str, ...]


SchemaAnswer = SchemaInfo | SchemaList | SchemaText | Validity
