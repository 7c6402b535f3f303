# Tests: tests/test_handshakes.py, tests/protocols/test_freed.py
"""TLS for listeners, with a log of failed and unfinished handshakes.

Each failure is one log line with the peer's address and the reason. `brokerd.server.log_limit`
limits the lines; the rest is counted, and the count is logged at the end of the window. A
connection without any data is not logged: supervisors probe a port that way.
"""

from __future__ import annotations

from typing import Any

from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IListeningPort,
    IOpenSSLServerConnectionCreator,
    IProtocolFactory,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import connectionDone
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.protocols.tls import BufferingTLSTransport, TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from brokerd.server.log_limit import WINDOW_SECONDS, LogLimit
from brokerd.server.tls import Credentials

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


class TlsConnection(BufferingTLSTransport):
    """The transport of a TLS connection.

    It reads two private attributes of Twisted, which has no public ones: whether the handshake is
    done, and why the connection ends. It also breaks two reference cycles of Twisted, so that a
    connection and its unsent data are freed when it ends.
    """

    factory: TlsFactory
    problem = ""
    """Fault of the client's certificate, or of the handshake."""
    _began = False
    _deadline: IDelayedCall | None = None

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
        super().connectionLost(reason)
        self._producer = None  # the protocol of this transport

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
        self._refresh = LoopingCall(credentials.refresh)
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

    @property
    def refused(self) -> int:
        """Number of failed handshakes."""
        return 0 if self._factory is None else self._factory.handshake_log.count
