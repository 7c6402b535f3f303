# Tests: tests/admin/test_request.py
"""Requests to the admin site while they arrive: when they are due, and what is kept of them.

Every request has a deadline from its start to its last byte, whatever is being sent. Of a body only
as much is kept as its route may have, none where no route is. Before more than `UNASKED_BYTES` are
kept it is asked who sends it, and what he may do; if he may not, nothing is kept, and he is told so
when the request is there. All bodies together have `ALL_BYTES_MAX`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.server import Request

from brokerd.admin.http.routing import Crowded, Route, says_json
from brokerd.admin.http.sender import Sender
from brokerd.security import Access

if TYPE_CHECKING:
    from brokerd.admin.site import AdminSite

REQUEST_SECONDS = 30.0
"""How long a request may take to arrive as a whole, however it trickles in."""
MAX_BODY_BYTES = 16 * 1024 * 1024
"""What any request may have; most of the API takes less."""
UNASKED_BYTES = 64 * 1024
"""What is kept of a body before anybody is asked who sends it."""
ALL_BYTES_MAX = 4 * MAX_BODY_BYTES
"""What is kept of all bodies of a site."""
API_PATH = b"/api/v1/"


class Bodies:
    """How much is kept of all bodies of a site."""

    def __init__(self) -> None:
        self._kept = 0

    def take(self, size: int) -> None:
        """Have room for so many bytes more. Raises `Crowded`."""
        if self._kept + size > ALL_BYTES_MAX:
            raise Crowded("too many large requests arrive at once; try again later")
        self._kept += size

    def give_back(self, size: int) -> None:
        """So many bytes are gone."""
        self._kept -= size


class BoundedRequest(Request):
    """A request whose body is bounded, declared or chunked."""

    _received = 0
    _kept = 0
    _kept_max = 0
    _refused = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.sender = Sender()

    def gotLength(self, length: int | None) -> None:
        """Decide about the body: all headers are there, and nothing of it."""
        too_long = length is not None and length > MAX_BODY_BYTES
        super().gotLength(0 if too_long else length)
        if too_long:
            self._refuse()
            return
        found = self._route()
        if found is None or not found[0].is_write or not says_json(self):
            return
        self._kept_max = found[0].body_bytes_max + 1  # one more shows that it is too large
        if length is None or length > UNASKED_BYTES:
            self._ask(*found)

    def _route(self) -> tuple[Route, dict[str, str]] | None:
        channel: Any = self.channel
        path = channel._path.partition(b"?")[0]  # Twisted tells it with the body only
        if not path.startswith(API_PATH):
            return None
        parts = path.removeprefix(API_PATH).split(b"/")
        routes = channel.site.api.find([unquote_to_bytes(part) for part in parts])
        return routes.get(channel._command.decode("ascii", "replace"))  # type: ignore[no-any-return]

    def _ask(self, route: Route, names: dict[str, str]) -> None:
        def check(access: Access) -> None:
            route.check_sender(access, names)

        channel: Any = self.channel
        self.client = channel.getPeer()
        asked = channel.site.api.asker.ask(self)
        asked.addCallback(check).addErrback(self._drop)

    def handleContentChunk(self, data: bytes) -> None:
        """Keep what is to be kept."""
        self._received += len(data)
        if self._received > MAX_BODY_BYTES:
            self._refuse()
            return
        kept = data[: max(0, self._kept_max - self._kept)]
        if not kept:
            return
        channel: Any = self.channel
        bodies: Bodies = channel.site.bodies
        try:
            bodies.take(len(kept))
        except Crowded:
            self._drop(Failure())
            return
        if not self._kept:
            self.notifyFinish().addBoth(lambda _: bodies.give_back(self._kept))
        self._kept += len(kept)
        super().handleContentChunk(kept)

    def _drop(self, failure: Failure) -> None:
        """Keep nothing; who asks from now on hears this."""
        self.sender.refuse(failure)
        self._kept_max = 0
        content: Any = getattr(self, "content", None)
        if content is not None and not content.closed:
            content.seek(0)
            content.truncate()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Answer a request that is there, unless Twisted would stumble over its content type."""
        kind = self.requestHeaders.getRawHeaders(b"content-type", [b""])[-1]
        if kind.decode("latin-1").isprintable():
            super().requestReceived(command, path, version)
        else:
            self._refuse(b"400 Bad Request")

    def _refuse(self, status: bytes = b"413 Content Too Large") -> None:
        if not self._refused:
            self._refused = True
            transport: Any = self.channel.transport
            transport.write(b"HTTP/1.1 %s\r\nconnection: close\r\n\r\n" % status)
            transport.loseConnection()


class TimedChannel(http.HTTPChannel):
    """A connection whose every request has a deadline from its start to its last byte."""

    site: AdminSite
    certified: Access | None = None
    """Whom the client's certificate names, once somebody has asked."""
    _deadline: IDelayedCall | None = None

    def connectionMade(self) -> None:
        super().connectionMade()
        self._start_deadline()

    def allContentReceived(self) -> None:
        self._stop_deadline()
        super().allContentReceived()

    def requestDone(self, request: Any) -> None:
        super().requestDone(request)
        self._stop_deadline()
        self._start_deadline()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._stop_deadline()
        super().connectionLost(reason)
        self.site.connection_closed(self)

    def _start_deadline(self) -> None:
        self.site.waiting[self] = None
        self._deadline = self.site.clock.callLater(REQUEST_SECONDS, self.abort)

    def _stop_deadline(self) -> None:
        self.site.waiting.pop(self, None)
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()

    def abort(self) -> None:
        """Close now."""
        self._stop_deadline()
        transport: Any = self.transport
        transport.abortConnection()
