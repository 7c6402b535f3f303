# Tests: tests/admin/test_site.py
"""The admin site: ``/health/...``, ``/metrics``, ``/api/v1/...`` as JSON, and a page at ``/``.

Only the API changes anything. Every request has a deadline, bodies are bounded, connections are
few, so that a slow or greedy HTTP client costs little. The access log takes its time from the log,
which runs on the wall clock: the reactor's clock is monotonic and would print nonsense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from prometheus_client import CollectorRegistry
from twisted.internet.interfaces import IAddress, IDelayedCall
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import IResource, Resource
from twisted.web.server import Request, Site

from brokerd.admin.health import Health, Phase
from brokerd.admin.metrics import make_registry
from brokerd.admin.permitted import Permitted
from brokerd.admin.resources import Answer, Branch, JSONResource
from brokerd.admin.routing import Api
from brokerd.security import MONITOR, Access

IDLE_SECONDS = 30
REQUEST_SECONDS = 30.0
"""How long a request may take to arrive as a whole, however it trickles in."""
MAX_BODY_BYTES = 16 * 1024 * 1024
"""What any request may have; most of the API takes less."""
MAX_CONNECTIONS = 100
CONTENT_SECURITY_POLICY = b"default-src 'self'; frame-ancestors 'none'"
"""The page takes nothing from elsewhere, and is no part of another's page."""

Status = Callable[[], Mapping[str, Any]]
MetricsResource = Callable[[CollectorRegistry], IResource]

_STATIC = {
    b"": ("index.html", b"text/html; charset=utf-8"),
    b"page.css": ("page.css", b"text/css; charset=utf-8"),
    b"page.js": ("page.js", b"text/javascript; charset=utf-8"),
}


def make_site(
    status: Status,
    api: Api,
    health: Health,
    metrics: MetricsResource,
    reactor: Any,
    log: Logger,
) -> AdminSite:
    """Put the site together.

    :param status: gives the facts for the page, the API and the metrics; called in the reactor.
    :param api: what hangs below ``/api/v1``, besides the status; see `brokerd.admin.api`.
    :param metrics: makes the resource that prints a registry, such as prometheus_client's.
    :param reactor: times the requests.
    """
    return AdminSite(_Root(status, api, health, metrics), reactor, log)


class _Root(Branch):
    def __init__(
        self,
        status: Status,
        version: Api,
        health: Health,
        metrics: MetricsResource,
    ) -> None:
        super().__init__()
        self._health = health
        self._guard = version.asker.guard
        branch = Branch()
        branch.putChild(b"live", JSONResource(self._live))
        branch.putChild(b"ready", JSONResource(self._ready))
        self.putChild(b"health", branch)
        self.putChild(b"metrics", Permitted(version.asker, MONITOR, _Metrics(status, metrics)))
        facts = JSONResource(lambda request: (http.OK, status()))
        version.putChild(b"status", Permitted(version.asker, MONITOR, facts))
        api = Branch()
        api.putChild(b"v1", version)
        self.putChild(b"api", api)
        for path in _STATIC:
            self.putChild(path, _Static(path))

    def _live(self, request: Request) -> tuple[int, Answer]:
        failed = self._health.phase is Phase.FAILED
        return (http.SERVICE_UNAVAILABLE if failed else http.OK), self._described()

    def _ready(self, request: Request) -> tuple[int, Answer]:
        code = http.OK if self._health.ready else http.SERVICE_UNAVAILABLE
        return code, self._described()

    def _described(self) -> Answer:
        """The phase; with security on not what is wrong, which may name topics."""
        if self._guard.auth:
            return {"phase": self._health.phase.value}
        return self._health.describe()


class _Metrics(Resource):
    """Takes the status in the reactor's thread and leaves the printing to Prometheus's resource."""

    isLeaf = True

    def __init__(self, status: Status, metrics: MetricsResource) -> None:
        super().__init__()
        self._status = status
        self._metrics = metrics

    def render_GET(self, request: Request) -> Any:
        """Print the metrics of this moment."""
        return self._metrics(make_registry(self._status())).render(request)


class _Static(Resource):
    isLeaf = True

    def __init__(self, path: bytes) -> None:
        super().__init__()
        name, self._type = _STATIC[path]
        self._body = resources.files("brokerd.admin").joinpath("static", name).read_bytes()

    def render_GET(self, request: Request) -> bytes:
        request.setHeader(b"content-type", self._type)
        request.setHeader(b"cache-control", b"no-cache")
        request.setHeader(b"content-security-policy", CONTENT_SECURITY_POLICY)
        return self._body


class _Request(Request):
    """A request whose body is bounded, declared or chunked."""

    _received = 0
    _refused = False

    def gotLength(self, length: int | None) -> None:
        too_long = length is not None and length > MAX_BODY_BYTES
        super().gotLength(0 if too_long else length)
        if too_long:
            self._refuse()

    def handleContentChunk(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > MAX_BODY_BYTES:
            self._refuse()
        else:
            super().handleContentChunk(data)

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


class _Channel(http.HTTPChannel):
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
        self.site.connection_closed()

    def _start_deadline(self) -> None:
        self._deadline = self.site.clock.callLater(REQUEST_SECONDS, self._expired)

    def _stop_deadline(self) -> None:
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()

    def _expired(self) -> None:
        transport: Any = self.transport
        transport.abortConnection()


class AdminSite(Site):
    """The HTTP factory of the admin endpoint."""

    noisy = False
    protocol = _Channel  # type: ignore[assignment]  # plain HTTP/1.1; Site would also offer HTTP/2
    requestFactory = _Request

    def __init__(self, root: IResource, reactor: Any, log: Logger) -> None:
        super().__init__(root, requestFactory=_Request, timeout=IDLE_SECONDS, reactor=reactor)
        self.clock = reactor
        self._access_log = log
        self._connections = 0

    def buildProtocol(self, addr: IAddress | None) -> Any:
        """Take a connection, or refuse it with None when there are too many."""
        if self._connections >= MAX_CONNECTIONS:
            return None
        self._connections += 1
        return super().buildProtocol(addr)

    def connection_closed(self) -> None:
        """Count a connection that ended."""
        self._connections -= 1

    def log(self, request: Any) -> None:
        """Write one access line as an event of its own."""
        self._access_log.info(
            '{client} "{method} {path} {protocol}" {code} {sent_bytes}',
            event_id="admin-request",
            client=getattr(request.client, "host", None) or "-",
            method=_text(request.method),
            path=_text(request.uri),
            protocol=_text(request.clientproto),
            code=request.code,
            sent_bytes=request.sentLength,
        )


def _text(raw: bytes) -> str:
    return raw.decode("ascii", "backslashreplace")
