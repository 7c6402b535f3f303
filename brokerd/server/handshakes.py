# Tests: tests/test_handshakes.py, tests/protocols/test_freed.py
"""TLS for listeners, with a log of failed and unfinished handshakes.

Each failure is one log line with the peer's address and the reason. `brokerd.server.log_limit`
limits the lines; the rest is counted, and the count is logged at the end of the window. A
connection without any data is not logged: supervisors probe a port that way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IListeningPort,
    IOpenSSLServerConnectionCreator,
    IProtocolFactory,
    IPushProducer,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import connectionDone
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.protocols.tls import (
    BufferingTLSTransport,
    TLSMemoryBIOFactory,
    TLSMemoryBIOProtocol,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from brokerd.broker.callbacks import run_callback
from brokerd.server.log_limit import WINDOW_SECONDS, LogLimit
from brokerd.server.tls import Credentials

PIECE_BYTES = 512 * 1024
"""Most bytes of a large answer that are encrypted in one step: half a millisecond."""
REFRESH_SECONDS = 5.0
"""Interval of checks for changed files."""
NO_TLS = "what came is not TLS"
REASONS = {
    "peer did not return a certificate": "no certificate was shown",
    "unsupported protocol": "the client speaks no TLS newer than 1.1",
    "no shared cipher": "client and broker have no cipher suite in common",
    "http request": NO_TLS,
    "https proxy request": NO_TLS,
    "wrong version number": NO_TLS,
    "packet length too long": NO_TLS,
    "unexpected message": NO_TLS,
}
"""OpenSSL's error text -> text for operators."""


class HandshakeLog:
    """Logs the failed handshakes of one listener, with a limit."""

    _log = Logger(namespace="brokerd")

    def __init__(self, listener: str, clock: Any) -> None:
        self._listener = listener
        self._clock = clock
        self.count = 0
        """Number of failed handshakes."""
        self._limit = LogLimit()
        self._window: IDelayedCall | None = None

    def add(self, peer: str, reason: str) -> None:
        """Log and count a failed handshake."""
        self.count += 1
        if self._window is None:
            self._window = self._clock.callLater(WINDOW_SECONDS, self.end)
        if not self._limit.allow(peer):
            return
        self._log.warn(
            "{listener}: no TLS with {peer}: {reason}",
            event_id="tls-refused",
            listener=self._listener,
            peer=peer,
            reason=reason,
        )

    def end(self) -> None:
        """Start a new window and log the count of the last one."""
        if self._window is not None and self._window.active():
            self._window.cancel()
        left_out = self._limit.reset()
        if left_out:
            self._log.warn(
                "{listener}: no TLS with {count} more connections",
                event_id="tls-refused-more",
                listener=self._listener,
                count=left_out,
            )
        self._window = None


@implementer(IPushProducer)
class _PieceProducer:
    """Stands between a TLS connection with waiting pieces and its producer.

    The producer stays paused until the last piece is encrypted and sent.
    """

    def __init__(self, connection: TlsConnection, producer: Any) -> None:
        self._connection = connection
        self._producer = producer
        self.is_paused = False
        """Whether the socket below takes no more data."""
        self._told = False

    def pauseProducing(self) -> None:
        self.is_paused = True
        if not self._told:
            self._told = True
            self._producer.pauseProducing()

    def resumeProducing(self) -> None:
        self.is_paused = False
        self._connection.encrypt_waiting()
        if self.is_paused:
            return
        if self._producer is None:
            self._connection.unregisterProducer()
        elif self._told:
            self._told = False
            self._producer.resumeProducing()

    def stopProducing(self) -> None:
        if self._producer is not None:
            self._producer.stopProducing()

    def forget_producer(self) -> None:
        """Go on without the producer, and unregister after the last piece."""
        self._producer = None
        self._told = True


