# Tests: tests/codecs/test_length_prefixed.py
"""Frames that begin with their length, an unsigned big-endian 32-bit number that excludes itself.

What several formats share. "More bytes are needed" is an empty list; "this is wrong" is
`LengthPrefixedReader.error`. A length is judged as soon as its four bytes are there. A whole frame
is copied once, out of the chunk it came in; one that spans chunks is gathered in a buffer no larger
than its own bytes (and the usual slack of a growing bytearray).
"""

from __future__ import annotations

from struct import Struct

from brokerd.errors import BrokerdError

_LENGTH = Struct(">I")
LENGTH_BYTES = _LENGTH.size


class FrameLengthError(BrokerdError):
    """A length that no frame has: the stream cannot be followed any further."""


def length_prefixed(frame: bytes) -> bytes:
    """The frame with its length before it."""
    return _LENGTH.pack(len(frame)) + frame


class LengthPrefixedReader:
    """Frames, without their lengths, of one direction of one connection.

    Use::

        for frame in reader.feed(data):
            ...
        if reader.error is not None:
            close()     # after answering the frames before the bad one
    """

    __slots__ = ("_max_length", "_min_length", "_needed", "_partial", "error")

    def __init__(self, min_length: int, max_length: int) -> None:
        self._min_length = min_length
        self._max_length = max_length
        self._partial = bytearray()
        self._needed = 0  # bytes of the whole partial frame; 0 while its length is unknown
        self.error: FrameLengthError | None = None
        """Set once the stream is out of step; whatever is fed later is dropped."""

    @property
    def partial_bytes(self) -> int:
        """Bytes held of a frame that is not complete; 0 between frames."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """The complete frames that ``data`` ends, in order."""
        frames: list[bytes] = []
        if data and self.error is None:
            self._parse(data, frames)
        return frames

    def _parse(self, data: bytes, frames: list[bytes]) -> None:
        position = self._finish_partial(data, frames) if self._partial else 0
        size = len(data)
        shortest, longest = self._min_length, self._max_length
        unpack = _LENGTH.unpack_from
        while size - position >= LENGTH_BYTES:
            (length,) = unpack(data, position)
            start = position + LENGTH_BYTES
            if start + length > size or not shortest <= length <= longest:
                break
            position = start + length
            frames.append(data[start:position])
        if position < size and self.error is None:
            self._keep(data[position:] if position else data)

    def _keep(self, rest: bytes) -> None:
        """Begin a partial frame with what is there of it."""
        if self._learn_length(rest):
            self._partial += rest

    def _learn_length(self, head: bytes | bytearray) -> bool:
        """Judge the length when it is there; False, and `error` is set, when it is wrong."""
        if len(head) < LENGTH_BYTES:
            self._needed = 0
            return True
        (length,) = _LENGTH.unpack_from(head)
        if self._min_length <= length <= self._max_length:
            self._needed = LENGTH_BYTES + length
            return True
        self._partial = bytearray()
        self.error = FrameLengthError(
            f"a frame's length is {length}, which is not from {self._min_length} to "
            f"{self._max_length}; the connection cannot be followed any further"
        )
        return False

    def _finish_partial(self, data: bytes, frames: list[bytes]) -> int:
        """Add to the partial frame; the position in ``data`` where the next frame begins."""
        partial = self._partial
        position = 0
        if not self._needed:
            position = LENGTH_BYTES - len(partial)
            partial += data[:position]
            if not self._learn_length(partial) or not self._needed:
                return len(data)
        end = position + self._needed - len(partial)
        partial += data[position:end] if position or end < len(data) else data
        if len(partial) < self._needed:
            return len(data)
        with memoryview(partial) as view:
            frames.append(bytes(view[LENGTH_BYTES:]))
        self._partial = bytearray()
        return end
