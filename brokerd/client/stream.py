# Tests: tests/client/test_stream.py
"""A blocking byte stream to a broker, plain or TLS, for the clients of all formats."""

from __future__ import annotations

import select
import ssl
from collections.abc import Callable
from socket import socket

from brokerd.client.addresses import Address, open_socket, parse_address
from brokerd.client.errors import ConnectionLost

Connect = Callable[[Address, float], socket]

TIMEOUT = 60.0
"""Seconds to connect, and to wait for bytes of an answer, unless a client says otherwise."""
RECEIVE_BYTES = 65_536
_POLL_MS_MAX = (1 << 31) - 1
"""Longest wait of poll(2), 24 days, in place of longer ones."""
_NOTHING_YET = (TimeoutError, BlockingIOError, ssl.SSLWantReadError)
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Stream:
    """One connection, opened when first used and again after it was lost or closed.

    :param address: ``host:port``, ``[v6]:port`` or ``unix:PATH``.
    :param timeout: seconds to connect, to send a request, and to wait for a byte.
    :param ssl_context: speak TLS, checked against ``server_hostname`` (the host if None).
    :param connect: opens the socket; for tests and unusual networks.
    :raises AddressError: the address cannot be read.

    After ConnectionLost, TimeoutError or any other OSError the connection is closed. The server may
    or may not have carried out the last request.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        connect: Connect = open_socket,
    ) -> None:
        self.address = parse_address(address)
        self.timeout = timeout
        self._ssl_context = ssl_context
        self._server_hostname = server_hostname or self.address.host or None
        self._connect = connect
        self._socket: socket | None = None

    @property
    def connected(self) -> bool:
        """Return whether the stream is connected, as far as it knows."""
        return self._socket is not None

    def open(self) -> None:
        """Connect, if not connected."""
        self._opened()

    def _opened(self) -> socket:
        if self._socket is None:
            opened = self._connect(self.address, self.timeout)
            if self._ssl_context is not None:
                try:
                    opened = self._ssl_context.wrap_socket(
                        opened, server_hostname=self._server_hostname
                    )
                except (OSError, ValueError):  # ValueError: the name cannot be checked
                    opened.close()
                    raise
            self._socket = opened
        return self._socket

    def send(self, data: bytes) -> None:
        """Send all of ``data``. Raises TimeoutError if the peer does not read."""
        opened = self._opened()
        try:
            opened.settimeout(self.timeout)
            opened.sendall(data)
        except TimeoutError:
            self.close()
            raise TimeoutError(
                f"{self.address} did not take the request within {self.timeout} seconds"
            ) from None
        except OSError as error:
            self.close()
            raise ConnectionLost(f"{self.address}: {error}") from error

    def receive(self, timeout: float | None = None) -> bytes:
        """Return the next bytes, at least one; ``timeout`` in seconds, or that of the stream."""
        timeout = self.timeout if timeout is None else timeout
        data = self.poll(timeout)
        if not data:
            self.close()
            raise TimeoutError(f"no answer from {self.address} within {timeout} seconds")
        return data

    def poll(self, timeout: float) -> bytes:
        """Like `receive`, but return b"" after ``timeout`` seconds; the stream stays open."""
        opened = self._opened()
        try:
            opened.settimeout(timeout)
            data = opened.recv(RECEIVE_BYTES)
        except _NOTHING_YET:
            return b""
        except OSError as error:
            self.close()
            raise ConnectionLost(f"{self.address}: {error}") from error
        return self._not_ended(data)

    def transfer(self, outgoing: bytearray, timeout: float) -> bytes:
        """Send a part of ``outgoing`` and remove it there; return received bytes, maybe b"".

        It waits until one of both is possible, so neither end waits for the other to read. Raises
        TimeoutError after ``timeout`` seconds.
        """
        opened = self._opened()
        try:
            opened.setblocking(False)
            sent = _send_some(opened, outgoing) if outgoing else 0
            del outgoing[:sent]
            data = _receive_some(opened)
            idle = data is None and not sent and not _is_ready(opened, bool(outgoing), timeout)
        except OSError as error:
            self.close()
            raise ConnectionLost(f"{self.address}: {error}") from error
        if idle:
            self.close()
            raise TimeoutError(f"no answer from {self.address} within {timeout} seconds")
        return b"" if data is None else self._not_ended(data)

    def _not_ended(self, data: bytes) -> bytes:
        if not data:
            self.close()
            raise ConnectionLost(f"{self.address} closed the connection")
        return data

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _send_some(opened: socket, outgoing: bytearray) -> int:
    """Send without blocking; return the number of bytes."""
    try:
        return opened.send(outgoing)
    except _NOT_NOW:
        return 0


def _receive_some(opened: socket) -> bytes | None:
    """Receive without blocking; return b"" at the end of the stream, None without bytes."""
    try:
        return opened.recv(RECEIVE_BYTES)
    except _NOT_NOW:
        return None


def _is_ready(opened: socket, to_send: bool, timeout: float) -> bool:
    """Wait until bytes arrive, or if ``to_send`` until bytes can be sent."""
    poll = select.poll()
    poll.register(opened, select.POLLIN | (select.POLLOUT if to_send else 0))
    return bool(poll.poll(min(timeout * 1000, _POLL_MS_MAX)))
