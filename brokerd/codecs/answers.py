# Tests: tests/codecs/test_answers.py
"""Reads answers on the client's side, in formats whose answers are in request order.

A frame reader splits the bytes. The format's ``decode`` turns a request and a frame into an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from brokerd.errors import BrokerdError

Asked = TypeVar("Asked")
Frame = TypeVar("Frame")
Told = TypeVar("Told")
Found = TypeVar("Found", covariant=True)


class FrameSource(Protocol[Found]):
    """Splits bytes into frames; sets ``error`` when the rest is unreadable."""

    @property
    def error(self) -> BrokerdError | None: ...

    @property
    def partial_bytes(self) -> int: ...

    def feed(self, data: bytes, /) -> Sequence[Found]: ...


class NotAnAnswer(BrokerdError):
    """A frame does not answer its request: the rest of the stream is unreadable."""


class AnswerReader(Generic[Asked, Frame, Told]):
    """Answers of one connection, in the order of its requests.

    Use::

        reader.expect(request)          # when it is sent
        answers = reader.feed(data)
        if reader.error is not None:
            close()     # after using the answers before the bad one

    :param decode: returns the answer to a request from a frame, or raises a `BrokerdError`.
    """

    def __init__(self, frames: FrameSource[Frame], decode: Callable[[Asked, Frame], Told]) -> None:
        self._frames = frames
        self._decode = decode
        self._expected: deque[Asked] = deque()
        self.error: BrokerdError | None = None
        """Set when the rest of the stream is unreadable. Later bytes are dropped."""

    @property
    def partial_bytes(self) -> int:
        """Number of held bytes of an incomplete answer."""
        return self._frames.partial_bytes

    def expect(self, request: Asked) -> None:
        """Note that this request was sent."""
        self._expected.append(request)

    def feed(self, data: bytes) -> list[Told]:
        """Return the answers that ``data`` completes, in order."""
        answers: list[Told] = []
        if self.error is None:
            try:
                for frame in self._frames.feed(data):
                    answers.append(self._answer(frame))
                self.error = self._frames.error
            except BrokerdError as error:
                self.error = error
        return answers

    def _answer(self, frame: Frame) -> Told:
        if not self._expected:
            raise NotAnAnswer("the broker sent an answer without a request")
        return self._decode(self._expected.popleft(), frame)
