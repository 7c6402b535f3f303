"""Removed records of the archive: nobody is given them, and passing them costs next to nothing."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.view import ArchivedRows
from brokerd.archive.parquet.arrow_bytes import ArrowBytes
from brokerd.broker.archive.chunks import COMPACT_OVERHEAD_BYTES, chunks_of
from brokerd.broker.model.chunks import CHUNK_RECORDS, REMOVED, Chunk
from brokerd.values import Format, Record
from brokerd.walformat import RecordColumns
from tests.broker.fakearchive import columns_of


def record(offset: int, **rest: object) -> Record:
    return Record(offset, b"%d" % offset, append_time_us=1_000 + offset)._replace(**rest)


def rows_of(first: int, end: int, records: Sequence[Record]) -> ArchivedRows:
    return ArchivedRows(first, end, [one.offset for one in records], columns_of(records))


def compact(rows: ArchivedRows) -> ArchivedRows:
    """The same as a file gives it: values packed, numbers in arrays, offsets in a range."""
    first, end, offsets, columns = rows
    ends = np.cumsum([0, *map(len, columns.values)], dtype=np.int32)
    columns = columns._replace(
        values=ArrowBytes(ends, b"".join(columns.values)),
        append_time_us=array("q", columns.append_time_us),
        encodings=array("b", columns.encodings),
        producer_format=array("b", columns.producer_format),
    )
    if len(offsets) and offsets[-1] - offsets[0] == len(offsets) - 1:
        offsets = range(offsets[0], offsets[-1] + 1)
    return ArchivedRows(first, end, offsets, columns)


def dense_rows(first: int, count: int) -> ArchivedRows:
    return rows_of(first, first + count, [record(o) for o in range(first, first + count)])


def all_records(chunks: Sequence[Chunk]) -> list[Record]:
    return [one for chunk in chunks for one in chunk.records(chunk.base, chunk.end)]


@st.composite
def archived_rows(draw: st.DrawFn) -> ArchivedRows:
    """Rows with holes of all lengths, in columns of all kinds."""
    first = draw(st.integers(0, 50))
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 1_000]), max_size=40))
    is_plain = draw(st.booleans())
    records, offset = [], first - 1
    for step in steps:
        offset += step
        one = record(offset)
        if not is_plain:
            one = one._replace(
                key=draw(st.sampled_from([None, b"", b"key"])),
                metadata=draw(st.sampled_from([None, b"\x80"])),
                encoding=draw(st.integers(0, 2)),
                producer_time=draw(st.sampled_from([None, -1, 7])),
                expires_at_us=draw(st.sampled_from([0, 5])),
                producer_format=draw(st.sampled_from([Format.UNKNOWN, Format.MEGA])),
            )
        records.append(one)
    rows = rows_of(first, offset + 1 + draw(st.sampled_from([0, 1, 5_000])), records)
    return compact(rows) if draw(st.booleans()) else rows


@given(archived_rows())
def test_chunks_hold_what_the_archive_gave_and_every_offset_of_it(rows: ArchivedRows) -> None:
    """One chunk after another, each record at its offset and nothing in between."""
    chunks = chunks_of(rows)
    records = all_records(chunks)
    assert [one.offset for one in records] == list(rows.offsets)
    given_columns = [column if column is None else list(column) for column in rows.columns]
    assert list(columns_of(records)) == given_columns
    ends = [rows.first, *(chunk.end for chunk in chunks)]
    assert [chunk.base for chunk in chunks] == ends[:-1]
    assert ends[-1] == rows.end
    assert all(chunk.base < chunk.end for chunk in chunks)
    by_offset = {one.offset: one for one in records}
    for chunk in chunks:
        for offset in range(chunk.base, min(chunk.end, chunk.base + 60)):
            one = chunk.record(offset - chunk.base)
            is_removed = offset not in by_offset
            assert (one.expires_at_us == REMOVED) == is_removed
            assert is_removed or one == by_offset[offset]


@given(archived_rows(), st.integers(0, 3_000), st.integers(1, 30))
def test_a_reader_goes_from_record_to_record_over_holes(
    rows: ArchivedRows, skip: int, count: int
) -> None:
    """So many records behind an offset end where the next one begins, or the chunk."""
    for chunk in chunks_of(rows):
        offset = min(chunk.base + skip, chunk.end - 1)
        end = chunk.end_of_run(offset, count)
        found = [one for one in rows.offsets if offset <= one < end]
        assert offset < end <= chunk.end
        assert found == [one.offset for one in chunk.records(offset, end)]
        assert len(found) == count or end == chunk.end
        hole_end = chunk.hole_end(offset)
        assert not [one for one in rows.offsets if offset <= one < hole_end]
        assert hole_end == chunk.end or hole_end in rows.offsets or hole_end == offset


def test_many_rows_become_chunks_of_the_usual_size() -> None:
    """So that the cache drops them little by little."""
    chunks = chunks_of(dense_rows(7, 3 * CHUNK_RECORDS + 1))
    assert [chunk.end - chunk.base for chunk in chunks] == [CHUNK_RECORDS] * 3 + [1]
    assert all(chunk.expires_at_us is None for chunk in chunks), "looked up by no search"


def test_large_values_make_chunks_of_few_records() -> None:
    big = [record(offset, value=bytes(200_000)) for offset in range(20)]
    chunks = chunks_of(rows_of(0, 20, big))
    assert max(chunk.cached_bytes for chunk in chunks) < 1 << 20
    assert all_records(chunks) == big


def test_values_of_a_file_take_little_more_memory_than_their_bytes() -> None:
    """And the cache counts them so, chunk by chunk: none keeps others in memory."""
    records = [record(offset, value=bytes(50)) for offset in range(3 * CHUNK_RECORDS)]
    tracemalloc.start()
    rows = compact(rows_of(0, len(records), records))
    chunks = chunks_of(rows)
    del rows, chunks[1:]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    counted = chunks[0].cached_bytes
    assert counted == CHUNK_RECORDS * (50 + COMPACT_OVERHEAD_BYTES)
    assert 0.8 * counted < size < 1.1 * counted


def test_a_hole_takes_no_memory_however_long_it_is() -> None:
    """A trillion removed records, and one that is there."""
    rows = rows_of(0, 1 << 40, [record(1 << 39)])
    tracemalloc.start()
    chunks = chunks_of(rows)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 50_000
    assert all_records(chunks) == [record(1 << 39)]
    assert chunks[0].hole_end(5) == 1 << 39


def test_nothing_but_a_hole_is_a_chunk_too() -> None:
    rows = ArchivedRows(3, 9, [], RecordColumns([]))
    (chunk,) = chunks_of(rows)
    assert (chunk.base, chunk.end, chunk.records(3, 9)) == (3, 9, [])
    assert chunk.cached_bytes > 0
