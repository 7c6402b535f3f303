"""Guards: one whose accesses have given permissions, and that of the accounts of a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from brokerd.errors import AuthenticationRequired, Denied, LoginFailed, LoginThrottled
from brokerd.security import ANY, Access, Guard
from brokerd.security.audit import AuditEvent
from brokerd.security.login import AccountGuard
from tests.house import House


class Given(Access):
    """An access with permissions on everything, and on topics; anonymous without a name."""

    def __init__(
        self, name: str = "", permissions: int = 0, topics: Mapping[str, int] | None = None
    ) -> None:
        self.name = name
        self.by_role = permissions
        self.by_topic = dict(topics or {})

    @property
    def permissions(self) -> int:
        return self.by_role

    @property
    def is_known(self) -> bool:
        return bool(self.name)

    def revoke(self) -> None:
        """Revoke all permissions from now on."""
        self.by_role = 0
        self.by_topic.clear()

    def require(self, permission: int, topic_name: str) -> None:
        self._check(bool(self._on(topic_name) & permission))

    def require_any(self, topic_name: str) -> None:
        self._check(bool(self._on(topic_name) & ANY))

    def require_server(self, permission: int) -> None:
        self._check(bool(self.by_role & permission))

    def require_known(self) -> None:
        self._check(self.is_known)

    def may(self, permission: int, topic_name: str) -> bool:
        return bool(self._on(topic_name) & permission)

    def _on(self, topic_name: str) -> int:
        return self.by_role | self.by_topic.get(topic_name, 0)

    def _check(self, is_given: bool) -> None:
        if not is_given:
            raise (
                Denied("unauthorized")
                if self.name
                else AuthenticationRequired("authentication required")
            )


class GuardOf(Guard):
    """Gives each connection the access ``first``, and each API key its own access."""

    auth = True

    def __init__(self, first: Access, keys: Mapping[str, Access] | None = None) -> None:
        self.first = first
        self.keys = dict(keys or {})
        self.throttled = False
        self.begun: list[tuple[str, str]] = []
        """Format and peer of each connection."""

    def begin(self, form: str, peer: str) -> Access:
        self.begun.append((form, peer))
        return self.first

    def log_in_with_key(self, form: str, peer: str, key: str) -> Access:
        if self.throttled:
            raise LoginThrottled("too many logins failed; try again in 7 seconds")
        if key not in self.keys:
            raise LoginFailed("invalid API key")
        return self.keys[key]


def account_guard(house: House, record: Callable[[AuditEvent], None] | None = None) -> AccountGuard:
    """Return the guard of the accounts of a broker, whose audit events go to ``record``."""
    accounts = house.broker.accounts
    return AccountGuard(
        accounts.directory,
        accounts.passwords,
        accounts.throttle,
        record or house.broker.audit.record,
        house.broker.time.monotonic_us,
        {},
        {},
    )
