# Tests: tests/archive/test_arrow_bytes.py
"""Implements `brokerd.values.PackedBytes` on Arrow's layout: one block of bytes, and end positions.

Arrow joins byte strings with numbers without the interpreter's lock, so other threads can run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.values import PackedBytes

_HEAD_BYTES = 16
"""Size of a number and a length."""


class ArrowBytes(PackedBytes):
    """Byte strings in ``data``. ``ends`` has the first string's begin, and each string's end."""

    __slots__ = ("_data", "_ends")

    def __init__(self, ends: npt.NDArray[np.int32], data: bytes | memoryview) -> None:
        self._ends = ends.data
        self._data = data

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> ArrowBytes: ...

    def __getitem__(self, index: int | slice) -> bytes | ArrowBytes:
        ends, count = self._ends, len(self._ends) - 1
        if isinstance(index, slice):
            first, end, step = index.indices(count)
            if step != 1:
                raise ValueError(f"a slice of packed bytes has step 1, not {step}")
            return ArrowBytes(np.asarray(ends[first : max(first, end) + 1]), self._data)
        at = index if index >= 0 else index + count
        if not 0 <= at < count:
            raise IndexError(f"{index} of {count} byte strings")
        return bytes(self._data[ends[at] : ends[at + 1]])

    def __iter__(self) -> Iterator[bytes]:
        own = self.copy()
        data = bytes(own._data)
        return iter([data[start:end] for start, end in pairwise(own._ends.tolist())])

    @property
    def size(self) -> int:
        return self._ends[-1] - self._ends[0]

    def copy(self) -> ArrowBytes:
        ends = np.asarray(self._ends)
        return ArrowBytes(ends - ends[0], bytes(self._data[self._ends[0] : self._ends[-1]]))

    def packed_after(self, numbers: Sequence[int]) -> bytes:
        count = len(self)
        if not count:
            return b""
        heads = np.empty((count, 2), ">u8")
        heads[:, 0] = _numbers(numbers)
        heads[:, 1] = np.diff(self._ends)
        head_ends = np.arange(0, _HEAD_BYTES * count + 1, _HEAD_BYTES, dtype=np.int32)
        strings = _array(head_ends, heads), _array(self._ends, self._data)
        joined: bytes = pc.binary_join_element_wise(*strings, b"").buffers()[2].to_pybytes()
        return joined


def _numbers(numbers: Sequence[int]) -> Sequence[int] | npt.NDArray[np.int64]:
    """Convert a range to an array, which is faster."""
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
    return numbers


def _array(ends: object, data: object) -> pa.Array:
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), buffers[1].size // 4 - 1, buffers)
