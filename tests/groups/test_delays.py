# Tests: brokerd/groups/delays.py
"""Records wait exactly as long as they were told to, however many share a block."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.groups.delays import Delays
from tests.strategies import groups as some

steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "discard", "range", "pop"]),
        some.close_offsets,
        st.integers(0, 9),
    ),
    min_size=5,
    max_size=40,
)


def take(delays: Delays, bound_us: int) -> set[int]:
    """All offsets ready before ``bound_us``."""
    taken = set()
    while (block := delays.pop_before(bound_us)) is not None:
        key, bits = block
        taken |= {key * 256 + bit for bit in range(256) if bits >> bit & 1}
    return taken


@given(steps)
def test_records_are_ready_at_their_time_and_not_before(steps: list) -> None:
    delays, waiting = Delays(), {}
    for what, offset, number in steps:
        if what == "put" and offset not in waiting:
            delays.put(offset, number)
            waiting[offset] = number
        elif what == "discard":
            assert delays.discard(offset) == (waiting.pop(offset, None) is not None)
        elif what == "range":
            delays.discard_range(offset, offset + number * 100)
            waiting = {
                o: time for o, time in waiting.items() if not offset <= o < offset + number * 100
            }
        elif what == "pop":
            ready = {o for o, time in waiting.items() if time < number}
            assert take(delays, number) == ready
            waiting = {o: time for o, time in waiting.items() if o not in ready}
        assert delays.count == len(waiting)
        assert delays.next_us() == min(waiting.values(), default=None)


def test_when_the_earliest_of_a_block_leaves_the_next_one_counts() -> None:
    delays = Delays()
    for offset in (3, 1, 2):
        delays.put(offset, offset * 10)
    delays.discard(1)
    assert delays.next_us() == 20
    delays.discard_range(0, 3)
    assert delays.next_us() == 30
    delays.discard(3)
    assert delays.next_us() is None


def test_a_batch_that_failed_together_is_ready_in_one_step_a_block() -> None:
    delays = Delays()
    for offset in range(512):
        delays.put(offset, 5)
    assert delays.pop_before(5) is None
    assert {delays.pop_before(6), delays.pop_before(6)} == {
        (0, (1 << 256) - 1),
        (1, (1 << 256) - 1),
    }
    assert delays.next_us() is None
