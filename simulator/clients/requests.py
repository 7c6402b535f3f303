# Tests: tests/simulator/test_clients.py
"""Draw the next request of a random Mamamia client.

Each action returns a request, or None if it is not possible. Each client has its own seed, so that
clients are independent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from brokerd.codecs import mamamia as mm
from simulator.clients.conversation import Ask
from simulator.clients.mamamia_wire import microseconds
from simulator.clients.messages import MessageMaker
from simulator.history.operations import (
    Acquire,
    Cancel,
    Extend,
    Look,
    Message,
    Operation,
    Place,
    Produce,
    Release,
    Settle,
    Settlement,
)
from simulator.plan import DEFAULT_DURATION_US, Action, ClientPlan, Topic

TRIES = 4
"""The most draws of an action until one is possible."""
REASONS = "", "broken", "no such käse"
"""Reasons of failed settles."""
REMEMBERED = 50
"""The number of settled leases that may be settled again."""
UNNUMBERED = -1


@dataclass
class Lease:
    """A lease as its holder sees it."""

    topic: str
    group: str
    place: Place
    token: int | None
    over_us: int
    """The time at which it lapses."""
    late: bool = False
    """Whether it is settled only after its time."""

    @property
    def message_id(self) -> int:
        return mm.message_id_of(*self.place)


class RequestMaker:
    """Draws the requests of one client, in order. ``now_us`` is the time of the world."""

    def __init__(self, plan: ClientPlan, chance: Random) -> None:
        self._plan = plan
        self._chance = chance
        self._messages = MessageMaker(plan, chance)
        self._held: list[Lease] = []
        self._settled: deque[Lease] = deque(maxlen=REMEMBERED)
        self._highest: dict[tuple[str, int], int] = {}
        """The highest offset seen, by topic and partition."""
        self._schedules: deque[tuple[str, int]] = deque(maxlen=REMEMBERED)
        """Topics and schedule ids of delayed messages."""
        self._sequence = 0
        self._sent: dict[int, mm.ProduceBatch] = {}
        """Batches that may be sent again, by sequence."""
        self._again: deque[tuple[Produce, mm.ProduceBatch]] = deque()
        """Batches without an answer."""

    def log_in(self) -> Ask | None:
        """Return None: Mamamia has no logins."""
        return None

    def make(self, now_us: int) -> Ask | None:
        """Return the next request; None if no drawn action is possible now."""
        if self._again and self._chance.random() < 0.9:
            return self._send_again(*self._again.popleft())
        mix = self._plan.mix
        for _ in range(TRIES if mix else 0):
            (action,) = self._chance.choices(list(mix), list(mix.values()))
            ask = self._ACTIONS[action](self, now_us)
            if ask is not None:
                return ask
        return None

    def learn(self, operation: Operation) -> None:
        """Remember leases, offsets and ids of an answer."""
        if operation.error:
            return
        if isinstance(operation, Produce):
            self._saw(operation.topic, (place for place in operation.places if place))
            waiting = (each for each in operation.schedules if each is not None)
            self._schedules += ((operation.topic, schedule_id) for schedule_id in waiting)
        elif isinstance(operation, Acquire):
            self._saw(operation.topic, (delivery.place for delivery in operation.deliveries))
            self._hold(operation)
        elif isinstance(operation, Extend):
            for lease in self._held:
                if (lease.topic, lease.group, lease.place) == (
                    operation.topic,
                    operation.group,
                    operation.place,
                ):
                    lease.over_us = operation.answered_us + operation.duration_us
        elif isinstance(operation, Settle):
            self._settled += self._leases_of(operation)
        elif isinstance(operation, Release):
            self._let_go(operation)

    def unanswered(self, operations: Iterable[Operation]) -> None:
        """Repeat most requests after a lost connection, as real clients do."""
        for operation in operations:
            if isinstance(operation, Produce) and operation.producer_id:
                self._again.append((operation, self._sent[operation.sequence]))
            if isinstance(operation, Settle) and self._chance.random() < 0.7:
                self._held += self._leases_of(operation)

    # -- memory ----------------------------------------------------------------------------------

    def _saw(self, topic: str, places: Iterable[Place]) -> None:
        for partition, offset in places:
            known = self._highest.get((topic, partition), -1)
            self._highest[topic, partition] = max(known, offset)

    def _hold(self, operation: Acquire) -> None:
        self._held += [
            Lease(
                operation.topic,
                operation.group,
                delivery.place,
                delivery.token,
                operation.answered_us + operation.duration_us,
                self._often(self._plan.late_permille),
            )
            for delivery in operation.deliveries
        ]

    def _let_go(self, operation: Release) -> None:
        self._held = [
            lease
            for lease in self._held
            if (lease.topic, lease.group) != (operation.topic, operation.group)
            or lease.place not in (operation.places or (lease.place,))
        ]

    @staticmethod
    def _leases_of(operation: Settle) -> list[Lease]:
        """Return the leases of a settle, without the mark ``late``."""
        return [
            Lease(operation.topic, operation.group, item.place, item.token, operation.sent_us)
            for item in operation.settlements
        ]

    # -- chance ----------------------------------------------------------------------------------

    def _often(self, permille: int) -> bool:
        return permille > 0 and self._chance.randrange(1_000) < permille

    def _topic(self) -> Topic:
        return self._chance.choice(self._plan.topics)

    def _group(self) -> str:
        return self._chance.choice(self._plan.groups)

    def _duration(self) -> float:
        """Draw a duration in seconds."""
        plan = self._plan
        return self._chance.randint(plan.duration_us_min, plan.duration_us_max) / 1_000_000

    def _wait(self) -> float:
        """Draw a wait in seconds; 0 for half of the acquires."""
        longest_us = self._plan.wait_us_max
        if not longest_us or self._chance.random() < 0.5:
            return 0.0
        return self._chance.randint(1, longest_us) / 1_000_000

    def _delay(self, success: bool) -> float | None:
        """Draw a delay in seconds; None for successes and half of the failures."""
        longest_us = self._plan.delay_us_max
        if success or not longest_us or self._chance.random() < 0.5:
            return None
        return self._chance.randint(0, longest_us) / 1_000_000

    def _verdict(self, success: bool) -> tuple[str, bool]:
        """Draw the reason of a failure, and whether it is final; mostly ("", False)."""
        if success or not self._often(self._plan.verdict_permille):
            return "", False
        return self._chance.choice(REASONS), self._chance.random() < 0.5

    def _due(self, now_us: int) -> list[Lease]:
        """Return the held leases that may be settled now."""
        return [lease for lease in self._held if not lease.late or lease.over_us < now_us]

    # -- producing -------------------------------------------------------------------------------

    def _produce(self, now_us: int) -> Ask:
        topic = self._topic()
        message, wire = self._messages.make(topic)
        return Ask(mm.Produce(topic.name, *wire), self._produced(topic, [message]))

    def _produce_batch(self, now_us: int) -> Ask:
        topic = self._topic()
        resends = self._plan.resends
        count = self._chance.randint(1, self._plan.batch_max)
        made = [self._messages.make(topic, not resends) for _ in range(count)]
        request = mm.ProduceBatch(topic.name, tuple(wire for _, wire in made))
        operation = self._produced(topic, [message for message, _ in made])
        if not resends:
            return Ask(request, operation)
        self._sequence += 1
        operation.producer_id, operation.sequence = self._plan.name, self._sequence
        request = request._replace(producer_id=self._plan.name, sequence=self._sequence)
        self._sent[self._sequence] = request
        self._sent.pop(self._sequence - REMEMBERED, None)
        if self._chance.random() < 0.05:
            self._again.append((operation, request))
        return Ask(request, operation)

    @staticmethod
    def _send_again(operation: Produce, request: mm.ProduceBatch) -> Ask:
        """Return the same batch under the same sequence number."""
        return Ask(
            request,
            Produce(
                number=UNNUMBERED,
                client=operation.client,
                topic=operation.topic,
                messages=operation.messages,
                producer_id=operation.producer_id,
                sequence=operation.sequence,
            ),
        )

    def _cancel(self, now_us: int) -> Ask | None:
        """Cancel a delayed message, or a random schedule id."""
        if not self._schedules:
            return None
        topic, schedule_id = self._chance.choice(self._schedules)
        if self._chance.random() < 0.1:
            schedule_id += 1
        return Ask(
            mm.Cancel(topic, schedule_id),
            Cancel(
                number=UNNUMBERED,
                client=self._plan.identity,
                topic=topic,
                schedule_id=schedule_id,
            ),
        )

    def _produced(self, topic: Topic, messages: list[Message]) -> Produce:
        return Produce(
            number=UNNUMBERED,
            client=self._plan.name,
            topic=topic.name,
            messages=tuple(messages),
        )

    # -- leasing ---------------------------------------------------------------------------------

    def _acquire(self, now_us: int) -> Ask:
        topic, group, identity = self._topic().name, self._group(), self._plan.identity
        duration, wait = self._lease_duration(), self._wait()
        return Ask(
            mm.Acquire(topic, group, identity, duration, wait),
            self._acquiring(topic, group, duration, wait),
        )

    def _acquiring(
        self, topic: str, group: str, duration: float | None, wait: float, limit: int = 1
    ) -> Acquire:
        return Acquire(
            number=UNNUMBERED,
            client=self._plan.identity,
            topic=topic,
            group=group,
            duration_us=DEFAULT_DURATION_US if duration is None else microseconds(duration),
            by_default=duration is None,
            limit=limit,
            wait_us=microseconds(wait),
        )

    def _lease_duration(self) -> float | None:
        """Draw a duration in seconds; None leaves it to the group."""
        return None if self._often(self._plan.default_permille) else self._duration()

    def _acquire_batch(self, now_us: int) -> Ask:
        topic, group, identity = self._topic().name, self._group(), self._plan.identity
        duration, wait = self._lease_duration(), self._wait()
        limit = self._chance.randint(1, self._plan.batch_max)
        return Ask(
            mm.AcquireBatch(topic, group, identity, limit, duration, wait),
            self._acquiring(topic, group, duration, wait, limit),
        )

    def _release(self, now_us: int) -> Ask | None:
        """Release leases that the client holds, by id or all of them."""
        if not self._held:
            return None
        first = self._chance.choice(self._held)
        same = [
            lease
            for lease in self._held
            if (lease.topic, lease.group) == (first.topic, first.group)
        ]
        is_all = self._chance.random() < 0.5
        chosen = self._chance.sample(same, self._chance.randint(1, min(len(same), 10)))
        return Ask(
            mm.Release(
                first.topic,
                first.group,
                self._plan.identity,
                None if is_all else tuple(lease.message_id for lease in chosen),
            ),
            Release(
                number=UNNUMBERED,
                client=self._plan.identity,
                topic=first.topic,
                group=first.group,
                owner=self._plan.identity,
                places=None if is_all else tuple(lease.place for lease in chosen),
            ),
        )

    def _extend(self, now_us: int) -> Ask | None:
        if not self._held:
            return None
        lease = self._chance.choice(self._held)
        duration = self._duration()
        return Ask(
            mm.Extend(lease.topic, lease.group, self._plan.identity, lease.message_id, duration),
            Extend(
                number=UNNUMBERED,
                client=self._plan.identity,
                topic=lease.topic,
                group=lease.group,
                place=lease.place,
                duration_us=microseconds(duration),
            ),
        )

    def _forget(self, now_us: int) -> None:
        """Drop a lease, like a worker that dies. It makes no request."""
        if self._held:
            self._held.pop(self._chance.randrange(len(self._held)))

    # -- settling --------------------------------------------------------------------------------

    def _settle(self, now_us: int) -> Ask | None:
        due = self._due(now_us)
        if not due:
            return None
        lease = self._chance.choice(due)
        self._held.remove(lease)
        return self._settle_one(lease, self._plan.identity)

    def _settle_again(self, now_us: int) -> Ask | None:
        """Settle a settled record again, perhaps with another result."""
        if not self._settled:
            return None
        return self._settle_one(self._chance.choice(self._settled), self._plan.identity)

    def _settle_foreign(self, now_us: int) -> Ask | None:
        """Settle a lease of this client in the name of another client."""
        if not self._held:
            return None
        lease = self._chance.choice(self._held)
        stranger = f"{self._plan.identity}-stranger"
        if self._often(self._plan.token_permille):
            return self._settle_many([lease], stranger)
        return self._settle_one(lease, stranger)

    def _settle_blind(self, now_us: int) -> Ask:
        """Settle any offset, leased or not, with or without a record."""
        topic, group = self._topic(), self._group()
        partition = self._chance.randrange(topic.partitions)
        highest = self._highest.get((topic.name, partition), -1)
        place = Place(partition, self._chance.randrange(highest + 3))
        return self._settle_one(Lease(topic.name, group, place, None, now_us), self._plan.identity)

    def _settle_one(self, lease: Lease, client_id: str) -> Ask:
        success = not self._often(self._plan.failure_permille)
        delay = self._delay(success)
        verdict = self._verdict(success)
        delay_us = None if delay is None else microseconds(delay)
        settlement = Settlement(lease.place, success, None, delay_us, *verdict)
        named = lease.topic, lease.group, lease.message_id, client_id
        return Ask(
            mm.Settle(*named, success, delay, *verdict),
            self._settling(lease, client_id, [settlement]),
        )

    def _settle_batch(self, now_us: int) -> Ask | None:
        """Settle several leases of one group and topic, sometimes one of them twice."""
        due = self._due(now_us)
        if not due:
            return None
        first = self._chance.choice(due)
        same = [lease for lease in due if (lease.topic, lease.group) == (first.topic, first.group)]
        count = self._chance.randint(1, min(len(same), self._plan.batch_max))
        chosen = self._chance.sample(same, count)
        self._held = [lease for lease in self._held if all(lease is not c for c in chosen)]
        if "settle_again" in self._plan.mix and self._chance.random() < 0.1:
            chosen.append(self._chance.choice(chosen))
        return self._settle_many(chosen, self._plan.identity)

    def _settle_many(self, leases: list[Lease], client_id: str) -> Ask:
        wire: list[mm.BatchSettle] = []
        settlements: list[Settlement] = []
        for lease in leases:
            success = not self._often(self._plan.failure_permille)
            delay = self._delay(success)
            token = lease.token if self._often(self._plan.token_permille) else None
            verdict = self._verdict(success)
            wire.append(mm.BatchSettle(lease.message_id, success, token, delay, *verdict))
            delay_us = None if delay is None else microseconds(delay)
            settlements.append(Settlement(lease.place, success, token, delay_us, *verdict))
        first = leases[0]
        return Ask(
            mm.SettleBatch(first.topic, first.group, client_id, tuple(wire)),
            self._settling(first, client_id, settlements),
        )

    @staticmethod
    def _settling(lease: Lease, client_id: str, settlements: list[Settlement]) -> Settle:
        return Settle(
            number=UNNUMBERED,
            client=client_id,
            topic=lease.topic,
            group=lease.group,
            settlements=tuple(settlements),
        )

    # -- looking ---------------------------------------------------------------------------------

    def _look(self, now_us: int) -> Ask:
        topic, group = self._topic().name, self._group()
        return Ask(
            mm.GroupInfo(topic, group),
            Look(number=UNNUMBERED, client=self._plan.identity, topic=topic, group=group),
        )

    _ACTIONS: ClassVar[dict[Action, Callable[[RequestMaker, int], Ask | None]]] = {
        "produce": _produce,
        "produce_batch": _produce_batch,
        "acquire": _acquire,
        "acquire_batch": _acquire_batch,
        "settle": _settle,
        "settle_batch": _settle_batch,
        "extend": _extend,
        "settle_again": _settle_again,
        "settle_foreign": _settle_foreign,
        "settle_blind": _settle_blind,
        "forget": _forget,
        "release": _release,
        "cancel": _cancel,
        "look": _look,
    }
