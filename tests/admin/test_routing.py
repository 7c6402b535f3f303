"""Every request to the API gets one answer in JSON: what it asked for, or why not."""

from __future__ import annotations

import json
from io import BytesIO
from itertools import islice
from typing import Any
from urllib.parse import quote

import pytest
from msgspec import Struct
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.logger import capturedLogs
from twisted.python.failure import Failure

from brokerd.admin.http.authentication import Authenticator
from brokerd.admin.http.bodies import read_pieces, value_counts
from brokerd.admin.http.routing import (
    BODY_BYTES_MAX,
    STATUSES,
    VALUES_MAX,
    Api,
    Call,
    Route,
)
from brokerd.admin.shapes.common import Offset
from brokerd.errors import (
    DamagedData,
    InvalidName,
    InvalidRequest,
    LimitExceeded,
    NoSpace,
    ShuttingDown,
    StorageFailed,
    UnknownGroup,
    UnknownOffset,
    UnknownTopic,
)
from brokerd.security import OPEN_GUARD, READ, WRITE
from tests.admin.caller import JSON, Caller, answer_of
from tests.guards import Given, GuardOf
from tests.house import House


class Said(Struct):
    text: str
    number: int = 0


class Asked(Struct, forbid_unknown_fields=True):
    number: Offset = 0


class Values(Struct):
    values: list[Any]


class Office(Caller):
    """A site whose API is what a test puts there."""

    def __init__(self, *routes: Route) -> None:
        super().__init__()
        api = Api(
            self.house.broker,
            list(routes),
            Authenticator(OPEN_GUARD, self.house.clock.seconds, bytes(32)),
        )
        self.site.api = api
        self.site.resource.children[b"api"].children[b"v1"] = api  # type: ignore[attr-defined]


def reading(act: Any, **options: Any) -> Route:
    return Route("GET", "/things/{thing}", READ, "A thing", act, Said, **options)


def writing(act: Any, method: str = "POST", **options: Any) -> Route:
    return Route(method, "/things/{thing}", WRITE, "Change it", act, Said, **options)


def say(call: Call) -> Said:
    return Said(call.path["thing"], getattr(call.query or call.body, "number", 0))


async def say_later(call: Call) -> Said:
    return say(call)


@pytest.mark.parametrize("act", [say, say_later])
def test_a_route_answers_with_json(act: Any) -> None:
    """At once or later, the answer is one object that says how long it is."""
    office = Office(reading(act, query=Asked))
    assert office.get("/things/box", number=7) == (200, {"text": "box", "number": 7})
    _, wire = office.send("GET", "/things/box")
    head, _, body = wire.value().partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert b"content-type: application/json" in lines
    assert b"cache-control: no-store" in lines
    assert b"content-length: %d" % len(body) in lines


def test_names_in_a_path_may_hold_anything() -> None:
    """A slash is written %2F, and one slash at the end makes no difference."""
    office = Office(reading(say))
    for path, name in [
        ("a%2Fb%20%C3%BC", "a/b ü"),
        ("box/", "box"),
        ("/", ""),
        ("..", ".."),
        ("%3F%26", "?&"),
    ]:
        assert office.get(f"/things/{path}") == (200, {"text": name, "number": 0})


@pytest.mark.parametrize("name", [".", "..", "a/b", "ü", ""])
def test_a_name_in_the_query_replaces_the_one_in_the_path(name: str) -> None:
    """Browsers drop ``.`` and ``..`` from paths. The name of the query needs the permission."""
    office = Office(reading(say, query=Asked), writing(say, body=Asked))
    assert office.call("GET", "/things/-", number=7, **{"path.thing": name})[1] == {
        "text": name,
        "number": 7,
    }
    path = f"/things/-?path.thing={quote(name)}"
    assert office.call("POST", path, b"{" + b" " * 100_000 + b"}")[1]["text"] == name
    reader = Caller(guard=GuardOf(Given("ann", 0, {"-": READ})))
    reader.house.broker.topics.create("-")
    assert reader.get("/topics/-")[0] == 200
    assert reader.get("/topics/-", **{"path.topic": "secret"})[0] == 403


def test_a_name_that_the_path_lacks_is_refused() -> None:
    assert Office(reading(say)).get("/things/box", **{"path.other": "x"})[0] == 400
    assert Office(reading(say)).call("GET", "/things/box?path.thing=%FF")[0] == 404


