# Tests: tests/test_bench.py
"""A dummy that answers like a broker without its work, to find the load generator's own limit.

Contract: :func:`serve` answers every whole request on every connection at once, in order, from
constant bytes. It keeps nothing, so an ACQUIRE_NEXT always finds the same message. It recognises
requests of Mamamia by their frames, and requests of a `Constant` by their size.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from struct import Struct
from typing import NamedTuple

from brokerd.cli.bench.scenarios import ACQUIRE, PRODUCE, SETTLE, request

_LENGTH = Struct(">I")
_PRODUCED = request(PRODUCE, {"message_id": 100_000})
_ACQUIRED = request(
    ACQUIRE,
    {"message": {"id": 100_000, "log_id": "bench", "payload": b"x" * 100, "metadata": None}},
)
_SETTLED = request(SETTLE, {"status": "settled"})
_ANSWERS = {PRODUCE: _PRODUCED, ACQUIRE: _ACQUIRED, SETTLE: _SETTLED}


class Constant(NamedTuple):
    """Requests of one size and the answer to each."""

    request_bytes: int
    answer: bytes

    def answers(self, data: bytes) -> tuple[bytes, int]:
        """Answer requests as the function `answers` does."""
        count = len(data) // self.request_bytes
        return self.answer * count, count * self.request_bytes


def answers(data: bytes) -> tuple[bytes, int]:
    """Answer the whole frames of ``data``; return the answers and the number of bytes used."""
    if len(data) < 6:
        return b"", 0
    size = 4 + _LENGTH.unpack_from(data)[0]
    alike = data.count(data[:30])
    if alike * size == len(data):
        return _ANSWERS[data[5]] * alike, len(data)
    found: list[bytes] = []
    at = 0
    while len(data) - at >= 6:
        size = 4 + _LENGTH.unpack_from(data, at)[0]
        if len(data) - at < size:
            break
        found.append(_ANSWERS[data[at + 5]])
        at += size
    return b"".join(found), at


def serve(listener: socket.socket, answers: Callable[[bytes], tuple[bytes, int]] = answers) -> None:
    """Answer every connection of a listening socket until the process ends."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ, None)
    rest: dict[socket.socket, bytes] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                accepted, _ = listener.accept()
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(accepted, selectors.EVENT_READ, accepted)
                rest[accepted] = b""
                continue
            sock: socket.socket = key.data
            try:
                data = sock.recv(1 << 18)
                reply, used = answers(rest[sock] + data)
                rest[sock] = (rest[sock] + data)[used:]
                if reply:
                    sock.sendall(reply)
            except OSError:
                data = b""
            if not data:
                selector.unregister(sock)
                sock.close()
                del rest[sock]


class Responder:
    """The dummy in a process of its own, as a context manager; it listens at ``address``."""

    def __init__(self, constant: Constant | None = None) -> None:
        self._answers = answers if constant is None else constant.answers
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._process: BaseProcess | None = None

    def __enter__(self) -> Responder:
        self._process = get_context("fork").Process(
            target=serve, args=(self._listener, self._answers), daemon=True
        )
        self._process.start()
        self._listener.close()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
