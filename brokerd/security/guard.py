# Tests: tests/security/test_access.py
"""Who a connection is: how a listener, a certificate or a login makes it somebody."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.errors import BrokerdError
from brokerd.security.access import OPEN, Access

LoggedIn = Callable[[Access | None, BrokerdError | None], None]
"""Takes who somebody is now, or why a login failed."""


class Guard:
    """Lets everybody in and do everything: security is off."""

    auth = False
    """Whether anybody is asked who he is."""

    @property
    def version(self) -> int:
        """Grows whenever an account, a key or an access list changes."""
        return 0

    def begin(self, form: str, peer: str) -> Access:
        """Who a new connection is: the principal of its listener, or anonymous.

        ``form`` is the wire format, or ``admin``; ``peer`` an address without a port, for
        throttling and the audit trail. Raises `ShuttingDown`, as the others here do, while the
        broker is starting and no account is known.
        """
        return OPEN

    def by_certificate(self, form: str, peer: str, subject: str, common_name: str) -> Access:
        """Who a client with a verified certificate is. ``subject`` as in RFC 4514."""
        return OPEN

    def log_in(self, form: str, peer: str, name: str, password: str, done: LoggedIn) -> None:
        """Check a password; calls ``done`` in the caller's thread, later or at once."""
        done(OPEN, None)

    def check_peer(self, form: str, peer: str, name: str) -> None:
        """Go on unless too many logins from this address have failed; raises `LoginThrottled`.

        For who remembers right passwords: else guesses could be told from one another.
        """

    def log_in_with_key(self, form: str, peer: str, key: str) -> Access:
        """Who an API key belongs to. Raises `LoginFailed` or `LoginThrottled`."""
        return OPEN


OPEN_GUARD = Guard()
