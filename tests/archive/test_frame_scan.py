"""Journal files without an index: what is found in them, and where they end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.journal import frame_scan
from brokerd.archive.journal.frame_scan import ScannedFrames, open_journal, scan_closed, scan_tail
from brokerd.archive.journal.records import read_records
from brokerd.archive.journal.sealed import Batches, DamagedSegment, batches_of, open_sealed
from brokerd.errors import NewerFormat
from brokerd.walformat import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryKind,
    RecordColumns,
    encode_frame,
)
from tests.archive.making import (
    TIME_US,
    Frame,
    damage,
    make_segment,
    mark_entry,
    records_entry,
    topic_entry,
)


def _frames(count: int, first: int = 0) -> list[Frame]:
    """Frames of two batches and something else each."""
    return [
        (
            TIME_US + number,
            [
                records_entry(1, 0, 2 * number, RecordColumns([b"a%d" % number, b"b"])),
                records_entry(2, 3, number, RecordColumns([b"c" * number])),
                mark_entry(),
            ],
        )
        for number in range(first, first + count)
    ]


def _walk(path: Path, first: int = SEGMENT_HEADER_BYTES) -> ScannedFrames:
    fd, file = open_journal(path)
    try:
        return scan_tail(fd, file, first)
    finally:
        os.close(fd)


def _rows(batches: Batches) -> list[tuple[int, ...]]:
    return sorted(zip(*(column.tolist() for column in batches), strict=True))


def _zeros(path: Path, count: int = 100_000) -> None:
    """Have a file go on as one does that is allocated ahead of need."""
    with path.open("ab") as file:
        file.write(bytes(count))


def test_what_is_found_is_what_the_index_tells_later(tmp_path: Path) -> None:
    path = make_segment(tmp_path, 0, _frames(50))
    indexed = open_sealed(path)
    _zeros(path)
    found = _walk(path)
    assert _rows(found.batches) == _rows(batches_of(indexed.index))
    assert found.end == indexed.end_lsn
    assert found.times_us.tolist() == [TIME_US + n for n in range(50) for _ in range(2)]


def test_records_of_a_file_without_an_index_can_be_decoded(tmp_path: Path) -> None:
    path = make_segment(tmp_path, 0, _frames(3))
    found = _walk(path).batches
    names = {1: "one", 2: "two"}
    rows = [row for some in read_records(open_sealed(path), found, names) for row in some["value"]]
    assert len(rows) == 9


@given(
    sizes=st.lists(st.lists(st.integers(0, 300), max_size=3), max_size=8),
    window=st.sampled_from([64, 100, 1000, 1 << 20]),
)
def test_any_frames_are_found_whatever_is_read_at_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: Sequence[Sequence[int]], window: int
) -> None:
    directory = tmp_path_factory.mktemp("wal")
    frames = [
        (
            TIME_US,
            [records_entry(7, at, 0, RecordColumns([b"x" * size])) for at, size in enumerate(one)],
        )
        for one in sizes
    ]
    path = make_segment(directory, 4096, frames)
    size = path.stat().st_size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_scan, "WINDOW_BYTES", window)
        found = _walk(path)
        assert found.end == size
        assert _rows(found.batches) == _rows(batches_of(open_sealed(path).index))
        _zeros(path, 777)
        assert _walk(path).end == size


def test_a_file_that_holds_nothing_yet_ends_behind_its_header(tmp_path: Path) -> None:
    path = make_segment(tmp_path, 8192, [], indexed=False)
    assert _walk(path).end == SEGMENT_HEADER_BYTES
    _zeros(path)
    found = _walk(path)
    assert found.end == SEGMENT_HEADER_BYTES
    assert not len(found.batches.count)


def test_what_happens_to_topics_is_told(tmp_path: Path) -> None:
    created = topic_entry(5, "created", name="five", partitions=2)
    start = topic_entry(5, "start", partition=1, offset=77)
    frames: list[Frame] = [(TIME_US, [created]), (TIME_US, [start])]
    path = make_segment(tmp_path, 4096, frames, indexed=False)
    first, second = _walk(path).changes
    assert (first.topic_id, first.partition, first.fields["name"]) == (5, 0, "five")
    assert first.lsn == 4096 + SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES
    assert (second.partition, second.fields) == (1, {"op": "start", "offset": 77})
    assert second.lsn > first.lsn


def test_wherever_the_last_frame_is_cut_all_before_it_are_found(tmp_path: Path) -> None:
    whole = make_segment(tmp_path, 0, _frames(3), indexed=False).read_bytes()
    two = make_segment(tmp_path, 0, _frames(2), indexed=False).stat().st_size
    path = tmp_path / "cut.wal"
    for end in range(two, len(whole), 3):
        path.write_bytes(whole[:end])
        assert _walk(path).end == two
        path.write_bytes(whole[:end] + bytes(500))
        zeros = not any(whole[end:])
        assert _walk(path).end == (len(whole) if zeros else two)


def test_a_bit_flipped_in_the_last_frame_ends_the_log_before_it(tmp_path: Path) -> None:
    two = make_segment(tmp_path, 0, _frames(2), indexed=False).stat().st_size
    path = make_segment(tmp_path, 0, _frames(3), indexed=False)
    for position in range(two, two + FRAME_HEADER_BYTES + 48, 5):
        damage(path, position, 3)
        assert _walk(path).end == two
        damage(path, position, 3)
    assert _walk(path).end == path.stat().st_size


def _with_claim(directory: Path, claim: int) -> Path:
    """Three frames, of which the second is damaged, and the third says what was synced."""
    path = make_segment(directory, 0, _frames(2), indexed=False)
    one = make_segment(directory / "one", 0, _frames(1), indexed=False).stat().st_size
    fd, file = open_journal(path)
    os.close(fd)
    end = path.stat().st_size
    entries: list[Entry] = [mark_entry()]
    with path.open("ab") as out:
        out.write(encode_frame(entries, end, file.segment_id, claim or one, TIME_US))
    damage(path, one + FRAME_HEADER_BYTES + 100)
    return path


def test_a_damaged_frame_that_was_on_the_disk_is_an_error_that_names_the_place(
    tmp_path: Path,
) -> None:
    (tmp_path / "one").mkdir()
    one = make_segment(tmp_path / "one", 0, _frames(1), indexed=False).stat().st_size
    path = _with_claim(tmp_path, one + 8)
    with pytest.raises(DamagedSegment, match=f"{path} at {one}: .*sound frames follow"):
        _walk(path)


def test_a_damaged_frame_that_nobody_was_told_of_is_the_end(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    one = make_segment(tmp_path / "one", 0, _frames(1), indexed=False).stat().st_size
    assert _walk(_with_claim(tmp_path, 0)).end == one


def test_frames_that_come_while_the_end_is_looked_at_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer may write the next frames after the reader found none at a place."""
    path = make_segment(tmp_path, 0, _frames(5), indexed=False)
    data = path.read_bytes()
    first = make_segment(tmp_path, 0, _frames(1), indexed=False)
    _zeros(first, len(data))
    real = frame_scan._is_completed
    calls: list[int] = []

    def write_then_look(fd: int, file: frame_scan.JournalFile, position: int) -> bool:
        if not calls:
            first.write_bytes(data)
        calls.append(position)
        return real(fd, file, position)

    monkeypatch.setattr(frame_scan, "_is_completed", write_then_look)
    assert _walk(first).end == len(data)


