# Tests: brokerd/server/handshakes.py, brokerd/protocols/base/transport.py
"""A large answer over TLS is encrypted piece by piece, as the socket takes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from OpenSSL import SSL
from twisted.internet.protocol import Protocol
from twisted.internet.testing import StringTransport
from twisted.web.resource import Resource
from twisted.web.server import Request, Site

from brokerd.protocols.base.transport import (
    AT_ONCE_BYTES,
    LARGE_BYTES,
    send,
    send_all,
    unsent_bytes,
)
from brokerd.server.handshakes import PIECE_BYTES
from tests.test_handshakes import ENDED, Authorities, Listening, client

BUFFER_BYTES = 64 * 1024
PIECE_MAX = PIECE_BYTES * 1.01
"""A piece with the heads of its TLS records."""
LARGE = bytes(range(256)) * 4096 * 5
"""5 MiB."""


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Authorities:
    return Authorities(tmp_path_factory.mktemp("pieces"))


class Socket(StringTransport):
    """A transport with a buffer that pauses its producer, as Twisted's TCP transports do."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = b""
        self.most = 0
        """Most bytes that the buffer had."""
        self.is_paused = False

    def write(self, data: bytes) -> None:
        self.buffer += data
        self.most = max(self.most, len(self.buffer))
        if self.producer is not None and len(self.buffer) > BUFFER_BYTES and not self.is_paused:
            self.is_paused = True
            self.producer.pauseProducing()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def setTcpNoDelay(self, enabled: bool) -> None:
        pass

    def take(self) -> bytes:
        """Send the buffer, and ask the producer for more."""
        data, self.buffer = self.buffer, b""
        if self.is_paused and self.producer is not None:
            self.is_paused = False
            self.producer.resumeProducing()
        return data


class Server(Protocol):
    """A protocol that notes when it is paused."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)

    def pauseProducing(self) -> None:
        self.events.append("pause")

    def resumeProducing(self) -> None:
        self.events.append("resume")

    def stopProducing(self) -> None:
        self.events.append("stop")


class Pair:
    """A server's TLS connection after its handshake, and the client."""

    def __init__(self, authorities: Authorities, server: Any = None) -> None:
        listening = Listening(authorities, "none")
        self.clock = listening.clock
        self.server = server or Server()
        listening.inner.buildProtocol = lambda address: self.server
        self.socket = Socket()
        self.tls: Any = listening.factory.buildProtocol(None)
        self.tls.makeConnection(self.socket)
        self.client: SSL.Connection = client(authorities, None)
        for _ in range(4):
            with suppress(SSL.WantReadError):
                self.client.do_handshake()
            with suppress(SSL.WantReadError):
                self.tls.dataReceived(self.client.bio_read(1 << 16))
            if answer := self.socket.take():
                self.client.bio_write(answer)
        self.socket.most = 0

    def read(self) -> bytes:
        """Return what the client reads after the socket sent its buffer once."""
        self.clock.advance(0)
        sent = self.socket.take()
        read = b""
        for first in range(0, len(sent), 1 << 14):
            self.client.bio_write(sent[first : first + (1 << 14)])
            with suppress(SSL.WantReadError, SSL.ZeroReturnError):
                while True:
                    read += self.client.recv(1 << 16)
        return read

    def read_all(self) -> Iterator[bytes]:
        while data := self.read():
            yield data


@pytest.fixture
def pair(authorities: Authorities) -> Pair:
    return Pair(authorities)


@pytest.mark.parametrize("count", [1, 5, 5000])
def test_a_large_answer_leaves_in_pieces(pair: Pair, count: int) -> None:
    """20 MB in one step held the reactor for 40 ms. The producer waits for the last piece."""
    size = len(LARGE) // count + 1
    parts = [LARGE[first : first + size] for first in range(0, len(LARGE), size)]
    send_all(pair.tls, [b"head"])
    send_all(pair.tls, parts)
    assert unsent_bytes(pair.tls) >= len(LARGE) - PIECE_MAX
    send_all(pair.tls, [b"tail"])
    assert pair.server.events == ["pause"]
    pieces = list(pair.read_all())
    assert b"".join(pieces) == b"head" + LARGE + b"tail"
    assert len(pieces) >= 10
    assert pair.socket.most <= PIECE_MAX
    assert pair.server.events == ["pause", "resume"]
    assert unsent_bytes(pair.tls) == 0
    send(pair.tls, b"next")
    assert pair.read() == b"next"


