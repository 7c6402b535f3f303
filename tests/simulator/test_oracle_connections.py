"""The judge of connections: each with a limit that is kept, and with one that is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from simulator.history.operations import Acquire, Boot, Connected, History, Operation
from simulator.history.registry import PutAccount, PutQuota, WireLogIn
from simulator.oracle import check
from simulator.plan import ClientPlan, Plan, Settings, Topic
from simulator.rules import ConnectionRules
from simulator.run import run

SECOND = 1_000_000
LISTENER = {"kind": "listener", "name": "mamamia"}


def judged(
    *connections: Connected,
    principal: str = "",
    enabled: bool = True,
    operations: Sequence[Operation] = (),
    **rules: int,
) -> list[str]:
    """Return the promises that connections break, in one life of 100 s."""
    history = History(principal=principal, boots=[Boot(number=0, begun_us=0, ready_us=0)])
    history.connection_rules = ConnectionRules(**rules)
    history.connections = [*connections]
    history.vandals = frozenset(("v",))
    history.ended_us = 100 * SECOND
    history.clock_steps = []
    if principal:
        made = PutAccount(
            number=0, client="r", name=principal, roles=(), enabled=enabled, creates=True
        )
        made.boot, made.sent_us, made.arrived_us = 0, 1, 1
        made.written_us = made.answered_us = 2
        history.operations.append(made)
    history.operations += operations
    return [each.promise for each in check(history)]


def a_connection(**fields: Any) -> Connected:
    """A connection of 10 s, with one byte after a second."""
    usual = {"number": 1, "client": "c", "boot": 0, "opened_us": SECOND, "others": 0}
    usual |= {"last_us": 2 * SECOND}
    usual |= {"first_us": 2 * SECOND, "arrived_us": 2 * SECOND, "lost_us": 11 * SECOND}
    return Connected(**{**usual, **fields})


SILENT = {"first_us": -1, "arrived_us": -1, "last_us": SECOND}


@pytest.mark.parametrize(
    ("others", "is_refused", "found"),
    [(1, False, []), (2, False, ["P8-limit"]), (1, True, ["P8-limit"]), (2, True, [])],
)
def test_connections_are_refused_above_the_limit_and_not_below(
    others: int, is_refused: bool, found: list[str]
) -> None:
    assert judged(a_connection(others=others, is_refused=is_refused), connections=2) == found


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, "idle_us"),
        (SILENT, "first_byte_us"),
        ({"is_unfinished": True}, "unfinished_us"),
    ],
)
def test_the_broker_ends_a_connection_that_is_over_its_time_and_no_other(
    fields: dict[str, Any], limit: str
) -> None:
    stays = a_connection(**fields, client="v" if "is_unfinished" in fields else "c")
    ended = a_connection(**fields, closing_us=9 * SECOND)
    assert judged(stays, **{limit: 2 * SECOND}) == ["P8-closed"]
    assert judged(stays, **{limit: 9 * SECOND}) == []
    assert judged(ended, **{limit: 2 * SECOND}) == []
    assert judged(ended, **{limit: 9 * SECOND}) == ["P8-closed"]


def with_request(one: Connected, wire_format: str = "mamamia", **fields: Any) -> list[str]:
    """Return the promises that a connection breaks whose request has no answer."""
    history = History(boots=[Boot(number=0, begun_us=0, ready_us=0)], clock_steps=[])
    history.connection_rules = ConnectionRules(idle_us=SECOND)
    history.connections, history.formats = [one], {"c": wire_format}
    usual = {"number": 0, "client": "c", "boot": 0, "connection": 1, "sent_us": SECOND}
    usual |= {"arrived_us": 2 * SECOND, "lost_us": 11 * SECOND, "topic": "t", "group": "g"}
    history.operations.append(Acquire(duration_us=SECOND, **{**usual, **fields}))
    return [each.promise for each in check(history)]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"client": "identity"}, []),
        ({"sent_us": 0}, []),
        ({"connection": 2}, ["P8-closed"]),
        ({"written_us": 2 * SECOND, "answered_us": 2 * SECOND}, ["P8-closed"]),
    ],
    ids=["of a shared identity", "sent before the opening", "of another connection", "answered"],
)
def test_a_connection_that_waits_for_an_answer_is_not_idle(
    fields: dict[str, Any], found: list[str]
) -> None:
    assert with_request(a_connection(), **fields) == found


@pytest.mark.parametrize(
    ("fields", "last_us", "wire_format", "found"),
    [
        ({}, 2 * SECOND, "mamamia", ["P8-closed"]),
        ({"client": "identity"}, 2 * SECOND, "mamamia", ["P8-closed"]),
        ({}, 3 * SECOND, "mamamia", []),
        ({"connection": 2}, 2 * SECOND, "mamamia", []),
        ({}, 2 * SECOND, "blipmq", []),
    ],
    ids=["waits", "shared identity", "may be answered", "other connection", "may get no answer"],
)
def test_the_broker_does_not_end_a_connection_as_idle_that_waits_for_an_answer(
    fields: dict[str, Any], last_us: int, wire_format: str, found: list[str]
) -> None:
    ended = a_connection(last_us=last_us, closing_us=9 * SECOND)
    assert with_request(ended, wire_format, **fields) == found


def test_a_connection_that_the_broker_does_not_read_is_not_idle() -> None:
    assert judged(a_connection(held_us=2 * SECOND), idle_us=SECOND) == []


def test_a_stop_and_invalid_input_end_connections() -> None:
    ended = a_connection(closing_us=9 * SECOND)
    assert judged(a_connection(closing_us=9 * SECOND, client="v")) == []
    assert judged(ended) == ["P8-closed"]
    history = History(boots=[Boot(number=0, begun_us=0, ready_us=0, stopping_us=9 * SECOND)])
    history.connections, history.clock_steps = [ended], []
    assert check(history) == []


@pytest.mark.parametrize(("enabled", "found"), [(True, ["P8-closed"]), (False, [])])
def test_only_a_client_without_an_account_must_log_in(enabled: bool, found: list[str]) -> None:
    ended = a_connection(closing_us=9 * SECOND)
    assert judged(ended, principal="ann", enabled=enabled, login_us=2 * SECOND) == found


@pytest.mark.parametrize(
    ("enabled", "login_us", "lost_us", "found"),
    [
        (False, 2 * SECOND, 11 * SECOND, ["P8-closed"]),
        (False, 9 * SECOND, 11 * SECOND, []),
        (False, 2 * SECOND, 8 * SECOND, []),
        (False, 0, 11 * SECOND, []),
        (True, 2 * SECOND, 11 * SECOND, []),
    ],
    ids=["stays", "in time", "between two looks", "without a time", "with an account"],
)
def test_a_client_without_an_account_does_not_stay(
    enabled: bool, login_us: int, lost_us: int, found: list[str]
) -> None:
    stays = a_connection(lost_us=lost_us, held_us=3 * SECOND)
    assert judged(stays, principal="ann", enabled=enabled, login_us=login_us) == found


def test_an_account_that_is_enabled_in_time_keeps_its_connections() -> None:
    """From then on they have its permissions."""
    enabled = {
        "number": 1,
        "client": "r",
        "name": "ann",
        "roles": (),
        "enabled": True,
        "creates": False,
    }
    for at_us, found in ((9 * SECOND, []), (10 * SECOND, ["P8-closed"])):
        change = PutAccount(boot=0, sent_us=at_us, arrived_us=at_us, **enabled)
        change.written_us = change.answered_us = at_us
        stays = a_connection(lost_us=90 * SECOND)
        rules = {"principal": "ann", "enabled": False, "login_us": 2 * SECOND}
        assert judged(stays, operations=[change], **rules) == found


def test_a_connection_with_a_login_of_its_own_stays() -> None:
    login = WireLogIn(number=1, client="c", boot=0, name="bob", password="b", connection=1)
    login.sent_us, login.arrived_us = SECOND, 2 * SECOND
    rules = {"principal": "ann", "enabled": False, "login_us": 2 * SECOND}
    assert judged(a_connection(), operations=[login], **rules) == []
    assert judged(a_connection(number=2), operations=[login], **rules) == ["P8-closed"]


@pytest.mark.parametrize(("enabled", "found"), [(True, ["P8-closed"]), (False, [])])
def test_only_a_client_without_an_account_may_send_no_large_frame(
    enabled: bool, found: list[str]
) -> None:
    """The broker closes such a connection with the byte that is too many."""
    ended = a_connection(closing_us=2 * SECOND)
    assert judged(ended, principal="ann", enabled=enabled) == found
    at_once = a_connection(opened_us=2 * SECOND, closing_us=2 * SECOND)  # its bytes come with it
    assert judged(at_once, principal="ann", enabled=enabled) == (["quota"] if enabled else [])


def with_quota(*connections: Connected) -> list[str]:
    history = History(boots=[Boot(number=0, begun_us=0, ready_us=0)], clock_steps=[])
    history.connections, history.ended_us = [*connections], 100 * SECOND
    put = PutQuota(number=0, client="r", boot=0, connections=1, **LISTENER)
    put.sent_us, put.arrived_us, put.written_us, put.answered_us = 10, 10, 20, 20
    history.operations.append(put)
    return [each.promise for each in check(history)]


def test_a_quota_of_connections_holds_and_refuses_no_more() -> None:
    first, later = a_connection(), 3 * SECOND
    after = {"opened_us": later, "first_us": -1, "arrived_us": -1, "last_us": later}
    assert with_quota(first, a_connection(**after, others=1)) == ["quota"]
    assert with_quota(first, a_connection(**after, others=1, closing_us=later, lost_us=later)) == []
    assert with_quota(first, a_connection(**after, others=1, lost_us=later)) == [], "the net cut it"
    alone = a_connection(closing_us=SECOND, lost_us=SECOND)
    assert with_quota(alone) == ["quota"]
    before = a_connection(opened_us=5, last_us=SECOND, others=0)
    assert with_quota(before, a_connection(**after, others=1)) == [], "it counts from a request on"


def test_a_run_with_short_times_keeps_every_promise_and_ends_connections() -> None:
    topic = Topic(name="t")
    common = {"identity": "x", "topics": (topic,), "think_us": 9 * SECOND, "operations": 12}
    clients = (
        ClientPlan(name="p", role="producer", seed=1, mix={"produce": 1}, **common),
        ClientPlan(name="v", role="vandal", seed=2, **common),
    )
    settings = Settings(
        idle_seconds=1, first_byte_seconds=1, unfinished_frame_seconds=1, connections_max=2
    )
    result = run(
        Plan(seed=4, end_us=60 * SECOND, settings=settings, topics=(topic,), clients=clients)
    )
    assert not result.violations
    assert any(one.closing_us > one.opened_us for one in result.history.connections)


def test_each_request_of_a_run_has_the_number_of_its_connection() -> None:
    """Here both clients share an identity, which their requests have in place of their names."""
    topic = Topic(name="t")
    common = {"identity": "x", "topics": (topic,), "groups": ("g",), "mix": {"acquire": 1}}
    clients = (
        ClientPlan(name="p", role="consumer", seed=1, operations=3, **common),
        ClientPlan(name="q", role="consumer", seed=2, operations=5, **common),
    )
    result = run(Plan(seed=4, end_us=9 * SECOND, topics=(topic,), clients=clients))
    connections = {one.number: one for one in result.history.connections}
    assert len(connections) == len(result.history.connections)
    asked = [op for op in result.history.operations if op.client == "x"]
    assert Counter(connections[op.connection].client for op in asked) == {"p": 3, "q": 5}
