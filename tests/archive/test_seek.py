"""Offsets by time and by size: what looking at every record gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.layout import RECORDS, Range
from brokerd.archive.contract.view import ArchiveView
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import ensure_tables
from brokerd.archive.serve import seek
from brokerd.archive.serve.delta_archive import DeltaArchive
from tests.archive.adding import LOG_ID, NOW_MS, Row, write_records

KEY = (1, 0)


def view_of(root: Path, files: list[tuple[list[Range], list[Row]]]) -> ArchiveView:
    table: Table = ensure_tables(root, LOG_ID, NOW_MS)[RECORDS.name]
    infos = [add_file(write_records(table, ranges, rows)) for ranges, rows in files]
    table.commit(infos, now_ms=NOW_MS)
    view = DeltaArchive(root, LOG_ID).refresh()
    assert view is not None
    return view


@st.composite
def partitions(draw: st.DrawFn) -> tuple[list[tuple[list[Range], list[Row]]], list[Row]]:
    """Files of one partition, some of them shared with another one, and its records."""
    files, every = [], []
    offset, time_us = draw(st.integers(0, 5)), 100
    for _ in range(draw(st.integers(0, 5))):
        first, rows = offset, []
        for _ in range(draw(st.integers(1, 12))):
            time_us += draw(st.integers(-2, 3))  # an operator may set the clock back
            if draw(st.integers(0, 3)):
                key = draw(st.sampled_from([None, b"", b"key"]))
                value = b"v" * draw(st.sampled_from([0, 1, 50]))
                rows.append(Row(*KEY, offset, value, key, time_us))
            offset += 1
        every += rows
        ranges = [Range(*KEY, first, offset)]
        if draw(st.booleans()):
            ranges.append(Range(17, 0, first, offset))
            rows = rows + [Row(17, 0, n, b"x" * 9, None, 7 * n) for n in range(first, offset, 2)]
        if draw(st.booleans()):
            offset += draw(st.integers(0, 4))
        files.append((ranges, rows))
    return files, every


def size(row: Row) -> int:
    return len(row.value) + len(row.key or b"")


@given(drawn=partitions(), group_rows=st.sampled_from([1, 3, 8192]))
def test_seeking_gives_what_looking_at_every_record_gives(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: tuple[list[tuple[list[Range], list[Row]]], list[Row]],
    group_rows: int,
) -> None:
    files, rows = drawn
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("brokerd.archive.parquet.row_groups.GROUP_ROWS", group_rows)
        view = view_of(tmp_path_factory.mktemp("seek"), files)
    for time_us in range(98, 104 + max((row.time_us for row in rows), default=0) - 98):
        expected = next((row.offset for row in rows if row.time_us >= time_us), None)
        assert view.offset_at_time(*KEY, time_us) == expected
    known = [one for ranges, _ in files for one in ranges if one[:2] == KEY]
    for below in range(0, max((one.end for one in known), default=0) + 3, 2):
        for max_bytes in (0, 1, 7, 60, 130, 10**6):
            found = view.offset_of_size(*KEY, below, max_bytes)
            if not any(one.first < below for one in known):
                assert found is None
                continue
            assert found is not None
            kept = [row for row in rows if found <= row.offset < below]
            assert sum(map(size, kept)) <= max_bytes
            gone = [row for row in rows if row.offset < found]
            if gone:  # one more would be too many
                assert sum(map(size, kept)) + size(gone[-1]) > max_bytes


def test_files_that_lie_within_another_count_once(tmp_path: Path) -> None:
    rows = [Row(*KEY, offset, b"v") for offset in range(10)]
    shared = [Range(*KEY, 3, 6), Range(17, 0, 0, 1)]
    view = view_of(tmp_path, [([Range(*KEY, 0, 10)], rows), (shared, [*rows[3:6], Row(17, 0, 0)])])
    assert view.offset_of_size(*KEY, 10, 9) == 1
    assert view.offset_of_size(*KEY, 10, 10) == 0


def test_sizes_in_shared_files_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks again, as retention does every few seconds, reads no record again."""
    ranges = [Range(1, 0, 0, 10), Range(17, 0, 0, 10)]
    rows = [Row(topic, 0, offset) for topic in (1, 17) for offset in range(10)]
    view = view_of(tmp_path, [(ranges, rows)])
    assert view.offset_of_size(1, 0, 10, 1000) == 0

    def refuse(*arguments: object) -> None:
        raise AssertionError("records were read again")

    monkeypatch.setattr(seek, "_rows", refuse)
    assert view.offset_of_size(1, 0, 10, 1000) == 0


def test_partition_that_is_not_there_has_no_offsets(tmp_path: Path) -> None:
    view = view_of(tmp_path, [([Range(*KEY, 0, 1)], [Row(*KEY, 0)])])
    assert view.offset_at_time(2, 0, 0) is None
    assert view.offset_of_size(2, 0, 10, 10) is None