@pytest.mark.parametrize("path", ["/things", "/things/", "/things/a/b", "/other/a", "/things/%FF"])
def test_what_is_not_in_the_table_is_404(path: str) -> None:
    """In JSON, like everything."""
    refused = {"error": "there is nothing here", "retryable": False}
    assert Office(reading(say)).get(path) == (404, refused)


def test_a_method_that_a_path_lacks_is_405_and_those_it_has_are_named() -> None:
    """HEAD goes where GET does, and has no body."""
    office = Office(reading(say), writing(say, "PUT"))
    _, wire = office.send("DELETE", "/things/box")
    status, answer = answer_of(wire)
    assert (status, answer["retryable"]) == (405, False)
    assert b"allow: GET, PUT, HEAD\r\n" in wire.value().replace(b"Allow", b"allow")
    _, wire = office.send("HEAD", "/things/box")
    assert wire.value().startswith(b"HTTP/1.1 200")
    assert wire.value().endswith(b"\r\n\r\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "head",
    ["", "content-type: text/plain\r\n", "content-type: application/x-www-form-urlencoded\r\n"],
)
def test_a_write_must_say_that_it_is_json(method: str, head: str) -> None:
    """So no page of another site can cause one without being asked first by the browser."""
    office = Office(writing(lambda call: pytest.fail("it was made"), method))
    status, answer = office.call(method, "/things/box", b"{}", head)
    assert status == 415
    assert "Content-Type: application/json" in answer["error"]


def test_a_charset_does_no_harm() -> None:
    """Many clients send one."""
    head = "content-type: Application/JSON; charset=utf-8\r\n"
    assert Office(writing(say)).call("POST", "/things/box", b"{}", head)[0] == 200


def test_an_empty_body_is_an_empty_object() -> None:
    """A write that needs nothing needs no body."""
    assert Office(writing(say, body=Asked)).call("POST", "/things/box") == (
        200,
        {"text": "box", "number": 0},
    )


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"nope", "JSON is malformed"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"number": "1"}', "wrong: number: expected `int`, got `str`"),
        (b'{"numbre": 1}', "unknown field `numbre`"),
        (b'{"number": 1', "truncated"),
        (b'{"number": 1} {}', "trailing"),
        (b'{"\xff": 1}', "utf-8"),
        (b'{"x": ' + b"[" * 100_000, ""),
    ],
)
def test_a_body_that_makes_no_sense_is_400(body: bytes, part: str) -> None:
    """The field and what is expected there are named."""
    status, answer = Office(writing(say, body=Asked)).call("POST", "/things/box", body)
    assert status == 400
    assert answer["error"].startswith("the body is wrong: ")
    assert part in answer["error"]
    assert answer["retryable"] is False


def test_json_that_is_nested_without_end_is_400() -> None:
    """It is as deep as a value may be that takes anything."""

    class Anything(Struct):
        value: Any = None

    body = b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    status, answer = Office(writing(say, body=Anything)).call("POST", "/things/box", body)
    assert (status, "nested too deeply" in answer["error"]) == (400, True)


@pytest.mark.parametrize("text", ["x", "-1x", "1.5", "9" * 30, "%FF", ""])
def test_a_query_that_makes_no_sense_is_400(text: str) -> None:
    status, answer = Office(reading(say, query=Asked)).get(f"/things/box?number={text}")
    assert status == 400
    assert answer["error"].startswith("the query string is wrong: ")


def test_a_query_that_nobody_reads_is_400() -> None:
    """A misspelt filter must not look as if it had been applied."""
    assert Office(reading(say, query=Asked)).get("/things/box?numbre=1")[0] == 400
    status, answer = Office(reading(say)).get("/things/box?number=1")
    assert (status, answer["error"]) == (400, "this path takes no query string, and got 'number'")


