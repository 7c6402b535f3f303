"""Logins on the wire: the clients of FlyMQ and BlipMQ, and the judge of what a login permits."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from brokerd.security.passwords import NOBODYS_HASH, hash_password, verify_password
from simulator.clients.credentials import WRONG, Credentials
from simulator.draw import generate
from simulator.history.operations import Boot, History, Message, Operation, Produce
from simulator.history.registry import (
    DeleteAccount,
    MakeKey,
    PutAccount,
    PutPassword,
    RevokeKey,
    WireLogIn,
)
from simulator.machine.passwords import quick_passwords
from simulator.oracle.registry import check_registry
from simulator.oracle.timeline.spans import Lives
from simulator.plan import ClientPlan, Drop, Plan, Settings, Topic, WireFormat
from simulator.run import run

SECOND = 1_000_000
CONNECTION = 7
WRONG_PASSWORD = "invalid username or password"
UNAUTHORIZED = "unauthorized"


class Tale:
    """The account ann may produce, and the listener's account may not."""

    def __init__(self, wire_format: str = "flymq", password: str = "old") -> None:
        boots = [Boot(number=0, begun_us=0, ready_us=0)]
        self.history = History(principal="everyone", formats={"c": wire_format}, boots=boots)
        self.account("everyone")
        self.account("ann", "producer", password=password)
        self.ask(MakeKey, owner="ann", label="k0")

    def account(self, name: str, *roles: str, **fields: Any) -> None:
        fields = {"enabled": True, "creates": True, "password": ""} | fields
        self.ask(PutAccount, name=name, roles=roles, **fields)

    def ask(self, kind: type[Operation], **fields: Any) -> None:
        number = len(self.history.operations)
        at_us = 1_000 * number + 1_000
        times = {"sent_us": at_us, "arrived_us": at_us, "written_us": at_us + 9}
        op = kind(**{"number": number, "client": "c", "boot": 0, **times, **fields})
        op.answered_us = op.written_us
        self.history.operations.append(op)

    def log_in(self, error: str = "", **fields: Any) -> None:
        given = fields or {"password": "old"}
        self.ask(WireLogIn, connection=CONNECTION, error=error, **{"name": "ann", **given})

    def produce(self, error: str = "") -> None:
        topic, messages = "t", (Message(b"x"),)
        self.ask(Produce, connection=CONNECTION, error=error, topic=topic, messages=messages)

    def found(self) -> list[str]:
        judged = check_registry(self.history, Lives(self.history))
        return [each.promise for each in judged.violations]


@pytest.mark.parametrize(
    ("given", "is_right"),
    [
        ({"password": "old"}, True),
        ({"password": "new"}, False),
        ({"key": "k0"}, True),
        ({"key": "k1"}, False),
        ({"name": "everyone", "is_configured": True}, True),
    ],
)
def test_a_login_succeeds_by_a_right_password_or_key_and_by_no_other(
    given: dict[str, Any], is_right: bool
) -> None:
    accepted, refused = Tale(), Tale()
    accepted.log_in(**given)
    refused.log_in(WRONG_PASSWORD, **given)
    assert accepted.found() == ([] if is_right else ["access"])
    assert refused.found() == (["access"] if is_right else [])


def test_too_many_logins_may_be_refused_unchecked() -> None:
    tale = Tale()
    tale.log_in("too many logins at once; try again in a second")
    assert tale.found() == []


@pytest.mark.parametrize(("error", "found"), [("", []), (UNAUTHORIZED, ["access"])])
def test_after_a_login_the_account_counts(error: str, found: list[str]) -> None:
    tale = Tale()
    tale.log_in()
    tale.produce(error)
    assert tale.found() == found


@pytest.mark.parametrize(("error", "found"), [("", ["access"]), (UNAUTHORIZED, [])])
@pytest.mark.parametrize("wire_format", ["flymq", "blipmq"])
def test_after_a_failed_login_the_account_does_not_count(
    wire_format: str, error: str, found: list[str]
) -> None:
    tale = Tale(wire_format)
    tale.log_in(WRONG_PASSWORD, password="wrong")
    tale.produce(error)
    assert tale.found() == found


