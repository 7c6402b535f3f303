"""The id of a log: made once, and kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.bounds import Bounds, encode_bounds
from brokerd.archive.contract.log_id import decode_log_id, encode_log_id
from brokerd.broker.model.log_id import LogId, find_log_id
from brokerd.errors import DamagedData
from simulator.machine.bare import STATE_DIR
from simulator.machine.disk import SimDisk

MADE = "ab" * 16
OTHER = "cd" * 16


def find(disk: SimDisk, made: str = MADE) -> LogId:
    return find_log_id(disk, STATE_DIR, lambda count: bytes.fromhex(made)[:count])


def put(disk: SimDisk, name: str, data: bytes) -> None:
    disk.make_directory(STATE_DIR)
    file = disk.create(f"{STATE_DIR}/{name}")
    file.pwrite(data, 0)
    file.sync()
    disk.sync_directory(STATE_DIR)


def bounds_of(log_id: str) -> bytes:
    return encode_bounds(Bounds(log_id, 0, 0, True, 1, []))


def test_a_log_gets_an_id_once() -> None:
    """The first start makes it; each later one finds it, whatever it would have made."""
    disk = SimDisk()
    assert find(disk) == LogId(MADE, True, "")
    assert find(disk, OTHER) == LogId(MADE, False, "")


def test_it_is_durable_when_it_is_used() -> None:
    """A power cut right after the start takes nothing of it."""
    disk = SimDisk()
    find(disk)
    disk.crash()
    assert find(disk, OTHER).text == MADE


def test_a_lost_file_is_made_again_from_the_bounds() -> None:
    """So that the archive stays that of this log."""
    disk = SimDisk()
    put(disk, "bounds", bounds_of(OTHER))
    assert find(disk) == LogId(OTHER, False, "")
    disk.unlink(f"{STATE_DIR}/bounds")
    assert find(disk) == LogId(OTHER, False, "")


def test_a_damaged_file_is_said_and_made_again() -> None:
    """From the bounds if they are sound; else the log has another id from now on."""
    disk = SimDisk()
    put(disk, "log_id", encode_log_id(OTHER).replace(b"c", b"d", 1))
    put(disk, "bounds", bounds_of(OTHER))
    found = find(disk)
    assert (found.text, found.is_new) == (OTHER, False)
    assert "log_id is not as a broker wrote it" in found.problem
    assert find(disk) == LogId(OTHER, False, "")


def test_damaged_bounds_give_no_id() -> None:
    disk = SimDisk()
    put(disk, "bounds", bounds_of(OTHER)[:-5])
    assert find(disk) == LogId(MADE, True, "")


def test_a_full_disk_leaves_no_half_file() -> None:
    """It is tried again later, as if nothing had been."""
    disk = SimDisk()
    disk.make_directory(STATE_DIR)
    disk.capacity = 0
    with pytest.raises(OSError, match="No space"):
        find(disk)
    assert disk.list(STATE_DIR) == []
    disk.capacity = None
    assert find(disk).is_new


def test_any_flipped_bit_is_found() -> None:
    """No damage makes the log another one silently."""
    data = encode_log_id(MADE)
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(DamagedData):
                decode_log_id(bytes(flipped))


@given(st.binary(max_size=80))
def test_no_other_bytes_are_an_id(data: bytes) -> None:
    with pytest.raises(DamagedData):
        decode_log_id(data)
