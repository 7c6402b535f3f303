# Tests: brokerd/groups/snapshot.py
"""A frozen group stays as it was, comes back as it was, and damage to it is named."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path

import pytest

from brokerd.errors import DamagedData, NewerFormat
from brokerd.groups import GroupSettings, LeaseStore
from brokerd.groups.snapshot import CHUNK_BYTES

END = 5000


def a_busy_store() -> LeaseStore:
    """One with something in every table, away from zero."""
    store = LeaseStore(GroupSettings())
    store.configure(GroupSettings(max_attempts=4, backoff_base_us=7))
    store.acquire(100, END, "ann", 50, limit=600)
    for offset in range(0, 600, 2):
        store.settle(110, END, offset, True, "ann")
    for offset in range(1, 300, 4):
        store.settle(110, END, offset, False, "ann", delay_us=offset % 3 * 40)
    store.dead_letter(110, END, 301, "too_large")
    store.dead_letter(110, END, 4000, "bad key")
    store.settle_range(1000, 4000)
    store.commit_offset(17)
    store.events.clear()
    return store


def everything(store: LeaseStore) -> list[object]:
    return [
        list(store.leases()),
        list(store.dead_letters()),
        (store.floor, store.lag(END), store.ready, store.delayed, store.committed),
        (store.last_token, store.settings, store.next_due_us()),
        [store.attempts(offset) for offset in range(END)],
    ]


def test_comes_back_as_it_was_and_goes_on_alike() -> None:
    store = a_busy_store()
    again = LeaseStore.decode(b"".join(store.freeze().encode()))
    assert everything(again) == everything(store)
    assert again.events == []
    for one in (store, again):
        one.end_due(10_000)
        one.acquire(10_000, END, "bob", 10, limit=END)
        one.release_owner(10_000, "bob")
    assert again.events == store.events


def test_the_chunks_may_come_one_by_one_or_joined() -> None:
    chunks = list(a_busy_store().freeze().encode())
    assert len(chunks) > 5
    joined = LeaseStore.decode(b"".join(chunks))
    assert everything(LeaseStore.decode(iter(chunks))) == everything(joined)


def test_settings_come_back_if_the_group_was_given_them() -> None:
    store = a_busy_store()
    data = b"".join(store.freeze().encode())
    again = LeaseStore.decode(data, settings=GroupSettings(max_attempts=99))
    assert again.settings == store.settings
    assert b"".join(again.freeze().encode()) == data


def test_settings_that_the_group_was_not_given_are_those_of_whoever_decodes() -> None:
    store = LeaseStore(GroupSettings(max_attempts=4))
    store.acquire(0, 1, "ann", 10)
    data = b"".join(store.freeze().encode())
    for settings in (GroupSettings(max_attempts=99), GroupSettings(attempts="grants")):
        again = LeaseStore.decode(data, settings=settings)
        assert again.settings == settings
        assert b"".join(again.freeze().encode()) == data


def test_times_are_counted_from_the_clock_of_whoever_decodes() -> None:
    store = a_busy_store()
    data = b"".join(store.freeze(now_us=110).encode())
    again = LeaseStore.decode(data, now_us=1_000_110)
    due_us = store.next_due_us()
    assert due_us is not None
    assert again.next_due_us() == due_us + 1_000_000
    assert [lease.deadline_us for lease in again.leases()] == [
        lease.deadline_us + 1_000_000 for lease in store.leases()
    ]


def test_what_happens_later_does_not_reach_the_frozen_copy() -> None:
    store = a_busy_store()
    frozen = store.freeze()
    before = b"".join(frozen.encode())
    store.end_due(10_000)
    store.acquire(10_000, END, "bob", 10, limit=END)
    store.settle_range(0, 450)
    store.dead_letter(10_000, END, 500, "new reason")
    store.configure(GroupSettings(max_attempts=9))
    store.seek(0)
    assert b"".join(frozen.encode()) == before


def test_no_chunk_is_much_larger_than_a_megabyte() -> None:
    store = LeaseStore(GroupSettings())
    for offset in range(0, 40_000_000, 2048):
        store.settle(0, 40_000_000, offset + 1, True)
    store.acquire(0, 40_000_000, "ann", 10, limit=9000)
    chunks = list(store.freeze().encode())
    assert max(map(len, chunks)) < CHUNK_BYTES + 10_000
    assert len(chunks) > 5
    assert LeaseStore.decode(chunks).lag(40_000_000) == store.lag(40_000_000)


def test_a_hundred_thousand_settled_records_leave_nothing_behind() -> None:
    store, end = LeaseStore(GroupSettings()), 100_000
    for now_us in range(0, end, 500):
        for grant in reversed(store.acquire(now_us, end, "ann", 50, limit=500)):
            if grant.offset % 10 == 0:
                store.settle(now_us, end, grant.offset, False, "ann", delay_us=7)
                store.settle(now_us, end, grant.offset, True, "ann")
            else:
                store.settle(now_us, end, grant.offset, True, "ann")
        store.events.clear()
    assert store.floor == end
    assert sum(map(len, store.freeze().encode())) < 500
    assert len(store._deadlines.heap) < 3_000


def test_a_snapshot_cut_anywhere_is_damage() -> None:
    data = b"".join(a_busy_store().freeze().encode())
    for length in [*range(200), *range(200, len(data), 37), len(data) - 1]:
        with pytest.raises(DamagedData, match="group snapshot"):
            LeaseStore.decode(data[:length])


def test_a_missing_or_misplaced_section_is_damage() -> None:
    chunks = list(a_busy_store().freeze().encode())
    with pytest.raises(DamagedData, match="before the header"):
        LeaseStore.decode(chunks[1:])
    with pytest.raises(DamagedData, match="end mark has another count"):
        LeaseStore.decode(chunks[:2] + chunks[3:])
    with pytest.raises(DamagedData, match="section 77 is unknown"):
        LeaseStore.decode([chunks[0], b"\x4d\0\0\0\0", *chunks[1:]])


def test_a_later_version_is_refused_as_newer() -> None:
    header, *rest = a_busy_store().freeze().encode()
    later = header[:5] + (5).to_bytes(2, "little") + header[7:]
    with pytest.raises(NewerFormat, match="version 5"):
        LeaseStore.decode([later, *rest])


def version_3() -> list[bytes]:
    """The sections of a busy store as version 3 wrote them, frozen at 110."""
    packed = (Path(__file__).parent / "busy_v3.txt").read_text()
    data = zlib.decompress(base64.b64decode(packed))
    sections, position = [], 0
    while position < len(data):
        end = position + 5 + int.from_bytes(data[position + 1 : position + 5], "little")
        sections.append(data[position:end])
        position = end
    return sections


def without_times(store: LeaseStore) -> list[object]:
    """All but the times of attempts, of which version 3 knew nothing."""
    leases, letters, *rest = everything(store)
    assert isinstance(leases, list)
    assert isinstance(letters, list)
    return [[lease[:-1] for lease in leases], [letter[:-2] for letter in letters], *rest]


def test_a_snapshot_of_version_3_is_read() -> None:
    again = LeaseStore.decode(version_3(), now_us=110)
    assert without_times(again) == without_times(a_busy_store())
    assert {lease.first_attempt_us for lease in again.leases()} == {110}
    assert {letter[-2:] for letter in again.dead_letters()} == {(110, 110)}


def test_a_snapshot_of_version_1_is_read() -> None:
    """It has no runs; what the others say did not change."""
    header, *rest = version_3()
    runs = [chunk for chunk in rest if chunk[0] in (12, 13)]
    assert len(runs) == 2
    *parts, end = [chunk for chunk in rest if chunk not in runs]
    parts += [
        bytes([section]) + (8 * 2).to_bytes(4, "little") + struct.pack("<QQ", 1, 2)
        for section in (4, 6)
    ]
    end = end[:5] + (len(parts) + 1).to_bytes(4, "little")
    store = a_busy_store()
    old = [header[:5] + b"\1\0" + header[7:], *parts, end]
    again = LeaseStore.decode(old, now_us=110, settings=store.settings)
    assert without_times(again) == without_times(store)


@pytest.mark.parametrize("version", [1, 2])
def test_settings_in_a_snapshot_of_an_old_version_are_passed_over(version: int) -> None:
    """They had those of the configuration in them, whether the group was given any or not."""
    header, *rest = version_3()
    old = header[:5] + version.to_bytes(2, "little") + header[7:]
    settings = GroupSettings(max_attempts=99)
    assert LeaseStore.decode([old, *rest], settings=settings).settings == settings


def test_a_range_of_any_length_takes_next_to_nothing() -> None:
    store = LeaseStore(GroupSettings())
    store.acquire(0, 100, "ann", 1000, limit=3)
    store.settle_range(50, 1 << 50)
    data = b"".join(store.freeze().encode())
    assert len(data) < 1000
    again = LeaseStore.decode(data)
    for one in (store, again):
        assert one.lag((1 << 50) + 7) == 57
        assert [g.offset for g in one.acquire(0, (1 << 50) + 2, "bob", 10, limit=99)] == [
            *range(3, 50),
            1 << 50,
            (1 << 50) + 1,
        ]
        one.settle_range(0, (1 << 50) + 2)
        assert one.floor == (1 << 50) + 2


@pytest.mark.parametrize("section", range(1, 19))
def test_a_section_of_nonsense_is_damage(section: int) -> None:
    header, *_, end = a_busy_store().freeze().encode()
    for payload in (b"\xff" * 13, b'{"a":1}', b"[[1]]", b"[1]"):
        nonsense = bytes([section]) + len(payload).to_bytes(4, "little") + payload
        with pytest.raises((DamagedData, NewerFormat)):
            LeaseStore.decode([header, nonsense, end])
