"""One client of one format, spoken by hand, with a whole broker on a simulated disk."""

from __future__ import annotations

from brokerd.protocols.base.connection import Limits
from tests.cross.tongues import DONE, Told, Tongue
from tests.house import House, Wire

MIB = 1 << 20
TOPIC = "T"


class Talk:
    """One client of one format with a broker of its own, on a simulated disk."""

    def __init__(self, tongue: Tongue, house: House | None = None) -> None:
        self.tongue = tongue
        self.begin(house or House(limits=Limits(frame_bytes=32 * MIB)))

    def begin(self, house: House) -> None:
        """Talk to another broker."""
        self.house = house
        self.wire = self.connect()

    def connect(self) -> Wire:
        """Another connection, greeted."""
        wire = self.house.connect_to(self.tongue.factory(self.house))
        wire.send_bytes(self.tongue.greeting)
        self.house.run()
        assert len(list(self.tongue.told(wire.received_bytes()))) == self.tongue.greeted
        return wire

    def say(self, request: bytes | None) -> list[Told]:
        """Send a request; what is told, and ``closed`` if the broker then closed."""
        if request is not None:
            self.wire.send_bytes(request)
        self.house.run()
        told = list(self.tongue.told(self.wire.received_bytes()))
        return told if self.wire.is_open else [*told, Told("closed")]

    def make(self, topic: str = TOPIC) -> None:
        """Have the topic."""
        assert self.say(self.tongue.make(topic)) in ([], [DONE])

    def write(self, data: bytes = b"x", partition: int = 0) -> list[Told]:
        return self.say(self.tongue.write(TOPIC, data, partition))

    def read(self, offset: int = 0, most: int = 1) -> list[Told]:
        return self.say(self.tongue.read(TOPIC, offset, most=most))

    def read_one(self, offset: int = 0, most: int = 1) -> Told:
        """Read, and be told one thing."""
        (told,) = self.read(offset, most)
        return told

    def append(self, data: bytes, expires_at_us: int | None = None) -> None:
        """Have a record in the topic that no format wrote."""
        self.house.append(TOPIC, data, expires_at_us=expires_at_us)
