"""The admin API's routes (docs/admin-api.rst), status and metrics."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from twisted.internet.error import ConnectionLost
from twisted.internet.testing import StringTransport
from twisted.logger import Logger
from twisted.python.failure import Failure

from brokerd.admin.health import Health
from brokerd.admin.site import make_site
from tests.admin.caller import Printed
from tests.corehouse import CoreHouse
from tests.cross.operations.form import Form, Operation, Request

API = "/api/v1"
STATUSES = {"unauthorized": 403, "authentication required": 401, "invalid API key": 401}


def refused(request: bytes, words: str) -> bytes:
    """Return the refusal of a request, in the form of `told`."""
    return b"%d " % STATUSES[words] + json.dumps({"error": words, "retryable": False}).encode()


def told(answer: bytes) -> bytes:
    """Return status and JSON of an answer, without the headers, which have the time."""
    if not answer:
        return b""
    head, _, content = answer.partition(b"\r\n\r\n")
    with suppress(ValueError):  # metrics are text
        content = json.dumps(json.loads(content)).encode()
    return head.split()[1] + b" " + content


def with_key(request: bytes, key: str) -> bytes:
    """Return a request with an API key."""
    header = f"\r\nauthorization: Bearer {key}" if key else ""
    return request.replace(b"\r\nhost: here", f"\r\nhost: here{header}".encode(), 1)


class Http:
    """A connection to the admin site of a core."""

    def __init__(self, house: CoreHouse) -> None:
        site = make_site(
            house.core.status, house.core.api(), Health(), Printed, house.clock, Logger()
        )
        self._channel: Any = site.buildProtocol(None)  # type: ignore[arg-type]
        self._transport = StringTransport()
        self._channel.makeConnection(self._transport)

    def send_bytes(self, data: bytes) -> None:
        if data:
            self._channel.dataReceived(data)

    def received_bytes(self) -> bytes:
        """Return all bytes received since the last call."""
        data = self._transport.value()
        self._transport.clear()
        return data

    def disconnect(self) -> None:
        """Disconnect."""
        self._channel.connectionLost(Failure(ConnectionLost()))

    @property
    def is_open(self) -> bool:
        return not self._transport.disconnecting


def call(method: str, path: str, body: dict[str, object] | None = None) -> Request:
    """Return a request. T stands for the topic in its path and in the values of its body."""

    def request(topic: str) -> bytes:
        there = path.replace("/T", f"/{topic}", 1)
        fields = {
            name: topic if one == "T" else [topic] if one == ["T"] else one
            for name, one in (body or {}).items()
        }
        content = json.dumps(fields).encode() if method != "GET" else b""
        lines = [f"{method} {there} HTTP/1.1", "host: here", f"content-length: {len(content)}"]
        if method != "GET":
            lines.append("content-type: application/json")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + content

    return request


def operation(
    needs: str, method: str, path: str, body: dict[str, object] | None = None
) -> Operation:
    return Operation(f"{method} {path}", needs, call(method, API + path, body))


TOPIC = "/topics/T"
GROUP = f"{TOPIC}/groups/g"
SHOWS, BY_ROLE = "none; shows topics with any", "ADMIN by role"

FORM = Form(
    "Admin site",
    "admin",
    "",
    [
        Operation("metrics", "MONITOR", call("GET", "/metrics")),
        Operation("health", "none", call("GET", "/health/live"), is_open=True),
        Operation("openapi", "none", call("GET", f"{API}/openapi.json"), is_open=True),
        operation("MONITOR", "GET", "/status"),
        operation("none", "GET", "/whoami"),
        operation("none", "GET", "/session"),
        operation("none", "POST", "/session", {}),
        operation("none", "DELETE", "/session"),
        operation(BY_ROLE, "GET", "/sessions"),
        operation(BY_ROLE, "DELETE", "/sessions/0"),
        operation(SHOWS, "GET", "/topics"),
        operation("ADMIN", "POST", "/topics", {"name": "T"}),
        operation("any", "GET", TOPIC),
        operation("ADMIN", "PATCH", f"{TOPIC}/settings", {"ttl_seconds": 0}),
        operation("ADMIN", "POST", f"{TOPIC}/trim", {"offset": 0}),
        operation("WRITE", "POST", f"{TOPIC}/records", {"records": [{"value": "x"}]}),
        operation("READ", "GET", f"{TOPIC}/records"),
        operation("READ", "GET", f"{TOPIC}/records/0/0"),
        operation("READ", "GET", f"{TOPIC}/offset?time=2026-01-01T00:00:00Z"),
        operation("READ", "GET", f"{TOPIC}/scheduled"),
        operation("WRITE", "DELETE", f"{TOPIC}/scheduled/0"),
        operation("READ", "GET", f"{TOPIC}/groups"),
        operation("none; shows topics with READ", "GET", "/groups"),
        operation("READ", "GET", GROUP),
        operation("ADMIN", "PATCH", f"{GROUP}/settings", {"max_attempts": 3}),
        operation("ADMIN", "POST", f"{GROUP}/pause"),
        operation("ADMIN", "POST", f"{GROUP}/resume"),
        operation("ADMIN", "POST", f"{GROUP}/seek", {"to": "start"}),
        operation("READ", "GET", f"{GROUP}/seek?to=start"),
        operation("READ", "GET", f"{GROUP}/leases"),
        operation("ADMIN", "POST", f"{GROUP}/leases/release", {"client": "c"}),
        operation("READ", "GET", f"{GROUP}/dead-letters"),
        operation("READ", "GET", f"{GROUP}/dead-letters/0/0"),
        operation("WRITE", "POST", f"{GROUP}/dead-letters/replay"),
        operation("ADMIN", "POST", f"{GROUP}/dead-letters/purge"),
        operation("ADMIN", "DELETE", GROUP),
        operation("MONITOR", "GET", "/archive"),
        operation("MONITOR", "POST", "/archive/refresh"),
        operation(BY_ROLE, "POST", "/wal/seal"),
        operation("MONITOR", "GET", "/transactions"),
        operation(BY_ROLE, "GET", "/configuration"),
        operation("MONITOR", "GET", "/connections"),
        operation(BY_ROLE, "DELETE", "/connections/0"),
        operation("MONITOR", "GET", "/clock"),
        operation(BY_ROLE, "POST", "/clock/set"),
        operation(BY_ROLE, "GET", "/users"),
        operation(BY_ROLE, "POST", "/users", {"name": "new"}),
        operation(BY_ROLE, "GET", "/users/spare"),
        operation(BY_ROLE, "PATCH", "/users/spare", {"enabled": True}),
        operation(BY_ROLE, "POST", "/users/spare/password", {"password": "x"}),
        operation(BY_ROLE, "DELETE", "/users/spare"),
        operation(BY_ROLE, "GET", "/acls"),
        operation(BY_ROLE, "GET", "/acls/effective/T"),
        *[
            operation(BY_ROLE, *rest)
            for place in ("/acls/topics/T", "/acls/prefixes/T")
            for rest in (
                ("GET", place),
                ("PUT", place, {"public": True}),
                ("PATCH", place, {"public": False}),
                ("DELETE", place),
            )
        ],
        operation(BY_ROLE, "GET", "/keys"),
        operation(BY_ROLE, "POST", "/keys", {"user": "by-prefix"}),
        operation(BY_ROLE, "DELETE", "/keys/0"),
        operation(BY_ROLE, "GET", "/quotas"),
        operation(BY_ROLE, "PUT", "/quotas/account/spare", {"requests": 1_000_000}),
        operation(BY_ROLE, "PATCH", "/quotas/account/spare", {"bytes_in": 1_000_000}),
        operation(BY_ROLE, "GET", "/quotas/account/spare"),
        operation(BY_ROLE, "DELETE", "/quotas/account/spare"),
        operation("MONITOR", "GET", "/streams"),
        operation("MONITOR", "GET", "/streams/s"),
        operation(
            "READ", "PUT", "/streams/new/position", {"log_id": "", "lsn": 0, "topics": ["T"]}
        ),
        operation(BY_ROLE, "DELETE", "/streams/s"),
        operation(BY_ROLE, "GET", "/audit"),
        operation("login", "GET", "/schemas"),
        operation("login", "GET", "/schemas/T"),
        operation("login", "GET", "/schemas/T/versions/1"),
        operation("login", "POST", "/schemas/T/validate", {"text": "1"}),
        operation("WRITE", "POST", "/schemas/T/versions", {"type": "json", "definition": "{}"}),
        operation("ADMIN", "PATCH", "/schemas/T", {"compatibility": "full"}),
        operation("ADMIN", "DELETE", "/schemas/T/versions/1"),
        operation("ADMIN", "DELETE", "/schemas/T"),
        operation("ADMIN", "DELETE", TOPIC),
    ],
    refused,
    by_key=True,
    with_key=with_key,
    connect=Http,
    told=told,
)
