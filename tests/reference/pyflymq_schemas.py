"""Stand-in for pyflymq's schemas, and for Go's where its layout of a request differs.

Layouts and the handling of answers are pyflymq's. The answer to REGISTER_SCHEMA is ignored. The
answer to GET_SCHEMA is read like one to LIST_SCHEMAS. Of the answer to VALIDATE_SCHEMA pyflymq
reads one byte; Go reads the list.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tests.reference import flymq
from tests.reference.flymq import Fields, RecordMetadata, text
from tests.reference.flymq_go import GoClient
from tests.reference.pyflymq import FlyMQClient
from tests.reference.pyflymq_later import value_field

REGISTER, GET, LIST, VALIDATE, PRODUCE, DELETE = range(0x10, 0x16)


class SchemaInfo(NamedTuple):
    """A schema as the client sees it."""

    name: str
    type: str
    version: int


def register_schema(client: FlyMQClient, name: str, kind: str, definition: bytes) -> None:
    client.call(REGISTER, text(name) + text(kind, "B") + value_field(definition))


def get_schema(client: FlyMQClient, name: str, version: int = 0) -> SchemaInfo:
    """Send GET_SCHEMA; return the first entry of the answer's list."""
    return _infos(client.call(GET, text(name) + struct.pack(">I", version)))[0]


def list_schemas(client: FlyMQClient, name: str = "") -> list[SchemaInfo]:
    return _infos(client.call(LIST, text(name)))


def _infos(payload: bytes) -> list[SchemaInfo]:
    fields = Fields(payload)
    count = fields.number("I")
    return [SchemaInfo(fields.text(), fields.text("B"), fields.number("I")) for _ in range(count)]


def validate_schema(client: FlyMQClient, name: str, message: bytes) -> bool:
    return client.call(VALIDATE, text(name) + value_field(message))[0] == 1


def produce_with_schema(
    client: FlyMQClient, topic: str, value: bytes, schema: str
) -> RecordMetadata:
    payload = text(topic) + value_field(value) + text(schema)
    return flymq.record_metadata(client.call(PRODUCE, payload))


def delete_schema(client: FlyMQClient, name: str, version: int) -> None:
    client.call(DELETE, text(name) + struct.pack(">I", version))


def go_produce_with_schema(go: GoClient, topic: str, value: bytes, schema: str) -> RecordMetadata:
    payload = text(topic) + text(schema) + value_field(value)
    return flymq.record_metadata(go.call(PRODUCE, payload))


def go_validate_schema(go: GoClient, name: str, message: bytes) -> tuple[bool, list[str]]:
    """Send VALIDATE_SCHEMA; an answer of fewer than five bytes is an error in Go."""
    answer = go.call(VALIDATE, text(name) + value_field(message))
    assert len(answer) >= 5
    fields = Fields(answer)
    return bool(fields.number("?")), fields.texts()


def go_delete_schema(go: GoClient, name: str) -> None:
    """Send DELETE_SCHEMA of version 0, which means every version."""
    go.call(DELETE, text(name) + struct.pack(">I", 0))
