# Tests: tests/codecs/test_flymq_frames.py
"""Frames with an 8-byte header, taken apart as bytes arrive and put together (page, Frames).

"More bytes are needed" is an empty list; "this is wrong" is `FrameReader.error`. Magic, version and
length are each judged as soon as they are there. A whole frame is copied once, out of the chunk it
came in; one that spans chunks is gathered in a buffer no larger than its own bytes (and the usual
slack of a growing bytearray).
"""

from __future__ import annotations

from struct import Struct

from brokerd.codecs.flymq.values import FLAG_BINARY, MAGIC, MAX_LENGTH, VERSION, FrameError

Frame = tuple[int, int, bytes]
"""(opcode, flags, payload)"""

_HEADER = Struct(">HBBI")
_HEADER_BYTES = _HEADER.size
_LENGTH = Struct(">4xI")
_BEGIN = MAGIC << 8 | VERSION


def frame(opcode: int, payload: bytes, flags: int = FLAG_BINARY) -> bytes:
    """A complete frame."""
    return _HEADER.pack(_BEGIN, opcode, flags, len(payload)) + payload


def header(opcode: int, length: int, flags: int = FLAG_BINARY) -> bytes:
    """What goes before a payload of `length` bytes."""
    return _HEADER.pack(_BEGIN, opcode, flags, length)


class FrameReader:
    """Frames of one direction of one connection.

    Use::

        for opcode, flags, payload in reader.feed(data):
            ...
        if reader.error is not None:
            ...     # after the frames before: an ERROR frame if reader.error.answer; close
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
        unpack = _HEADER.unpack_from
        while size - position >= _HEADER_BYTES:
            begin, opcode, flags, length = unpack(data, position)
            end = position + _HEADER_BYTES + length
            if end > size or begin != _BEGIN or length > longest:
                break
            frames.append((opcode, flags, data[position + _HEADER_BYTES : end]))
            position = end
        if position < size and self.error is None:
            self._keep(data[position:] if position else data)

    def _keep(self, rest: bytes) -> None:
        """Begin a partial frame with what is there of it."""
        if self._judge(rest):
            self._partial += rest

    def _judge(self, head: bytes | bytearray) -> bool:
        """Judge what is there of a header; False, and `error` is set, when it is wrong."""
        self._needed = 0
        if head[0] != MAGIC:
            return self._refuse(
                f"a frame begins with 0x{head[0]:02X}, and not with 0x{MAGIC:02X}", answer=False
            )
        if len(head) > 1 and head[1] != VERSION:
            return self._refuse(f"version {head[1]} is not supported; send version {VERSION}")
        if len(head) < _HEADER_BYTES:
            return True
        (length,) = _LENGTH.unpack_from(head)
        if length > self._max_length:
            return self._refuse(
                f"a payload of {length} bytes is over the limit of {self._max_length}; send less"
            )
        self._needed = _HEADER_BYTES + length
        return True

    def _refuse(self, text: str, answer: bool = True) -> bool:
        self._partial = bytearray()
        self.error = FrameError(f"{text}; the connection is closed", answer)
        return False

    def _finish_partial(self, data: bytes, frames: list[Frame]) -> int:
        """Add to the partial frame; the position in `data` where the next frame begins."""
        partial = self._partial
        position = 0
        if not self._needed:
            position = _HEADER_BYTES - len(partial)
            partial += data[:position]
            if not self._judge(partial) or not self._needed:
                return len(data)
        end = position + self._needed - len(partial)
        partial += data[position:end] if position or end < len(data) else data
        if len(partial) < self._needed:
            return len(data)
        with memoryview(partial) as view:
            frames.append((view[2], view[3], bytes(view[_HEADER_BYTES:])))
        self._partial = bytearray()
        return end