@pytest.mark.parametrize(
    ("given", "kind", "fields"),
    [
        ({"password": "old"}, PutPassword, {"name": "ann", "password": "new"}),
        ({"password": "old"}, DeleteAccount, {"name": "ann"}),
        ({"key": "k0"}, DeleteAccount, {"name": "ann"}),
        ({"key": "k0"}, RevokeKey, {"label": "k0"}),
    ],
)
@pytest.mark.parametrize(("error", "found"), [("", ["access"]), (UNAUTHORIZED, [])])
def test_a_change_ends_the_permissions_of_an_open_connection(
    given: dict[str, str],
    kind: type[Operation],
    fields: dict[str, str],
    error: str,
    found: list[str],
) -> None:
    tale = Tale()
    tale.log_in(**given)
    tale.ask(kind, **fields)
    tale.produce(error)
    assert tale.found() == found


def test_a_new_account_of_the_name_gives_an_old_connection_nothing() -> None:
    tale = Tale()
    tale.log_in()
    tale.ask(DeleteAccount, name="ann")
    tale.account("ann", "producer", password="old")
    tale.produce()
    assert tale.found() == ["access"]


# -- clients ---------------------------------------------------------------------------------------


def test_clients_know_the_newest_password_and_key_and_wrong_ones() -> None:
    known, chance = Credentials(), Random(1)
    assert known.password("ann", chance, is_wrong=False) == WRONG
    first, second = known.new_password("ann"), known.new_password("ann")
    assert known.password("ann", chance, is_wrong=False) == second
    wrong = {known.password("ann", chance, is_wrong=True) for _ in range(20)}
    assert wrong == {WRONG, first}
    known.add_key("ann", "k0", "secret 0")
    known.add_key("ann", "k1", "secret 1")
    assert known.key("ann", chance, is_wrong=False) == ("k1", "secret 1")
    assert {known.key("ann", chance, is_wrong=True).secret for _ in range(20)} == {
        WRONG,
        "secret 0",
    }


def a_plan(wire_format: WireFormat) -> Plan:
    topic = Topic(name="t")
    registrar = ClientPlan(
        name="registrar",
        identity="registrar",
        role="registrar",
        seed=7,
        operations=60,
        think_us=200_000,
        topics=(topic,),
        mix={"set_password": 2, "make_key": 1, "revoke_key": 1, "update_account": 1},
        has_passwords=True,
    )
    client = ClientPlan(
        name="f",
        identity="f",
        role="worker",
        format=wire_format,
        seed=3,
        operations=150,
        think_us=60_000,
        topics=(topic,),
        mix={"produce": 1},
        login="ann",
        wrong_permille=300,
        reconnect_us_max=200_000,
    )
    return Plan(
        seed=5,
        end_us=10 * SECOND,
        settings=Settings(principal="everyone"),
        topics=(topic,),
        clients=(client, registrar),
        faults=tuple(Drop(at_us=at * SECOND, client="f") for at in range(1, 9)),
    )


@pytest.mark.parametrize("wire_format", ["flymq", "blipmq"])
def test_a_run_has_right_and_wrong_logins_and_keeps_every_promise(
    wire_format: WireFormat,
) -> None:
    result = run(a_plan(wire_format))
    assert not result.violations
    logins = [op for op in result.history.operations if isinstance(op, WireLogIn)]
    counts = Counter(bool(op.error) for op in logins if op.answered_us > 0)
    assert counts[True] and counts[False]
    stored = [op for op in result.history.operations if isinstance(op, Produce)]
    assert {op.connection for op in stored if op.succeeded} & {op.connection for op in logins}


def test_clients_log_in_where_security_is_on_and_the_format_has_logins() -> None:
    plans = [generate(seed) for seed in range(400)]
    drawn = [plan for plan in plans if any(client.login for client in plan.clients)]
    assert 5 < len(drawn) < 40
    for plan in drawn:
        assert plan.settings.principal
        assert plan.clients[-1].has_passwords
        assert {c.format for c in plan.clients if c.login} <= {"flymq", "blipmq"}


def test_the_hash_of_a_run_has_the_size_of_a_real_one() -> None:
    """Entries of the log keep their sizes, and only the right password matches."""
    salt = bytes(range(16))
    real = hash_password("secret", salt)
    with quick_passwords():
        quick = hash_password("secret", salt)
        assert verify_password(quick, "secret")
        assert not verify_password(quick, "Secret")
        assert not verify_password(real, "secret")
        assert not verify_password(NOBODYS_HASH, "secret")
        assert hash_password("secret", bytes(16)) != quick
    assert quick != real
    assert len(quick) == len(real)
    assert quick.split("$")[:-1] == real.split("$")[:-1]
    assert hash_password("secret", salt) == real
