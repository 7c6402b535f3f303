"""Passwords are hashed elsewhere, slowly, and alike for everybody."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from argon2 import extract_parameters
from argon2.exceptions import HashingError

from brokerd.errors import BrokerdError, LimitExceeded, LoginThrottled, TooManyLogins
from brokerd.security.passwords import (
    NOBODYS_HASH,
    PASSED_MAX,
    REFUSED_MAX,
    RUNNING_MAX,
    SOURCE_MAX,
    WAITING_MAX,
    Passwords,
    hash_password,
    inline_passwords,
    verify_password,
)


@pytest.fixture(autouse=True)
def cheap_passwords() -> None:
    """Here they are as expensive as in a broker."""


class Elsewhere:
    """Runs what is submitted when it is told to."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = []

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]
    ) -> None:
        self.work.append((work, done))


def test_a_password_is_right_for_its_own_hash() -> None:
    found = hash_password("correct horse", bytes(16))
    assert verify_password(found, "correct horse")
    assert not verify_password(found, "correct horse ")
    assert hash_password("correct horse", bytes(15) + b"\1") != found
    assert "correct" not in found


def test_the_hash_of_nobody_costs_what_anybodys_costs() -> None:
    """So that the time of a failed login does not tell names that exist."""
    assert extract_parameters(NOBODYS_HASH) == extract_parameters(hash_password("x", bytes(16)))
    assert not verify_password(NOBODYS_HASH, "")


@pytest.mark.parametrize("password", ["", "x", "ünï", "\ud800", "x" * 100_000, "a\0b"])
def test_an_account_without_a_password_lets_nobody_in(password: str) -> None:
    told: list[object] = []
    inline_passwords().check("", password, lambda *result: told.append(result))
    assert told == [(False, None)]


def test_hashes_are_salted_and_checked() -> None:
    told: list[Any] = []
    passwords = inline_passwords()
    passwords.hash("x", lambda *result: told.append(result))
    passwords.hash("x", lambda *result: told.append(result))
    (one, _), (other, _) = told
    assert one != other
    passwords.check(one, "x", lambda *result: told.append(result))
    passwords.check(one, "y", lambda *result: told.append(result))
    assert told[2:] == [(True, None), (False, None)]


def test_only_so_many_wait_and_the_next_is_told_at_once() -> None:
    """A flood of logins takes neither memory nor anybody's time for long."""
    elsewhere = Elsewhere()
    passwords = Passwords(elsewhere.submit, os.urandom)
    told: list[object] = []
    for _ in range(RUNNING_MAX + SOURCE_MAX):
        passwords.check("", "x", lambda *result: told.append(result))
    with pytest.raises(LoginThrottled):
        passwords.check("", "x", lambda *result: told.append(result))
    assert len(elsewhere.work) == RUNNING_MAX
    work, done = elsewhere.work.pop()
    done(work(), None)
    assert told == [(False, None)]
    assert len(elsewhere.work) == RUNNING_MAX
    passwords.check("", "x", lambda *result: told.append(result))


class Queue:
    """Passwords whose checks run one by one, and tell their source."""

    def __init__(self) -> None:
        self._elsewhere = Elsewhere()
        self.passwords = Passwords(self._elsewhere.submit, os.urandom)
        self.checked: list[str] = []
        self.refused: list[str] = []

    def check(self, source: str, is_known: bool = False) -> None:
        def done(is_right: bool | None, error: BrokerdError | None) -> None:
            (self.refused if error is not None else self.checked).append(source)

        self.passwords.check("", "x", done, source, is_known)

    def run(self, count: int) -> None:
        for _ in range(count):
            _, done = self._elsewhere.work.pop(0)
            done(False, None)


def test_sources_take_turns() -> None:
    """A right login waits for one of each flooding source, not for all."""
    queue = Queue()
    for source in "aaaaaaaabbbbbbbbc":
        queue.check(source)
    queue.run(8)
    assert queue.checked[:RUNNING_MAX] == ["a"] * RUNNING_MAX
    assert sorted(queue.checked[RUNNING_MAX : RUNNING_MAX + 3]) == ["a", "b", "c"]


def test_known_clients_come_first() -> None:
    queue = Queue()
    for source in "aabb":
        queue.check(source)
    queue.check("k", is_known=True)
    queue.run(3)
    assert queue.checked == ["a", "a", "k"]


def test_known_clients_of_many_addresses_may_wait() -> None:
    """They connect again at once after a break of the network."""
    queue = Queue()
    for number in range(RUNNING_MAX + WAITING_MAX):
        queue.check(f"{number}", is_known=True)
    queue.run(RUNNING_MAX + WAITING_MAX)
    assert len({*queue.checked}) == RUNNING_MAX + WAITING_MAX


def test_known_clients_take_turns() -> None:
    queue = Queue()
    for source in "aaaaaaaab":
        queue.check(source, is_known=True)
    queue.run(RUNNING_MAX + 2)
    assert "b" in queue.checked


def test_a_queue_full_of_known_clients_refuses_others() -> None:
    queue = Queue()
    for number in range(RUNNING_MAX + WAITING_MAX):
        queue.check(f"{number % 100}", is_known=True)
    with pytest.raises(LoginThrottled):
        queue.check("another")
    queue.check("one more", is_known=True)
    assert len(queue.refused) == 1


