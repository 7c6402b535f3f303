# Tests: tests/protocols/test_connection.py, tests/protocols/test_freed.py
"""The base class of connections of all wire formats: order, durability, back-pressure, close.

A subclass turns bytes into requests and requests into answers. This class decides when requests
are handled and when answers are sent.

* Answers are sent in request order, all answers of one pass in one write. An answer waits until
  every change applied before it is durable.
* `Connection.pending` reserves the place of a later answer (a long poll, a read from disk).
* While a *hold* is set, no request is handled and the socket is not read: the peer does not read
  its answers, too many answers are due, or a request met `Congested`.
* The queue of a connection holds at most ``in_flight_bytes`` and one answer, and so does the
  buffer of its transport. Late answers obey too: see `Connection.may_resolve`.
* A fault in brokerd's own code is logged and closes the connection of its request only.
* A closed connection is freed at once. The objects that it holds must not refer to it: a reference
  cycle stays in memory until the cycle collector runs, which may be a gigabyte later.
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
    ISSLTransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from brokerd.broker import Broker
from brokerd.broker.connections import ConnectionInfo
from brokerd.broker.slices import CHARGED_SECONDS, SLICE_SECONDS, SliceOwner
from brokerd.errors import LoginFailed, LoginThrottled
from brokerd.protocols.base.memory import (
    ANSWERS,
    FURTHER_ANSWERS,
    OWN_BYTES,
    PLACE_BYTES,
    REQUESTS,
    WAITS,
    AwaitMemory,
)
from brokerd.protocols.base.transport import (
    lose_at_once,
    lose_sending,
    peer_text,
    prepare,
    send_all,
    unsent_bytes,
)
from brokerd.security import OPEN, Access
from brokerd.security.certificates import peer_subject
from brokerd.security.quotas import Meter, Use

if TYPE_CHECKING:
    from brokerd.protocols.base.factory import ConnectionFactory

CLOSING_US = 60_000_000
"""Time in which a peer has to read its last answers and close its side."""

LONG_RUNS_MAX = 3
"""Long runs in a row after which a connection with further requests waits in the queue of long
work, a round of which takes seconds with hundreds of connections. After fewer it goes on beside
that queue: on a busy machine any run may be long, because the process waits for a processor."""

PASS_SECONDS = SLICE_SECONDS
"""Time that one connection may spend on its requests in one pass of `Connection._serve`."""

FULL_PASS_SECONDS = PASS_SECONDS / 10
"""The same in a full turn (`SliceQueue.is_full`)."""


class Hold:
    """Reasons for not handling further requests of a connection: bits of ``holds``.

    Plain integers: an IntFlag would cost more than the test of the bit.
    """

    SLOW_READER: Final = 1
    """The peer does not read its answers."""
    BACKLOG: Final = 2
    """Too many requests or bytes of answers are in flight."""
    CONGESTED: Final = 4
    """The next request waits for room in the log."""
    CLOSING: Final = 8
    """The connection closes; no further request is handled."""
    IN_PROGRESS: Final = 16
    """A request is in progress, such as a read of records. Later requests wait for its answer."""
    OVERTIME: Final = 32
    """The time of the pass is used up, or the turn is full (`SliceQueue.is_full`). A later turn
    goes on."""
    MEMORY: Final = 64
    """The connections together hold too much memory."""
    QUOTA: Final = 128
    """The next request waits for its quotas."""


HOLD_NAMES: Final = {
    Hold.SLOW_READER: "slow_reader",
    Hold.BACKLOG: "backlog",
    Hold.CONGESTED: "congested",
    Hold.CLOSING: "closing",
    Hold.IN_PROGRESS: "in_progress",
    Hold.MEMORY: "memory",
    Hold.QUOTA: "quota",
}
"""Names of holds for the admin site. OVERTIME ends within the next turns."""


@dataclass(frozen=True)
class Limits:
    """Limits of one listener; 0 switches a time-out off."""

    connections: int = 10_000
    connections_per_address: int = 5_000
    """Connections of one IPv4 address, or of one /64 of IPv6."""
    frame_bytes: int = 32 << 20
    """Largest request frame, in formats whose limit can be set."""
    in_flight_requests: int = 10_000
    """Unanswered requests of a connection; one read of the socket may exceed it."""
    in_flight_bytes: int = 4 << 20
    """Bytes of unanswered requests and queued answers; one request or answer may exceed it."""
    idle_us: int = 0
    unfinished_frame_us: int = 60_000_000
    first_byte_us: int = 120_000_000
    """Time to the first byte of a connection."""
    login_us: int = 60_000_000
    """Time to the login of a client that has no permission without one."""
    sweep_seconds: float = 5.0


class QueuedAnswers:
    """The answers of one pass, or the reserved place of a later answer (``ticket`` is None)."""

    __slots__ = ("count", "make", "parts", "size", "ticket", "timed")

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
        """Makes the bytes at the time of sending."""
        self.count = count
        self.size = size
        """Bytes of requests and answers that count against ``in_flight_bytes``."""
        self.timed: tuple[str, float] | tuple[()] | None = None
        """Operation and begin of a request that is timed; () for an answer that never is."""


@implementer(IHalfCloseableProtocol, IHandshakeListener, IPushProducer)
class Connection(Protocol):
    """One connection of a wire format.

    A subclass implements `feed`, which takes bytes, and `handle_requests`, which appends answers
    until no request is left, ``holds`` is set or `overtime` returns True.
    """

    factory: ConnectionFactory
    transport: Any  # Twisted declares less than every stream transport has
    _log = Logger()

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.group_commit = broker.group_commit
        self.access: Access = OPEN
        """The client and its permissions; set when the connection is made."""
        self.answers: list[bytes] = []
        """Answers of this pass of `_serve`. `answer` appends to them and counts the bytes; small
        answers, of a few bytes each, are appended without."""
        self.holds = 0
        self.unfinished = False
        """Whether `feed` has kept part of a frame."""
        self.connection_id = 0
        """Number of the connection for the admin site, once it is open."""
        self.gone = False
        self.ending = False
        """The peer sends no more requests; long polls end at once."""
        self.queued_bytes = 0
        """Bytes of requests and answers in the queue."""
        self.received_bytes = 0
        """Bytes of received frames that are unfinished or not handled yet."""
        self._expected_bytes = 0
        """Bytes of the answer that a read in progress may give."""
        self.peer_is_not_reading = False
        """Whether the transport's write buffer is full."""
        self._unsent_bytes = 0
        """Bytes that were written since the peer stopped reading; an upper bound."""
        self._sent_us = -1
        """When answers were sent last; -1: never."""
        self._has_claim = False
        """Whether the memory budget has a claim of this connection."""
        self._queued_requests = 0
        self._queue: deque[QueuedAnswers] = deque()
        self._postponed: dict[QueuedAnswers, Callable[[], object]] = {}
        self._taken_bytes = 0
        """Bytes received since answers were queued last."""
        self._answered_bytes = 0
        """Bytes of ``answers`` that `answer` counted."""
        self._undelayed_parts = 0
        """Number of ``answers`` that depend on no pending commit."""
        self._extra_parts = 0
        """Number of ``answers`` minus the number of requests that they answer."""
        self._awaited_ticket = 0
        self.written_ticket = 0
        """The ticket whose commit makes all changes of this connection durable."""
        self._serving = False
        self._serve_again = False
        self.pass_began_seconds = 0.0
        """When the last pass began."""
        self._pass_ends_seconds = 0.0
        self._long_runs = LONG_RUNS_MAX
        """Long runs of requests in a row. A new connection begins as if it had so many."""
        self._made_us = 0
        self._slice_owner: SliceOwner | None = None
        self._slice_owner_name = ""
        self.quotas = broker.quotas.table
        """All quotas; while it is empty the connection is not metered."""
        self._meters: tuple[Meter, ...] = ()
        self._metered: tuple[int, Access] | None = None
        """The version of the quotas, and the access, that the meters belong to."""
        self._quota_wait: tuple[Meter, int] | None = None
        """The meter for which the next request waits, and its use."""
        self._due_meters: tuple[Meter, ...] = ()
        """Meters for which the next request has waited, and whose queues it need not join again."""
        self._has_quota = False
        """Whether the first request is counted: it does not wait for its quotas again."""
        self.timed_operation = ""
        """Operation of the last request of this pass, if its time is measured."""
        self.timed_since = 0.0
        self._last_data_us = 0
        self._busy_us = 0
        """When requests last waited for the broker, as far as time-outs noticed."""
        self._unfinished_since_us: int | None = None
        self._closing_since_us: int | None = None
        self._drains = False

    # -- for the subclass ---------------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        """Store bytes; return True if they completed a frame. Must not handle a request."""
        raise NotImplementedError

    def handle_requests(self) -> None:
        """Handle the stored requests in order while ``holds`` is 0."""
        raise NotImplementedError

    def answer_long_polls(self) -> None:
        """Answer all long polls now. The base class calls it after it sets ``ending``."""

    def forget(self) -> None:
        """Drop requests and long polls of a closed connection."""

    def last_answer(self) -> bytes:
        """Return the answer for a peer that did not finish a frame in time."""
        return b""

    def wrote(self) -> None:
        """Make later reads of this connection wait until its changes so far are durable."""
        self.written_ticket = self.group_commit.ticket()

    def answer(self, *parts: bytes) -> None:
        """Append the answer to one request, and count its bytes against ``in_flight_bytes``.

        It has one part or several. Large parts are not copied. A caller with a value of megabytes
        passes the bytes before the value and the value itself as two parts.
        """
        self.answers += parts
        self._extra_parts += len(parts) - 1
        self._answered_bytes += sum(map(len, parts))
        if self.queued_bytes + self._answered_bytes > self.factory.limits.in_flight_bytes:
            self.hold(Hold.BACKLOG)

    @property
    def in_flight_room(self) -> int:
        """Bytes of answers that ``in_flight_bytes`` leaves; below 0 if they exceed it."""
        used = self.queued_bytes + self._answered_bytes
        return self.factory.limits.in_flight_bytes - used

    def answer_run(self, part: bytes, count: int, at_once: bool = False) -> None:
        """Append the answers to ``count`` requests in one part, and count its bytes.

        With ``at_once`` they depend on no pending commit.
        """
        self._undelayed_parts += at_once
        self.answer(part)
        self._extra_parts += 1 - count

    def answer_at_once(self, *parts: bytes) -> None:
        """Append an answer that depends on no pending commit. ``parts`` as in `answer`.

        It is sent after the answers to earlier requests.
        """
        self._undelayed_parts += len(parts)
        self.answer(*parts)

    def answer_when_durable(self, make: Callable[[], bytes], count: int, size: int) -> None:
        """Answer ``count`` requests with the result of ``make``, about ``size`` bytes.

        ``make`` is called at the time of sending, when every change applied before is durable. Its
        answer can contain values that are known only then, as the append time of a record.
        """
        self._enqueue()
        self._put(QueuedAnswers(self.group_commit.ticket(), [], count, size, make))

    def pending(self) -> QueuedAnswers:
        """Reserve the place of one later answer for `resolve`."""
        self._enqueue()
        place = QueuedAnswers(None, [], 1, 0)
        self._queue.append(place)
        self._queued_requests += 1
        self._check_in_flight()
        return place

    def may_resolve(self, place: QueuedAnswers) -> bool:
        """Return whether the answer for this place may be made now; if not, call `postpone`.

        The first answer of the queue may be made unless the peer does not read, or memory for
        answers is short.
        """
        if self.holds & Hold.SLOW_READER:
            return False
        if self.factory.memory.full[FURTHER_ANSWERS]:
            lacking = self.lacking_memory()
            if lacking is not None:
                self.factory.memory.wait(self, lacking)
                return False
        return self._queue[0] is place or self.queued_bytes <= self.factory.limits.in_flight_bytes

    def postpone(self, place: QueuedAnswers, resume: Callable[[], object]) -> None:
        """Call ``resume`` when `may_resolve` becomes true for this place."""
        self._postponed[place] = resume

    def cancel_postponed(self, place: QueuedAnswers) -> bool:
        """Undo `postpone`; return False if the place was not postponed."""
        return self._postponed.pop(place, None) is not None

    def resolve(self, place: QueuedAnswers, *parts: bytes, at_once: bool = False) -> None:
        """Fill the place of a `pending` answer; ``parts`` as in `answer`.

        The answer waits for the commit of all changes applied so far, unless ``at_once`` is True.
        """
        if self.gone:
            return
        place.parts = [*parts]
        place.size = sum(map(len, parts))
        place.ticket = 0 if at_once else self.group_commit.ticket()
        self.queued_bytes += place.size
        if place.ticket > self.group_commit.durable_ticket:
            self._await(place.ticket)
            self._charge()
        else:
            self._flush()

    def count_refusal(self, error: Exception) -> None:
        """Count a refused request for the metrics."""
        self.broker.counters.count_refusal(self.factory.name, error)

    # -- quotas -------------------------------------------------------------------------------

    def waits_for_quota(self, use: int, size: int) -> bool:
        """Count the next request, of ``size`` bytes, or hold it and return True."""
        if self._has_quota or use == Use.FREE:
            return False
        meters = self._current_meters()
        if self.gone:
            return True
        waits = self.broker.quotas.waits
        now_seconds = waits.seconds()
        for meter in meters:
            is_due = meter in self._due_meters
            if meter.wait_seconds(use, now_seconds) > 0 or (meter.queues.get(use) and not is_due):
                self._quota_wait = meter, use
                waits.wait(meter, use, self._end_quota, is_due)
                self.hold(Hold.QUOTA)
                return True
        for meter in meters:
            meter.take(use, size, now_seconds)
        self._due_meters = ()
        self._has_quota = True
        return False

    def logged_in(self, access: Access) -> None:
        """Take the access of a login.

        A quota of connections that has no place left closes the connection in the next reactor
        turn. A quota that is set later does not.
        """
        self.access = access
        if not self.quotas:
            self._metered = (self.broker.quotas.version, access)
        else:
            self.factory.clock.callLater(0, self.close_on_fault, self._take_place)

    def _take_place(self) -> None:
        """Join the meters of this client now: its requests may be such as no quota limits."""
        if not self.gone:
            self._current_meters()

    def used_quota(self) -> None:
        """Note that the first request is handled."""
        self._has_quota = False

    def _end_quota(self, is_due: bool) -> None:
        if self._quota_wait is None:
            return  # closed meanwhile
        meter, _ = self._quota_wait
        self._due_meters = (*self._due_meters, meter) if is_due else ()
        self._quota_wait = None
        if not self.gone:
            self.unhold(Hold.QUOTA)

    def leave_meters(self) -> None:
        """Give back the places of this connection, and end its wait."""
        for meter in self._meters:
            meter.connections -= 1
        self._meters = self._due_meters = ()
        if self._quota_wait is not None:
            self.broker.quotas.waits.forget(*self._quota_wait, self._end_quota)
            self._quota_wait = None

    def _current_meters(self) -> tuple[Meter, ...]:
        """Return the meters of this client. A login may find no place, and close the connection."""
        quotas = self.broker.quotas
        known = self._metered
        if known is None or known[0] != quotas.version or known[1] is not self.access:
            is_new = known is None or known[1] is not self.access
            self._metered = (quotas.version, self.access)
            before = self._meters
            found = quotas.meters_of(self.factory.name, peer_text(self.transport), self.access.name)
            for meter in before:
                meter.connections -= 1
            full = [one for one in found if is_new and one not in before and one.is_full]
            self._meters = () if full else found
            for meter in self._meters:
                meter.connections += 1
            if full:
                for meter in full:
                    meter.refused += 1
                self.abort()
        return self._meters

    def close_on_fault(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Call and return the result. An exception is logged and closes this connection."""
        try:
            return call(*arguments)
        except Exception:
            self._fault()
            return None

    def congested(self) -> None:
        """Hold the current request until the log has room, then call `handle_requests` again."""
        self.hold(Hold.CONGESTED)
        self.group_commit.when_uncongested(self._uncongested)

    # -- memory -------------------------------------------------------------------------------

    def await_memory(self) -> None:
        """Raise `AwaitMemory` if the answer to a read has to wait for memory.

        The handler of a read calls it before any change. Requests with short answers never wait.
        """
        if self.factory.memory.full[FURTHER_ANSWERS] and self.lacking_memory() is not None:
            raise AwaitMemory

    def lacking_memory(self) -> int | None:
        """Return the kind of memory that an answer has to wait for, or None."""
        held_bytes = self.queued_bytes + self._answered_bytes + self._unsent_bytes
        return self.factory.memory.lacking(self, held_bytes)

    def expect_answer(self, size: int) -> None:
        """Claim memory for the answer of a read in progress; 0 ends the claim.

        The claim is at most a part of the budget, so that a few such reads always find room.
        """
        self._expected_bytes = min(size, self.factory.memory.expected_bytes_max)
        if size:
            self._charge()

    def wait_for_memory(self, kind: int) -> None:
        """Hold the connection until the memory budget has room for this kind."""
        self.hold(Hold.MEMORY)
        self.factory.memory.wait(self, kind)

    @property
    def reads_answers(self) -> bool:
        """Whether the peer got an answer, and has read all that it got, as far as is known."""
        return self._sent_us >= 0 and not self._unsent_bytes and not self.peer_is_not_reading

    @property
    def awaits_each_answer(self) -> bool:
        """Whether the peer sent a whole request, the last one, after its last answer."""
        return not self.unfinished and self._last_data_us > self._sent_us

    def memory_freed(self) -> None:
        """Go on after `wait_for_memory`, and make postponed answers."""
        if self.gone:
            return
        self.unhold(Hold.MEMORY)
        if self._postponed:
            self._flush()

    def cut_for_memory(self) -> None:
        """Close now: others need the memory."""
        self.abort()

    def peer_name(self) -> str:
        """Return listener and address of the peer, for the log."""
        return f"{self.factory.name} {peer_text(self.transport)}"

    def _retry_further_answers(self) -> None:
        """Go on in a later turn if all it waited for was that its earlier answers leave."""
        memory = self.factory.memory
        if memory.awaited(self) == FURTHER_ANSWERS and self.lacking_memory() is None:
            memory.wait(self, ANSWERS)

    def _charge(self) -> None:
        """Report the memory that this connection holds; wait if there is no room for it."""
        if self.gone:
            return
        if self.holds & Hold.MEMORY:
            self._retry_further_answers()
        requests = self.received_bytes
        answers = self.queued_bytes + self._unsent_bytes + self._expected_bytes
        waits = PLACE_BYTES * len(self._queue)
        if not self._has_claim and requests + answers + waits <= OWN_BYTES:
            return
        memory = self.factory.memory
        self._has_claim = memory.charge(self, requests, answers, waits)
        if not self._has_claim:
            return
        if memory.full[REQUESTS] and requests > OWN_BYTES:
            self.wait_for_memory(REQUESTS)
        elif memory.full[WAITS] and waits > OWN_BYTES:
            self.wait_for_memory(WAITS)

    # -- a pass ends --------------------------------------------------------------------------

    def overtime(self) -> bool:
        """Return True if `handle_requests` must stop, because the time of this pass is used up.

        A later reactor turn calls `handle_requests` again. It must handle a request before it asks.
        """
        if self.factory.clock.seconds() < self._pass_ends_seconds:
            return False
        if self._long_runs + 1 < LONG_RUNS_MAX:
            self.hold(Hold.OVERTIME)
            self.factory.slices.go_on(self._end_overtime, self.slice_owner())
        else:
            self._wait_for_turn()
        return True

    def _wait_for_turn(self) -> None:
        """Go on in the queue of the long work, when it is this connection's turn."""
        self.hold(Hold.OVERTIME)
        self.factory.slices.add(self._end_overtime, self.slice_owner())

    def _end_overtime(self) -> None:
        if not self.gone:
            self.unhold(Hold.OVERTIME)

    def slice_owner(self) -> SliceOwner:
        """Return the owner of this connection's long work: its account, or itself without one."""
        name = self.access.name
        owner = self._slice_owner
        if owner is None or name != self._slice_owner_name:
            self._slice_owner_name = name
            owner = self.factory.slices.account(name) if name else SliceOwner()
            self._slice_owner = owner
        return owner

    def listen(self) -> None:
        """Notice a peer that closes while a request is in progress. The base class does not."""

    def close_after_answers(self, drain: bool = True) -> None:
        """Handle no more requests, and close when the earlier ones are answered.

        With ``drain``, bytes from the peer are read and dropped until it closes too: bytes that
        arrive at a closed socket reset the connection, and a reset may destroy the last answers.
        """
        self._drains = drain
        if self._closing_since_us is not None:
            self.transport.loseConnection()
            return
        self.hold(Hold.CLOSING)
        self._end_requests()
        self._flush()

    # -- requests -----------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Store bytes and handle the requests that they complete."""
        if self.holds & Hold.CLOSING:
            return
        now_us = self._last_data_us = self.broker.time.monotonic_us()
        self._taken_bytes += len(data)
        if self.feed(data) or self._unfinished_since_us is None:
            self._unfinished_since_us = now_us if self.unfinished else None
        if not self.holds:
            self._serve()
        else:
            self._charge()

    def _serve(self) -> None:
        """Handle requests and send durable answers; repeat if the sends made room for more."""
        if self._serving:
            self._serve_again = True
            return
        factory = self.factory
        if factory.slices.is_full and self._long_runs >= LONG_RUNS_MAX:
            self._wait_for_turn()
            return
        self._serving = True
        began_seconds = self.pass_began_seconds = factory.clock.seconds()
        length_seconds = FULL_PASS_SECONDS if factory.slices.is_full else PASS_SECONDS
        self._pass_ends_seconds = began_seconds + length_seconds
        try:
            while True:
                self._serve_again = False
                self.handle_requests()
                self._enqueue()
                if self.timed_operation:
                    self._time_answers()
                if self._queue:  # mostly with an answer that waits for its commit
                    ticket = self._queue[0].ticket
                    if ticket is not None and ticket <= self.group_commit.durable_ticket:
                        self._send()
                if not self._serve_again or self.holds:
                    break
        except Exception:
            self._fault()
        self._serving = False
        took_seconds = factory.clock.seconds() - began_seconds
        if took_seconds <= CHARGED_SECONDS:
            self._long_runs = 0
        else:
            self._long_runs += 1
            factory.slices.charge(self.slice_owner(), took_seconds)
        if self._queue:
            self._check_in_flight()
        elif self.ending:
            self._finish_if_done()
        self._charge()

    def _time_answers(self) -> None:
        """Measure the time until the newest answers in the queue leave."""
        operation, self.timed_operation = self.timed_operation, ""
        if self._queue and self._queue[-1].timed is None:
            self._queue[-1].timed = operation, self.timed_since

    def _observe(self, operation: str, since: float) -> None:
        self.factory.request_times.observe(operation, self.factory.clock.seconds() - since)

    def _enqueue(self) -> None:
        """Queue the answers of this pass with the ticket that they depend on."""
        answers = self.answers
        if not answers:
            return
        self.answers = []
        ticket = 0 if self._undelayed_parts == len(answers) else self.group_commit.ticket()
        count = len(answers) - self._extra_parts
        self._undelayed_parts = self._extra_parts = 0
        self._put(QueuedAnswers(ticket, answers, count, sum(map(len, answers))))

    def _put(self, answers: QueuedAnswers) -> None:
        """Queue answers. They count with the bytes received since the last ones."""
        answers.size += self._taken_bytes
        self._taken_bytes = self._answered_bytes = 0
        self._queue.append(answers)
        self._queued_requests += answers.count
        self.queued_bytes += answers.size
        if answers.ticket is not None and answers.ticket > self.group_commit.durable_ticket:
            self._await(answers.ticket, is_light=True)

    def _await(self, ticket: int, is_light: bool = False) -> None:
        if ticket > self._awaited_ticket:
            self._awaited_ticket = ticket
            self.group_commit.when_durable(ticket, self._flush, is_light)

    def _check_in_flight(self) -> None:
        limits = self.factory.limits
        if (
            self._queued_requests > limits.in_flight_requests
            or self.queued_bytes > limits.in_flight_bytes
        ):
            self.hold(Hold.BACKLOG)

    def _flush(self) -> None:
        """Send durable answers, then resume the work that waited for the sends."""
        if self._serving or self.gone:
            return
        if not self._postponed:
            self._send()
        else:
            self._resume_postponed()
        if self.ending:
            self._finish_if_done()
        if self._has_claim or self._unsent_bytes:
            self._charge()

    def _send(self) -> None:
        """Send the durable answers at the head of the queue, in one write."""
        queue = self._queue
        durable = self.group_commit.durable_ticket
        parts: list[bytes] = []
        while queue:
            ticket = queue[0].ticket
            if ticket is None or ticket > durable:
                break
            answers = queue.popleft()
            self._queued_requests -= answers.count
            self.queued_bytes -= answers.size
            if answers.timed:
                self._observe(*answers.timed)
            if answers.make is None:
                parts += answers.parts
            else:
                made = self.close_on_fault(answers.make)
                if self.gone:
                    return
                parts.append(made)
        if parts:
            if self._meters:
                self._count_sent(parts)
            send_all(self.transport, parts)
            self._sent_us = self.broker.time.monotonic_us()
            if self.peer_is_not_reading:
                self._unsent_bytes += sum(map(len, parts))
            if self.holds & Hold.BACKLOG:
                self._check_backlog()

    def _count_sent(self, parts: list[bytes]) -> None:
        size, now_seconds = sum(map(len, parts)), self.broker.quotas.waits.seconds()
        for meter in self._meters:
            meter.sent(size, now_seconds)

    def _resume_postponed(self) -> None:
        """Make postponed answers while `may_resolve` allows, the first of the queue first."""
        self._serving = True
        self._send()
        postponed, queue = self._postponed, self._queue
        while postponed:
            place = queue[0] if queue[0] in postponed else next(iter(postponed))
            if not self.may_resolve(place):
                break
            self.close_on_fault(postponed.pop(place))
            if self.gone:
                return
            self._send()
        self._serving = False
        if self._serve_again:
            self._serve()

    def _check_backlog(self) -> None:
        limits = self.factory.limits
        if (
            self._queued_requests <= limits.in_flight_requests // 2
            and self.queued_bytes <= limits.in_flight_bytes // 2
        ):
            self.unhold(Hold.BACKLOG)

    # -- holds --------------------------------------------------------------------------------

    def hold(self, reason: int) -> None:
        """Stop handling requests and reading the socket."""
        if not self.holds:
            self.transport.pauseProducing()
        self.holds |= reason

    def unhold(self, reason: int) -> None:
        """Go on when no other reason holds the connection."""
        if not self.holds & reason:
            return
        self.holds &= ~reason
        if not self.holds:
            self._busy_us = self.broker.time.monotonic_us()
            if self._unfinished_since_us is not None:
                self._unfinished_since_us = self._busy_us
            self.transport.resumeProducing()
            self._serve()

    def _uncongested(self) -> None:
        self.unhold(Hold.CONGESTED)

    def pauseProducing(self) -> None:
        """Hold the connection: the transport's write buffer is full."""
        self.peer_is_not_reading = True
        self.hold(Hold.SLOW_READER)

    def resumeProducing(self) -> None:
        """Release the connection: the write buffer is empty."""
        self.peer_is_not_reading = False
        self._unsent_bytes = 0
        self.unhold(Hold.SLOW_READER | Hold.MEMORY)
        if self._postponed:
            self._flush()
        if self._has_claim:
            self._charge()

    def stopProducing(self) -> None:
        """Do nothing: `connectionLost` follows."""

    # -- life ---------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Join the factory's connections."""
        prepare(self.transport)
        self.transport.registerProducer(self, True)
        self._made_us = self.broker.time.monotonic_us()
        self._last_data_us = self._made_us - 1  # none has come
        self.access = self.factory.guard.begin(self.factory.name, peer_text(self.transport))
        self.factory.opened(self)
        self.identify()
        if self.quotas and not self.gone:
            self._current_meters()
        elif self._metered is None:
            self._metered = (self.broker.quotas.version, self.access)

    def handshakeCompleted(self) -> None:
        """Identify the client by its certificate after the TLS handshake."""
        self.identify()

    def identify(self) -> None:
        """Take the access of the account that a verified client certificate names, if any."""
        self.close_on_fault(self._become_certified)

    def _become_certified(self) -> None:
        try:
            subject = peer_subject(self.transport)
            if subject is not None:
                self.logged_in(
                    self.factory.guard.by_certificate(
                        self.factory.name, peer_text(self.transport), *subject
                    )
                )
        except (LoginFailed, LoginThrottled) as refusal:
            self._log.warn(
                "{listener}: the certificate of {peer} is refused: {reason}",
                listener=self.factory.name,
                peer=peer_text(self.transport),
                reason=str(refusal),
                event_id="certificate-refused",
            )
            self.abort()

    def readConnectionLost(self) -> None:
        """Answer the requests received so far, then close: the peer sends no more.

        A dead process looks the same as a process that shut its sending side. Long polls end here,
        since a record that they lease might never be settled.
        """
        if self._closing_since_us is not None:
            self.transport.loseConnection()
            return
        self._end_requests()
        self._flush()

    def writeConnectionLost(self) -> None:
        """Note that all answers are sent and the sending side is shut."""

    def _end_requests(self) -> None:
        self.ending = True
        self.close_on_fault(self.answer_long_polls)

    def _finish_if_done(self) -> None:
        """Close when no more requests will be handled and all are answered."""
        if self._queue or not self.ending or self.gone or self._closing_since_us is not None:
            return
        if self.holds and not self.holds & Hold.CLOSING:
            return  # requests of the peer wait for the release of the hold
        self.holds |= Hold.CLOSING
        self._closing_since_us = self.broker.time.monotonic_us()
        self.transport.unregisterProducer()
        self.transport.resumeProducing()  # read the peer's FIN or TLS close_notify
        if not self._drains:
            lose_at_once(self.transport)
        elif not lose_sending(self.transport):
            self.transport.loseConnection()

    def overdue(self, now_us: int) -> str | None:
        """Return the time-out that the peer exceeded as text for the log, or None."""
        limits = self.factory.limits
        if self._closing_since_us is not None:
            late = now_us - self._closing_since_us > CLOSING_US
            return "its last answers were not read" if late else None
        open_us = now_us - self._made_us
        if limits.login_us and open_us > limits.login_us and self.access.is_stranger:
            return "a login was not made"
        is_silent = self._last_data_us < self._made_us
        active_us = max(self._last_data_us, self._busy_us)
        if limits.first_byte_us and is_silent and open_us > limits.first_byte_us:
            return "the first byte was not sent"
        if self.holds:
            if self.ending and self.holds & Hold.SLOW_READER:
                late = now_us - active_us > CLOSING_US
                return "its answers were not read" if late else None
            return None
        since_us = now_us if self._unfinished_since_us is None else self._unfinished_since_us
        if limits.unfinished_frame_us and now_us - since_us > limits.unfinished_frame_us:
            return "a frame was not finished"
        if self._queue:  # the peer waits for answers
            self._busy_us = now_us
        elif limits.idle_us and now_us - max(active_us, self._sent_us) > limits.idle_us:
            return "nothing was sent"
        return None

    def info(self, now_us: int) -> ConnectionInfo:
        """Describe the connection for the admin site."""
        return ConnectionInfo(
            wire_format=self.factory.name,
            address=peer_text(self.transport),
            port=getattr(self.transport.getPeer(), "port", None),
            user=self.access.name,
            tls=ISSLTransport.providedBy(self.transport),
            open_us=now_us - self._made_us,
            idle_us=now_us - max(self._last_data_us, self._busy_us, self._made_us),
            requests=self._queued_requests,
            unread_bytes=self.queued_bytes + unsent_bytes(self.transport),
            holds=[name for hold, name in HOLD_NAMES.items() if self.holds & hold],
        )

    def cut_off(self) -> None:
        """Close the connection of a peer that is `overdue`, after the `last_answer` if any."""
        stalls = self.unfinished and self._closing_since_us is None
        answer = self.last_answer() if stalls else b""
        if not answer:
            self.abort()
            return
        self.answer_at_once(answer)
        self._enqueue()
        self.close_after_answers()

    def abort(self) -> None:
        """Close now and drop all queued answers."""
        self._drop_references()
        self.transport.abortConnection()

    def _fault(self) -> None:
        self._log.failure(
            "a fault in brokerd; the connection to {peer} is closed",
            peer=self.transport.getPeer(),
            event_id="connection-fault",
        )
        self.abort()

    def _drop_references(self) -> None:
        self.gone = self.ending = True
        self.holds |= Hold.CLOSING
        self._queue.clear()
        self._postponed.clear()
        self.leave_meters()
        self.answers = []
        self.factory.memory.forget(self)
        self.forget()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Drop all state of the connection. Leases belong to client ids and stay."""
        self._drop_references()
        self.factory.closed(self)


def account_of(transport: Any) -> str:
    """Return the account of the connection that has this transport, or ``""``."""
    protocol = transport.protocol
    protocol = getattr(protocol, "wrappedProtocol", protocol)  # of TLS
    protocol = getattr(protocol, "chosen", None) or protocol
    return protocol.access.name if isinstance(protocol, Connection) else ""
