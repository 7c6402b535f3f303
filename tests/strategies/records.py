"""Batches of records with every kind of column."""

from __future__ import annotations

from hypothesis import strategies as st

from brokerd.walformat import RecordColumns

i64 = st.integers(-(1 << 63), (1 << 63) - 1)
times = st.integers(0, 1 << 52)
payloads = st.binary(max_size=40)


@st.composite
def batches(draw: st.DrawFn, max_rows: int = 12) -> RecordColumns:
    """Draw one batch; columns may be absent, constant, arrays, or arrays with gaps."""
    rows = draw(st.integers(1, max_rows))

    def column(
        elements: st.SearchStrategy[object], *, absent: bool = True
    ) -> st.SearchStrategy[object]:
        each = st.lists(elements, min_size=rows, max_size=rows)
        same = elements.map(lambda element: [element] * rows)
        return st.one_of(each, same, st.none()) if absent else st.one_of(each, same)

    small = st.integers(0, 5)
    return RecordColumns(
        values=draw(column(payloads, absent=False)),
        keys=draw(column(st.none() | payloads)),
        encodings=draw(column(st.integers(0, 2), absent=False) | small),
        metadata=draw(column(st.none() | payloads)),
        append_time_us=draw(column(times, absent=False) | times),
        producer_time=draw(column(st.none() | i64)),
        expires_at_us=draw(column(st.just(0) | times)),
        producer_format=draw(column(small, absent=False) | small),
    )


Row = tuple[bytes, bytes | None, int, bytes | None, int, int | None, int, int]


def rows_of(columns: RecordColumns) -> list[Row]:
    """Return the records as tuples.

    The fields are value, key, encoding, metadata, append time, producer time, expires at, producer
    format.
    """
    rows = len(columns.values)
    full = []
    for column, default in zip(columns, (b"", None, 0, None, 0, None, 0, 0), strict=True):
        if column is None:
            column = default
        is_column = column is not None and not isinstance(column, int)
        full.append(column if is_column else [column] * rows)
    return list(zip(*full, strict=True))
