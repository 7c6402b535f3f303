# Tests: tests/admin/test_request.py
"""Arrival of requests to the admin site: deadlines, and limits on bodies in memory.

Each request has a deadline from its first to its last byte. Time in which the broker itself does
not read a large body does not count (`BodyReads`). The site keeps a body up to the limit
of its route, and no body without a route. Beyond `UNAUTHENTICATED_BYTES` it authenticates the
sender first. A sender without permission gets a refusal when the request is complete, and his body
is dropped. Bodies stay in memory. Each may always hold `OWN_BYTES`; beyond these, all bodies have
at most `ALL_BYTES_MAX` together (`BodyBudget`).

Twisted bounds the headers of a request and the idle time of a connection, but no body.
"""

from __future__ import annotations

import fcntl
import sys
import termios
from collections.abc import Callable
from io import BytesIO
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.server import Request

from brokerd.admin.http.authentication import Sender
from brokerd.admin.http.routing import Overloaded, Route, is_json
from brokerd.security import Access

if TYPE_CHECKING:
    from brokerd.admin.site import AdminSite

REQUEST_SECONDS = 30.0
"""Time that a request may take to arrive."""
MAX_BODY_BYTES = 16 * 1024 * 1024
"""Largest body of any request; most routes take less."""
UNAUTHENTICATED_BYTES = 64 * 1024
"""Bytes of a body in memory before its sender is authenticated."""
OWN_BYTES = 64 * 1024
"""Bytes of its body in memory that each connection may always hold."""
ALL_BYTES_MAX = 4 * MAX_BODY_BYTES
"""Bytes of all bodies of a site in memory, beyond the `OWN_BYTES` of each."""
PROGRESS_BYTES = 64 * 1024
"""Bytes that have to arrive until a body has progress."""
STALL_SECONDS = 0.25
"""Time without progress after which a body may be dropped for another. A body of 16 MiB that
arrives at this pace misses its deadline."""
READ_PAUSE_SECONDS = 0.003
"""Time from one read of a large body to the next one, of all connections, while light requests wait
for a commit. A read of 64 KiB takes 0.1 ms."""
PIPELINED_MAX = 16
"""Requests that are handled in a turn directly after another of their connection, of all
connections together."""
READ_BYTES = 64 * 1024
"""Bytes of one read of a large body, in short reactor turns. Twisted's default, too."""
READ_BYTES_MAX = 1024 * 1024
"""Bytes of one read of a large body, in long reactor turns. It takes 0.3 ms, over TLS 1.6 ms."""
FLOWING_BYTES = 16 * 1024
"""Bytes of a read that show that the client does not wait: the largest part of TLS."""
API_PATH = b"/api/v1/"


class _Claim:
    """The bytes in memory of one body, and its progress."""

    __slots__ = ("bytes", "progress_at_bytes", "since_seconds")

    def __init__(self, since_seconds: float) -> None:
        self.bytes = 0
        self.progress_at_bytes = PROGRESS_BYTES
        """The size that is the next progress."""
        self.since_seconds = since_seconds
        """Time of the last progress, at first of the beginning."""


