# Tests: tests/security/test_passwords.py
"""Hashes and checks passwords in threads.

Argon2id (RFC 9106) with the parameters of the OWASP Password Storage Cheat Sheet: 19 MiB, two
passes, one lane. A hash takes about 20 ms of a core, so it runs through ``submit``, `RUNNING_MAX`
at a time. Others wait in a queue for each source, such as the network of the client. The sources
take turns, so that a source with many wrong passwords does not keep the right ones of others out.
Clients that have logged in before come first, and their sources take turns, too. At most
`WAITING_MAX` wait, and `SOURCE_MAX` of one source, of clients that have logged in before and of
others. When the queues are full, the newest hash of the longest queue is refused. Queues of clients
that have not logged in before are refused first.

A check that may not begin yet waits for the next turn of its source.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from argon2.exceptions import Argon2Error, VerifyMismatchError
from argon2.low_level import Type, hash_secret, verify_secret

from brokerd.errors import (
    BrokerdError,
    LimitExceeded,
    LoginThrottled,
    TooManyLogins,
    error_text,
    without_traceback,
)
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
"""Most waiting hashes of one source, of known clients and of others."""
REFUSED_MAX: Final = 16
"""Most checks that are refused, after they have waited, before another hash."""
PASSED_MAX: Final = 16
"""Most sources that are passed over in a search for the next hash, of known clients and of others.
The next search goes on behind them.
"""
NEW_PASSWORDS: Final = ""
"""The source of hashes for new passwords. It counts as known."""


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


def _at_once() -> bool:
    return True


HashDone = Callable[[Any, BrokerdError | None], None]
MayBegin = Callable[[], bool]
"""Returns whether a check may begin, or has to wait. Raises `LoginThrottled` to refuse it."""


class _Hash(NamedTuple):
    """A hash that waits."""

    work: Callable[[], Any]
    done: HashDone
    may_begin: MayBegin
    name: str
    """The account of a check."""


Queues = OrderedDict[str, deque[_Hash]]
"""Waiting hashes by source; the source that is next stands first."""


class Passwords:
    """Hashes and checks passwords.

    ``random_bytes`` makes salts. ``done`` gets the result, or `LimitExceeded` without enough
    memory. Both methods raise `TooManyLogins` when too many wait, and ``done`` gets it if a hash
    that waits has to make room.
    """

    def __init__(self, submit: Submit, random_bytes: Callable[[int], bytes]) -> None:
        self._submit = submit
        self.random_bytes = random_bytes
        self._running = 0
        self._waiting = 0
        self._is_starting = False
        self._known: Queues = OrderedDict()
        """Hashes of sources that have logged in before. They come first."""
        self._others: Queues = OrderedDict()

    def hash(self, password: str, done: Callable[[str | None, BrokerdError | None], None]) -> None:
        """Call ``done`` with the hash, later."""
        salt = self.random_bytes(SALT_BYTES)
        job = _Hash(lambda: hash_password(password, salt), done, _at_once, "")
        self._run(job, NEW_PASSWORDS, True)

    def check(
        self,
        password_hash: str,
        password: str,
        done: Callable[[bool | None, BrokerdError | None], None],
        source: str = "unknown",
        is_known: bool = False,
        name: str = "",
        may_begin: MayBegin = _at_once,
    ) -> None:
        """Call ``done`` later with whether a password is right; for an empty hash it never is.

        ``source`` is the network of the client, and ``name`` the account. ``is_known`` tells that
        both have logged in together before. ``may_begin`` is asked whenever the check has its turn.
        It may return False only while another check runs. ``done`` gets the `LoginThrottled` that
        it raises.
        """
        known = password_hash or NOBODYS_HASH
        job = _Hash(lambda: verify_password(known, password), done, may_begin, name)
        self._run(job, source, is_known)

    def prefer(self, source: str, name: str) -> None:
        """Let the waiting checks of this name and source come first: they have logged in now."""
        queue = self._others.get(source, deque())
        room = SOURCE_MAX - len(self._known.get(source, ()))
        first: deque[_Hash] = deque()
        rest: deque[_Hash] = deque()
        for job in queue:
            (first if job.name == name and len(first) < room else rest).append(job)
        if first:
            self._known.setdefault(source, deque()).extend(first)
            self._others[source] = rest
            if not rest:
                del self._others[source]

    def _run(self, job: _Hash, source: str, is_known: bool) -> None:
        """Queue a hash. Raises `TooManyLogins` if there is no room for it."""
        queues = self._known if is_known else self._others
        own = len(queues.get(source, ()))
        if own >= SOURCE_MAX:
            raise TooManyLogins
        refused = self._make_room(queues, own) if self._waiting >= WAITING_MAX else None
        queues.setdefault(source, deque()).append(job)
        self._waiting += 1
        self._start()
        if refused is not None:
            refused.done(None, TooManyLogins())

    def _make_room(self, queues: Queues, own: int) -> _Hash:
        """Remove the newest hash of the longest queue, for one of ``queues`` with ``own`` hashes.

        Raises `TooManyLogins` if the new hash has to be refused instead.
        """
        candidates = self._others or self._known
        longest = max(candidates, key=lambda source: len(candidates[source]))
        queue = candidates[longest]
        if candidates is queues:
            is_ours = len(queue) <= own + 1
        else:
            is_ours = candidates is self._known
        if is_ours:
            raise TooManyLogins
        removed = queue.pop()
        if not queue:
            del candidates[longest]
        self._waiting -= 1
        return removed

    def _start(self) -> None:
        """Run the next hashes, of each source in turn."""
        if self._is_starting:
            return  # a ``done`` has queued another hash, and the loop below goes on
        self._is_starting = True
        try:
            self._start_next()
        finally:
            self._is_starting = False

    def _start_next(self) -> None:
        refused = 0
        while self._running < RUNNING_MAX:
            if refused == REFUSED_MAX:
                self._running += 1
                self._submit(_nothing, partial(self._ran, _ignore))  # go on in a later turn
                return
            found = self._next()
            if found is None:
                return
            job, refusal = found
            if refusal is not None:
                refused += 1
                job.done(None, refusal)
            else:
                self._running += 1
                self._submit(job.work, partial(self._ran, job.done))

    def _next(self) -> tuple[_Hash, LoginThrottled | None] | None:
        """Remove the next hash that may run, or that is refused; None if none is found."""
        for queues in (self._known, self._others):
            for _ in range(min(PASSED_MAX, len(queues))):
                source, queue = next(iter(queues.items()))
                refusal = None
                try:
                    if not queue[0].may_begin():
                        queues.move_to_end(source)
                        continue
                except LoginThrottled as error:
                    refusal = without_traceback(error)
                job = queue.popleft()
                self._waiting -= 1
                if not queue:
                    del queues[source]
                elif refusal is None:
                    queues.move_to_end(source)
                return job, refusal
        return None

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


def _nothing() -> None:
    pass


def _ignore(result: object, error: BrokerdError | None) -> None:
    pass


def _encoded(password: str) -> bytes:
    return password.encode("utf-8", "surrogatepass")