def test_what_was_found_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync comes after the last read: what was read before it is on the disk."""
    path = make_segment(tmp_path, 0, _frames(2), indexed=False)
    done: list[str] = []
    read, sync = os.pread, os.fdatasync
    monkeypatch.setattr(os, "pread", lambda *a: done.append("read") or read(*a))  # type: ignore[func-returns-value]
    monkeypatch.setattr(os, "fdatasync", lambda fd: done.append("sync") or sync(fd))  # type: ignore[func-returns-value]
    _walk(path)
    assert done[-1] == "sync"


def test_a_closed_file_is_walked_to_its_end_and_no_further(tmp_path: Path) -> None:
    path = make_segment(tmp_path, 0, _frames(4), indexed=False)
    end = path.stat().st_size
    _zeros(path)
    fd, file = open_journal(path)
    found = scan_closed(fd, file, end)
    assert len(found.batches.count) == 8
    third = int(found.batches.position[4]) - FRAME_HEADER_BYTES
    assert len(scan_closed(fd, file, third).batches.count) == 4
    assert len(scan_closed(fd, file, end, third).batches.count) == 4
    with pytest.raises(DamagedSegment, match=f"{path} at {third}"):
        scan_closed(fd, file, third + 8)
    os.close(fd)


def test_damage_in_a_closed_file_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    path = make_segment(tmp_path, 0, _frames(4), indexed=False)
    end = path.stat().st_size
    damage(path, end - 20)
    fd, file = open_journal(path)
    with pytest.raises(DamagedSegment, match="checksum does not match"):
        scan_closed(fd, file, end)
    os.close(fd)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = make_segment(
        tmp_path, 0, [(TIME_US, [Entry(max(EntryKind) + 1, 0, 0, 0, 0, b"?")])], indexed=False
    )
    with pytest.raises(NewerFormat, match="upgrade brokerd"):
        _walk(path)


def test_a_file_without_a_sound_header_is_damaged(tmp_path: Path) -> None:
    path = make_segment(tmp_path, 0, _frames(1), indexed=False)
    damage(path, 20)
    with pytest.raises(DamagedSegment, match=f"{path} at 0"):
        open_journal(path)


def test_many_small_frames_are_found_at_once(tmp_path: Path) -> None:
    path = make_segment(tmp_path, 0, _frames(20_000), indexed=False)
    assert len(_walk(path).batches.count) == 40_000


def test_a_frame_of_another_place_is_no_frame_of_the_log(tmp_path: Path) -> None:
    """Bytes that a file held before, or that a client sent, pass for nothing."""
    path = make_segment(tmp_path, 0, _frames(2), indexed=False)
    data = path.read_bytes()
    other = make_segment(tmp_path, 4096, _frames(2), indexed=False).read_bytes()
    one = make_segment(tmp_path, 0, _frames(1), indexed=False).stat().st_size
    for more in (data[one:], other[SEGMENT_HEADER_BYTES:]):
        path.write_bytes(data + more)
        assert _walk(path).end == len(data)
