# Tests: tests/simulator/test_clients.py, tests/simulator/test_format_clients.py
"""The wire of a format that answers each request once, in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from simulator.clients.conversation import AnswerPart, Ask, EncodedRequest, WrongAnswer
from simulator.clients.describe import asked


class FifoWire(ABC):
    """A `Wire`; each format encodes its requests and decodes its answers."""

    greeting = b""

    def __init__(self) -> None:
        self._expected: deque[Ask] = deque()

    def encode(self, asks: Sequence[Ask]) -> list[EncodedRequest]:
        """See `Wire.encode`."""
        self._expected.extend(asks)
        return [EncodedRequest(self.encoded(ask.request)) for ask in asks]

    def feed(self, data: bytes) -> Iterator[AnswerPart]:
        """See `Wire.feed`."""
        for size, answer in self.answers(data):
            if not self._expected:
                raise WrongAnswer(f"was sent an answer to nothing: {answer!r:.200}")
            ask = self._expected.popleft()
            try:
                self.complete(ask, answer)
            except WrongAnswer as error:
                number = ask.operation.number
                raise WrongAnswer(f"#{number} ({asked(ask.operation)}) {error}") from error
            yield AnswerPart(size)

    @abstractmethod
    def encoded(self, request: Any) -> bytes:
        """Encode a request."""

    @abstractmethod
    def answers(self, data: bytes) -> Iterable[tuple[int, Any]]:
        """Yield the answers that ``data`` completes, each with its size in bytes.

        Raises WrongAnswer if the stream cannot be decoded.
        """

    @abstractmethod
    def complete(self, ask: Ask, answer: Any) -> None:
        """Store an answer in its operation. Raises WrongAnswer if it does not fit the request."""


def unfit(answer: object) -> WrongAnswer:
    """Return the error for an answer that does not fit its request."""
    return WrongAnswer(f"was answered with {answer!r:.300}")
