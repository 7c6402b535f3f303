# Tests: tests/test_walformat.py, tests/wal/
"""Strategies for the log: batches of records with awkward columns, and group events."""

from __future__ import annotations

from hypothesis import strategies as st

from brokerd.walformat import GroupEvent, RecordColumns

int64s = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
times_us = st.one_of(st.sampled_from([0, 1, 1_700_000_000_000_000]), st.integers(0, 2**63 - 1))
bytes_small = st.one_of(st.sampled_from([b"", b"a", b"\0" * 9]), st.binary(max_size=40))
texts = st.one_of(st.sampled_from(["", "g", "worker-1", "\udc80"]), st.text(max_size=12))


@st.composite
def record_columns(draw: st.DrawFn) -> RecordColumns:
    """Draw one to twelve records; each column is absent, a constant, or one value a record."""
    n = draw(st.integers(1, 12))

    def rows(values: st.SearchStrategy) -> st.SearchStrategy:
        return st.one_of(
            st.lists(values, min_size=n, max_size=n), values.map(lambda value: [value] * n)
        )

    optional_bytes = st.one_of(st.none(), bytes_small)
    small = st.integers(0, 255)
    return RecordColumns(
        values=draw(rows(bytes_small)),
        keys=draw(st.one_of(st.none(), rows(optional_bytes), rows(bytes_small))),
        encodings=draw(st.one_of(small, rows(small))),
        metadata=draw(st.one_of(st.none(), rows(optional_bytes), rows(bytes_small))),
        append_time_us=draw(st.one_of(times_us, rows(times_us))),
        producer_time=draw(st.one_of(st.none(), rows(int64s), rows(st.one_of(st.none(), int64s)))),
        expires_at_us=draw(st.one_of(st.none(), rows(times_us))),
        producer_format=draw(st.one_of(small, rows(small))),
    )


group_events: st.SearchStrategy[GroupEvent] = st.tuples(
    st.integers(1, 12),
    int64s,
    int64s,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    texts,
    texts,
)
