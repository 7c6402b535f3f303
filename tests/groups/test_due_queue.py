# Tests: brokerd/groups/due_queue.py
"""The due queue gives offsets in the order of their due times and forgets stale entries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.groups.due_queue import MOVES, SLACK, DueQueue

times = st.integers(-20, 20)


@given(st.lists(st.tuples(st.sampled_from(["due", "never", "pop"]), st.integers(0, 5), times)))
def test_offsets_come_earliest_first_and_only_while_due(steps: list) -> None:
    due: dict[int, int] = {}
    queue = DueQueue(due.get, due.__len__)
    for what, offset, time_us in steps:
        if what == "due":
            due[offset] = time_us
            queue.push(time_us, offset)
        elif what == "never":
            due.pop(offset, None)
        else:
            expected = min(((t, o) for o, t in due.items() if t < time_us), default=(0, -1))[1]
            assert queue.pop_before(time_us) == expected
            due.pop(expected, None)
        assert queue.earliest_us() == min(due.values(), default=None)


def test_stale_entries_do_not_pile_up() -> None:
    due: dict[int, int] = {7: 0}
    queue = DueQueue(due.get, due.__len__)
    for time_us in range(20 * SLACK):
        due[7] = time_us
        queue.push(time_us, 7)
        queue.push(time_us, 7)
    assert len(queue.heap) + len(queue._old) <= 2 * SLACK
    assert queue.pop_before(1 << 40) == 7


def test_refilling_replaces_everything() -> None:
    due = {1: 10, 2: 5}
    queue = DueQueue(due.get, due.__len__)
    queue.push(10, 1)
    queue.refill([(5, 2)])
    assert [queue.pop_before(100), queue.pop_before(100)] == [2, -1]


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 50)), max_size=60),
    st.integers(0, 50),
)
def test_nothing_is_lost_while_stale_entries_are_left_behind(
    changes: list[tuple[int, int]], bound_us: int
) -> None:
    """Whatever is due is found also while there are two heaps."""
    due = {offset: offset % 40 for offset in range(400)}
    queue = DueQueue(due.get, due.__len__)
    queue.refill([])
    for offset, time_us in due.items():
        queue.push(time_us, offset)
    queue._limit = 100  # the next push begins to leave stale entries behind
    for offset, time_us in changes:
        due[offset] = time_us
        queue.push(time_us, offset)
    expected = sorted((time_us, offset) for offset, time_us in due.items() if time_us < bound_us)
    found = []
    while (offset := queue.pop_before(bound_us)) >= 0:
        found.append((due.pop(offset), offset))
    assert found == expected


def test_many_stale_entries_are_taken_away_a_few_at_a_time() -> None:
    """So that no call takes long."""
    due = dict.fromkeys(range(10_000), 5)
    queue = DueQueue(due.get, due.__len__)
    queue.refill([(5, offset) for offset in due])
    due.clear()
    due[7] = 9
    queue.push(9, 7)
    assert queue.earliest_us() == 5  # earlier than it is
    queue.stale_left = 100
    assert queue.pop_before(100) == -1
    queue.stale_left = 100_000
    assert queue.pop_before(100) == 7
    assert queue.earliest_us() is None


def test_a_push_moves_a_few_entries_only() -> None:
    """However many there are."""
    looked = 0

    def due_of(offset: int) -> int:
        nonlocal looked
        looked += 1
        return 0

    queue = DueQueue(due_of, lambda: 1)
    worst = 0
    for offset in range(5 * SLACK):
        looked = 0
        queue.push(1, offset)
        worst = max(worst, looked)
    assert 0 < worst <= MOVES


def test_as_many_live_entries_as_there_may_be_are_never_moved() -> None:
    """Only stale ones are a reason to."""
    looked = []
    due: dict[int, int] = {}
    queue = DueQueue(looked.append, due.__len__)
    for offset in range(10 * SLACK):
        due[offset] = offset
        queue.push(offset, offset)
    assert not looked


@given(
    st.lists(st.tuples(times, st.integers(0, 300)), max_size=40),
    st.lists(st.tuples(times, st.integers(1, 30)), min_size=1, max_size=6),
)
def test_a_run_is_pushed_like_its_offsets_one_by_one(
    before: list[tuple[int, int]], runs: list[tuple[int, int]]
) -> None:
    """Whether or not its entries are the last ones due."""
    due: dict[int, int] = {}
    queue = DueQueue(due.get, due.__len__)
    for time_us, offset in before:
        due[offset] = time_us
        queue.push(time_us, offset)
    first = 1_000
    for time_us, count in runs:
        due.update(dict.fromkeys(range(first, first + count), time_us))
        queue.push_run(time_us, first, count)
        first += count
    expected = [
        offset for _, offset in sorted((time_us, offset) for offset, time_us in due.items())
    ]
    found = []
    while due:
        found.append(queue.pop_before(100))
        del due[found[-1]]
    assert found == expected
