"""The search of segments for the events about one record."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.wal.read import event_scan
from brokerd.wal.read.event_scan import EventScan, RecordEventFilter, SegmentSpan
from brokerd.walformat import (
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryKind,
    EventKind,
    SegmentHeader,
    encode_frame,
    encode_group_events,
    encode_segment_header,
)
from brokerd.walformat.events import GroupEvent
from simulator.machine.disk import SimDisk

ID = bytes(range(16))
NAME = "0.wal"
TOPIC, PARTITION = 3, 1

Frames = Sequence[Sequence[tuple[str, Sequence[GroupEvent]]]]


def event(kind: EventKind, offset: int, amount: int = 0, reason: str = "") -> GroupEvent:
    return kind, offset, amount, 0, 0, "", reason


def entry(group: str, events: Sequence[GroupEvent]) -> Entry:
    body = encode_group_events(group, events)
    return Entry(EntryKind.GROUP_EVENTS, TOPIC, PARTITION, 0, len(events), body)


def encode(frames: Sequence[Sequence[Entry]]) -> bytes:
    """Encode a segment; frame N has the time 1000 + N."""
    data = encode_segment_header(SegmentHeader(ID, 0, 1 << 20, 0))
    for number, entries in enumerate(frames):
        data += encode_frame(entries, len(data), ID, 0, 1_000 + number)
    return data


def write(data: bytes) -> SimDisk:
    disk = SimDisk()
    disk.make_directory("wal")
    disk.create(f"wal/{NAME}").pwrite(data, 0)
    return disk


def scan(disk: SimDisk, offset: int, size: int) -> EventScan:
    span = SegmentSpan(NAME, ID, 0, SEGMENT_HEADER_BYTES, size)
    return EventScan(disk, "wal", TOPIC, PARTITION, offset, [span])


def run(data: bytes, offset: int) -> tuple[list[event_scan.RecordEvent], list[str]]:
    search = scan(write(data), offset, len(data))
    found = []
    while not search.done:
        found += search.step()
    return found, search.problems


OFFSETS = st.integers(0, 3)
EVENTS = st.builds(
    event,
    st.sampled_from(EventKind),
    OFFSETS,
    OFFSETS,
    st.sampled_from(("", "max_attempts")),
)
FRAMES = st.lists(
    st.lists(
        st.tuples(st.sampled_from(("g", "h")), st.lists(EVENTS, min_size=1, max_size=5)),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=5,
)


@given(FRAMES, OFFSETS, st.sampled_from((128, 136, 4_096, 1 << 20)))
def test_a_search_finds_what_a_walk_over_all_events_finds(
    frames: Frames, offset: int, slice_bytes: int
) -> None:
    walk = RecordEventFilter(offset)
    expected = [
        (1_000 + number, group, seq, one)
        for number, entries in enumerate(frames)
        for group, events in entries
        for seq, one in walk.select(group, events)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_scan, "SLICE_BYTES", slice_bytes)
        found, problems = run(encode([[entry(*one) for one in frame] for frame in frames]), offset)
    assert [(one.time_us, one.group, one.seq, one.event) for one in found] == expected
    assert problems == []


def select(offset: int, *events: GroupEvent) -> list[int]:
    return [seq for seq, _ in RecordEventFilter(offset).select("g", events)]


def test_a_replay_concerns_a_dead_letter_with_its_reason() -> None:
    dead = event(EventKind.DEAD, 5, reason="damaged")
    for first, end, reason, found in (
        (5, 6, "", True),
        (0, 9, "damaged", True),
        (0, 9, "max_attempts", False),
        (0, 5, "", False),
        (6, 9, "", False),
    ):
        for kind in (EventKind.REPLAYED, EventKind.PURGED):
            replay = event(kind, first, end, reason)
            assert select(5, dead, replay, replay) == [0, 1][: 1 + found]
            assert select(5, replay) == []


def test_ranges_and_positions() -> None:
    assert select(5, event(EventKind.SETTLED_RANGE, 5, 6)) == [0]
    assert select(5, event(EventKind.SETTLED_RANGE, 0, 5)) == []
    assert select(5, event(EventKind.SEEK, 9)) == [0]
    commits = [event(EventKind.COMMITTED, offset) for offset in (5, 6, 7, 5, 5)]
    assert select(5, *commits) == [1, 3]


def test_a_damaged_entry_is_reported() -> None:
    data = bytearray(encode([[entry("g", [event(EventKind.LEASED, 5)])]]))
    data[-8] ^= 1
    found, problems = run(bytes(data), 5)
    assert found == []
    assert problems == [
        f"{NAME} at {SEGMENT_HEADER_BYTES + 64}: entry body checksum does not match"
    ]


@pytest.mark.parametrize("slice_bytes", [128, 1 << 20])
def test_a_lost_frame_is_reported_and_the_next_one_is_found(
    monkeypatch: pytest.MonkeyPatch, slice_bytes: int
) -> None:
    monkeypatch.setattr(event_scan, "SLICE_BYTES", slice_bytes)
    lost = [entry("g", [event(EventKind.LEASED, 5)])]
    data = bytearray(encode([lost, [entry("g", [event(EventKind.SETTLED, 5)])]]))
    data[SEGMENT_HEADER_BYTES + 60] ^= 1
    ((one,), problems) = run(bytes(data), 5)
    assert (one.time_us, one.event[0]) == (1_001, EventKind.SETTLED)
    assert problems == [f"{NAME} at {SEGMENT_HEADER_BYTES}: no frame can be read"]


def test_a_wrong_length_of_an_entry_is_reported() -> None:
    data = bytearray(encode([[entry("g", [event(EventKind.LEASED, 5)])]]))
    data[SEGMENT_HEADER_BYTES + 64 + 5] ^= 1
    _, problems = run(bytes(data), 5)
    assert problems[-1] == f"{NAME} at {SEGMENT_HEADER_BYTES}: the frame is damaged"


def test_a_file_that_ends_early_is_reported() -> None:
    data = encode([[entry("g", [event(EventKind.LEASED, 5)])]])
    for size in (8, 72, len(data) - SEGMENT_HEADER_BYTES):
        search = scan(write(data[:-size]), 5, len(data))
        assert search.step() == []
        assert search.done and len(search.problems) == 1, size


def test_bytes_of_a_client_are_no_entry() -> None:
    """Without the checksum of the segment, the copy of an entry in a value proves nothing."""
    foreign = encode_frame([entry("g", [event(EventKind.LEASED, 5)])], 0, bytes(16), 0, 0)
    value = Entry(EntryKind.RECORDS, 9, 0, 0, 1, foreign)
    assert run(encode([[value]]), 5) == ([], [])


def test_a_frame_of_more_than_a_slice_is_searched() -> None:
    filler = Entry(EntryKind.RECORDS, 9, 0, 0, 1, bytes(event_scan.SLICE_BYTES))
    data = encode([[filler], [filler, entry("g", [event(EventKind.LEASED, 5)])]])
    ((one,), problems) = run(data, 5)
    assert (one.time_us, problems) == (1_001, [])


def test_a_gap_between_segments_is_reported() -> None:
    """Without the archive, the events of a deleted segment are nowhere."""
    spans = [SegmentSpan(NAME, ID, first, SEGMENT_HEADER_BYTES, 5_000) for first in (0, 5_000)]
    assert EventScan(write(b""), "wal", TOPIC, PARTITION, 5, spans).problems == []
    spans[1] = spans[1]._replace(first_lsn=9_000)
    (problem,) = EventScan(write(b""), "wal", TOPIC, PARTITION, 5, spans).problems
    assert problem == (
        "journal files with LSN 5000 to 9000 are deleted: events there are not shown"
    )


@pytest.mark.parametrize(
    ("archived_lsn", "gaps"),
    [(None, []), (2_000, []), (2_500, []), (1_500, ["1500 to 2000"]), (0, ["0 to 2000"])],
)
def test_a_gap_between_archive_and_journal_is_reported(
    archived_lsn: int | None, gaps: list[str]
) -> None:
    """The broker deletes segments before they are archived if the disk is full."""
    spans = [SegmentSpan(NAME, ID, first, SEGMENT_HEADER_BYTES, 5_000) for first in (2_000, 9_000)]
    scan = EventScan(write(b""), "wal", TOPIC, PARTITION, 5, spans, archived_lsn=archived_lsn)
    assert scan.problems == [
        f"journal files with LSN {gap} are deleted: events there are not shown"
        for gap in [*gaps, "7000 to 9000"]
    ]


def test_a_segment_that_is_deleted_meanwhile_is_reported() -> None:
    disk = write(b"")
    disk.unlink(f"wal/{NAME}")
    search = scan(disk, 5, 5_000)
    assert (search.step(), search.done) == ([], True)
    assert search.problems == [f"{NAME} was deleted during the search; try again"]
