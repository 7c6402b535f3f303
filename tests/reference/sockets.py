"""Helpers for sockets, common to all stand-ins and independent of wire formats."""

from __future__ import annotations

import socket


class Closed(Exception):
    """The other side ended the connection before all bytes came."""


def host_and_port(address: str) -> tuple[str, int]:
    """Return ``host:port`` or ``[v6]:port`` in the form of the socket module."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def read_exact(connection: socket.socket, count: int) -> bytes:
    """Read exactly ``count`` bytes, in any pieces.

    :raises Closed: at the end of the stream.
    :raises TimeoutError: the socket's time-out passes.
    """
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise Closed(f"end of stream after {len(data)} of {count} bytes")
        data += chunk
    return data
