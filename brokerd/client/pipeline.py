# Tests: tests/client/test_mamamia_async.py, tests/client/test_mamamia_asyncio.py
"""Pipelined Mamamia calls of one connection, without input and output.

The clients of Twisted and of asyncio share it. An ``answered`` is a Deferred or a Future. The
client says how it succeeds and fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from brokerd.client.calls import Call, answer_reader, result_of
from brokerd.client.errors import ConnectionLost, MamamiaError, OutOfStep
from brokerd.codecs.mamamia import Answer, encode_request
from brokerd.errors import LimitExceeded

IN_FLIGHT_MAX = 1_000
"""Requests sent and not answered."""
WAITING_MAX = 10_000
"""Requests made and not sent, because so many are in flight."""

Answered = TypeVar("Answered")


class _Pending(NamedTuple, Generic[Answered]):
    call: Call[Any]
    encoded: bytes
    answered: Answered


class Pipeline(Generic[Answered]):
    """Calls in flight and calls that wait, oldest first."""

    def __init__(
        self,
        succeed: Callable[[Answered, Any], object],
        fail: Callable[[Answered, Exception], object],
        in_flight_max: int = IN_FLIGHT_MAX,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._succeed = succeed
        self._fail = fail
        self._in_flight_max = in_flight_max
        self._waiting_max = waiting_max
        self._in_flight: deque[_Pending[Answered]] = deque()
        self._waiting: deque[_Pending[Answered]] = deque()
        self._reader = answer_reader()
        self._lost: ConnectionLost | None = None

    def add(self, call: Call[Any], answered: Answered) -> None:
        """Add a call; `outgoing` returns its request.

        :raises ConnectionLost: the connection has ended.
        :raises LimitExceeded: too many calls wait.
        """
        if self._lost is not None:
            raise type(self._lost)(str(self._lost))
        if len(self._in_flight) >= self._in_flight_max and len(self._waiting) >= self._waiting_max:
            raise LimitExceeded(
                f"{len(self._in_flight)} requests are in flight and {len(self._waiting)} wait; "
                "wait for answers before making more"
            )
        self._waiting.append(_Pending(call, encode_request(call.request), answered))

    def outgoing(self) -> bytes:
        """Return the requests to send now; they count as in flight from then on."""
        outgoing = []
        while self._waiting and len(self._in_flight) < self._in_flight_max:
            pending = self._waiting.popleft()
            self._in_flight.append(pending)
            self._reader.expect(pending.call.request)
            outgoing.append(pending.encoded)
        return b"".join(outgoing)

    def feed(self, data: bytes) -> bool:
        """Answer the oldest calls; return False if the connection must close for a wrong answer."""
        for answer in self._reader.feed(data):
            if self._lost is not None:  # a callback of an earlier answer closed it
                return True
            self._answer_oldest(answer)
        if self._reader.error is not None:
            self.lose(OutOfStep(str(self._reader.error)))
            return False
        return True

    def lose(self, error: ConnectionLost) -> None:
        """Fail all calls in order, and the later ones at once: the connection has ended."""
        if self._lost is None:
            self._lost = error
        under_way = [*self._in_flight, *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        for pending in under_way:
            self._fail(pending.answered, type(error)(str(error)))

    def _answer_oldest(self, answer: Answer) -> None:
        call, _, answered = self._in_flight.popleft()
        try:
            result = result_of(answer, call)
        except MamamiaError as refusal:
            self._fail(answered, refusal)
        else:
            self._succeed(answered, result)
