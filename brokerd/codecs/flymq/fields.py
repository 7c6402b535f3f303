# Tests: tests/codecs/test_flymq_requests.py
"""The fields of a payload, read one after the other, and written (page, section Encoding).

A count is compared with the bytes that are left before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from brokerd.codecs.flymq.values import FieldError

TEXT_BYTES_MAX = 65_535
"""What the length of a ``str`` can say."""
TEXT8_BYTES_MAX = 255
"""What the length of a ``str8`` can say."""

_U16 = Struct(">H")
_U32 = Struct(">I")
_I32 = Struct(">i")
_U64 = Struct(">Q")
_I64 = Struct(">q")


class Fields:
    """Reads a payload from its beginning; every method moves on behind what it read.

    :raises FieldError: the field is not there, or not whole, or not UTF-8; by all methods. Their
        argument names the field in the text.
    """

    __slots__ = ("_payload", "_position")

    def __init__(self, payload: bytes | memoryview) -> None:
        self._payload = payload
        self._position = 0

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return len(self._payload) - self._position

    def peek(self, size: int) -> int:
        """The unsigned number in what is there of the next `size` bytes; stay before it."""
        return int.from_bytes(self._payload[self._position : self._position + size], "big")

    def text(self, what: str) -> str:
        """A ``str``."""
        return self._text(self._number(_U16, what), what)

    def text8(self, what: str) -> str:
        """A ``str8``."""
        return self._text(self.u8(what), what)

    def data(self, what: str) -> bytes:
        """A ``bytes``."""
        return self._take(self._number(_U32, what), what)

    def rest(self) -> bytes:
        """All that is left, as it is."""
        return self._take(self.left, "rest")

    def flag(self, what: str) -> bool:
        """A ``bool``: true is 01, and nothing else is."""
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
        """How many items follow, each of at least `smallest` bytes."""
        count = self._number(_U32, what)
        self.expect(what, count, smallest)
        return count

    def expect(self, what: str, count: int, smallest: int) -> None:
        """That there are bytes left for `count` items of at least `smallest` bytes each."""
        if count * smallest > self.left:
            raise FieldError(
                f"buffer too small: {what} says {count} items and {self.left} bytes are left"
            )

    def texts(self, what: str) -> tuple[str, ...]:
        """A ``list<str>``."""
        return tuple([self.text(what) for _ in range(self.count(what, 2))])

    def count16(self, what: str, smallest: int) -> int:
        """As `count`, but said in two bytes."""
        count = self.u16(what)
        self.expect(what, count, smallest)
        return count

    def _number(self, layout: Struct, what: str) -> int:
        number: int = layout.unpack_from(self._payload, self._advance(layout.size, what))[0]
        return number

    def _advance(self, size: int, what: str) -> int:
        """Where the next `size` bytes begin."""
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
    """A ``str``.

    :raises ValueError: it has more than 65,535 bytes, or UTF-8 cannot say it.
    """
    data = text.encode()
    if len(data) > TEXT_BYTES_MAX:
        raise ValueError(f"a text of {len(data)} bytes is too long: {TEXT_BYTES_MAX} is the most")
    return _U16.pack(len(data)) + data


def pack_text8(text: str) -> bytes:
    """A ``str8``.

    :raises ValueError: it has more than 255 bytes, or UTF-8 cannot say it.
    """
    data = text.encode()
    if len(data) > TEXT8_BYTES_MAX:
        raise ValueError(f"a text of {len(data)} bytes is too long: {TEXT8_BYTES_MAX} is the most")
    return bytes([len(data)]) + data


def pack_data(data: bytes) -> bytes:
    """A ``bytes``."""
    return _U32.pack(len(data)) + data


def pack_texts(texts: Sequence[str]) -> bytes:
    """A ``list<str>``."""
    return _U32.pack(len(texts)) + b"".join(map(pack_text, texts))
