# Tests: brokerd/groups/bitmaps.py
"""Bitmaps behave as sets of offsets do, across word boundaries too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.groups.bitmaps import FULL, WORD_BITS, FloorSet, LowestFirst, missing_words
from tests.strategies import groups as some


@given(st.lists(st.one_of(some.close_offsets, some.close_ranges), min_size=3, max_size=30))
def test_a_floor_set_is_a_set_with_its_first_gap_as_floor(steps: list) -> None:
    found, members = FloorSet(), set()
    for step in steps:
        if isinstance(step, tuple):
            found.add_range(*step)
            members.update(range(*step))
        else:
            found.add(step)
            members.add(step)
        floor = next(n for n in range(5000) if n not in members)
        assert found.floor == floor
        assert found.above == sum(member > floor for member in members)
        assert all((n in found) == (n in members) for n in some.BOUNDARIES)
        assert all(key >= floor >> 10 for key in found.words), "words below the floor are gone"


@given(st.sets(some.close_offsets, max_size=30), st.integers(0, 2100))
def test_a_loaded_floor_set_raises_its_floor_over_members(members: set[int], floor: int) -> None:
    words: dict[int, int] = {}
    for offset in members:
        words[offset >> 10] = words.get(offset >> 10, 0) | 1 << (offset & 1023)
    found = FloorSet()
    found.load(floor, words)
    first_gap = next(n for n in range(floor, 5000) if n not in members)
    assert found.floor == first_gap
    assert found.above == sum(member > first_gap for member in members)


def test_a_word_leaves_as_soon_as_the_floor_has_passed_it() -> None:
    found = FloorSet()
    found.add(5)
    found.add(WORD_BITS + 5)
    found.add_range(0, WORD_BITS - 1)
    assert (found.floor, list(found.words)) == (WORD_BITS - 1, [0, 1])
    found.add(WORD_BITS - 1)
    assert (found.floor, list(found.words)) == (WORD_BITS, [1])
    found.add_range(0, WORD_BITS + 5)
    assert (found.floor, found.words) == (WORD_BITS + 6, {})


def test_full_words_are_one_object() -> None:
    found = FloorSet()
    for offset in range(20 * WORD_BITS, 22 * WORD_BITS):
        found.add(offset)
    assert {id(word) for word in found.words.values()} == {id(FULL)}


steps_over_many_words = st.lists(
    st.one_of(some.far_offsets, some.far_ranges, some.far_ranges), min_size=2, max_size=25
)


@given(steps_over_many_words)
def test_ranges_of_many_words_are_runs_and_their_offsets_members(steps: list) -> None:
    found, members = FloorSet(), set()
    for step in steps:
        if isinstance(step, tuple):
            found.add_range(*step)
            members.update(range(*step))
        else:
            found.add(step)
            members.add(step)
        floor = next(n for n in range(20_000) if n not in members)
        assert found.floor == floor
        assert found.above == sum(member > floor for member in members)
        assert all((n in found) == (n in members) for n in some.FAR_BOUNDARIES)
        keys = [key for run in found.runs for key in range(*run)]
        assert sorted({*keys, *found.words}) == sorted([*keys, *found.words]), "each key once"
        assert all(key >= floor >> 10 for key in keys), "runs below the floor are gone"
        again = FloorSet()
        again.load(*found.freeze())
        assert (again.floor, again.above) == (found.floor, found.above)


def test_a_range_takes_the_same_however_long_it_is() -> None:
    found = FloorSet()
    found.add_range(5, 1 << 60)
    found.add(WORD_BITS + 3)
    assert (len(found.words), len(found.runs)) == (1, 1)
    assert (1 << 60) - 1 in found and 1 << 60 not in found
    found.add_range(0, 5)
    assert (found.floor, found.above, found.words, found.runs) == (1 << 60, 0, {}, [])


some_steps = st.tuples(
    st.sampled_from(["add", "add", "add", "discard", "lowest", "range"]),
    some.close_offsets,
    some.close_ranges,
)


@given(st.lists(some_steps, min_size=5, max_size=40))
def test_lowest_first_always_names_the_lowest(steps: list) -> None:
    found, members = LowestFirst(), set()
    for what, offset, (first, end) in steps:
        if what == "add" and offset not in members:
            found.add(offset)
            members.add(offset)
        elif what == "discard" and offset in members:
            found.discard(offset)
            members.discard(offset)
        elif what == "range":
            found.discard_range(first, end)
            members.difference_update(range(first, end))
        elif what == "lowest" and members:
            assert found.lowest() == min(members)
        assert found.count == len(members)
        assert (offset in found) == (offset in members)
        assert list(found.members(offset)) == sorted(one for one in members if one >= offset)


def test_words_that_became_empty_do_not_pile_up() -> None:
    found = LowestFirst()
    found.add(0)
    for offset in range(WORD_BITS, 10_000 * WORD_BITS, WORD_BITS):
        found.add(offset)
        found.discard(offset)
    assert len(found.words) < 200
    assert found.lowest() == 0


discards = st.lists(st.sets(some.far_offsets, min_size=1, max_size=6), max_size=4)


@given(steps_over_many_words, discards, st.lists(some.far_ranges, max_size=3))
def test_members_that_are_taken_out_lower_the_floor(
    ranges: list, taken: list[set[int]], later: list[tuple[int, int]]
) -> None:
    """Also out of runs, below the floor, and with members added again afterwards."""
    found, members = FloorSet(), set()

    def check() -> None:
        floor = next(n for n in range(14_000) if n not in members)
        assert found.floor == floor
        assert found.above == sum(member > floor for member in members)
        assert all((n in found) == (n in members) for n in some.FAR_BOUNDARIES)
        for start in some.FAR_BOUNDARIES:
            gap = next(n for n in range(max(start, floor), 14_000) if n not in members)
            assert found.next_absent(start) == gap

    for step in ranges:
        first, end = step if isinstance(step, tuple) else (step, step + 1)
        found.add_range(first, end)
        members.update(range(first, end))
    for chosen in taken:
        words: dict[int, int] = {}
        for offset in chosen & members:
            words[offset >> 10] = words.get(offset >> 10, 0) | 1 << (offset & 1023)
        found.discard_words(words)
        members -= chosen
        check()
    for first, end in later:
        found.add_range(first, end)
        members.update(range(first, end))
        check()


def test_what_the_floor_passed_inside_a_word_counts_again_when_it_goes_down() -> None:
    found = FloorSet()
    found.add_range(1, 500)
    found.add(0)
    found.add(600)
    assert (found.floor, found.above) == (500, 1)
    found.discard_words({0: 1 << 7})
    assert (found.floor, found.above) == (7, 500 - 8 + 1)
    assert [n in found for n in (6, 7, 8, 499, 500, 600)] == [True, False, True, True, False, True]


@given(steps_over_many_words, steps_over_many_words, discards, some.far_offsets)
def test_what_one_set_has_and_the_other_lacks(
    both: list, one: list, taken: list[set[int]], first: int
) -> None:
    of, among, members, others = FloorSet(), FloorSet(), set(), set()
    for step in both:
        start, end = step if isinstance(step, tuple) else (step, step + 1)
        of.add_range(start, end)
        among.add_range(start, end)
        members.update(range(start, end))
        others.update(range(start, end))
    for step in one:
        start, end = step if isinstance(step, tuple) else (step, step + 1)
        of.add_range(start, end)
        members.update(range(start, end))
    for chosen in taken:
        words: dict[int, int] = {}
        for offset in chosen & others:
            words[offset >> 10] = words.get(offset >> 10, 0) | 1 << (offset & 1023)
        among.discard_words(words)
        others -= chosen
    expected = sorted(offset for offset in members - others if offset >= first)
    found = missing_words(of, among, first)
    assert expected == sorted(
        (key << 10) + bit
        for key, bits in found.items()
        for bit in range(WORD_BITS)
        if bits >> bit & 1
    )
