# Tests: tests/protocols/test_flymq_schemas.py
"""FlyMQ's schema requests (docs/protocols/flymq.rst, 0x10 to 0x15; docs/schemas.rst).

A permission is checked before the existence of the named schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from brokerd.broker.schemas.entries import SchemaVersion
from brokerd.broker.schemas.registry import Schemas
from brokerd.codecs import flymq
from brokerd.codecs.flymq import (
    DeleteSchema,
    GetSchema,
    ListSchemas,
    Opcode,
    ProduceWithSchema,
    RegisterSchema,
    SchemaInfo,
    SchemaText,
    ValidateSchema,
)
from brokerd.errors import InvalidRequest
from brokerd.protocols.base.steps import Done, Steps
from brokerd.protocols.base.transport import peer_text
from brokerd.protocols.flymq.request import RequestConnection
from brokerd.protocols.flymq.topics import fitting
from brokerd.schemas.checker import Requester
from brokerd.schemas.values import parse_type
from brokerd.security import ADMIN, WRITE

T = TypeVar("T")

SECOND_US = 1_000_000


def register(connection: RequestConnection, request: RegisterSchema) -> bytes:
    """REGISTER_SCHEMA: register the next version of a name."""
    begin = partial(_register, connection, request)
    made = connection.await_result(request, partial(_ask, connection, begin))
    return flymq.schema_registered(SchemaInfo(made.name, request.type, made.version))


def _register(
    connection: RequestConnection, request: RegisterSchema, done: Done[SchemaVersion]
) -> None:
    connection.access.require(WRITE, request.name)
    connection.broker.schemas.register(
        connection.access,
        request.name,
        parse_type(request.type),
        request.definition,
        done,
        _requester(connection),
    )


def get(connection: RequestConnection, request: GetSchema) -> bytes:
    """GET_SCHEMA: one version, or the latest."""
    connection.access.require_known()
    schemas = connection.broker.schemas
    found = schemas.get(request.name, request.version)
    text = SchemaText(
        _info(found), found.text, schemas.find(found.name).mode, found.created_us // SECOND_US
    )
    return flymq.schema_text(text)


def list_all(connection: RequestConnection, request: ListSchemas) -> bytes:
    """LIST_SCHEMAS: all versions, or those of one name, sorted by name and version."""
    connection.access.require_known()
    schemas = connection.broker.schemas
    if request.name:
        return flymq.schemas(_infos(schemas.versions(request.name)))
    found = connection.run_steps(request, partial(_collect, schemas))
    return fitting(flymq.schemas(found), "the list of all schemas")


def _collect(schemas: Schemas) -> Steps[list[SchemaInfo]]:
    """List the versions that exist at the first step."""
    found: list[SchemaInfo] = []
    for known in schemas.names():
        found += _infos(known.versions.values())
        yield None
    return found


def validate(connection: RequestConnection, request: ValidateSchema) -> bytes:
    """VALIDATE_SCHEMA: the errors of a message under the latest version."""
    connection.access.require_known()
    faults = _find_errors(connection, request, request.name, request.message)
    return flymq.validity(faults)


def check_value(connection: RequestConnection, request: ProduceWithSchema) -> None:
    """Check a value. Raises `InvalidRequest` if it does not fit, and `FrameOnHold` at first."""
    faults = _find_errors(connection, request, request.schema, request.value)
    if faults:
        raise InvalidRequest(f"schema validation failed: [{' '.join(faults)}]")


def _find_errors(
    connection: RequestConnection, request: object, schema: str, message: bytes
) -> list[str]:
    validate = connection.broker.schemas.validate
    begin = partial(validate, schema, message, requester=_requester(connection))
    return connection.await_result(request, partial(_ask, connection, begin))


def _ask(connection: RequestConnection, begin: Callable[[Done[T]], None], done: Done[T]) -> None:
    """Begin a validation, and keep reading so that a close of the peer is noticed."""
    begin(done)
    connection.listen()


def _requester(connection: RequestConnection) -> Requester:
    peer = peer_text(connection.transport)
    return Requester(connection.access.name, peer, lambda: connection.gone)


def delete(connection: RequestConnection, request: DeleteSchema) -> bytes:
    """DELETE_SCHEMA: delete one version, or all."""
    connection.access.require(ADMIN, request.name)
    connection.broker.schemas.delete(connection.access, request.name, request.version)
    return flymq.ok(Opcode.DELETE_SCHEMA, "OK")


def _infos(versions: Iterable[SchemaVersion]) -> list[SchemaInfo]:
    return [_info(version) for version in versions]


def _info(found: SchemaVersion) -> SchemaInfo:
    return SchemaInfo(found.name, found.type, found.version)


ANSWERS: dict[type, Callable[[RequestConnection, Any], bytes]] = {
    RegisterSchema: register,
    GetSchema: get,
    ListSchemas: list_all,
    ValidateSchema: validate,
    DeleteSchema: delete,
}
"""Functions that carry out a request and return its answer."""
