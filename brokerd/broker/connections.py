# Tests: tests/admin/test_connection_calls.py
"""The open connections of all listeners of wire formats, by id, for the admin site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class ConnectionInfo(NamedTuple):
    """An open connection: its client, and the requests that wait."""

    wire_format: str
    address: str
    """The peer's address, or ``unix``."""
    port: int | None
    user: str
    """The account; empty: anonymous, or security is off."""
    tls: bool
    open_us: int
    idle_us: int
    """Time since the last byte of the client."""
    requests: int
    """Requests without an answer."""
    unread_bytes: int
    """Bytes of answers and requests that wait in the broker."""
    holds: list[str]
    """Reasons for which the broker handles no further request of it now."""


class OpenConnection(Protocol):
    """A connection of a wire format."""

    def info(self, now_us: int) -> ConnectionInfo:
        """Describe the connection."""

    def abort(self) -> None:
        """Close now and drop all queued answers."""


class ConnectionRegistry:
    """Numbers connections. A later connection has a higher id; no id is used again."""

    def __init__(self) -> None:
        self._open: dict[int, OpenConnection] = {}
        self._last_id = 0

    def add(self, connection: OpenConnection) -> int:
        """Add an open connection; return its id."""
        self._last_id += 1
        self._open[self._last_id] = connection
        return self._last_id

    def remove(self, connection_id: int) -> None:
        """Forget a closed connection."""
        self._open.pop(connection_id, None)

    def find(self, connection_id: int) -> OpenConnection | None:
        """Return an open connection, or None."""
        return self._open.get(connection_id)

    def from_id(self, first_id: int) -> Iterator[tuple[int, OpenConnection]]:
        """Iterate over (id, connection) in the order of ids, from an id on."""
        return (item for item in self._open.items() if item[0] >= first_id)
