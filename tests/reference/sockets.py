"""What every stand-in needs of a socket; nothing here knows a wire format."""

from __future__ import annotations

import socket


class Closed(Exception):
    """The other side ended the connection where more bytes were wanted."""


def host_and_port(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as the socket module takes it."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def read_exact(connection: socket.socket, count: int) -> bytes:
    """Read until there are ``count`` bytes, however they arrive.

    :raises Closed: at the end of the stream.
    :raises TimeoutError: when the socket has a time-out and it passes.
    """
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise Closed(f"end of stream after {len(data)} of {count} bytes")
        data += chunk
    return data
