# Tests: tests/simulator/test_network.py
"""Connections between simulated clients and the real Protocols: delayed, split, stalled, cut.

A `Link` is the client's end and carries both directions. Each direction keeps its order and arrives
in pieces, cut at any byte. A window limits the bytes in transit. So a client that does not read
fills the window, then the transport's buffer, and then pauses the Protocol.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from simulator import plan
from simulator.history.operations import NEVER, Connected
from simulator.machine.threads import Process
from simulator.machine.world import World

WINDOW_BYTES = 32_768
"""The most bytes that are in flight to a client or arrived and not read."""
BUFFER_BYTES = 65_536
"""Bytes that a transport buffers before it pauses its producer, as in Twisted."""
READ_BYTES = 65_536
"""The most bytes of one read of the reactor."""


class Service(NamedTuple):
    """The endpoint of a connection while a broker serves."""

    process: Process
    boot: int
    factory: Factory


class Progress:
    """The positions of a stream over time."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._times_us: list[int] = []
        self.position = 0

    def add(self, size: int, now_us: int) -> None:
        self.position += size
        self._positions.append(self.position)
        self._times_us.append(now_us)

    def reached_us(self, position: int) -> int:
        """Return when the stream reached ``position`` bytes; NEVER if it has not."""
        index = bisect_left(self._positions, position)
        return self._times_us[index] if index < len(self._times_us) else NEVER


class Network:
    """The network of all clients and one machine. ``service()`` returns the endpoint or None."""

    def __init__(
        self, world: World, rules: plan.Network, service: Callable[[], Service | None]
    ) -> None:
        self.world = world
        self.rules = rules
        self.service = service
        self.links: list[Link] = []
        """Open links, in the order of `connect`."""
        self.connected: list[Connected] = []
        """The connections that reached a broker, in this order."""
        self.open: list[Connected] = []
        """Those that the latest boot has accepted, without most of the lost ones."""
        self._count = 0

    def connect(self, name: str, service: Callable[[], Service | None] | None = None) -> Link:
        """Open a connection. Bytes sent before it is established leave then.

        ``service`` returns the endpoint, if the client connects to another port.
        """
        self._count += 1
        chance = self.world.chance(f"link/{self._count}")
        link = Link(self, name, self._count, chance, service or self.service)
        self.links.append(link)
        return link

    def machine_gone(self, later_us: Callable[[], int]) -> None:
        """End all links, because the process ended. Each client learns it after ``later_us()``."""
        for link in list(self.links):
            link.peer_gone(later_us())


