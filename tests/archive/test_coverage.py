"""What a file knows of its partitions: offsets with a record, and those that damage took."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.layout import Range
from brokerd.archive.journal.coverage import covered_ranges
from brokerd.archive.journal.sealed import Batches


def batches(*rows: tuple[int, int, int, int]) -> Batches:
    """Batches of a topic id and partition, from an offset to another, exclusive."""
    columns = np.array([(t, p, first, end - first, 0, 0) for t, p, first, end in rows], np.int64)
    return Batches(*columns.reshape(-1, 6).T)


def test_neighbours_are_one_range() -> None:
    """In whatever order, and of whatever segments, they come; partitions stay apart."""
    one = batches((2, 0, 0, 5), (1, 0, 3, 7))
    two = batches((1, 0, 0, 3), (1, 0, 9, 10), (1, 1, 7, 9))
    assert covered_ranges([one, two], [], {}) == [
        (1, 0, 0, 7),
        (1, 0, 9, 10),
        (1, 1, 7, 9),
        (2, 0, 0, 5),
    ]
    assert covered_ranges([], [], {}) == covered_ranges([batches()], [], {(1, 0): [(1, 2)]}) == []


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([(5, 8)], [(0, 10)]),
        ([(5, 6), (6, 8)], [(0, 10)]),
        ([(5, 7)], [(0, 7), (8, 10)]),
        ([(10, 12), (14, 15)], [(0, 5), (8, 12)]),
        ([(4, 9)], [(0, 10)]),
        ([(100, 200)], [(0, 5), (8, 10)]),
        ([(1, 2)], [(0, 5), (8, 10)]),
    ],
)
def test_gaps_next_to_records_are_known(
    gaps: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    """Others say nothing, and nothing is known of a hole that is no gap."""
    some = batches((1, 0, 0, 5), (1, 0, 8, 10), (1, 1, 0, 5))
    found = covered_ranges([some], [], {(1, 0): gaps, (3, 0): gaps})
    assert found == [*(Range(1, 0, *one) for one in expected), (1, 1, 0, 5)]


def test_a_lost_batch_is_known_as_far_as_it_is_a_gap() -> None:
    """Also when there is nothing else of its partition."""
    lost = batches((1, 0, 10, 20))
    assert covered_ranges([], [lost], {(1, 0): [(12, 20)]}) == [(1, 0, 12, 20)]
    assert covered_ranges([], [lost], {}) == []
    assert covered_ranges([batches((1, 0, 0, 10))], [lost], {(1, 0): [(10, 20)]}) == [(1, 0, 0, 20)]


@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 30)), unique=True),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=4),
)
def test_each_record_is_covered_and_nothing_unknown(
    records: list[tuple[int, int]], gaps: list[tuple[int, int]]
) -> None:
    """As sets of offsets, whatever the batches and gaps are; ranges never touch."""
    said = {(1, 0): [(first, first + count) for first, count in gaps]}
    found = covered_ranges([batches(*((t, 0, at, at + 1) for t, at in records))], [], said)
    offsets = {(one.topic_id, at) for one in found for at in range(one.first, one.end)}
    lost = {(1, at) for first, end in said[1, 0] for at in range(first, end)}
    assert set(records) <= offsets <= set(records) | lost
    for one, after in pairwise(found):
        assert one[:2] < after[:2] or one.end < after.first
