# Tests: tests/security/test_login.py
"""Attempts to log in by a password: the throttle and the queue of hashes together.

An attempt whose password is not judged yet waits in the queue. It is refused if too many logins of
its address or name have failed, when it comes and when it has its turn, and not because others are
being checked.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.errors import BrokerdError, TooManyLogins
from brokerd.security.audit import network_of
from brokerd.security.passwords import Passwords
from brokerd.security.throttle import Throttle


class PasswordAttempt:
    """One attempt. Raises `LoginThrottled` if its address or name has failed too often.

    :param now_us: a monotonic clock.
    :param name: the given name, of an account or not.
    """

    def __init__(
        self,
        passwords: Passwords,
        throttle: Throttle,
        now_us: Callable[[], int],
        peer: str,
        name: str,
    ) -> None:
        self._passwords = passwords
        self._throttle = throttle
        self._now_us = now_us
        self._source = network_of(peer)
        self._name = name
        self._attempt = throttle.admit(peer, name, now_us())

    def check(
        self,
        password_hash: str,
        password: str,
        done: Callable[[bool | None, BrokerdError | None], None],
    ) -> None:
        """Call ``done``, now or later, with whether the password is right.

        ``done`` must call `succeeded` or `failed` then. Without a check ``done`` gets None and
        `LoginThrottled` (too many have failed meanwhile), `TooManyLogins`, or `LimitExceeded`
        without enough memory; nothing counts then.
        """

        def checked(is_right: bool | None, error: BrokerdError | None) -> None:
            self._throttle.end(self._attempt)
            done(is_right, error)

        try:
            self._passwords.check(
                password_hash,
                password,
                checked,
                self._source,
                self._throttle.is_known(self._attempt),
                self._name,
                self._may_begin,
            )
        except TooManyLogins as error:
            checked(None, error)

    def _may_begin(self) -> bool:
        return self._throttle.begin(self._attempt, self._now_us())

    def succeeded(self) -> None:
        """Record a success: others of this name and address come first now."""
        self._throttle.succeeded(self._attempt)
        self._passwords.prefer(self._source, self._name)

    def failed(self) -> None:
        """Count a failure."""
        self._throttle.failed(self._attempt, self._now_us())
