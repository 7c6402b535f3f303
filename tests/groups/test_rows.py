# Tests: brokerd/groups/rows.py
"""The table of rows behaves as a dict of tuples does, and its blocks never change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.groups.rows import OffsetRows
from tests.strategies import groups as some

places = some.close_offsets
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), places, st.integers(0, 2**32 - 1)),
        st.tuples(st.just("pop"), places, st.just(0)),
        st.tuples(st.just("drop"), places, some.batch_sizes),
    ),
    min_size=5,
    max_size=60,
)


@given(steps, places)
def test_rows_are_found_under_their_offsets(steps: list, first: int) -> None:
    table, rows = OffsetRows("<IQ"), {}
    for what, offset, value in steps:
        if what == "put":
            table.put(offset, value, offset)
            rows[offset] = (value, offset)
        elif what == "pop":
            assert table.pop(offset) == rows.pop(offset, None)
        else:
            table.drop_range(offset, offset + value)
            rows = {o: row for o, row in rows.items() if not offset <= o < offset + value}
        assert table.get(offset) == rows.get(offset)
        assert table.count == len(rows)
    assert list(table.items()) == sorted(rows.items())
    assert list(table.items(first)) == sorted((o, row) for o, row in rows.items() if o >= first)


@given(steps)
def test_a_copy_of_the_blocks_is_a_snapshot(steps: list) -> None:
    table = OffsetRows("<IQ")
    for offset in range(0, 600, 3):
        table.put(offset, 1, 2)
    frozen = table.blocks.copy()
    before = {key: (bits, bytes(rows)) for key, (bits, rows) in frozen.items()}
    for what, offset, value in steps:
        if what == "put":
            table.put(offset, value, 0)
        elif what == "pop":
            table.pop(offset)
        else:
            table.drop_range(offset, offset + value)
    assert frozen == before


def test_empty_blocks_are_dropped() -> None:
    table = OffsetRows("<Q")
    table.put(5, 1)
    table.pop(5)
    assert table.blocks == {}
