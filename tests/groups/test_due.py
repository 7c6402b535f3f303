# Tests: brokerd/groups/due.py
"""The due queue gives offsets in the order of their due times and forgets stale entries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.groups.due import SLACK, DueQueue

times = st.integers(-20, 20)


@given(st.lists(st.tuples(st.sampled_from(["due", "never", "pop"]), st.integers(0, 5), times)))
def test_offsets_come_earliest_first_and_only_while_due(steps: list) -> None:
    due: dict[int, int] = {}
    queue = DueQueue(due.get)
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
    queue = DueQueue(due.get)
    for time_us in range(20 * SLACK):
        due[7] = time_us
        queue.push(time_us, 7)
        queue.push(time_us, 7)
    assert len(queue.heap) <= 2 * SLACK
    assert queue.pop_before(1 << 40) == 7


def test_refilling_replaces_everything() -> None:
    due = {1: 10, 2: 5}
    queue = DueQueue(due.get)
    queue.push(10, 1)
    queue.refill([(5, 2)])
    assert [queue.pop_before(100), queue.pop_before(100)] == [2, -1]
