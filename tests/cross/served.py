"""A broker with security on that serves one format to clients with given permissions."""

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
    """A broker that records which attributes are used, except time and group commit."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name not in ("group_commit", "time"):
            self.asked.append(name)
        return getattr(self._broker, name)


class Asker:
    """One connection after its greeting."""

    def __init__(self, house: House, factory: ConnectionFactory, greeting: bytes) -> None:
        self._house = house
        self.wire: Wire = house.connect_to(factory)
        self.greeted = self.ask(greeting)
        """The answer to the greeting."""

    def ask(self, request: bytes) -> bytes:
        """Send bytes and return the answer."""
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
        """The broker's attributes that were used."""
        house: Any = _Seen(self.house, watched)
        self.factory = FORMAT_CLIENTS[form.name]().factory(house)
        self.guard = GuardOf(Given())

    def connect(self, access: Given | None) -> Asker:
        """Return a connection with an access; None means security off."""
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
        """Send the operation's earlier requests and create the topic."""
        asker = self.connect(None)
        for request in operation.before:
            asker.ask(request(TOPIC))
        self.house.broker.topics.create(TOPIC)
        self.house.pass_time(1.0)  # the mark of a quiet log is written
        asker.wire.disconnect()

    def state(self) -> object:
        """Return the broker's state."""
        broker = self.house.broker
        return broker.group_commit.ticket(), [
            (topic.name, sorted(topic.groups), [one.next_offset for one in topic.partitions])
            for topic in broker.topics.all()
        ]


class _Seen:
    """The parts of a house that factories use."""

    def __init__(self, house: House, broker: Watched) -> None:
        self.broker = broker
        self.clock = house.clock
        self.limits = house.limits
