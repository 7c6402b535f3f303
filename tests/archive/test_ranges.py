"""A set of ranges answers as the set of its numbers does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.ranges import DisjointRanges

NUMBERS = st.integers(0, 30)


@given(st.lists(st.tuples(NUMBERS, st.integers(1, 5))), NUMBERS, st.integers(1, 10))
def test_it_is_the_set_of_its_numbers(
    ranges: list[tuple[int, int]], number: int, count: int
) -> None:
    """In whatever order the ranges come, and whether they touch or overlap."""
    said = [(first, first + size) for first, size in ranges]
    numbers = {at for first, end in said for at in range(first, end)}
    found = DisjointRanges(said)
    assert found.overlap(number, number + count) == bool(
        numbers & set(range(number, number + count))
    )
    end = found.end_of(number)
    assert end not in numbers
    assert set(range(number, end)) <= numbers