class Link:
    """The client's end of a connection. Callbacks are attributes."""

    def __init__(
        self,
        network: Network,
        client: str,
        number: int,
        chance: random.Random,
        service: Callable[[], Service | None],
    ) -> None:
        self.client, self.number, self.name = client, number, f"{client}#{number}"
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_lost: Callable[[str], None] = lambda why: None
        self.boot = NEVER
        """Boot number of the broker that accepted this connection."""
        self.lost_us = NEVER
        """When the broker's Protocol lost the connection."""
        self.is_open = True
        """Whether the client has not closed or lost it."""
        self.connected: Connected | None = None
        self.sends_part_of_frame = False
        """Whether the client sends a part of a frame and no more."""
        self._network = network
        self._world = network.world
        self._chance = chance
        self._service = service
        self._stalled_until_us = 0
        self._arrived, self._written = Progress(), Progress()
        self._transport: SimTransport | None = None
        self._up: deque[bytes] = deque()
        """Pieces in flight to the broker."""
        self._up_us = self._down_us = 0
        """Arrival time of the last piece of each direction."""
        self._cut = False
        """Whether the connection is cut in both directions."""
        self._finished = False
        """Whether the client has closed its direction."""
        self._down: deque[bytes] = deque()
        self._reading = True
        self._unread: deque[bytes] = deque()
        self._under_way = 0
        """Bytes in flight to the client, or arrived and not read."""
        self._broker_finished = False
        self._world.call_after(self._latency_us(), self._connect)

    # -- for the client -------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Hand bytes to the network."""
        if self.is_open and not (self._finished or self._cut):
            for piece in self._pieces(data):
                self._up.append(piece)
                self._up_us = self._schedule(self._up_us, self._deliver_up)

    def close(self) -> None:
        """Close the client's end: send and receive no more bytes."""
        if self.is_open:
            self._finished = True
            self._leave()
            self._up_us = self._schedule(self._up_us, self._deliver_up)

    def pause(self) -> None:
        """Read nothing until `resume`."""
        self._reading = False

    def resume(self) -> None:
        if not self._reading:
            self._reading = True
            self._world.call_after(0, self._read)

    @property
    def now_us(self) -> int:
        return self._world.now_us

    def arrived_us(self, position: int) -> int:
        """Return when the broker got the first ``position`` sent bytes, or NEVER."""
        return self._arrived.reached_us(position)

    def written_us(self, position: int) -> int:
        """Return when the broker wrote the first ``position`` received bytes, or NEVER."""
        return self._written.reached_us(position)

    # -- faults ---------------------------------------------------------------------------------

    def stall(self, us: int) -> None:
        """Stop both directions for a time."""
        self._stalled_until_us = max(self._stalled_until_us, self._world.now_us + us)

    def drop(self, broker_later_us: int, client_later_us: int) -> None:
        """Cut the connection. Bytes in flight are lost. Each end learns it after its delay."""
        self._cut = True
        self._up.clear()
        self._down.clear()
        transport = self._transport
        if transport is not None:
            transport.process.call_after(broker_later_us, transport.lose, ConnectionLost())
        self._world.call_after(client_later_us, self._lost, "the connection was lost")

    def peer_gone(self, later_us: int) -> None:
        """End the link, because the process ended. Bytes in flight to the client still arrive."""
        self._transport = None
        self._up.clear()
        due_us = max(self._world.now_us + later_us, min(self._down_us, self._world.now_us + 10**7))
        self._world.call_at(due_us, self._lost, "the broker is gone")

    # -- the way up -----------------------------------------------------------------------------

    def _latency_us(self) -> int:
        rules = self._network.rules
        return self._chance.randint(rules.latency_us_min, rules.latency_us_max)

    def _pieces(self, data: bytes) -> list[bytes]:
        pieces = [data]
        rules = self._network.rules
        while len(pieces[-1]) > 1 and self._chance.randrange(1000) < rules.split_permille:
            last = pieces.pop()
            cut = self._chance.randrange(1, len(last))
            pieces += [last[:cut], last[cut:]]
        return pieces

    def _schedule(self, last_us: int, deliver: Callable[[], None]) -> int:
        """Schedule the next piece of a direction after the earlier ones; return its time."""
        due_us = max(last_us, self._world.now_us + self._latency_us())
        self._world.call_at(due_us, deliver)
        return due_us

    def _is_stalled(self, again: Callable[[], None]) -> bool:
        if self._world.now_us >= self._stalled_until_us:
            return False
        self._world.call_at(self._stalled_until_us, again)
        return True

    def _connect(self) -> None:
        if not self.is_open and not self._finished:
            return
        service = self._service()
        protocol: Any = None if service is None else service.factory.buildProtocol(None)
        if service is not None:
            self._note_connected(service.boot, is_refused=protocol is None)
        if service is None or protocol is None:
            self._up.clear()
            self._world.call_after(self._latency_us(), self._lost, "refused")
            return
        self.boot = service.boot
        self._transport = SimTransport(self, service.process, protocol)
        protocol.makeConnection(self._transport)
        for _ in range(len(self._up) + self._finished):
            self._deliver_up()

    def _note_connected(self, boot: int, is_refused: bool) -> None:
        now_us, network = self._world.now_us, self._network
        network.open = [
            each for each in network.open if each.boot == boot and each.lost_us == NEVER
        ]
        self.connected = Connected(
            number=self.number,
            client=self.client,
            boot=boot,
            opened_us=now_us,
            others=len(network.open),
            is_refused=is_refused,
            last_us=now_us,
            is_unfinished=self.sends_part_of_frame,
        )
        network.connected.append(self.connected)
        if not is_refused:
            network.open.append(self.connected)

    def _deliver_up(self) -> None:
        transport = self._transport
        if transport is None or self._cut or self._is_stalled(self._deliver_up):
            return
        if self._up:
            transport.arrived(self._up.popleft())
        elif self._finished:
            transport.peer_finished()

    def taken(self, size: int) -> None:
        """Note that the Protocol gets ``size`` more bytes now."""
        self._arrived.add(size, self._world.now_us)
        if self.connected is not None:
            now_us = self._world.now_us
            if self.connected.first_us == NEVER:
                self.connected.first_us = now_us
            self.connected.arrived_us = self.connected.last_us = now_us

    # -- the way down ---------------------------------------------------------------------------

    def written(self, size: int) -> None:
        """Note that the Protocol wrote ``size`` bytes."""
        self._written.add(size, self._world.now_us)
        if self.connected is not None:
            self.connected.last_us = self._world.now_us

    def held(self, is_held: bool) -> None:
        """Note that the Protocol stops reading, or reads on."""
        if self.connected is not None:
            now_us = self.connected.last_us = self._world.now_us
            self.connected.held_us = now_us if is_held else NEVER

    def closing(self) -> None:
        """Note that the broker closes the connection, unless the client has done so before."""
        connected = self.connected
        if connected is None or self._finished or self._cut or connected.closing_us != NEVER:
            return
        connected.closing_us = self._world.now_us

    def room(self) -> int:
        """Return how many more bytes the window allows in flight to the client."""
        return WINDOW_BYTES - self._under_way

    def carry(self, data: bytes) -> None:
        """Send bytes to the client."""
        if not self.is_open or self._cut:
            return  # the client has closed its end
        self._under_way += len(data)
        for piece in self._pieces(data):
            self._down.append(piece)
            self._down_us = self._schedule(self._down_us, self._deliver_down)

    def finish(self) -> None:
        """Close the broker's direction after all written bytes."""
        self._broker_finished = True
        self._down_us = self._schedule(self._down_us, self._deliver_down)

    def _deliver_down(self) -> None:
        if self._cut or self._is_stalled(self._deliver_down):
            return
        if self._down:
            self._unread.append(self._down.popleft())
        self._read()

    def _read(self) -> None:
        while self._unread and self._reading and self.is_open:
            data = self._unread.popleft()
            self._under_way -= len(data)
            self.on_data(data)
        if self._transport is not None:
            self._transport.drain()
        if self._broker_finished and not self._down and not self._unread:
            self._lost("the broker closed the connection")

    # -- the end --------------------------------------------------------------------------------

    def _leave(self) -> None:
        self.is_open = False
        self._down.clear()
        self._unread.clear()
        self._under_way = 0
        if self in self._network.links:
            self._network.links.remove(self)

    def _lost(self, why: str) -> None:
        if self.is_open:
            while self._unread and self._reading:
                self.on_data(self._unread.popleft())
        if self.is_open:
            self._leave()
            self.on_lost(why)


