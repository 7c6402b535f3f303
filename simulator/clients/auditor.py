# Tests: tests/simulator/test_clients.py
"""The last client of a run: it reads all records, waits, drains each group, and asks for states.

It begins when all faults are over, the machine is up and the other clients have finished. Its
requests are in the history too; `simulator.history.operations.History` describes their use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from brokerd.codecs import mamamia as mm
from simulator.clients import admin_calls, questions, registry_calls
from simulator.clients.conversation import Ask
from simulator.clients.direct import Asker
from simulator.clients.links import Connect
from simulator.clients.mamamia_wire import MamamiaWire
from simulator.clients.registrar import LISTENER_QUOTA
from simulator.clients.registry_calls import RegistryCall
from simulator.clients.scripted import Script, ScriptedClient, insist
from simulator.history.operations import (
    Acquire,
    AuditSearch,
    History,
    Look,
    Place,
    Settle,
    Settlement,
)
from simulator.machine.world import World
from simulator.plan import Plan

NAME = "auditor"
BATCH = 500
DURATION_US = 86_400 * 1_000_000
"""Duration of the audit's leases: longer than the audit."""
MARGIN_US = 5_000_000
"""Wait after the longest lease or delay, because the broker may end them a little late."""
UNNUMBERED = -1
EXPLAINED = 4
"""Records of a topic whose events are asked for, spread over those that the audit read."""
AUDIT_EVENTS = 1_000
"""Audit events of one page: as many as an answer may have."""
IS_ACCOUNT = "there is an account"


class Auditor(ScriptedClient):
    """A `ScriptedClient` of Mamamia. Its end completes the history."""

    def __init__(
        self,
        plan: Plan,
        world: World,
        connect: Connect,
        direct: Asker,
        history: History,
        done: Callable[[], None],
    ) -> None:
        script = self._audit()
        super().__init__(NAME, world, connect, direct, history, MamamiaWire, script, done)
        self._plan = plan

    def start(self) -> None:
        """Begin, and note the begin in the history."""
        self._history.audit_us = self._world.now_us
        super().start()

    # -- the script ------------------------------------------------------------------------------

    def _open(self) -> Script:
        """Lift the quota of the listener, and give its account all rights. Look at the registry."""
        if not any(client.role == "registrar" for client in self._plan.clients):
            return
        principal = self._plan.settings.principal
        yield from insist(partial(registry_calls.inspect, NAME))
        yield from insist(partial(registry_calls.delete_quota, NAME, *LISTENER_QUOTA))
        if principal:
            roles = "consumer", "producer"
            make = partial(registry_calls.create_account, NAME, principal, roles)
            yield from insist(make, lambda operation: IS_ACCOUNT in operation.error)
            yield from insist(
                partial(registry_calls.update_account, NAME, principal, roles, enabled=True)
            )

    def _audit(self) -> Script:
        yield from self._open()
        for topic_name, group in self._plan.pairs():
            yield from insist(partial(admin_calls.resume, NAME, topic_name, group))
        for topic in self._plan.topics:
            yield from insist(partial(admin_calls.describe, NAME, topic.name))
        yield from self._read_all()
        yield self._plan.longest_us + MARGIN_US
        yield from self._read_all()
        for topic_name, group in self._plan.pairs():
            yield from self._lease_all(topic_name, group, settle=True)
        for topic_name, group in self._plan.pairs():
            yield from insist(partial(look_ask, topic_name, group))
            yield from insist(partial(admin_calls.letters, NAME, topic_name, group))
        for topic in self._plan.topics:
            yield from insist(partial(admin_calls.describe, NAME, topic.name))
            for place in self._some_places(topic.name):
                yield from insist(partial(questions.explain, NAME, topic.name, place))

        if self._plan.settings.principal:
            yield from self._search_audit()

    def _search_audit(self) -> Script:
        """Read all events of the audit trail."""
        before: int | None = None
        while True:
            operation = yield from insist(partial(search_ask, before))
            assert isinstance(operation, AuditSearch), "it was asked"
            before = operation.next_before
            if before is None:
                return

    def _some_places(self, topic: str) -> list[Place]:
        """Return the places of some records that the audit has read, in order."""
        places = sorted(
            {
                delivery.place
                for op in self._history.operations
                if isinstance(op, Acquire) and (op.client, op.topic) == (NAME, topic)
                for delivery in op.deliveries
            }
        )
        return places[:: 1 + len(places) // EXPLAINED]

    def _read_all(self) -> Script:
        """Read the unread records: once, and again when all delayed messages are stored."""
        for number, topic in enumerate(self._plan.topics):
            yield from self._lease_all(topic.name, f"audit-{number}", settle=False)

    def _lease_all(self, topic: str, group: str, settle: bool) -> Script:
        """Lease, and settle if ``settle`` is set, until two acquires find no record."""
        empty = 0
        while empty < 2:
            operation = yield from insist(partial(acquire_ask, topic, group))
            assert isinstance(operation, Acquire), "it was asked"
            if not operation.deliveries:
                empty += 1
            elif settle:
                yield from insist(partial(settle_ask, operation))


def search_ask(before: int | None) -> RegistryCall:
    """Ask for the audit events before one."""
    return questions.search_audit(
        AuditSearch(number=UNNUMBERED, client=NAME, before=before, limit=AUDIT_EVENTS)
    )


def acquire_ask(topic: str, group: str) -> Ask:
    return Ask(
        mm.AcquireBatch(topic, group, NAME, BATCH, DURATION_US / 1_000_000),
        Acquire(
            number=UNNUMBERED,
            client=NAME,
            topic=topic,
            group=group,
            duration_us=DURATION_US,
            limit=BATCH,
        ),
    )


def settle_ask(leased: Acquire) -> Ask:
    """Settle all leased records, each by its token if it has one."""
    return Ask(
        mm.SettleBatch(
            leased.topic,
            leased.group,
            NAME,
            tuple(
                mm.BatchSettle(mm.message_id_of(*delivery.place), True, delivery.token)
                for delivery in leased.deliveries
            ),
        ),
        Settle(
            number=UNNUMBERED,
            client=NAME,
            topic=leased.topic,
            group=leased.group,
            settlements=tuple(
                Settlement(delivery.place, True, delivery.token) for delivery in leased.deliveries
            ),
        ),
    )


def look_ask(topic: str, group: str) -> Ask:
    return Ask(
        mm.GroupInfo(topic, group),
        Look(number=UNNUMBERED, client=NAME, topic=topic, group=group),
    )
