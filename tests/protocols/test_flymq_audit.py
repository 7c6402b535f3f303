"""What an administrator sees of the audit trail through FlyMQ."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from brokerd.broker import BrokerSettings
from brokerd.codecs import flymq
from brokerd.protocols.flymq import audit
from brokerd.protocols.flymq.connection import FlymqSettings
from brokerd.security.audit import Actor, EventType, event
from tests.protocols.flymq_desk import FlymqClient
from tests.protocols.flymq_guarded import PASSWORD, GuardedHouse

BOTH = pytest.mark.parametrize("java", [False, True])


@pytest.fixture
def house() -> GuardedHouse:
    """A broker with a failed login, a denial, a topic and a user in its trail, in this order."""
    house = GuardedHouse(FlymqSettings(cluster_id="n1"))
    for ask in (
        lambda: house.client().ask(flymq.Auth("carl", "wrong")),
        lambda: house.log_in("carl").ask(flymq.Produce("secret", None, b"x")),
        lambda: house.log_in("root").ask(flymq.CreateTopic("orders", 1)),
        lambda: house.log_in("root").ask(flymq.CreateUser("bob", "pw", ("consumer",))),
    ):
        ask()
        house.pass_time(10.0)
    return house


def asked(client: FlymqClient, **wanted: Any) -> flymq.AuditEvents:
    (answer,) = client.ask(flymq.QueryAudit(**wanted))
    assert isinstance(answer, flymq.AuditEvents), answer
    return answer


def exported(client: FlymqClient, form: str, **wanted: Any) -> bytes:
    (answer,) = client.ask(flymq.ExportAudit(flymq.QueryAudit(**wanted), form))
    assert isinstance(answer, flymq.Exported), answer
    return answer.data


@BOTH
def test_what_happened_is_told_newest_first(house: GuardedHouse, java: bool) -> None:
    found = asked(house.log_in("root"), java=java)
    types = [one.type for one in found.events]
    assert types.index("user.create") < types.index("topic.create") < types.index("auth.failure")
    denial = next(one for one in found.events if one.type == "access.denied")
    assert denial.user == "carl"
    assert (denial.resource, denial.action, denial.result) == ("secret", "write", "denied")
    assert (denial.node_id, dict(denial.details)["format"]) == ("n1", "flymq")
    assert found.total == len(found.events)
    assert not found.more


def test_what_is_done_to_topics_and_offsets_is_told_once(house: GuardedHouse) -> None:
    """What changes nothing is not told."""
    root = house.log_in("root")
    root.ask(
        flymq.CreateTopic("orders", 1),
        flymq.CreateTopic("new", 3),
        flymq.ResetOffset("new", "team", 2, "offset", 7),
        flymq.DeleteTopic("new"),
        flymq.DeleteTopic("new"),
        flymq.ResetOffset("new", "team", 2, "latest"),
    )
    found = asked(root, user="root", types=("topic.create", "topic.delete", "group.seek"))
    assert [(one.type, one.resource, dict(one.details)) for one in found.events] == [
        ("topic.delete", "new", {"format": "flymq"}),
        ("group.seek", "new/team", {"partition": "2", "offset": "7", "format": "flymq"}),
        ("topic.create", "new", {"partitions": "3", "format": "flymq"}),
        ("topic.create", "orders", {"partitions": "1", "format": "flymq"}),
    ]


@pytest.mark.parametrize(
    ("wanted", "types"),
    [
        ({"types": ("user.create",), "user": "root"}, ["user.create"]),
        ({"types": ("auth.failure", "access.denied")}, ["access.denied", "auth.failure"]),
        ({"user": "carl", "result": "denied"}, ["access.denied"]),
        ({"resource": "ecre"}, ["access.denied"]),
        ({"resource": "ECRE"}, []),
        ({"search": "ECRE"}, ["access.denied"]),
        ({"result": "fail"}, []),
    ],
)
@BOTH
def test_what_is_asked_for_chooses(
    house: GuardedHouse, wanted: dict[str, Any], types: list[str], java: bool
) -> None:
    found = asked(house.log_in("root"), java=java, **wanted)
    assert [one.type for one in found.events] == types


def test_times_choose_and_the_end_is_included(house: GuardedHouse) -> None:
    root = house.log_in("root")
    (denial,) = asked(root, types=("access.denied",)).events
    second = denial.time_ms // 1000

    def types(start: int, end: int) -> set[str]:
        found = asked(root, start_seconds=start, end_seconds=end).events
        return {one.type for one in found}

    assert "access.denied" in types(second, second + 1)
    assert "access.denied" not in types(second + 1, 0)
    assert "access.denied" not in types(0, second - 1)
    first = asked(root).events[-1]
    assert first.time_ms % 1000 == 0
    assert first.type in types(0, first.time_ms // 1000)
    assert types(-(1 << 63), (1 << 63) - 1) == types(0, 0)


def test_pages_go_on_where_the_last_one_ended(house: GuardedHouse) -> None:
    root = house.log_in("root")
    all_of_them = asked(root).events
    pages = [asked(root, limit=2, offset=start) for start in range(0, len(all_of_them) + 2, 2)]
    assert tuple(one for page in pages for one in page.events) == all_of_them
    assert [page.more for page in pages] == [True] * (len(pages) - 2) + [False] * 2


@pytest.mark.parametrize("limit", [0, -1, 1, 100_000, (1 << 31) - 1])
@pytest.mark.parametrize("offset", [0, -1, (1 << 31) - 1])
def test_any_limit_and_offset_is_answered(house: GuardedHouse, limit: int, offset: int) -> None:
    found = asked(house.log_in("root"), limit=limit, offset=offset)
    assert bool(found.events) == (offset <= 0)
    assert len(found.events) <= limit or limit != 1


@pytest.mark.parametrize(
    "request_",
    [flymq.QueryAudit(), flymq.QueryAudit(java=True), flymq.ExportAudit(flymq.QueryAudit(), "csv")],
)
def test_without_a_trail_that_is_said(request_: Any) -> None:
    house = GuardedHouse(settings=BrokerSettings())
    assert house.log_in("root").ask(request_) == [flymq.Failed("audit trail is not enabled")]


# -- exports ----------------------------------------------------------------------------------


@BOTH
def test_an_export_as_json_holds_the_same_events(house: GuardedHouse, java: bool) -> None:
    root = house.log_in("root")
    found = asked(root).events
    told = json.loads(exported(root, "json", java=java))
    assert [one["id"] for one in told] == [one.id for one in found]
    assert told[0].keys() == {
        *("id", "timestamp", "type", "user", "client_ip", "resource", "action", "result"),
        *("details", "node_id"),
    }
    assert told[0]["timestamp"].endswith("Z")
    assert told[0]["details"] == dict(found[0].details)


@BOTH
def test_an_export_as_csv_holds_the_same_events(house: GuardedHouse, java: bool) -> None:
    root = house.log_in("root")
    found = asked(root).events
    head, *rows = csv.reader(io.StringIO(exported(root, "csv", java=java).decode()))
    assert head[0] == "ID"
    assert [row[0] for row in rows] == [one.id for one in found]
    assert {len(row) for row in rows} == {len(head)}


def test_the_format_of_an_export_comes_back_to_go(house: GuardedHouse) -> None:
    root = house.log_in("root")
    for form in ("csv", "json", "whatever"):
        (answer,) = root.ask(flymq.ExportAudit(flymq.QueryAudit(limit=1), form))
        assert answer.format == form


def test_an_export_of_nothing_is_an_empty_one(house: GuardedHouse) -> None:
    root = house.log_in("root")
    assert exported(root, "json", user="nobody") == b"[]"
    assert exported(root, "csv", user="nobody").count(b"\n") == 1


def with_many(house: GuardedHouse, count: int) -> None:
    """So many events more, of a user each."""
    trail = house.broker.audit
    for number in range(count):
        trail.carry_out(
            Actor(f"u{number}", "192.0.2.1", "admin"),
            EventType.KEY_CREATED,
            "key",
            lambda: None,
        )
        if number % 500 == 499:
            house.run()
    house.run()


@pytest.mark.parametrize("offset", [0, 7, 1_500])
def test_an_export_goes_on_beyond_what_one_question_may_bring(
    house: GuardedHouse, offset: int
) -> None:
    """Each event once; and other clients are served meanwhile."""
    with_many(house, 2_600)
    root = house.log_in("root")
    told = json.loads(exported(root, "json", types=("key.create",), offset=offset))
    assert [one["user"] for one in told] == [f"u{n}" for n in reversed(range(2_600 - offset))]


def test_an_export_has_limits(house: GuardedHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    with_many(house, 1_200)
    root = house.log_in("root")

    def count(**wanted: Any) -> int:
        return len(json.loads(exported(root, "json", types=("key.create",), **wanted)))

    assert count(limit=5) == 5
    monkeypatch.setattr(audit, "EXPORT_EVENTS_MAX", 1_100)
    assert (count(), count(limit=2_000)) == (1_100, 1_100)
    monkeypatch.setattr(audit, "EXPORT_BYTES_MAX", 10)
    assert count() == 1_000
    monkeypatch.setattr(audit, "EXPORT_BYTES_MAX", 1 << 24)
    monkeypatch.setattr(audit, "EXPORT_QUERIES_MAX", 1)
    assert count() == 1_000


def test_who_leaves_while_he_exports_costs_no_more(
    house: GuardedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question under way is the last."""
    with_many(house, 1_200)
    trail, questions = house.broker.audit, []
    query = trail.query
    monkeypatch.setattr(trail, "query", lambda *one: (questions.append(one), query(*one)))
    root = house.log_in("root")
    root.send(flymq.ExportAudit(flymq.QueryAudit(), "csv"))
    root.disconnect()
    house.run()
    assert len(questions) == 1
    assert asked(house.log_in("root"), limit=1).events


