"""A broker that one format asks, with security on: who asks is what the test says."""

from __future__ import annotations

from typing import Any, Final

from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.security import OPEN_GUARD
from tests.cross.format_clients import FORMAT_CLIENTS
from tests.cross.operations.form import TOPIC, Form, Operation
from tests.guards import Given, GuardOf
from tests.house import House, Wire

SECRET: Final = "sesame"


class Watched:
    """A broker that tells what it is asked for, but for the time and the journal."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name not in ("group_commit", "time"):
            self.asked.append(name)
        return getattr(self._broker, name)


class Asker:
    """One connection, greeted."""

    def __init__(self, house: House, factory: ConnectionFactory, greeting: bytes) -> None:
        self._house = house
        self.wire: Wire = house.connect_to(factory)
        self.greeted = self.ask(greeting)
        """What the greeting was answered."""

    def ask(self, request: bytes) -> bytes:
        """Send bytes; what is answered."""
        self.wire.send_bytes(request)
        self._house.run()
        return self.wire.received_bytes()


class Served:
    """One broker and one format."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.house = House()
        self.house.pass_time(1.0)
        watched = Watched(self.house.broker)
        self.asked = watched.asked
        """What the broker was asked for."""
        house: Any = _Seen(self.house, watched)
        self.factory = FORMAT_CLIENTS[form.name]().factory(house)
        self.guard = GuardOf(Given())

    def connect(self, access: Given | None) -> Asker:
        """A connection of somebody; None: while security is off."""
        greeting = self.form.greeting(SECRET)
        if access is None:
            self.factory.guard = OPEN_GUARD
        elif self.form.has_login:
            self.guard = GuardOf(Given(), {SECRET: access} if access.name else {})
            self.factory.guard = self.guard
        else:
            self.guard = GuardOf(access)
            self.factory.guard = self.guard
        return Asker(self.house, self.factory, greeting)

    def prepare(self, operation: Operation) -> None:
        """Have the topic, and what the operation asks for."""
        asker = self.connect(None)
        for request in operation.before:
            asker.ask(request(TOPIC))
        self.house.broker.topics.create(TOPIC)
        self.house.pass_time(1.0)  # the mark of a quiet log is written
        asker.wire.disconnect()

    def state(self) -> object:
        """What the broker holds."""
        broker = self.house.broker
        return broker.group_commit.ticket(), [
            (topic.name, sorted(topic.groups), [one.next_offset for one in topic.partitions])
            for topic in broker.topics.all()
        ]


class _Seen:
    """A house as factories see it."""

    def __init__(self, house: House, broker: Watched) -> None:
        self.broker = broker
        self.clock = house.clock
        self.limits = house.limits
