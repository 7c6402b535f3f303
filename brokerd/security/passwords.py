# Tests: tests/security/test_passwords.py
"""Hashes and checks passwords in threads.

Argon2id (RFC 9106) with the parameters of the OWASP Password Storage Cheat Sheet: 19 MiB, two
passes, one lane. A hash takes about 20 ms of a core, so it runs through ``submit``. At most
`WAITING_MAX` wait; further ones are refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from argon2.exceptions import Argon2Error, VerifyMismatchError
from argon2.low_level import Type, hash_secret, verify_secret

from brokerd.errors import BrokerdError, LimitExceeded, LoginThrottled
from brokerd.worker_pool import Submit, run_inline

MEMORY_KIB: Final = 19 * 1024
PASSES: Final = 2
LANES: Final = 1
HASH_BYTES: Final = 32
SALT_BYTES: Final = 16

WAITING_MAX: Final = 64
"""Most waiting hashes: about a second of one core."""


def hash_password(password: str, salt: bytes) -> str:
    """Return the hash as a PHC string. Slow on purpose."""
    found = hash_secret(_encoded(password), salt, PASSES, MEMORY_KIB, LANES, HASH_BYTES, Type.ID)
    return found.decode("ascii")


def verify_password(password_hash: str, password: str) -> bool:
    """Return whether a password matches a hash; compares in constant time. Slow on purpose."""
    try:
        return verify_secret(password_hash.encode("ascii"), _encoded(password), Type.ID)
    except VerifyMismatchError:
        return False


NOBODYS_HASH: Final = (
    f"$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p={LANES}$bm9ib2R5J3Mgc2FsdC4uLg$" + "A" * 43
)
"""A hash that no password matches; checking against it takes the usual time."""


class Passwords:
    """Hashes and checks passwords, as many at a time as ``submit`` runs.

    ``random_bytes`` makes salts. ``done`` gets the result, or `LimitExceeded` without enough
    memory. Both methods raise `LoginThrottled` when too many wait.
    """

    def __init__(self, submit: Submit, random_bytes: Callable[[int], bytes]) -> None:
        self._submit = submit
        self.random_bytes = random_bytes
        self._waiting = 0

    def hash(self, password: str, done: Callable[[str | None, BrokerdError | None], None]) -> None:
        """Call ``done`` with the hash, later."""
        salt = self.random_bytes(SALT_BYTES)
        self._run(lambda: hash_password(password, salt), done)

    def check(
        self,
        password_hash: str,
        password: str,
        done: Callable[[bool | None, BrokerdError | None], None],
    ) -> None:
        """Call ``done`` later with whether a password is right; for an empty hash it never is."""
        known = password_hash or NOBODYS_HASH
        self._run(lambda: verify_password(known, password), done)

    def _run(
        self, work: Callable[[], Any], done: Callable[[Any, BrokerdError | None], None]
    ) -> None:
        if self._waiting >= WAITING_MAX:
            raise LoginThrottled("too many logins at once; try again in a second")
        self._waiting += 1

        def ran(result: Any, error: Exception | None) -> None:
            self._waiting -= 1
            if error is None:
                done(result, None)
            elif isinstance(error, Argon2Error):
                done(None, LimitExceeded(f"passwords cannot be checked now: {error}; try again"))
            else:
                raise error

        self._submit(work, ran)


def inline_passwords() -> Passwords:
    """Make `Passwords` without threads."""
    return Passwords(run_inline, os.urandom)


def _encoded(password: str) -> bytes:
    return password.encode("utf-8", "surrogatepass")
