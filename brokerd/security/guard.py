# Tests: tests/security/test_access.py
"""Authentication of connections, by listener, certificate or login."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from brokerd.errors import BrokerdError
from brokerd.security.access import OPEN, Access

LoginDone = Callable[[Access | None, BrokerdError | None], None]
"""Takes the access after a login, or the reason for its failure."""


class Guard:
    """Gives every client all permissions: security is off."""

    auth = False
    """Whether clients must authenticate."""

    @property
    def version(self) -> int:
        """Grows with each change of an account, a key or an access list."""
        return 0

    def begin(self, wire_format: str, peer: str) -> Access:
        """Return the access of a new connection: the listener's principal, or anonymous.

        ``wire_format`` is the wire format, or ``admin``; ``peer`` an address without a port, for
        throttling and the audit trail. Raises `ShuttingDown`, as the other methods do, while the
        broker starts and knows no accounts.
        """
        return OPEN

    def by_certificate(self, wire_format: str, peer: str, subject: str, common_name: str) -> Access:
        """Return the access of a verified certificate. ``subject`` as in RFC 4514."""
        return OPEN

    def log_in(
        self, wire_format: str, peer: str, name: str, password: str, done: LoginDone
    ) -> None:
        """Check a password; call ``done`` in the caller's thread, now or later."""
        done(OPEN, None)

    def may_skip_check(self, wire_format: str, peer: str, name: str) -> bool:
        """Return whether a cached right password may be accepted without `log_in`.

        That is not so while more logins from this address wait than may fail. Raises
        `LoginThrottled` if too many have failed. For callers that cache right passwords: otherwise
        each of many guesses at once would reveal whether it is right.
        """
        return True

    def knows(self, network: str) -> bool:
        """Return whether a client of this network has logged in; True without authentication.

        ``network`` is as of `brokerd.security.audit.network_of`.
        """
        return True

    def log_in_with_key(self, wire_format: str, peer: str, key: str) -> Access:
        """Return the access of an API key. Raises `LoginFailed` or `LoginThrottled`."""
        return OPEN

    def accept_blipmq_keys(self, keys: Iterable[str]) -> None:
        """Accept these keys of ``blipmq.principal`` from now on; clients stay logged in."""


OPEN_GUARD = Guard()
