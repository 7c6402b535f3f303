# Tests: tests/security/test_passwords.py
"""Hashes and checks passwords in threads.

Argon2id (RFC 9106) with the parameters of the OWASP Password Storage Cheat Sheet: 19 MiB, two
passes, one lane. A hash takes about 20 ms of a core, so it runs through ``submit``, `RUNNING_MAX`
at a time. Others wait in a queue for each source, such as the network of the client. The sources
take turns, so that a source with many wrong passwords does not keep the right ones of others out.
Clients that have logged in before come first, and their sources take turns, too. At most
`WAITING_MAX` wait, and `SOURCE_MAX` of one source. When the queues are full, the newest hash of the
longest queue is refused. Queues of clients that have not logged in before are refused first.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from argon2.exceptions import Argon2Error, VerifyMismatchError
from argon2.low_level import Type, hash_secret, verify_secret

from brokerd.errors import BrokerdError, LimitExceeded, LoginThrottled, error_text
from brokerd.worker_pool import Submit, run_inline

MEMORY_KIB: Final = 19 * 1024
PASSES: Final = 2
LANES: Final = 1
HASH_BYTES: Final = 32
SALT_BYTES: Final = 16

RUNNING_MAX: Final = 2
"""Hashes that run at once: the cores that logins may use."""
WAITING_MAX: Final = 512
"""Most waiting hashes: about five seconds of two cores."""
SOURCE_MAX: Final = 64
"""Most waiting hashes of one source."""
NEW_PASSWORDS: Final = ""
"""The source of hashes for new passwords. It counts as known."""
TOO_MANY: Final = "too many logins at once; try again in a second"


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


HashDone = Callable[[Any, BrokerdError | None], None]


class _Hash(NamedTuple):
    """A hash that waits."""

    work: Callable[[], Any]
    done: HashDone


Queues = OrderedDict[str, deque[_Hash]]
"""Waiting hashes by source; the source that is next stands first."""


class Passwords:
    """Hashes and checks passwords.

    ``random_bytes`` makes salts. ``done`` gets the result, or `LimitExceeded` without enough
    memory. Both methods raise `LoginThrottled` when too many wait.
    """

    def __init__(self, submit: Submit, random_bytes: Callable[[int], bytes]) -> None:
        self._submit = submit
        self.random_bytes = random_bytes
        self._running = 0
        self._waiting = 0
        self._known: Queues = OrderedDict()
        """Hashes of sources that have logged in before. They come first."""
        self._others: Queues = OrderedDict()

    def hash(self, password: str, done: Callable[[str | None, BrokerdError | None], None]) -> None:
        """Call ``done`` with the hash, later."""
        salt = self.random_bytes(SALT_BYTES)
        self._run(lambda: hash_password(password, salt), done, NEW_PASSWORDS, True)

    def check(
        self,
        password_hash: str,
        password: str,
        done: Callable[[bool | None, BrokerdError | None], None],
        source: str = "unknown",
        is_known: bool = False,
    ) -> None:
        """Call ``done`` later with whether a password is right; for an empty hash it never is.

        ``source`` is the network of the client. ``is_known`` tells that it has logged in before.
        """
        known = password_hash or NOBODYS_HASH
        self._run(lambda: verify_password(known, password), done, source, is_known)

    def _run(self, work: Callable[[], Any], done: HashDone, source: str, is_known: bool) -> None:
        """Queue a hash. Raises `LoginThrottled` if there is no room for it."""
        queues = self._known if is_known else self._others
        own = len(queues.get(source, ()))
        if own >= SOURCE_MAX:
            raise LoginThrottled(TOO_MANY)
        refused = self._make_room(queues, own) if self._waiting >= WAITING_MAX else None
        queues.setdefault(source, deque()).append(_Hash(work, done))
        self._waiting += 1
        self._start()
        if refused is not None:
            refused.done(None, LoginThrottled(TOO_MANY))

    def _make_room(self, queues: Queues, own: int) -> _Hash:
        """Remove the newest hash of the longest queue, for one of ``queues`` with ``own`` hashes.

        Raises `LoginThrottled` if the new hash has to be refused instead.
        """
        candidates = self._others or self._known
        longest = max(candidates, key=lambda source: len(candidates[source]))
        queue = candidates[longest]
        if candidates is queues:
            is_ours = len(queue) <= own + 1
        else:
            is_ours = candidates is self._known
        if is_ours:
            raise LoginThrottled(TOO_MANY)
        removed = queue.pop()
        if not queue:
            del candidates[longest]
        self._waiting -= 1
        return removed

    def _start(self) -> None:
        """Run the next hashes, of each source in turn."""
        while self._running < RUNNING_MAX and self._waiting:
            queues = self._known or self._others
            source, queue = next(iter(queues.items()))
            work, done = queue.popleft()
            self._waiting -= 1
            if queue:
                queues.move_to_end(source)
            else:
                del queues[source]
            self._running += 1
            self._submit(work, partial(self._ran, done))

    def _ran(self, done: HashDone, result: Any, error: Exception | None) -> None:
        self._running -= 1
        try:
            if error is None:
                done(result, None)
            else:
                what = f"passwords cannot be checked now: {error_text(error)}; try again"
                done(None, LimitExceeded(what))
                if not isinstance(error, Argon2Error | MemoryError):
                    raise error
        finally:
            self._start()


def inline_passwords() -> Passwords:
    """Make `Passwords` without threads."""
    return Passwords(run_inline, os.urandom)


def _encoded(password: str) -> bytes:
    return password.encode("utf-8", "surrogatepass")
