# Tests: tests/protocols/test_transport.py
"""The one place that reaches behind Twisted's public transport interface.

For a plain TCP or Unix connection with nothing buffered, `send` tries the socket at once, which
saves a turn of the reactor and two changes of its poll set for every answer. Everything else,
TLS above all, takes the public road.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from twisted.internet import tcp, unix
from twisted.internet.interfaces import ITCPTransport
from twisted.protocols.tls import TLSMemoryBIOProtocol

QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
"""Linux's option to acknowledge at once."""

AT_ONCE_BYTES = 1024 * 1024
"""What is longer is sent by the reactor, piece by piece, while others are served."""

LARGE_BYTES = 64 * 1024
"""What has so many bytes is not copied to be sent in one piece with something else."""


def send_all(transport: Any, parts: Sequence[bytes]) -> None:
    """`send` all of these, in as few pieces as there can be without copying large ones."""
    if len(parts) == 1:
        send(transport, parts[0])
        return
    small: list[bytes] = []
    for part in parts:
        if len(part) < LARGE_BYTES:
            small.append(part)
            continue
        if small:
            send(transport, b"".join(small))
            small.clear()
        send(transport, part)
    if small:
        send(transport, b"".join(small))


def send(transport: Any, data: bytes) -> None:
    """Write ``data`` in order with everything written before; as soon as possible."""
    kind = type(transport)
    if (
        0 < len(data) <= AT_ONCE_BYTES
        and (kind is tcp.Server or kind is unix.Server)
        and not transport.TLS
        and transport.connected
        and not transport.disconnecting
        and not transport.dataBuffer
        and not transport._tempDataBuffer
    ):
        left = memoryview(data)
        while left:
            sent = transport.writeSomeData(left)
            if not isinstance(sent, int) or sent <= 0:
                break
            left = left[sent:]
        else:
            return
        data = bytes(left)
    transport.write(data)


def lose_sending(transport: Any) -> bool:
    """Shut the sending side of a plain connection once everything is sent, and read on.

    False, and nothing is done, where that has no meaning: TLS ends with goodbyes of both sides.
    """
    if type(transport) not in (tcp.Server, unix.Server) or transport.TLS:
        return False
    transport.loseWriteConnection()
    return True


def lose_at_once(transport: Any) -> None:
    """Close once everything is sent, without waiting for what the peer says to that.

    TLS says goodbye, and does not wait for the peer's, as it need not (RFC 8446, section 6.1).
    """
    transport.loseConnection()
    if isinstance(transport, TLSMemoryBIOProtocol) and transport.transport is not None:
        transport.transport.loseConnection()


def acknowledge(transport: Any) -> None:
    """Have the kernel acknowledge what was read without waiting for an answer to go with it.

    For plain TCP, where the system can; it holds until the next bytes come. Other transports are
    left alone.
    """
    if (
        QUICKACK is not None
        and type(transport) is tcp.Server
        and transport.connected
        and not transport.TLS
    ):
        transport.socket.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)


def prepare(transport: Any) -> None:
    """Send small answers at once instead of waiting for more, and notice peers that vanish."""
    # Older releases of Twisted give Unix sockets the methods of TCP and log that they fail.
    if type(transport) is not unix.Server and ITCPTransport.providedBy(transport):
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)


def peer_text(transport: Any) -> str:
    """The address of the peer without its port; ``unix`` for a socket in the file system."""
    return getattr(transport.getPeer(), "host", None) or "unix"
