# Tests: tests/codecs/test_rustlog_frames.py
"""Frames of both dialects: a big-endian length of four bytes, and the payload."""

from __future__ import annotations

from enum import Enum

from brokerd.codecs.length_prefixed import LengthPrefixedReader
from brokerd.codecs.rustlog.values import MAX_PAYLOAD


class Dialect(Enum):
    """The dialect of a payload."""

    JSON = "json"
    BINARY = "binary"


_JSON_STARTS = frozenset(b'{"[ \n\r')
_TAB = 9
_BLANKS = b" \t\n\r"
_LOOK_BYTES = 64


def dialect_of(payload: bytes) -> Dialect:
    """Return the dialect of a non-empty payload by its first byte (page, section Frames)."""
    first = payload[0]
    if first in _JSON_STARTS:
        return Dialect.JSON
    if first == _TAB and payload[:_LOOK_BYTES].lstrip(_BLANKS).startswith(b"{"):
        return Dialect.JSON
    return Dialect.BINARY


class FrameReader(LengthPrefixedReader):
    """Reads the payloads of one direction of a connection; see `FramesReader`."""

    __slots__ = ()

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        super().__init__(1, max_payload)
