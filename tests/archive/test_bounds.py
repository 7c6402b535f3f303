"""The file that tells the archive's job what it may remove."""

from __future__ import annotations

import pytest

from brokerd.archive.contract.bounds import (
    Bounds,
    DamagedPlace,
    PartitionBounds,
    TopicBounds,
    decode_bounds,
    encode_bounds,
)
from brokerd.errors import DamagedData, NewerFormat

BOUNDS = Bounds(
    log_id="0123456789abcdef0123456789abcdef",
    lsn=1 << 40,
    time_us=1_700_000_000_000_000,
    time_settled=True,
    next_topic_id=9,
    topics=[
        TopicBounds(7, "flights", 0, True, [PartitionBounds(3, 10, 12, [(4, 5)])]),
        TopicBounds(8, "flüge\n", 7, False, [PartitionBounds(0, 0, 0)] * 3),
    ],
    damage=[DamagedPlace("00000000000000000000.wal", 4096, 8192)],
)


def test_it_comes_back_as_it_was_written() -> None:
    """What a broker wrote, the job reads."""
    assert decode_bounds(encode_bounds(BOUNDS)) == BOUNDS


def test_any_flipped_bit_is_found() -> None:
    """A damaged file says so, wherever the damage is: the job must not remove too much."""
    data = encode_bounds(BOUNDS)
    for at in range(len(data) - 1):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises((DamagedData, NewerFormat)):
                decode_bounds(bytes(flipped))


def test_a_file_cut_short_is_damaged() -> None:
    """Half a file is none."""
    data = encode_bounds(BOUNDS)
    for size in range(len(data) - 1):
        with pytest.raises(DamagedData):
            decode_bounds(data[:size])


def test_a_later_version_is_refused() -> None:
    """A file of a later brokerd is not guessed at."""
    with pytest.raises(NewerFormat, match="upgrade"):
        decode_bounds(encode_bounds(BOUNDS).replace(b"bounds 1 ", b"bounds 2 ", 1))
