# Tests: tests/protocols/test_first_byte.py
"""One endpoint for several wire formats; the first byte of a client selects the format.

A connection counts against this listener's limit until its first byte, and belongs to the format's
factory from then on. The format's own limit is not checked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from brokerd.broker import Broker, Clock
from brokerd.protocols.base.connection import Connection, Limits
from brokerd.protocols.base.factory import ConnectionFactory


class FirstByteConnection(Connection):
    """A connection before its first byte; afterwards it passes all events to ``chosen``."""

    factory: FirstByteFactory

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.chosen: Connection | None = None

    def dataReceived(self, data: bytes) -> None:
        """Select the format by the first byte and pass the bytes on."""
        if self.chosen is not None:
            self.chosen.dataReceived(data)
        elif not self.ending:
            self._choose(data)

    def _choose(self, data: bytes) -> None:
        chosen = self.chosen = self.factory.format_of(data[0]).adopt()
        self.transport.unregisterProducer()
        self.leave_meters()
        self.factory.closed(self)
        chosen.makeConnection(self.transport)
        chosen.dataReceived(data)

    def identify(self) -> None:
        """Do nothing: the connection of the selected format identifies the client."""

    def readConnectionLost(self) -> None:
        """Pass on that the peer sends no more."""
        if self.chosen is not None:
            self.chosen.readConnectionLost()
        else:
            super().readConnectionLost()

    def writeConnectionLost(self) -> None:
        """Pass on that the sending side is shut."""
        if self.chosen is not None:
            self.chosen.writeConnectionLost()
        else:
            super().writeConnectionLost()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Pass on that the connection is closed."""
        if self.chosen is not None:
            self.chosen.connectionLost(reason)
        else:
            super().connectionLost(reason)


class FirstByteFactory(ConnectionFactory):
    """Connections of an endpoint that several formats share.

    ``formats`` are their factories. ``first_bytes`` maps the name of each format to the bytes that
    its clients begin with. No two formats of one endpoint share one. Any other byte selects the
    last format, which answers it as malformed.
    """

    def __init__(
        self,
        name: str,
        broker: Broker,
        clock: Clock,
        limits: Limits,
        formats: Sequence[ConnectionFactory],
        first_bytes: Mapping[str, bytes],
    ) -> None:
        super().__init__(name, broker, clock, limits)
        self._formats = formats
        self._by_byte = {byte: factory for factory in formats for byte in first_bytes[factory.name]}

    def format_of(self, byte: int) -> ConnectionFactory:
        """Return the factory of the format that begins with this byte."""
        return self._by_byte.get(byte, self._formats[-1])

    def new_connection(self) -> Connection:
        return FirstByteConnection(self.broker)

    def startFactory(self) -> None:
        """Start the factories of the formats too."""
        super().startFactory()
        for factory in self._formats:
            factory.doStart()

    def stopFactory(self) -> None:
        """Stop the factories of the formats too."""
        for factory in self._formats:
            factory.doStop()
        super().stopFactory()
