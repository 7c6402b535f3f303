# Tests: brokerd/groups/store.py, brokerd/groups/state.py
"""The rules of docs/leases.rst, one by one, as a worker or an operator meets them."""

from __future__ import annotations

import tracemalloc
from itertools import islice

import pytest

from brokerd.errors import DamagedData, LeaseLost, NewerFormat, NotLeaseOwner, UnknownOffset
from brokerd.groups import MAX_DURATION_US, DeadLetter, GroupSettings, Lease, LeaseStore
from brokerd.groups.view import LEASE_MEMORY, OWNER_MEMORY, REASON_MEMORY, STORE_MEMORY
from brokerd.values import Grant
from brokerd.walformat import EventKind

SECOND = 1_000_000
END = 10


def a_store(**settings: object) -> LeaseStore:
    return LeaseStore(GroupSettings(**settings))  # type: ignore[arg-type]


def offsets(grants: list[Grant]) -> list[int]:
    return [grant.offset for grant in grants]


def kinds(store: LeaseStore) -> list[str]:
    return [EventKind(event[0]).name for event in store.events]


class TestAcquire:
    def test_gives_each_record_once_lowest_first(self) -> None:
        store = a_store()
        assert offsets(store.acquire(0, END, "ann", SECOND)) == [0]
        assert offsets(store.acquire(0, END, "ann", SECOND)) == [1]
        assert offsets(store.acquire(0, END, "bob", SECOND, limit=3)) == [2, 3, 4]

    def test_stops_at_the_end_of_the_partition(self) -> None:
        store = a_store()
        assert offsets(store.acquire(0, 2, "ann", SECOND, limit=5)) == [0, 1]
        assert store.acquire(0, 2, "ann", SECOND) == []
        assert offsets(store.acquire(0, 3, "ann", SECOND)) == [2]

    def test_an_empty_partition_or_a_limit_of_zero_gives_nothing(self) -> None:
        store = a_store()
        assert store.acquire(0, 0, "ann", SECOND) == []
        assert store.acquire(0, END, "ann", SECOND, limit=0) == []
        assert store.events == []

    def test_a_grant_tells_token_attempts_and_duration(self) -> None:
        store = a_store()
        assert store.acquire(0, END, "ann", SECOND) == [Grant(0, 1, 1, 0, SECOND)]
        store.settle(0, END, 0, False, "ann")
        assert store.acquire(0, END, "ann", SECOND) == [Grant(0, 2, 2, 1, SECOND)]

    def test_skips_settled_and_dead_records_ahead_of_it(self) -> None:
        store = a_store()
        store.settle(0, END, 1, True, "ann")
        store.dead_letter(0, END, 2, "too_large")
        store.settle_range(4, 6)
        assert offsets(store.acquire(0, END, "ann", SECOND, limit=END)) == [0, 3, 6, 7, 8, 9]

    def test_a_record_that_came_back_goes_before_newer_ones(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", SECOND, limit=3)
        store.settle(0, END, 1, False, "ann")
        assert offsets(store.acquire(0, END, "bob", SECOND, limit=2)) == [1, 3]

    def test_asks_before_each_lease_and_stops_at_the_first_refusal(self) -> None:
        store = a_store()
        asked: list[int] = []

        def accept(offset: int) -> bool:
            asked.append(offset)
            return offset != 2

        assert offsets(store.acquire(0, END, "ann", SECOND, END, accept)) == [0, 1]
        assert asked == [0, 1, 2]
        assert store.leased == len(store.events) == 2
        assert offsets(store.acquire(0, END, "bob", SECOND)) == [2]

    def test_the_event_says_who_for_how_long_and_which_grant(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", SECOND)
        assert store.events == [(EventKind.LEASED, 0, SECOND, 1, 1, "ann", "")]

    def test_an_endless_duration_is_cut(self) -> None:
        (grant,) = a_store().acquire(0, END, "ann", 1 << 80)
        assert grant.duration_us == MAX_DURATION_US


class TestDeadline:
    def test_a_lease_lapses_strictly_after_its_deadline(self) -> None:
        store = a_store()
        store.acquire(0, 1, "ann", 10)
        assert store.acquire(10, 1, "bob", 10) == []
        assert offsets(store.acquire(11, 1, "bob", 10)) == [0]

    @pytest.mark.parametrize("duration_us", [0, -5])
    def test_no_duration_lapses_at_once_at_the_same_microsecond_too(self, duration_us: int) -> None:
        store = a_store()
        tokens = [store.acquire(7, END, "ann", duration_us)[0][:2] for _ in range(3)]
        assert tokens == [(0, 1), (0, 2), (0, 3)]

    def test_one_acquire_never_gives_the_same_record_twice(self) -> None:
        assert offsets(a_store().acquire(0, END, "ann", 0, limit=3)) == [0, 1, 2]

    def test_expiry_is_an_event_and_counts_no_failure(self) -> None:
        store = a_store(max_attempts=1)
        store.acquire(0, 1, "ann", 10)
        assert store.end_due(11) == 1
        assert kinds(store) == ["LEASED", "EXPIRED"]
        assert store.attempts(0) == (1, 0)
        assert store.ready == 1

    def test_the_next_due_time_is_the_first_at_which_expire_does_something(self) -> None:
        store = a_store()
        assert store.next_due_us() is None
        store.acquire(0, END, "ann", 10)
        store.acquire(0, END, "bob", 5)
        assert store.next_due_us() == 6
        assert store.end_due(5) == 0
        assert store.end_due(6) == 1
        assert store.next_due_us() == 11
        store.settle(6, END, 0, False, "ann", delay_us=3)
        assert store.next_due_us() == 9
        assert (store.end_due(8), store.delayed, store.ready) == (0, 1, 1)
        assert (store.end_due(9), store.delayed, store.ready) == (1, 0, 2)
        assert store.next_due_us() is None

    def test_extending_moves_the_deadline_either_way(self) -> None:
        store = a_store()
        store.acquire(0, 1, "ann", 10)
        assert store.extend(5, 0, 100, "ann") == 100
        assert store.end_due(105) == 0
        assert store.extend(105, 0, 1, "ann") == 1
        assert store.end_due(107) == 1

    def test_extending_a_lapsed_or_foreign_lease_is_refused(self) -> None:
        store = a_store()
        store.acquire(0, 1, "ann", 10)
        with pytest.raises(NotLeaseOwner):
            store.extend(5, 0, 10, "bob")
        with pytest.raises(LeaseLost):
            store.extend(5, 0, 10, "ann", token=99)
        with pytest.raises(LeaseLost, match="offset 0"):
            store.extend(11, 0, 10, "ann")
        with pytest.raises(LeaseLost):
            store.extend(11, 5, 10, "ann")

    def test_an_expiry_passes_over_a_bounded_number_of_old_deadlines(self) -> None:
        store = a_store()
        store.acquire(0, 1_000, "ann", SECOND, 1_000)
        for offset in range(999):
            store.extend(1, offset, 100 * SECOND, "ann")
        calls = 1
        while not store.end_due(2 * SECOND, 4):
            assert store.next_due_us() is not None
            calls += 1
        assert calls > 1
        assert store.leased == 999

    def test_many_extensions_leave_no_pile_of_old_deadlines(self) -> None:
        store = a_store()
        store.acquire(0, 1, "ann", SECOND)
        for now_us in range(10_000):
            store.extend(now_us, 0, SECOND, "ann")
            store.events.clear()
        assert len(store._deadlines.heap) < 3_000
        assert store.next_due_us() == 9_999 + SECOND + 1


class TestSettleByOwner:
    def test_a_settled_record_never_comes_again(self) -> None:
        store = a_store()
        store.acquire(0, 2, "ann", 10)
        assert store.settle(0, 2, 0, True, "ann") is True
        assert offsets(store.acquire(100, 2, "ann", 10, limit=5)) == [1]

    def test_another_owner_is_refused_while_the_lease_lives(self) -> None:
        store = a_store()
        store.acquire(0, 1, "ann", 10)
        with pytest.raises(
            NotLeaseOwner, match=r"^Client does not own the lease for this message$"
        ):
            store.settle(10, 1, 0, True, "bob")
        assert kinds(store) == ["LEASED"]

    @pytest.mark.parametrize("owner", ["ann", "bob"])
    def test_after_the_lease_lapsed_anyone_may_settle(self, owner: str) -> None:
        store = a_store()
        store.acquire(0, 1, "ann", 10)
        assert store.settle(11, 1, 0, True, owner) is True
        assert store.lag(1) == 0

    def test_a_settle_of_leased_records_alone_comes_too_late_after_the_lease(self) -> None:
        store = a_store()
        store.acquire(0, 4, "ann", 10, limit=3)
        store.settle_leased(10, 0)
        with pytest.raises(LeaseLost):
            store.settle_leased(10, 0)
        with pytest.raises(LeaseLost):
            store.settle_leased(11, 1)
        with pytest.raises(LeaseLost):
            store.settle_leased(11, 3)
        assert kinds(store) == ["LEASED"] * 3 + ["SETTLED", "EXPIRED"]
        assert offsets(store.acquire(12, 3, "bob", 10, limit=9)) == [1, 2]

    def test_a_late_owner_is_refused_once_another_holds_the_record(self) -> None:
        store = a_store()
        store.acquire(0, 1, "ann", 10)
        store.acquire(11, 1, "bob", 10)
        with pytest.raises(NotLeaseOwner):
            store.settle(12, 1, 0, True, "ann")

    def test_a_record_never_leased_can_be_settled(self) -> None:
        store = a_store()
        assert store.settle(0, 3, 1, True, "ann") is True
        assert offsets(store.acquire(0, 3, "bob", 10, limit=3)) == [0, 2]

    @pytest.mark.parametrize("success", [True, False])
    def test_settling_again_changes_nothing(self, success: bool) -> None:
        store = a_store()
        store.acquire(0, 1, "ann", 10)
        store.settle(0, 1, 0, True, "ann")
        store.events.clear()
        assert store.settle(0, 1, 0, success, "ann") is False
        assert store.settle(0, 1, 0, success, "bob") is False
        assert store.events == []

    @pytest.mark.parametrize("offset", [-1, 3, 1 << 62])
    def test_an_offset_that_was_never_assigned_is_an_error(self, offset: int) -> None:
        store = a_store()
        with pytest.raises(UnknownOffset, match=f"offset {offset} .* next offset .* is 3"):
            store.settle(0, 3, offset, True, "ann")
        with pytest.raises(UnknownOffset):
            store.dead_letter(0, 3, offset, "why")
        assert store.lag(4) == 4


class TestSettleByToken:
    def test_needs_the_token_of_the_live_lease(self) -> None:
        store = a_store()
        (grant,) = store.acquire(0, 1, "ann", 10)
        with pytest.raises(LeaseLost):
            store.settle(0, 1, 0, True, token=grant.token + 1)
        assert store.settle(0, 1, 0, True, token=grant.token) is True
        assert store.settle(0, 1, 0, True, token=grant.token) is False

    def test_a_late_settle_is_accepted_while_nobody_else_took_the_record(self) -> None:
        store = a_store()
        (grant,) = store.acquire(0, 1, "ann", 10)
        store.end_due(11)
        assert store.settle(12, 1, 0, True, token=grant.token) is True

    def test_an_older_token_is_lost(self) -> None:
        store = a_store()
        (old,) = store.acquire(0, 1, "ann", 10)
        (new,) = store.acquire(11, 1, "ann", 10)
        with pytest.raises(LeaseLost):
            store.settle(12, 1, 0, True, token=old.token)
        store.end_due(100)
        with pytest.raises(LeaseLost):
            store.settle(100, 1, 0, True, token=old.token)
        assert store.settle(100, 1, 0, True, token=new.token) is True

    def test_a_record_never_leased_has_no_token(self) -> None:
        with pytest.raises(LeaseLost):
            a_store().settle(0, 1, 0, True, token=0)


class TestFailure:
    def test_the_third_failure_makes_a_dead_letter_in_one_event(self) -> None:
        store = a_store(max_attempts=3)
        for _ in range(3):
            store.acquire(0, 1, "ann", 10)
            assert store.settle(0, 1, 0, False, "ann") is True
        assert kinds(store)[-3:] == ["FAILED", "LEASED", "DEAD"]
        assert store.events[-1][4:] == (3, "", "max_attempts")
        assert list(store.dead_letters()) == [DeadLetter(0, "max_attempts", 3, 3, 0, 0)]
        assert store.lag(1) == 0
        assert store.acquire(100, 1, "ann", 10) == []
        assert store.settle(100, 1, 0, False, "ann") is False

    @pytest.mark.parametrize(("reason", "told"), [("no customer", "no customer"), ("", "given_up")])
    def test_a_worker_may_give_a_record_up(self, reason: str, told: str) -> None:
        """At its first attempt, with or without a reason; resent it changes nothing."""
        store = a_store()
        store.acquire(0, END, "ann", SECOND)
        assert store.settle(0, END, 0, False, "ann", reason=reason, dead=True)
        assert not store.settle(0, END, 0, False, "ann", reason=reason, dead=True)
        (letter,) = store.dead_letters()
        assert (letter.offset, letter.reason, letter.grants, letter.failures) == (0, told, 1, 1)
        assert kinds(store) == ["LEASED", "DEAD"]

    def test_only_who_may_settle_a_record_may_give_it_up(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", SECOND)
        with pytest.raises(NotLeaseOwner):
            store.settle(0, END, 0, False, "bob", dead=True)
        with pytest.raises(LeaseLost):
            store.settle(0, END, 0, False, token=7, dead=True)
        assert store.settle(0, END, 0, True, "ann", dead=True)
        assert store.dead == 0

    def test_a_record_that_failed_may_still_be_given_up(self) -> None:
        """By the same grant; its failure counts once."""
        store = a_store()
        (grant,) = store.acquire(0, END, "ann", SECOND)
        store.settle(0, END, 0, False, token=grant.token, delay_us=SECOND)
        assert store.settle(0, END, 0, False, token=grant.token, reason="bad", dead=True)
        (letter,) = store.dead_letters()
        assert (letter.reason, letter.failures) == ("bad", 1)

    def test_the_dead_letter_keeps_the_reason_the_worker_gave(self) -> None:
        store = a_store(max_attempts=1)
        store.settle(0, 1, 0, False, reason="bad key")
        assert list(store.dead_letters()) == [DeadLetter(0, "bad key", 0, 1, 0, 0)]

    def test_counts_once_a_grant_however_often_it_is_sent(self) -> None:
        store = a_store()
        store.acquire(0, 1, "ann", 10)
        assert store.settle(0, 1, 0, False, "ann") is True
        assert store.settle(0, 1, 0, False, "ann") is False
        assert store.attempts(0) == (1, 1)

    def test_a_late_failure_counts_after_expiry_and_once(self) -> None:
        store = a_store()
        store.acquire(0, 1, "ann", 10)
        assert store.settle(20, 1, 0, False, "ann") is True
        assert store.settle(20, 1, 0, False, "ann") is False
        assert kinds(store) == ["LEASED", "EXPIRED", "FAILED"]
        assert store.attempts(0) == (1, 1)

    def test_each_grant_may_fail_once(self) -> None:
        store = a_store(max_attempts=9)
        for grants in range(1, 5):
            store.acquire(grants * 100, 1, "ann", 10)
            store.end_due(grants * 100 + 50)
            assert store.settle(grants * 100 + 50, 1, 0, False, "ann") is True
            assert store.settle(grants * 100 + 50, 1, 0, False, "ann") is False
            assert store.attempts(0) == (grants, grants)

    def test_a_record_never_leased_fails_once(self) -> None:
        store = a_store()
        assert store.settle(0, 2, 1, False, "ann") is True
        assert store.settle(0, 2, 1, False, "ann") is False
        assert store.attempts(1) == (0, 1)
        assert store.acquire(0, 2, "bob", 10, limit=2)[1] == Grant(1, 2, 1, 1, 10)

    def test_waits_for_the_back_off_which_doubles_up_to_its_bound(self) -> None:
        store = a_store(max_attempts=10, backoff_base_us=100, backoff_max_us=350)
        waits = []
        now_us = 0
        for _ in range(4):
            store.acquire(now_us, 1, "ann", 10)
            store.settle(now_us, 1, 0, False, "ann")
            waits.append((store.next_due_us() or 0) - now_us)
            now_us += waits[-1]
        assert waits == [100, 200, 350, 350]

    def test_an_explicit_delay_is_taken_instead_of_the_back_off(self) -> None:
        store = a_store(backoff_base_us=100)
        store.acquire(0, 1, "ann", 10)
        store.settle(0, 1, 0, False, "ann", delay_us=5)
        assert store.acquire(4, 1, "bob", 10) == []
        assert offsets(store.acquire(5, 1, "bob", 10)) == [0]
        store.settle(5, 1, 0, False, "bob", delay_us=0)
        assert store.ready == 1

    def test_a_delayed_record_lets_newer_ones_pass(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", 10)
        store.settle(0, END, 0, False, "ann", delay_us=5)
        assert offsets(store.acquire(0, END, "ann", 10)) == [1]
        assert offsets(store.acquire(5, END, "ann", 10, limit=2)) == [0, 2]

    def test_an_expired_record_that_failed_before_waits_from_its_deadline(self) -> None:
        store = a_store(backoff_base_us=100)
        store.settle(0, 1, 0, False)
        store.acquire(100, 1, "ann", 10)
        store.end_due(150)
        assert store.next_due_us() == 210


class TestGrantsCount:
    def test_a_record_that_comes_back_from_its_last_grant_by_expiry_is_dead(self) -> None:
        store = a_store(max_attempts=2, attempts="grants")
        store.acquire(0, 1, "ann", 10)
        assert offsets(store.acquire(11, 1, "ann", 10)) == [0]
        assert store.acquire(22, 1, "ann", 10) == []
        assert kinds(store) == ["LEASED", "EXPIRED", "LEASED", "DEAD"]
        assert list(store.dead_letters()) == [DeadLetter(0, "max_attempts", 2, 0, 0, 21)]

    def test_a_failure_of_the_last_grant_is_dead_too(self) -> None:
        store = a_store(max_attempts=2, attempts="grants")
        store.acquire(0, 1, "ann", 10)
        store.acquire(11, 1, "ann", 10)
        store.settle(11, 1, 0, False, "ann")
        assert list(store.dead_letters()) == [DeadLetter(0, "max_attempts", 2, 1, 0, 11)]

    def test_the_end_of_a_spent_lease_is_not_before_its_beginning(self) -> None:
        store = a_store(max_attempts=1, attempts="grants")
        store.acquire(7, 1, "ann", 0)
        store.end_due(9)
        assert list(store.dead_letters()) == [DeadLetter(0, "max_attempts", 1, 0, 7, 7)]

    def test_a_settle_after_the_last_grant_lapsed_comes_too_late(self) -> None:
        store = a_store(max_attempts=1, attempts="grants")
        store.acquire(0, 1, "ann", 10)
        assert store.settle(11, 1, 0, True, "ann") is False
        assert store.dead == 1

    @pytest.mark.parametrize("key_ordered", [False, True])
    def test_each_further_lease_may_last_twice_as_long(self, key_ordered: bool) -> None:
        store = a_store(
            max_attempts=9, attempts="grants", lease_doubling=True, key_ordered=key_ordered
        )
        now_us, lasted = 0, []
        for _ in range(4):
            (grant,) = store.acquire(now_us, 1, "ann", 10, key_of=lambda offset: 7)
            lasted.append(grant.duration_us)
            assert store.acquire(now_us + grant.duration_us, 1, "ann", 10, key_of=int) == []
            now_us += grant.duration_us + 1
        assert lasted == [10, 20, 40, 80]
        assert [event[2] for event in store.events if event[0] == EventKind.LEASED] == lasted

    def test_a_record_that_was_never_leased_has_the_first_lease_again(self) -> None:
        store = a_store(lease_doubling=True)
        store.acquire(0, 2, "ann", 10)
        grants = store.acquire(11, 2, "ann", 10, limit=2)
        assert [(grant.offset, grant.duration_us) for grant in grants] == [(0, 20), (1, 10)]

    def test_a_release_of_the_last_grant_is_no_attempt_that_failed(self) -> None:
        store = a_store(max_attempts=1, attempts="grants")
        store.acquire(0, 1, "ann", 10)
        store.release(0, 0, "ann")
        assert store.acquire(0, 1, "ann", 10) == [Grant(0, 2, 2, 0, 10)]


class TestRelease:
    def test_gives_the_record_back_without_a_failure(self) -> None:
        store = a_store()
        store.acquire(0, 1, "ann", 10)
        store.release(0, 0, "ann")
        assert store.acquire(0, 1, "bob", 10) == [Grant(0, 2, 2, 0, 10)]

    def test_after_a_delay_if_asked(self) -> None:
        store = a_store()
        (grant,) = store.acquire(0, 1, "ann", 10)
        store.release(0, 0, token=grant.token, delay_us=5)
        assert store.acquire(4, 1, "bob", 10) == []
        assert offsets(store.acquire(5, 1, "bob", 10)) == [0]

    def test_only_a_live_lease_of_ones_own(self) -> None:
        store = a_store()
        store.acquire(0, 1, "ann", 10)
        with pytest.raises(NotLeaseOwner):
            store.release(0, 0, "bob")
        with pytest.raises(LeaseLost):
            store.release(11, 0, "ann")

    def test_all_of_an_owner_and_nobody_elses(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", 10, limit=2)
        store.acquire(0, END, "bob", 10)
        store.acquire(0, END, "ann", 10)
        assert store.release_owner(0, "ann") == 3
        assert [lease.offset for lease in store.leases()] == [2]
        assert offsets(store.acquire(0, END, "cid", 10, limit=4)) == [0, 1, 3, 4]
        assert store.release_owner(0, "ann") == 0

    def test_an_owner_who_holds_nothing_leaves_no_trace(self) -> None:
        store = a_store()
        for number in range(END):
            store.acquire(0, END, f"worker {number}", 10)
            store.settle(0, END, number, True)
        assert store._owners == {}

    def test_of_an_owner_counts_only_what_still_lived(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", 10)
        store.acquire(5, END, "ann", 10)
        assert store.release_owner(12, "ann") == 1
        assert kinds(store)[2:] == ["EXPIRED", "RELEASED"]


class TestDeadLetter:
    def test_ends_the_lease_and_settles_the_record(self) -> None:
        store = a_store()
        store.acquire(0, 2, "ann", 10)
        assert store.dead_letter(0, 2, 0, "too_large") is True
        assert store.leased == 0
        assert store.floor == 1
        assert store.dead_letter(0, 2, 0, "again") is False
        assert list(store.dead_letters()) == [DeadLetter(0, "too_large", 1, 0, 0, 0)]

    def test_are_listed_from_an_offset_on(self) -> None:
        store = a_store()
        for offset in (700, 3, 260):
            store.dead_letter(0, 1000, offset, f"r{offset}")
        assert [letter[:2] for letter in store.dead_letters(4)] == [(260, "r260"), (700, "r700")]


class TestFloor:
    def test_moves_over_consecutive_settled_records(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", 10, limit=5)
        for offset, floor in ((1, 0), (3, 0), (0, 2), (2, 4)):
            store.settle(0, END, offset, True, "ann")
            assert store.floor == floor
        assert store.lag(END) == 6
        assert store.oldest_unsettled(END) == 4

    def test_lag_counts_what_is_not_settled(self) -> None:
        store = a_store()
        assert (store.lag(0), store.oldest_unsettled(0)) == (0, None)
        store.settle(0, END, 5, True)
        assert (store.lag(END), store.oldest_unsettled(END)) == (9, 0)
        store.settle_range(0, END)
        assert (store.lag(END), store.oldest_unsettled(END)) == (0, None)

    def test_crosses_whole_words_at_once(self) -> None:
        store = a_store()
        store.settle_range(1, 1_000_000)
        assert store.floor == 0
        assert store.lag(1_000_001) == 2
        store.settle(0, 1_000_001, 0, True)
        assert store.floor == 1_000_000
        assert store.lag(1_000_001) == 1

    def test_a_removed_range_ends_the_leases_and_attempts_in_it(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", 10, limit=4)
        store.settle(0, END, 2, False)
        store.settle(0, END, 3, False, delay_us=5)
        store.settle_range(1, 4)
        assert [lease.offset for lease in store.leases()] == [0]
        assert (store.ready, store.delayed, store.next_due_us()) == (0, 0, 11)
        assert [store.attempts(offset) for offset in range(4)] == [(1, 0)] + [(0, 0)] * 3
        assert store.settle(0, END, 1, True, "bob") is False

    def test_a_range_already_settled_is_no_event(self) -> None:
        store = a_store()
        store.settle_range(0, 5)
        store.events.clear()
        store.settle_range(-3, 5)
        store.settle_range(7, 7)
        assert store.events == []


class TestSeek:
    def test_back_makes_settled_and_dead_records_new(self) -> None:
        store = a_store(max_attempts=1)
        store.acquire(0, END, "ann", 10, limit=4)
        store.settle(0, END, 0, True, "ann")
        store.settle(0, END, 1, False, "ann")
        store.seek(0)
        assert (store.leased, store.dead, store.lag(END)) == (0, 0, END)
        grants = store.acquire(0, END, "bob", 10, limit=END)
        assert [grant[2:4] for grant in grants] == [(1, 0)] * 2 + [(2, 0)] * 2 + [(1, 0)] * 6
        assert grants[0].token == 5

    def test_forward_leaves_what_is_below_and_keeps_its_dead_letters(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", 10, limit=2)
        store.dead_letter(0, END, 2, "why")
        store.seek(5)
        assert (store.floor, store.leased, store.dead) == (5, 0, 1)
        assert offsets(store.acquire(0, END, "ann", 10)) == [5]

    def test_a_worker_of_before_may_still_fail_its_record_once(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", 10)
        store.seek(0)
        assert store.settle(0, END, 0, False, "ann") is True
        assert store.settle(0, END, 0, False, "ann") is False

    def test_ends_delays(self) -> None:
        store = a_store()
        store.settle(0, END, 3, False, delay_us=SECOND)
        store.seek(2)
        assert (store.delayed, store.ready, store.next_due_us()) == (0, 1, None)
        assert offsets(store.acquire(0, END, "ann", 10, limit=3)) == [2, 3, 4]


class TestCommittedOffset:
    def test_is_a_number_of_its_own(self) -> None:
        store = a_store()
        assert store.committed == -1
        store.commit_offset(7)
        assert (store.committed, store.floor, store.lag(END)) == (7, 0, END)
        store.settle_range(0, END)
        store.seek(3)
        assert store.committed == 7
        store.commit_offset(2)
        assert store.committed == 2


class TestSettingsAndDeletion:
    def test_new_settings_hold_from_then_on(self) -> None:
        store = a_store(max_attempts=1)
        store.settle(0, END, 0, False)
        store.configure(GroupSettings(max_attempts=2))
        store.settle(0, END, 1, False)
        assert [letter.offset for letter in store.dead_letters()] == [0]

    def test_a_deleted_group_starts_over_but_its_tokens_do_not(self) -> None:
        store = a_store(max_attempts=1)
        (old,) = store.acquire(0, END, "ann", 10)
        store.dead_letter(0, END, 4, "why")
        store.settle(0, END, 2, True)
        store.commit_offset(3)
        store.delete()
        assert (store.floor, store.leased, store.dead, store.committed) == (0, 0, 0, -1)
        (new,) = store.acquire(0, END, "ann", 10)
        assert (new.offset, new.grants) == (0, 1)
        assert new.token > old.token


class TestPause:
    def test_a_paused_group_gives_nothing_and_all_else_goes_on(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", 10, limit=2)
        store.pause()
        assert store.paused
        assert store.acquire(0, END, "bob", 10) == []
        assert store.settle(0, END, 0, True, "ann") is True
        assert store.acquire(11, END, "bob", 10) == []
        assert store.leased == 0, "leases lapse"
        store.unpause()
        assert offsets(store.acquire(11, END, "bob", 10)) == [1]

    def test_pausing_twice_is_one_event(self) -> None:
        store = a_store()
        for _ in range(2):
            store.pause()
        for _ in range(2):
            store.unpause()
        assert kinds(store) == ["PAUSED", "RESUMED"]

    def test_a_pause_survives_a_restart(self) -> None:
        store = a_store()
        store.pause()
        assert LeaseStore.decode(list(store.freeze().encode())).paused


class TestTakenFromTheDead:
    def dead(self, reasons: str) -> LeaseStore:
        """A store whose records died of reasons by letters; none for a dot."""
        store = a_store()
        for offset, reason in enumerate(reasons):
            store.acquire(0, END, "ann", 10)
            if reason != ".":
                store.dead_letter(0, END, offset, reason)
        store.events.clear()
        return store

    def test_a_replayed_record_begins_anew(self) -> None:
        store = self.dead("ab")
        assert store.replay_dead(0, 1) == 1
        assert (store.floor, store.dead, store.lag(2), store.ready) == (0, 1, 1, 1)
        assert store.attempts(0) == (0, 0)
        assert store.acquire(50, 2, "bob", 10) == [Grant(0, 3, 1, 0, 10)]
        assert next(store.leases()).first_attempt_us == 50

    def test_a_token_from_before_its_death_does_not_settle_it(self) -> None:
        store = self.dead("a")
        store.replay_dead()
        with pytest.raises(LeaseLost):
            store.settle(0, END, 0, True, token=1)

    def test_all_of_a_range_are_one_event_whatever_lies_between(self) -> None:
        store = self.dead("a.bba.a")
        assert store.replay_dead() == 5
        assert store.events == [(EventKind.REPLAYED, 0, 7, 0, 0, "", "")]

    def test_by_reason(self) -> None:
        store = self.dead("abab")
        assert store.purge_dead(reason="b") == 2
        assert [letter.offset for letter in store.dead_letters()] == [0, 2]
        assert store.events == [(EventKind.PURGED, 1, 4, 0, 0, "", "b")]
        assert store.purge_dead(reason="nobody died of it") == 0

    def test_those_only_whose_last_attempt_was_before(self) -> None:
        store = a_store()
        for offset, now_us in enumerate([1, 1, 7, 1, 1]):
            store.dead_letter(now_us, 1_000, offset, "a")
        store.dead_letter(7, 1_000, 700, "b")
        store.dead_letter(1, 1_000, 701, "a")
        store.events.clear()
        assert store.replay_dead(reason="a", before_us=7) == 5
        assert [event[1:3] for event in store.events] == [(0, 2), (3, 702)]
        assert [letter.offset for letter in store.dead_letters()] == [2, 700]

    def test_what_a_replay_takes_is_known_before_and_can_be_bounded(self) -> None:
        store = a_store()
        for offset in range(0, 256 * 100, 128):
            store.dead_letter(offset % 256, 256 * 100, offset, "a")
        runs, left = store.dead_runs(budget=10_000)
        assert (len(runs), left > 0) == (1, True)
        runs, left = store.dead_runs(budget=500)
        assert (len(runs), left > 0) == (1, False)
        assert runs[0][1] < 256 * 100
        runs, left = store.dead_runs(before_us=100, budget=1 << 30)
        assert (len(runs), 1 << 30 > left > (1 << 30) - 20_000) == (100, True)
        runs, left = store.dead_runs(before_us=100, budget=1_000)
        assert (0 < len(runs) < 20, left > 0) == (True, False)
        assert len(store.dead_runs(budget=99)[0]) == 1, "what there was no time for comes later"
        assert store.dead_runs(0, 256, budget=99)[0] == [(0, 129)]

    def test_each_letter_counts_in_a_key_ordered_group(self) -> None:
        costs = []
        for key_ordered in (False, True):
            store = a_store(key_ordered=key_ordered)
            for offset in range(5):
                store.dead_letter(0, END, offset, "a")
            costs.append(1_000 - store.dead_runs(budget=1_000)[1])
        assert costs[1] > costs[0] + 10

    def test_a_purged_record_stays_settled(self) -> None:
        store = self.dead("aaa")
        assert store.purge_dead(1) == 2
        assert (store.floor, store.dead) == (3, 1)
        assert offsets(store.acquire(0, 4, "bob", 10, limit=9)) == [3]

    def test_reasons_are_forgotten_with_the_last_dead_letter(self) -> None:
        store = a_store()
        for offset in range(100):
            store.dead_letter(0, 100, offset, f"reason {offset}")
        size = sum(map(len, store.freeze().encode()))
        store.purge_dead()
        assert sum(map(len, store.freeze().encode())) < size - 1000

    @pytest.mark.parametrize("end", ["purge", "replay", "seek", "delete"])
    def test_a_reason_is_forgotten_with_the_last_letter_that_has_it(self, end: str) -> None:
        store = a_store()
        for offset in range(300):
            store.dead_letter(0, 300, offset, f"reason {offset}")
        store.dead_letter(0, 301, 300, "reason 7")
        if end == "purge":
            store.purge_dead(0, 7)
            store.purge_dead(8, 300)
        elif end == "replay":
            store.replay_dead(0, 300)
        elif end == "seek":
            store.seek(8)
        else:
            store.delete()
        encoded = b"".join(store.freeze().encode())
        kept = range(8) if end == "seek" else ()
        assert [n for n in range(300) if b'"reason %d"' % n in encoded] == [
            n for n in range(300) if n in kept or (n == 7 and end != "delete")
        ]
        again = LeaseStore.decode(encoded)
        assert list(again.dead_letters()) == list(store.dead_letters())
        for one in (store, again):
            one.dead_letter(0, 400, 350, "new")
            one.dead_letter(0, 400, 351, "reason 7")
        assert list(again.dead_letters()) == list(store.dead_letters())
        assert b"".join(again.freeze().encode()) == b"".join(store.freeze().encode())

    def test_a_snapshot_whose_letter_names_no_reason_is_refused(self) -> None:
        store = a_store()
        store.dead_letter(0, END, 3, "bad")
        chunks = [chunk for chunk in store.freeze().encode() if b'"bad"' not in chunk]
        chunks[-1] = chunks[-1][:-4] + bytes([len(chunks) - 1, 0, 0, 0])
        with pytest.raises(DamagedData, match="a dead letter has an unknown reason"):
            LeaseStore.decode(chunks)

    def test_a_page_of_dead_letters_copies_no_more_than_the_page(self) -> None:
        store, count = a_store(), 5_000
        for number in range(count):
            store.dead_letter(0, count * 256, number * 256, f"reason {number}")
        for first in (0, count * 128, (count - 3) * 256):
            tracemalloc.start()
            page = list(islice(store.dead_letters(first), 3))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert [letter.offset for letter in page] == [first, first + 256, first + 512]
            assert peak < 8_000

    def test_times_of_the_first_attempt_and_the_last(self) -> None:
        store = a_store(max_attempts=2)
        store.acquire(5, 1, "ann", 10)
        store.extend(8, 0, 20, "ann")
        store.settle(9, 1, 0, False, "ann")
        store.acquire(15, 1, "ann", 10)
        store.settle(19, 1, 0, False, "ann")
        assert list(store.dead_letters()) == [DeadLetter(0, "max_attempts", 2, 2, 5, 19)]

    def test_the_last_attempt_of_a_lapsed_lease_ended_at_its_deadline(self) -> None:
        store = a_store(max_attempts=1, attempts="grants")
        store.acquire(5, 1, "ann", 10)
        store.end_due(1_000)
        assert list(store.dead_letters()) == [DeadLetter(0, "max_attempts", 1, 0, 5, 15)]

    def test_times_are_moved_with_the_clock_of_a_restart(self) -> None:
        store = a_store()
        store.acquire(100, 2, "ann", 10, limit=2)
        store.dead_letter(107, 2, 0, "bad")
        again = LeaseStore.decode(list(store.freeze(110).encode()), now_us=1_110)
        again.resume(1_110, behind_us=10)
        assert next(again.dead_letters())[-2:] == (1_090, 1_097)
        assert next(again.leases()).first_attempt_us == 1_090


class TestReplay:
    def test_a_live_lease_gets_its_full_duration_again_from_readiness(self) -> None:
        live = a_store()
        live.acquire(0, END, "ann", 100)
        live.extend(50, 0, 200, "ann")
        again = a_store()
        for event in live.events:
            again.apply(event, 0)
        again.resume(1_000)
        assert list(again.leases()) == [Lease(0, 1_200, "ann", 1, 1, 0, 200, 0)]
        assert again.next_due_us() == 1_201
        assert again.end_due(1_200) == 0
        assert again.settle(1_200, END, 0, True, "ann") is True

    def test_delays_end_earlier_by_what_replay_had_to_assume(self) -> None:
        store = a_store()
        for offset, delay_us in ((0, 100), (1, 40), (300, 60)):
            store.settle(0, 400, offset, False, delay_us=delay_us)
        store.resume(0, behind_us=50)
        assert store.end_due(0) == 1
        assert (store.ready, store.delayed, store.next_due_us()) == (1, 2, 10)
        assert store.end_due(49) == 1
        assert store.end_due(50) == 1

    def test_a_lease_that_lapsed_unseen_is_given_anew_too(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", 10)
        store.resume(500)
        assert store.end_due(510) == 0
        assert store.end_due(511) == 1

    def test_the_clock_may_be_negative_for_what_happened_before_this_process(self) -> None:
        store = a_store()
        for event in ((EventKind.FAILED, 3, 100, 0, 1, "", ""),):
            store.apply(event, -40)
        assert store.next_due_us() == 60

    def test_tokens_go_on_growing(self) -> None:
        store = a_store()
        store.apply((EventKind.LEASED, 0, 10, 41, 1, "ann", ""), 0)
        assert store.acquire(0, END, "ann", 10)[0].token == 42

    def test_an_unknown_event_is_named_as_newer(self) -> None:
        with pytest.raises(NewerFormat, match="kind 99 at offset 5"):
            a_store().apply((99, 5, 0, 0, 0, "", ""), 0)

    @pytest.mark.parametrize(
        "kind", [EventKind.EXTENDED, EventKind.RELEASED, EventKind.EXPIRED], ids=lambda k: k.name
    )
    def test_an_event_that_cannot_follow_is_damage(self, kind: EventKind) -> None:
        with pytest.raises(DamagedData, match=f"{kind.name} at offset 5"):
            a_store().apply((kind, 5, 0, 0, 0, "", ""), 0)


@pytest.mark.parametrize("counts", [[1], [255, 1, 256], [600, 3], [100, 1500, 1, 7]])
@pytest.mark.parametrize("key_ordered", [False, True])
def test_a_run_of_delays_is_as_many_single_ones(counts: list[int], key_ordered: bool) -> None:
    """In events, times and attempts, across blocks and after a restart."""
    one_by_one, in_runs = a_store(key_ordered=key_ordered), a_store(key_ordered=key_ordered)
    first = 0
    for turn, count in enumerate(counts):
        delays_us = [SECOND + (turn * 7919 + n * 31) % 5000 for n in range(count)]
        for offset, delay_us in enumerate(delays_us, first):
            one_by_one.delay(turn, offset, delay_us)
        in_runs.delay_run(turn, first, delays_us)
        first += count
        assert in_runs.events == one_by_one.events
        assert in_runs.next_due_us() == one_by_one.next_due_us()
    replayed = a_store(key_ordered=key_ordered)
    for event in in_runs.events:
        replayed.apply(event, 0)
    for store in (one_by_one, in_runs):
        assert store.delayed == first
        assert store.attempts(first - 1) == replayed.attempts(first - 1)
        assert store.lag(first) == first
    assert list(in_runs.delays(0)) == list(one_by_one.delays(0))
    for now_us in (SECOND + 2500, 2 * SECOND):
        in_runs.end_due(now_us)
        one_by_one.end_due(now_us)
        assert list(in_runs.open(0, first)) == list(one_by_one.open(0, first))
        assert in_runs.delayed == one_by_one.delayed
    assert LeaseStore.decode(b"".join(in_runs.freeze().encode())).ready == first


def test_a_run_of_delays_must_lie_above_all_others() -> None:
    store = a_store()
    store.delay_run(0, 10, [SECOND] * 3)
    with pytest.raises(ValueError, match="rows at or above"):
        store.delay_run(0, 9, [SECOND])


def with_leases(*runs: tuple[str, int]) -> LeaseStore:
    """A store in which each owner has leased so many records; the durations rise."""
    store = a_store()
    for number, (owner, count) in enumerate(runs):
        store.acquire(number, 1_000, owner, (number + 1) * SECOND, count, accept_run=all_of)
    store.events.clear()
    return store


def all_of(first: int, count: int) -> int:
    return count


@pytest.mark.parametrize(
    ("first", "end", "owner", "changed", "now_us", "settled"),
    [
        (0, 6, "ann", {}, 0, 6),
        (0, 10, "ann", {}, 0, 10),
        (4, 9, None, {}, 0, 5),
        (4, 9, "ann", {5: None, 6: 7}, 0, 5),
        (4, 9, "ann", {6: 8}, 0, 2),
        (0, 6, "bob", {}, 0, 0),
        (8, 14, "ann", {}, 0, 2),
        (8, 14, None, {}, 0, 6),
        (0, 10, "ann", {}, SECOND + 1, 0),
        (0, 14, None, {}, SECOND + 1, 0),
        (10, 15, "bob", {}, SECOND + 1, 5),
        (12, 20, "bob", {}, 0, 3),
    ],
)
def test_a_run_of_settles_is_as_many_single_ones(
    first: int, end: int, owner: str | None, changed: dict, now_us: int, settled: int
) -> None:
    """It ends before the first record without a live lease of that owner and token."""
    one, other = (with_leases(("ann", 10), ("bob", 5)) for _ in range(2))
    run = range(first, end)
    tokens = [changed.get(offset, offset + 1) for offset in run]
    assert one.settle_run(now_us, run, owner, tokens) == settled
    for offset in run[:settled]:
        assert other.settle(now_us, 1_000, offset, True, owner, changed.get(offset, offset + 1))
    assert one.events == other.events
    assert list(one.freeze().encode()) == list(other.freeze().encode())
    assert [one.owned(name) for name in ("ann", "bob")] == [
        other.owned(name) for name in ("ann", "bob")
    ]


def test_a_run_in_another_order_or_with_a_repeated_record_settles_each_once() -> None:
    store = with_leases(("ann", 10))
    assert store.settle_run(0, [7, 6, 5, 4, 3], "ann", [None] * 5) == 5
    assert store.settle_run(0, [0, 1, 2, 2, 1], "ann", [1, 2, 3, 3, 2]) == 3
    assert [event[1] for event in store.events] == [7, 6, 5, 4, 3, 0, 1, 2]


class TestMemoryBytes:
    """The formula of docs/leases.rst."""

    def test_a_new_store_has_its_own_memory_alone(self) -> None:
        assert a_store().memory_bytes == STORE_MEMORY
        assert a_store(key_ordered=True).memory_bytes == STORE_MEMORY

    def test_each_lease_adds_as_much(self) -> None:
        store, sizes = a_store(), []
        for _ in range(3):
            store.acquire(0, END, "ann", SECOND)
            sizes.append(store.memory_bytes)
        assert sizes[2] - sizes[1] == sizes[1] - sizes[0] == LEASE_MEMORY

    def test_each_owner_of_a_lease_adds_as_much(self) -> None:
        store = a_store()
        store.acquire(0, END, "ann", SECOND)
        of_one = store.memory_bytes
        store.acquire(0, END, "bob", SECOND)
        assert store.memory_bytes - of_one == LEASE_MEMORY + OWNER_MEMORY
        assert store.release_owner(0, "bob") == 1
        assert store.release_owner(0, "ann") == 1
        assert store.memory_bytes < of_one + LEASE_MEMORY

    def test_each_distinct_reason_of_dead_letters_adds_its_text(self) -> None:
        store, sizes = a_store(), [a_store().memory_bytes]
        for offset, reason in enumerate(("r" * 255, "r" * 255, "q" * 255)):
            store.dead_letter(0, END, offset, reason)
            sizes.append(store.memory_bytes)
        assert sizes[1] - sizes[0] > sizes[3] - sizes[2] > 255 + REASON_MEMORY
        assert sizes[2] - sizes[1] < 50
        again = LeaseStore.decode(list(store.freeze().encode()))
        assert again.memory_bytes == store.memory_bytes
        store.purge_dead()
        assert store.memory_bytes < sizes[1]
