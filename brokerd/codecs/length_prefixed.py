# Tests: tests/codecs/test_length_prefixed.py
"""Frames that begin with their length, an unsigned big-endian 32-bit number that excludes itself.

Several formats share them. A length is checked as soon as its four bytes have arrived; see
`framing` for the rest.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from struct import Struct

from brokerd.codecs.framing import FramesReader, FrameT, equal_headers
from brokerd.errors import BrokerdError

_LENGTH = Struct(">I")
LENGTH_BYTES = _LENGTH.size


class FrameLengthError(BrokerdError):
    """A length out of range: the rest of the stream is unreadable."""

    def __init__(self, length: int, least: int, limit: int) -> None:
        super().__init__(
            f"a frame's length is {length}, which is not from {least} to {limit}; "
            "the connection cannot be followed any further"
        )
        self.length = length
        self.limit = limit


def length_prefixed(frame: bytes) -> bytes:
    """Return the frame with its length before it."""
    return _LENGTH.pack(len(frame)) + frame


class LengthFirstReader(FramesReader[FrameT, FrameLengthError]):
    """Reads frames that begin with their length. A subclass parses the rest."""

    __slots__ = ("_max_length", "_min_length")

    _HEADER_BYTES = LENGTH_BYTES

    def __init__(self, min_length: int, max_length: int) -> None:
        super().__init__()
        self._min_length = min_length
        self._max_length = max_length

    def _judge(self, head: bytes | bytearray) -> int | FrameLengthError:
        if len(head) < LENGTH_BYTES:
            return 0
        (length,) = _LENGTH.unpack_from(head)
        if self._min_length <= length <= self._max_length:
            return LENGTH_BYTES + int(length)
        return FrameLengthError(length, self._min_length, self._max_length)


class LengthPrefixedReader(LengthFirstReader[bytes]):
    """Reads frames and returns them without their lengths; see `FramesReader`."""

    __slots__ = ()

    def _whole(self, data: bytes, position: int, frames: list[bytes]) -> int:
        size = len(data)
        shortest, longest = self._min_length, self._max_length
        unpack = _LENGTH.unpack_from
        # Lengths of the last frames. Clients may send requests in pairs, as PUBLISH and PING.
        last, second, third = -1, -1, -1
        while size - position >= LENGTH_BYTES:
            (length,) = unpack(data, position)
            start = position + LENGTH_BYTES
            if start + length > size or not shortest <= length <= longest:
                break
            position = start + length
            frames.append(data[start:position])
            if length == second and last == third:
                position = _equal_pairs(data, position, last, length, frames)
            last, second, third = length, last, second
        return position

    def _gathered(self, whole: memoryview) -> bytes:
        return bytes(whole[LENGTH_BYTES:])


def _equal_pairs(data: bytes, position: int, first: int, second: int, frames: list[bytes]) -> int:
    """Append the frames that follow in pairs of these two lengths; return the position after them.

    Each step is one call for all.
    """
    second_at = LENGTH_BYTES + first
    step = second_at + LENGTH_BYTES + second
    count = (len(data) - position) // step
    count = equal_headers(data, position, step, _LENGTH.pack(first), count)
    count = equal_headers(data, position + second_at, step, _LENGTH.pack(second), count)
    if not count:
        return position
    end = position + count * step
    pairs = _pair_layout(first, second).iter_unpack(memoryview(data)[position:end])
    frames += chain.from_iterable(pairs)
    return end


@lru_cache(maxsize=64)
def _pair_layout(first: int, second: int) -> Struct:
    """Return the layout of two frames of these lengths."""
    return Struct(f"{LENGTH_BYTES}x{first}s{LENGTH_BYTES}x{second}s")
