# Tests: tests/protocols/test_flymq_accounts.py
"""A FlyMQ connection whose current request may wait: decoded, and not carried out yet.

The request waits for room in the log, for decompression, or for a result of another service: a
login, a password hash, the audit trail. Later requests wait behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from brokerd.broker import Broker
from brokerd.codecs.flymq import Frame, FrameError, FrameReader
from brokerd.errors import BrokerdError, without_traceback
from brokerd.protocols.base.connection import Hold
from brokerd.protocols.base.fetching import FetchConnection
from brokerd.protocols.base.framing import FrameConnection, FrameOnHold
from brokerd.protocols.base.steps import Done, Steps, StepsRun

T = TypeVar("T")


class RequestConnection(FrameConnection[Frame, FrameError], FetchConnection):
    """Adds `await_result`, for requests whose results come later."""

    def __init__(self, broker: Broker, reader: FrameReader, new_partitions: int) -> None:
        super().__init__(broker, reader)
        self.new_partitions = new_partitions
        """Partitions of topics that a produce creates."""
        self.pending_request: Any = None
        """The decoded request of the first frame, or its refusal."""
        self._outcome: tuple[object, Any, Exception | None] | None = None
        """A request with its result or error."""

    def awaits(self, request: object) -> bool:
        """Return whether `await_result` has a result for this request."""
        return self._outcome is not None and self._outcome[0] is request

    def await_result(self, request: object, ask: Callable[[Done[T]], None]) -> T:
        """Return the result that ``ask`` passes to its argument, now or later.

        The first call runs ``ask`` and raises `FrameOnHold`. The request is handled again when the
        result is there, and the second call returns it or raises its error.
        """
        if self._outcome is None or self._outcome[0] is not request:
            self._ask(request, ask)
            raise FrameOnHold
        (_, given, error), self._outcome = self._outcome, None
        if isinstance(error, BrokerdError):
            try:
                raise without_traceback(error)
            finally:
                del error  # which holds this frame now
        if error is not None:
            raise BrokerdError(f"what was asked for cannot be read: {error}; try again")
        result: T = given
        return result

    def run_steps(
        self, request: object, make: Callable[[], Steps[T]], expected_bytes: int = 0
    ) -> T:
        """Run the steps that ``make`` returns once, and return their result.

        They begin when all earlier writes of the connection are durable, so that they can read
        them. Steps with a large result claim ``expected_bytes`` of memory.

        Raises `FrameOnHold` as `await_result` does, `AwaitMemory`, and the refusal of the steps.
        """

        if expected_bytes and (self._outcome is None or self._outcome[0] is not request):
            self.await_memory()

        def ask(done: Done[T]) -> None:
            run = StepsRun(self, make(), done)
            self.expect_answer(expected_bytes)
            if self.written_ticket > self.group_commit.durable_ticket:
                self.group_commit.when_all_durable(run.start)
            else:
                run.start()

        return self.await_result(request, ask)

    def keep_result(self, request: object, given: object) -> None:
        """Let `await_result` return this result again to a request that has to wait."""
        self._outcome = request, given, None

    def _ask(self, request: object, ask: Callable[[Done[T]], None]) -> None:
        self.pending_request = request
        self.hold(Hold.IN_PROGRESS)
        done = partial(self._take_outcome, request)
        try:
            ask(done)
        except BrokerdError as refusal:
            done(None, refusal)

    def _take_outcome(self, request: object, given: object, error: Exception | None) -> None:
        if not self.gone:
            self._outcome = request, given, error
            self.expect_answer(0)
            self.unhold(Hold.IN_PROGRESS)

    def forget(self) -> None:
        """Drop the request and its result."""
        super().forget()
        self.pending_request = self._outcome = None
