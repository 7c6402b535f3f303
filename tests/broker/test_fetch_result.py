"""The records of a fetch are the same whether they are taken as columns or one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.broker.archive.chunks import chunks_of
from brokerd.broker.model.chunks import MutableChunk
from brokerd.broker.records.fetch_result import FetchedRecords
from brokerd.codecs import flymq
from brokerd.values import Columns, Format, Record, columns_of, runs_of
from tests.broker.test_holes import all_records, archived_rows


@st.composite
def fetches(draw: st.DrawFn) -> tuple[FetchedRecords, list[Record]]:
    """Parts of some chunks, and the records in them."""
    fetched, records = FetchedRecords(), list[Record]()
    for chunk in chunks_of(draw(archived_rows())):
        first = draw(st.integers(chunk.base, min(chunk.end, chunk.base + 40)))
        end = draw(st.integers(first, chunk.end))
        fetched.add(chunk.rows(first, end))
        records += [one for one in all_records([chunk]) if first <= one.offset < end]
    return fetched, records


def joined(runs: list[Columns]) -> list[tuple[int, bytes | None, bytes]]:
    """Offset, key and value of each record."""
    return [
        one
        for offsets, keys, values, _ in runs
        for one in zip(offsets, keys or [None] * len(offsets), values, strict=True)
    ]


@given(fetches(), st.booleans())
def test_answers_are_the_same_however_records_are_held(
    found: tuple[FetchedRecords, list[Record]], sdk: bool
) -> None:
    """A client of FlyMQ cannot tell records of the archive from those of the log."""
    fetched, records = found
    request = flymq.Fetch("t", 0, 0, 10, sdk=sdk)
    answer = b"".join(flymq.fetched_parts(request, fetched, 77))
    assert answer == b"".join(flymq.fetched_parts(request, records, 77))


@pytest.mark.parametrize("values", [[b"ab", b"cd", b"ef"], [b"ab", b"c", b"def"], [b"", b""]])
@pytest.mark.parametrize("sdk", [True, False])
def test_answers_are_the_same_when_their_chunk_is_closed(values: list[bytes], sdk: bool) -> None:
    chunk = MutableChunk(5)
    chunk.append_values(values, Format.FLYMQ, 0)
    chunk.set_framed(len(values), 1, 1, 1)
    request = flymq.Fetch("t", 0, 0, 10, sdk=sdk)
    answers = []
    for closes in (False, True):
        if closes:
            chunk.close()
        fetched = FetchedRecords(chunk.rows(5, 6), chunk.rows(6, chunk.end))
        answers.append(b"".join(flymq.fetched_parts(request, fetched, 77)))
    assert answers[0] == answers[1]
    assert answers[0] == b"".join(flymq.fetched_parts(request, chunk.records(5, chunk.end), 77))


@given(fetches())
def test_records_come_one_by_one_and_as_columns(
    found: tuple[FetchedRecords, list[Record]],
) -> None:
    fetched, records = found
    assert list(fetched) == records
    assert len(fetched) == len(records) and bool(fetched) == bool(records)
    assert columns_of(fetched) == columns_of(records)
    assert joined(runs_of(fetched)) == joined(runs_of(records))
    for index in range(-len(records), len(records)):
        assert fetched[index] == records[index]
    assert fetched[1:3] == records[1:3]
    for index in (len(records), -len(records) - 1):
        with pytest.raises(IndexError):
            fetched[index]


@given(fetches(), st.integers(0, 20), st.integers(0, 20))
def test_some_rows_of_many_are_those_records(
    found: tuple[FetchedRecords, list[Record]], first: int, end: int
) -> None:
    """And they have the size of their keys, values and metadata."""
    for rows in found[0]._rows:
        records = rows.records()
        cut = rows.cut(min(first, len(records)), min(end, len(records)))
        if first <= end:
            assert cut.records() == records[first:end]
        assert rows.size() == sum(
            len(one.value) + len(one.key or b"") + len(one.metadata or b"") for one in records
        )
