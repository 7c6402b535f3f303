# Tests: tests/client/test_flymq_schemas.py
"""Methods of `brokerd.client.flymq.FlymqClient` for schemas (docs/schemas.rst).

They raise as its other methods do.
"""

from __future__ import annotations

from typing import TypeVar

from brokerd.client.checks import bytes_of, check_bytes, check_number, check_text
from brokerd.codecs.flymq import (
    Answer,
    DeleteSchema,
    Done,
    GetSchema,
    ListSchemas,
    Produced,
    ProduceWithSchema,
    RegisterSchema,
    Request,
    SchemaInfo,
    SchemaList,
    SchemaText,
    ValidateSchema,
    Validity,
)

_U32_MAX = (1 << 32) - 1

Result = TypeVar("Result", bound=Answer)


class FlymqSchemas:
    """Requests about schemas, and records that have to fit one."""

    _sdk: bool
    """Whether requests are laid out as the SDKs do."""

    def _call(self, request: Request, kind: type[Result]) -> Result:
        """Send a request and return its answer. Raises `FlymqError` and what the client raises."""
        raise NotImplementedError

    def register_schema(self, name: str, type: str, definition: bytes | str) -> SchemaInfo:
        """Register the next version of a schema: ``json``, ``avro`` or ``protobuf``."""
        check_text(name=name, type=type)
        text = bytes_of("definition", definition)
        if not 0 < len(type.encode()) < 256:
            raise ValueError(f"type must have 1 to 255 bytes, not {len(type.encode())}")
        return self._call(RegisterSchema(name, type, text, self._sdk), SchemaInfo)

    def get_schema(self, name: str, version: int = 0) -> SchemaText:
        """A version of a schema, or with 0 the latest."""
        _check_version(name, version)
        return self._call(GetSchema(name, version), SchemaText)

    def list_schemas(self, name: str = "") -> tuple[SchemaInfo, ...]:
        """All versions of one schema, or of all."""
        check_text(name=name)
        return self._call(ListSchemas(name), SchemaList).schemas

    def validate_schema(self, name: str, message: bytes) -> Validity:
        """Validate a message against the latest version; return its errors."""
        check_text(name=name)
        check_bytes(message=message)
        return self._call(ValidateSchema(name, message), Validity)

    def produce_with_schema(self, topic: str, value: bytes, schema: str) -> Produced:
        """Store a record durably if its value fits the latest version of a schema."""
        check_text(topic=topic, schema=schema)
        check_bytes(value=value)
        return self._call(ProduceWithSchema(topic, value, schema), Produced)

    def delete_schema(self, name: str, version: int = 0) -> None:
        """Delete a version of a schema, or with 0 all of them."""
        _check_version(name, version)
        self._call(DeleteSchema(name, version), Done)


def _check_version(name: str, version: int) -> None:
    check_text(name=name)
    check_number("version", version, 0, _U32_MAX)
