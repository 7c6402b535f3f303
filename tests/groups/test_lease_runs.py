# Tests: brokerd/groups/lease_runs.py, brokerd/groups/store.py
"""Leases of adjacent records that one acquire took are one run until a command splits them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import BrokerdError
from brokerd.groups import GroupSettings, Lease, LeaseStore
from brokerd.groups.lease_runs import RUN_LEASES_MAX, RUN_MIN, LeaseRun, LeaseRuns

END = 1_000_000
SECOND = 1_000_000


def all_of(first: int, count: int) -> int:
    return count


def acquire(store: LeaseStore, count: int, owner: str = "ann", now_us: int = 0) -> range:
    """Lease records that were never leased; return their offsets."""
    grants = store.acquire(now_us, END, owner, SECOND, count, accept_run=all_of)
    return range(grants[0].offset, grants[-1].offset + 1)


def in_runs(store: LeaseStore) -> list[tuple[int, int]]:
    return [run[:2] for run in store._runs.runs]


def test_each_acquire_of_adjacent_records_is_a_run_with_one_deadline() -> None:
    store = LeaseStore(GroupSettings())
    for count in (100, 30):
        acquire(store, count)
    acquire(store, RUN_MIN - 1)
    assert in_runs(store) == [(0, 100), (100, 130)]
    assert len(store._deadlines.heap) == 2 + RUN_MIN - 1
    assert store.leased == store.owned("ann") == 130 + RUN_MIN - 1


def test_a_settle_of_adjacent_records_takes_them_out_of_their_runs() -> None:
    store = LeaseStore(GroupSettings())
    for owner in ("ann", "ann", "bob"):
        acquire(store, 100, owner)
    part = range(50, 150)
    assert store.settle_run(0, part, "ann", [None] * 100) == 100
    assert in_runs(store) == [(0, 50), (150, 200), (200, 300)]
    assert store.settle_run(0, tuple(range(20, 30)), None, range(21, 31)) == 10
    assert in_runs(store) == [(0, 20), (30, 50), (150, 200), (200, 300)]
    assert store.settle_run(0, range(150, 250), "ann", [None] * 100) == 50
    assert store.leased == 40 + 100
    assert (store.owned("ann"), store.owned("bob")) == (40, 100)
    assert [lease.offset for lease in store.leases(35, 205)] == [*range(35, 50), *range(200, 205)]


@pytest.mark.parametrize(
    "command",
    [
        lambda store: store.settle(0, END, 150, True),
        lambda store: store.settle(0, END, 150, False),
        lambda store: store.settle_leased(0, 150, "ann", 151),
        lambda store: store.extend(0, 150, 2 * SECOND),
        lambda store: store.release(0, 150),
        lambda store: store.dead_letter(0, END, 150, "bad"),
        lambda store: store.set_deadline(150, 151, 2 * SECOND),
        lambda store: store.settle_run(0, [150], "ann", [151]),
        lambda store: store.settle_run(0, [150, 152, 154, 156], "ann", [None] * 4),
    ],
)
def test_a_command_to_one_lease_splits_its_run_alone(
    command: Callable[[LeaseStore], object],
) -> None:
    store = LeaseStore(GroupSettings())
    for _ in range(3):
        acquire(store, 100)
    command(store)
    assert in_runs(store) == [(0, 100), (200, 300)]
    assert not any(lease.offset == 150 and lease.deadline_us == SECOND for lease in store.leases())
    assert {lease.deadline_us for lease in store.leases(151, 200)} == {SECOND}


def test_the_rest_of_a_run_lapses_in_the_order_of_offsets() -> None:
    store = LeaseStore(GroupSettings(backoff_base_us=0))
    acquire(store, 50, now_us=10)
    acquire(store, 50)
    store.settle_run(10, range(10, 90), None, [None] * 80)
    store.events.clear()
    assert store.next_due_us() == SECOND + 1
    store.end_due(SECOND + 11, 15)
    assert [event[1] for event in store.events] == [*range(90, 100), *range(5)]
    store.end_due(SECOND + 11)
    assert [event[1] for event in store.events] == [*range(90, 100), *range(10)]
    assert store.next_due_us() is None


def test_a_snapshot_has_the_leases_of_runs_and_leaves_them_as_they_are() -> None:
    store = LeaseStore(GroupSettings())
    acquire(store, 2)
    acquire(store, 100)
    store.settle_run(0, range(30, 40), None, [None] * 10)
    read = LeaseStore.decode(store.freeze().encode())
    assert in_runs(store) == [(2, 30), (40, 102)]
    assert list(read.leases()) == list(store.leases())
    assert next(store.leases(40)) == Lease(40, SECOND, "ann", 41, 1, 0, SECOND, 0)
    assert store.attempts(40) == (1, 0)


def test_few_leases_are_in_runs_so_that_a_split_of_all_is_short() -> None:
    store = LeaseStore(GroupSettings())
    while store.leased < RUN_LEASES_MAX + 3_000:
        acquire(store, 1_000)
    assert RUN_LEASES_MAX - 1_000 < store._runs.leased <= RUN_LEASES_MAX
    leased = store.leased
    store.seek(0)
    assert (store.leased, store.ready) == (0, leased)


def test_a_run_that_lapsed_is_not_settled_as_one() -> None:
    store = LeaseStore(GroupSettings())
    acquire(store, 100)
    assert store.settle_run(SECOND + 1, range(100), "ann", range(1, 101)) == 0
    assert store.leased == 100
    assert store.leased_run(SECOND, range(100)) == 100
    assert store.leased_run(SECOND + 1, range(100)) == 0


def test_a_settled_range_ends_its_leases_in_runs() -> None:
    store = LeaseStore(GroupSettings())
    acquire(store, 100)
    store.settle_range(20, 90)
    assert [lease.offset for lease in store.leases()] == [*range(20), *range(90, 100)]
    assert store.owned("ann") == store.leased == 30


def test_the_deletion_of_a_group_ends_its_runs() -> None:
    store = LeaseStore(GroupSettings())
    acquire(store, 100)
    store.delete()
    assert (store.leased, list(store.leases()), store.next_due_us()) == (0, [], None)
    assert acquire(store, 100) == range(100)


def test_runs_stay_in_order() -> None:
    runs = LeaseRuns()
    for first in (30, 10, 20):
        runs.add(LeaseRun(first, first + 5, 0, "ann", first, 1))
    assert [run.first for run in runs.runs] == [10, 20, 30]
    assert [runs.find(offset) is not None for offset in (9, 10, 14, 15, 34, 35)] == [
        False, True, True, False, True, False,
    ]  # fmt: skip
    assert [run[:2] for run in runs.between(12, 31)] == [(12, 15), (20, 25), (30, 31)]
    assert [run.token for run in runs.between(12, 31)] == [12, 20, 30]


offsets = st.integers(0, 40)
owners = st.sampled_from(["ann", "bob"])
maybe_owners = st.none() | owners
Command = Callable[[LeaseStore, int, bool], Any]
"""Is given a store, the time, and whether runs are allowed."""


def acquires(owner: str, count: int, duration_us: int) -> Command:
    return lambda store, now_us, runs: store.acquire(
        now_us, 60, owner, duration_us, count, accept_run=all_of if runs else None
    )


def settles(first: int, count: int, step: int, owner: str | None, tokens: int) -> Command:
    """Settle a batch as `settle_run` promises it: the first ones under their leases."""

    def settle(store: LeaseStore, now_us: int, runs: bool) -> int:
        run = range(first, first + step * count, step)
        held = {lease.offset: lease.token for lease in store.leases()}
        given = [held.get(offset, 0) if tokens else None for offset in run]
        if tokens == 2:
            given[-1] = 1
        return store.settle_run(now_us, run, owner, given)

    return settle


def one(name: str, *arguments: Any) -> Command:
    return lambda store, now_us, runs: getattr(store, name)(now_us, *arguments)


commands = st.one_of(
    st.builds(acquires, owners, st.integers(1, 12), st.sampled_from([0, 5, 10])),
    st.builds(
        settles, offsets, st.integers(1, 12), st.sampled_from([1, 1, 2]), maybe_owners,
        st.sampled_from([0, 1, 2]),
    ),
    st.builds(one, st.just("settle"), st.just(60), offsets, st.booleans(), maybe_owners),
    st.builds(one, st.just("extend"), offsets, st.sampled_from([3, 20]), maybe_owners),
    st.builds(one, st.just("release"), offsets, maybe_owners),
    st.builds(one, st.just("release_owner"), owners, st.integers(1, 20)),
    st.builds(one, st.just("leased_run"), st.builds(range, offsets, offsets)),
    st.builds(one, st.just("dead_letter"), st.just(60), offsets, st.just("bad")),
    st.builds(one, st.just("end_due"), st.integers(1, 20)),
    st.builds(lambda low, end: lambda store, *_: store.settle_range(low, end), offsets, offsets),
    st.builds(lambda floor: lambda store, *_: store.seek(floor), st.integers(0, 9)),
    st.builds(
        lambda offset, time: lambda store, *_: store.set_deadline(offset, offset + 1, time),
        offsets, st.integers(0, 40),
    ),
)  # fmt: skip


def outcome(store: LeaseStore, command: Command, now_us: int, runs: bool) -> Any:
    try:
        return command(store, now_us, runs)
    except BrokerdError as error:
        return str(error)


@given(st.lists(st.tuples(commands, st.sampled_from([0, 0, 1, 4])), max_size=25))
def test_a_store_with_runs_does_what_one_without_runs_does(
    steps: list[tuple[Command, int]],
) -> None:
    settings = GroupSettings(max_attempts=3, backoff_base_us=0)
    in_runs, alone = LeaseStore(settings), LeaseStore(settings)
    now_us = 0
    for command, waits_us in steps:
        now_us += waits_us
        assert outcome(in_runs, command, now_us, True) == outcome(alone, command, now_us, False)
        assert in_runs.events == alone.events
        assert list(in_runs.leases()) == list(alone.leases())
        assert in_runs.leased == alone.leased
        assert in_runs.next_due_us() == alone.next_due_us()
        for owner in "ann", "bob":
            assert in_runs.owned(owner) == alone.owned(owner)
        assert [in_runs.attempts(offset) for offset in range(50)] == [
            alone.attempts(offset) for offset in range(50)
        ]
        read = LeaseStore.decode(in_runs.freeze(now_us).encode(), now_us)
        assert list(read.leases()) == list(alone.leases())
    in_runs.resume(now_us)
    alone.resume(now_us)
    assert list(in_runs.leases()) == list(alone.leases())
    in_runs.end_due(now_us + 100)
    alone.end_due(now_us + 100)
    assert in_runs.events == alone.events
