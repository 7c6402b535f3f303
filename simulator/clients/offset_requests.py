# Tests: tests/simulator/test_format_clients.py
"""Draw the next request of a random client of a format with offsets.

RustLog, MEGA and FlyMQ have different requests: a subclass makes the request of an operation. Each
client has its own seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, ClassVar

from simulator.clients.conversation import Ask
from simulator.clients.values import ValueMaker
from simulator.history.offsets import (
    Commit,
    Committed,
    CreateTopic,
    ListTopics,
    Position,
    Read,
    ResetOffset,
)
from simulator.history.operations import DeleteTopic, Message, Operation, Produce
from simulator.payloads import payload_of
from simulator.plan import Action, ClientPlan, Topic

TRIES = 4
"""The most draws of an action until one is possible."""
READ_MAX = 200
"""The most records of one read."""
OWN_TOPICS = 5
"""The number of topics that a client creates and deletes."""
UNNUMBERED = -1

Spot = tuple[str, int]
"""A topic and a partition."""


class OffsetRequests(ABC):
    """Draws the requests of one client, in order. ``now_us`` is the time of the world."""

    def __init__(self, plan: ClientPlan, chance: Random) -> None:
        self._plan = plan
        self._chance = chance
        self._values = ValueMaker(plan, chance)
        self._topics = [topic for topic in plan.topics if self.accepts(topic.name)]
        self._next: dict[Spot, int] = {}
        """The next offset to read."""
        self._highest: dict[Spot, int] = {}
        """The highest offset seen."""

    def log_in(self) -> Ask | None:
        """Return None: most formats have no logins."""
        return None

    def make(self, now_us: int) -> Ask | None:
        """Return the next request; None if no drawn action is possible now."""
        mix = self._plan.mix
        for _ in range(TRIES if mix and self._topics else 0):
            (action,) = self._chance.choices(list(mix), list(mix.values()))
            operation = self._ACTIONS[action](self)
            if operation is not None:
                return Ask(self.request(operation), operation)
        return None

    def learn(self, operation: Operation) -> None:
        """Remember the offsets of an answer."""
        if operation.error:
            return
        if isinstance(operation, Produce):
            for place in operation.places:
                if place is not None:
                    self._saw(operation.topic, *place)
        elif isinstance(operation, Read):
            for reading in operation.readings:
                self._saw(operation.topic, *reading.place)
            if operation.readings:
                last = operation.readings[-1].place.offset
                self._next[operation.topic, operation.partition] = last + 1

    def unanswered(self, operations: Iterable[Operation]) -> None:
        """Send no request again: each value may be stored at most once."""
        del operations

    def _saw(self, topic: str, partition: int, offset: int) -> None:
        known = self._highest.get((topic, partition), -1)
        self._highest[topic, partition] = max(known, offset)

    # -- differences of the formats
    # ------------------------------------------------------------------

    @abstractmethod
    def request(self, operation: Any) -> Any:
        """Return the request of an operation in this format. It may change the operation to fit."""

    def accepts(self, topic: str) -> bool:
        """Return whether the format allows topics of that name."""
        return topic != ""

    # -- chance ----------------------------------------------------------------------------------

    def _asked(self, **fields: Any) -> dict[str, Any]:
        return {"number": UNNUMBERED, "client": self._plan.name, **fields}

    def _topic(self) -> Topic:
        return self._chance.choice(self._topics)

    def _partition(self, topic: Topic) -> int:
        """Draw a partition, sometimes beyond the topic's partitions."""
        return self._chance.randrange(topic.partitions + (self._chance.random() < 0.02))

    def _offset(self, spot: Spot) -> int:
        """Draw an offset of the partition, or one a little beyond its end."""
        return self._chance.randrange(self._highest.get(spot, 0) + 4)

    def _of_group_partition(
        self, kind: Callable[..., Operation], **fields: Any
    ) -> Operation | None:
        """Return an operation on a group in a partition; None if the client has no groups."""
        if not self._plan.groups:
            return None
        topic = self._topic()
        fields["group"] = self._chance.choice(self._plan.groups)
        fields["partition"] = self._partition(topic)
        return kind(**self._asked(topic=topic.name, **fields))

    # -- records ---------------------------------------------------------------------------------

    def _message(self, partition: int | None) -> Message:
        return Message(payload_of(self._values.make()), None, self._values.key(), partition)

    def _choice(self, topic: Topic) -> int | None:
        """Draw the partition that a message names; None if it names none."""
        if self._values.often(self._plan.partition_permille):
            return self._partition(topic)
        return None

    def _produce(self) -> Operation:
        topic = self._topic()
        messages = (self._message(self._choice(topic)),)
        return Produce(**self._asked(topic=topic.name, messages=messages))

    def _produce_batch(self) -> Operation:
        topic = self._topic()
        partition = self._choice(topic)
        count = self._chance.randint(1, self._plan.batch_max)
        messages = tuple(self._message(partition) for _ in range(count))
        return Produce(**self._asked(topic=topic.name, messages=messages))

    def _read(self) -> Read:
        """Read, mostly from the next offset on."""
        topic = self._topic()
        spot = topic.name, self._partition(topic)
        goes_on = self._chance.random() < 0.8
        offset = self._next.get(spot, 0) if goes_on else self._offset(spot)
        return Read(
            **self._asked(
                topic=spot[0],
                partition=spot[1],
                offset=offset,
                limit=self._chance.choice((1, 2, 10, READ_MAX)),
            )
        )

    def _read_one(self) -> Read:
        operation = self._read()
        operation.limit, operation.exact = 1, True
        return operation

    # -- offsets ---------------------------------------------------------------------------------

    def _commit(self) -> Operation | None:
        """Commit mostly the next offset to read, sometimes an earlier or any offset."""
        operation = self._of_group_partition(Commit, offset=0)
        if isinstance(operation, Commit):
            spot = operation.topic, operation.partition
            goes_on = self._chance.random() < 0.7
            operation.offset = self._next.get(spot, 0) if goes_on else self._offset(spot)
        return operation

    def _reset_offset(self) -> Operation | None:
        return self._of_group_partition(ResetOffset, to=self._chance.choice(("earliest", "latest")))

    def _committed(self) -> Operation | None:
        return self._of_group_partition(Committed)

    def _lag(self) -> Operation | None:
        return self._of_group_partition(Committed, told_as_zero=True, latest=0, lag=0)

    def _position(self) -> Operation | None:
        mode = self._chance.choice(("earliest", "latest", "commit"))
        return self._of_group_partition(Position, mode=mode)

    # -- topics ----------------------------------------------------------------------------------

    def _own_topic(self) -> str:
        return f"{self._plan.name}-{self._chance.randrange(OWN_TOPICS)}"

    def _create_topic(self) -> Operation:
        """Create one of the client's own topics, or an existing topic."""
        if self._chance.random() < 0.7:
            partitions = self._chance.randint(1, 4)
            return CreateTopic(**self._asked(topic=self._own_topic(), partitions=partitions))
        topic = self._topic()
        return CreateTopic(**self._asked(topic=topic.name, partitions=topic.partitions))

    def _delete_topic(self) -> Operation:
        return DeleteTopic(**self._asked(topic=self._own_topic()))

    def _list_topics(self) -> Operation:
        return ListTopics(**self._asked())

    _ACTIONS: ClassVar[dict[Action, Callable[[OffsetRequests], Operation | None]]] = {
        "produce": _produce,
        "produce_batch": _produce_batch,
        "read": _read,
        "read_one": _read_one,
        "commit": _commit,
        "reset_offset": _reset_offset,
        "committed": _committed,
        "lag": _lag,
        "position": _position,
        "create_topic": _create_topic,
        "delete_topic": _delete_topic,
        "list_topics": _list_topics,
    }
