"""Administration in runs: the registrar, the model of the registry, and the oracle's judgement."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from simulator.draw import generate
from simulator.history.operations import (
    Acquire,
    Boot,
    Delivery,
    History,
    Message,
    Operation,
    Place,
    Produce,
)
from simulator.history.registry import (
    ADMIN,
    MONITOR,
    READ,
    WRITE,
    DeleteAccount,
    DeleteList,
    DeleteQuota,
    DeleteSchema,
    Inspect,
    ListRule,
    LogIn,
    MakeKey,
    Probe,
    PutAccount,
    PutList,
    PutQuota,
    RegisterSchema,
    RegistryOperation,
    RegistryView,
    RevokeKey,
    SchemaField,
    SetMode,
    Validate,
)
from simulator.oracle.registry import check_registry
from simulator.oracle.registry_model import RegistryState, Told
from simulator.oracle.timeline.spans import Lives
from simulator.plan import ClientPlan, Kill, Plan, Settings, Topic
from simulator.run import run

SECOND = 1_000_000
A, B = SchemaField("a", False), SchemaField("b", False)
B_OPTIONAL = SchemaField("b", True)
LABEL = "k0"
NOTHING = RegistryView((), (), (), (), ())


class Tale:
    """A history of requests, each answered after 10 ms, in one life of the broker."""

    def __init__(self, principal: str = "") -> None:
        self.history = History(principal=principal, boots=[Boot(number=0, begun_us=0, ready_us=0)])
        self.now_us = 1_000

    def ask(self, kind: type[Operation], /, is_answered: bool = True, **fields: Any) -> None:
        op = kind(
            number=len(self.history.operations),
            client="c",
            boot=self.history.boots[-1].number,
            sent_us=self.now_us,
            arrived_us=self.now_us,
            **fields,
        )
        self.now_us += 10_000
        if is_answered:
            op.written_us = op.answered_us = self.now_us
        self.now_us += 10_000
        self.history.operations.append(op)

    def account(self, name: str, *roles: str, enabled: bool = True, **fields: Any) -> None:
        fields = {"creates": True} | fields
        self.ask(PutAccount, name=name, roles=roles, enabled=enabled, **fields)

    def produce(self, **fields: Any) -> None:
        message = Message(b"x")
        self.ask(Produce, topic="t", messages=(message,), connection=0, **fields)

    def acquire(self, **fields: Any) -> None:
        self.ask(Acquire, topic="t", group="g", duration_us=SECOND, connection=0, **fields)

    def crash(self) -> None:
        self.history.boots[-1].ended_us = self.now_us
        self.now_us += 1_000
        number = len(self.history.boots)
        self.history.boots.append(Boot(number=number, begun_us=self.now_us, ready_us=self.now_us))
        self.now_us += 1_000

    def found(self) -> list[str]:
        judged = check_registry(self.history, Lives(self.history))
        return [each.promise for each in judged.violations]


def accounts(*names: str) -> RegistryView:
    return NOTHING._replace(accounts=tuple((name, (), True) for name in names))


# -- what was changed is shown ---------------------------------------------------------------------


@pytest.mark.parametrize(("shown", "found"), [(("ann",), []), ((), ["P1-registry"])])
def test_an_answered_change_is_shown_ever_after(shown: tuple[str, ...], found: list[str]) -> None:
    tale = Tale()
    tale.account("ann")
    tale.crash()
    tale.ask(Inspect, view=accounts(*shown))
    assert tale.found() == found


@pytest.mark.parametrize("names", [("ann",), ()])
def test_a_change_without_an_answer_may_have_happened(names: tuple[str, ...]) -> None:
    tale = Tale()
    tale.account("ann", is_answered=False)
    tale.crash()
    tale.ask(Inspect, view=accounts(*names))
    assert tale.found() == []
    other = ("ann",) if not names else ()
    tale.ask(Inspect, view=accounts(*other))
    assert tale.found() == ["P1-registry"], "it happened, or did not: once shown, it holds"


def test_a_refusal_must_be_true_and_an_acceptance_too() -> None:
    tale = Tale()
    tale.account("ann", error="there is an account 'ann' already")
    assert tale.found() == ["P1-registry"]
    tale = Tale()
    tale.account("ann")
    tale.account("ann")
    assert tale.found() == ["P1-registry"]
    tale = Tale()
    tale.account("ann", error="the disk is full")
    tale.ask(Inspect, view=NOTHING)
    assert tale.found() == []


EVERYTHING: list[RegistryOperation] = [
    PutAccount(number=0, client="c", name="ann", roles=("crew",), enabled=True, creates=True),
    PutList(number=1, client="c", rule=ListRule("t", True, False, (("ann", READ),), ())),
    MakeKey(number=2, client="c", owner="ann", label=LABEL),
    RegisterSchema(number=3, client="c", name="s", schema=(A,), version=1),
    SetMode(number=4, client="c", name="s", mode="full"),
    PutQuota(number=5, client="c", kind="default", name="*", requests=7),
]


def after(*requests: RegistryOperation) -> RegistryState:
    state = RegistryState()
    for request in requests:
        told = state.after(request)
        assert isinstance(told, Told) and told.fits
        state = told.state
    return state


def test_the_view_has_every_part() -> None:
    assert after(*EVERYTHING).view() == RegistryView(
        (("ann", ("crew",), True),),
        (ListRule("t", True, False, (("ann", READ),), ()),),
        ((LABEL, "ann"),),
        (("s", "full", ((1, (A,)),)),),
        (("default", "*", 7, 0, 0, 0),),
    )


UNDONE: list[RegistryOperation] = [
    RevokeKey(number=6, client="c", label=LABEL),
    DeleteAccount(number=6, client="c", name="ann"),
    DeleteList(number=7, client="c", pattern="t", prefix=True, existed=True),
    DeleteSchema(number=8, client="c", name="s", version=1),
    DeleteQuota(number=9, client="c", kind="default", name="*", existed=True),
]


def test_all_of_it_can_be_undone() -> None:
    assert after(*EVERYTHING, *UNDONE).view() == NOTHING


# -- permissions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "rules", "topic", "permissions"),
    [
        ((), (), "t", 0),
        (("consumer",), (), "t", READ),
        (("admin",), (), "t", READ | WRITE | ADMIN),
        ((), (ListRule("t", False, False, (("ann", WRITE),), ()),), "t", WRITE),
        ((), (ListRule("t", False, False, (("ann", WRITE),), ()),), "tt", 0),
        ((), (ListRule("t", True, False, (("ann", WRITE),), ()),), "tt", WRITE),
        ((), (ListRule("t", False, False, (("bob", WRITE),), ()),), "t", 0),
        (("crew",), (ListRule("t", False, False, (), (("crew", READ),)),), "t", READ),
        ((), (ListRule("", True, True, (), ()),), "t", READ | WRITE),
    ],
)
def test_roles_and_lists_give_permissions(
    roles: tuple[str, ...], rules: tuple[ListRule, ...], topic: str, permissions: int
) -> None:
    made = PutAccount(number=0, client="c", name="ann", roles=roles, enabled=True, creates=True)
    puts = [PutList(number=1, client="c", rule=rule) for rule in rules]
    assert after(made, *puts).permissions("ann", topic) == permissions
    made.enabled = False
    assert after(made, *puts).permissions("ann", topic) == 0


def test_a_request_needs_its_permission_when_it_is_carried_out() -> None:
    tale = Tale("ann")
    tale.produce(error="authentication required")
    tale.account("ann", "producer")
    tale.produce(places=(Place(0, 0),))
    tale.acquire(error="unauthorized")
    assert tale.found() == []
    tale.acquire()
    assert tale.found() == ["access"]


def test_a_client_with_the_permission_is_not_refused() -> None:
    tale = Tale("ann")
    tale.account("ann", "producer")
    tale.produce(error="unauthorized")
    assert tale.found() == ["access"]


def test_while_a_change_is_on_its_way_both_answers_are_right() -> None:
    tale = Tale("ann")
    tale.account("ann", "producer")
    tale.account("ann", creates=False)
    change = tale.history.operations[-1]
    tale.produce()
    during = tale.history.operations[-1]
    during.arrived_us = during.written_us = change.arrived_us + 1
    assert tale.found() == []
    during.arrived_us = during.written_us = change.written_us + 1
    assert tale.found() == ["access"]


@pytest.mark.parametrize("request_", UNDONE[:2], ids=["key", "account"])
def test_a_login_loses_its_rights_with_its_key(request_: RegistryOperation) -> None:
    tale = Tale("everyone")
    tale.account("ann", "monitor", "consumer")
    tale.ask(MakeKey, owner="ann", label=LABEL)
    tale.ask(LogIn, label=LABEL)
    tale.ask(Probe, label=LABEL, subjects=("t",), permissions=(READ, READ | MONITOR))
    assert tale.found() == []
    fields = {"label": LABEL} if isinstance(request_, RevokeKey) else {"name": "ann"}
    tale.ask(type(request_), **fields)
    tale.ask(Probe, label=LABEL, subjects=("t",), permissions=(0, 0))
    tale.ask(LogIn, label=LABEL, error="invalid API key")
    assert tale.found() == []
    tale.ask(Probe, label=LABEL, subjects=("t",), permissions=(READ, READ | MONITOR))
    assert tale.found() == ["access"]


# -- schemas ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "new", "is_compatible"),
    [
        ("backward", (A,), True),
        ("backward", (A, B), False),
        ("backward", (A, B_OPTIONAL), True),
        ("forward", (A, B), True),
        ("forward", (B,), False),
        ("full", (A, B), False),
        ("full", (A, B_OPTIONAL), True),
        ("none", (B,), True),
    ],
)
def test_versions_are_compared_as_the_mode_says(
    mode: str, new: tuple[SchemaField, ...], is_compatible: bool
) -> None:
    refused = {"error": "failed: schema compatibility check failed: no default"}
    right, wrong = ({"version": 2}, refused) if is_compatible else (refused, {"version": 2})
    for told, found in (right, []), (wrong, ["P1-registry"]):
        tale = Tale()
        tale.ask(RegisterSchema, name="s", schema=(A,), version=1)
        tale.ask(SetMode, name="s", mode=mode)
        tale.ask(RegisterSchema, name="s", schema=new, **told)
        assert tale.found() == found


@pytest.mark.parametrize(
    ("mode", "found"), [("backward", []), ("backward_transitive", ["P1-registry"])]
)
def test_transitive_modes_compare_all_versions(mode: str, found: list[str]) -> None:
    tale = Tale()
    tale.ask(RegisterSchema, name="s", schema=(A,), version=1)
    tale.ask(RegisterSchema, name="s", schema=(B_OPTIONAL,), version=2)
    tale.ask(SetMode, name="s", mode=mode)
    tale.ask(RegisterSchema, name="s", schema=(B,), version=3)
    assert tale.found() == found


@pytest.mark.parametrize(("version", "found"), [(3, []), (2, ["P1-registry"])])
def test_a_deleted_number_is_not_given_again(version: int, found: list[str]) -> None:
    tale = Tale()
    tale.ask(RegisterSchema, name="s", schema=(A,), version=1)
    tale.ask(RegisterSchema, name="s", schema=(A,), version=2)
    tale.ask(DeleteSchema, name="s", version=2)
    tale.ask(RegisterSchema, name="s", schema=(A,), version=version)
    assert tale.found() == found


@pytest.mark.parametrize("is_valid", [True, False])
def test_messages_are_checked_by_the_latest_version(is_valid: bool) -> None:
    tale = Tale()
    tale.ask(RegisterSchema, name="s", schema=(A,), version=1)
    tale.ask(Validate, name="s", fields=1 if is_valid else 2, is_valid=is_valid)
    assert tale.found() == []
    tale.ask(Validate, name="s", fields=1, is_valid=not is_valid)
    assert tale.found() == ([] if not is_valid else ["P1-registry"])


# -- quotas ----------------------------------------------------------------------------------------


def test_a_quota_of_a_listener_holds_no_other_format_back() -> None:
    tale = Tale()
    tale.history.formats["c"] = "rustlog"
    tale.ask(PutQuota, kind="listener", name="mamamia", requests=5)
    for _ in range(50):
        tale.produce()
    assert tale.found() == []


def test_a_time_without_requests_keeps_a_quota() -> None:
    tale = Tale()
    tale.ask(PutQuota, kind="listener", name="mamamia", requests=5)
    tale.now_us += 30 * SECOND
    tale.produce()
    assert tale.found() == []


@pytest.mark.parametrize(("rate", "found"), [(100, []), (5, ["quota"])])
def test_no_time_has_more_requests_than_the_quota_allows(rate: int, found: list[str]) -> None:
    tale = Tale()
    tale.ask(PutQuota, kind="listener", name="mamamia", requests=rate)
    for _ in range(50):  # in one second, which allows two seconds' requests
        tale.produce()
    assert tale.found() == found
    tale.history.operations[0].name = "mega"  # type: ignore[attr-defined]
    assert tale.found() == []


@pytest.mark.parametrize(("rate", "found"), [(1_000, []), (10, ["quota"])])
def test_no_time_has_more_bytes_than_the_quota_allows(rate: int, found: list[str]) -> None:
    tale = Tale()
    tale.ask(PutQuota, kind="listener", name="mamamia", bytes_in=rate)
    for _ in range(50):
        tale.produce()
        tale.history.operations[-1].messages = (Message(b"x" * 20),)  # type: ignore[attr-defined]
    assert tale.found() == found


@pytest.mark.parametrize(("rate", "found"), [(1_000, []), (100, ["quota"])])
def test_reads_wait_for_the_bytes_of_answers_before_them(rate: int, found: list[str]) -> None:
    tale = Tale()
    tale.ask(PutQuota, kind="listener", name="mamamia", bytes_out=rate)
    for number in range(20):
        tale.acquire(deliveries=(Delivery(Place(0, number), b"x" * 50),))
    assert tale.found() == found


def test_one_answer_may_be_larger_than_the_quota() -> None:
    """The next read waits for it: here 9 seconds."""
    tale = Tale()
    tale.ask(PutQuota, kind="listener", name="mamamia", bytes_out=100)
    tale.acquire(deliveries=(Delivery(Place(0, 0), b"x" * 1_000),))
    tale.now_us += 9 * SECOND
    tale.acquire()
    assert tale.found() == []
    tale.history.operations[-1].arrived_us -= SECOND
    tale.history.operations[-1].written_us -= SECOND
    assert tale.found() == ["quota"]


def test_the_last_request_may_take_more_than_is_left() -> None:
    tale = Tale()
    tale.ask(PutQuota, kind="listener", name="mamamia", bytes_in=10)
    tale.produce()
    tale.history.operations[-1].messages = (Message(b"x" * 2_000),)  # type: ignore[attr-defined]
    assert tale.found() == []


# -- runs ------------------------------------------------------------------------------------------

TOPIC = Topic(name="t")


def a_plan(principal: str, **changes: Any) -> Plan:
    registrar = ClientPlan(
        name="registrar",
        identity="registrar",
        role="registrar",
        seed=7,
        operations=350,
        think_us=20_000,
        topics=(TOPIC,),
        mix={
            "create_account": 3,
            "update_account": 4,
            "delete_account": 1,
            "set_list": 3,
            "delete_list": 2,
            "set_password": 1,
            "make_key": 3,
            "revoke_key": 3,
            "log_in": 4,
            "probe": 6,
            "register_schema": 5,
            "schema_mode": 2,
            "delete_schema": 1,
            "validate": 3,
            "set_quota": 3,
            "delete_quota": 2,
            "inspect": 2,
        },
        **changes,
    )
    worker = ClientPlan(
        name="w",
        identity="w",
        role="worker",
        seed=3,
        operations=200,
        think_us=30_000,
        topics=(TOPIC,),
        groups=("g",),
        mix={"produce": 1, "acquire": 1, "settle": 1},
    )
    return Plan(
        seed=5,
        end_us=10 * SECOND,
        settings=Settings(principal=principal, snapshot_interval_bytes=2_048),
        topics=(TOPIC,),
        clients=(registrar, worker),
        faults=(Kill(at_us=SECOND // 2, down_us=1_000), Kill(at_us=SECOND, down_us=1_000)),
    )


@pytest.mark.parametrize("principal", ["", "everyone"])
def test_a_run_does_all_of_it_and_keeps_every_promise(principal: str) -> None:
    result = run(a_plan(principal))
    assert not result.violations
    kinds = Counter(
        type(op)
        for op in result.history.operations
        if isinstance(op, RegistryOperation) and op.succeeded
    )
    logins = {LogIn, Probe}
    assert set(kinds) == {*RegistryOperation.__subclasses__()} - (set() if principal else logins)
    refused = [op for op in result.history.operations if op.error == "unauthorized"]
    assert bool(refused) == bool(principal)


def test_a_quota_holds_requests_back() -> None:
    held = run(a_plan("", quota_requests_max=3))
    assert not held.violations
    worker = [op for op in held.history.operations if isinstance(op, Produce) and op.succeeded]
    assert max(op.answered_us - op.sent_us for op in worker) > SECOND // 10


def test_runs_that_lose_nothing_have_registrars_and_some_have_security() -> None:
    plans = [generate(seed) for seed in range(200)]
    drawn = [plan for plan in plans if plan.clients[-1].role == "registrar"]
    assert 20 < len(drawn) < 100
    assert all(plan.settings.durability == "fsync" for plan in drawn)
    secure = [plan for plan in drawn if plan.settings.principal]
    assert 5 < len(secure) < len(drawn)
    assert len({name for plan in secure for name in plan.formats}) == 5
    assert any(plan.clients[-1].quota_requests_max for plan in drawn)
    assert any(plan.clients[-1].quota_bytes_max for plan in drawn)
    assert any(plan.clients[-1].quota_answers_max for plan in drawn)
    assert not any(plan.settings.principal for plan in plans if plan not in drawn)
