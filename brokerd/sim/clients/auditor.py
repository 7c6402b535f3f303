# Tests: tests/sim/test_clients.py
"""The last client of a run: reads everything, waits, drains every group, and asks how they stand.

It begins when all faults are over, the machine is up and the other clients are gone. What it asks
goes into the history like anybody's requests; `brokerd.sim.history.History` says what the oracle
makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial

from brokerd.codecs import mamamia as mm
from brokerd.errors import BrokerdError
from brokerd.sim.clients import deeds
from brokerd.sim.clients.conversation import Ask, Conversation
from brokerd.sim.clients.deeds import Deed
from brokerd.sim.clients.describe import asked
from brokerd.sim.clients.direct import Asker
from brokerd.sim.clients.links import Connect
from brokerd.sim.clients.mamamia_wire import MamamiaWire
from brokerd.sim.history import (
    Acquire,
    History,
    Look,
    Operation,
    Settle,
    Settlement,
)
from brokerd.sim.plan import Plan
from brokerd.sim.world import World

NAME = "auditor"
BATCH = 500
DURATION_US = 86_400 * 1_000_000
"""The leases of the audit outlive it."""
MARGIN_US = 5_000_000
"""Waited beyond the longest lease or delay: the broker may end them a little late."""
RETRY_US = 1_000_000
RETRIES = 60
"""How often a refused request is asked again; space may need a second to be found."""
LOSSES_MAX = 5
"""Connections that an audit may lose."""

NO_GROUP = "has no group"
"""What the broker says of a group that nobody has used yet."""
UNNUMBERED = -1

Step = Callable[[], Ask | Deed] | int
"""What the script wants next: an answer, or to wait for so many microseconds."""
Script = Generator[Step, Operation, None]


class AuditFailed(BrokerdError):
    """The broker refused, or did not serve, a client at its best behaviour."""


class Auditor:
    """Begins with ``start()``, and calls ``done()`` when the history is complete.

    Raises AuditFailed, in the world's next event, when the broker does not let it finish.
    """

    def __init__(
        self,
        plan: Plan,
        world: World,
        connect: Connect,
        direct: Asker,
        history: History,
        done: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._world = world
        self._connect_link = connect
        self._direct = direct
        self._history = history
        self._done = done
        self._script = self._audit()
        self._wanted: Callable[[], Ask | Deed] | None = None
        """What is asked and not answered."""
        self._losses = 0
        self._conversation: Conversation | None = None

    def start(self) -> None:
        self._history.audit_us = self._world.now_us
        self._connect()
        self._advance()

    # -- the script ------------------------------------------------------------------------------

    def _audit(self) -> Script:
        for topic_name, group in self._plan.pairs():
            yield from self._insist(partial(deeds.resume, NAME, topic_name, group))
        for topic in self._plan.topics:
            yield from self._insist(partial(deeds.describe, NAME, topic.name))
        yield from self._read_all()
        yield self._plan.longest_us + MARGIN_US
        yield from self._read_all()
        for topic_name, group in self._plan.pairs():
            yield from self._lease_all(topic_name, group, settle=True)
        for topic_name, group in self._plan.pairs():
            yield from self._insist(partial(look_ask, topic_name, group))
            yield from self._insist(partial(deeds.letters, NAME, topic_name, group))
        for topic in self._plan.topics:
            yield from self._insist(partial(deeds.describe, NAME, topic.name))

    def _read_all(self) -> Script:
        """Read what was not read yet: once, and again when all that waited has been stored."""
        for number, topic in enumerate(self._plan.topics):
            yield from self._lease_all(topic.name, f"audit-{number}", settle=False)

    def _lease_all(self, topic: str, group: str, settle: bool) -> Script:
        """Lease, and perhaps settle, until there was nothing twice."""
        empty = 0
        while empty < 2:
            operation = yield from self._insist(partial(acquire_ask, topic, group))
            assert isinstance(operation, Acquire), "it was asked"
            if not operation.deliveries:
                empty += 1
            elif settle:
                yield from self._insist(partial(settle_ask, operation))

    def _insist(self, make: Callable[[], Ask | Deed]) -> Generator[Step, Operation, Operation]:
        """Ask until it is not refused."""
        for _ in range(RETRIES):
            operation = yield make
            if not operation.error or NO_GROUP in operation.error:
                return operation
            yield RETRY_US
        raise AuditFailed(f"{asked(operation)} is refused for ever: {operation.error}")

    # -- following it ----------------------------------------------------------------------------

    def _advance(self, operation: Operation | None = None) -> None:
        """Do what the script wants next; None begins it or ends a wait."""
        try:
            step = next(self._script) if operation is None else self._script.send(operation)
        except StopIteration:
            self._finish()
            return
        if isinstance(step, int):
            self._world.call_after(step, self._advance)
        else:
            self._wanted = step
            self._ask()

    def _ask(self) -> None:
        if self._wanted is None or self._conversation is None:
            return
        wanted = self._wanted()
        if isinstance(wanted, Deed):
            self._direct.perform(*wanted, self._answered)
        else:
            self._conversation.ask(wanted)

    def _answered(self, operation: Operation) -> None:
        self._wanted = None
        self._advance(operation)

    def _finish(self) -> None:
        if self._conversation is not None:
            self._conversation.hang_up()
        self._done()

    def _connect(self) -> None:
        self._conversation = Conversation(
            NAME,
            self._world,
            self._connect_link,
            self._history,
            self._answered,
            self._lost,
            MamamiaWire(),
        )

    def _lost(self, why: str) -> None:
        self._conversation = None
        self._losses += 1
        if self._losses > LOSSES_MAX:
            raise AuditFailed(f"the audit lost its connection {self._losses} times: {why}")
        self._world.call_after(RETRY_US, self._reconnect)

    def _reconnect(self) -> None:
        self._connect()
        self._ask()


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
    """Settle all that was leased, each by its token if it has one."""
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
