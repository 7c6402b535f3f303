# Tests: tests/simulator/test_logins.py
"""The passwords and keys of a run, as clients know them."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

WRONG = "wrong"


class Key(NamedTuple):
    """A key that the registrar made."""

    label: str
    secret: str


class Credentials:
    """The registrar adds passwords before it asks for them, and keys when it has them."""

    def __init__(self) -> None:
        self._passwords: dict[str, list[str]] = {}
        self._keys: dict[str, list[Key]] = {}
        self._count = 0

    def new_password(self, account: str) -> str:
        """Return a new password for an account, unlike all others."""
        password = f"password {self._count}"
        self._count += 1
        self._passwords.setdefault(account, []).append(password)
        return password

    def add_key(self, account: str, label: str, secret: str) -> None:
        self._keys.setdefault(account, []).append(Key(label, secret))

    def password(self, account: str, chance: Random, is_wrong: bool) -> str:
        """Return the newest password of an account, or an older or wrong one."""
        known = self._passwords.get(account, [])
        if is_wrong:
            return chance.choice([WRONG, *known[:-1]])
        return known[-1] if known else WRONG

    def key(self, account: str, chance: Random, is_wrong: bool) -> Key:
        """Return the newest key of an account, or an older or wrong one."""
        known = self._keys.get(account, [])
        if is_wrong:
            return chance.choice([Key("", WRONG), *known[:-1]])
        return known[-1] if known else Key("", WRONG)
