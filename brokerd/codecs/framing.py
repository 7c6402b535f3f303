# Tests: tests/codecs/test_every_decoder.py
"""The base class of frame readers: each frame begins with a header that contains its length.

`FramesReader.feed` returns an empty list while bytes are missing, and sets `FramesReader.error` on
a wrong header as soon as its bytes have arrived. A whole frame is copied once, from its chunk. A
frame that spans chunks is gathered in a buffer of its size (and the usual slack of a growing
bytearray).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final, Generic, TypeVar

from brokerd.errors import BrokerdError

EQUAL_FRAMES_MIN: Final = 8
EQUAL_FRAMES_MAX: Final = 512
"""Headers that `equal_headers` compares at most in one call."""

FrameT = TypeVar("FrameT")
ErrorT = TypeVar("ErrorT", bound=BrokerdError)


class FramesReader(ABC, Generic[FrameT, ErrorT]):
    """Reads the frames of one direction of a connection; a subclass parses the header.

    Use::

        for frame in reader.feed(data):
            ...
        if reader.error is not None:
            close()     # after answering the frames before the bad one
    """

    __slots__ = ("_needed", "_partial", "error")

    _HEADER_BYTES: ClassVar[int]
    """Number of bytes that contain the length of the frame."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._needed = 0  # size of the partial frame; 0 while unknown
        self.error: ErrorT | None = None
        """Set when the rest of the stream is unreadable. Later bytes are dropped."""

    @property
    def partial_bytes(self) -> int:
        """Number of held bytes of an incomplete frame; 0 between frames."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[FrameT]:
        """Return the frames that ``data`` completes, in order."""
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
        """Append the whole frames in ``data`` from ``position`` on; return the position after them.

        Called once per chunk: each format has its own loop over small frames, for speed.
        """

    @abstractmethod
    def _gathered(self, whole: memoryview) -> FrameT:
        """Return the frame of these bytes, which include the header."""

    @abstractmethod
    def _judge(self, head: bytes | bytearray) -> int | ErrorT:
        """Return the size of the frame with this beginning, 0 while unknown, or an error."""

    def _keep(self, rest: bytes) -> None:
        """Store the beginning of a partial frame."""
        if self._header_is_right(rest):
            self._partial += rest

    def _header_is_right(self, head: bytes | bytearray) -> bool:
        """Check the bytes of a header so far; set `error` and return False if it is wrong."""
        judged = self._judge(head)
        if isinstance(judged, int):
            self._needed = judged
            return True
        self._partial = bytearray()
        self.error = judged
        return False

    def _finish_partial(self, data: bytes, frames: list[FrameT]) -> int:
        """Complete the partial frame from ``data``; return the position of the next frame."""
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


def equal_headers(data: bytes, position: int, step: int, header: bytes, count: int) -> int:
    """Return how many of ``count`` frames in a row have this header; 0: fewer than a few.

    The first header is at ``position``, the next ``step`` bytes later, and so on. A caller can cut
    the frames by one layout, in a fraction of the time of a loop.
    """
    few = position + (EQUAL_FRAMES_MIN - 1) * step
    if (
        count < EQUAL_FRAMES_MIN
        or not data.startswith(header, position)
        or not data.startswith(header, few)
    ):
        return 0
    count = min(count, EQUAL_FRAMES_MAX)
    for at in range(position, position + len(header)):
        # One byte of each header that is equal so far.
        column = data[at : at + (count - 1) * step + 1 : step]
        count = len(column) - len(column.lstrip(column[:1]))
    return count
