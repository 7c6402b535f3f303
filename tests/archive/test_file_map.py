"""The map of files: which one holds an offset, whatever files there are."""

from __future__ import annotations

import gc
import time
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brokerd.archive.contract.layout import parse_records_name
from brokerd.archive.contract.view import ForeignArchive
from brokerd.archive.delta.actions import AddFile
from brokerd.archive.serve.file_map import FileMap
from tests.archive.adding import files_of, records_file, shared_file

OFFSETS = 30

own_files = st.lists(
    st.tuples(
        st.sampled_from([1, 17, 2, 10**17]),  # 1 and 17 are in one bucket
        st.integers(0, 2),
        st.integers(0, OFFSETS - 2),
        st.integers(1, OFFSETS),
    ),
    max_size=20,
)
keys = st.tuples(st.sampled_from([1, 17, 33, 49]), st.integers(0, 3))


@given(own_files)
@example([(1, 0, 0, 10), (1, 0, 2, 3), (1, 0, 5, 9)])
@example([(1, 0, 5, 3), (1, 0, 5, 6)])
def test_file_is_found_that_covers_an_offset_and_goes_on_the_furthest(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    """Like looking at all of them, also when they overlap, or lie within each other."""
    files = [
        records_file(topic, first, first + count, partition=partition, number=number)
        for number, (topic, partition, first, count) in enumerate(drawn)
    ]
    found = FileMap(files_of(files))
    for topic, partition in {(1, 0), (17, 0), (3, 0), *((row[0], row[1]) for row in drawn)}:
        ranges = [(r[2], r[2] + r[3]) for r in drawn if r[:2] == (topic, partition)]
        for offset in range(2 * OFFSETS):
            ends = [end for first, end in ranges if first <= offset < end]
            piece = found.find(topic, partition, offset)
            if not ends:
                assert piece is None
            else:
                assert piece is not None
                assert piece.first <= offset
                assert piece.end == max(ends)
                only = parse_records_name(found.path(piece.row)).only
                assert only == (topic, partition, piece.first, piece.end)
                assert found.size(piece.row) == 1000 + piece.end - piece.first
        pieces = list(found.pieces(topic, partition))
        assert [piece.first for piece in pieces] == sorted({piece.first for piece in pieces})
        assert [piece.end for piece in pieces] == sorted({piece.end for piece in pieces})
        covered = {offset for piece in pieces for offset in range(piece.first, piece.end)}
        assert covered == {offset for first, end in ranges for offset in range(first, end)}


@given(st.lists(st.tuples(keys, keys, st.integers(0, 99)), max_size=12), own_files)
def test_shared_files_are_found_by_the_partitions_they_may_hold(
    drawn: list[tuple[tuple[int, int], tuple[int, int], int]],
    own: list[tuple[int, int, int, int]],
) -> None:
    files = [
        shared_file(*sorted([low, high]), number=number, first_lsn=lsn)
        for number, (low, high, lsn) in enumerate(drawn)
    ]
    others = [records_file(row[0], row[2], row[2] + 1, number=100 + n) for n, row in enumerate(own)]
    found = FileMap(files_of([*others, *files]))
    assert found.files == len(files) + len(others)
    assert found.bytes == sum(file.size for file in [*others, *files])
    tops = [max(low, high)[0] for low, high, _ in drawn] + [row[0] for row in own]
    assert found.max_topic_id == max(tops, default=0)
    for key in [(1, 0), (17, 3), (33, 1), (2, 0)]:
        expected = {
            file.path
            for file, (low, high, _) in zip(files, drawn, strict=True)
            if min(low, high) <= key <= max(low, high) and key[0] % 16 == 1
        }
        shared = found.shared(*key)
        assert {found.path(one.row) for one in shared} == expected
        lsns = [one.first_lsn for one in shared]
        assert lsns == sorted(lsns)


def test_pieces_are_a_sequence() -> None:
    files = [records_file(1, 10 * n, 10 * n + 10, number=n) for n in range(4)]
    pieces = FileMap(files_of(files)).pieces(1, 0)
    assert len(pieces) == 4
    assert pieces[-1].first == 30
    assert [piece.first for piece in pieces[1:3]] == [10, 20]
    assert [piece.first for piece in reversed(pieces)] == [30, 20, 10, 0]
    with pytest.raises(IndexError):
        pieces[4]


def test_map_of_nothing_has_nothing() -> None:
    found = FileMap(files_of([]))
    assert (found.files, found.bytes, found.max_topic_id) == (0, 0, 0)
    assert found.find(1, 0, 0) is None
    assert list(found.pieces(1, 0)) == []


numbers = st.one_of(
    st.sampled_from(["", "0", "00", "01", "-1", "+1", "1_0", "\uff11", "9" * 18, "9" * 19]),
    st.integers(0, 40).map(str),
)


@given(
    st.tuples(numbers, numbers, numbers, numbers, numbers),
    st.sampled_from(["", "x", "/../", "\n"]),
)
@example(("1", "1", "0", "0", "5"), "")
@example(("2", "1", "0", "0", "5"), "")
@example(("1", "1", "0", "5", "5"), "")
def test_name_that_brokerd_does_not_give_is_refused(
    drawn: tuple[str, str, str, str, str], after: str
) -> None:
    """The names of all files are read at once, and mean what each means alone."""
    bucket, topic, partition, first, end = drawn
    name = f"p-{topic}-{partition}-{first}-{end}-01234567-0123456789abcdef.parquet"
    path = f"bucket={bucket}/{name}{after}"
    file = records_file(1, 0, 10)._replace(path=path)
    try:
        only = parse_records_name(path).only
    except ForeignArchive as error:
        with pytest.raises(ForeignArchive) as caught:
            FileMap(files_of([file]))
        assert str(caught.value) == str(error)
    else:
        assert only is not None
        piece = FileMap(files_of([file])).find(*only[:3])
        assert piece is not None
        assert (piece.first, piece.end) == only[2:]


def many(count: int) -> pa.Table:
    """Files of a hundred topics, and one in ten of them shared."""
    files: list[AddFile] = []
    for n in range(count):
        topic = n % 100 + 1
        if n % 10:
            files.append(records_file(topic, n * 10**6, (n + 1) * 10**6, number=n))
        else:
            files.append(shared_file((topic, 0), (topic + 1600, 0), number=n))
    return files_of(files)


def test_map_takes_less_than_a_kilobyte_a_file() -> None:
    """Of Python's memory and of Arrow's, with the columns of the log that it is made of."""
    count = 10_000
    files = many(count)
    gc.collect()
    tracemalloc.start()
    try:
        found = FileMap(files)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.files == count
    assert (taken + files.nbytes) / count < 500


def test_file_is_found_in_microseconds_among_many() -> None:
    found = FileMap(many(10_000))
    began = time.thread_time()
    for n in range(1, 10_000, 7):
        if n % 10:
            piece = found.find(n % 100 + 1, 0, n * 10**6 + 5)
            assert piece is not None
            assert piece.first == n * 10**6
    assert (time.thread_time() - began) / (10_000 / 7) < 100e-6
