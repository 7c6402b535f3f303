"""One client of one format, spoken by hand, with a whole broker on a simulated disk."""

from __future__ import annotations

from brokerd.protocols.base.connection import Limits
from tests.cross.format_clients import DONE, FormatClient, Reply
from tests.house import House, Wire

MIB = 1 << 20
TOPIC = "T"


class Talk:
    """One client of one format with a broker of its own, on a simulated disk."""

    def __init__(self, client: FormatClient, house: House | None = None) -> None:
        self.client = client
        self.begin(house or House(limits=Limits(frame_bytes=32 * MIB)))

    def begin(self, house: House) -> None:
        """Connect to another broker."""
        self.house = house
        self.wire = self.connect()

    def connect(self) -> Wire:
        """Return another connection, after its greeting."""
        wire = self.house.connect_to(self.client.factory(self.house))
        wire.send_bytes(self.client.greeting)
        self.house.run()
        assert len(list(self.client.told(wire.received_bytes()))) == self.client.greeted
        return wire

    def say(self, request: bytes | None) -> list[Reply]:
        """Send a request and return the answers, with ``closed`` if the broker then closed."""
        if request is not None:
            self.wire.send_bytes(request)
        self.house.run()
        told = list(self.client.told(self.wire.received_bytes()))
        return told if self.wire.is_open else [*told, Reply("closed")]

    def make(self, topic: str = TOPIC) -> None:
        """Create the topic."""
        assert self.say(self.client.make(topic)) in ([], [DONE])

    def write(self, data: bytes = b"x", partition: int = 0) -> list[Reply]:
        return self.say(self.client.write(TOPIC, data, partition))

    def read(self, offset: int = 0, most: int = 1) -> list[Reply]:
        return self.say(self.client.read(TOPIC, offset, most=most))

    def read_one(self, offset: int = 0, most: int = 1) -> Reply:
        """Read, and return the single answer."""
        (told,) = self.read(offset, most)
        return told

    def append(self, data: bytes, expires_at_us: int | None = None) -> None:
        """Store a record in the topic past the wire formats."""
        self.house.append(TOPIC, data, expires_at_us=expires_at_us)
