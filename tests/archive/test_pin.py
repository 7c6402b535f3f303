"""The file that says which archive a log relies on is read as it was written, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.pin import (
    Pin,
    archive_id,
    decode_pin,
    encode_pin,
    segment_hash,
)
from brokerd.errors import DamagedData

DRAWN = st.integers(0, (1 << 62) - 1)


@given(DRAWN, st.integers(0, (1 << 63) - 1))
def test_it_is_read_as_it_was_written(drawn: int, lsn: int) -> None:
    """Also for an archive that has no id."""
    pin = Pin(archive_id(drawn), lsn)
    assert decode_pin(encode_pin(pin)) == pin


@given(st.data())
def test_a_flipped_bit_or_a_cut_is_found(data: st.DataObject) -> None:
    """Nothing else is read from it."""
    whole = encode_pin(Pin("0123456789abcdef", 4096))
    at = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at // 8] ^= 1 << at % 8
    for bad in (bytes(flipped), whole[: at // 8]):
        with pytest.raises(DamagedData, match="archived is not as a broker wrote it"):
            decode_pin(bad)


def test_segments_are_told_apart_by_a_number_that_a_table_can_hold() -> None:
    """62 bits, and never that of another."""
    marks = {segment_hash(bytes([n]) * 16) for n in range(256)}
    assert len(marks) == 256
    assert max(marks) < 1 << 62