def test_a_body_is_bounded() -> None:
    """Each route has its own bound; over it nothing is read."""
    office = Office(
        writing(say, body=Asked), Route("PUT", "/a/{thing}", WRITE, "", say, Said, body_bytes_max=5)
    )
    blanks = b" " * (BODY_BYTES_MAX - 2)
    assert office.call("POST", "/things/box", b"{}" + blanks)[0] == 200
    assert office.call("POST", "/things/box", b"{} " + blanks)[0] == 413
    assert office.call("PUT", "/a/b", b"{}    ")[0] == 413


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0]] * 8, 200),
        ([[0]] * 9, 413),
        ([{}] * 9, 413),
        (["[,{" * 1_000, "\\", '",[,"' * 9, "\\\\" + '"'], 200),
        (["a", "[,{" * 1_000, *["b"] * 16], 413),
        (["[," + "b"] * 16, 200),
        (["[," * 9, *["b"] * 100], 413),
    ],
)
def test_a_body_of_too_many_values_is_refused_before_they_are_made(
    values: list[Any], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What strings hold counts for nothing."""
    monkeypatch.setattr("brokerd.admin.http.routing.VALUES_MAX", 18)
    body = json.dumps({"values": values}).encode()
    status, answer = Office(writing(say, body=Values)).call("POST", "/things/box", body)
    assert status == expected
    if expected == 413:
        assert "18 values" in answer["error"]


def test_a_large_body_of_too_many_values_is_refused_before_its_end() -> None:
    body = json.dumps({"values": [[0]] * 300_000}).encode()
    looked = list(islice(value_counts(read_pieces(BytesIO(body), len(body))), 20))
    assert looked[0] < VALUES_MAX < looked[-1]
    office = Office(writing(say, body=Values, body_bytes_max=4 << 20))
    assert office.call("POST", "/things/box", body)[0] == 413


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidName, 400),
        (InvalidRequest, 400),
        (UnknownTopic, 404),
        (UnknownGroup, 404),
        (UnknownOffset, 404),
        (LimitExceeded, 409),
        (NoSpace, 507),
        (ShuttingDown, 503),
        (StorageFailed, 500),
        (DamagedData, 500),
    ],
)
def test_refusals_have_their_status(error: Any, status: int) -> None:
    """The text is the broker's, and says whether to try again."""

    def refuse(call: Call) -> Said:
        raise error("it cannot be; do something else")

    expected = {"error": "it cannot be; do something else", "retryable": error.retryable}
    assert Office(reading(refuse)).get("/things/box") == (status, expected)


def test_a_refusal_of_a_kind_has_the_status_of_its_kind() -> None:
    """A new error that is an InvalidRequest is one."""

    class Odd(InvalidRequest):
        pass

    def refuse(call: Call) -> Said:
        raise Odd("odd")

    assert Odd not in STATUSES
    assert Office(reading(refuse)).get("/things/box")[0] == 400


def test_a_fault_is_500_and_logged() -> None:
    """A bug of ours tells its traceback to the log and to nobody else."""
    office = Office(reading(lambda call: 1 // 0))
    with capturedLogs() as captured:
        status, answer = office.get("/things/box")
    assert (status, answer["error"]) == (500, "a fault in brokerd; see its log")
    (event,) = [event for event in captured if event.get("event_id") == "admin-fault"]
    assert event["log_failure"].type is ZeroDivisionError


def test_nothing_is_asked_of_a_broker_that_does_not_serve() -> None:
    """Its state is being made, or on its way out."""
    office = Office(reading(lambda call: pytest.fail("it was asked")))
    office.house.broker.ready = False
    status, answer = office.get("/things/box")
    assert (status, answer["retryable"]) == (503, True)


def test_who_hangs_up_is_waited_for_no_longer() -> None:
    """What the request waits for is cancelled, and nothing is logged as an error."""
    waits: Deferred[Said] = Deferred()
    office = Office(reading(lambda call: _wait(waits)))
    channel, wire = office.send("GET", "/things/box")
    with capturedLogs() as captured:
        channel.connectionLost(Failure(ConnectionLost()))
    assert waits.called
    assert [event for event in captured if event.get("log_failure")] == []
    assert wire.value() == b""


async def _wait(waits: Deferred[Said]) -> Said:
    return await waits


def test_who_hangs_up_after_a_change_was_made_leaves_no_error() -> None:
    """The change stays; the answer goes nowhere."""
    caller = Caller(House())
    channel, wire = caller.send("POST", "/topics", json.dumps({"name": "t"}).encode(), JSON)
    with capturedLogs() as captured:
        channel.connectionLost(Failure(ConnectionLost()))
        caller.house.run()
    assert wire.value() == b""
    assert caller.house.broker.topics.find("t") is not None
    assert [event for event in captured if event.get("log_failure")] == []
