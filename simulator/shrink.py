# Tests: tests/simulator/test_shrink.py
"""Shrink a failing plan to the parts that its failure needs.

Faults and clients are removed by delta debugging (ddmin: Zeller and Hildebrandt, "Simplifying and
Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002). Then the plan is simplified piece by
piece. Each part of a plan has its own seed, so that the removal of one part leaves the others
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from msgspec.structs import fields, replace

from simulator.plan import Action, AnyFault, ClientPlan, DiskTimes, Network, Plan, Settings

T = TypeVar("T")

Fails = Callable[[Plan], bool]
"""Returns whether a plan still shows the failure."""
Change = Callable[[Plan], Plan]

PLAIN_CLIENT: dict[str, Any] = {
    "window": 1,
    "begin_us": 0,
    "keys": 0,
    "partition_permille": 0,
    "metadata_permille": 0,
    "large_permille": 0,
    "empty_permille": 0,
    "payload_bytes_max": 0,
    "wait_us_max": 0,
    "delay_us_max": 0,
    "failure_permille": 0,
    "late_permille": 0,
    "token_permille": 0,
    "verdict_permille": 0,
    "filter_permille": 0,
    "qos_0_permille": 0,
    "delayed_permille": 0,
    "schedule_us_max": 0,
    "ttl_permille": 0,
    "ttl_us_max": 0,
    "default_permille": 0,
    "resends": False,
    "ordered_permille": 0,
    "configures_first": False,
    "retention_us_max": 0,
    "retention_bytes_max": 0,
    "patience_us": 60_000_000,
    "batch_max": 2,
}
"""The plainest values of a client."""

MILD_FAULT: dict[str, Any] = {
    "at_name": None,
    "at_stuck": False,
    "from_boot": False,
    "model": "drop",
    "power": None,
    "short": False,
    "down_us": 1_000,
}


def shrink(plan: Plan, fails: Fails, runs_max: int) -> Plan:
    """Return the simplest failing plan found in at most ``runs_max`` calls of ``fails``.

    ``plan`` itself must fail. It is returned if no simpler plan fails.
    """
    search = _Search(fails, runs_max)
    while True:
        before = plan
        for cut in (_fewer_faults, _fewer_clients, _fewer_operations):
            plan = cut(plan, search)
        for simpler in (
            _plain_surroundings,
            _plain_settings,
            _plain_clients,
            _plain_faults,
            _shorter,
        ):
            plan = search.descend(plan, simpler(plan))
        if plan == before or search.spent:
            return plan


class _Search:
    """Counts runs and remembers plans that did not fail."""

    def __init__(self, fails: Fails, runs_max: int) -> None:
        self._fails = fails
        self._runs_left = runs_max
        self._known: dict[bytes, bool] = {}

    @property
    def spent(self) -> bool:
        return self._runs_left <= 0

    def fails(self, plan: Plan) -> bool:
        """Return whether a plan fails; False if no runs are left."""
        name = plan.to_json()
        if name not in self._known:
            if self.spent:
                return False
            self._runs_left -= 1
            self._known[name] = self._fails(plan)
        return self._known[name]

    def descend(self, plan: Plan, changes: Iterator[Change]) -> Plan:
        """Make each change after which the plan still fails."""
        for change in changes:
            candidate = change(plan)
            if candidate != plan and self.fails(candidate):
                plan = candidate
        return plan


def ddmin(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Return a failing part of the items, in order, from which no single item can be removed.

    All items together must fail. They are not tried first.
    """
    items = tuple(items)
    if not items or fails(()):
        return ()
    pieces = 2
    while len(items) > 1:
        bounds = [len(items) * number // pieces for number in range(pieces + 1)]
        spans = list(pairwise(bounds))
        parts = [items[begin:end] for begin, end in spans]
        rests = [items[:begin] + items[end:] for begin, end in spans] if pieces > 2 else []
        for number, smaller in enumerate(parts + rests):
            if fails(smaller):
                items = smaller
                pieces = 2 if number < len(parts) else max(pieces - 1, 2)
                break
        else:
            if pieces >= len(items):
                return items
            pieces = min(len(items), 2 * pieces)
    return items


# -- less ------------------------------------------------------------------------------------------


def _fewer_faults(plan: Plan, search: _Search) -> Plan:
    def with_faults(faults: tuple[AnyFault, ...]) -> Plan:
        return replace(plan, faults=faults)

    return with_faults(ddmin(plan.faults, lambda faults: search.fails(with_faults(faults))))


def _fewer_clients(plan: Plan, search: _Search) -> Plan:
    """Remove clients, with their faults and the topics that no other client uses."""

    def with_clients(clients: tuple[ClientPlan, ...]) -> Plan:
        names = {client.name for client in clients}
        used = {topic for client in clients for topic in client.topics}
        return replace(
            plan,
            clients=clients,
            topics=tuple(topic for topic in plan.topics if topic in used),
            faults=tuple(f for f in plan.faults if getattr(f, "client", None) in {None, *names}),
        )

    return with_clients(ddmin(plan.clients, lambda clients: search.fails(with_clients(clients))))


def _fewer_operations(plan: Plan, search: _Search) -> Plan:
    """Find the fewest operations of each client, by steps that are halved."""
    for number, client in enumerate(plan.clients):
        step = client.operations // 2
        while step and not search.spent:
            fewer = _with_client(plan, number, replace(client, operations=client.operations - step))
            if fewer.clients[number].operations > 0 and search.fails(fewer):
                plan, client = fewer, fewer.clients[number]
                step = min(step, client.operations // 2)
            else:
                step //= 2
    return plan


def _with_client(plan: Plan, number: int, client: ClientPlan) -> Plan:
    clients = (*plan.clients[:number], client, *plan.clients[number + 1 :])
    return replace(plan, clients=clients)


# -- simpler ---------------------------------------------------------------------------------------


def _plain_surroundings(plan: Plan) -> Iterator[Change]:
    """Yield changes to a quick disk and a quick network."""
    yield lambda plan: replace(plan, disk=DiskTimes())
    yield lambda plan: replace(plan, network=Network())
    yield lambda plan: replace(plan, network=replace(plan.network, split_permille=0))


def _plain_settings(plan: Plan) -> Iterator[Change]:
    """Yield changes to default options, all of them or one by one."""
    yield lambda plan: replace(plan, settings=Settings())
    for field in fields(Settings):
        yield partial(_set_option, field.name, field.default)


def _set_option(name: str, value: object, plan: Plan) -> Plan:
    return replace(plan, settings=replace(plan.settings, **{name: value}))


def _plain_clients(plan: Plan) -> Iterator[Change]:
    """Yield changes to plainer clients, with fewer kinds of requests, topics and groups."""
    for number, client in enumerate(plan.clients):
        yield partial(_set_client, number, PLAIN_CLIENT)
        for action in client.mix:
            yield partial(_drop_action, number, action)
        for name, value in PLAIN_CLIENT.items():
            yield partial(_set_client, number, {name: value})
        for topic in client.topics:
            yield partial(_drop_item, number, "topics", topic)
        for group in client.groups:
            yield partial(_drop_item, number, "groups", group)


def _set_client(number: int, values: dict[str, Any], plan: Plan) -> Plan:
    return _with_client(plan, number, replace(plan.clients[number], **values))


def _drop_action(number: int, action: Action, plan: Plan) -> Plan:
    mix = {other: weight for other, weight in plan.clients[number].mix.items() if other != action}
    return _set_client(number, {"mix": mix}, plan) if mix else plan


def _drop_item(number: int, name: str, item: object, plan: Plan) -> Plan:
    """Remove one of a client's topics or groups, unless it is the last."""
    items = getattr(plan.clients[number], name)
    rest = tuple(other for other in items if other != item)
    return _set_client(number, {name: rest}, plan) if rest else plan


def _plain_faults(plan: Plan) -> Iterator[Change]:
    """Yield changes to milder faults."""
    for number, fault in enumerate(plan.faults):
        for name, value in MILD_FAULT.items():
            if hasattr(fault, name):
                yield partial(_set_fault, number, name, value)


def _set_fault(number: int, name: str, value: object, plan: Plan) -> Plan:
    fault = replace(plan.faults[number], **{name: value})
    return replace(plan, faults=(*plan.faults[:number], fault, *plan.faults[number + 1 :]))


def _shorter(plan: Plan) -> Iterator[Change]:
    """Yield changes to an earlier end, after the last fault."""
    last_us = max((fault.at_us for fault in plan.faults), default=0)
    for part in (8, 4, 2):
        end_us = max(plan.end_us // part, last_us + 1)
        yield partial(_end_by, end_us)


def _end_by(end_us: int, plan: Plan) -> Plan:
    return replace(plan, end_us=min(plan.end_us, end_us))
