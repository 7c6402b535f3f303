# Tests: tests/codecs/test_flymq_requests.py
"""Reads and writes the fields of a payload (page, section Encoding).

A count is compared with the remaining bytes before objects are built.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from brokerd.codecs.flymq.values import FieldError

TEXT_BYTES_MAX = 65_535
"""Longest ``str``."""
TEXT8_BYTES_MAX = 255
"""Longest ``str8``."""

_U16 = Struct(">H")
_U32 = Struct(">I")
_I32 = Struct(">i")
_U64 = Struct(">Q")
_I64 = Struct(">q")


class Fields:
    """Reads the fields of a payload in order; every method reads one field.

    :raises FieldError: by all methods, for a missing or incomplete field or bad UTF-8. The argument
        is the name of the field in the text.
    """

    __slots__ = ("_payload", "_position")

    def __init__(self, payload: bytes | memoryview) -> None:
        self._payload = payload
        self._position = 0

    @property
    def left(self) -> int:
        """Number of unread bytes."""
        return len(self._payload) - self._position

    def peek(self, size: int) -> int:
        """Return the unsigned number of the next `size` bytes, or fewer, without reading them."""
        return int.from_bytes(self._payload[self._position : self._position + size], "big")

    def text(self, what: str) -> str:
        """Read a ``str``."""
        return self._text(self._number(_U16, what), what)

    def text8(self, what: str) -> str:
        """Read a ``str8``."""
        return self._text(self.u8(what), what)

    def data(self, what: str) -> bytes:
        """Read a ``bytes``."""
        return self._take(self._number(_U32, what), what)

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self._take(self.left, "rest")

    def flag(self, what: str) -> bool:
        """Read a ``bool``: only 01 is true."""
        return self.u8(what) == 1

    def u8(self, what: str) -> int:
        return self._payload[self._advance(1, what)]

    def u16(self, what: str) -> int:
        return self._number(_U16, what)

    def u32(self, what: str) -> int:
        return self._number(_U32, what)

    def i32(self, what: str) -> int:
        return self._number(_I32, what)

    def u64(self, what: str) -> int:
        return self._number(_U64, what)

    def i64(self, what: str) -> int:
        return self._number(_I64, what)

    def count(self, what: str, smallest: int) -> int:
        """Read the number of items that follow, each of at least `smallest` bytes."""
        count = self._number(_U32, what)
        self.expect(what, count, smallest)
        return count

    def expect(self, what: str, count: int, smallest: int) -> None:
        """Check that bytes are left for `count` items of at least `smallest` bytes each."""
        if count * smallest > self.left:
            raise FieldError(
                f"buffer too small: {what} says {count} items and {self.left} bytes are left"
            )

    def texts(self, what: str) -> tuple[str, ...]:
        """Read a ``list<str>``."""
        return tuple([self.text(what) for _ in range(self.count(what, 2))])

    def count16(self, what: str, smallest: int) -> int:
        """Like `count`, for a number of two bytes."""
        count = self.u16(what)
        self.expect(what, count, smallest)
        return count

    def _number(self, layout: Struct, what: str) -> int:
        number: int = layout.unpack_from(self._payload, self._advance(layout.size, what))[0]
        return number

    def _advance(self, size: int, what: str) -> int:
        """Skip `size` bytes and return their position."""
        position = self._position
        if position + size > len(self._payload):
            raise FieldError(
                f"buffer too small: {what} needs {size} bytes and {self.left} are left"
            )
        self._position = position + size
        return position

    def _take(self, size: int, what: str) -> bytes:
        start = self._position
        end = start + size
        if end > len(self._payload):
            raise FieldError(f"buffer too small: {what} says {size} bytes and {self.left} are left")
        self._position = end
        return bytes(self._payload[start:end])

    def _text(self, size: int, what: str) -> str:
        try:
            return self._take(size, what).decode()
        except UnicodeDecodeError:
            raise FieldError(f"invalid binary format: {what} is not UTF-8") from None


def pack_text(text: str) -> bytes:
    """Return a ``str``.

    :raises ValueError: it has more than 65,535 bytes, or UTF-8 cannot encode it.
    """
    data = text.encode()
    if len(data) > TEXT_BYTES_MAX:
        raise ValueError(f"a text of {len(data)} bytes is too long: {TEXT_BYTES_MAX} is the most")
    return _U16.pack(len(data)) + data


def pack_text8(text: str) -> bytes:
    """Return a ``str8``.

    :raises ValueError: it has more than 255 bytes, or UTF-8 cannot encode it.
    """
    data = text.encode()
    if len(data) > TEXT8_BYTES_MAX:
        raise ValueError(f"a text of {len(data)} bytes is too long: {TEXT8_BYTES_MAX} is the most")
    return bytes([len(data)]) + data


def pack_data(data: bytes) -> bytes:
    """Return a ``bytes``."""
    return _U32.pack(len(data)) + data


def pack_texts(texts: Sequence[str]) -> bytes:
    """Return a ``list<str>``."""
    return _U32.pack(len(texts)) + b"".join(map(pack_text, texts))
