"""Send HTTP to the admin site of a broker in one process, and read the answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from prometheus_client import CollectorRegistry, generate_latest
from twisted.internet.testing import StringTransport
from twisted.logger import Logger
from twisted.web.resource import Resource

from brokerd.admin.api import make_api
from brokerd.admin.health import Health
from brokerd.admin.http.authentication import Authenticator
from brokerd.admin.http.hosts import Hosts
from brokerd.admin.site import make_site
from brokerd.security import OPEN_GUARD, Guard
from tests.house import House

JSON = "content-type: application/json\r\n"


class Wire(StringTransport):
    """A transport that records an abort."""

    aborted = False

    def abortConnection(self) -> None:
        self.aborted = True
        self.loseConnection()


class Printed(Resource):
    """A registry as text, in the place of prometheus_client's resource."""

    isLeaf = True

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._registry = registry

    def render_GET(self, request: Any) -> bytes:
        return generate_latest(self._registry)


class Caller:
    """A client of the API of one broker; each call is a connection of its own."""

    def __init__(
        self,
        house: House | None = None,
        guard: Guard = OPEN_GUARD,
        hosts: Hosts | None = None,
        status: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self.house = house or House()
        self.authenticator = Authenticator(guard, self.house.clock.seconds, bytes(32))
        self.site = make_site(
            status,
            make_api(self.house.broker, self.authenticator),
            Health(),
            Printed,
            self.house.clock,
            Logger(),
            hosts,
        )

    def connect(self) -> tuple[Any, Wire]:
        """Return a new connection: the server's side, and its transport."""
        channel, wire = self.site.buildProtocol(None), Wire()
        channel.makeConnection(wire)
        return channel, wire

    def send(self, method: str, path: str, body: bytes = b"", head: str = JSON) -> tuple[Any, Wire]:
        """Send a request without waiting; return the connection."""
        channel, wire = self.connect()
        lines = f"{method} /api/v1{path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n{head}"
        lines += f"content-length: {len(body)}\r\n\r\n"
        channel.dataReceived(lines.encode("utf-8", "surrogateescape") + body)
        return channel, wire

    def call(
        self, method: str, path: str, body: Any = None, head: str = JSON, **query: Any
    ) -> tuple[int, Any]:
        """Send a request, run until it is answered, and return (status, JSON)."""
        raw = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        if query:
            path += "?" + "&".join(f"{name}={quote(str(one))}" for name, one in query.items())
        _, wire = self.send(method, path, raw, head)
        self.house.run()
        return answer_of(wire)

    def get(self, path: str, **query: Any) -> tuple[int, Any]:
        return self.call("GET", path, head="", **query)

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        return self.call("POST", path, body)


def answer_of(wire: Wire) -> tuple[int, Any]:
    """Return (status, JSON) of the written answer."""
    top, _, content = wire.value().partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 "), top
    return int(top.split()[1]), json.loads(content) if content else None
