# Tests: tests/codecs/test_mamamia_frames.py
"""Reads and writes length-prefixed frames (page, section Frames).

The length counts a version, which is ignored, the command and the body.
"""

from __future__ import annotations

from struct import Struct

from brokerd.codecs.length_prefixed import LENGTH_BYTES, LengthFirstReader
from brokerd.codecs.mamamia.values import MAX_LENGTH

Frame = tuple[int, bytes]
"""(command, body)"""

_HEADER = Struct(">IBB")
_HEADER_COMMAND = Struct(">IxB")
_HEADER_BYTES = _HEADER.size
_COMMAND_AT = _HEADER_BYTES - 1
_LENGTH_MIN = _HEADER_BYTES - LENGTH_BYTES


def frame(command: int, body: bytes) -> bytes:
    """Return a complete frame of version 1."""
    return _HEADER.pack(len(body) + _LENGTH_MIN, 1, command) + body


class FrameReader(LengthFirstReader[Frame]):
    """Reads the frames of one direction of a connection; see `FramesReader`."""

    __slots__ = ()

    def __init__(self, max_length: int = MAX_LENGTH) -> None:
        super().__init__(_LENGTH_MIN, max_length)

    def _whole(self, data: bytes, position: int, frames: list[Frame]) -> int:
        size = len(data)
        longest = self._max_length
        unpack = _HEADER_COMMAND.unpack_from
        while size - position >= _HEADER_BYTES:
            length, command = unpack(data, position)
            end = position + LENGTH_BYTES + length
            if end > size or not _LENGTH_MIN <= length <= longest:
                break
            frames.append((command, data[position + _HEADER_BYTES : end]))
            position = end
        return position

    def _gathered(self, whole: memoryview) -> Frame:
        return whole[_COMMAND_AT], bytes(whole[_HEADER_BYTES:])