@pytest.mark.parametrize(
    "request_", [flymq.QueryAudit(), flymq.ExportAudit(flymq.QueryAudit(), "csv")]
)
def test_who_is_no_administrator_any_more_is_told_nothing(
    house: GuardedHouse, monkeypatch: pytest.MonkeyPatch, request_: Any
) -> None:
    """Also what he asked before; and what he exports ends at the question under way."""
    with_many(house, 1_200)
    trail, questions = house.broker.audit, []
    query = trail.query
    monkeypatch.setattr(trail, "query", lambda *one: (questions.append(one), query(*one)))
    root = house.log_in("root")
    root.send(request_)
    house.update("root", roles=("consumer",))
    house.run()
    (answer,) = root.answers()
    assert answer == flymq.Failed("unauthorized")
    assert len(questions) == 1


def test_requests_behind_a_question_wait_for_it(house: GuardedHouse) -> None:
    root = house.log_in("root")
    first, second = root.ask(flymq.QueryAudit(limit=1), flymq.WhoAmI())
    assert isinstance(first, flymq.AuditEvents)
    assert isinstance(second, flymq.Identity)


def test_too_many_questions_are_told_to_come_again(house: GuardedHouse) -> None:
    clients = [house.log_in("root") for _ in range(30)]
    for client in clients:
        client.send(flymq.QueryAudit(limit=1))
    house.run()
    answers = [client.answers()[0] for client in clients]
    refused = [one for one in answers if isinstance(one, flymq.Failed)]
    assert refused
    assert all("ask again later" in one.text for one in refused)
    assert any(isinstance(one, flymq.AuditEvents) for one in answers)


def test_passwords_are_nowhere_in_the_trail(house: GuardedHouse) -> None:
    root = house.log_in("root")
    root.ask(flymq.CreateUser("eve", "S3CRET"), flymq.ChangePassword("root", "N3W", PASSWORD))
    house.client().ask(flymq.Auth("eve", "WR0NG"))
    house.pass_time(10.0)
    told = exported(root, "json")
    assert b"eve" in told
    for secret in (b"S3CRET", b"N3W", b"WR0NG", b"argon2", PASSWORD.encode()):
        assert secret not in told


def test_control_characters_and_formulas_do_no_harm(house: GuardedHouse) -> None:
    """Names in the trail come from anybody who fails to log in."""
    house.client().ask(flymq.Auth("=cmd()\n\x1b[31m", "x"))
    house.pass_time(10.0)
    told = exported(house.log_in("root"), "csv", types=("auth.failure",))
    row = next(csv.reader(io.StringIO(told.decode().splitlines()[1])))
    assert row[3] == r"'=cmd()\x0a\x1b[31m"


def test_an_event_says_no_more_than_it_has() -> None:
    """An event without a format has no such detail."""
    shown = audit._event(event(Actor("u"), EventType.LOGIN), "n")
    assert shown.details == ()
