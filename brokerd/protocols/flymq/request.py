# Tests: tests/protocols/test_flymq_accounts.py
"""A FlyMQ connection with a request in hand: read, and not carried out yet.

It waits for room in the log, for its turn to be decompressed, or for somebody else's answer: that
of a guard, an account's new password, the audit trail. What was sent behind it waits too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from brokerd.broker import Broker
from brokerd.codecs.flymq import Frame, FrameError, FrameReader
from brokerd.errors import BrokerdError, without_frames
from brokerd.protocols.base.connection import Hold
from brokerd.protocols.base.fetching import FetchConnection
from brokerd.protocols.base.framing import FrameConnection, FrameOnHold

T = TypeVar("T")
Done = Callable[[T | None, Exception | None], None]
"""Takes what was asked for, or why it is not given."""


class RequestConnection(FrameConnection[Frame, FrameError], FetchConnection):
    """Adds `await_result`, for requests whose answers come later."""

    def __init__(self, broker: Broker, reader: FrameReader, new_partitions: int) -> None:
        super().__init__(broker, reader)
        self.new_partitions = new_partitions
        """Of topics that a request brings about by producing to them."""
        self.in_hand: Any = None
        """The request of the frame in front, read before it can be carried out, or its refusal."""
        self._outcome: tuple[object, Any, Exception | None] | None = None
        """A request and what it has come to."""

    def await_result(self, request: object, ask: Callable[[Done[T]], None]) -> T:
        """What ``ask`` gives to its argument, which it calls once, now or later.

        The first time it is asked, and the request is handled again when the answer is there.
        Raises `FrameOnHold`, and what is given or raised in place of an answer.
        """
        if self._outcome is None or self._outcome[0] is not request:
            self._ask(request, ask)
            raise FrameOnHold
        (_, given, error), self._outcome = self._outcome, None
        if isinstance(error, BrokerdError):
            try:
                raise without_frames(error)
            finally:
                del error  # which holds this frame now
        if error is not None:
            raise BrokerdError(f"what was asked for cannot be read: {error}; try again")
        result: T = given
        return result

    def keep_result(self, request: object, given: object) -> None:
        """Have `await_result` give this once more to a request that has to wait."""
        self._outcome = request, given, None

    def _ask(self, request: object, ask: Callable[[Done[T]], None]) -> None:
        self.in_hand = request
        self.hold(Hold.READING)
        done = partial(self._take_outcome, request)
        try:
            ask(done)
        except BrokerdError as refusal:
            done(None, refusal)

    def _take_outcome(self, request: object, given: object, error: Exception | None) -> None:
        if not self.gone:
            self._outcome = request, given, error
            self.release(Hold.READING)

    def forget(self) -> None:
        """Let go of what was asked."""
        super().forget()
        self.in_hand = self._outcome = None
