"""A broker's end of connections, scripted, for the clients of all formats.

Answers are written beforehand, and requests read afterwards. A format's test says how its requests
are read.
"""

from __future__ import annotations

import datetime
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Peer:
    """What listens, or does not, at the address that a client was given."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []
        self.slept: list[float] = []
        """The pauses of a client that has ``slept.append`` for its ``sleep``."""
        self.attempts = 0
        self._ready: list[socket.socket | None] = []
        self._received: dict[int, bytes] = {}

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Self]:
        """A peer whose sockets are closed in the end."""
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
        """The next connection will find these bytes (and then the end of the stream).

        With ``in_bytes`` they arrive one by one, so that no answer is there before its request.
        """
        ours, theirs = socket.socketpair()
        ours.sendall(b"".join(answers))
        if then_close:
            ours.shutdown(socket.SHUT_WR)
        self.ends.append(ours)
        self._ready.append(_Trickle(fileno=theirs.detach()) if in_bytes else theirs)

    def will_refuse(self, times: int = 1) -> None:
        """The next attempts to connect will fail."""
        self._ready += [None] * times

    def answer(self, answer: bytes) -> None:
        """Send on the connection that is there."""
        self.ends[-1].sendall(answer)

    def connect(self, address: object, timeout: float) -> socket.socket:
        """What a client takes for `open_socket`."""
        self.attempts += 1
        ready = self._ready.pop(0) if self._ready else None
        if ready is None:
            raise ConnectionRefusedError("nobody listens")
        return ready

    def received(self, connection: int = 0) -> bytes:
        """All that a client sent on a connection."""
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
    """One byte at a time."""

    def recv(self, most: int, flags: int = 0) -> bytes:
        return super().recv(1, flags)


def certificate(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate for "broker" and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    day = datetime.timedelta(days=1)
    today = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - day)
        .not_valid_after(today + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("broker")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "cert.pem", directory / "key.pem"
    paths[0].write_bytes(built.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return paths
