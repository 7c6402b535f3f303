"""The judge of permissions: each request of each format, with its permission and without."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.history.offsets import (
    Commit,
    Committed,
    CreateTopic,
    ListTopics,
    Position,
    Read,
    ResetOffset,
)
from simulator.history.operations import (
    Boot,
    Cancel,
    DeleteTopic,
    History,
    Look,
    Message,
    Operation,
    Produce,
)
from simulator.history.registry import READ, PutAccount
from simulator.history.subscriptions import Handed, Poll, Subscribe
from simulator.history.transactions import Begin, Stage, Transact
from simulator.oracle.permissions import Permissions
from simulator.oracle.registry import check_registry
from simulator.oracle.registry_model import RegistryState, Told
from simulator.oracle.timeline.spans import Lives, Span
from simulator.rules import AccessRules

MESSAGE = Message(b"x")
OF_GROUP: dict[str, Any] = {"topic": "t", "group": "g", "partition": 0}
UNAUTHORIZED = "unauthorized"
DENIED = {"error": UNAUTHORIZED}
MEGA_DENIED = {"error": "INVALID_REQUEST"}


def judged(wire_format: str, roles: tuple[str, ...], *ops: Operation) -> list[str]:
    """Return the promises that requests break, after the account got its roles."""
    history = History(
        principal="ann", formats={"c": wire_format}, boots=[Boot(number=0, begun_us=0, ready_us=0)]
    )
    made = PutAccount(number=0, client="r", name="ann", roles=roles, enabled=True, creates=True)
    for number, op in enumerate([made, *ops]):
        op.number, op.boot = number, 0
        op.sent_us = op.arrived_us = 1_000 * number + 1_000
        op.written_us = op.answered_us = op.arrived_us + 100
        op.connection = 7 if number else -1
        history.operations.append(op)
    return [each.promise for each in check_registry(history, Lives(history)).violations]


def asked(kind: type[Operation], **fields: Any) -> Operation:
    return kind(number=0, client="c", **fields)


@pytest.mark.parametrize(
    ("wire_format", "role", "kind", "fields"),
    [
        ("mamamia", "consumer", Look, {"topic": "t", "group": "g"}),
        ("rustlog", "producer", Produce, {"topic": "t", "messages": (MESSAGE,)}),
        ("rustlog", "consumer", Read, {"topic": "t", "partition": 0, "offset": 0}),
        ("rustlog", "consumer", Commit, {**OF_GROUP, "offset": 3}),
        ("rustlog", "consumer", Committed, OF_GROUP),
        ("rustlog", "admin", CreateTopic, {"topic": "t", "partitions": 1}),
        ("rustlog", "producer", Position, {**OF_GROUP, "mode": "latest"}),
        ("flymq", "consumer", Position, {**OF_GROUP, "mode": "latest"}),
        ("flymq", "admin", ResetOffset, {**OF_GROUP, "to": "latest"}),
        ("flymq", "admin", DeleteTopic, {"topic": "t"}),
        ("flymq", "producer", Cancel, {"topic": "t", "schedule_id": 1}),
        ("flymq", "producer", Stage, {"transaction": "x", "topic": "t", "message": MESSAGE}),
        ("flymq", "producer", Transact, {"transaction": "x", "messages": (("t", MESSAGE),)}),
        ("blipmq", "consumer", Subscribe, {"topic": "t", "qos": 1}),
        ("mega", "consumer", Read, {"topic": "t", "partition": 0, "offset": 0}),
    ],
)
def test_each_request_needs_its_permission(
    wire_format: str, role: str, kind: type[Operation], fields: dict[str, Any]
) -> None:
    others = {"producer", "consumer", "monitor"} - {role}
    if kind is Position and wire_format == "rustlog":
        others = {"monitor"}
    denied = MEGA_DENIED if wire_format == "mega" else DENIED
    for roles, is_allowed in ((role,), True), (tuple(sorted(others)), False):
        carried_out = judged(wire_format, roles, asked(kind, **fields))
        refused = judged(wire_format, roles, asked(kind, **fields, **denied))
        assert carried_out == ([] if is_allowed else ["access"])
        assert refused == (["access"] if is_allowed else [])


def test_a_transaction_needs_the_permission_on_all_of_its_topics() -> None:
    begin, empty = asked(Begin), asked(Transact, transaction="x", messages=())
    assert judged("flymq", (), begin, empty) == [], "a login is enough"
    assert judged("flymq", (), asked(Begin, **DENIED)) == ["access"]


def test_a_commit_needs_no_permission_for_a_message_whose_stage_was_refused() -> None:
    """The message is not in the transaction. A client may send its commit before the refusal."""
    stage = asked(Stage, transaction="x", topic="t", message=MESSAGE, **DENIED)
    refused, stored = ("t", MESSAGE), ("t", Message(b"y"))
    for messages, found in (((refused,), []), ((refused, stored), ["access"])):
        commit = asked(Transact, transaction="x", messages=messages)
        assert judged("flymq", (), stage, commit) == found


def test_the_commit_of_a_lost_transaction_needs_a_login_only() -> None:
    """The broker does not know its topics any more, and says nothing of them."""
    lost = {"transaction": "x", "messages": (("t", MESSAGE),)}
    commit = asked(Transact, error="transaction not found: x", **lost)
    assert judged("flymq", (), commit) == []
    refused = asked(Transact, error="topic not found: t", **lost)
    assert judged("flymq", (), refused) == ["access"]


@pytest.mark.parametrize(("handed", "found"), [(None, []), (Handed(b"x", 0), ["access"])])
def test_a_poll_without_the_permission_gets_nothing(
    handed: Handed | None, found: list[str]
) -> None:
    poll = asked(Poll, topic="t", subscription=1, handed=handed)
    assert judged("blipmq", ("producer",), poll) == found


@pytest.mark.parametrize(("is_promised", "found"), [(False, []), (True, ["access"])])
def test_a_slow_publisher_may_miss_its_refusal(is_promised: bool, found: list[str]) -> None:
    publish = asked(Produce, topic="t", messages=(MESSAGE,), is_promised=is_promised)
    assert judged("blipmq", (), publish) == found


@pytest.mark.parametrize(("roles", "found"), [(("producer",), []), ((), ["access"])])
def test_a_list_shows_only_topics_with_a_permission(
    roles: tuple[str, ...], found: list[str]
) -> None:
    assert judged("rustlog", roles, asked(ListTopics, topics=(("t", 1),))) == found
    assert judged("rustlog", roles, asked(ListTopics)) == []


@pytest.mark.parametrize(
    ("error", "found"), [("topic 't' does not exist", ["access"]), ("the disk is full", [])]
)
def test_without_the_permission_no_answer_tells_whether_a_topic_exists(
    error: str, found: list[str]
) -> None:
    read = asked(Read, topic="t", partition=0, offset=0, error=error)
    assert judged("flymq", ("producer",), read) == found
    assert judged("flymq", ("consumer",), read) == []


def test_without_security_no_permission_is_missing() -> None:
    history = History(boots=[Boot(number=0, begun_us=0, ready_us=0)])
    assert not Permissions(history, Lives(history), []).may_lack(1, "t", Span(0, 1))
    history.principal = "ann"
    assert Permissions(history, Lives(history), []).may_lack(1, "t", Span(0, 1))


@pytest.mark.parametrize(
    ("rules", "is_made", "is_allowed"),
    [
        (AccessRules(), True, False),
        (AccessRules(default_public=True), True, True),
        (AccessRules(default_public=True), False, False),
        (AccessRules(default_public=True, allow_anonymous=True), False, True),
        (AccessRules(allow_anonymous=True), False, False),
    ],
)
def test_a_topic_without_a_list_is_public_where_the_options_say_so(
    rules: AccessRules, is_made: bool, is_allowed: bool
) -> None:
    made = PutAccount(number=0, client="r", name="ann", roles=(), enabled=True, creates=True)
    state = RegistryState(rules=rules)
    if is_made:
        result = state.after(made)
        assert isinstance(result, Told)
        state = result.state
    assert bool(state.permissions("ann", "t") & READ) == is_allowed