def test_small_parts_are_joined_before_they_wait() -> None:
    """One by one, 10,000 answers of 130 bytes held the reactor for some milliseconds."""

    class Connection:
        waiting: tuple[bytes, ...] = ()

        def write_in_pieces(self, parts: Iterable[bytes]) -> None:
            self.waiting = (*parts,)

    connection = Connection()
    small, large = [b"%0130d" % number for number in range(10_000)], LARGE[:LARGE_BYTES]
    send_all(connection, [*small, large, *small])
    assert connection.waiting == (b"".join(small), large, b"".join(small))
    assert connection.waiting[1] is large


def test_answers_behind_it_keep_their_order(pair: Pair) -> None:
    """Small ones, large ones, and sequences."""
    expected = b""
    for number in range(4):
        small = b"<%d>" % number
        send(pair.tls, LARGE[: AT_ONCE_BYTES + 1 + number])
        send(pair.tls, small)
        pair.tls.writeSequence([small, small])
        expected += LARGE[: AT_ONCE_BYTES + 1 + number] + small * 3
    assert b"".join(pair.read_all()) == expected


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_close_sends_the_rest_first(pair: Pair, in_the_middle: bool) -> None:
    """A connection takes its producer away and closes."""
    send(pair.tls, LARGE)
    read = pair.read() if in_the_middle else b""
    pair.tls.unregisterProducer()
    pair.tls.loseConnection()
    assert read + b"".join(pair.read_all()) == LARGE
    assert pair.client.get_shutdown() & SSL.RECEIVED_SHUTDOWN
    assert pair.socket.most <= PIECE_MAX, "20 MB in one step held the reactor for 21 ms"
    assert pair.socket.producer is None


def test_a_producer_that_goes_hears_no_more(pair: Pair) -> None:
    """Later writes still follow the rest."""
    send(pair.tls, LARGE)
    pair.tls.unregisterProducer()
    send(pair.tls, b"tail")
    assert b"".join(pair.read_all()) == LARGE + b"tail"
    assert pair.server.events == ["pause"]
    assert pair.socket.producer is None


def test_an_answer_of_the_api_leaves_in_pieces(authorities: Authorities) -> None:
    """Twisted's HTTP server writes it as a whole, and closes when the client asked for that."""

    class Answer(Resource):
        isLeaf = True

        def render_GET(self, request: Request) -> bytes:
            return LARGE

    channel = Site(Answer(), timeout=None).buildProtocol(None)
    pair = Pair(authorities, channel)
    pair.client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    pair.tls.dataReceived(pair.client.bio_read(1 << 16))
    answer = b"".join(pair.read_all())
    assert answer.endswith(b"\r\n\r\n" + LARGE)
    assert pair.socket.most <= 2 * PIECE_MAX
    assert pair.client.get_shutdown() & SSL.RECEIVED_SHUTDOWN
    channel.connectionLost(ENDED)


def test_a_client_that_ends_its_side_has_the_rest(pair: Pair) -> None:
    """Its close_notify comes while pieces wait."""
    send(pair.tls, LARGE)
    pair.client.shutdown()
    pair.tls.dataReceived(pair.client.bio_read(1 << 16))
    assert b"".join(pair.read_all()) == LARGE


def test_an_abort_drops_the_rest(pair: Pair) -> None:
    """And a lost connection, which keeps no bytes."""
    send(pair.tls, LARGE)
    pair.tls.abortConnection()
    assert pair.tls.waiting_bytes == 0
    pair.socket.take()
    assert pair.socket.buffer == b""
