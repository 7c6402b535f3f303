"""The API's calls about schemas, by bytes on the wire."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from brokerd.security.access import OPEN
from tests.admin.caller import Caller

NEEDS_ID = '{"required": ["id"]}'


@pytest.fixture
def caller() -> Caller:
    return Caller()


def registered(
    caller: Caller, name: str = "order", text: str = NEEDS_ID, kind: str = "json"
) -> Any:
    path = f"/schemas/{name}/versions"
    status, made = caller.post(path, {"type": kind, "definition": text})
    assert status == 201, made
    return made


def test_a_schema_is_registered_and_shown(caller: Caller) -> None:
    made = registered(caller)
    assert (made["name"], made["version"], made["type"]) == ("order", 1, "json")
    assert (made["definition"], made["compatibility"]) == (NEEDS_ID, "backward")
    assert registered(caller)["version"] == 2
    assert caller.get("/schemas/order/versions/1") == (200, made)
    assert caller.get("/schemas/order/versions/0")[1]["version"] == 2
    status, shown = caller.get("/schemas/order")
    assert status == 200
    assert [one["version"] for one in shown["versions"]] == [1, 2]
    assert shown["versions"][0]["definition_bytes"] == len(NEEDS_ID)
    assert caller.get("/schemas") == (200, {"schemas": [shown], "next": None})


def test_what_was_answered_is_durable(caller: Caller) -> None:
    registered(caller)
    registered(caller)
    assert caller.call("DELETE", "/schemas/order/versions/2")[0] == 200
    again = Caller(caller.house.crash())
    assert [one["version"] for one in again.get("/schemas/order")[1]["versions"]] == [1]


def test_a_registration_is_answered_when_it_is_durable(caller: Caller) -> None:
    body = b'{"type": "json", "definition": "{}"}'
    _, wire = caller.send("POST", "/schemas/order/versions", body)
    assert wire.value() == b""
    caller.house.run()
    assert b" 201 " in wire.value()


def test_a_registration_is_told_although_the_schema_is_deleted_before_it_is_durable(
    caller: Caller,
) -> None:
    body = b'{"type": "json", "definition": "{}"}'
    _, wire = caller.send("POST", "/schemas/order/versions", body)
    caller.house.broker.schemas.delete(OPEN, "order")
    caller.house.run()
    assert b" 201 " in wire.value()


def test_schemas_are_listed_in_pages(caller: Caller) -> None:
    for number in range(5):
        registered(caller, f"s{number}")
    status, page = caller.get("/schemas?limit=2&first=2")
    assert status == 200
    assert [one["name"] for one in page["schemas"]] == ["s2", "s3"]
    assert page["next"] == 4


def test_a_message_is_looked_at(caller: Caller) -> None:
    registered(caller)
    registered(caller, "number", '"long"', "avro")
    path = "/schemas/order/validate"
    assert caller.post(path, {"text": '{"id": 1}'}) == (200, {"valid": True, "errors": []})
    told = {"valid": False, "errors": ["missing required field: id"]}
    assert caller.post(path, {"text": "{}"}) == (200, told)
    data = base64.b64encode(b"\x02").decode()
    assert caller.post("/schemas/number/validate", {"base64": data})[1]["valid"]
    assert caller.post(path, {})[0] == 400
    assert caller.post(path, {"text": "", "base64": ""})[0] == 400


def test_the_mode_is_set_and_holds(caller: Caller) -> None:
    registered(caller, text='{"type": ["integer", "null"]}')
    body = {"type": "json", "definition": '{"type": "integer"}'}
    status, refused = caller.post("/schemas/order/versions", body)
    assert status == 409
    assert "schema compatibility check failed" in refused["error"]
    status, shown = caller.call("PATCH", "/schemas/order", {"compatibility": "none"})
    assert (status, shown["compatibility"]) == (200, "none")
    assert caller.post("/schemas/order/versions", body)[0] == 201


def test_versions_and_schemas_are_deleted(caller: Caller) -> None:
    for _ in range(3):
        registered(caller)
    assert caller.call("DELETE", "/schemas/order/versions/3") == (200, {"deleted": "order v3"})
    assert caller.call("DELETE", "/schemas/order/versions/3")[0] == 404
    assert caller.get("/schemas/order/versions/0")[1]["version"] == 2
    assert caller.call("DELETE", "/schemas/order") == (200, {"deleted": "order"})
    assert caller.call("DELETE", "/schemas/order")[0] == 404
    assert caller.get("/schemas")[1]["schemas"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "word"),
    [
        ("GET", "/schemas/nope", None, 404, "schema not found: nope"),
        ("GET", "/schemas/nope/versions/0", None, 404, "schema not found: nope"),
        ("GET", "/schemas/order/versions/x", None, 400, "must be a number"),
        ("DELETE", "/schemas/order/versions/0", None, 400, "versions begin with 1"),
        ("PATCH", "/schemas/order", {"compatibility": "up"}, 400, "unknown compatibility mode"),
        ("PATCH", "/schemas/nope", {"compatibility": "full"}, 404, "schema not found"),
        ("POST", "/schemas/nope/validate", {"text": "1"}, 404, "schema not found"),
        ("POST", "/schemas/x/versions", {"type": "xml", "definition": ""}, 400, "unsupported"),
        ("POST", "/schemas/x/versions", {"type": "json", "definition": "["}, 400, "invalid JSON"),
        ("POST", "/schemas/x/versions", {"type": "json", "definition": ""}, 400, "be empty"),
        ("POST", "/schemas/x/versions", {"type": "json"}, 400, "definition"),
    ],
)
def test_a_refusal_says_what_is_wrong(
    caller: Caller, method: str, path: str, body: Any, status: int, word: str
) -> None:
    registered(caller)
    answer = caller.call(method, path, body)
    assert answer[0] == status
    assert word in answer[1]["error"]
    assert len(caller.get("/schemas")[1]["schemas"]) == 1


def test_who_leaves_while_a_schema_is_looked_at_disturbs_nobody(caller: Caller) -> None:
    waiting: list[Callable[[], None]] = []
    checker = caller.house.broker.schemas._checker
    checker._submit = lambda work, done: waiting.append(lambda: done(work(), None))
    body = b'{"type": "json", "definition": "{}"}'
    channel, _ = caller.send("POST", "/schemas/order/versions", body)
    caller.house.run()
    (look,) = waiting
    channel.connectionLost(Failure(ConnectionLost()))
    look()
    caller.house.run()
    assert caller.get("/schemas/order")[0] == 200
