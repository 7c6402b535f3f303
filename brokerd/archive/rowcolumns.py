# Tests: tests/archive/test_files.py
"""Rows of the table ``records`` -> the columns that the broker has records in."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from brokerd.walformat import RecordColumns

READ_COLUMNS = (
    *("offset", "append_time", "producer_time", "key", "value", "encoding", "metadata"),
    *("expires_at", "producer_format"),
)
"""The columns of the table that are needed."""

NO_RECORDS = RecordColumns([])
"""The columns of no record."""


def record_columns(rows: pa.Table) -> RecordColumns:
    """Rows of the table ``records`` as the broker has records; at least one."""
    column = {name: rows[name].chunk(0) for name in READ_COLUMNS}
    producer_time, expires_at = column["producer_time"], column["expires_at"].to_numpy()
    return RecordColumns(
        values=_pieces(column["value"]),
        keys=_optional(column["key"]),
        encodings=_numbers(column["encoding"]),
        metadata=_optional(column["metadata"]),
        append_time_us=_numbers(column["append_time"].view(pa.int64())),
        producer_time=None if producer_time.null_count == len(rows) else producer_time.to_pylist(),
        expires_at_us=expires_at.tolist() if expires_at.any() else None,
        producer_format=_numbers(column["producer_format"]),
    )


def _numbers(array: pa.Array) -> list[int] | int:
    """One number for all, or a list."""
    numbers = array.to_numpy()
    if (numbers == numbers[0]).all():
        return int(numbers[0])
    found: list[int] = numbers.tolist()
    return found


def _pieces(array: pa.Array) -> list[bytes]:
    """The byte strings of an array; the empty one where it is null."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset)
    if ends[0] == ends[-1]:
        return [b""] * len(array)
    every = bytes(memoryview(data)[ends[0] : ends[-1]])
    places = (ends - ends[0]).tolist()
    return [every[start:end] for start, end in pairwise(places)]


def _optional(array: pa.Array) -> list[bytes | None] | None:
    """Keys or metadata; None if no record has any."""
    if array.null_count == len(array):
        return None
    pieces = _pieces(array)
    if not array.null_count:
        return list(pieces)
    present = array.is_valid().to_pylist()
    return [piece if has else None for piece, has in zip(pieces, present, strict=True)]
