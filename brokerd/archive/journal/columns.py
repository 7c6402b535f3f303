# Tests: tests/archive/test_records.py, tests/archive/test_events.py
"""Decodes columns of many entry bodies at once (docs/wal-format.rst, section "Columns").

All bodies are in one array of bytes, each at a multiple of 8. numpy repeats constants for the rows
of a body and gathers arrays. Python runs no step per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from brokerd.walformat import ARRAY, ARRAY_WITH_VALIDITY

Integers = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

ENTRY_FIELDS: dict[str, tuple[str, int]] = {
    "kind": ("u1", 0),
    "version": ("u1", 1),
    "flags": ("<u2", 2),
    "body_bytes": ("<u4", 4),
    "topic_id": ("<u8", 8),
    "partition": ("<u4", 16),
    "count": ("<u4", 20),
    "base_offset": ("<i8", 24),
    "header_checksum": ("<u8", 32),
    "body_checksum": ("<u8", 40),
}
"""Type and position in bytes of each field of an entry header."""


def fields(named: dict[str, tuple[str, int]], size: int) -> np.dtype[np.void]:
    """Return a dtype of ``size`` bytes, whose fields have given types and positions."""
    return np.dtype(
        {
            "names": list(named),
            "formats": [code for code, _ in named.values()],
            "offsets": [position for _, position in named.values()],
            "itemsize": size,
        }
    )


def padded(size: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Round sizes up to multiples of 8."""
    return size + 7 & ~7


class Bodies:
    """An array of bytes that holds headers and bodies, each at a multiple of 8."""

    def __init__(self, data: Octets) -> None:
        self.data = data[: len(data) & ~7]
        self.view = data.data

    def headers(self, at: Integers, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
        """Return the structures at the positions ``at``. The dtype's size is a multiple of 8."""
        words = self.data.view("<u8")
        found = words[(at // 8)[:, None] + np.arange(dtype.itemsize // 8)]
        headers: npt.NDArray[np.void] = found.view(dtype)[:, 0]
        return headers

    def checksums(self, first: Integers, end: Integers, seeds: Iterable[int]) -> npt.NDArray[Any]:
        """Return the checksums of the bytes from each ``first`` to its ``end``."""
        view = self.view
        places = zip(first.tolist(), end.tolist(), strict=True)
        pieces = [view[start:stop] for start, stop in places]
        return np.array(list(map(xxh3_64_intdigest, pieces, seeds)), np.uint64)

    def joined(self, first: Integers, end: Integers) -> bytes:
        """Join the bytes from each ``first`` to its ``end``."""
        view = self.view
        some = np.flatnonzero(end > first)
        places = zip(first[some].tolist(), end[some].tolist(), strict=True)
        return b"".join([view[start:stop] for start, stop in places])


class ColumnStarts(NamedTuple):
    """The layout of the columns of bodies."""

    kinds: list[npt.NDArray[np.intp]]
    """For each column: its kind in each body."""
    starts: list[Integers]
    """For each column: the position of its array in each body, after the validity."""
    end: Integers
    """The end of the columns of each body."""
    allowed: Mask
    """Marks the bodies that have only allowed kinds."""


def find_columns(
    kinds: npt.NDArray[np.uint32],
    start: Integers,
    count: Integers,
    types: Sequence[np.dtype[Any]],
    allowed: npt.NDArray[np.bool_],
) -> ColumnStarts:
    """Compute the positions of the columns of bodies.

    :param kinds: the kinds of each body, 4 bits per column.
    :param start: the position of each body's first column.
    :param count: the rows of each body.
    :param allowed: the allowed kinds of each column.
    """
    found = ColumnStarts([], [], start, np.ones(len(count), np.bool_))
    for column, dtype in enumerate(types):
        kind = (kinds >> np.uint32(4 * column) & 15).astype(np.intp)
        is_allowed = found.allowed & allowed[column][kind]
        first = found.end + np.where(kind == ARRAY_WITH_VALIDITY, padded(count), 0)
        end = first + np.where(kind >= ARRAY, padded(count * dtype.itemsize), 0)
        found = ColumnStarts([*found.kinds, kind], [*found.starts, first], end, is_allowed)
    return found


class RowColumns:
    """Columns of several bodies. Each body has ``count`` rows, at least one."""

    def __init__(self, bodies: Bodies, count: Integers) -> None:
        self._bodies = bodies
        self.count = count
        self.first_row = np.cumsum(count) - count
        self._row = np.arange(int(count.sum()), dtype=np.int64)

    def row_in_body(self) -> Integers:
        """Return each row's number in its body."""
        found: Integers = self._row - self.repeat(self.first_row)
        return found

    def repeat(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Repeat the value of each body for its rows."""
        return np.repeat(values, self.count)

    def fill(self, constant: npt.NDArray[Any], is_array: Mask, start: Integers) -> npt.NDArray[Any]:
        """Return a value for each row: its body's constant, or from the array at ``start``."""
        width = constant.dtype.itemsize
        source = self._bodies.data.view(constant.dtype)
        shift = start // width - self.first_row
        if is_array.all():
            found: npt.NDArray[Any] = source[self._row + self.repeat(shift)]
            return found
        filled = self.repeat(constant)
        if is_array.any():
            rows = np.flatnonzero(self.repeat(is_array))
            filled[rows] = source[rows + np.repeat(shift[is_array], self.count[is_array])]
        return filled

    def sums(self, lengths: npt.NDArray[Any]) -> Integers:
        """Sum the lengths of each body's rows. A negative length counts as 0."""
        found: Integers = np.add.reduceat(np.maximum(lengths, 0), self.first_row, dtype=np.int64)
        return found


def byte_strings(lengths: npt.NDArray[Any], data: bytes, kind: pa.DataType) -> pa.Array:
    """Build an Arrow array of strings or byte strings below 2 GiB. A negative length is null."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    validity, nulls = None, 0
    absent = lengths < 0
    if absent.any():
        nulls = int(absent.sum())
        validity = pa.py_buffer(np.packbits(~absent, bitorder="little"))
        lengths = np.where(absent, 0, lengths)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(lengths), buffers, nulls)
