"""Byte strings that Arrow holds are those that were put in, alone, in part, and behind numbers."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.parquet.arrow_bytes import ArrowBytes
from brokerd.values import PackedBytes, total_bytes

strings = st.lists(st.binary(max_size=12) | st.just(bytes(300)), max_size=20)
places = st.none() | st.integers(-25, 25)


def packed(*wanted: bytes) -> ArrowBytes:
    """As a column of a row group has them, with others before and behind."""
    array = pa.array([b"before", *wanted, b"behind"], pa.binary())
    _, ends, data = array.buffers()
    found = np.frombuffer(ends, np.int32, len(array) + 1)[1:-1]
    return ArrowBytes(found, memoryview(data))


@given(strings, places, places)
def test_they_are_read_like_a_list(wanted: list[bytes], first: int | None, end: int | None) -> None:
    """One by one, all of them, and in parts, which have parts too."""
    found = packed(*wanted)
    for one, expected in (
        (found, wanted),
        (found.copy(), wanted),
        (found[first:end], wanted[first:end]),
        (found.copy()[first:end].copy(), wanted[first:end]),
        (found[1:][first:end], wanted[1:][first:end]),
    ):
        assert list(one) == expected
        assert len(one) == len(expected)
        assert [one[at] for at in range(-len(expected), len(expected))] == expected * 2
        assert all(type(string) is bytes for string in one)
        assert one.size == total_bytes(one) == total_bytes(expected)
        for outside in (len(expected), -len(expected) - 1):
            with pytest.raises(IndexError, match=f"{outside} of {len(expected)}"):
                one[outside]


@given(strings, st.integers(0, 1 << 62), st.booleans())
def test_each_stands_behind_its_number_and_its_length(
    wanted: list[bytes], first: int, is_range: bool
) -> None:
    """Also in a part of them."""
    numbers = range(first, first + len(wanted))
    pieces = [
        struct.pack(">QQ", number, len(one)) + one
        for number, one in zip(numbers, wanted, strict=True)
    ]
    given_numbers = numbers if is_range else list(numbers)
    assert packed(*wanted).packed_after(given_numbers) == b"".join(pieces)
    assert packed(*wanted)[2:9].packed_after(given_numbers[2:9]) == b"".join(pieces[2:9])


def test_a_copy_holds_on_to_nothing_else() -> None:
    """A few small ones of a row group of megabytes do not keep it in memory."""
    data = bytes(4 << 20)
    before = pa.total_allocated_bytes()
    buffer = pa.allocate_buffer(len(data))
    assert pa.total_allocated_bytes() >= before + len(data)
    few = ArrowBytes(np.array([7, 8, 10], np.int32), memoryview(buffer)).copy()
    del buffer
    assert pa.total_allocated_bytes() < before + len(data)
    assert few.size == 3


def test_steps_are_refused() -> None:
    """Nobody takes every other record; what would come is not silently something else."""
    with pytest.raises(ValueError, match="has step 1, not 2"):
        packed(b"a", b"b", b"c")[::2]


def test_others_know_them_by_their_kind() -> None:
    """Formats ask whether values are packed, not whether Arrow has them."""
    assert isinstance(packed(), PackedBytes)
