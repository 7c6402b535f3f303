# Tests: tests/security/
"""A directory with people in it, and somebody who writes down what happens."""

from __future__ import annotations

from collections.abc import Mapping

from brokerd.security.access import Access
from brokerd.security.accounts import AccessList, Account
from brokerd.security.directory import Directory, Policy
from brokerd.security.principal import Principal
from brokerd.security.watch import SUCCESS, Watch


class Notebook(Watch):
    """Writes down (kind, who, resource, action, result) and the details of each."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str, str, str]] = []
        self.details: list[Mapping[str, str]] = []

    def happened(
        self,
        kind: str,
        access: Access,
        *,
        resource: str = "",
        action: str = "",
        result: str = SUCCESS,
        details: Mapping[str, str] | None = None,
    ) -> None:
        self.lines.append((kind, access.name, resource, action, result))
        self.details.append(details or {})


class Hall:
    """A directory and a notebook."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.directory = Directory(policy or Policy())
        self.notebook = Notebook()

    def add(self, name: str, *roles: str, enabled: bool = True, password: str = "") -> Account:
        """Make an account, or change it; it keeps its id."""
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

    def somebody(self, name: str = "") -> Principal:
        """Who comes in by this name; anonymous without one."""
        return Principal(self.directory, self.notebook, name, "mega", "192.0.2.1")
