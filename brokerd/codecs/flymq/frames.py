# Tests: tests/codecs/test_flymq_frames.py
"""Reads and writes frames with a header of 8 bytes (page, Frames).

Magic, version and length are each checked as soon as they have arrived.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from brokerd.codecs.flymq.values import FLAG_BINARY, MAGIC, MAX_LENGTH, VERSION, FrameError
from brokerd.codecs.framing import FramesReader, equal_headers

Frame = tuple[int, int, bytes]
"""(opcode, flags, payload)"""

_HEADER = Struct(">HBBI")
_HEADER_BYTES = _HEADER.size
_OPCODE_AT, _FLAGS_AT = 2, 3
_LENGTH = Struct(">4xI")
_BEGIN = MAGIC << 8 | VERSION


def frame(opcode: int, payload: bytes, flags: int = FLAG_BINARY) -> bytes:
    """Return a complete frame."""
    return _HEADER.pack(_BEGIN, opcode, flags, len(payload)) + payload


def header(opcode: int, length: int, flags: int = FLAG_BINARY) -> bytes:
    """Return the header of a payload of `length` bytes."""
    return _HEADER.pack(_BEGIN, opcode, flags, length)


@lru_cache(maxsize=64)
def _layout(length: int) -> Struct:
    """Return the layout of a frame with a correct header: opcode, flags, payload."""
    return Struct(f">2xBB4x{length}s")


class FrameReader(FramesReader[Frame, FrameError]):
    """Reads the frames of one direction of a connection; see `FramesReader`.

    After an `error` with ``error.answer``, the server sends an ERROR frame behind all answers.
    """

    __slots__ = ("_max_length",)

    _HEADER_BYTES = _HEADER.size

    def __init__(self, max_length: int = MAX_LENGTH) -> None:
        super().__init__()
        self._max_length = max_length

    def _whole(self, data: bytes, position: int, frames: list[Frame]) -> int:
        size = len(data)
        longest = self._max_length
        unpack = _HEADER.unpack_from
        last_length = -1
        while size - position >= _HEADER_BYTES:
            begin, opcode, flags, length = unpack(data, position)
            start = position + _HEADER_BYTES
            end = start + length
            if end > size or begin != _BEGIN or length > longest:
                break
            frames.append((opcode, flags, data[start:end]))
            if length == last_length:
                step = end - position
                count = equal_headers(data, end, step, data[position:start], (size - end) // step)
                if count:
                    equal_end = end + count * step
                    frames += _layout(length).iter_unpack(memoryview(data)[end:equal_end])
                    end = equal_end
            last_length = length
            position = end
        return position

    def _gathered(self, whole: memoryview) -> Frame:
        return whole[_OPCODE_AT], whole[_FLAGS_AT], bytes(whole[_HEADER_BYTES:])

    def _judge(self, head: bytes | bytearray) -> int | FrameError:
        if head[0] != MAGIC:
            return _out_of_step(
                f"a frame begins with 0x{head[0]:02X}, and not with 0x{MAGIC:02X}", answer=False
            )
        if len(head) > 1 and head[1] != VERSION:
            return _out_of_step(f"version {head[1]} is not supported; send version {VERSION}")
        if len(head) < _HEADER_BYTES:
            return 0
        (length,) = _LENGTH.unpack_from(head)
        if length > self._max_length:
            return _out_of_step(
                f"a payload of {length} bytes is over the limit of {self._max_length}; send less"
            )
        return _HEADER_BYTES + int(length)


def _out_of_step(text: str, answer: bool = True) -> FrameError:
    return FrameError(f"{text}; the connection is closed", answer)