class BodyBudget:
    """Counts the bytes of all bodies of a site in memory.

    When they are too many, arriving bodies that stall (`STALL_SECONDS`) are dropped, those with the
    largest product of bytes and time without progress first. Without one the new bytes are refused.
    A body does not stall while the broker is late to read it.
    """

    def __init__(self) -> None:
        self._arriving: dict[BoundedRequest, _Claim] = {}
        self._arrived: dict[BoundedRequest, _Claim] = {}
        self._claimed = 0
        """Bytes beyond the `OWN_BYTES` of each body."""

    def take(self, body: BoundedRequest, size: int) -> None:
        """Reserve bytes for a body that arrives. Raises `Overloaded`."""
        now_seconds = body.client_seconds
        claim = self._arriving.get(body)
        if claim is None:
            claim = self._arriving[body] = _Claim(now_seconds)
        further = _beyond_own(claim.bytes + size) - _beyond_own(claim.bytes)
        while further and self._claimed + further > ALL_BYTES_MAX:
            stalled = self._worst(body)
            if stalled is None:
                raise Overloaded("too many large requests arrive at once; try again later")
            stalled.drop_for_room()
        self._claimed += further
        claim.bytes += size
        if claim.bytes >= claim.progress_at_bytes:
            claim.progress_at_bytes = claim.bytes + PROGRESS_BYTES
            claim.since_seconds = now_seconds

    def end_body(self, body: BoundedRequest) -> None:
        """Keep a body, all of which has arrived, until it is given back."""
        claim = self._arriving.pop(body, None)
        if claim is not None:
            self._arrived[body] = claim

    def give_back(self, body: BoundedRequest) -> None:
        """Release the bytes of a body, if it has any."""
        claim = self._arriving.pop(body, None) or self._arrived.pop(body, None)
        if claim is not None:
            self._claimed -= _beyond_own(claim.bytes)

    def _worst(self, besides: BoundedRequest) -> BoundedRequest | None:
        """Return the body to drop for another one, or None if none stalls."""
        stalled = {
            body: stall_seconds * claim.bytes
            for body, claim in self._arriving.items()
            if claim.bytes > OWN_BYTES
            and body is not besides
            and (stall_seconds := body.client_seconds - claim.since_seconds) >= STALL_SECONDS
            and not body.waits_for_broker
        }
        return max(stalled, key=stalled.__getitem__, default=None)


def _beyond_own(size: int) -> int:
    return max(0, size - OWN_BYTES)


class BodyReads:
    """Decides when connections with large bodies are read, and how much of them in one read.

    While light requests wait for a commit, these connections are paused. One of them reads on after
    each `READ_PAUSE_SECONDS`, the one that waits longest. Without pauses, the reads of a body of
    15 MB took 15 ms beside the commit of another.

    A connection has one read in a reactor turn at most. So a read may have `READ_BYTES` for each
    `READ_PAUSE_SECONDS` between the two before it, up to `READ_BYTES_MAX`: with a read in 100 ms, a
    body of 15 MB takes 1.5 s and not 24. Paused connections share this.

    :param clock: times the pauses.
    :param light_waits: returns whether a light request waits, as `SliceQueue.light_waits`.
    """

    def __init__(self, clock: Any, light_waits: Callable[[], int]) -> None:
        self._clock = clock
        self._light_waits = light_waits
        self._paused: dict[TimedChannel, None] = {}
        self._call: IDelayedCall | None = None
        self._read_seconds: dict[TimedChannel, float] = {}
        """When connections with large bodies were read last."""

    def end_read(self, channel: TimedChannel, size: int) -> None:
        """A connection read a part of a large body: pause it, if light requests wait."""
        now = self._clock.seconds()
        last = self._read_seconds.get(channel, now)
        self._read_seconds[channel] = now
        if now - last >= READ_PAUSE_SECONDS / 2:  # else parts of one read, over TLS
            share_seconds = (now - last) / (len(self._paused) + 1)
            size_max = int(READ_BYTES * share_seconds / READ_PAUSE_SECONDS)
            channel.limit_read(min(max(size_max, READ_BYTES), READ_BYTES_MAX))
        if not self._light_waits():
            return
        transport: Any = channel.transport
        transport.pauseProducing()
        if size >= FLOWING_BYTES:
            channel.stop_clock()
        self._paused[channel] = None
        if self._call is None:
            self._call = self._clock.callLater(READ_PAUSE_SECONDS, self._resume)

    def end_body(self, channel: TimedChannel) -> None:
        """Resume a connection whose body ended: whether it is read on is no more decided here.

        A read of TLS may bring several parts. The first may begin a pause, the last end the body.
        """
        if self._read_seconds.pop(channel, None) is not None:
            channel.limit_read(READ_BYTES)
        if channel in self._paused:
            del self._paused[channel]
            self._read_on(channel)

    def forget(self, channel: TimedChannel) -> None:
        """Forget a connection that ended."""
        self._paused.pop(channel, None)
        self._read_seconds.pop(channel, None)

    def _resume(self) -> None:
        """Resume one connection, or all of them if no light request waits any more."""
        self._call = None
        while self._paused:
            channel = next(iter(self._paused))
            del self._paused[channel]
            self._read_on(channel)
            if self._paused and self._light_waits():
                self._call = self._clock.callLater(READ_PAUSE_SECONDS, self._resume)
                return

    def _read_on(self, channel: TimedChannel) -> None:
        channel.start_clock()
        transport: Any = channel.transport
        transport.resumeProducing()


