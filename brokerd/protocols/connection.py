# Tests: tests/protocols/test_connection.py
"""What the connections of all wire formats share: order, durability, back-pressure, limits.

A subclass turns bytes into requests and requests into answers; this class decides when it may
and when the answers leave.

* Answers leave in request order, all those of one run in one write, and none before the commit
  that everything applied so far belongs to is durable.
* `Connection.pending` holds the place of an answer that comes later (a long poll, a record that
  must be read from disk).
* Requests stop being taken, and the socket being read, while any *hold* is set: the peer does not
  read its answers, too much waits to be answered, or a request met `Congested`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from brokerd.broker import Broker, Clock, DelayedCall
from brokerd.protocols.transport import no_delay, send


class Hold:
    """Reasons for not taking further requests of a connection: bits of ``holds``.

    Plain integers, because an IntFlag costs more than the rest of looking at them.
    """

    READER: Final = 1
    """The peer does not read its answers."""
    BACKLOG: Final = 2
    """Too many requests or bytes wait to be answered."""
    CONGESTED: Final = 4
    """The next request waits for room in the log."""
    CLOSING: Final = 8


@dataclass(frozen=True)
class Limits:
    """Limits of one listener; 0 switches a time-out off."""

    connections: int = 10_000
    frame_bytes: int = 10 << 20
    """Largest request frame, where a format has one to set."""
    in_flight_requests: int = 10_000
    in_flight_bytes: int = 4 << 20
    """Answers waiting to be sent, per connection; one answer may exceed it."""
    idle_us: int = 0
    unfinished_frame_us: int = 60_000_000
    sweep_seconds: float = 5.0


class Answers:
    """Answers of one run, or the place of one that comes later (``ticket`` is None)."""

    __slots__ = ("parts", "ticket")

    def __init__(self, ticket: int | None, parts: list[bytes]) -> None:
        self.ticket = ticket
        self.parts = parts


@implementer(IHalfCloseableProtocol, IPushProducer)
class Connection(Protocol):
    """One connection of some wire format.

    A subclass implements `feed`, which takes bytes in, and `run`, which handles the requests it
    has, appending to ``answers``, until it has none or ``holds`` is set.
    """

    factory: ConnectionFactory
    transport: Any  # Twisted declares less than every stream transport has
    _log = Logger()

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.journal = broker.journal
        self.answers: list[bytes] = []
        self.holds = 0
        self.unfinished = False
        """Whether `feed` has kept part of a frame."""
        self._queue: deque[Answers] = deque()
        self._queued_requests = 0
        self._queued_bytes = 0
        self._running = False
        self._peer_done = False
        self.gone = False
        self.last_data_us = 0
        self.unfinished_since_us: int | None = None

    # -- for the subclass ---------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take in bytes; must not handle any request."""
        raise NotImplementedError

    def run(self) -> None:
        """Handle requests taken in so far, in order, while ``holds`` is 0."""
        raise NotImplementedError

    def stopped(self) -> None:
        """The connection is gone: let go of long polls and the like."""

    def stopping(self) -> None:
        """The broker is stopping: answer long polls now."""

    def pending(self) -> Answers:
        """Hold the place of one answer; give it to `resolve` later."""
        self._enqueue()
        place = Answers(None, [])
        self._queue.append(place)
        self._queued_requests += 1
        self._check_requests()
        return place

    def resolve(self, place: Answers, answer: bytes) -> None:
        """Fill a place that `pending` held; the answer depends on all that is applied now."""
        if self.gone:
            return
        place.parts.append(answer)
        place.ticket = self.journal.ticket()
        self._queued_bytes += len(answer)
        if place.ticket > self.journal.durable_ticket:
            self.journal.when_durable(place.ticket, self._flush)
        else:
            self._flush()

    def congested(self) -> None:
        """The request in hand cannot be taken now; `run` will be called when it can."""
        self.hold(Hold.CONGESTED)
        self.journal.when_uncongested(self._uncongested)

    def close_after_answers(self) -> None:
        """Take no more requests, and close once everything before is answered."""
        self.hold(Hold.CLOSING)

    def close_for_stop(self) -> None:
        """Answer what was asked, take no more requests, and close."""
        self.close_after_answers()
        self.stopping()
        self._flush()

    # -- requests -----------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Take bytes in and handle what they complete."""
        now_us = self.last_data_us = self.broker.time.now_us()
        self.feed(data)
        if not self.unfinished:
            self.unfinished_since_us = None
        elif self.unfinished_since_us is None:
            self.unfinished_since_us = now_us
        if not self.holds:
            self._run()

    def _run(self) -> None:
        self._running = True
        self.run()
        self._running = False
        self._enqueue()
        self._flush()

    def backlog(self, answer_bytes: int) -> None:
        """Count a large answer while `run` is at work, so that it stops in time."""
        self._queued_bytes += answer_bytes
        if self._queued_bytes > self.factory.limits.in_flight_bytes:
            self.hold(Hold.BACKLOG)

    def _enqueue(self) -> None:
        """Queue the answers of this run behind the commit they depend on."""
        answers = self.answers
        if not answers:
            return
        self.answers = []
        ticket = self.journal.ticket()
        self._queue.append(Answers(ticket, answers))
        self._queued_requests += len(answers)
        if ticket > self.journal.durable_ticket:
            self.journal.when_durable(ticket, self._flush)
            self._check_requests()

    def _check_requests(self) -> None:
        if self._queued_requests > self.factory.limits.in_flight_requests:
            self.hold(Hold.BACKLOG)

    def _flush(self) -> None:
        """Send what may leave: the durable answers at the head of the queue, in one write."""
        if self._running:
            return
        queue = self._queue
        durable = self.journal.durable_ticket
        parts: list[bytes] = []
        while queue:
            ticket = queue[0].ticket
            if ticket is None or ticket > durable:
                break
            parts += queue.popleft().parts
        if parts:
            self._queued_requests -= len(parts)
            data = b"".join(parts)
            self._queued_bytes = max(0, self._queued_bytes - len(data))
            send(self.transport, data)
        if not queue:
            self._queued_bytes = 0
        if self.holds or self._peer_done:
            self._flushed()

    def _flushed(self) -> None:
        if not self._queue and (self.holds & Hold.CLOSING or self._peer_done):
            self.finish()
        elif self.holds & Hold.BACKLOG:
            self._check_backlog()

    def _check_backlog(self) -> None:
        limits = self.factory.limits
        if (
            self._queued_requests <= limits.in_flight_requests // 2
            and self._queued_bytes <= limits.in_flight_bytes // 2
        ):
            self.release(Hold.BACKLOG)

    # -- holds --------------------------------------------------------------------------------

    def hold(self, reason: int) -> None:
        """Stop taking requests and reading the socket."""
        if not self.holds:
            self.transport.pauseProducing()
        self.holds |= reason

    def release(self, reason: int) -> None:
        """Go on when no other reason holds the connection."""
        if not self.holds & reason:
            return
        self.holds &= ~reason
        if not self.holds and not self._running:
            self.last_data_us = self.broker.time.now_us()
            self.transport.resumeProducing()
            self._run()

    def _uncongested(self) -> None:
        self.release(Hold.CONGESTED)

    def pauseProducing(self) -> None:
        """The transport's write buffer is full: the peer reads too slowly."""
        self.hold(Hold.READER)

    def resumeProducing(self) -> None:
        """The write buffer is empty again."""
        self.release(Hold.READER)

    def stopProducing(self) -> None:
        """The transport is gone; `connectionLost` says so too."""

    # -- life ---------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Join the factory's connections."""
        no_delay(self.transport)
        self.transport.registerProducer(self, True)
        self.last_data_us = self.broker.time.now_us()
        self.factory.opened(self)

    def readConnectionLost(self) -> None:
        """The peer will send no more; answer what it sent, then close."""
        self._peer_done = True
        if not self._queue and not self.holds:
            self.finish()

    def writeConnectionLost(self) -> None:
        """The peer will read no more."""
        self.transport.loseConnection()

    def finish(self) -> None:
        """Close once what was written is sent."""
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Forget everything about the peer; leases belong to client ids and stay."""
        self.gone = True
        self.holds |= Hold.CLOSING
        self._queue.clear()
        self.answers = []
        self.factory.closed(self)
        self.stopped()


class ConnectionFactory(Factory):
    """Makes the connections of one listener and watches over their limits."""

    noisy = False
    _log = Logger()

    def __init__(self, name: str, broker: Broker, clock: Clock, limits: Limits) -> None:
        self.name = name
        self.broker = broker
        self.limits = limits
        self._clock = clock
        self.connections: set[Connection] = set()
        self.accepted = 0
        self.refused = 0
        self._sweep_call: DelayedCall | None = None
        self._empty: list[Deferred[None]] = []

    def new_connection(self) -> Connection:
        """A connection of this factory's format."""
        raise NotImplementedError

    def buildProtocol(self, addr: object) -> Any:
        """A connection, or None when there are too many already."""
        if len(self.connections) >= self.limits.connections:
            self.refused += 1
            self._log.warn(
                "{listener}: connection refused, {count} are open already; raise "
                "limits.connections if that is too few",
                listener=self.name,
                count=len(self.connections),
                event_id="connection-refused",
            )
            return None
        self.accepted += 1
        connection = self.new_connection()
        connection.factory = self
        return connection

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            waiting, self._empty = self._empty, []
            for empty in waiting:
                empty.callback(None)

    def startFactory(self) -> None:
        """The first port listens."""
        self._sweep_later()

    def stopFactory(self) -> None:
        """The last port stopped listening."""
        if self._sweep_call is not None:
            self._sweep_call.cancel()
            self._sweep_call = None

    def _sweep_later(self) -> None:
        self._sweep_call = self._clock.callLater(self.limits.sweep_seconds, self._sweep)

    def _sweep(self) -> None:
        """Close connections that are idle, or stuck inside a frame, for too long."""
        self._sweep_later()
        now_us = self.broker.time.now_us()
        idle_us = self.limits.idle_us
        unfinished_us = self.limits.unfinished_frame_us
        for connection in list(self.connections):
            since_us = connection.unfinished_since_us
            if unfinished_us and since_us is not None and not connection.holds:
                if now_us - max(since_us, connection.last_data_us) > unfinished_us:
                    self._time_out(connection, "a frame was not finished")
            elif idle_us and not connection.holds and now_us - connection.last_data_us > idle_us:
                self._time_out(connection, "nothing was sent")

    def _time_out(self, connection: Connection, why: str) -> None:
        self._log.info(
            "{listener}: closing {peer}: {why} in time",
            listener=self.name,
            peer=connection.transport.getPeer(),
            why=why,
            event_id="connection-timed-out",
        )
        connection.transport.abortConnection()

    def close_all(self) -> None:
        """Take no more requests from anybody and close each connection once it is answered."""
        for connection in list(self.connections):
            connection.close_for_stop()

    def when_empty(self) -> Deferred[None]:
        """Fires when the last connection is gone."""
        empty: Deferred[None] = Deferred()
        if self.connections:
            self._empty.append(empty)
        else:
            empty.callback(None)
        return empty

    def abort_all(self) -> None:
        """Close every connection now; what waits to be answered never will be."""
        for connection in list(self.connections):
            connection.transport.abortConnection()
