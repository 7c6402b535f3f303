# Tests: tests/admin/test_schema_calls.py
"""The API's calls about schemas (docs/schemas.rst). A schema's permissions are those of a topic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.web import http

from brokerd.admin.http.routing import Call, Route
from brokerd.admin.shapes.common import Deleted, Page, time_of
from brokerd.admin.shapes.schemas import (
    NewSchema,
    SchemaChanges,
    SchemaList,
    SchemaMessage,
    SchemaShape,
    SchemaTextShape,
    SchemaVersionShape,
    Verdict,
)
from brokerd.broker.schemas.entries import SchemaName, SchemaVersion
from brokerd.errors import BrokerdError, InvalidRequest, without_traceback
from brokerd.schemas.checker import Requester
from brokerd.schemas.values import parse_mode, parse_type
from brokerd.security import ADMIN, WRITE

T = TypeVar("T")

NAME_VERSIONS = 100
"""Number of versions that one name counts as, in the limit of a page."""


def list_schemas(call: Call) -> SchemaList:
    """Return a page of schemas."""
    call.access.require_known()
    query: Page = call.query
    page, following = query.select(call.broker.schemas.names(), NAME_VERSIONS)
    return SchemaList([_shape(schema) for schema in page], following)


def describe_schema(call: Call) -> SchemaShape:
    """Return a schema. Raises `UnknownSchema`."""
    call.access.require_known()
    return _shape(call.broker.schemas.find(call.path["name"]))


def describe_version(call: Call) -> SchemaTextShape:
    """Return one version, 0 for the latest. Raises `UnknownSchema`."""
    call.access.require_known()
    schemas, name, version = call.broker.schemas, call.path["name"], call.number("version")
    return _text(call, schemas.get(name, version) if version else schemas.find(name).latest)


async def register(call: Call) -> SchemaTextShape:
    """Register the next version. Raises as `Schemas.register`."""
    new: NewSchema = call.body
    name = call.path["name"]
    call.access.require(WRITE, name)
    begin = partial(
        call.broker.schemas.register,
        call.access,
        name,
        parse_type(new.type),
        new.definition.encode("utf-8", "replace"),
        requester=_requester(call),
    )
    made = _text(call, await _later(begin))
    durable: Deferred[None] = Deferred()
    call.broker.group_commit.when_all_durable(partial(durable.callback, None))
    await durable
    return made


async def validate(call: Call) -> Verdict:
    """Validate a message against the latest version. Raises as `Schemas.validate`."""
    call.access.require_known()
    message: SchemaMessage = call.body
    data = message.base64 if message.text is None else message.text.encode("utf-8", "replace")
    if data is None or (message.text is not None and message.base64 is not None):
        raise InvalidRequest("give the message as text or as base64, and not as both")
    check = partial(
        call.broker.schemas.validate, call.path["name"], data, requester=_requester(call)
    )
    errors = await _later(check)
    return Verdict(not errors, errors)


def _requester(call: Call) -> Requester:
    return Requester(call.access.name, call.access.peer)


async def configure(call: Call) -> SchemaShape:
    """Change the compatibility mode. Raises as `Schemas.set_mode`."""
    changes: SchemaChanges = call.body
    name = call.path["name"]
    call.access.require(ADMIN, name)
    mode = parse_mode(changes.compatibility)

    def change() -> SchemaName:
        call.access.require(ADMIN, name)  # again: it may have waited
        return call.broker.schemas.set_mode(call.access, name, mode)

    return _shape(await call.when_admitted(change))


async def delete_schema(call: Call) -> Deleted:
    """Delete a schema. Raises as `Schemas.delete`."""
    return await _delete(call, 0)


async def delete_version(call: Call) -> Deleted:
    """Delete a version. Raises as `Schemas.delete`."""
    version = call.number("version")
    if not version:
        raise InvalidRequest("versions begin with 1; to delete all, delete the schema")
    return await _delete(call, version)


async def _delete(call: Call, version: int) -> Deleted:
    name = call.path["name"]
    call.access.require(ADMIN, name)

    def delete() -> None:
        call.access.require(ADMIN, name)  # again: it may have waited
        call.broker.schemas.delete(call.access, name, version)

    await call.when_admitted(delete)
    return Deleted(f"{name} v{version}" if version else name)


async def _later(begin: Callable[[Callable[[T | None, BrokerdError | None], None]], None]) -> T:
    """Return the result of a call with a ``done`` callback as a Deferred."""
    answer: Deferred[T] = Deferred()

    def done(result: Any, error: BrokerdError | None) -> None:
        if error is None:
            answer.callback(result)
        else:
            answer.errback(without_traceback(error))

    begin(done)
    return await answer


def _shape(schema: SchemaName) -> SchemaShape:
    versions = [
        SchemaVersionShape(one.version, one.type, len(one.text), time_of(one.created_us))
        for one in schema.versions.values()
    ]
    return SchemaShape(schema.name, schema.mode, versions)


def _text(call: Call, found: SchemaVersion) -> SchemaTextShape:
    return SchemaTextShape(
        found.name,
        call.broker.schemas.find(found.name).mode,
        found.version,
        found.type,
        found.text.decode("utf-8", "replace"),
        time_of(found.created_us),
    )


SCHEMA = "/schemas/{name}"
VERSIONS, VERSION = f"{SCHEMA}/versions", f"{SCHEMA}/versions/{{version}}"
ROUTES = [
    Route("GET", "/schemas", 0, "List all schemas, by name", list_schemas, SchemaList, query=Page),
    Route("GET", SCHEMA, 0, "Show a schema and its versions", describe_schema, SchemaShape),
    Route(
        "PATCH",
        SCHEMA,
        0,
        "Change the compatibility mode",
        configure,
        SchemaShape,
        body=SchemaChanges,
    ),
    Route("DELETE", SCHEMA, 0, "Delete a schema and all its versions", delete_schema, Deleted),
    Route(
        "POST",
        VERSIONS,
        0,
        "Register a version",
        register,
        SchemaTextShape,
        body=NewSchema,
        status=http.CREATED,
    ),
    Route("GET", VERSION, 0, "Show a version with its text", describe_version, SchemaTextShape),
    Route("DELETE", VERSION, 0, "Delete a version", delete_version, Deleted),
    Route(
        "POST",
        f"{SCHEMA}/validate",
        0,
        "Validate a message against the latest version",
        validate,
        Verdict,
        body=SchemaMessage,
    ),
]
