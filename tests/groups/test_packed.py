# Tests: brokerd/groups/packed.py
"""Packed stores: small ones only, with the bytes of a snapshot. tests/groups/test_model.py compares
what the bytes tell with the store, in all states."""

from __future__ import annotations

import pytest

from brokerd.errors import DamagedData
from brokerd.groups import GroupSettings, LeaseStore
from brokerd.groups.packed import (
    PACKED_BYTES_MAX,
    PACKED_ENTRIES_MAX,
    can_stay_packed,
    change,
    deletion,
    is_plain,
    lowest_open,
    pack,
    plain,
    position,
    position_of,
    raise_floor,
)


def settled_up_to(offset: int) -> LeaseStore:
    store = LeaseStore(GroupSettings())
    store.settle_range(0, offset)
    store.events.clear()
    return store


def packed_of(store: LeaseStore) -> bytes:
    packed = pack(store)
    assert packed is not None
    return packed


def test_a_store_whose_records_are_all_settled_takes_some_bytes() -> None:
    packed = packed_of(settled_up_to(1_000_000))
    assert is_plain(packed)
    assert len(packed) < 64


def test_a_large_store_is_not_packed() -> None:
    leased = LeaseStore(GroupSettings())
    leased.acquire(0, 1000, "ann", 10, limit=PACKED_ENTRIES_MAX + 1)
    assert pack(leased) is None
    letters = LeaseStore(GroupSettings())
    for offset in range(256):
        letters.dead_letter(0, 1000, offset, "bad")
    assert letters.entries < PACKED_ENTRIES_MAX
    assert pack(letters) is None
    assert not can_stay_packed(b"".join(letters.freeze().encode()))
    assert len(b"".join(letters.freeze().encode())) > PACKED_BYTES_MAX


def test_a_store_that_holds_records_for_a_busy_key_is_not_packed() -> None:
    store = LeaseStore(GroupSettings(key_ordered=True))
    store.acquire(0, 2, "ann", 10, limit=2, key_of=lambda offset: 7)
    assert store.blocked == 1
    assert pack(store) is None


def test_the_floor_of_a_plain_store_moves_without_opening_it() -> None:
    store = settled_up_to(10)
    packed = packed_of(store)
    store.settle_gap(0, 50)
    assert position(raise_floor(packed, 50)) == position_of(store)
    assert raise_floor(packed, 10) == raise_floor(packed, 9) == packed


def test_bytes_of_an_older_version_must_be_decoded() -> None:
    packed = packed_of(settled_up_to(10))
    assert can_stay_packed(packed)
    assert not can_stay_packed(packed[:5] + b"\3\0" + packed[7:])
    assert not can_stay_packed(packed[:5] + b"\5\0" + packed[7:])
    assert not can_stay_packed(b"")


def test_sections_that_do_not_fit_are_damage_or_left_to_the_decoder() -> None:
    packed = packed_of(settled_up_to(10))
    assert not can_stay_packed(packed[:-4] + b"\2\0\0\0")
    assert not can_stay_packed(packed[:-9] + packed)
    leased = settled_up_to(10)
    leased.acquire(0, 11, "ann", 10)
    with pytest.raises(DamagedData, match="needs 4 bytes, 2 are left"):
        can_stay_packed(packed_of(leased)[:-2])


SETTINGS = GroupSettings(max_attempts=9, key_ordered=True)


@pytest.mark.parametrize("committed", [None, 7])
@pytest.mark.parametrize("settings", [None, SETTINGS])
@pytest.mark.parametrize("floor", [None, 0, 30])
@pytest.mark.parametrize("pauses", [None, False, True])
@pytest.mark.parametrize("paused", [False, True])
def test_changes_of_the_bytes_are_those_of_the_store(
    committed: int | None,
    settings: GroupSettings | None,
    floor: int | None,
    pauses: bool | None,
    paused: bool,
) -> None:
    store = settled_up_to(10)
    store.skip_tokens(5)
    if committed is not None:
        store.commit_offset(committed)
    if paused:
        store.pause()
    store.events.clear()
    changed, events = change(packed_of(store), settings, floor, pauses)
    if settings is not None:
        store.configure(settings)
    if floor is not None:
        store.seek(floor)
        if committed is not None:
            store.commit_offset(floor)
    if pauses is not None:
        (store.pause if pauses else store.unpause)()
    assert events == store.events
    assert changed == packed_of_eventful(store)
    store.delete()
    assert store.events[-1] == deletion(changed)


def packed_of_eventful(store: LeaseStore) -> bytes:
    """The bytes of a store with events that wait."""
    return b"".join(store.freeze(0).encode())


def test_a_new_plain_store_is_a_new_store() -> None:
    store = LeaseStore(GroupSettings())
    store.settle_gap(0, 40)
    store.skip_tokens(8)
    assert plain(40, 8) == packed_of(store)


def test_nothing_is_eligible_in_a_paused_group() -> None:
    store = settled_up_to(10)
    store.pause()
    store.events.clear()
    assert lowest_open(packed_of(store)) > 1 << 62
