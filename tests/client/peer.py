"""The broker's end of connections, scripted, for the clients of all formats.

Answers are written beforehand, and requests are read afterwards. A format's test decodes its
requests.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Self

from tests.certificates import certificate


class Peer:
    """The listener at a client's address; it accepts and refuses as the test scripts it."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []
        self.slept: list[float] = []
        """The pauses of a client that has ``slept.append`` as its ``sleep``."""
        self.attempts = 0
        self._ready: list[socket.socket | None] = []
        self._received: dict[int, bytes] = {}

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Self]:
        """Yield a peer and close its sockets at the end."""
        one = cls()
        try:
            yield one
        finally:
            for end in [*one.ends, *one._ready]:
                if end is not None:
                    end.close()

    def will_accept(
        self, *answers: bytes, then_close: bool = False, in_bytes: bool = False
    ) -> None:
        """Let the next connection receive these bytes (and then the end of the stream).

        With ``in_bytes`` they arrive one by one, so that no answer comes before its request.
        """
        ours, theirs = socket.socketpair()
        ours.sendall(b"".join(answers))
        if then_close:
            ours.shutdown(socket.SHUT_WR)
        self.ends.append(ours)
        self._ready.append(_Trickle(fileno=theirs.detach()) if in_bytes else theirs)

    def will_refuse(self, times: int = 1) -> None:
        """Let the next attempts to connect fail."""
        self._ready += [None] * times

    def answer(self, answer: bytes) -> None:
        """Send on the last connection."""
        self.ends[-1].sendall(answer)

    def connect(self, address: object, timeout: float) -> socket.socket:
        """Connect as `open_socket` does; clients get this method in its place."""
        self.attempts += 1
        ready = self._ready.pop(0) if self._ready else None
        if ready is None:
            raise ConnectionRefusedError("nobody listens")
        return ready

    def received(self, connection: int = 0) -> bytes:
        """Return all bytes that a client sent on a connection."""
        data = self._received.get(connection, b"")
        end = self.ends[connection]
        end.setblocking(False)
        try:
            while more := end.recv(1 << 20):
                data += more
        except BlockingIOError:
            pass
        end.setblocking(True)
        self._received[connection] = data
        return data


class _Trickle(socket.socket):
    """A socket that receives one byte at a time."""

    def recv(self, most: int, flags: int = 0) -> bytes:
        return super().recv(1, flags)


Connect = Callable[[object, float], socket.socket]


@contextmanager
def over_tls(
    directory: Path, feed: Callable[[bytes], list[Any]], answer: bytes = b""
) -> Iterator[tuple[Connect, ssl.SSLContext]]:
    """Run a peer named "broker" that answers each request over TLS, on one connection.

    Yield a replacement of `open_socket` that can be called once, and a context that trusts the
    peer. ``feed`` belongs to a reader of requests.
    """
    cert, key = certificate(directory)
    ours, theirs = socket.socketpair()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    ready = [theirs]

    def serve() -> None:
        try:
            with server.wrap_socket(ours, server_side=True) as end:
                while data := end.recv(65_536):
                    if feed(data):
                        end.sendall(answer)
        except (ssl.SSLError, ConnectionError):
            ours.close()  # the client refused the certificate, or never connected

    thread = Thread(target=serve)
    thread.start()
    try:
        yield lambda address, timeout: ready.pop(), ssl.create_default_context(cafile=str(cert))
    finally:
        theirs.close()
        thread.join(60.0)
    assert not thread.is_alive()
