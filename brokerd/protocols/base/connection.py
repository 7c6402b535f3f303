# Tests: tests/protocols/test_connection.py, tests/protocols/test_freed.py
"""What the connections of all wire formats share: order, durability, back-pressure, endings.

A subclass turns bytes into requests and requests into answers; this class decides when it may
and when the answers leave.

* Answers leave in request order, all those of one run in one write, and none before the commit
  that everything applied so far belongs to is durable.
* `Connection.pending` holds the place of an answer that comes later (a long poll, a record that
  must be read from disk).
* Requests stop being taken, and the socket being read, while any *hold* is set: the peer does not
  read its answers, too much waits to be answered, or a request met `Congested`.
* Of one connection no more than ``in_flight_bytes`` and one answer are in the queue, and no more
  than that in the transport's buffer. Late answers obey too: see `Connection.may_resolve`.
* A fault of our own in a request is logged and costs its connection, nobody else's.
* A connection that is gone is freed at once, with what it holds: nothing that it holds may refer to
  it, or it stays until the cycle collector comes, which may be after a gigabyte of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IHandshakeListener,
    IPushProducer,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from brokerd.broker import Broker
from brokerd.errors import LoginFailed, LoginThrottled
from brokerd.protocols.base.transport import (
    lose_at_once,
    lose_sending,
    peer_text,
    prepare,
    send_all,
)
from brokerd.security import OPEN, Access
from brokerd.security.certificates import peer_subject

if TYPE_CHECKING:
    from brokerd.protocols.base.factory import ConnectionFactory

CLOSING_US = 60_000_000
"""How long a peer may take to read its last answers and to agree to the end."""


TURN_SECONDS = 0.010
"""For how long the requests of one connection are handled in one turn of the reactor."""


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
    READING: Final = 16
    """Records are being read, and the answer made of them comes before any other."""
    TURN: Final = 32
    """Its requests have had their share of this turn of the reactor."""


@dataclass(frozen=True)
class Limits:
    """Limits of one listener; 0 switches a time-out off."""

    connections: int = 10_000
    frame_bytes: int = 32 << 20
    """Largest request frame, where a format has one to set."""
    in_flight_requests: int = 10_000
    """Requests of a connection that wait for an answer; one read may exceed it."""
    in_flight_bytes: int = 4 << 20
    """The same in bytes, requests and answers; one of either may exceed it."""
    idle_us: int = 0
    unfinished_frame_us: int = 60_000_000
    sweep_seconds: float = 5.0


class Answers:
    """The answers of one run, or the place of a later answer (``ticket`` is None)."""

    __slots__ = ("count", "make", "parts", "size", "ticket")

    def __init__(
        self,
        ticket: int | None,
        parts: list[bytes],
        count: int,
        size: int,
        make: Callable[[], bytes] | None = None,
    ) -> None:
        self.ticket = ticket
        self.parts = parts
        self.make = make
        """Makes the bytes when the answers are sent."""
        self.count = count
        self.size = size
        """Bytes of its requests and answers, for the backlog limit."""


@implementer(IHalfCloseableProtocol, IHandshakeListener, IPushProducer)
class Connection(Protocol):
    """One connection of some wire format.

    A subclass implements `feed`, which takes bytes in, and `run`, which handles the requests it
    has, appending to ``answers``, until it has none, ``holds`` is set or it is `overtime`.
    """

    factory: ConnectionFactory
    transport: Any  # Twisted declares less than every stream transport has
    _log = Logger()

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.journal = broker.journal
        self.access: Access = OPEN
        """The client and its permissions; set when the connection is made."""
        self.answers: list[bytes] = []
        self.holds = 0
        self.unfinished = False
        """Whether `feed` has kept part of a frame."""
        self.gone = False
        self.ending = False
        """No more requests will come, so long polls end at once."""
        self.queued_bytes = 0
        """Bytes of requests and answers that wait in the queue."""
        self._queued_requests = 0
        self._queue: deque[Answers] = deque()
        self._postponed: dict[Answers, Callable[[], object]] = {}
        self._taken_bytes = 0
        self._answered_bytes = 0
        self._reads = 0
        """How many of ``answers`` show nothing that is not durable."""
        self._parts_more = 0
        """By how many ``answers`` are more than the requests that they answer."""
        self._awaited_ticket = 0
        self.written_ticket = 0
        """The commit that all that was done for this connection will be durable with."""
        self._running = False
        self._run_again = False
        self._turn_ends = 0.0
        self._last_data_us = 0
        self._unfinished_since_us: int | None = None
        self._closing_since_us: int | None = None
        self._drains = False

    # -- for the subclass ---------------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        """Take in bytes and say whether they completed a frame; must not handle any request."""
        raise NotImplementedError

    def run(self) -> None:
        """Handle requests taken in so far, in order, while ``holds`` is 0."""
        raise NotImplementedError

    def end_waits(self) -> None:
        """Answer long polls now: no more requests will come. ``ending`` is set."""

    def forget(self) -> None:
        """Drop requests and long polls of a closed connection."""

    def last_answer(self) -> bytes:
        """Return the answer to a peer that did not finish a frame in time, before the close."""
        return b""

    def wrote(self) -> None:
        """Note a change for this connection; its later reads wait until the change is durable."""
        self.written_ticket = self.journal.ticket()

    def answer(self, *parts: bytes) -> None:
        """Answer one request in parts, or with what is large.

        Large parts are never copied into one: who has a value of megabytes gives what stands
        before it and then the value.
        """
        self.answers += parts
        self._parts_more += len(parts) - 1
        self.answered(sum(map(len, parts)))

    def answer_read(self, *parts: bytes) -> None:
        """Answer with what is durable, or with nothing of the broker's: no commit is waited for.

        It still comes behind the answers to earlier requests. ``parts`` as in `answer`.
        """
        self._reads += len(parts)
        self.answer(*parts)

    def answer_durable(self, make: Callable[[], bytes], count: int, size: int) -> None:
        """Answer ``count`` requests with what ``make`` returns, about ``size`` bytes.

        It is called when all that is applied now is durable and the answers leave: for answers
        that tell what is known only then, such as the time at which records were appended.
        """
        self._enqueue()
        self._put(Answers(self.journal.ticket(), [], count, size, make))

    def answered(self, answer_bytes: int) -> None:
        """Count a large answer while `run` is at work, so that it stops in time."""
        self._answered_bytes += answer_bytes
        if self.queued_bytes + self._answered_bytes > self.factory.limits.in_flight_bytes:
            self.hold(Hold.BACKLOG)

    def pending(self) -> Answers:
        """Reserve the place of one later answer for `resolve`."""
        self._enqueue()
        place = Answers(None, [], 1, 0)
        self._queue.append(place)
        self._queued_requests += 1
        self._check_in_flight()
        return place

    def may_resolve(self, place: Answers) -> bool:
        """Whether an answer for this place may be made now; if not, `postpone` making it.

        The answer that is owed first may always be made, unless the peer does not read.
        """
        if self.holds & Hold.READER:
            return False
        return self._queue[0] is place or self.queued_bytes <= self.factory.limits.in_flight_bytes

    def postpone(self, place: Answers, resume: Callable[[], object]) -> None:
        """Call ``resume`` when `may_resolve` has become true for this place."""
        self._postponed[place] = resume

    def cancel_postponed(self, place: Answers) -> bool:
        """Undo `postpone`; return False if the place was not postponed."""
        return self._postponed.pop(place, None) is not None

    def resolve(self, place: Answers, *parts: bytes, is_read: bool = False) -> None:
        """Fill a place that `pending` held; the answer depends on all that is applied now.

        Unless it ``is_read``; ``parts`` as in `answer`.
        """
        if self.gone:
            return
        place.parts = [*parts]
        place.size = sum(map(len, parts))
        place.ticket = 0 if is_read else self.journal.ticket()
        self.queued_bytes += place.size
        if place.ticket > self.journal.durable_ticket:
            self._await(place.ticket)
        else:
            self._flush()

    def guarded(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Call on behalf of this connection: a fault closes it and reaches nobody else."""
        try:
            return call(*arguments)
        except Exception:
            self._fault()
            return None

    def congested(self) -> None:
        """Hold the current request until the log has room; `run` is called then."""
        self.hold(Hold.CONGESTED)
        self.journal.when_uncongested(self._uncongested)

    def overtime(self, handled: int) -> bool:
        """Whether `run`, which has handled so many requests, must stop here, because others wait.

        It is called again in another turn. The time is looked at after each eight requests.
        """
        if handled & 7 != 7 or self.factory.clock.seconds() < self._turn_ends:
            return False
        self.hold(Hold.TURN)
        self.factory.clock.callLater(0, self._next_turn)
        return True

    def _next_turn(self) -> None:
        if not self.gone:
            self.release(Hold.TURN)

    def close_after_answers(self, drain: bool = True) -> None:
        """Take no more requests, and close when all earlier ones are answered.

        What the peer goes on sending is read until it closes too: bytes that arrive at a closed
        socket reset the connection, and a reset may destroy the last answers. Without ``drain``
        there is no time for that.
        """
        self._drains = drain
        if self._closing_since_us is not None:
            self.transport.loseConnection()
            return
        self.hold(Hold.CLOSING)
        self._end_waits()
        self._flush()

    # -- requests -----------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Take bytes in and handle what they complete."""
        if self.holds & Hold.CLOSING:
            return
        now_us = self._last_data_us = self.broker.time.now_us()
        self._taken_bytes += len(data)
        if self.feed(data) or self._unfinished_since_us is None:
            self._unfinished_since_us = now_us if self.unfinished else None
        if not self.holds:
            self._run()

    def _run(self) -> None:
        """Handle requests and send what may leave, again if that made room for more."""
        if self._running:
            self._run_again = True
            return
        self._running = True
        self._turn_ends = self.factory.clock.seconds() + TURN_SECONDS
        try:
            while True:
                self._run_again = False
                self.run()
                self._enqueue()
                self._send()
                if not self._run_again or self.holds:
                    break
        except Exception:
            self._fault()
        self._running = False
        if self._queue:
            self._check_in_flight()
        elif self.ending:
            self._finish_if_done()

    def _enqueue(self) -> None:
        """Queue the answers of this run behind the commit they depend on."""
        answers = self.answers
        if not answers:
            return
        self.answers = []
        ticket = 0 if self._reads == len(answers) else self.journal.ticket()
        count = len(answers) - self._parts_more
        self._reads = self._parts_more = 0
        self._put(Answers(ticket, answers, count, sum(map(len, answers))))

    def _put(self, answers: Answers) -> None:
        """Queue answers; what was taken in since the last counts with them."""
        answers.size += self._taken_bytes
        self._taken_bytes = self._answered_bytes = 0
        self._queue.append(answers)
        self._queued_requests += answers.count
        self.queued_bytes += answers.size
        if answers.ticket is not None and answers.ticket > self.journal.durable_ticket:
            self._await(answers.ticket)

    def _await(self, ticket: int) -> None:
        if ticket > self._awaited_ticket:
            self._awaited_ticket = ticket
            self.journal.when_durable(ticket, self._flush)

    def _check_in_flight(self) -> None:
        limits = self.factory.limits
        if (
            self._queued_requests > limits.in_flight_requests
            or self.queued_bytes > limits.in_flight_bytes
        ):
            self.hold(Hold.BACKLOG)

    def _flush(self) -> None:
        """Send what may leave, and go on with what waited for that."""
        if self._running or self.gone:
            return
        if not self._postponed:
            self._send()
        else:
            self._resume_postponed()
        if self.ending:
            self._finish_if_done()

    def _send(self) -> None:
        """Send the durable answers at the head of the queue, in one write."""
        queue = self._queue
        durable = self.journal.durable_ticket
        parts: list[bytes] = []
        while queue:
            ticket = queue[0].ticket
            if ticket is None or ticket > durable:
                break
            answers = queue.popleft()
            self._queued_requests -= answers.count
            self.queued_bytes -= answers.size
            if answers.make is None:
                parts += answers.parts
            else:
                made = self.guarded(answers.make)
                if self.gone:
                    return
                parts.append(made)
        if parts:
            send_all(self.transport, parts)
            if self.holds & Hold.BACKLOG:
                self._check_backlog()

    def _resume_postponed(self) -> None:
        """Make late answers, those owed first or asked for first, while they may be made."""
        self._running = True
        self._send()
        postponed, queue = self._postponed, self._queue
        while postponed:
            place = queue[0] if queue[0] in postponed else next(iter(postponed))
            if not self.may_resolve(place):
                break
            self.guarded(postponed.pop(place))
            if self.gone:
                return
            self._send()
        self._running = False
        if self._run_again:
            self._run()

    def _check_backlog(self) -> None:
        limits = self.factory.limits
        if (
            self._queued_requests <= limits.in_flight_requests // 2
            and self.queued_bytes <= limits.in_flight_bytes // 2
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
        if not self.holds:
            self._last_data_us = self.broker.time.now_us()
            if self._unfinished_since_us is not None:
                self._unfinished_since_us = self._last_data_us
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
        if self._postponed:
            self._flush()

    def stopProducing(self) -> None:
        """The transport is gone; `connectionLost` says so too."""

    # -- life ---------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Join the factory's connections."""
        prepare(self.transport)
        self.transport.registerProducer(self, True)
        self._last_data_us = self.broker.time.now_us()
        self.access = self.factory.guard.begin(self.factory.name, peer_text(self.transport))
        self.factory.opened(self)
        self.identify()

    def handshakeCompleted(self) -> None:
        """TLS is agreed on: a client that showed a certificate is whom it names."""
        self.identify()

    def identify(self) -> None:
        """Become whom the client's certificate names, if there is a verified one."""
        self.guarded(self._become_certified)

    def _become_certified(self) -> None:
        try:
            subject = peer_subject(self.transport)
            if subject is not None:
                self.access = self.factory.guard.by_certificate(
                    self.factory.name, peer_text(self.transport), *subject
                )
        except (LoginFailed, LoginThrottled) as refusal:
            self._log.warn(
                "{listener}: the certificate of {peer} lets nobody in: {reason}",
                listener=self.factory.name,
                peer=peer_text(self.transport),
                reason=str(refusal),
                event_id="certificate-refused",
            )
            self.abort()

    def readConnectionLost(self) -> None:
        """The peer will send no more; answer what it sent, then close.

        A process that dies looks the same as one that only shuts its sending side, so long polls
        end here: what they would lease might have nobody to settle it.
        """
        if self._closing_since_us is not None:
            self.transport.loseConnection()
            return
        self._end_waits()
        self._flush()

    def writeConnectionLost(self) -> None:
        """All answers are sent, and the sending side is shut."""

    def _end_waits(self) -> None:
        self.ending = True
        self.guarded(self.end_waits)

    def _finish_if_done(self) -> None:
        """Close when no more requests will be taken and all are answered."""
        if self._queue or not self.ending or self.gone or self._closing_since_us is not None:
            return
        if self.holds and not self.holds & Hold.CLOSING:
            return  # what the peer sent before its end waits, and is carried out at the release
        self.holds |= Hold.CLOSING
        self._closing_since_us = self.broker.time.now_us()
        self.transport.unregisterProducer()
        self.transport.resumeProducing()  # the peer's end, or TLS's goodbye, is read
        if not self._drains:
            lose_at_once(self.transport)
        elif not lose_sending(self.transport):
            self.transport.loseConnection()

    def overdue(self, now_us: int) -> str | None:
        """What the peer did not do in time, if there is anything."""
        limits = self.factory.limits
        if self._closing_since_us is not None:
            late = now_us - self._closing_since_us > CLOSING_US
            return "its last answers were not read" if late else None
        if self.holds:
            if self.ending and self.holds & Hold.READER:
                late = now_us - self._last_data_us > CLOSING_US
                return "its answers were not read" if late else None
            return None
        since_us = now_us if self._unfinished_since_us is None else self._unfinished_since_us
        if limits.unfinished_frame_us and now_us - since_us > limits.unfinished_frame_us:
            return "a frame was not finished"
        if self._queue:  # it waits for us, not we for it
            self._last_data_us = now_us
        elif limits.idle_us and now_us - self._last_data_us > limits.idle_us:
            return "nothing was sent"
        return None

    def cut_off(self) -> None:
        """Close on a peer that is `overdue`, with the `last_answer` if there is one."""
        stalls = self.unfinished and self._closing_since_us is None
        answer = self.last_answer() if stalls else b""
        if not answer:
            self.abort()
            return
        self.answer_read(answer)
        self._enqueue()
        self.close_after_answers()

    def abort(self) -> None:
        """Close now; what waits to be answered never will be."""
        self._let_go()
        self.transport.abortConnection()

    def _fault(self) -> None:
        self._log.failure(
            "a fault in brokerd; the connection to {peer} is closed",
            peer=self.transport.getPeer(),
            event_id="connection-fault",
        )
        self.abort()

    def _let_go(self) -> None:
        self.gone = self.ending = True
        self.holds |= Hold.CLOSING
        self._queue.clear()
        self._postponed.clear()
        self.answers = []
        self.forget()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Forget everything about the peer; leases belong to client ids and stay."""
        self._let_go()
        self.factory.closed(self)
