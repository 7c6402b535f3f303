# Tests: tests/codecs/test_flymq_schemas.py
"""Encodes and decodes requests and answers about schemas (page, 0x10 to 0x15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from brokerd.codecs.flymq.fields import Fields, pack_data, pack_text, pack_text8, pack_texts
from brokerd.codecs.flymq.frames import frame
from brokerd.codecs.flymq.schema_values import (
    DeleteSchema,
    GetSchema,
    ListSchemas,
    ProduceWithSchema,
    RegisterSchema,
    SchemaAnswer,
    SchemaInfo,
    SchemaList,
    SchemaRequest,
    SchemaText,
    ValidateSchema,
    Validity,
)
from brokerd.codecs.flymq.values import FieldError, Opcode

_U32 = Struct(">I")
_I64 = Struct(">q")
_INFO_BYTES = 7

# -- requests ---------------------------------------------------------------------------------


def _register(fields: Fields) -> RegisterSchema:
    name = fields.text("name")
    sdk = fields.peek(1) != 0
    kind = fields.text8("type") if sdk else fields.text("type")
    return RegisterSchema(name, kind, fields.data("definition"), sdk)


def _produce(fields: Fields) -> ProduceWithSchema:
    """Decode value and schema in the order that fits exactly (page, PRODUCE_WITH_SCHEMA)."""
    topic = fields.text("topic")
    rest = fields.rest()
    value_first, schema_first = _value_first(rest), _schema_first(rest)
    if schema_first is not None and (value_first is None or schema_first[0]):
        schema, value = schema_first
        return ProduceWithSchema(topic, value, schema, True)
    if value_first is not None:
        return ProduceWithSchema(topic, *value_first)
    raise FieldError(
        "invalid binary format: value and schema, or schema and value, must be all that follows "
        "the topic"
    )


def _value_first(rest: bytes) -> tuple[bytes, str] | None:
    fields = Fields(rest)
    try:
        found = fields.data("value"), fields.text("schema")
    except FieldError:
        return None
    return None if fields.left else found


def _schema_first(rest: bytes) -> tuple[str, bytes] | None:
    fields = Fields(rest)
    try:
        found = fields.text("schema"), fields.data("value")
    except FieldError:
        return None
    return None if fields.left else found


DECODERS: dict[int, Callable[[Fields], SchemaRequest]] = {
    Opcode.REGISTER_SCHEMA: _register,
    Opcode.GET_SCHEMA: lambda fields: GetSchema(fields.text("name"), fields.u32("version")),
    Opcode.LIST_SCHEMAS: lambda fields: ListSchemas(fields.text("name") if fields.left else ""),
    Opcode.VALIDATE_SCHEMA: lambda fields: ValidateSchema(
        fields.text("name"), fields.data("message")
    ),
    Opcode.PRODUCE_WITH_SCHEMA: _produce,
    Opcode.DELETE_SCHEMA: lambda fields: DeleteSchema(fields.text("name"), fields.u32("version")),
}

# -- answers ----------------------------------------------------------------------------------


def schema_registered(info: SchemaInfo) -> bytes:
    """The answer to REGISTER_SCHEMA."""
    return frame(Opcode.REGISTER_SCHEMA, _info(info))


def schema_text(found: SchemaText) -> bytes:
    """The answer to GET_SCHEMA: the list of LIST_SCHEMAS with one item, then the other fields."""
    parts = (
        _U32.pack(1),
        _info(found.schema),
        pack_data(found.definition),
        pack_text8(found.compatibility),
        _I64.pack(found.created_seconds),
    )
    return frame(Opcode.GET_SCHEMA, b"".join(parts))


def schemas(found: Sequence[SchemaInfo]) -> bytes:
    """The answer to LIST_SCHEMAS, in the order given."""
    return frame(Opcode.LIST_SCHEMAS, _U32.pack(len(found)) + b"".join(map(_info, found)))


def validity(errors: Sequence[str]) -> bytes:
    """The answer to VALIDATE_SCHEMA: valid without errors."""
    return frame(Opcode.VALIDATE_SCHEMA, bytes([not errors]) + pack_texts(errors))


def _info(info: SchemaInfo) -> bytes:
    return pack_text(info.name) + pack_text8(info.type) + _U32.pack(info.version)


# -- the client's half ------------------------------------------------------------------------


def _register_payload(one: RegisterSchema) -> bytes:
    kind = pack_text8(one.type) if one.sdk else pack_text(one.type)
    return pack_text(one.name) + kind + pack_data(one.definition)


def _produce_payload(one: ProduceWithSchema) -> bytes:
    value, schema = pack_data(one.value), pack_text(one.schema)
    return pack_text(one.topic) + (schema + value if one.schema_first else value + schema)


def _of_version(one: GetSchema | DeleteSchema) -> bytes:
    return pack_text(one.name) + _U32.pack(one.version)


OPCODES: dict[type[Any], Opcode] = {
    RegisterSchema: Opcode.REGISTER_SCHEMA,
    GetSchema: Opcode.GET_SCHEMA,
    ListSchemas: Opcode.LIST_SCHEMAS,
    ValidateSchema: Opcode.VALIDATE_SCHEMA,
    ProduceWithSchema: Opcode.PRODUCE_WITH_SCHEMA,
    DeleteSchema: Opcode.DELETE_SCHEMA,
}

PAYLOADS: dict[type[Any], Callable[[Any], bytes]] = {
    RegisterSchema: _register_payload,
    GetSchema: _of_version,
    ListSchemas: lambda one: pack_text(one.name),
    ValidateSchema: lambda one: pack_text(one.name) + pack_data(one.message),
    ProduceWithSchema: _produce_payload,
    DeleteSchema: _of_version,
}


def _info_of(fields: Fields) -> SchemaInfo:
    return SchemaInfo(fields.text("name"), fields.text8("type"), fields.u32("version"))


def _list_of(fields: Fields) -> SchemaList:
    count = fields.count("schemas", _INFO_BYTES)
    return SchemaList(tuple([_info_of(fields) for _ in range(count)]))


def _text_of(fields: Fields) -> SchemaText:
    count = fields.u32("schemas")
    if count != 1:
        raise FieldError(f"it has {count} schemas in place of one")
    return SchemaText(
        _info_of(fields),
        fields.data("definition"),
        fields.text8("compatibility"),
        fields.i64("created"),
    )


def _validity_of(fields: Fields) -> Validity:
    return Validity(fields.flag("valid"), fields.texts("errors"))


ANSWERS: dict[int, Callable[[Fields], SchemaAnswer]] = {
    Opcode.REGISTER_SCHEMA: _info_of,
    Opcode.GET_SCHEMA: _text_of,
    Opcode.LIST_SCHEMAS: _list_of,
    Opcode.VALIDATE_SCHEMA: _validity_of,
}
