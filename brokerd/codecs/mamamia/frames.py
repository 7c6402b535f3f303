# Tests: tests/codecs/test_mamamia_frames.py
"""Length-prefixed frames, taken apart as bytes arrive and put together (page, section Frames).

"More bytes are needed" is an empty list; "this is wrong" is `FrameReader.error`. A length is
judged as soon as its four bytes are there. A whole frame is copied once, out of the chunk it came
in; one that spans chunks is gathered in a buffer no larger than its own bytes (and the usual
slack of a growing bytearray).
"""

from __future__ import annotations

from struct import Struct

from brokerd.codecs.mamamia.values import MAX_LENGTH, FrameError

Frame = tuple[int, bytes]
"""(command, body)"""

_HEADER = Struct(">IBB")
_HEADER_COMMAND = Struct(">IxB")
_LENGTH = Struct(">I")
_LENGTH_BYTES = 4
_HEADER_BYTES = _HEADER.size
_LENGTH_MIN = 2


def frame(command: int, body: bytes) -> bytes:
    """A complete frame, version 1."""
    return _HEADER.pack(len(body) + 2, 1, command) + body


class FrameReader:
    """Frames of one direction of one connection.

    Use::

        for command, body in reader.feed(data):
            ...
        if reader.error is not None:
            close()     # after answering the frames before the bad one
    """

    __slots__ = ("_max_length", "_needed", "_partial", "error")

    def __init__(self, max_length: int = MAX_LENGTH) -> None:
        self._max_length = max_length
        self._partial = bytearray()
        self._needed = 0  # bytes of the whole partial frame; 0 while its length is unknown
        self.error: FrameError | None = None
        """Set once the stream is out of step; whatever is fed later is dropped."""

    @property
    def partial_bytes(self) -> int:
        """Bytes held of a frame that is not complete; 0 between frames."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[Frame]:
        """The complete frames that `data` ends, in order."""
        frames: list[Frame] = []
        if data and self.error is None:
            self._parse(data, frames)
        return frames

    def _parse(self, data: bytes, frames: list[Frame]) -> None:
        position = self._finish_partial(data, frames) if self._partial else 0
        size = len(data)
        longest = self._max_length
        unpack = _HEADER_COMMAND.unpack_from
        while size - position >= _HEADER_BYTES:
            length, command = unpack(data, position)
            end = position + _LENGTH_BYTES + length
            if end > size or not _LENGTH_MIN <= length <= longest:
                break
            frames.append((command, data[position + _HEADER_BYTES : end]))
            position = end
        if position < size and self.error is None:
            self._keep(data[position:] if position else data)

    def _keep(self, rest: bytes) -> None:
        """Begin a partial frame with what is there of it."""
        if self._learn_length(rest):
            self._partial += rest

    def _learn_length(self, head: bytes | bytearray) -> bool:
        """Judge the length when it is there; False, and `error` is set, when it is wrong."""
        if len(head) < _LENGTH_BYTES:
            self._needed = 0
            return True
        (length,) = _LENGTH.unpack_from(head)
        if _LENGTH_MIN <= length <= self._max_length:
            self._needed = _LENGTH_BYTES + length
            return True
        self._partial = bytearray()
        self.error = FrameError(
            f"a frame's length is {length}, which is not from {_LENGTH_MIN} to "
            f"{self._max_length}; the connection cannot be followed any further"
        )
        return False

    def _finish_partial(self, data: bytes, frames: list[Frame]) -> int:
        """Add to the partial frame; the position in `data` where the next frame begins."""
        partial = self._partial
        position = 0
        if not self._needed:
            position = _LENGTH_BYTES - len(partial)
            partial += data[:position]
            if not self._learn_length(partial) or not self._needed:
                return len(data)
        end = position + self._needed - len(partial)
        partial += data[position:end] if position or end < len(data) else data
        if len(partial) < self._needed:
            return len(data)
        with memoryview(partial) as view:
            frames.append((view[5], bytes(view[_HEADER_BYTES:])))
        self._partial = bytearray()
        return end
