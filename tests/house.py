"""A whole broker in one process for tests: SimDisk, hand-driven clocks, threads and turns.

house = House()
client = house.connect()
client.send(Produce("orders", b"x"))
house.run()                       # the turn ends, commits happen, answers leave
assert client.answers() == [Produced(0)]
house = house.crash()             # unsynced bytes are gone; a new broker on the same disk
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from brokerd.archive.contract.view import Archive
from brokerd.broker import BrokerSettings, Congested
from brokerd.codecs.mamamia import FrameReader, decode_response, encode_request
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.mamamia.connection import MamamiaFactory
from brokerd.wal import WalOptions
from simulator.machine.bare import WALL_SECONDS, BareBroker
from simulator.machine.disk import SimDisk


class House(BareBroker):
    """One run of a broker on a `SimDisk`, and the Protocols it serves."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        settings: BrokerSettings | None = None,
        options: WalOptions | None = None,
        limits: Limits | None = None,
        wall_seconds: float = WALL_SECONDS,
        open_archive: Callable[[str], Archive] | None = None,
    ) -> None:
        self.open_archive = open_archive
        super().__init__(
            disk or SimDisk(),
            options or WalOptions(segment_bytes=1 << 20, free_bytes_min=0),
            self._random_bytes,
            settings or BrokerSettings(),
            wall_seconds,
            open_archive,
        )
        self.limits = limits or Limits()
        self.factory: ConnectionFactory = MamamiaFactory(self.broker, self.clock, self.limits)

    def _random_bytes(self, count: int) -> bytes:
        # Different for every segment of every run on this disk, the same in every test run.
        self.disk.ids_given = getattr(self.disk, "ids_given", 0) + 1
        return self.disk.ids_given.to_bytes(count, "big")

    # -- life ---------------------------------------------------------------------------------

    def again(self, **changes: Any) -> House:
        """Return a new broker on the same disk, after a clean stop or a crash."""
        arguments = {
            "disk": self.disk,
            "settings": self.settings,
            "options": self.options,
            "limits": self.limits,
            "wall_seconds": self.wall_seconds,
            "open_archive": self.open_archive,
        }
        return House(**{**arguments, **changes})

    def crash(self, **changes: Any) -> House:
        """Lose power now, without unsynced data; return a new broker on the same disk."""
        self.disk.crash()
        return self.again(**changes)

    def append(self, topic: str, value: bytes, **rest: Any) -> None:
        """Store a durable record past the wire formats, and so past their limits.

        It goes to partition 0 of a topic, which is created if needed. ``rest`` is passed to
        `Broker.records.produce`.
        """
        partition = (self.broker.topics.find(topic) or self.broker.topics.create(topic)).partition(
            0
        )
        while True:
            try:
                self.broker.appender.produce(partition, value, **rest)
            except Congested:
                self.run()
            else:
                self.run()
                return

    def connect(self) -> Client:
        """Return a new Mamamia connection."""
        return Client(self.factory, self.clock)

    def connect_to(self, factory: ConnectionFactory) -> Wire:
        """Return a new connection of any wire format."""
        return Wire(factory, self.clock)