class Pipelines:
    """Lets connections with many requests at once share a turn of the reactor.

    In a turn connections go on with a next request `PIPELINED_MAX` times, of all connections
    together. Others go on in later turns, the longest waiting first. Forty requests each of a
    hundred connections took a second of one turn. More connections came in it than the site has
    places.

    :param clock: calls in the next turn.
    """

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._count = 0
        self._paused: dict[TimedChannel, None] = {}
        self._call: IDelayedCall | None = None

    def may_go_on(self, channel: TimedChannel) -> bool:
        """Return whether a connection may handle its next request in this turn.

        Otherwise call its `TimedChannel.go_on` in a later one.
        """
        if self._call is None:
            self._call = self._clock.callLater(0, self._next_turn)
        self._count += 1
        if self._count <= PIPELINED_MAX:
            return True
        self._paused[channel] = None
        return False

    def forget(self, channel: TimedChannel) -> None:
        """Forget a connection that ended."""
        self._paused.pop(channel, None)

    def _next_turn(self) -> None:
        first = list(islice(self._paused, PIPELINED_MAX))
        self._count = len(first)
        self._call = self._clock.callLater(0, self._next_turn) if first else None
        for channel in first:
            if channel in self._paused:  # else it has ended meanwhile
                del self._paused[channel]
                channel.go_on()


class BoundedRequest(Request):
    """A request with a bounded body, declared or chunked."""

    _received = 0
    _kept = 0
    _kept_max = 0
    _refused = False
    _budget: BodyBudget | None = None
    """The budget that counts the body, once a part of it is kept."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.sender = Sender()

    @property
    def has_large_body(self) -> bool:
        """Whether more than a small body has arrived."""
        return self._received > UNAUTHENTICATED_BYTES

    @property
    def client_seconds(self) -> float:
        """The time by the clock of the connection: `TimedChannel.client_seconds`."""
        channel: Any = self.channel
        seconds: float = channel.client_seconds
        return seconds

    @property
    def waits_for_broker(self) -> bool:
        """Whether the broker has still to read what arrived: `TimedChannel.waits_for_broker`."""
        channel: Any = self.channel
        is_late: bool = channel.waits_for_broker
        return is_late

    def gotLength(self, length: int | None) -> None:
        """Decide about the body once all headers have arrived."""
        # In memory, where `BodyBudget` counts it. Twisted keeps a large body in a temporary file.
        self.content = BytesIO()
        if length is not None and length > MAX_BODY_BYTES:
            self._refuse()
            return
        found = self._route()
        if found is None or not found[0].is_write or not is_json(self):
            return
        self._kept_max = found[0].body_bytes_max + 1  # one byte more proves the body too large
        if length is None or length > UNAUTHENTICATED_BYTES:
            self._ask(*found)

    def _route(self) -> tuple[Route, dict[str, str]] | None:
        channel: Any = self.channel
        # Twisted sets request.path and request.args only after the body.
        path, _, query = channel._path.partition(b"?")
        if not path.startswith(API_PATH):
            return None
        parts = path.removeprefix(API_PATH).split(b"/")
        names = http.parse_qs(query, keep_blank_values=True)
        routes = channel.site.api.find([unquote_to_bytes(part) for part in parts], names)
        return routes.get(channel._command.decode("ascii", "replace"))  # type: ignore[no-any-return]

    def _ask(self, route: Route, names: dict[str, str]) -> None:
        def check(access: Access) -> None:
            route.check_sender(access, names)

        channel: Any = self.channel
        self.client = channel.getPeer()
        asked = channel.site.api.authenticator.ask(self)
        asked.addCallback(check).addErrback(self._drop)

    def handleContentChunk(self, data: bytes) -> None:
        """Keep a chunk up to the limit of the route, and count the rest."""
        self._received += len(data)
        if self._received > MAX_BODY_BYTES:
            self._refuse()
            return
        kept = data[: max(0, self._kept_max - self._kept)]
        if not kept:
            return
        channel: Any = self.channel
        if self._budget is None:
            self._budget = channel.site.bodies
            self.notifyFinish().addBoth(lambda _: self._give_back())
        try:
            self._budget.take(self, len(kept))
        except Overloaded:
            self._drop(Failure())
            return
        self._kept += len(kept)
        super().handleContentChunk(kept)

    def _drop(self, failure: Failure) -> None:
        """Drop the body, and answer the request with this failure."""
        self.sender.refuse(failure)
        self._free()

    def drop_for_room(self) -> None:
        """Drop the body, which stalls, because another one needs its room."""
        text = "the body stalled while others needed its memory; try again later"
        self._drop(Failure(Overloaded(text)))

    def _free(self) -> None:
        """Keep nothing of the body any more."""
        self._kept_max = 0
        self._give_back()
        content: Any = getattr(self, "content", None)
        if content is not None and not content.closed:
            content.seek(0)
            content.truncate()

    def _give_back(self) -> None:
        if self._budget is not None:
            self._budget.give_back(self)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Answer a complete request; refuse a content type that Twisted cannot parse."""
        if self._refused:
            return  # the end of its body came in the read that went over the limit
        if self._budget is not None:
            self._budget.end_body(self)
        kind = self.requestHeaders.getRawHeaders(b"content-type", [b""])[-1]
        if kind.decode("latin-1").isprintable():
            super().requestReceived(command, path, version)
        else:
            self._refuse(b"400 Bad Request")

    def _refuse(self, status: bytes = b"413 Content Too Large") -> None:
        if not self._refused:
            self._refused = True
            self._free()
            channel: Any = self.channel
            channel.refuse(status)