def test_a_full_queue_refuses_the_newest_of_the_source_with_the_most() -> None:
    queue = Queue()
    for number in range(WAITING_MAX // SOURCE_MAX):
        for _ in range(SOURCE_MAX + (RUNNING_MAX if number == 0 else 0)):
            queue.check(f"flood {number}")
    queue.check("right")
    assert len(queue.refused) == 1 and queue.refused[0].startswith("flood")
    queue.check("new", is_known=True)
    assert len(queue.refused) == 2
    queue.run(RUNNING_MAX + 1 + WAITING_MAX // SOURCE_MAX + 1)
    assert {"right", "new"} <= {*queue.checked}


def test_a_full_queue_refuses_a_source_that_has_as_many_as_any() -> None:
    queue = Queue()
    for number in range(WAITING_MAX + RUNNING_MAX):
        queue.check(f"{number}")
    with pytest.raises(LoginThrottled):
        queue.check("another")
    queue.check("known", is_known=True)
    assert len(queue.refused) == 1


def test_what_may_not_begin_waits_and_others_go_on() -> None:
    elsewhere = Elsewhere()
    passwords = Passwords(elsewhere.submit, os.urandom)
    told: list[str] = []
    may_begin = {"a": False, "b": True}
    for source in "aab":
        passwords.check(
            "",
            "x",
            partial(lambda source, *_: told.append(source), source),
            source,
            may_begin=partial(may_begin.__getitem__, source),
        )
    assert len(elsewhere.work) == 1
    elsewhere.work.pop()[1](False, None)
    assert told == ["b"] and not elsewhere.work
    may_begin["a"] = True
    passwords.check("", "x", lambda *_: None, "c")
    assert len(elsewhere.work) == RUNNING_MAX
    for _, each_done in elsewhere.work:
        each_done(False, None)
    assert told == ["b", "a", "a"]


def test_those_that_come_first_from_now_on_are_no_more_than_may_wait() -> None:
    passwords = Passwords(Elsewhere().submit, os.urandom)

    def check(is_known: bool) -> None:
        passwords.check("", "x", lambda *_: None, "a", is_known, "ann")

    for _ in range(RUNNING_MAX + SOURCE_MAX - 4):
        check(is_known=True)
    for _ in range(SOURCE_MAX):
        check(is_known=False)
    passwords.prefer("a", "ann")
    with pytest.raises(TooManyLogins):
        check(is_known=True)
    for _ in range(4):
        check(is_known=False)
    with pytest.raises(TooManyLogins):
        check(is_known=False)


def test_many_that_may_not_begin_do_not_keep_others_waiting_for_long() -> None:
    elsewhere = Elsewhere()
    passwords = Passwords(elsewhere.submit, os.urandom)
    told: list[int] = []
    asked = 0

    def may_begin() -> bool:
        nonlocal asked
        asked += 1
        return False

    passwords.check("", "x", lambda *_: None, "first")
    for number in range(100):
        before = asked
        passwords.check("", "x", lambda *_: None, f"{number}", may_begin=may_begin)
        assert asked - before <= PASSED_MAX
    passwords.check("", "x", lambda *_: told.append(0), "right")
    searches = 0
    while len(elsewhere.work) == 1:
        searches += 1
        passwords.check("", "x", lambda *_: None, "0", may_begin=may_begin)
    elsewhere.work.pop()[1](False, None)
    assert told == [0] and searches <= 2 + 100 // PASSED_MAX


def test_those_that_are_refused_after_they_waited_do_not_hold_a_turn() -> None:
    """They are answered some at a time, and need no hash."""
    elsewhere = Elsewhere()
    passwords = Passwords(elsewhere.submit, os.urandom)
    told: list[object] = []
    is_over = False

    def may_begin() -> bool:
        if is_over:
            raise LoginThrottled("too many failed logins")
        return True

    for number in range(RUNNING_MAX + 100):
        passwords.check(
            "", "x", lambda _, error: told.append(error), f"{number}", may_begin=may_begin
        )
    is_over = True
    hashes = 0
    while elsewhere.work:
        before = len(told)
        work, done = elsewhere.work.pop(0)
        result = work()
        hashes += result is not None
        done(result, None)
        assert len(told) - before <= 1 + REFUSED_MAX
    assert hashes == RUNNING_MAX and len(told) == RUNNING_MAX + 100
    assert sum(isinstance(error, LoginThrottled) for error in told) == 100


def test_a_client_that_begins_the_next_login_when_one_is_refused_costs_no_stack() -> None:
    elsewhere = Elsewhere()
    passwords = Passwords(elsewhere.submit, os.urandom)
    depth = deepest = refused = 0

    def never() -> bool:
        raise LoginThrottled("too many failed logins")

    def begin(*_: object) -> None:
        nonlocal depth, deepest, refused
        depth += 1
        deepest = max(deepest, depth)
        refused += 1
        if refused < 1000:
            passwords.check("", "x", begin, f"{refused}", may_begin=never)
        depth -= 1

    begin()
    while elsewhere.work:
        work, done = elsewhere.work.pop(0)
        done(work(), None)
    assert refused == 1000 and deepest <= 2


@pytest.mark.parametrize("error", [HashingError("Memory allocation error"), MemoryError()])
def test_a_lack_of_memory_is_told_to_who_asked(error: Exception) -> None:
    elsewhere = Elsewhere()
    told: list[tuple[bool | None, BrokerdError | None]] = []
    Passwords(elsewhere.submit, os.urandom).check("", "x", lambda *result: told.append(result))
    elsewhere.work[0][1](None, error)
    assert told[0][0] is None
    assert isinstance(told[0][1], LimitExceeded)


def test_a_fault_is_told_to_who_asked_and_logged() -> None:
    elsewhere = Elsewhere()
    told: list[tuple[bool | None, BrokerdError | None]] = []
    Passwords(elsewhere.submit, os.urandom).check("", "x", lambda *result: told.append(result))
    with pytest.raises(ValueError, match="a fault"):
        elsewhere.work[0][1](None, ValueError("a fault"))
    assert told[0][0] is None
    assert isinstance(told[0][1], LimitExceeded)
