"""How many files stay, and how often a record is written again, when runs leave small files."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.maintain.merge_policy import (
    SMALL_ROUND_GROWTH,
    deepest,
    neighbours_to_merge,
    pieces,
)

LIMIT = 128


def merged(sizes: list[int], growth: int = 2) -> tuple[list[int], int]:
    """(sizes afterwards, bytes written) of one run."""
    runs = neighbours_to_merge(sizes, LIMIT, growth)
    written = sum(sum(sizes[run.start : run.stop]) for run in runs)
    for run in runs:  # the last first, so that positions stay
        sizes = [*sizes[: run.start], sum(sizes[run.start : run.stop]), *sizes[run.stop :]]
    return sizes, written


def test_a_file_each_run_leaves_few_and_writes_each_byte_a_few_times() -> None:
    """1,000 runs of one unit each: full files, at most one small one for each doubling."""
    sizes: list[int] = []
    written = 0
    for _ in range(1000):
        sizes, now = merged([*sizes, 1])
        written += now
        assert len([size for size in sizes if size < LIMIT]) <= math.log2(LIMIT) + 1
    assert sizes[:7] == [128] * 7
    assert written <= 1000 * math.log2(LIMIT)


def test_small_rounds_write_each_byte_a_third_as_often_and_leave_more_files() -> None:
    """512 runs of one unit: each byte in a file of 8, then in one of 64; seven files a size."""
    sizes: list[int] = []
    written = 0
    for _ in range(512):
        sizes, now = merged([*sizes, 1], SMALL_ROUND_GROWTH)
        written += now
        assert len([size for size in sizes if size < 64]) <= 2 * (SMALL_ROUND_GROWTH - 1)
    assert sizes == [64] * 8
    assert written == 960, "some go into a file of 64 at once"
    assert merged(sizes) == ([128] * 4, 512), "a complete run merges the rest"


def test_a_backlog_of_small_files_is_merged_at_once() -> None:
    """After merging was off for long, one run makes full files, each byte written once."""
    sizes, written = merged([1] * 1000)
    assert sizes == [104] + [128] * 7
    assert written == 1000


@given(st.lists(st.integers(0, 200), max_size=60))
def test_merging_again_finds_nothing(sizes: list[int]) -> None:
    """Runs are of at least two neighbours, fit a file, and leave nothing for the next run."""
    runs = neighbours_to_merge(sizes, LIMIT)
    assert all(len(run) > 1 and sum(sizes[at] for at in run) <= LIMIT for run in runs)
    places = [at for run in runs for at in run]
    assert len(set(places)) == len(places)
    after, _ = merged(sizes)
    assert sum(after) == sum(sizes)
    assert neighbours_to_merge(after, LIMIT) == []


@given(st.lists(st.integers(1, 100), max_size=60))
def test_few_files_stay(sizes: list[int]) -> None:
    """As many as doublings fit a file, for each two files that the bytes would fill."""
    after, _ = merged(sizes)
    full = 2 * sum(after) // LIMIT + 1
    assert len(after) <= full * (math.log2(LIMIT) + 1)


key = st.tuples(st.integers(0, 6), st.integers(0, 2))
spans = st.lists(st.tuples(key, key).map(lambda pair: (min(pair), max(pair))), max_size=12)


@given(spans)
def test_the_key_that_most_files_hold_is_found(
    held: list[tuple[tuple[int, int], tuple[int, int]]],
) -> None:
    """Those that are given hold one key together, and no other key is held by more."""
    found = deepest(held)
    depths = {
        (topic_id, partition): sum(first <= (topic_id, partition) <= last for first, last in held)
        for topic_id in range(7)
        for partition in range(3)
    }
    assert len(found) == max(depths.values())
    if found:
        low, high = max(held[at][0] for at in found), min(held[at][1] for at in found)
        assert low <= high


def test_runs_are_cut_to_a_number_of_files_and_a_single_file_is_left() -> None:
    assert pieces([range(7), range(10, 14)], 3) == [range(3), range(3, 6), range(10, 13)]
    assert pieces([range(2, 4), range(5, 6)], 3) == [range(2, 4)]
