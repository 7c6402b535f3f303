"""BlipMQ on real sockets: over TLS, as the reference's programs behave, and how quickly."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest_twisted
from twisted.internet.defer import gatherResults
from twisted.internet.threads import deferToThread

from brokerd.broker import Broker
from brokerd.client.blipmq import BlipmqClient
from brokerd.codecs import blipmq as bm
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.blipmq.connection import BlipmqFactory, BlipmqSettings
from tests.certificates import tls
from tests.protocols import serving
from tests.protocols.serving import SECONDS, Served, no_faults, reactor, until

__all__ = ["no_faults"]

KEY = "bench-key"
LET_IN = bm.encode(bm.Hello(1)) + bm.encode(bm.Auth(2, KEY))


def served(
    tmp_path: Path, endpoint: str = "tcp:0"
) -> AbstractAsyncContextManager[Served[BlipmqFactory]]:
    """A broker that listens for this format alone."""
    return serving.served(tmp_path, "blipmq", endpoint, made)


def made(broker: Broker) -> BlipmqFactory:
    settings = BlipmqSettings(api_keys=(KEY,), retry_base_us=60_000_000)  # a busy machine is slow
    return BlipmqFactory(broker, reactor, Limits(), settings)


def next_offset(running: Served[BlipmqFactory]) -> int:
    topic = running.factory.broker.topics.find("bench")
    return 0 if topic is None else topic.partition(0).next_offset


class Peer:
    """A client as the reference's: it leaves Nagle's algorithm on, and writes each frame alone."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._messages = self._read()

    def send(self, message: bm.Message) -> None:
        self.socket.sendall(bm.encode(message))

    def next(self) -> bm.Message:
        return next(self._messages)

    def enter(self) -> None:
        self.socket.sendall(LET_IN)
        assert [self.next(), self.next()] == [bm.Ack(1), bm.Ack(2)]

    def _read(self) -> Iterator[bm.Message]:
        reader = bm.frame_reader()
        while data := self.socket.recv(65_536):
            yield from map(bm.decode, reader.feed(data))


@pytest_twisted.ensureDeferred
async def test_tls_carries_the_same_conversation(tmp_path: Path, no_faults: None) -> None:
    endpoint, context = tls(tmp_path)
    messages = [bytes([number]) * size for number, size in enumerate([0, 1, 70_000, 900_000])]

    def work(address: str) -> list[bytes]:
        found = []
        with BlipmqClient(
            address, api_key=KEY, timeout=SECONDS, ssl_context=context, server_hostname="broker"
        ) as client:
            one = client.subscribe("bench")
            for message in messages:
                client.publish("bench", message)
            for _ in messages:
                delivery = client.receive(one, timeout=SECONDS)
                assert delivery is not None
                found.append(delivery.message)
                client.ack(delivery)
            client.ping()
            assert client.poll(one) is None
        return found

    async with served(tmp_path, endpoint) as running:
        assert await deferToThread(work, running.address) == messages
        await until(lambda: not running.factory.connections)


@pytest_twisted.ensureDeferred
async def test_a_subscriber_that_leaves_nagle_on_does_not_wait_for_acknowledgements(
    tmp_path: Path, no_faults: None
) -> None:
    """ACK and POLL are written one after the other: 40 ms each, if the broker's kernel waited.

    Work of others on the machine adds to them, so the best of several series counts.
    """
    count, series = 30, 10

    def work(running: Served[BlipmqFactory]) -> float:
        peer = Peer(running.plain())
        with peer.socket:
            peer.enter()
            peer.send(bm.Subscribe(3, "bench", 1))
            assert peer.next() == bm.Ack(3, 1)
            for _ in range(count * series):
                peer.send(bm.Publish(4, 1, "bench", b"x" * 100))
            peer.send(bm.Ping(5))
            assert peer.next() == bm.Pong(5)
            medians: list[float] = []
            while len(medians) < series and min(medians, default=1.0) >= 0.035:
                took = []
                for _ in range(count):
                    began = time.monotonic()
                    peer.send(bm.Poll(6, 1))
                    delivery = peer.next()
                    peer.send(bm.Ack(delivery.correlation_id, 1))
                    took.append(time.monotonic() - began)
                medians.append(sorted(took)[count // 2])
        return min(medians)

    async with served(tmp_path) as running:
        median = await deferToThread(work, running)
    assert median < 0.035


@pytest_twisted.ensureDeferred
async def test_a_publisher_that_drops_its_connection_is_carried_out_to_its_end(
    tmp_path: Path, no_faults: None
) -> None:
    """As the reference's: it reads what lets it in, and nothing more."""
    count = 20_000

    def work(running: Served[BlipmqFactory]) -> None:
        peer = Peer(running.plain())
        with peer.socket:
            peer.enter()
            peer.socket.sendall(bm.encode(bm.Publish(4, 1, "bench", b"x" * 100)) * count)

    async with served(tmp_path) as running:
        await deferToThread(work, running)
        await until(lambda: next_offset(running) == count and not running.factory.connections)


@pytest_twisted.ensureDeferred
async def test_a_publisher_that_does_not_read_its_nacks_is_read_to_the_end(
    tmp_path: Path, no_faults: None
) -> None:
    """They are more than the sockets hold."""
    good = bm.encode(bm.Publish(4, 1, "bench", b"x" * 100))
    bad = bm.encode(bm.Publish(5, 1, "", b"x"))

    def work(running: Served[BlipmqFactory]) -> Peer:
        peer = Peer(running.plain())
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.socket.sendall(LET_IN)
        for _ in range(400):
            peer.socket.sendall((bad * 500 + good) * 2)
        return peer

    async with served(tmp_path) as running:
        peer = await deferToThread(work, running)
        await until(lambda: next_offset(running) == 800)
        assert running.factory.nacks_dropped
        peer.socket.close()
        await until(lambda: not running.factory.connections)


@pytest_twisted.ensureDeferred
async def test_publishers_and_subscribers_at_once_lose_nothing(
    tmp_path: Path, no_faults: None
) -> None:
    """As the reference's harness: every subscriber gets every message, and each of them once."""
    count = 300

    def publish(running: Served[BlipmqFactory]) -> None:
        peer = Peer(running.plain())
        with peer.socket:
            peer.enter()
            for number in range(count):
                peer.send(bm.Publish(10 + number, 1, "bench", b"%d" % number))

    def subscribe(running: Served[BlipmqFactory]) -> Peer:
        peer = Peer(running.plain())
        peer.enter()
        peer.send(bm.Subscribe(3, "bench", 1))
        return peer

    def consume(peer: Peer) -> list[bytes]:
        found: list[bytes] = []
        with peer.socket:
            answer = peer.next()
            assert isinstance(answer, bm.Ack)
            one = answer.subscription_id
            deadline = time.monotonic() + 60
            while len(found) < 2 * count and time.monotonic() < deadline:
                peer.send(bm.Poll(5, one))
                peer.send(bm.Ping(6))
                while not isinstance(answer := peer.next(), bm.Pong):
                    assert isinstance(answer, bm.Publish)
                    found.append(answer.message)
                    peer.send(bm.Ack(answer.correlation_id, one))
        return found

    async with served(tmp_path) as running:
        peers = [await deferToThread(subscribe, running) for _ in range(3)]
        consumers = [deferToThread(consume, peer) for peer in peers]
        publishers = [deferToThread(publish, running) for _ in range(2)]
        await gatherResults(publishers)
        expected = sorted([b"%d" % number for number in range(count)] * 2)
        for found in await gatherResults(consumers):
            assert sorted(found) == expected
