"""Passwords are hashed elsewhere, slowly, and alike for everybody."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from argon2 import extract_parameters
from argon2.exceptions import HashingError

from brokerd.errors import BrokerdError, LimitExceeded, LoginThrottled
from brokerd.security.passwords import (
    NOBODYS_HASH,
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
    for _ in range(WAITING_MAX):
        passwords.check("", "x", lambda *result: told.append(result))
    with pytest.raises(LoginThrottled):
        passwords.check("", "x", lambda *result: told.append(result))
    with pytest.raises(LoginThrottled):
        passwords.hash("x", lambda *result: told.append(result))
    work, done = elsewhere.work.pop()
    done(work(), None)
    assert told == [(False, None)]
    passwords.check("", "x", lambda *result: told.append(result))


def test_a_lack_of_memory_is_told_to_who_asked() -> None:
    elsewhere = Elsewhere()
    told: list[tuple[bool | None, BrokerdError | None]] = []
    Passwords(elsewhere.submit, os.urandom).check("", "x", lambda *result: told.append(result))
    elsewhere.work[0][1](None, HashingError("Memory allocation error"))
    assert told[0][0] is None
    assert isinstance(told[0][1], LimitExceeded)
