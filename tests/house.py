"""A whole broker in one process for tests: memory disk, hand-driven clocks, threads and turns.

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

from twisted.internet.task import Clock
from twisted.internet.testing import StringTransportWithDisconnection

from brokerd.broker import Broker, BrokerSettings
from brokerd.codecs.mamamia import FrameReader, decode_response, encode_request
from brokerd.protocols.connection import ConnectionFactory, Limits
from brokerd.protocols.mamamia import MamamiaFactory
from brokerd.wal import InlineCommitter, MemoryDisk, Snapshots, Wal, WalOptions

WAL_PATH = "/data/wal"
STATE_PATH = "/data/state"
START_WALL_SECONDS = 1_700_000_000.0


class House:
    """One run of a broker on a `MemoryDisk`."""

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        settings: BrokerSettings | None = None,
        options: WalOptions | None = None,
        limits: Limits | None = None,
        wall_seconds: float = START_WALL_SECONDS,
    ) -> None:
        self.disk = disk or MemoryDisk()
        self.settings = settings or BrokerSettings()
        self.options = options or WalOptions(segment_bytes=1 << 20, free_bytes_min=0)
        self.limits = limits or Limits()
        self.clock = Clock()
        self.clock.advance(1000)
        self.wall_seconds = wall_seconds
        self.fatal: list[Exception] = []
        self.writer, self.background = InlineCommitter(), InlineCommitter()
        self.readers, self.snapshot_writer = InlineCommitter(), InlineCommitter()
        self.wal = Wal(
            self.disk,
            WAL_PATH,
            self.options,
            self.writer,
            self.background,
            self._random_bytes,
            self.clock.seconds,
        )
        self.wal.on_fatal = self.fatal.append
        self.snapshots = Snapshots(self.disk, STATE_PATH, self._random_bytes)
        self.broker = Broker(
            self.wal,
            self.snapshots,
            self.readers,
            self.snapshot_writer,
            self.clock,
            lambda: self.wall_seconds,
            self.settings,
        )
        self.report = self.broker.replay()
        self.broker.start()
        self.factory: ConnectionFactory = MamamiaFactory(self.broker, self.clock, self.limits)

    def _random_bytes(self, count: int) -> bytes:
        # Different for every segment of every run on this disk, the same in every test run.
        self.disk.ids_given = getattr(self.disk, "ids_given", 0) + 1
        return self.disk.ids_given.to_bytes(count, "big")

    # -- time and turns -----------------------------------------------------------------------

    def turn(self) -> None:
        """End the reactor's turn."""
        self.clock.advance(0)

    def run(self) -> None:
        """Go on until nothing is left to do now: turns, commits, allocations, reads."""
        while True:
            self.turn()
            committers = (self.writer, self.background, self.readers, self.snapshot_writer)
            if not any([committer.step() for committer in committers]):
                return

    def pass_time(self, seconds: float, step: float = 0.05) -> None:
        """Let both clocks advance, running whatever becomes due."""
        while seconds > 0:
            part = min(step, seconds)
            self.wall_seconds += part
            self.clock.advance(part)
            self.run()
            seconds -= part

    # -- life ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop cleanly."""
        self.broker.stop()
        closed: list[object] = []
        self.wal.close(closed.append)
        self.run()
        assert closed == [None]
        self.broker.write_last_snapshot()

    def again(self, **changes: Any) -> House:
        """A new broker on the same disk, after a clean stop or a crash."""
        arguments = {
            "disk": self.disk,
            "settings": self.settings,
            "options": self.options,
            "limits": self.limits,
            "wall_seconds": self.wall_seconds,
        }
        return House(**{**arguments, **changes})

    def crash(self, **changes: Any) -> House:
        """Lose power now: what was not synced is gone; start again."""
        self.disk.crash()
        return self.again(**changes)

    def connect(self) -> Client:
        """A new client connection."""
        return Client(self.factory)


class Transport(StringTransportWithDisconnection):
    """A transport in memory that says whether it is being read and can be closed."""

    disconnecting = False

    def setTcpNoDelay(self, enabled: bool) -> None:
        """As TCP transports have it."""

    def abortConnection(self) -> None:
        self.loseConnection()

    @property
    def paused(self) -> bool:
        """Whether the protocol stopped reading."""
        return self.producerState == "paused"


class Client:
    """The other end of one connection."""

    def __init__(self, factory: ConnectionFactory) -> None:
        self.protocol = factory.buildProtocol(None)
        self.transport = Transport()
        self.transport.protocol = self.protocol
        self.protocol.makeConnection(self.transport)
        self._reader = FrameReader()
        self._frames: list[tuple[int, bytes]] = []

    def send(self, *requests: Any) -> None:
        """Send requests in one piece."""
        self.send_bytes(b"".join(map(encode_request, requests)))

    def send_bytes(self, data: bytes) -> None:
        self.protocol.dataReceived(data)

    def received_bytes(self) -> bytes:
        """Everything received since the last call."""
        data = self.transport.value()
        self.transport.clear()
        return data

    def answers(self) -> list[Any]:
        """Everything received since the last call, decoded."""
        return [decode_response(*frame) for frame in self._reader.feed(self.received_bytes())]

    @property
    def is_open(self) -> bool:
        return self.transport.connected


def ask(house: House, *requests: Any, connect: Callable[[], Client] | None = None) -> list[Any]:
    """Send requests over a connection of their own and return the answers."""
    client = (connect or house.connect)()
    client.send(*requests)
    house.run()
    return client.answers()
