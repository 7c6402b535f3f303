# Tests: tests/codecs/test_rustlog_frames.py
"""Frames of both dialects: a length of four bytes, big-endian, and so many bytes of payload.

"More bytes are needed" is an empty list; "this is wrong" is `FrameReader.error`. A length is judged
as soon as its four bytes are there.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct

from brokerd.codecs.rustlog.values import MAX_PAYLOAD, FrameError

_LENGTH = Struct(">I")
_LENGTH_BYTES = _LENGTH.size


class Dialect(Enum):
    """What a payload is written in."""

    JSON = "json"
    BINARY = "binary"


_JSON_STARTS = frozenset(b'{"[ \n\r')
_TAB = 9
_BLANKS = b" \t\n\r"
_LOOK_BYTES = 64


def dialect_of(payload: bytes) -> Dialect:
    """The dialect of a payload, which is not empty, by its first byte (page, section Frames)."""
    first = payload[0]
    if first in _JSON_STARTS:
        return Dialect.JSON
    if first == _TAB and payload[:_LOOK_BYTES].lstrip(_BLANKS).startswith(b"{"):
        return Dialect.JSON
    return Dialect.BINARY


def frame(payload: bytes) -> bytes:
    """A complete frame."""
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Payloads of one direction of one connection.

    Use::

        for payload in reader.feed(data):
            ...
        if reader.error is not None:
            close()     # after answering the frames before the bad one
    """

    __slots__ = ("_max_payload", "_needed", "_partial", "error")

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self._max_payload = max_payload
        self._partial = bytearray()
        self._needed = 0  # bytes of the whole partial frame; 0 while its length is unknown
        self.error: FrameError | None = None
        """Set once the stream is out of step; whatever is fed later is dropped."""

    @property
    def partial_bytes(self) -> int:
        """Bytes held of a frame that is not complete; 0 between frames."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads of the frames that `data` ends, in order."""
        payloads: list[bytes] = []
        if not data or self.error is not None:
            return payloads
        start = self._finish_partial(data, payloads) if self._partial else 0
        size = len(data)
        while size - start >= _LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(data, start)
            end = start + _LENGTH_BYTES + length
            if end > size or not 1 <= length <= self._max_payload:
                break
            payloads.append(data[start + _LENGTH_BYTES : end])
            start = end
        if start < size:
            self._partial += data[start:] if start else data
            self._learn_length()
        return payloads

    def _learn_length(self) -> None:
        """Judge the length of the partial frame when it is there."""
        if len(self._partial) < _LENGTH_BYTES:
            self._needed = 0
            return
        (length,) = _LENGTH.unpack_from(self._partial)
        if 1 <= length <= self._max_payload:
            self._needed = _LENGTH_BYTES + length
        else:
            self._partial = bytearray()
            self.error = FrameError(length, self._max_payload)

    def _finish_partial(self, data: bytes, payloads: list[bytes]) -> int:
        """Add to the partial frame; where in `data` the next frame begins."""
        partial = self._partial
        taken = 0
        if not self._needed:
            taken = _LENGTH_BYTES - len(partial)
            partial += data[:taken]
            self._learn_length()
            if self.error is not None or not self._needed:
                return len(data)
        end = taken + self._needed - len(partial)
        partial += data[taken:end]
        if len(partial) == self._needed:
            with memoryview(partial) as view:
                payloads.append(bytes(view[_LENGTH_BYTES:]))
            self._partial = bytearray()
        return end