class TlsConnection(BufferingTLSTransport):
    """The transport of a TLS connection.

    It reads two private attributes of Twisted, which has no public ones: whether the handshake is
    done, and why the connection ends. It also breaks two reference cycles of Twisted, so that a
    connection and its unsent data are freed when it ends.

    A large answer of a producer, such as a connection, is encrypted piece by piece, as the socket
    takes it. Then no answer holds the reactor, and ciphertext takes little memory. A producer may
    unregister and close the connection before the last piece: Twisted waits for the
    `_PieceProducer`.
    """

    factory: TlsFactory
    problem = ""
    """Fault of the client's certificate, or of the handshake."""
    _began = False
    _deadline: IDelayedCall | None = None
    _pieces: _PieceProducer | None = None
    waiting_bytes = 0
    """Bytes that `write_in_pieces` has not encrypted yet."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting: deque[bytes] = deque()
        self._sent_of_first = 0

    # -- large answers ------------------------------------------------------------------------

    def write_in_pieces(self, parts: Iterable[bytes]) -> None:
        """Send parts after all earlier writes, and later writes after them."""
        self._aggregator.flush()
        self._begin_pieces(parts)

    def _begin_pieces(self, parts: Iterable[bytes]) -> None:
        # Twisted sets this attribute too: a method would cost each small write a call.
        self.write = self._wait  # type: ignore[method-assign]
        for part in parts:
            self._wait(part)
        if self._pieces is None or not self._pieces.is_paused:
            self.encrypt_waiting()

    def _write(self, data: bytes) -> None:
        """Encrypt data, which Twisted has joined from small writes, or which is one large write.

        The site of the API writes an answer as a whole.
        """
        if len(data) > PIECE_BYTES and self._pieces is not None and not self.disconnecting:
            self._begin_pieces([data])
        else:
            super()._write(data)

    def _wait(self, data: bytes) -> None:
        self._waiting.append(data)
        self.waiting_bytes += len(data)

    def writeSequence(self, sequence: Iterable[bytes]) -> None:
        self.write(b"".join(sequence))

    def encrypt_waiting(self) -> None:
        """Encrypt pieces until the socket takes no more; without a producer, all of them."""
        pieces = self._pieces
        while self._waiting:
            TLSMemoryBIOProtocol.write(self, self._next_piece())
            if pieces is not None and pieces.is_paused:
                break
        if not self._waiting:
            self.write = self._aggregator.write  # type: ignore[method-assign]

    def _next_piece(self) -> bytes:
        """Take at most `PIECE_BYTES` of the waiting data."""
        piece: list[bytes] = []
        room = PIECE_BYTES
        while self._waiting and room:
            first = self._waiting[0]
            part = first[self._sent_of_first : self._sent_of_first + room]
            piece.append(part)
            room -= len(part)
            self._sent_of_first += len(part)
            if self._sent_of_first == len(first):
                self._waiting.popleft()
                self._sent_of_first = 0
        self.waiting_bytes -= PIECE_BYTES - room
        return b"".join(piece)

    def _encrypt_all(self) -> None:
        """Encrypt what waits, before the connection closes or loses its producer."""
        self._pieces, pieces = None, self._pieces
        self.encrypt_waiting()
        self._pieces = pieces

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self.waiting_bytes = self._sent_of_first = 0

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        if streaming:
            producer = self._pieces = _PieceProducer(self, producer)
        super().registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        if self._waiting and self._pieces is not None and self.connected:
            self._pieces.forget_producer()
            return
        self._encrypt_all()
        self._pieces = None
        super().unregisterProducer()

    def _shutdownTLS(self) -> None:
        self._encrypt_all()
        super()._shutdownTLS()

    def abortConnection(self) -> None:
        self._drop_waiting()
        super().abortConnection()

    # -- handshake and end --------------------------------------------------------------------

    def makeConnection(self, transport: Any) -> None:
        if self.factory.handshake_seconds:
            self._deadline = self.factory.clock.callLater(
                self.factory.handshake_seconds, self._expired
            )
        super().makeConnection(transport)

    def dataReceived(self, data: bytes) -> None:
        self._began = True
        super().dataReceived(data)

    def _expired(self) -> None:
        if not self._handshakeDone:
            self.problem = f"it was not finished in {self.factory.handshake_seconds:g} s"
            self._began = True
            self.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        if self._began and not self._handshakeDone:
            peer = getattr(self.getPeer(), "host", None) or "unix"
            self.factory.handshake_log.add(
                peer, self.problem or reason_text(self._reason or reason)
            )
        self._drop_waiting()
        super().connectionLost(reason)
        self._producer = self._pieces = None  # they refer to the protocol of this transport

    def _tlsShutdownFinished(self, reason: Any) -> None:
        if reason is not None:  # its traceback refers to a frame with this object
            reason.value.with_traceback(None)
            reason.tb = None
        super()._tlsShutdownFinished(reason)


def reason_text(reason: Failure) -> str:
    """Return the reason for a failed handshake as text for an operator."""
    error: Any = reason.value
    if not isinstance(error, SSL.Error) or not error.args or not error.args[0]:
        return "the client ended the connection"
    words = str(error.args[0][-1][2])
    _, alert, told = words.rpartition("alert ")
    return REASONS.get(words) or (f"the client gave up: {told}" if alert else words)


@implementer(IOpenSSLServerConnectionCreator)
class _Creator:
    """Starts each connection with the current files."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def serverConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        return SSL.Connection(self._credentials.context, None)


class TlsFactory(TLSMemoryBIOFactory):
    """Makes the connections of ``factory`` use TLS.

    :param handshake_seconds: longest handshake; 0 means no limit.
    """

    protocol = TlsConnection

    def __init__(
        self,
        name: str,
        factory: IProtocolFactory,
        credentials: Credentials,
        handshake_seconds: float,
        clock: Any,
    ) -> None:
        super().__init__(_Creator(credentials), False, factory, clock)
        self.clock = clock
        self.handshake_seconds = handshake_seconds
        self.handshake_log = HandshakeLog(name, clock)
        self._refresh = LoopingCall(run_callback, credentials.refresh)
        self._refresh.clock = clock

    def buildProtocol(self, addr: IAddress | None) -> Any:
        """Make a connection; None if the factory refuses it."""
        inner = self.wrappedFactory.buildProtocol(addr)
        return None if inner is None else self.protocol(self, inner)

    def startFactory(self) -> None:
        """Called when the first port listens."""
        self._refresh.start(REFRESH_SECONDS)

    def stopFactory(self) -> None:
        """The last port stopped listening."""
        self._refresh.stop()
        self.handshake_log.end()


@implementer(IStreamServerEndpoint)
class TlsEndpoint:
    """Wraps an endpoint in TLS."""

    def __init__(
        self,
        name: str,
        endpoint: IStreamServerEndpoint,
        credentials: Credentials,
        handshake_seconds: float,
        clock: Any,
    ) -> None:
        self.credentials = credentials
        self._name = name
        self.plain = endpoint
        self._factory: TlsFactory | None = None
        self._handshake_seconds = handshake_seconds
        self._clock = clock

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """Listen for TLS connections."""
        self._factory = TlsFactory(
            self._name, protocolFactory, self.credentials, self._handshake_seconds, self._clock
        )
        listening: Deferred[IListeningPort] = self.plain.listen(self._factory)
        return listening

    def limit_handshakes(self, seconds: float) -> None:
        """Let handshakes that begin from now on take so long; 0 means no limit."""
        self._handshake_seconds = seconds
        if self._factory is not None:
            self._factory.handshake_seconds = seconds

    @property
    def refused(self) -> int:
        """Number of failed handshakes."""
        return 0 if self._factory is None else self._factory.handshake_log.count
