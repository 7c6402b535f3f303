"""The API's call about the audit trail, by bytes on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.broker import BrokerSettings
from brokerd.security import ADMIN, READ, WRITE
from tests.admin.caller import Caller, answer_of
from tests.guards import Given, GuardOf
from tests.house import House


@pytest.fixture
def caller() -> Caller:
    caller = Caller(House(settings=BrokerSettings(audit_keep_us=86_400_000_000)))
    caller.post("/topics", {"name": "orders"})
    caller.post("/users", {"name": "ann", "password": "s3cret"})
    caller.call("DELETE", "/topics/orders")
    return caller


def ask(caller: Caller, **query: Any) -> Any:
    status, answer = caller.get("/audit", **query)
    assert status == 200, answer
    return answer


def test_what_was_done_is_told_newest_first(caller: Caller) -> None:
    answer = ask(caller)
    assert [one["type"] for one in answer["events"]] == [
        "topic.delete",
        "user.create",
        "topic.create",
    ]
    assert [one["resource"] for one in answer["events"]] == ["orders", "ann", "orders"]
    assert answer["next"] is None and "s3cret" not in str(answer)


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({"type": "auth.failure,bogus"}, "'bogus'"),
        ({"result": "sucess"}, "denied"),
        ({"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}, "not before the end"),
    ],
)
def test_what_can_match_nothing_is_refused(caller: Caller, query: Any, word: str) -> None:
    """A typing error does not pass for an empty trail."""
    status, answer = caller.get("/audit", **query)
    assert status == 400 and word in answer["error"]


def test_a_change_that_was_refused_is_not_told(caller: Caller) -> None:
    assert caller.call("DELETE", "/topics/orders")[0] == 404
    assert len(ask(caller)["events"]) == 3


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"type": "topic.create,topic.delete"}, 2),
        ({"resource": "nn"}, 1),
        ({"user": "nobody"}, 0),
        ({"result": "success"}, 3),
        ({"search": "ORDERS"}, 2),
        ({"search": "192.0.2"}, 0),
        ({"client_ip": "192.0.2.9"}, 0),
        ({"format": "flymq"}, 0),
        ({"start": "2000-01-01T00:00:00Z"}, 3),
        ({"end": "2000-01-01T00:00:00Z"}, 0),
        ({"limit": 2}, 2),
    ],
)
def test_events_are_chosen(caller: Caller, query: Any, count: int) -> None:
    assert len(ask(caller, **query)["events"]) == count


def test_older_events_follow_page_by_page(caller: Caller) -> None:
    seen = []
    query: dict[str, Any] = {}
    while True:
        page = ask(caller, limit=1, **query)
        seen += [one["type"] for one in page["events"]]
        if page["next"] is None:
            break
        query = {"before": page["next"]}
    assert seen == ["topic.delete", "user.create", "topic.create"]


def test_without_a_trail_it_is_said() -> None:
    status, answer = Caller().get("/audit")
    assert status == 404 and "security.audit" in answer["error"]


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 1001}, {"start": "now"}, {"x": 1}])
def test_a_question_that_makes_no_sense_is_refused(caller: Caller, query: Any) -> None:
    assert caller.get("/audit", **query)[0] == 400


def test_the_trail_itself_cannot_be_written_or_deleted(caller: Caller) -> None:
    """Not even with security off."""
    path = "/topics/__brokerd.audit"
    answers = [
        caller.post(f"{path}/records", {"records": [{"value": "x"}]}),
        caller.call("DELETE", path),
        caller.post(f"{path}/trim", {"partition": 0, "offset": 1}),
        caller.call("PATCH", f"{path}/settings", {"retention_seconds": 1}),
        caller.post("/topics", {"name": "__brokerd.audit"}),
    ]
    assert all(status in (400, 403) for status, _ in answers), answers
    assert len(ask(caller)["events"]) == 3


GROUP = "/topics/t/groups/g"
CHANGES = [
    ("POST", "/topics", {"name": "u"}, "topic.create", "u"),
    ("PATCH", "/topics/t/settings", {"ttl_seconds": 60}, "topic.configure", "t"),
    ("POST", "/topics/t/trim", {"offset": 0}, "topic.trim", "t"),
    ("DELETE", "/topics/t", None, "topic.delete", "t"),
    ("PATCH", f"{GROUP}/settings", {"max_attempts": 3}, "group.configure", "t/g"),
    ("POST", f"{GROUP}/pause", {}, "group.pause", "t/g"),
    ("POST", f"{GROUP}/resume", None, "group.resume", "t/g"),
    ("POST", f"{GROUP}/seek", {"to": "start"}, "group.seek", "t/g"),
    ("POST", f"{GROUP}/seek", {"to_time": "2026-01-01T00:00:00Z"}, "group.seek", "t/g"),
    ("DELETE", GROUP, None, "group.delete", "t/g"),
    ("POST", f"{GROUP}/leases/release", {"client": "c"}, "group.release", "t/g"),
    ("POST", f"{GROUP}/dead-letters/replay", {}, "dlq.replay", "t/g"),
    ("POST", f"{GROUP}/dead-letters/purge", {}, "dlq.purge", "t/g"),
    ("POST", "/clock/set", None, "clock.set", ""),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "resource"), CHANGES, ids=[f"{c[0]} {c[1]}" for c in CHANGES]
)
def test_each_change_has_one_event_with_its_principal(
    method: str, path: str, body: Any, kind: str, resource: str
) -> None:
    house = House(settings=BrokerSettings(audit_keep_us=86_400_000_000))
    caller = Caller(house, GuardOf(Given("ann", ADMIN | READ | WRITE)))
    caller.post("/topics", {"name": "t"})
    caller.post(f"{GROUP}/pause", {"create": True})
    status, answer = caller.call(method, path, body)
    assert status in (200, 201), answer
    newest = ask(caller)["events"]
    assert len(newest) == 3
    assert [newest[0][name] for name in ("type", "resource", "user", "result")] == [
        *(kind, resource, "ann", "success")
    ]


def test_a_query_that_waits_shows_nothing_to_a_sender_who_is_no_administrator_any_more(
    caller: Caller,
) -> None:
    root = Given("root", ADMIN)
    caller.authenticator.guard = GuardOf(root)
    _, wire = caller.send("GET", "/audit")
    assert not wire.value()
    root.revoke()
    caller.house.run()
    assert answer_of(wire)[0] == 403
