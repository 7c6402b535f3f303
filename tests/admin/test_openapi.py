"""The description of the API is complete and says what the API does: it is walked, path by path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from brokerd.admin.api import OPENAPI, ROUTES
from tests.admin.caller import Caller

SCHEMAS = OPENAPI["components"]["schemas"]


def references(part: Any) -> Iterator[str]:
    """Every ``$ref`` anywhere."""
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"]
        for inner in part.values():
            yield from references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from references(inner)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in OPENAPI["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_the_api_serves_its_description() -> None:
    """Before the broker serves anything, too."""
    caller = Caller()
    caller.house.broker.ready = False
    assert caller.get("/openapi.json") == (200, OPENAPI)


def test_every_route_is_described_and_nothing_else() -> None:
    described = {(method.upper(), path) for path, method, _ in operations()}
    assert described == {(route.method, route.path) for route in ROUTES} | {("GET", "/status")}


def test_every_reference_leads_somewhere() -> None:
    found = set(references(OPENAPI))
    assert found
    assert found <= {f"#/components/schemas/{name}" for name in SCHEMAS}


def test_operation_ids_are_unique() -> None:
    """Generators of clients name functions by them."""
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names))


def test_names_in_paths_are_parameters() -> None:
    for path, _, operation in operations():
        named = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path)), path


def test_every_path_is_served_as_described() -> None:
    """Each one answers an empty request with a status that its description names, in JSON."""
    caller = Caller()
    for path, method, operation in operations():
        if path == "/status":
            continue
        place = re.sub(r"{(partition|offset|schedule_id)}", "0", path)
        status, answer = caller.call(method.upper(), re.sub(r"{\w+}", "unknown", place))
        assert str(status) in operation["responses"], (method, path, status, answer)
        if status >= 400:
            assert set(answer) == {"error", "retryable"}, (method, path)


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_writes_say_that_they_need_json(method: str) -> None:
    for path, found, operation in operations():
        if found == method:
            assert "415" in operation["responses"], path
