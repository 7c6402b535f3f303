"""Event indexes: the same answers as a search of the whole segment, from fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import DamagedData
from brokerd.wal import SegmentStatus
from brokerd.wal.event_indexes import EventIndexes
from brokerd.wal.read.event_scan import EventScan, RecordEvent, SegmentSpan
from brokerd.walformat import SEGMENT_HEADER_BYTES, Entry, EntryKind, EventKind, FormatError
from brokerd.walformat import event_index as layout
from brokerd.walformat.event_index import EventIndex
from simulator.machine.disk import SimDisk
from tests.wal.test_event_scan import ID, NAME, PARTITION, TOPIC, encode, entry, event, write

INDEX = "event-index/00000000000000000000.evx"


def status(size: int, segment_id: bytes = ID) -> SegmentStatus:
    return SegmentStatus(NAME, 0, size, size, True, segment_id, 0)


def build(disk: SimDisk, size: int) -> EventIndexes:
    indexes = EventIndexes(disk, "wal", "event-index")
    work = indexes.build(status(size))
    while not work.step():
        pass
    return indexes


def search(
    disk: SimDisk, offset: int, size: int, indexes: EventIndexes | None = None
) -> tuple[list[RecordEvent], EventScan]:
    span = SegmentSpan(NAME, ID, 0, SEGMENT_HEADER_BYTES, size)
    load = (lambda *place: None) if indexes is None else indexes.load
    scan = EventScan(disk, "wal", TOPIC, PARTITION, offset, [span], load_index=load)
    found = []
    while not scan.done:
        found += scan.step()
    return found, scan


OFFSETS = st.sampled_from((0, 1, 255, 256, 600))
EVENTS = st.builds(event, st.sampled_from(EventKind), OFFSETS, OFFSETS, st.sampled_from(("", "x")))
OWN = st.builds(event, st.sampled_from((EventKind.LEASED, EventKind.SETTLED)), OFFSETS)
ENTRIES = st.builds(
    entry,
    st.sampled_from(("g", "h\udc80")),
    st.lists(EVENTS, min_size=1, max_size=4) | st.lists(OWN, min_size=1, max_size=4),
)


@given(st.lists(st.lists(ENTRIES, min_size=1, max_size=3), min_size=1, max_size=12))
def test_a_search_by_index_finds_the_same_events(frames: Sequence[Sequence[Entry]]) -> None:
    data = encode(frames)
    disk = write(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_BYTES", 512)
        indexes = build(disk, len(data))
    for offset in (0, 1, 2, 255, 256, 599, 600):
        found, scan = search(disk, offset, len(data), indexes)
        assert found == search(disk, offset, len(data))[0]
        assert scan.problems == []


@given(st.lists(st.lists(ENTRIES, min_size=1, max_size=3), min_size=1, max_size=12))
def test_an_index_without_room_for_blocks_finds_the_same_events(
    frames: Sequence[Sequence[Entry]],
) -> None:
    data = encode(frames)
    disk = write(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_BYTES", 512)
        patch.setattr(layout, "BLOCKS_MAX", 2)
        indexes = build(disk, len(data))
    for offset in (0, 255, 600):
        assert search(disk, offset, len(data), indexes)[0] == search(disk, offset, len(data))[0]


def long_segment(kind: EventKind) -> bytes:
    """Return 60 frames of 4 KiB with an event about 64 offsets in each."""
    return encode(
        [
            [entry("g", [event(kind, 64 * number + at, reason="r" * 10)]) for at in range(64)]
            for number in range(60)
        ]
    )


@pytest.mark.parametrize("kind", [EventKind.LEASED, EventKind.COMMITTED])
def test_a_search_reads_the_parts_that_matter(kind: EventKind) -> None:
    data = long_segment(kind)
    disk = write(data)
    found, scan = search(disk, 1_000, len(data), build(disk, len(data)))
    assert [one.event[1] for one in found] == [1_000 if kind == EventKind.LEASED else 1_001]
    assert scan.bytes_read < len(data) // 4
    found, scan = search(disk, 99_999, len(data), build_again(disk))
    assert found == [] and scan.bytes_read < 2_000


@pytest.mark.parametrize(
    ("chunks", "found"),
    [
        ([[1], [9, 5]], [9, 5]),  # the commit goes past record 7, and back
        ([[9], [5, 9]], [9, 5, 9]),
    ],
)
def test_all_commits_of_a_group_in_a_chunk_count(
    chunks: Sequence[Sequence[int]], found: Sequence[int]
) -> None:
    """The last one alone would not lead to the chunk."""
    commits = [[event(EventKind.COMMITTED, offset) for offset in chunk] for chunk in chunks]
    data = encode([[entry("g", events)] for events in commits])
    disk = write(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_BYTES", 64)  # each frame is a chunk of its own
        indexes = build(disk, len(data))
    events, _ = search(disk, 7, len(data), indexes)
    assert [one.event[1] for one in events] == found


def build_again(disk: SimDisk) -> EventIndexes:
    return EventIndexes(disk, "wal", "event-index")


def test_other_partitions_read_nothing() -> None:
    data = long_segment(EventKind.LEASED)
    disk = write(data)
    index = build(disk, len(data)).load(ID, 0, len(data))
    assert index is not None
    assert list(index.parts(TOPIC, PARTITION + 1, 1_000, lambda group: False)) == []


@pytest.mark.parametrize("at", [0, 9, 20, 60, 64, 200, -1])
def test_a_damaged_index_is_removed_and_the_segment_is_read(at: int) -> None:
    data = long_segment(EventKind.LEASED)
    disk = write(data)
    indexes = build(disk, len(data))
    file = disk.open(INDEX, write=True)
    place = at % file.size()
    file.pwrite(bytes((file.pread(1, place)[0] ^ 1,)), place)
    found, scan = search(disk, 1_000, len(data), indexes)
    assert len(found) == 1 and scan.bytes_read >= len(data) - SEGMENT_HEADER_BYTES
    assert indexes.names() == set()


def test_an_index_of_another_segment_is_not_used() -> None:
    data = long_segment(EventKind.LEASED)
    disk = write(data)
    indexes = build(disk, len(data))
    assert indexes.load(bytes(16), 0, len(data)) is None
    assert indexes.names() == set()


def test_an_index_that_is_cut_short_is_refused() -> None:
    for size in (0, 63, 64, 100):
        with pytest.raises(FormatError):
            EventIndex(bytes(size), ID, 0, 4096)


@pytest.mark.parametrize("place", [SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 64 + 4])
def test_a_damaged_segment_gets_no_index(place: int) -> None:
    data = bytearray(encode([[entry("g", [event(EventKind.LEASED, 1)])]]))
    data[place] ^= 255
    disk = write(bytes(data))
    with pytest.raises(DamagedData, match=NAME):
        build(disk, len(data))
    assert build_again(disk).names() == set()


def test_a_segment_without_events_has_an_empty_index() -> None:
    data = encode([[Entry(EntryKind.MARK, 0, 0, 0, 0, b"")]])
    disk = write(data)
    _, scan = search(disk, 0, len(data), build(disk, len(data)))
    assert scan.bytes_read < 200
