# Tests: tests/test_handshakes.py, tests/protocols/test_freed.py
"""TLS around whatever listens: connections whose handshake fails, or does not end, are told of.

One line of the log for each, with the peer's address and the reason, but no more than
`brokerd.server.log_limit` has; the others are counted, and the count is told when that time is
over. Who connects and says nothing is no matter, because that is how supervisors look whether
somebody listens.
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
"""How often it is looked whether files have changed."""
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
"""What went wrong, by OpenSSL's words."""


class HandshakeLog:
    """Tells of the failed handshakes of one listener, and not without end."""

    _log = Logger(namespace="brokerd")

    def __init__(self, listener: str, clock: Any) -> None:
        self._listener = listener
        self._clock = clock
        self.count = 0
        """How many failed."""
        self._limit = LogLimit()
        self._window: IDelayedCall | None = None

    def tell(self, peer: str, reason: str) -> None:
        """A handshake with this peer has failed."""
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
        """Begin anew, and tell how many were left out."""
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
    """The transport of a connection that speaks TLS.

    It reads two private attributes of Twisted's, which has no public word for either: whether the
    handshake is done, and why the connection ends. And it breaks two cycles that Twisted leaves, so
    that a connection is freed when it ends, with all that waited to be sent.
    """

    factory: TlsFactory
    problem = ""
    """What is wrong with the client's certificate, or else with this handshake."""
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
            self.factory.handshake_log.tell(
                peer, self.problem or reason_text(self._reason or reason)
            )
        super().connectionLost(reason)
        self._producer = None  # whose transport this is

    def _tlsShutdownFinished(self, reason: Any) -> None:
        if reason is not None:  # its traceback leads to a frame that holds it, and this
            reason.value.with_traceback(None)
            reason.tb = None
        super()._tlsShutdownFinished(reason)


def reason_text(reason: Failure) -> str:
    """Why a handshake failed, in words for an operator."""
    error: Any = reason.value
    if not isinstance(error, SSL.Error) or not error.args or not error.args[0]:
        return "the client ended the connection"
    words = str(error.args[0][-1][2])
    _, alert, told = words.rpartition("alert ")
    return REASONS.get(words) or (f"the client gave up: {told}" if alert else words)


@implementer(IOpenSSLServerConnectionCreator)
class _Creator:
    """Begins each connection with what the files say then."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def serverConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        return SSL.Connection(self._credentials.context, None)


class TlsFactory(TLSMemoryBIOFactory):
    """Makes the connections of ``factory`` speak TLS.

    :param handshake_seconds: how long a handshake may take; 0 is for ever.
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
        """A connection, or None when the factory takes no more."""
        inner = self.wrappedFactory.buildProtocol(addr)
        return None if inner is None else self.protocol(self, inner)

    def startFactory(self) -> None:
        """The first port listens."""
        self._refresh.start(REFRESH_SECONDS)

    def stopFactory(self) -> None:
        """The last port stopped listening."""
        self._refresh.stop()
        self.handshake_log.end()


@implementer(IStreamServerEndpoint)
class TlsEndpoint:
    """Another endpoint, spoken to in TLS."""

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
        self._endpoint = endpoint
        self._factory: TlsFactory | None = None
        self._handshake_seconds = handshake_seconds
        self._clock = clock

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """Listen for connections that speak TLS."""
        self._factory = TlsFactory(
            self._name, protocolFactory, self.credentials, self._handshake_seconds, self._clock
        )
        listening: Deferred[IListeningPort] = self._endpoint.listen(self._factory)
        return listening

    @property
    def refused(self) -> int:
        """How many handshakes have failed."""
        return 0 if self._factory is None else self._factory.handshake_log.count
