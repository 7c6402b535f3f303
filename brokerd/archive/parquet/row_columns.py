# Tests: tests/archive/test_writer.py
"""A decoded row group of the table ``records``, and slices of it.

Columns are arrays of numbers and packed byte strings. A constant or absent column takes no memory.
Values, times and offsets stay arrays in a slice: a Python object for each would take most of the
time of a read.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from brokerd.archive.parquet.arrow_bytes import ArrowBytes
from brokerd.walformat import RecordColumns

Integers = npt.NDArray[np.int64]

READ_COLUMNS = (
    *("offset", "append_time", "producer_time", "key", "value", "encoding", "metadata"),
    *("expires_at", "producer_format"),
)
"""The columns to read of a file of one partition."""
KEY_COLUMNS = ("topic_id", "partition")
"""The additional columns to read of a file of several partitions."""

NO_RECORDS = RecordColumns([])
"""The columns of no record."""


class RecordRows:
    """Rows of the table ``records``. ``table`` has one chunk per column."""

    def __init__(self, table: pa.Table) -> None:
        column = {name: table[name].chunk(0) for name in table.column_names}
        self.size = table.nbytes
        """Approximate bytes in memory."""
        self.offsets: Integers = column["offset"].to_numpy()
        self.append_times: Integers = column["append_time"].view(pa.int64()).to_numpy()
        self._keys_of = [column[name].to_numpy() for name in KEY_COLUMNS if name in column]
        self._append_time = _constant(self.append_times)
        self._encodings = _constant(column["encoding"].to_numpy())
        self._formats = _constant(column["producer_format"].to_numpy())
        self._expires_at = _constant(column["expires_at"].to_numpy())
        self._producer_times = _Optional(column["producer_time"])
        self._keys = _ByteStrings(column["key"])
        self._values = _ByteStrings(column["value"])
        self._metadata = _ByteStrings(column["metadata"])
        parts = (self._keys, self._values, self._metadata)
        self._content_ends = np.cumsum(sum(part.lengths for part in parts), dtype=np.int64)

    def rows_of(self, topic_id: int, partition: int) -> tuple[int, int]:
        """Return the first row of a partition and the end of its rows."""
        if not self._keys_of:
            return 0, len(self.offsets)
        rows = np.flatnonzero((self._keys_of[0] == topic_id) & (self._keys_of[1] == partition))
        return (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)

    def fit(self, first: int, end: int, max_bytes: int) -> int:
        """Return the end of the rows from ``first`` on that fit ``max_bytes``: at least one row."""
        ends = self._content_ends
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + max_bytes, "right"))
        return min(end, max(first + 1, fitting))

    def offsets_of(self, first: int, end: int) -> Sequence[int]:
        """Return the offsets of the rows from ``first`` to ``end``: at least one row."""
        low, high = self.offsets.item(first), self.offsets.item(end - 1)
        is_dense = high - low == end - 1 - first
        return range(low, high + 1) if is_dense else self.offsets[first:end].tolist()

    def columns(self, first: int, end: int) -> RecordColumns:
        """Return the records of at least one row. The values refer to the whole row group."""
        rows = slice(first, end)
        expires_at = self._expires_at
        if isinstance(expires_at, int):
            expiries = [expires_at] * (end - first) if expires_at else None
        else:
            expiries = expires_at[rows].tolist()
        return RecordColumns(
            values=self._values.packed(first, end),
            keys=self._keys.optional(first, end),
            encodings=_slice(self._encodings, rows),
            metadata=self._metadata.optional(first, end),
            append_time_us=_slice(self._append_time, rows),
            producer_time=self._producer_times.slice(first, end),
            expires_at_us=expiries,
            producer_format=_slice(self._formats, rows),
        )


def _constant(numbers: npt.NDArray[Any]) -> npt.NDArray[Any] | int:
    """Return one number if all numbers are equal, else the array."""
    return int(numbers[0]) if (numbers == numbers[0]).all() else numbers


def _slice(numbers: npt.NDArray[Any] | int, rows: slice) -> Sequence[int] | int:
    """Return rows of a column, without a Python number for each row."""
    if isinstance(numbers, int):
        return numbers
    return array(numbers.dtype.char, numbers[rows].tobytes())


class _Optional:
    """A column of numbers with nulls."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array if array.null_count < len(array) else None

    def slice(self, first: int, end: int) -> list[int | None] | None:
        """Return rows of the column, or None if all of them are null."""
        if self._array is None:
            return None
        part = self._array.slice(first, end - first)
        found: list[int | None] = part.to_pylist() if part.null_count else part.to_numpy().tolist()
        return found


class _ByteStrings:
    """A column of byte strings with nulls."""

    def __init__(self, array: pa.Array) -> None:
        self._present = array.is_valid() if array.null_count else None
        self._is_absent = array.null_count == len(array)
        _, offsets, data = array.buffers()
        self._ends = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset)
        self._data = memoryview(data if data is not None else b"")
        self.lengths = np.diff(self._ends)

    def packed(self, first: int, end: int) -> ArrowBytes:
        """Return rows of the column without a copy. A null becomes empty."""
        return ArrowBytes(self._ends[first : end + 1], self._data)

    def optional(self, first: int, end: int) -> list[bytes | None] | None:
        """Return rows of the column, or None if all rows of the group are null."""
        if self._is_absent:
            return None
        pieces = list(self.packed(first, end))
        if self._present is None:
            return [*pieces]
        present = self._present[first:end].to_pylist()
        return [piece if has else None for piece, has in zip(pieces, present, strict=True)]
