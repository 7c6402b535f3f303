# Tests: tests/protocols/test_flymq_decompression.py
"""Compressed requests: small ones are decompressed at once, large ones in slices.

Thirty kilobytes may decompress to 32 MiB, and every connection may send such a request. One reactor
turn decompresses a bounded number of bytes for all connections. Large requests wait compressed in a
queue. The first one stays first until it is carried out, so that at most one large request per
listener waits decompressed for room in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from brokerd.broker import Clock
from brokerd.broker.slices import SLICE_SECONDS, SliceQueue
from brokerd.codecs.flymq import CompressedRequest, Request, RequestError
from brokerd.errors import without_traceback
from brokerd.protocols.base.connection import Connection

AT_ONCE_BYTES = 131_072
"""Bytes that all connections may decompress at once in one reactor turn, plus one step."""
SLICE_STEPS = 32
"""Largest number of steps of a slice."""

OnDecompressed = Callable[[Request | RequestError], None]
"""Takes the decompressed request or its refusal."""


class _LargeRequest(NamedTuple):
    """A large request that waits or is being decompressed."""

    connection: Connection
    request: CompressedRequest
    done: OnDecompressed


class DecompressionQueue:
    """Decompresses the requests of a listener's connections."""

    def __init__(self, clock: Clock, slices: SliceQueue) -> None:
        self._clock = clock
        self._slices = slices
        self._left = AT_ONCE_BYTES
        self._waiting: dict[Connection, _LargeRequest | None] = {}
        """Large requests in order; None stands for the first one when it is decompressed."""

    def at_once(self, request: CompressedRequest) -> bool:
        """Decompress a small request; return False if a part of it is left.

        Raises `RequestError`.
        """
        if self._left == AT_ONCE_BYTES:
            self._clock.callLater(0, self._next_turn)
        while self._left > 0:
            before = request.done_bytes
            try:
                if request.step():
                    return True
            finally:
                self._left -= request.done_bytes - before
        return False

    def _next_turn(self) -> None:
        self._left = AT_ONCE_BYTES

    def add(self, connection: Connection, request: CompressedRequest, done: OnDecompressed) -> None:
        """Decompress a large request after those before it, and call ``done``.

        The connection calls `leave` when its request is carried out. Then the next one begins.
        """
        self._waiting[connection] = _LargeRequest(connection, request, done)
        if len(self._waiting) == 1:
            self._go_on_later()

    def leave(self, connection: Connection) -> None:
        """Remove the connection's request, which is carried out or dropped."""
        if connection not in self._waiting:
            return
        was_in_front = next(iter(self._waiting)) is connection
        del self._waiting[connection]
        if was_in_front and self._waiting:
            self._go_on_later()

    def _go_on_later(self) -> None:
        large = next(iter(self._waiting.values()))
        assert large is not None, "a decompressed request leaves before the next begins"
        connection = large.connection
        self._slices.add(
            partial(connection.close_on_fault, self._go_on, large), connection.slice_owner()
        )

    def _go_on(self, large: _LargeRequest) -> None:
        connection = large.connection
        if self._waiting.get(connection) is not large:
            return
        outcome: Request | RequestError
        try:
            if not self._slice(large.request):
                self._go_on_later()
                return
            outcome = large.request.decoded()
        except RequestError as refusal:
            outcome = without_traceback(refusal)
        self._waiting[connection] = None
        large.done(outcome)

    def _slice(self, request: CompressedRequest) -> bool:
        """Decompress for one slice; return True at the end."""
        end_seconds = self._clock.seconds() + SLICE_SECONDS
        for _ in range(SLICE_STEPS):
            if request.step():
                return True
            if self._clock.seconds() > end_seconds:
                break
        return False