class SimTransport:
    """The broker's end: a stream transport like that of the reactor."""

    def __init__(self, link: Link, process: Process, protocol: Any) -> None:
        self.process = process
        self.connected = True
        self.disconnecting = False
        self._link = link
        self._protocol = protocol
        self._paused = False
        self._arrived = bytearray()
        self._finished = False
        self._told_finished = False
        self._buffer = bytearray()
        self._producer: Any = None
        self._producer_paused = False

    # -- from the network -----------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        """Take bytes of the client. The Protocol gets them when it reads."""
        self._arrived += data
        self._read()

    def peer_finished(self) -> None:
        """Note that the client closed its direction."""
        self._finished = True
        self._read()

    def _read(self) -> None:
        if not self.process.alive:
            return
        while self._arrived and self.connected and not (self._paused or self.disconnecting):
            part = bytes(self._arrived[:READ_BYTES])
            del self._arrived[:READ_BYTES]
            self._link.taken(len(part))
            self._protocol.dataReceived(part)
        if not self._finished or self._told_finished or self._arrived or not self.connected:
            return
        if self._paused and not self.disconnecting:
            return
        self._told_finished = True
        if self.disconnecting or not IHalfCloseableProtocol.providedBy(self._protocol):
            self.lose(ConnectionDone())
        else:
            self._protocol.readConnectionLost()

    def drain(self) -> None:
        """Send buffered bytes, as many as the window allows, but no very small pieces."""
        room = self._link.room()
        if self._buffer and room >= min(len(self._buffer), WINDOW_BYTES // 2) and self.connected:
            part = bytes(self._buffer[:room])
            del self._buffer[:room]
            self._link.carry(part)
        if self._buffer or not self.connected:
            return
        if self._producer_paused:
            self._producer_paused = False
            self.process.call_after(0, self._resume_producer)
        if self.disconnecting:
            self.process.call_after(0, self.lose, ConnectionDone())

    def _resume_producer(self) -> None:
        if self._producer is not None and not self._producer_paused:
            self._producer.resumeProducing()

    def lose(self, why: Exception) -> None:
        """Lose the connection now."""
        if self.connected:
            self.connected = False
            self._link.lost_us = self._link.now_us
            if self._link.connected is not None:
                self._link.connected.lost_us = self._link.now_us
            self._link.finish()
            self._protocol.connectionLost(Failure(why))

    # -- for the Protocol -----------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self.connected or not self.process.alive:
            return
        self._link.written(len(data))
        self._buffer += data
        self.drain()
        if len(self._buffer) > BUFFER_BYTES and self._producer is not None:
            self._producer_paused = True
            self._producer.pauseProducing()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self._producer = producer

    def unregisterProducer(self) -> None:
        self._producer = None
        self._producer_paused = False

    def pauseProducing(self) -> None:
        self._paused = True
        self._link.held(is_held=True)

    def resumeProducing(self) -> None:
        self._paused = False
        self._link.held(is_held=False)
        self.process.call_after(0, self._read)

    def loseConnection(self) -> None:
        if self.connected and not self.disconnecting:
            self._link.closing()
            self.disconnecting = True
            self.drain()

    def abortConnection(self) -> None:
        if self.connected:
            self._link.closing()
            self._buffer.clear()
            self._paused = True
            self.process.call_after(0, self.lose, ConnectionAborted())

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Do nothing. TCP transports have this method."""

    def getPeer(self) -> str:
        return self._link.name
