# Tests: tests/protocols/test_flymq_decompression.py
"""Compressed requests: small ones are decompressed at once, large ones in slices.

Thirty kilobytes may become 32 MiB, and as many connections as there are may send such. So a turn of
the reactor decompresses so much and no more, whoever sent it; and large requests wait compressed
for one another. Who has the place in front keeps it until its request is carried out: what does
not find room in the log is in memory once, not once a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from brokerd.broker import Clock
from brokerd.codecs.flymq import CompressedRequest, Request, RequestError
from brokerd.errors import without_frames
from brokerd.protocols.base.connection import Connection
from brokerd.protocols.base.slices import SLICE_SECONDS, SliceQueue

AT_ONCE_BYTES = 131_072
"""What is read and made at once in a turn, of all connections together; a step may be added."""
SLICE_STEPS = 32
"""Steps of a slice, at most."""

OnDecompressed = Callable[[Request | RequestError], None]
"""Takes the request that was decompressed, or why it is refused."""


class _LargeRequest(NamedTuple):
    """A large request, waiting or under way."""

    connection: Connection
    request: CompressedRequest
    done: OnDecompressed


class DecompressionQueue:
    """Decompresses the requests of a listener."""

    def __init__(self, clock: Clock, slices: SliceQueue) -> None:
        self._clock = clock
        self._slices = slices
        self._left = AT_ONCE_BYTES
        self._waiting: dict[Connection, _LargeRequest | None] = {}
        """In order; None is one in front that has been decompressed."""

    def at_once(self, request: CompressedRequest) -> bool:
        """Decompress a request if it is a small one; False if it is not done.

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
        """Decompress a large request when it is its turn, and call ``done``.

        The connection says by `leave` when the next may be begun.
        """
        self._waiting[connection] = _LargeRequest(connection, request, done)
        if len(self._waiting) == 1:
            self._go_on_later()

    def leave(self, connection: Connection) -> None:
        """The request of this connection is carried out, or it never will be."""
        if connection not in self._waiting:
            return
        was_in_front = next(iter(self._waiting)) is connection
        del self._waiting[connection]
        if was_in_front and self._waiting:
            self._go_on_later()

    def _go_on_later(self) -> None:
        large = next(iter(self._waiting.values()))
        assert large is not None, "it is there only until it leaves"
        self._slices.add(partial(large.connection.guarded, self._go_on, large))

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
            outcome = without_frames(refusal)
        self._waiting[connection] = None
        large.done(outcome)

    def _slice(self, request: CompressedRequest) -> bool:
        """Decompress some more; whether that was the last."""
        end_seconds = self._clock.seconds() + SLICE_SECONDS
        for _ in range(SLICE_STEPS):
            if request.step():
                return True
            if self._clock.seconds() > end_seconds:
                break
        return False
