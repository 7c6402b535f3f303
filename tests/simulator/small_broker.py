"""A simple sequential broker, and the histories of random clients of it.

Each request takes effect at one moment between its arrival and its answer. Leases are those of
``tests.groups.model``. Crashes undo unanswered changes; in the modes without fsync a power loss
undoes more.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

from brokerd.errors import LeaseLost, NotLeaseOwner, UnknownOffset
from brokerd.groups import GroupSettings
from simulator.history.operations import (
    NEVER,
    Acquire,
    Boot,
    Delivery,
    Extend,
    GroupRules,
    GroupView,
    History,
    Letter,
    Letters,
    Look,
    Message,
    Operation,
    Place,
    Produce,
    Settle,
    Settlement,
)
from tests.groups.model import Model
from tests.simulator.story import LEASE_LOST, NOT_OWNER, UNKNOWN

TOPICS = {"t": 1, "u": 2}
GROUPS = ("g", "h")
CLIENTS = ("ann", "bob", "cat")
DAY_US = 86_400_000_000


@dataclass
class State:
    """The state that a crash may undo."""

    records: dict[str, list[list[Message]]] = field(
        default_factory=lambda: {topic: [[] for _ in range(n)] for topic, n in TOPICS.items()}
    )
    group_partitions: dict[tuple[str, str, int], Model] = field(default_factory=dict)


class SmallBroker:
    """Makes one random history.

    :param unsure: if false, every request is answered and nothing crashes.
    """

    def __init__(self, seed: int, unsure: bool = True, requests: int = 80) -> None:
        self.chance = chance = random.Random(seed)
        self.unsure = unsure
        self.durability = chance.choice(["fsync", "fsync", "os"]) if unsure else "fsync"
        self.rules = GroupRules(
            max_attempts=chance.randint(1, 4),
            counts_grants=chance.random() < 0.3,
            backoff_base_us=chance.choice([0, 0, 40_000]),
            backoff_max_us=100_000,
        )
        self.settings = GroupSettings(
            max_attempts=self.rules.max_attempts,
            attempts="grants" if self.rules.counts_grants else "failures",
            backoff_base_us=self.rules.backoff_base_us,
            backoff_max_us=self.rules.backoff_max_us,
        )
        self.now_us = 1_000
        self.state = State()
        self.saved: list[tuple[int, State]] = []
        """The states of this boot, each with the number of the next request."""
        self.history = History(rules=self.rules, clock_steps=[])
        self.sent = 0
        self.auditing = False
        self._boot()
        for _ in range(requests):
            self._request()
            if unsure and chance.random() < 0.03:
                self._crash()
        self._audit()

    # -- clients --------------------------------------------------------------------------------

    def _request(self) -> None:
        self.now_us += self.chance.choice([0, 500, 5_000, 40_000])
        kind = self.chance.choices(
            [self._produce, self._acquire, self._settle, self._extend, self._look],
            [4, 6, 7, 2, 1],
        )[0]
        kind(self.chance.choice(list(TOPICS)), self.chance.choice(GROUPS))

    def _produce(self, topic: str, group: str) -> None:
        messages = []
        for _ in range(self.chance.choice([1, 1, 2, 4])):
            self.sent += 1
            partition = self.chance.randrange(TOPICS[topic])
            metadata = self.chance.choice([None, b"{}", b"m%d" % self.sent])
            messages.append(Message(b"%d" % self.sent, metadata, None, partition))
        operation = Produce(number=0, client="", topic=topic, messages=tuple(messages))
        if self.chance.random() < 0.1:
            operation.error = "the disk is full"
            self._took_effect(operation)
            return
        with_effect = self._takes_effect(operation)
        places = []
        for message in messages if with_effect else ():
            partition = self.state.records[topic][message.partition or 0]
            places.append(Place(message.partition or 0, len(partition)))
            partition.append(message)
        operation.places = tuple(places)

    def _acquire(self, topic: str, group: str) -> None:
        duration_us = self.chance.choice([0, 10_000, 60_000, 300_000])
        limit = self.chance.choice([1, 1, 3])
        self._lease(topic, group, duration_us, limit, tells=limit > 1)

    def _lease(self, topic: str, group: str, duration_us: int, limit: int, tells: bool) -> Acquire:
        operation = Acquire(
            number=0, client="", topic=topic, group=group, duration_us=duration_us, limit=limit
        )
        deliveries: list[Delivery] = []
        if self._takes_effect(operation):
            for partition in range(TOPICS[topic]):
                group_partition = self._group_partition(topic, group, partition)
                for grant in group_partition.acquire(
                    self.now_us, operation.client, duration_us, limit - len(deliveries)
                ):
                    place = Place(partition, grant.offset)
                    message = self.state.records[topic][partition][grant.offset]
                    rest = (message.key, grant.token, grant.grants, duration_us) if tells else ()
                    deliveries.append(Delivery(place, message.payload, message.metadata, *rest))
        operation.deliveries = tuple(deliveries)
        return operation

    def _some_place(self, topic: str, group: str) -> tuple[Place, str, int | None]:
        """Draw a place to settle, mostly a leased one; return it with its owner and token."""
        partition = self.chance.randrange(TOPICS[topic])
        leases = self._group_partition(topic, group, partition).leases()
        if leases and self.chance.random() < 0.8:
            lease = self.chance.choice(leases)
            owner = lease.owner if self.chance.random() < 0.8 else self.chance.choice(CLIENTS)
            token = lease.token if self.chance.random() < 0.4 else None
            return Place(partition, lease.offset), owner, token
        end = len(self.state.records[topic][partition])
        token = self.chance.choice([None, None, self.chance.randint(1, 20)])
        offset = self.chance.randrange(end + 1)
        return Place(partition, offset), self.chance.choice(CLIENTS), token

    def _settle(self, topic: str, group: str) -> None:
        place, owner, token = self._some_place(topic, group)
        success = self.chance.random() < 0.4
        delay_us = self.chance.choice([None, None, 0, 80_000])
        self._settle_at(topic, group, Settlement(place, success, token, delay_us), owner)

    def _settle_at(self, topic: str, group: str, settlement: Settlement, owner: str) -> None:
        operation = Settle(
            number=0, client=owner, topic=topic, group=group, settlements=(settlement,)
        )
        if not self.auditing and self.chance.random() < 0.05:
            operation.results = ("the disk is full",)
            self._took_effect(operation)
            return
        if not self._takes_effect(operation):
            return
        place, success, token, delay_us, reason, _ = settlement
        group_partition = self._group_partition(topic, group, place.partition)
        try:
            by = None if token is not None else owner
            group_partition.settle(self.now_us, place.offset, success, by, token, delay_us, reason)
        except NotLeaseOwner:
            operation.results = (NOT_OWNER,)
        except LeaseLost:
            operation.results = (LEASE_LOST,)
        except UnknownOffset:
            operation.results = (UNKNOWN,)
        else:
            operation.results = ("",)

    def _extend(self, topic: str, group: str) -> None:
        place, owner, _ = self._some_place(topic, group)
        duration_us = self.chance.choice([0, 50_000, 200_000])
        operation = Extend(
            number=0, client=owner, topic=topic, group=group, place=place, duration_us=duration_us
        )
        if not self._takes_effect(operation):
            return
        group_partition = self._group_partition(topic, group, place.partition)
        if place.offset >= len(group_partition.records):
            operation.error = UNKNOWN
            return
        try:
            operation.remaining_us = group_partition.extend(
                self.now_us, place.offset, duration_us, owner, None
            )
        except NotLeaseOwner:
            operation.error = NOT_OWNER
        except LeaseLost:
            operation.error = LEASE_LOST

    def _look(self, topic: str, group: str) -> None:
        operation = Look(number=0, client="", topic=topic, group=group)
        if self._takes_effect(operation):
            group_partitions = [
                self._group_partition(topic, group, p) for p in range(TOPICS[topic])
            ]
            end = sum(map(len, self.state.records[topic]))
            lag = sum(group_partition.lag() for group_partition in group_partitions)
            leased = sum(len(group_partition.leases()) for group_partition in group_partitions)
            delayed = sum(
                len(group_partition.delayed(self.now_us)) for group_partition in group_partitions
            )
            ready = lag - leased - delayed
            floor = sum(group_partition.floor() for group_partition in group_partitions)
            dead = sum(len(group_partition.dead_letters()) for group_partition in group_partitions)
            operation.view = GroupView(floor, end, lag, leased, ready, delayed, dead)

    def _list_letters(self, topic: str, group: str) -> None:
        operation = Letters(number=0, client="", topic=topic, group=group)
        self._took_effect(operation)
        operation.letters = tuple(
            Letter(Place(partition, letter.offset), letter.reason, letter.grants, letter.failures)
            for partition in range(TOPICS[topic])
            for letter in self._group_partition(topic, group, partition).dead_letters()
        )

    # -- time and fate --------------------------------------------------------------------------

    def _takes_effect(self, operation: Operation) -> bool:
        """Give the request its times; return False if it is lost on the way."""
        return self._took_effect(operation, self.chance.random() < 0.08)

    def _took_effect(self, operation: Operation, is_unanswered: bool = False) -> bool:
        chance, boot = self.chance, self.history.boots[-1]
        if self.unsure:
            self.saved.append((len(self.history.operations), copy.deepcopy(self.state)))
        operation.number = len(self.history.operations)
        operation.client = operation.client or chance.choice(CLIENTS)
        operation.boot = boot.number
        spread_us = chance.choice([0, 100, 8_000])
        operation.arrived_us = max(self.now_us - chance.randint(0, spread_us), boot.ready_us)
        operation.sent_us = operation.arrived_us - chance.randint(0, 500)
        self.history.operations.append(operation)
        if is_unanswered and self.unsure and not self.auditing:
            operation.lost_us = chance.choice([NEVER, self.now_us + chance.randint(0, 500)])
            return chance.random() < 0.5
        operation.written_us = self.now_us + chance.randint(0, spread_us)
        operation.answered_us = operation.written_us + chance.randint(0, 500)
        return True

    def _crash(self) -> None:
        """End the boot: unwritten answers are lost, and perhaps their effects."""
        boot = self.history.boots[-1]
        boot.ended_us = self.now_us
        boot.end = self.chance.choice(["killed", "power"])
        boot.power_lost = boot.end == "power"
        first_loss = 0
        for operation in self.history.operations:
            if operation.boot != boot.number:
                continue
            if operation.answered_us != NEVER and operation.written_us <= boot.ended_us:
                first_loss = operation.number + 1
            else:
                _unanswer(operation)
        if boot.power_lost and self.durability != "fsync":
            first_loss = 0
        choices = [state for number, state in self.saved if number >= first_loss]
        self.state = self.chance.choice([*choices, self.state])
        for group_partition in self.state.group_partitions.values():
            if self.chance.random() < 0.5:
                group_partition.lapse(self.now_us)
        self.now_us += self.chance.choice([1, 1_000, 500_000])
        self._boot()

    def _boot(self) -> None:
        boots = self.history.boots
        boots.append(
            Boot(
                number=len(boots),
                begun_us=self.now_us,
                ready_us=self.now_us,
                durability=self.durability,
            )
        )
        self.saved = []
        for group_partition in self.state.group_partitions.values():
            group_partition.resume(self.now_us)

    def _group_partition(self, topic: str, group: str, partition: int) -> Model:
        group_partition = self.state.group_partitions.setdefault(
            (topic, group, partition), Model(self.settings)
        )
        group_partition.produce(
            [0] * (len(self.state.records[topic][partition]) - len(group_partition.records))
        )
        return group_partition

    # -- the end --------------------------------------------------------------------------------

    def _audit(self) -> None:
        self.now_us += 1_000_000
        for operation in self.history.operations:
            if operation.answered_us == NEVER and operation.lost_us == NEVER:
                operation.lost_us = self.now_us - 500_000
        self.auditing = True
        self.history.audit_us = self.now_us - 10_000
        for topic in TOPICS:
            while self._lease(topic, f"audit-{topic}", DAY_US, 5, tells=True).deliveries:
                self.now_us += 20_000
        self.now_us += 5_000_000
        for topic in TOPICS:
            for group in GROUPS:
                self._drain(topic, group)

    def _drain(self, topic: str, group: str) -> None:
        while True:
            self.now_us += 20_000
            leased = self._lease(topic, group, DAY_US, 5, tells=True)
            self.now_us += 20_000
            for delivery in leased.deliveries:
                settlement = Settlement(delivery.place, True, delivery.token)
                self._settle_at(topic, group, settlement, leased.client)
                self.now_us += 20_000
            if not leased.deliveries:
                break
        self.now_us += 20_000
        self._look(topic, group)
        self.now_us += 20_000
        self._list_letters(topic, group)


def _unanswer(operation: Operation) -> None:
    """Remove the answer of an operation."""
    operation.written_us = operation.answered_us = NEVER
    operation.error = ""
    for name in "places", "deliveries", "results", "letters":
        if hasattr(operation, name):
            setattr(operation, name, ())
    if isinstance(operation, Look):
        operation.view = None
