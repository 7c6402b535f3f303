"""Simulated connections: order kept, pieces anywhere, limits, stalls and ends, as TCP has them."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import Factory, Protocol
from zope.interface import implementer

from simulator import plan
from simulator.history.operations import NEVER
from simulator.machine.network import BUFFER_BYTES, WINDOW_BYTES, Link, Network, Service
from simulator.machine.threads import Process
from simulator.machine.world import World


@implementer(IHalfCloseableProtocol, IPushProducer)
class Peer(Protocol):
    """The broker's side, which notes what it is told."""

    transport: Any

    def __init__(self) -> None:
        self.reads: list[bytes] = []
        self.notes: list[str] = []

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)

    def dataReceived(self, data: bytes) -> None:
        self.reads.append(data)

    def readConnectionLost(self) -> None:
        self.notes.append("read end")

    def writeConnectionLost(self) -> None:
        self.notes.append("write end")

    def connectionLost(self, reason: Any = None) -> None:
        self.notes.append(type(reason.value).__name__)

    def pauseProducing(self) -> None:
        self.notes.append("pause")

    def resumeProducing(self) -> None:
        self.notes.append("resume")

    def stopProducing(self) -> None: ...


class Wire:
    """One network with one client."""

    def __init__(self, split_permille: int = 0, serves: bool = True, seed: int = 1) -> None:
        self.world = World(seed)
        self.process = Process(self.world)
        self.peers: list[Peer] = []
        self.service: Service | None = None
        factory = Factory()
        factory.buildProtocol = self._build  # type: ignore[method-assign]
        if serves:
            self.service = Service(self.process, 3, factory)
        rules = plan.Network(latency_us_min=10, latency_us_max=99, split_permille=split_permille)
        self.network = Network(self.world, rules, lambda: self.service)
        self.received: list[bytes] = []
        self.lost: list[str] = []
        self.link = self.connect()

    def _build(self, address: Any) -> Any:
        self.peers.append(Peer())
        return self.peers[-1]

    def connect(self) -> Link:
        link = self.network.connect("client")
        link.on_data = self.received.append
        link.on_lost = self.lost.append
        return link

    def run(self, us: int = 1_000_000) -> None:
        end_us = self.world.now_us + us
        self.world.call_at(end_us, lambda: None)
        while self.world.now_us < end_us and self.world.step():
            pass

    @property
    def peer(self) -> Peer:
        return self.peers[0]


def test_bytes_arrive_in_order_both_ways() -> None:
    """However many pieces they were handed over in, also before the connection stood."""
    wire = Wire()
    wire.link.send(b"one ")
    wire.link.send(b"two")
    wire.run()
    assert b"".join(wire.peer.reads) == b"one two"
    wire.peer.transport.write(b"three ")
    wire.peer.transport.write(b"four")
    wire.run()
    assert b"".join(wire.received) == b"three four"
    assert wire.link.boot == 3


def test_a_network_that_splits_cuts_anywhere() -> None:
    """Nothing is lost by it, and every seed cuts elsewhere."""
    cuts = set()
    for seed in range(20):
        wire = Wire(split_permille=700, seed=seed)
        wire.link.send(bytes(range(100)))
        wire.run()
        assert b"".join(wire.peer.reads) == bytes(range(100))
        cuts.update(len(read) for read in wire.peer.reads)
    assert len(cuts) > 20


def test_nobody_answers_where_no_broker_serves() -> None:
    """The client is told, once."""
    wire = Wire(serves=False)
    wire.link.send(b"hello")
    wire.run()
    assert wire.lost == ["refused"]
    assert not wire.link.is_open
    assert wire.network.links == []


def test_times_of_bytes_can_be_looked_up() -> None:
    """When the broker had the first five bytes, and when it wrote its answer."""
    wire = Wire()
    wire.link.send(b"hello")
    assert wire.link.arrived_us(5) == NEVER
    wire.run()
    assert 0 < wire.link.arrived_us(5) < 1_000
    assert wire.link.arrived_us(6) == NEVER
    wire.run()
    wire.peer.transport.write(b"answer")
    assert wire.link.written_us(6) == wire.world.now_us
    assert wire.received == []


