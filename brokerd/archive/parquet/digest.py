# Tests: tests/archive/test_writer.py
"""Computes a digest of rows, independent of chunks, files and encodings of columns.

It proves that a file holds the rows that were decoded from the log. docs/archive-format.rst,
section "Digest of the rows", defines it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64, xxh3_64_intdigest


class RowsDigest:
    """The digest of row groups, in order."""

    def __init__(self) -> None:
        self._hash = xxh3_64()

    def update(self, table: pa.Table) -> None:
        """Add a row group: a table with one chunk per column."""
        for column in table.columns:
            for part in _parts(column.chunk(0)):
                self._hash.update(xxh3_64_intdigest(part).to_bytes(8, "little"))

    def hexdigest(self) -> str:
        """Return the digest as 16 hexadecimal digits."""
        return self._hash.hexdigest()


def byte_lengths(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return the length of each string or byte string of an array; undefined for null."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
    return np.diff(offsets)


def _parts(array: pa.Array) -> list[Any]:
    """Return the buffers of a column to hash."""
    if not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        if pa.types.is_timestamp(array.type):
            array = array.view(pa.int64())
        if not array.null_count:
            return [array.to_numpy()]
        if array.null_count == len(array):
            zeros = np.zeros(len(array), np.dtype(array.type.to_pandas_dtype()))
            return [np.zeros(len(array), np.uint8), zeros]
        present = array.is_valid().cast(pa.uint8()).to_numpy()
        return [present, array.fill_null(0).to_numpy()]
    if array.null_count == len(array):
        return [np.full(len(array), -1, np.int32), b""]
    lengths = byte_lengths(array)
    if array.null_count:
        present = array.is_valid().to_numpy(zero_copy_only=False)
        lengths = np.where(present, lengths, np.int32(-1))
        array = array.drop_null()
    return [lengths, content(array)]


def content(array: pa.Array) -> memoryview:
    """Return the joined bytes of an array of strings or byte strings without nulls."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return memoryview(b"")
    first, end = np.frombuffer(offsets, np.int32)[[array.offset, array.offset + len(array)]]
    return memoryview(data)[first:end]
