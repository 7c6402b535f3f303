# Tests: tests/codecs/test_answers.py
"""The client's half of a format in which answers come in the order of the requests.

A frame reader says where answers end, and a format's ``decode`` what one means that was asked for.
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
    """Takes bytes in and gives the frames that they complete; ``error`` once it cannot go on."""

    @property
    def error(self) -> BrokerdError | None: ...

    @property
    def partial_bytes(self) -> int: ...

    def feed(self, data: bytes, /) -> Sequence[Found]: ...


class NotAnAnswer(BrokerdError):
    """What came is no answer to what was asked: the stream cannot be followed any further."""


class AnswerReader(Generic[Asked, Frame, Told]):
    """Answers of one connection, in the order of its requests.

    Use::

        reader.expect(request)          # when it is sent
        answers = reader.feed(data)
        if reader.error is not None:
            close()     # after using the answers before the bad one

    :param decode: the answer to a request in a frame; it raises a `BrokerdError` if there is none.
    """

    def __init__(self, frames: FrameSource[Frame], decode: Callable[[Asked, Frame], Told]) -> None:
        self._frames = frames
        self._decode = decode
        self._expected: deque[Asked] = deque()
        self.error: BrokerdError | None = None
        """Set once the stream is out of step; whatever is fed later is dropped."""

    @property
    def partial_bytes(self) -> int:
        """Bytes held of an answer that is not complete."""
        return self._frames.partial_bytes

    def expect(self, request: Asked) -> None:
        """Know that this request was sent."""
        self._expected.append(request)

    def feed(self, data: bytes) -> list[Told]:
        """The answers that ``data`` completes, in order."""
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
            raise NotAnAnswer("the broker sent an answer nobody asked for")
        return self._decode(self._expected.popleft(), frame)
