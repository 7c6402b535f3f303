# Tests: tests/test_torture.py
"""A blocking, pipelined Mamamia connection that knows which requests were answered when it broke.

Contract: :meth:`Wire.exchange` sends requests in one go and returns their answers in order. When
the connection breaks, :class:`Interrupted` carries the earlier answers. The broker may or may not
have carried out the unanswered requests; the caller decides which of them to send again. Frames and
commands: docs/protocols/mamamia.rst.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

import msgpack

from brokerd.cli.bench.formats.base import parse_address
from brokerd.cli.bench.scenarios import (
    ACQUIRE,
    ACQUIRE_BATCH,
    PRODUCE,
    SETTLE,
    SETTLE_BATCH,
    request,
)

GROUP_INFO = 0x85

Answer = dict[str, Any]

_HEADER = Struct(">IBB")
_RETRY_SECONDS = 0.01
_SILENCE_SECONDS = 60.0

__all__ = [
    "ACQUIRE",
    "ACQUIRE_BATCH",
    "GROUP_INFO",
    "PRODUCE",
    "SETTLE",
    "SETTLE_BATCH",
    "Answer",
    "Interrupted",
    "Wire",
    "WireError",
    "dial",
    "request",
]


class Interrupted(Exception):
    """The connection broke before every answer was there.

    :ivar answers: the received answers, in the order of their requests.
    """

    def __init__(self, answers: list[Answer], why: str) -> None:
        super().__init__(f"interrupted after {len(answers)} answers: {why}")
        self.answers = answers


class WireError(Exception):
    """The peer gave no answer, or an answer that does not fit the request."""


class Wire:
    """One connection.

    :raises OSError: nobody listens at the address.
    """

    def __init__(self, address: str) -> None:
        family, target = parse_address(address)
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._sock.settimeout(_SILENCE_SECONDS)
            self._sock.connect(target)
            if family != socket.AF_UNIX:
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            self._sock.close()
            raise
        self._inbox = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def exchange(self, requests: Sequence[bytes]) -> list[Answer]:
        """Send whole request frames and return one answer for each, in order.

        Keep the requests of one call below some hundred kilobytes: nothing is read until all is
        sent.

        :raises Interrupted: the connection breaks.
        :raises WireError: an answer repeats the command of another request, or the broker is silent
            for a minute.
        """
        answers: list[Answer] = []
        try:
            self._sock.sendall(b"".join(requests))
            while len(answers) < len(requests):
                data = self._sock.recv(1 << 18)
                if not data:
                    raise ConnectionResetError("end of stream")
                self._take(self._inbox + data, requests, answers)
        except TimeoutError as error:
            # A crash ends the connection; silence on an open one is the broker's fault.
            raise WireError(f"no answer for {_SILENCE_SECONDS:.0f} s") from error
        except OSError as error:
            raise Interrupted(answers, str(error)) from error
        return answers

    def ask(self, command: int, body: dict[str, object]) -> Answer:
        """Send one request and return its answer.

        :raises Interrupted: the connection breaks.
        :raises WireError: the answer is an error.
        """
        (answer,) = self.exchange([request(command, body)])
        if "error" in answer:
            raise WireError(f"command 0x{command:02x}: {answer['error']}")
        return answer

    def _take(self, data: bytes, requests: Sequence[bytes], answers: list[Answer]) -> None:
        at = 0
        while len(data) - at >= _HEADER.size:
            length, _, command = _HEADER.unpack_from(data, at)
            end = at + 4 + length
            if len(data) < end:
                break
            asked = requests[len(answers)][5]
            if command != asked:
                raise WireError(f"answer 0x{command:02x} to request 0x{asked:02x}")
            answers.append(msgpack.unpackb(data[at + _HEADER.size : end]))
            at = end
        self._inbox = data[at:]


def dial(address: str, keep_trying: Callable[[], bool]) -> Wire | None:
    """Connect, again and again while the broker is away.

    :param keep_trying: called before each attempt; when it returns False, the result is None.
    """
    while keep_trying():
        try:
            return Wire(address)
        except OSError:
            time.sleep(_RETRY_SECONDS)
    return None
