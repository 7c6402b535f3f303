"""Shrinking: what is left of a failing plan, and what it costs to find out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.draw import generate
from simulator.plan import (
    AnyFault,
    ClientPlan,
    ClockStep,
    DiskTimes,
    Drop,
    Kill,
    Network,
    Plan,
    PowerLoss,
    Settings,
    Topic,
)
from simulator.shrink import ddmin, shrink

BUDGET = 2_000


def first(condition: Callable[[Plan], bool]) -> Plan:
    """The first plan that a seed draws of a kind."""
    return next(plan for plan in map(generate, range(1_000)) if condition(plan))


def kinds(plan: Plan) -> list[type[AnyFault]]:
    return [type(fault) for fault in plan.faults]


@given(st.sets(st.integers(0, 40)), st.integers(1, 60))
def test_exactly_what_is_needed_is_left(needed: set[int], count: int) -> None:
    """Whatever a failure needs, nothing else stays."""
    items = tuple(range(41))[: max([count, *(n + 1 for n in needed)])]
    assert set(ddmin(items, lambda part: needed <= set(part))) == needed


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(1, 30))
def test_no_single_item_of_what_is_left_can_go(items: list[int], least: int) -> None:
    def fails(part: tuple[int, ...]) -> bool:
        return sum(part) >= least

    if fails(tuple(items)):
        left = ddmin(items, fails)
        assert fails(left)
        assert not any(fails(left[:i] + left[i + 1 :]) for i in range(len(left)))


def test_the_order_of_items_stays() -> None:
    assert ddmin("shrinking", lambda part: {"s", "k", "g"} <= set(part)) == tuple("skg")


def test_only_the_faults_that_matter_stay() -> None:
    def fails(plan: Plan) -> bool:
        return {Kill, ClockStep} <= set(kinds(plan))

    plan = first(lambda plan: fails(plan) and len(plan.faults) > 6)
    assert sorted(kind.__name__ for kind in kinds(shrink(plan, fails, BUDGET))) == [
        "ClockStep",
        "Kill",
    ]


def test_only_the_clients_that_matter_stay_and_their_faults_with_them() -> None:
    plan = first(
        lambda plan: (
            len(plan.clients) > 3
            and any(isinstance(f, Drop) and f.client == "c1" for f in plan.faults)
            and any(isinstance(f, Drop) and f.client != "c1" for f in plan.faults)
        )
    )

    def fails(plan: Plan) -> bool:
        return any(isinstance(f, Drop) and f.client == "c1" for f in plan.faults) and (
            "c1" in [client.name for client in plan.clients]
        )

    small = shrink(plan, fails, BUDGET)
    assert [client.name for client in small.clients] == ["c1"]
    assert [fault.client for fault in small.faults if isinstance(fault, Drop)] == ["c1"]
    assert set(small.topics) == set(small.clients[0].topics)


def test_faults_never_name_a_client_that_is_gone() -> None:
    plan = first(lambda plan: sum(hasattr(fault, "client") for fault in plan.faults) > 3)

    def fails(plan: Plan) -> bool:
        names = {client.name for client in plan.clients}
        assert {fault.client for fault in plan.faults if hasattr(fault, "client")} <= names
        return any(hasattr(fault, "client") for fault in plan.faults)

    assert len(shrink(plan, fails, BUDGET).faults) == 1


def test_clients_ask_no_more_than_they_must() -> None:
    def fails(plan: Plan) -> bool:
        return any(client.operations >= 37 for client in plan.clients)

    small = shrink(first(fails), fails, BUDGET)
    assert [client.operations for client in small.clients] == [37]


def test_clients_lose_habits_that_do_not_matter() -> None:
    def fails(plan: Plan) -> bool:
        return any(
            "settle" in client.mix and client.late_permille and client.window > 1
            for client in plan.clients
        )

    (client,) = shrink(first(fails), fails, BUDGET).clients
    assert list(client.mix) == ["settle"]
    assert client.late_permille and client.window > 1
    assert (client.keys, client.wait_us_max, client.failure_permille) == (0, 0, 0)
    assert len(client.topics) == len(client.groups) == 1


def test_everything_else_becomes_usual() -> None:
    def fails(plan: Plan) -> bool:
        return plan.settings.segment_bytes < 1 << 20

    small = shrink(first(fails), fails, BUDGET)
    assert small.settings == Settings(segment_bytes=small.settings.segment_bytes)
    assert (small.disk, small.network) == (DiskTimes(), Network())
    assert (small.clients, small.faults, small.topics) == ((), (), ())


def test_faults_become_milder() -> None:
    def fails(plan: Plan) -> bool:
        return any(isinstance(f, PowerLoss) and f.from_boot for f in plan.faults)

    plan = first(
        lambda plan: fails(plan) and "drop" not in [getattr(f, "model", "") for f in plan.faults]
    )
    (fault,) = shrink(plan, fails, BUDGET).faults
    assert isinstance(fault, PowerLoss)
    assert (fault.model, fault.down_us, fault.from_boot) == ("drop", 1_000, True)


def test_runs_end_soon_after_what_matters() -> None:
    def fails(plan: Plan) -> bool:
        return Kill in kinds(plan)

    plan = first(lambda plan: fails(plan) and plan.end_us > 40_000_000)
    small = shrink(plan, fails, BUDGET)
    assert (
        small.faults[-1].at_us < small.end_us <= max(plan.end_us // 8, small.faults[-1].at_us + 1)
    )


def test_a_plan_that_needs_all_it_has_comes_back_as_it_was() -> None:
    plan = generate(3)
    assert shrink(plan, lambda candidate: candidate == plan, BUDGET) == plan


@pytest.mark.parametrize("budget", [0, 1, 7, 40])
def test_it_never_runs_more_often_than_it_may(budget: int) -> None:
    runs = []

    def fails(plan: Plan) -> bool:
        runs.append(plan)
        return Kill in kinds(plan)

    plan = first(lambda plan: Kill in kinds(plan) and len(plan.faults) > 5)
    small = shrink(plan, fails, budget)
    assert len(runs) <= budget
    assert Kill in kinds(small)


def test_no_plan_is_run_twice_and_all_are_sound() -> None:
    runs: list[bytes] = []

    def fails(plan: Plan) -> bool:
        runs.append(plan.to_json())
        assert Plan.from_json(runs[-1]) == plan
        return len(plan.faults) >= 2

    shrink(first(lambda plan: len(plan.faults) > 6), fails, BUDGET)
    assert len(set(runs)) == len(runs)


def test_a_plan_that_comes_up_twice_is_run_once() -> None:
    """Here, to set all options or the only unusual one is the same."""
    runs: list[Plan] = []

    def fails(plan: Plan) -> bool:
        runs.append(plan)
        return plan.settings.segment_bytes == 65_536

    plan = Plan(seed=0, end_us=1, settings=Settings(segment_bytes=65_536))
    assert shrink(plan, fails, BUDGET) == plan
    assert runs.count(Plan(seed=0, end_us=1)) == 1


def test_clients_keep_something_to_do() -> None:
    def fails(plan: Plan) -> bool:
        ours = (c for c in plan.clients if c.role != "vandal")
        assert all(c.mix and c.topics and (c.groups or c.format != "mamamia") for c in ours)
        return any(client.role == "consumer" for client in plan.clients)

    (client,) = shrink(first(fails), fails, BUDGET).clients
    assert (len(client.mix), len(client.topics), len(client.groups)) == (1, 1, 1)


def test_the_same_plan_shrinks_to_the_same() -> None:
    def fails(plan: Plan) -> bool:
        return sum(client.operations for client in plan.clients) * len(plan.faults) >= 100

    plan = first(lambda plan: fails(plan) and len(plan.clients) > 4)
    assert shrink(plan, fails, BUDGET) == shrink(plan, fails, BUDGET)


def test_a_fault_that_is_left_is_the_one_that_was_there() -> None:
    """Taking one away leaves the chance of the others alone."""
    losses = tuple(
        PowerLoss(at_us=number, model="drop", seed=number * 11, down_us=1_000)
        for number in range(9)
    )
    client = ClientPlan(
        name="a", identity="a", role="producer", seed=4, operations=1, topics=(Topic(name="t"),)
    )
    plan = Plan(seed=9, end_us=10, faults=losses, clients=(client,), topics=client.topics)
    small = shrink(plan, lambda plan: losses[5] in plan.faults and bool(plan.clients), BUDGET)
    assert small.faults == (losses[5],)
    assert small.seed == 9 and small.clients[0].seed == 4