class Transport:
    """A stream transport in memory that behaves like the reactor's.

    Bytes that the peer does not read fill a buffer and pause the producer. Closing waits until the
    buffer is empty.
    """

    BUFFER_BYTES = 65_536

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.protocol: Any = None
        self.connected = True
        self.disconnecting = False
        self.paused = False
        """Whether the protocol stopped reading."""
        self.peer_reads = True
        self.buffered = bytearray()
        """Bytes that the peer has not read."""
        self.received = bytearray()
        """Bytes that the peer has read."""
        self.writes = 0
        self.resumed: Callable[[], None] = lambda: None
        self._producer: Any = None
        self._producer_paused = False

    @property
    def dataBuffer(self) -> bytes:
        """The unread bytes, under the name that Twisted's transports have for them."""
        return bytes(self.buffered)

    def write(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        if not self.connected:
            return
        self.writes += 1
        self.buffered += data
        if self.peer_reads:
            self.received += self.buffered
            self.buffered.clear()
        elif len(self.buffered) > self.BUFFER_BYTES and self._producer is not None:
            self._producer_paused = True
            self._producer.pauseProducing()

    def read_on(self) -> None:
        """Let the peer read everything."""
        self.peer_reads = True
        self.received += self.buffered
        self.buffered.clear()
        if self._producer_paused:
            self._producer_paused = False
            self._producer.resumeProducing()
        if self.disconnecting:
            self._lose_later(ConnectionDone())

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert streaming and self._producer is None
        self._producer = producer

    def unregisterProducer(self) -> None:
        self._producer = None
        self._producer_paused = False

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False
        self._clock.callLater(0, self.resumed)

    def loseConnection(self) -> None:
        if self.connected and not self.disconnecting:
            self.disconnecting = True
            if not self.buffered:
                self._lose_later(ConnectionDone())

    def abortConnection(self) -> None:
        if self.connected:
            self.buffered.clear()
            self.paused = True
            self._lose_later(ConnectionAborted())

    def _lose_later(self, why: Exception) -> None:
        self._clock.callLater(0, self.lose, why)

    def lose(self, why: Exception) -> None:
        """Lose the connection now."""
        if self.connected:
            self.connected = False
            self.protocol.connectionLost(Failure(why))

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Do nothing. TCP transports have this method."""

    def getPeer(self) -> str:
        return "a client in memory"

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", 9092)


class Wire:
    """The other end of one connection, in bytes."""

    READ_BYTES = 65_536
    """The most bytes that the reactor reads at once."""

    def __init__(self, factory: ConnectionFactory, clock: Clock) -> None:
        self.protocol = factory.buildProtocol(None)
        self.transport = Transport(clock)
        self.transport.protocol = self.protocol
        self.transport.resumed = self._deliver
        self._unsent = bytearray()
        self._sends_no_more = False
        self.protocol.makeConnection(self.transport)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes; a broker that has stopped reading gets them when it resumes."""
        self._unsent += data
        self._deliver()

    @property
    def unread_bytes(self) -> int:
        """Return the number of sent bytes that the broker has not read."""
        return len(self._unsent)

    def send_no_more(self) -> None:
        """Close the sending side, and go on reading."""
        self._sends_no_more = True
        self._deliver()

    def _deliver(self) -> None:
        transport = self.transport
        while self._unsent and not (transport.paused or transport.disconnecting):
            if not transport.connected:
                break
            part = bytes(self._unsent[: self.READ_BYTES])
            del self._unsent[: self.READ_BYTES]
            self.protocol.dataReceived(part)
        if (
            self._sends_no_more
            and transport.connected
            and not (self._unsent or transport.paused or transport.disconnecting)
        ):
            self._sends_no_more = False
            self.protocol.readConnectionLost()

    def disconnect(self) -> None:
        """Disconnect; the broker notices at once."""
        self.transport.lose(ConnectionLost())

    def stop_reading(self) -> None:
        """Read no answers until `read_on`."""
        self.transport.peer_reads = False

    def read_on(self) -> None:
        self.transport.read_on()

    def received_bytes(self) -> bytes:
        """Return all bytes received since the last call."""
        data = bytes(self.transport.received)
        self.transport.received.clear()
        return data

    @property
    def is_open(self) -> bool:
        return self.transport.connected and not self.transport.disconnecting


class Client(Wire):
    """The other end of a Mamamia connection, in requests and answers."""

    def __init__(self, factory: ConnectionFactory, clock: Clock) -> None:
        self._reader = FrameReader()
        super().__init__(factory, clock)

    def send(self, *requests: Any) -> None:
        """Send requests in one piece."""
        self.send_bytes(b"".join(map(encode_request, requests)))

    def answers(self) -> list[Any]:
        """Return all answers received since the last call, decoded."""
        return [decode_response(*frame) for frame in self._reader.feed(self.received_bytes())]


def ask(house: House, *requests: Any, connect: Callable[[], Client] | None = None) -> list[Any]:
    """Send requests over a connection of their own and return the answers."""
    client = (connect or house.connect)()
    client.send(*requests)
    house.run()
    return client.answers()
