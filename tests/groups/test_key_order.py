# Tests: brokerd/groups/key_order.py, brokerd/groups/eligible.py
"""Key-ordered groups: one record of a key at a time, the lowest first, and others flow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.groups import (
    BLOCKED_MAX,
    EXAMINED_MAX,
    GONE,
    NO_KEY,
    RANGES_MAX,
    STOP,
    TAKE,
    UNKNOWN,
    GroupSettings,
    LeaseStore,
    gone_until,
)
from brokerd.walformat import EventKind

END = 12


def a_store(**settings: object) -> LeaseStore:
    return LeaseStore(GroupSettings(key_ordered=True, **settings))  # type: ignore[arg-type]


def by_letter(keys: str) -> Callable[[int], int]:
    """Keys by offset: letters, "." for none, "?" for a record that is not in memory."""
    return lambda offset: {".": NO_KEY, "?": UNKNOWN}.get(keys[offset], ord(keys[offset]))


def acquire(
    store: LeaseStore, keys: str, limit: int = 100, now_us: int = 0, **more: object
) -> list[int]:
    grants = store.acquire(
        now_us,
        len(keys),
        "ann",
        10,
        limit,
        key_of=by_letter(keys),
        **more,  # type: ignore[arg-type]
    )
    return [grant.offset for grant in grants]


def settle(store: LeaseStore, offset: int, success: bool = True, delay_us: int = 0) -> None:
    store.settle(0, 1 << 40, offset, success, "ann", delay_us=delay_us)


def again(store: LeaseStore, keys: str) -> LeaseStore:
    """The store after a restart."""
    return LeaseStore.decode(list(store.freeze(0).encode()), 0, store.settings)


class TestOrder:
    def test_one_record_of_a_key_is_given_and_those_without_key_flow(self) -> None:
        store = a_store()
        assert acquire(store, "aab.ba.") == [0, 2, 3, 6]
        assert store.blocked == 3
        assert acquire(store, "aab.ba.") == []

    def test_the_next_of_a_key_is_given_when_the_one_before_is_settled(self) -> None:
        store = a_store()
        acquire(store, "aaab")
        settle(store, 0)
        assert acquire(store, "aaab") == [1]
        settle(store, 1)
        assert acquire(store, "aaab") == [2]

    def test_a_record_that_failed_keeps_its_place(self) -> None:
        store = a_store()
        acquire(store, "aab")
        settle(store, 0, False)
        assert acquire(store, "aab") == [0]

    def test_nothing_overtakes_a_record_that_waits(self) -> None:
        store = a_store()
        acquire(store, "aab")
        settle(store, 0, False, delay_us=5)
        assert acquire(store, "aab") == []
        assert acquire(store, "aab", now_us=5) == [0]

    def test_a_record_whose_delay_ends_behind_another_goes_on_waiting(self) -> None:
        store = a_store()
        settle(store, 1, False, delay_us=5)
        assert acquire(store, "aa") == [0]
        assert acquire(store, "aa", now_us=6) == []
        settle(store, 0)
        assert acquire(store, "aa", now_us=6) == [1]

    def test_a_record_that_fails_before_the_lower_ones_are_looked_at_goes_behind_them(self) -> None:
        store = a_store()
        settle(store, 3, False)
        store.dead_letter(0, 4, 2, "")
        store.replay_dead()
        assert acquire(store, "bbaa") == [0, 2]
        settle(store, 2, False)
        assert acquire(store, "bbaa") == [2]

    def test_a_dead_letter_frees_its_key(self) -> None:
        store = a_store(max_attempts=1)
        acquire(store, "aab")
        settle(store, 0, False)
        assert acquire(store, "aab") == [1]

    def test_a_record_removed_while_it_is_held_is_never_given(self) -> None:
        store = a_store()
        acquire(store, "aaa")
        store.settle_range(1, 2)
        settle(store, 0)
        assert acquire(store, "aaa") == [2]

    def test_an_expired_record_frees_its_key_too(self) -> None:
        store = a_store()
        accept = [TAKE, GONE, GONE, TAKE].__getitem__
        assert acquire(store, "aaaa", accept=accept) == [0]
        settle(store, 0)
        assert acquire(store, "aaaa", accept=accept) == [3]
        assert store.events[-2:-1] == [(EventKind.SETTLED_RANGE, 1, 3, 0, 0, "", "")]

    def test_after_a_seek_one_of_a_key_is_given_at_a_time_lowest_first(self) -> None:
        store = a_store()
        for offset in range(3):
            assert acquire(store, "aaa") == [offset]
            settle(store, offset)
        store.seek(0)
        for offset in range(3):
            assert acquire(store, "aaa") == [offset]
            settle(store, offset)

    def test_a_record_replayed_from_the_dead_letters_goes_before_later_ones(self) -> None:
        store = a_store(max_attempts=1)
        acquire(store, "aaaa")
        settle(store, 0, False)
        assert acquire(store, "aaaa") == [1]
        store.replay_dead()
        assert acquire(store, "aaaa") == [], "1 is leased"
        settle(store, 1)
        assert acquire(store, "aaaa") == [0]

    def test_a_record_that_failed_before_it_was_leased_waits_for_those_before_it(self) -> None:
        store = a_store()
        settle(store, 2, False)
        assert acquire(store, "aaa") == [0]
        settle(store, 0)
        assert acquire(store, "aaa") == [1]
        settle(store, 1)
        assert acquire(store, "aaa") == [2]

    def test_a_lease_names_its_key_in_the_journal(self) -> None:
        store = a_store()
        acquire(store, "a.")
        assert [event[6] for event in store.events] == ["0000000000000061", ""]

    def test_an_acquire_without_keys_is_a_mistake_of_the_caller(self) -> None:
        with pytest.raises(ValueError, match="needs key_of"):
            a_store().acquire(0, 1, "ann", 10)


class TestKeysNotInMemory:
    def test_the_call_stops_at_a_record_that_is_not_in_memory(self) -> None:
        store = a_store()
        assert acquire(store, "ab?c") == [0, 1]
        assert not store.cut_short
        assert acquire(store, "abac") == [3]

    def test_nothing_is_given_before_the_key_of_what_came_back_is_known(self) -> None:
        store = a_store()
        settle(store, 2, False)
        assert acquire(store, "ab?") == []
        assert acquire(store, "aba") == [0, 1]


class TestRestart:
    def test_the_keys_of_leased_and_returned_records_are_kept(self) -> None:
        store = a_store()
        acquire(store, "aabb.")
        settle(store, 0, False, delay_us=5)
        store = again(store, "?a?b?")
        assert acquire(store, "?a?b?") == [], "nobody asks again for the keys that are known"
        assert store.blocked == 2
        settle(store, 2)
        assert acquire(store, "?a?b?") == [3]

    def test_replay_of_the_journal_gives_the_same_order(self) -> None:
        store, other = a_store(), a_store()
        acquire(store, "aab")
        for event in store.events:
            other.apply(event, 0)
        settle(other, 0)
        assert acquire(other, "?ab") == [1]


class TestSwitch:
    def test_switching_key_order_on_ends_leases_and_delays_without_a_failure(self) -> None:
        store = LeaseStore(GroupSettings())
        acquire(store, "aab")
        settle(store, 1, False, delay_us=100)
        before = len(store.events)
        store.configure(GroupSettings(key_ordered=True))
        assert len(store.events) == before + 1
        assert (store.leased, store.delayed, store.ready) == (0, 0, 3)
        assert [store.attempts(offset) for offset in range(3)] == [(1, 0), (1, 1), (1, 0)]
        assert acquire(store, "aab") == [0, 2]

    def test_switching_it_off_frees_blocked_records(self) -> None:
        store = a_store()
        acquire(store, "aab")
        store.configure(GroupSettings())
        assert acquire(store, "aab") == [0, 1, 2]

    def test_a_switch_forgets_no_record_that_was_replayed_out_of_a_settled_range(self) -> None:
        store = LeaseStore(GroupSettings())
        dead = [4500, *range(6 * 1024, 7 * 1024)]
        for offset in dead:
            store.dead_letter(0, 9000, offset, "bad")
        store.settle_range(4000, 9000)
        store.replay_dead()
        store.configure(GroupSettings(key_ordered=True))
        assert store.ready == len(dead)
        store.settle_range(0, 4000)
        assert acquire(store, "." * 9000, 2000) == dead

    def test_other_settings_end_no_lease(self) -> None:
        store = a_store()
        acquire(store, "aab")
        store.configure(GroupSettings(key_ordered=True, max_attempts=9))
        assert (store.leased, store.blocked) == (2, 1)


class TestBounds:
    def test_no_more_than_so_many_records_are_blocked(self) -> None:
        """Beyond them nothing new is looked at, but what is free is given."""
        store, end = a_store(), BLOCKED_MAX + 100
        keys = "a" * (BLOCKED_MAX + 1) + "b" * 99
        looked_at: list[int] = []

        def key_of(offset: int) -> int:
            looked_at.append(offset)
            return ord(keys[offset])

        given = []
        for _ in range(3):
            given += store.acquire(0, end, "ann", 10, 9, key_of=key_of)
        assert [grant.offset for grant in given] == [0]
        assert store.blocked == BLOCKED_MAX
        assert max(looked_at) == BLOCKED_MAX
        settle(store, 0)
        assert [g.offset for g in store.acquire(0, end, "ann", 10, 9, key_of=key_of)] == [
            1,
            BLOCKED_MAX + 1,
        ]

    def test_a_call_that_passed_over_too_many_records_says_so(self) -> None:
        store, keys = a_store(), "a" * (EXAMINED_MAX + 5) + "b"
        assert acquire(store, keys) == [0]
        assert store.cut_short
        store = LeaseStore(GroupSettings())
        accept = lambda offset: GONE if offset < EXAMINED_MAX + 5 else TAKE  # noqa: E731
        assert acquire(store, keys, accept=accept) == []
        assert store.cut_short
        assert acquire(store, keys, accept=accept) == [EXAMINED_MAX + 5]
        assert not store.cut_short

    def test_a_call_causes_few_events_about_what_is_gone(self) -> None:
        store = LeaseStore(GroupSettings())
        keys = "." * 1000
        accept = lambda offset: TAKE if offset % 2 else GONE  # noqa: E731
        acquire(store, keys, accept=accept)
        kinds = [event[0] for event in store.events]
        assert kinds.count(EventKind.SETTLED_RANGE) == RANGES_MAX
        assert store.cut_short

    def test_lines_forget_what_left_them(self) -> None:
        store = a_store()
        keys = "a" * 50
        for _ in range(50):
            acquire(store, keys)
            for offset in range(1, 50):
                store.dead_letter(0, 50, offset, "")
            store.replay_dead()
            acquire(store, keys)
        assert store._order is not None
        assert sum(map(len, store._order._behind.values())) <= 3 * 50 + 64


class TestGone:
    def test_removed_records_are_settled_by_one_event_and_passed_over(self) -> None:
        store = LeaseStore(GroupSettings())
        accept = [TAKE, GONE, GONE, GONE, TAKE, STOP, TAKE].__getitem__
        assert acquire(store, "." * 7, accept=accept) == [0, 4]
        ranges = [event for event in store.events if event[0] == EventKind.SETTLED_RANGE]
        assert ranges == [(EventKind.SETTLED_RANGE, 1, 4, 0, 0, "", "")]
        other = LeaseStore(GroupSettings())
        for event in store.events:
            other.apply(event, 0)
        assert other.lag(7) == store.lag(7) == 4

    def test_a_hole_is_passed_over_in_one_go_and_ends_what_is_in_it(self) -> None:
        """Leases, delays and the order of keys among them; the end of the partition bounds it."""
        store = LeaseStore(GroupSettings(key_ordered=True))
        acquire(store, "aab", limit=1)
        acquire(store, "aab", limit=1)
        looked_at = []

        def accept(offset: int) -> int:
            looked_at.append(offset)
            return TAKE if offset == 9_999 else gone_until(9_999)

        settle(store, 0, False)
        keys = "aab" + "." * 9_997
        assert acquire(store, keys, accept=accept) == [9_999]
        assert looked_at == [0, 9_999]
        assert store.events[-2] == (EventKind.SETTLED_RANGE, 0, 9_999, 0, 0, "", "")
        assert (store.floor, store.leased) == (9_999, 1)
        assert acquire(store, keys + "a" * 5, accept=lambda offset: gone_until(1 << 40)) == []
        assert store.events[-1] == (EventKind.SETTLED_RANGE, 10_000, 10_005, 0, 0, "", "")

    def test_what_is_settled_in_between_does_not_part_a_range(self) -> None:
        store = LeaseStore(GroupSettings())
        settle(store, 1)
        acquire(store, "...", accept=lambda offset: GONE)
        assert [event[0] for event in store.events] == [
            EventKind.SETTLED,
            EventKind.SETTLED_RANGE,
        ]
        assert store.floor == 3

    def test_a_record_that_came_back_and_expired_is_gone_as_well(self) -> None:
        store = LeaseStore(GroupSettings())
        acquire(store, "..", limit=1)
        settle(store, 0, False)
        assert acquire(store, "..", accept=[GONE, TAKE].__getitem__) == [1]
        assert store.floor == 1

    def test_what_was_passed_over_is_written_down_when_the_caller_fails(self) -> None:
        store = LeaseStore(GroupSettings())

        def accept(offset: int) -> int:
            if offset == 2:
                raise KeyError
            return GONE

        with pytest.raises(KeyError):
            acquire(store, "...", accept=accept)
        assert store.events == [(EventKind.SETTLED_RANGE, 0, 2, 0, 0, "", "")]
