# Tests: tests/admin/test_connection_calls.py
"""Requests and answers about connections; see `brokerd.admin.shapes.common`."""

from __future__ import annotations

from msgspec import Struct

from brokerd.admin.shapes.common import Limit, Offset, Query


class ConnectionQuery(Query, frozen=True):
    """A page of the connections that match every given field, from an id on."""

    first_id: Offset = 0
    limit: Limit = 1_000
    format: str | None = None
    user: str | None = None
    """An account; empty: anonymous."""
    address: str | None = None


class ConnectionShape(Struct):
    """An open connection to a listener of a wire format."""

    id: int
    format: str
    address: str
    """The peer's address, or ``unix``."""
    port: int | None
    user: str
    """The account; empty: anonymous, or security is off."""
    tls: bool
    open_seconds: float
    idle_seconds: float
    """Time since the last byte of the client."""
    requests: int
    """Requests without an answer."""
    unread_bytes: int
    """Bytes of answers and requests that wait in the broker."""
    holds: list[str]
    """Reasons for which the broker handles no further request of it now."""


class ConnectionList(Struct):
    """A page of connections. ``next`` is ``first_id`` of the next page."""

    connections: list[ConnectionShape]
    next: int | None


class Closed(Struct):
    """The id of the closed connection."""

    closed: int
