"""The operator: what it asks a broker, what it writes down, and what it does without an answer."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from brokerd.admin.calls.audit import AuditEvents
from simulator.clients.operator import Operator
from simulator.draw.clients import OPERATES
from simulator.history.operations import (
    NEVER,
    AuditSearch,
    Configure,
    DeleteTopic,
    Describe,
    Explain,
    Letters,
    Operation,
    Pause,
    Purge,
    Replay,
    Seek,
    TopicView,
)
from simulator.plan import Action, ClientPlan, Kill, Plan, Topic
from simulator.run import run
from tests.simulator.peer import Peer

SECOND = 1_000_000
TOPIC = Topic(name="t", partitions=2)
ACTIONS: list[Action] = sorted({action for mix in OPERATES.values() for action in mix})


def a_plan(*actions: Action, **changes: Any) -> ClientPlan:
    fields: dict[str, Any] = {
        "name": "op",
        "identity": "op",
        "role": "operator",
        "seed": 3,
        "operations": 20,
        "topics": (TOPIC,),
        "groups": ("g",),
        "owners": ("c",),
        "mix": dict.fromkeys(actions, 1),
    }
    return ClientPlan(**{**fields, **changes})


VIEW = TopicView(1, (0, 0), (9, 4), 0)


def play(plan: ClientPlan) -> Peer:
    peer = Peer()
    peer.direct.tells = lambda operation: VIEW if isinstance(operation, Describe) else None
    operator = Operator(plan, peer.world, peer.direct)
    operator.start()
    peer.run()
    assert operator.finished
    return peer


def kinds(peer: Peer) -> list[type[Operation]]:
    return [type(operation) for operation in peer.operations]


def test_it_does_as_many_things_as_its_plan_says() -> None:
    assert kinds(play(a_plan("pause", operations=7))) == [Pause] * 7


def test_groups_are_configured_first_if_the_plan_says_so() -> None:
    plan = a_plan("pause", configures_first=True, ordered_permille=1_000, groups=("g", "h"))
    peer = play(plan)
    first = peer.operations[:2]
    assert [(type(o), o.group) for o in first] == [(Configure, "g"), (Configure, "h")]
    assert all(o.rules.key_ordered for o in first)
    assert Configure not in kinds(peer)[2:]


@pytest.mark.parametrize(("action", "kind"), [("replay", Replay), ("purge", Purge)])
def test_dead_letters_are_listed_before_and_after_they_are_changed(
    action: Action, kind: type[Operation]
) -> None:
    assert kinds(play(a_plan(action, operations=2))) == [Letters, kind, Letters] * 2


def test_a_topic_is_looked_at_before_and_after_it_is_deleted() -> None:
    assert (
        kinds(play(a_plan("delete_topic", operations=2))) == [Describe, DeleteTopic, Describe] * 2
    )


def test_a_record_that_a_description_tells_of_is_explained() -> None:
    peer = play(a_plan("explain", operations=50))
    assert kinds(peer).count(Explain) == 50
    assert 20 < kinds(peer).count(Describe) < 50
    asked = {op.place for op in peer.operations if isinstance(op, Explain)}
    assert {place.partition for place in asked} == {0, 1}
    assert all(place.offset < (VIEW.nexts[place.partition] + 3) for place in asked)


def test_a_query_of_the_audit_trail_is_read_page_by_page() -> None:
    peer = Peer()
    peer.direct.tells = lambda operation: AuditEvents(
        [], None if operation.before == 3 else (operation.before or 5) - 1, 0
    )
    Operator(a_plan("search_audit", operations=4), peer.world, peer.direct).start()
    peer.run()
    asked = [op for op in peer.operations if isinstance(op, AuditSearch)]
    assert [op.before for op in asked] == [None, 4, 3] * 4
    assert len({(op.types, op.user, op.resource, op.limit) for op in asked}) > 1


def test_offsets_are_about_those_that_there_are() -> None:
    peer = play(a_plan("seek", "describe", operations=200))
    offsets = [o.to for o in peer.operations if isinstance(o, Seek) and isinstance(o.to, int)]
    assert max(offsets) < 12
    assert {o.to for o in peer.operations if isinstance(o, Seek)} >= {"start", "end"}


def test_it_waits_for_a_broker_that_is_not_there() -> None:
    peer = Peer()
    peer.direct.is_ready = False
    operator = Operator(a_plan("pause", operations=1), peer.world, peer.direct)
    operator.start()
    peer.run(SECOND)
    assert not peer.operations
    peer.direct.is_ready = True
    peer.run()
    assert kinds(peer) == [Pause]


def test_when_it_is_told_to_stop_it_asks_nothing_more() -> None:
    peer = Peer()
    operator = Operator(a_plan("pause", think_us=SECOND), peer.world, peer.direct)
    finished: list[int] = []
    operator.on_finished = lambda: finished.append(1)
    operator.start()
    peer.run(2 * SECOND)
    operator.hang_up()
    count = len(peer.operations)
    peer.run()
    assert (len(peer.operations), finished) == (count, [1])


# -- with a broker ---------------------------------------------------------------------------------


def a_run(*actions: Action, **changes: Any) -> Plan:
    operator = a_plan(
        *actions, think_us=100_000, retention_us_max=SECOND, retention_bytes_max=4_096
    )
    worker = a_plan(
        "produce",
        "acquire",
        "settle",
        name="c",
        identity="c",
        role="worker",
        operations=150,
        think_us=20_000,
        failure_permille=500,
    )
    fields: dict[str, Any] = {
        "seed": 1,
        "end_us": 4 * SECOND,
        "topics": (TOPIC,),
        "clients": (worker, operator),
    }
    return Plan(**{**fields, **changes})


@pytest.mark.parametrize("action", ACTIONS)
def test_a_broker_does_what_it_is_asked(action: Action) -> None:
    """Each is answered, in a broker that works with others meanwhile, and breaks no promise."""
    result = run(a_run(action))
    assert result.violations == []
    asked = [o for o in result.history.operations if o.client == "op"]
    assert len(asked) >= 20
    assert all(o.answered_us >= o.arrived_us for o in asked)
    assert not all(o.error for o in asked)


def test_explanations_have_the_events_of_records() -> None:
    """Both the operator and the auditor ask; the oracle judges the answers."""
    result = run(a_run("explain"))
    assert result.violations == []
    explained = [o for o in result.history.operations if isinstance(o, Explain) and o.succeeded]
    assert {o.client for o in explained} == {"op", "auditor"}
    assert {"leased", "settled"} <= {e.event for o in explained for e in o.events}
    assert all(o.is_whole and o.exists for o in explained)


def test_what_a_crash_leaves_unanswered_is_on_record_as_such() -> None:
    faults = tuple(Kill(at_us=at * 100_000, at_call=1, down_us=1_000) for at in range(1, 12))
    plan = a_run("configure", faults=faults)
    result = run(replace(plan, clients=plan.clients[1:]))
    assert result.violations == []
    asked = [o for o in result.history.operations if o.client == "op"]
    unanswered = [o for o in asked if o.answered_us == NEVER]
    assert unanswered and len(unanswered) < len(asked)