class TimedChannel(http.HTTPChannel):
    """A connection with a deadline for each request, from its first to its last byte."""

    site: AdminSite
    certificate_access: Access | None = None
    """Access of the client's certificate, once it is known."""
    has_login = False
    """Whether the password of its request waits for a check."""
    _deadline: IDelayedCall | None = None
    _deadline_seconds = 0.0
    """The deadline by `client_seconds`."""
    _stopped_seconds: float | None = None
    """When the clock of the client stopped, or None."""
    _lost_seconds = 0.0
    """Time in which the clock of the client stood still."""
    _framing = b""
    """The header of the current request that gives the length of its body."""

    def connectionMade(self) -> None:
        super().connectionMade()
        self._start_deadline()

    def dataReceived(self, data: bytes) -> None:
        """Handle bytes; pause if more of a large body is to come."""
        transport: Any = self.transport
        if transport.disconnecting:
            return  # over TLS, bytes come until the client closes, too
        super().dataReceived(data)
        if self.paused:
            transport.pauseProducing()  # the end of a pause of large bodies resumes it
        if self._framing and self.requests and self.requests[-1].has_large_body:
            self.site.body_reads.end_read(self, len(data))

    def headerReceived(self, line: bytes) -> bool:
        """Store a header; refuse a second one that gives the length of the body.

        Twisted accepts ``Transfer-Encoding: identity`` beside another such header. A proxy may
        disagree about the end of that request (RFC 9112, section 6.3).
        """
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in (b"transfer-encoding", b"content-length"):
            is_known = name == b"content-length" or value.strip().lower() == b"chunked"
            if self._framing or not is_known:
                self.refuse(b"400 Bad Request")
                return False
            self._framing = name
        return bool(super().headerReceived(line))

    def allContentReceived(self) -> None:
        self._framing = b""
        self._stop_deadline()
        self.site.body_reads.end_body(self)
        super().allContentReceived()

    def requestDone(self, request: Any) -> None:
        """A request is answered: handle the next one that has arrived, perhaps in a later turn."""
        has_more = self.persistent and bool(self._buffer or self._dataBuffer)
        if has_more and not self.paused and not self.site.pipelines.may_go_on(self):
            self.paused = True
        super().requestDone(request)
        self._stop_deadline()
        self._start_deadline()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._stop_deadline()
        self.site.body_reads.forget(self)
        self.site.pipelines.forget(self)
        super().connectionLost(reason)
        self.site.places.remove(self)

    def pauseProducing(self) -> None:
        """Read and handle no further request while the client does not read the answers.

        Twisted goes on if the buffer is full before a request is done: answers filled the memory.
        """
        super().pauseProducing()
        self.paused = True
        transport: Any = self.transport
        transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Go on with the requests that have arrived, and read on."""
        self.paused = False
        super().resumeProducing()
        self.dataReceived(b"")

    def go_on(self) -> None:
        """Go on in a later turn, unless the client does not read the answers."""
        if self.paused and not self._waitingForTransport:
            self.resumeProducing()

    def loseConnection(self) -> None:
        transport: Any = self.transport
        if self.paused and not transport.disconnecting:
            self.paused = False
            transport.resumeProducing()  # over TLS, to read that the client closes, too
        super().loseConnection()

    def begin_login(self) -> None:
        """Wait for the check of a password."""
        self.has_login = True
        self.site.places.begin_wait(self)

    def end_login(self) -> None:
        """The password was checked, or will not be."""
        self.has_login = False
        if self._deadline is None or not self._deadline.active():
            self.site.places.end_wait(self)

    @property
    def client_seconds(self) -> float:
        """The time by a clock that stands still while the broker does not read."""
        now: float = self.site.clock.seconds()
        if self._stopped_seconds is not None:
            now = self._stopped_seconds
        return now - self._lost_seconds

    def stop_clock(self) -> None:
        """Stop `client_seconds` and the idle time: the broker does not read this connection."""
        if self._stopped_seconds is None:
            self._stopped_seconds = self.site.clock.seconds()
            self.setTimeout(None)

    def start_clock(self) -> None:
        """Let `client_seconds` and the idle time go on, if they stand still."""
        if self._stopped_seconds is not None:
            self._lost_seconds += self.site.clock.seconds() - self._stopped_seconds
            self._stopped_seconds = None
            self.setTimeout(self.timeOut)

    @property
    def waits_for_broker(self) -> bool:
        """Whether `FLOWING_BYTES` wait in the socket, and not for the client to read answers."""
        handle = getattr(self._socket_transport(), "getHandle", None)
        if handle is None or self.paused:
            return False
        unread = fcntl.ioctl(handle().fileno(), termios.FIONREAD, bytes(4))
        return int.from_bytes(unread, sys.byteorder) >= FLOWING_BYTES

    def limit_read(self, size: int) -> None:
        """Set the bytes of the next reads of the socket."""
        self._socket_transport().bufferSize = size

    def _socket_transport(self) -> Any:
        transport: Any = self.transport
        while (inner := getattr(transport, "transport", None)) is not None:
            transport = inner  # TLS
        return transport

    def _start_deadline(self) -> None:
        self.site.places.begin_wait(self)
        self._deadline_seconds = self.client_seconds + REQUEST_SECONDS
        self._deadline = self.site.clock.callLater(REQUEST_SECONDS, self._check_deadline)

    def _check_deadline(self) -> None:
        left_seconds = self._deadline_seconds - self.client_seconds
        if left_seconds < READ_PAUSE_SECONDS:  # of rounding
            self.abort()
        else:
            self._deadline = self.site.clock.callLater(left_seconds, self._check_deadline)

    def _stop_deadline(self) -> None:
        if not self.has_login:
            self.site.places.end_wait(self)
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()

    def refuse(self, status: bytes) -> None:
        """Answer with a status alone, and end the connection.

        Over TLS the client has to close, too. The deadline bounds that time.
        """
        self._stop_deadline()
        self._start_deadline()
        transport: Any = self.transport
        transport.write(b"HTTP/1.1 %s\r\nconnection: close\r\n\r\n" % status)
        self.loseConnection()  # of the channel: TLS waits until that is no producer any more

    def abort(self) -> None:
        """Close now."""
        self._stop_deadline()
        transport: Any = self.transport
        transport.abortConnection()
