# Tests: brokerd/groups/redelivery.py
"""What is known of records that came back: a row, or a lease that ended with others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.groups import tables
from brokerd.groups.attempts import LeaseRow
from brokerd.groups.redelivery import Redeliveries
from tests.strategies import groups as some

steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "pop"]), some.close_offsets),
        st.tuples(st.just("take over"), st.sets(some.close_offsets, max_size=6)),
        st.tuples(st.just("drop"), some.close_ranges),
        st.tuples(st.just("write"), st.none()),
    ),
    max_size=30,
)


def lease(number: int) -> LeaseRow:
    return (0, "ann", number, 3, 4, 10, number * 2)


@given(steps, st.sampled_from([1, 4]))
def test_former_leases_are_rows(steps: list, large: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "LARGE", large)
        found, model = Redeliveries(lambda row: row[6] or 0), {}
        for number, (what, value) in enumerate(steps):
            if what == "put":
                found.pop(value)
                found.put(value, 1, 2, number, 7)
                model[value] = (1, 2, number, 7)
            elif what == "pop":
                assert found.pop(value) == model.pop(value, None)
            elif what == "drop":
                found.drop_range(*value)
                model = {o: row for o, row in model.items() if not value[0] <= o < value[1]}
            elif what == "write":
                found.write_rows()
                assert dict(found.items()) == model
                assert found.count == len(model)
            else:
                fresh = value - set(model)
                found.add_ended({offset: lease(number) for offset in fresh})
                model.update(dict.fromkeys(fresh, (3, 8, number, number * 2)))
            assert found.count >= len(model)
            for offset in some.BOUNDARIES:
                assert found.get(offset) == model.get(offset)
                assert (offset in found) == (offset in model)


def test_a_seek_keeps_the_attempts_of_a_million_leases_without_touching_them() -> None:
    table = Redeliveries(lambda row: row[6] or 0)
    leases: tables.Table[LeaseRow] = tables.grow({n: lease(n) for n in range(tables.LARGE)})
    table.add_ended(leases)
    assert table.former is leases
    assert not table.blocks
