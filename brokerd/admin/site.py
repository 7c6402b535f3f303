# Tests: tests/admin/test_site.py
"""The admin site: ``/health/...``, ``/metrics``, ``/api/v1/...`` as JSON, and a page at ``/``.

Only the API changes state. Requests have deadlines, bodies are bounded and connections are few, so
a slow or greedy HTTP client costs little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from prometheus_client import CollectorRegistry
from twisted.internet.interfaces import IAddress
from twisted.logger import Logger
from twisted.web import http
from twisted.web.resource import IResource
from twisted.web.server import Request, Site

from brokerd.admin.health import Health, Phase
from brokerd.admin.http.access_log import AccessLog
from brokerd.admin.http.hosts import Hosts
from brokerd.admin.http.origins import RefusedLoad, is_embedded
from brokerd.admin.http.permission import PermissionResource
from brokerd.admin.http.places import SitePlaces
from brokerd.admin.http.request import (
    BodyBudget,
    BodyReads,
    BoundedRequest,
    Pipelines,
    TimedChannel,
)
from brokerd.admin.http.resources import METHODS, Answer, Branch, JSONResource
from brokerd.admin.http.routing import Api
from brokerd.admin.metrics import make_registry
from brokerd.security import MONITOR

IDLE_SECONDS = 30
KEPT_DESCRIPTORS = 32
"""File descriptors that the connections of the site leave to the broker."""
CONTENT_SECURITY_POLICY = (
    b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: the page loads only its own files, sends no form, and no page may frame
it.
"""
HEADERS = {
    b"content-security-policy": CONTENT_SECURITY_POLICY,
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"same-origin",  # with no-referrer some browsers send Origin: null
    b"x-content-type-options": b"nosniff",
}
"""Headers of every answer: no page of another origin holds an answer, not even unread."""

Status = Callable[[], Mapping[str, Any]]
MetricsResource = Callable[[CollectorRegistry], IResource]

_STATIC = {
    b"": ("index.html", b"text/html; charset=utf-8"),
    b"page.css": ("page.css", b"text/css; charset=utf-8"),
    **{
        name.encode(): (name, b"text/javascript; charset=utf-8")
        for name in (
            "page.js",
            "console.js",
            "actions.js",
            "api.js",
            "charts.js",
            "dialogs.js",
            "dom.js",
            "lists.js",
            "login.js",
            "schemas.js",
            "security.js",
            "views.js",
        )
    },
}


def make_site(
    status: Status,
    api: Api,
    health: Health,
    metrics: MetricsResource,
    reactor: Any,
    log: Logger,
    hosts: Hosts | None = None,
) -> AdminSite:
    """Make the site.

    :param status: returns the status for the page, the API and the metrics; called in the reactor.
    :param api: the resource for ``/api/v1``, without the status; see `brokerd.admin.api`.
    :param metrics: makes the resource that prints a registry, for example prometheus_client's.
    :param reactor: times the requests.
    :param hosts: the accepted host names; None accepts all.
    """
    return AdminSite(_Root(status, api, health, metrics), api, hosts, reactor, log)


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
        self._guard = version.authenticator.guard
        branch = Branch()
        branch.putChild(b"live", JSONResource(self._live))
        branch.putChild(b"ready", JSONResource(self._ready))
        self.putChild(b"health", branch)
        self.putChild(
            b"metrics",
            PermissionResource(version.authenticator, MONITOR, _Metrics(status, metrics)),
        )
        facts = JSONResource(lambda request: (http.OK, status()))
        version.putChild(b"status", PermissionResource(version.authenticator, MONITOR, facts))
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
        """Return phase and conditions; with security on, without reasons, which may name topics."""
        return self._health.describe(with_reasons=not self._guard.auth)


class _Metrics(Branch):
    """Takes the status in the reactor thread; Prometheus's resource prints it."""

    isLeaf = True

    def __init__(self, status: Status, metrics: MetricsResource) -> None:
        super().__init__()
        self._status = status
        self._metrics = metrics

    def render_GET(self, request: Request) -> Any:
        """Print the current metrics."""
        request.setHeader(b"cache-control", b"no-store")
        return self._metrics(make_registry(self._status())).render(request)


class _Static(Branch):
    isLeaf = True

    def __init__(self, path: bytes) -> None:
        super().__init__()
        name, self._type = _STATIC[path]
        self._body = resources.files("brokerd.admin").joinpath("static", name).read_bytes()

    def render_GET(self, request: Request) -> bytes:
        request.setHeader(b"content-type", self._type)
        request.setHeader(b"cache-control", b"no-cache")
        return self._body


class AdminSite(Site):
    """The HTTP factory of the admin endpoint."""

    noisy = False
    protocol = TimedChannel  # type: ignore[assignment]  # plain HTTP/1.1; Site also offers HTTP/2
    requestFactory = BoundedRequest

    def __init__(
        self, root: IResource, api: Api, hosts: Hosts | None, reactor: Any, log: Logger
    ) -> None:
        super().__init__(root, requestFactory=BoundedRequest, timeout=IDLE_SECONDS, reactor=reactor)
        self.clock = reactor
        self.api = api
        self.bodies = BodyBudget()
        self.body_reads = BodyReads(reactor, api.light_waits)
        self.pipelines = Pipelines(reactor)
        self.places = SitePlaces(api.authenticator.guard)
        self._hosts = hosts
        self._access_log = AccessLog(log, reactor)
        self.descriptors_left: Callable[[], int] = lambda: KEPT_DESCRIPTORS
        """Returns how many more files the process may open."""

    def buildProtocol(self, addr: IAddress | None) -> Any:
        """Return a connection, perhaps in place of another; None if there is no place for it."""
        host = getattr(addr, "host", None)
        if not self.places.make_room(host, self.descriptors_left() < KEPT_DESCRIPTORS):
            return None
        channel: Any = super().buildProtocol(addr)
        self.places.add(channel, host)
        return channel

    def stopFactory(self) -> None:
        """The port stopped listening."""
        super().stopFactory()
        self._access_log.end()

    def getResourceFor(self, request: Any) -> Any:
        """Return the resource of a request; a refusal for an unknown host name, and for a read
        that a page of another origin embeds.
        """
        for name, value in HEADERS.items():
            request.setHeader(name, value)
        refused = None if self._hosts is None else self._hosts.refused(request)
        if refused is None and request.method in METHODS and is_embedded(request):
            return RefusedLoad()
        return super().getResourceFor(request) if refused is None else refused

    def log(self, request: Any) -> None:
        """Write one access line, or count it."""
        self._access_log.add(request, request.sender.access)
