# Tests: tests/security/
"""A directory with accounts, and the list of events in its audit trail."""

from __future__ import annotations

from brokerd.security.accounts import AccessList, Account
from brokerd.security.audit import AuditEvent
from brokerd.security.directory import Directory, Policy
from brokerd.security.principal import Principal


class Hall:
    """A directory and its audit trail."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.directory = Directory(policy or Policy())
        self.told: list[AuditEvent] = []

    def add(self, name: str, *roles: str, enabled: bool = True, password: str = "") -> Account:
        """Make an account, or change it without a new id."""
        known = self.directory.accounts.get(name)
        account_id = self.directory.next_account_id if known is None else known.account_id
        account = Account(account_id, name, roles, enabled, password)
        self.directory.put_account(account)
        return account

    def grant(
        self,
        topic: str,
        users: dict[str, int] | None = None,
        roles: dict[str, int] | None = None,
        *,
        prefix: bool = False,
        public: bool = False,
    ) -> None:
        self.directory.put_list(AccessList(topic, prefix, public, users or {}, roles or {}))

    def trail(self) -> list[tuple[str, str, str, str, str]]:
        """Return the type, user, resource, action and result of each event."""
        return [(e.type, e.user, e.resource, e.action, e.result) for e in self.told]

    def somebody(self, name: str = "") -> Principal:
        """Return the principal with this name; anonymous without a name."""
        return Principal(self.directory, self.told.append, name, "mega", "192.0.2.1")
