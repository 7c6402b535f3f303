# Tests: tests/test_walformat.py
"""Columns of numbers in the body of an entry (docs/wal-format.rst, section "Columns")."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

from brokerd.walformat.layout import PADDING, FormatError

ABSENT, CONSTANT, ARRAY, ARRAY_WITH_VALIDITY = range(4)
"""Kinds of a column."""

_WIDTHS = {"B": 1, "I": 4, "i": 4, "q": 8, "Q": 8}


def pad(data: bytes) -> bytes:
    """Append zeros up to a multiple of 8 bytes."""
    return data + PADDING[len(data) & 7]


def encode_column(code: str, values: Sequence[int]) -> tuple[int, int, bytes]:
    """Encode a column of a struct code as (kind, constant, bytes).

    The column is constant if all values are equal.
    """
    first = values[0]
    # Most columns that are not constant differ in the last value.
    if values[-1] == first and values.count(first) == len(values):
        return CONSTANT, first, b""
    return ARRAY, 0, pad(struct.pack(f"<{len(values)}{code}", *values))


class ColumnReader:
    """Reads the columns of a body in order. ``position`` is where the next one begins."""

    def __init__(self, body: bytes, rows: int, position: int) -> None:
        self.body = body
        self.rows = rows
        self.position = position

    def numbers(self, code: str) -> tuple[int, ...]:
        """Read an array of a struct code. Raises FormatError."""
        size = self.rows * _WIDTHS[code]
        if self.position + size > len(self.body):
            raise FormatError(f"column at {self.position} runs past the end of the body")
        found = struct.unpack_from(f"<{self.rows}{code}", self.body, self.position)
        self.position += (size + 7) & ~7
        return found

    def column(self, kind: int, code: str, constant: int) -> Sequence[int] | int | None:
        """Read a column of a kind: an array, a constant, or None if absent. Raises FormatError."""
        if kind == ARRAY:
            return self.numbers(code)
        if kind == CONSTANT:
            return constant
        if kind == ABSENT:
            return None
        raise FormatError(f"column kind {kind} is not allowed here")

    def cut(self, lengths: Sequence[int], total: int) -> list[bytes]:
        """Cut the next ``total`` bytes into pieces of these lengths. Raises FormatError."""
        body, start = self.body, self.position
        ends = list(accumulate(lengths, initial=start))
        if ends[-1] != start + total or ends[-1] > len(body):
            raise FormatError(f"lengths add up to {ends[-1] - start} bytes, not {total}")
        self.position = ends[-1]
        return [body[begin:end] for begin, end in pairwise(ends)]
