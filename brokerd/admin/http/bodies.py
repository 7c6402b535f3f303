# Tests: tests/admin/test_bodies.py
"""Reads and decodes large bodies of JSON in pieces, so that no step holds the reactor for long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, Any

import msgspec

PIECE_BYTES = 64 << 10
"""Bytes of a body that one step reads, counts or decodes."""


def read_pieces(content: IO[bytes], bytes_max: int) -> Iterator[bytes]:
    """Yield the first ``bytes_max`` bytes of a body in pieces."""
    while bytes_max > 0 and (piece := content.read(min(PIECE_BYTES, bytes_max))):
        bytes_max -= len(piece)
        yield piece


def value_counts(pieces: Iterable[bytes]) -> Iterator[int]:
    """Yield the number of values in the first pieces of JSON, without decoding.

    Values are counted by the commas and opening brackets outside of strings.
    """
    count, rest, is_in_string = 0, b"", False
    for piece in pieces:
        piece, rest = rest + piece, b""
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            # The last backslash belongs to the character that follows it.
            piece, rest = piece[:-1], piece[-1:]
        unescaped = piece.replace(rb"\\", b"").replace(rb"\"", b"")
        parts = unescaped.split(b'"')
        count += _marks_in(b"".join(parts[is_in_string::2]))
        is_in_string ^= len(parts) % 2 == 0
        yield count


def most_values(piece: bytes) -> int:
    """Return an upper bound of `value_counts` for a piece, in a fraction of the time."""
    return piece.count(b",") + piece.count(b"[") + piece.count(b"{")


def _marks_in(text: bytes) -> int:
    return len(text) - len(text.translate(None, b",[{"))


class ListBody:
    """Decodes a body that is an object with one field, an array of objects.

    A step decodes the objects up to the last ``},`` of a piece. JSON that is an array up to there
    is the beginning of the whole array: if the ``},`` is in a string or in a nested value, the
    decoder refuses it, and the step tries a piece of twice the size.

    :param body: the type of the whole body.
    :param field: its field.
    :param item: the type of the objects.
    """

    def __init__(self, body: type[msgspec.Struct], field: str, item: type[msgspec.Struct]) -> None:
        self._body = body
        self._field = field
        self._decode = msgspec.json.Decoder(list[item]).decode  # type: ignore[valid-type]

    def steps(self, pieces: list[bytes]) -> Iterator[msgspec.Struct | None]:
        """Yield None after each step, and the body at last.

        The last step decodes the whole body if it does not have this form, or is wrong. Raises as
        `msgspec.json.decode`.
        """
        items: list[Any] = []
        first = self._after_begin(pieces[0]) if pieces else None
        waiting, size, wanted_bytes = [first or b""], len(first or b""), PIECE_BYTES
        for piece in pieces[1:] if first is not None else ():
            waiting.append(piece)
            size += len(piece)
            if size < wanted_bytes:
                continue
            text = b"".join(waiting)
            end = text.rfind(b"},") + 1
            found = self._items(text[:end]) if end else None
            if found is None:
                waiting, wanted_bytes = [text], 2 * size
            else:
                items += found
                waiting, wanted_bytes = [text[end + 1 :]], PIECE_BYTES
                size = len(waiting[0])
            yield None
        found = None if first is None else self._last_items(b"".join(waiting))
        if not found or not items:
            yield msgspec.json.decode(b"".join(pieces), type=self._body)
        else:
            # It checks the length.
            yield msgspec.convert({self._field: items + found}, self._body)

    def _after_begin(self, text: bytes) -> bytes | None:
        """Return the text after the opening bracket of the array; None if it begins otherwise."""
        for mark in (b"{", b'"' + self._field.encode() + b'"', b":", b"["):
            text = text.lstrip(b" \t\r\n")
            if not text.startswith(mark):
                return None
            text = text[len(mark) :]
        return text

    def _last_items(self, text: bytes) -> list[Any] | None:
        """Return the last objects, from the text up to the end of the body."""
        for mark in (b"}", b"]"):
            text = text.rstrip(b" \t\r\n")
            if not text.endswith(mark):
                return None
            text = text[:-1]
        return self._items(text)

    def _items(self, text: bytes) -> list[Any] | None:
        """Return the objects in the text; None if it is not a list of them."""
        try:
            return self._decode(b"[%s]" % text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # the decoder of the whole body names the error
