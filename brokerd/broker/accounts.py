# Tests: tests/broker/test_security.py
"""Accounts, access lists and API keys, made and changed durably: ``broker.accounts``.

Every change takes who makes it, for the audit trail; *whether* that one may is what the caller asks
first (``by.require_server(ADMIN)``), with one exception: `change_password` asks itself. A change is
applied at once, stands in one entry of the journal, and is durable with the next commit.

What needs a password hashed calls ``done`` later, with the account or with what went wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brokerd.errors import BrokerdError
from brokerd.security.access import Access
from brokerd.security.accounts import AccessList, Account, ApiKey, NewKey

AccountDone = Callable[[Account | None, BrokerdError | None], None]


class Accounts:
    """What principals there are, and what they are granted."""

    # -- accounts -----------------------------------------------------------------------------

    def accounts(self) -> list[Account]:
        """All of them, by name."""
        raise NotImplementedError

    def account(self, name: str) -> Account:
        """Raises `UnknownAccount`."""
        raise NotImplementedError

    def create_account(
        self,
        by: Access,
        name: str,
        password: str,
        roles: Sequence[str],
        done: AccountDone,
        enabled: bool = True,
    ) -> None:
        """Make an account; without a password, if that is empty.

        ``done`` may get `InvalidName`, `InvalidRequest`, `AccountExists`, `LimitExceeded`,
        `NoSpace` or `ShuttingDown`.
        """
        raise NotImplementedError

    def update_account(
        self,
        by: Access,
        name: str,
        roles: Sequence[str] | None = None,
        enabled: bool | None = None,
    ) -> Account:
        """Change what is not None. Raises `UnknownAccount`, `InvalidName`, `LimitExceeded`,
        `NoSpace` or `Congested`."""
        raise NotImplementedError

    def change_password(
        self, by: Access, name: str, password: str, done: AccountDone, current: str = ""
    ) -> None:
        """Give an account another password: one's own, with the ``current`` one, or anybody's.

        ``done`` may get `LoginFailed` ("invalid current password"), `LoginThrottled`, `Denied`,
        `AuthenticationRequired`, `UnknownAccount`, `InvalidRequest`, `NoSpace` or `ShuttingDown`.
        """
        raise NotImplementedError

    def delete_account(self, by: Access, name: str) -> None:
        """Delete an account and its keys; access lists stay as they are.

        Raises `InvalidRequest` for one's own, `UnknownAccount`, `NoSpace` or `Congested`.
        """
        raise NotImplementedError

    # -- access lists -------------------------------------------------------------------------

    def access_lists(self) -> list[AccessList]:
        """All of them, by topic, each name before the prefix of the same letters."""
        raise NotImplementedError

    def access_list(self, topic: str, prefix: bool = False) -> AccessList | None:
        """The one of a topic, or of a prefix."""
        raise NotImplementedError

    def set_access_list(self, by: Access, access_list: AccessList) -> None:
        """Have a list, instead of the former one if there was one.

        Raises `InvalidName`, `InvalidRequest`, `LimitExceeded`, `NoSpace` or `Congested`.
        """
        raise NotImplementedError

    def delete_access_list(self, by: Access, topic: str, prefix: bool = False) -> bool:
        """Whether there was one. Raises `NoSpace` or `Congested`."""
        raise NotImplementedError

    # -- API keys -----------------------------------------------------------------------------

    def keys(self, owner: str | None = None) -> list[ApiKey]:
        """All of them, or those of an account, oldest first."""
        raise NotImplementedError

    def make_key(self, by: Access, owner: str, label: str = "") -> NewKey:
        """A key that lets somebody be ``owner``.

        Raises `UnknownAccount`, `InvalidRequest`, `LimitExceeded`, `NoSpace` or `Congested`.
        """
        raise NotImplementedError

    def revoke_key(self, by: Access, key_id: str) -> None:
        """Raises `UnknownKey`, `NoSpace` or `Congested`."""
        raise NotImplementedError
