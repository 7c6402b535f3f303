# Tests: tests/codecs/test_every_decoder.py
"""What all readers of frames do alike: each frame begins with a header that says where it ends.

"More bytes are needed" is an empty list; "this is wrong" is `FramesReader.error`. A header is
judged as soon as its bytes are there. A whole frame is copied once, out of the chunk it came in;
one that spans chunks is gathered in a buffer no larger than its own bytes (and the usual slack of a
growing bytearray).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from brokerd.errors import BrokerdError

FrameT = TypeVar("FrameT")
ErrorT = TypeVar("ErrorT", bound=BrokerdError)


class FramesReader(ABC, Generic[FrameT, ErrorT]):
    """Frames of one direction of one connection; a format says what its header looks like.

    Use::

        for frame in reader.feed(data):
            ...
        if reader.error is not None:
            close()     # after answering the frames before the bad one
    """

    __slots__ = ("_needed", "_partial", "error")

    _HEADER_BYTES: ClassVar[int]
    """With so many bytes of a frame, it is known how many it has."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._needed = 0  # bytes of the whole partial frame; 0 while that is unknown
        self.error: ErrorT | None = None
        """Set once the stream is out of step; whatever is fed later is dropped."""

    @property
    def partial_bytes(self) -> int:
        """Bytes held of a frame that is not complete; 0 between frames."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[FrameT]:
        """The complete frames that ``data`` ends, in order."""
        frames: list[FrameT] = []
        if not data or self.error is not None:
            return frames
        position = self._finish_partial(data, frames) if self._partial else 0
        size = len(data)
        if position < size:
            position = self._whole(data, position, frames)
            if position < size:
                self._keep(data[position:])
        return frames

    @abstractmethod
    def _whole(self, data: bytes, position: int, frames: list[FrameT]) -> int:
        """Take the frames that ``data`` has as a whole; where the first that is none begins.

        Called once a chunk, so that the loop over small frames is the format's own.
        """

    @abstractmethod
    def _gathered(self, whole: memoryview) -> FrameT:
        """The frame of all its bytes, header included."""

    @abstractmethod
    def _judge(self, head: bytes | bytearray) -> int | ErrorT:
        """Bytes of the whole frame that begins so, 0 while that is unknown; or what is wrong."""

    def _keep(self, rest: bytes) -> None:
        """Begin a partial frame with what is there of it."""
        if self._header_is_right(rest):
            self._partial += rest

    def _header_is_right(self, head: bytes | bytearray) -> bool:
        """Judge what is there of a header; False, and `error` is set, when it is wrong."""
        judged = self._judge(head)
        if isinstance(judged, int):
            self._needed = judged
            return True
        self._partial = bytearray()
        self.error = judged
        return False

    def _finish_partial(self, data: bytes, frames: list[FrameT]) -> int:
        """Add to the partial frame; the position in ``data`` where the next frame begins."""
        partial = self._partial
        position = 0
        if not self._needed:
            position = self._HEADER_BYTES - len(partial)
            partial += data[:position]
            if not self._header_is_right(partial) or not self._needed:
                return len(data)
        end = position + self._needed - len(partial)
        partial += data[position:end]
        if len(partial) < self._needed:
            return len(data)
        with memoryview(partial) as view:
            frames.append(self._gathered(view))
        self._partial = bytearray()
        return end