def test_a_client_that_does_not_read_pauses_the_producer() -> None:
    """After the window and the buffer are full; when it reads, all arrives and all goes on."""
    wire = Wire()
    wire.run()
    wire.link.pause()
    size = 0
    while "pause" not in wire.peer.notes:
        wire.peer.transport.write(bytes(10_000))
        size += 10_000
        wire.run(1_000)
    assert WINDOW_BYTES + BUFFER_BYTES <= size <= WINDOW_BYTES + BUFFER_BYTES + 20_000
    assert wire.received == []
    wire.link.resume()
    wire.run()
    assert len(b"".join(wire.received)) == size
    assert wire.peer.notes == ["pause", "resume"]


def test_a_protocol_that_does_not_read_is_given_nothing() -> None:
    """Until it resumes."""
    wire = Wire()
    wire.run()
    wire.peer.transport.pauseProducing()
    wire.link.send(b"hello")
    wire.run()
    assert wire.peer.reads == []
    wire.peer.transport.resumeProducing()
    wire.run()
    assert wire.peer.reads == [b"hello"]


def test_a_stalled_connection_delivers_later() -> None:
    """Both ways, and nothing is lost."""
    wire = Wire()
    wire.run()
    wire.link.stall(500_000)
    wire.link.send(b"up")
    wire.peer.transport.write(b"down")
    wire.run(499_000)
    assert wire.peer.reads == wire.received == []
    wire.run()
    assert (wire.peer.reads, wire.received) == ([b"up"], [b"down"])


def test_a_dropped_connection_loses_what_is_under_way() -> None:
    """And each end learns of it in its own time."""
    wire = Wire()
    wire.run()
    wire.link.send(b"up")
    wire.peer.transport.write(b"down")
    wire.link.drop(5_000, 9_000)
    wire.run(6_000)
    assert wire.peer.notes == ["ConnectionLost"]
    assert wire.lost == []
    wire.run()
    assert wire.lost == ["the connection was lost"]
    assert wire.peer.reads == wire.received == []


def test_nothing_follows_what_a_cut_connection_lost() -> None:
    """A stream with a hole in it is none."""
    wire = Wire()
    wire.run()
    wire.peer.transport.write(b"lost")
    wire.link.drop(5_000, 9_000)
    wire.peer.transport.write(b"and gone")
    wire.link.send(b"too")
    wire.run()
    assert wire.received == wire.peer.reads == []
    assert wire.lost == ["the connection was lost"]


def test_a_client_that_closes_is_half_closed_after_its_bytes() -> None:
    """The Protocol may still close in its own way."""
    wire = Wire()
    wire.link.send(b"bye")
    wire.link.close()
    wire.run()
    assert wire.peer.reads == [b"bye"]
    assert wire.peer.notes == ["read end"]
    wire.peer.transport.loseConnection()
    wire.run()
    assert wire.peer.notes == ["read end", "ConnectionDone"]
    assert wire.lost == []  # it left by itself


def test_the_broker_closes_after_what_it_wrote() -> None:
    """Also when the client is slow to read it."""
    wire = Wire()
    wire.run()
    wire.link.pause()
    wire.peer.transport.write(bytes(WINDOW_BYTES + 5))
    wire.peer.transport.loseConnection()
    wire.run()
    assert wire.peer.notes == []
    wire.link.resume()
    wire.run()
    assert len(b"".join(wire.received)) == WINDOW_BYTES + 5
    assert wire.lost == ["the broker closed the connection"]
    assert wire.peer.notes[-1] == "ConnectionDone"


def test_an_aborted_connection_is_lost_to_both() -> None:
    """What was buffered is gone."""
    wire = Wire()
    wire.run()
    wire.peer.transport.abortConnection()
    wire.run()
    assert wire.peer.notes == ["ConnectionAborted"]
    assert wire.lost == ["the broker closed the connection"]


@pytest.mark.parametrize("later_us", [0, 5_000_000])
def test_what_a_broker_sent_before_it_died_arrives(later_us: int) -> None:
    """Answers that left are out of its hands; the client learns of its end after them."""
    wire = Wire()
    wire.run()
    wire.peer.transport.write(b"answer")
    wire.process.end()
    wire.network.machine_gone(lambda: later_us)
    wire.peer.transport.write(b"never")
    wire.link.send(b"to nobody")
    wire.run(10_000_000)
    assert wire.received == [b"answer"]
    assert wire.lost == ["the broker is gone"]
    assert wire.peer.reads == []
