# Tests: tests/admin/test_openapi.py
"""The OpenAPI 3.1 description of the API, generated from the table of routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from brokerd.admin.http.routing import Route, parameters
from brokerd.admin.shapes.common import Refusal

_TEMPLATE = "#/components/schemas/{name}"
_REFUSED = {
    "400": "an invalid value",
    "401": "no login, or a wrong name, password or key",
    "403": "missing permission, or a write that a browser sends for a page of another origin",
    "404": "the named object does not exist",
    "409": "a conflict: it exists already, a limit is reached, or another client holds it",
    "413": "the body or a record is too large",
    "415": "a write without Content-Type: application/json",
    "429": "too many logins failed, or wait; the text says when to try again",
    "500": "a failed write, damage, or a bug",
    "503": "the broker is starting or stopping, or the archive is unusable",
    "507": "the disk is full",
}
_READ_REFUSED = ("400", "401", "403", "404", "429", "500", "503")


def describe(routes: list[Route]) -> dict[str, Any]:
    """Return the document."""
    types: list[type[Struct]] = [Refusal]
    for route in routes:
        types += [kind for kind in (route.answer, route.body) if kind is not None]
    _, schemas = msgspec.json.schema_components(dict.fromkeys(types), ref_template=_TEMPLATE)
    paths: dict[str, Any] = {"/status": _status()}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "brokerd admin API", "version": "1"},
        "servers": [{"url": "/api/v1"}],
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(route: Route) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.act.__name__,
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": {
            str(route.status): _content("the answer", route.answer),
            **{
                code: _content(text, Refusal)
                for code, text in _REFUSED.items()
                if route.is_write or code in _READ_REFUSED
            },
        },
    }
    if route.body is not None:
        described["requestBody"] = _content("the request", route.body)
        described["requestBody"]["required"] = True
    return described


def _content(description: str, kind: type[Struct]) -> dict[str, Any]:
    schema = {"$ref": _TEMPLATE.format(name=kind.__name__)}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _path_parameters(route: Route) -> Iterator[dict[str, Any]]:
    for name in parameters(route.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(route: Route) -> Iterator[dict[str, Any]]:
    if route.query is not None:
        _, schemas = msgspec.json.schema_components([route.query], ref_template=_TEMPLATE)
        for name, schema in schemas[route.query.__name__]["properties"].items():
            yield {"name": name, "in": "query", "required": False, "schema": schema}


def _status() -> dict[str, Any]:
    properties = {
        "version": {"type": "string"},
        "compiled": {"type": "boolean", "description": "whether mypyc compiled the core"},
        "durability": {"type": "string"},
    }
    answer = {"schema": {"type": "object", "properties": properties}}
    return {
        "get": {
            "summary": "Show counts and sizes of the whole broker",
            "operationId": "status",
            "parameters": [],
            "responses": {
                "200": {"description": "the answer", "content": {"application/json": answer}}
            },
        }
    }
