# Tests: tests/security/test_directory.py
"""All accounts, access lists and keys, and the permissions that follow from them.

The caller validates and stores changes. `version` grows with each change, so that callers can cache
results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brokerd.security.access import ADMIN, READ, WRITE
from brokerd.security.accounts import AccessList, Account, ApiKey
from brokerd.security.prefixes import Prefixes
from brokerd.security.quotas import Quota
from brokerd.values import MAX_NAME_BYTES, RESERVED_PREFIX

CACHE_MAX: Final = 10_000
"""Most cached answers: one for each account and topic."""


@dataclass(frozen=True)
class Policy:
    """The permissions without an access list or an account."""

    allow_anonymous: bool = False
    """Anonymous may read and write public topics."""
    default_public: bool = False
    """Topics without any list are public."""


class Directory:
    """The accounts and their permissions."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.version = 0
        self.accounts: dict[str, Account] = {}
        """By name."""
        self.lists: dict[tuple[str, bool], AccessList] = {}
        """`AccessList.key` -> access list."""
        self.keys: dict[str, ApiKey] = {}
        """Key id -> key, oldest first."""
        self.quotas: dict[tuple[str, str], Quota] = {}
        """`Quota.key` -> quota."""
        self.quotas_version = 0
        """Grows with each change of a quota."""
        self.next_account_id = 1
        self._prefixes = Prefixes()
        """The prefixes that have lists."""
        self._cache: dict[tuple[str, str], int] = {}

    # -- changes ------------------------------------------------------------------------------

    def put_account(self, account: Account) -> None:
        """Add an account or replace that of the same name."""
        self.accounts[account.name] = account
        self.next_account_id = max(self.next_account_id, account.account_id + 1)
        self._changed()

    def remove_account(self, name: str) -> None:
        """Remove an account and its keys, if it exists."""
        self.accounts.pop(name, None)
        for key_id in [key.key_id for key in self.keys.values() if key.owner == name]:
            del self.keys[key_id]
        self._changed()

    def put_list(self, access_list: AccessList) -> None:
        """Add a list or replace it."""
        if access_list.prefix:
            self._prefixes.add(access_list.topic)
        self.lists[access_list.key] = access_list
        self._changed()

    def remove_list(self, topic: str, prefix: bool) -> bool:
        """Remove a list; return whether it existed."""
        if self.lists.pop((topic, prefix), None) is None:
            return False
        if prefix:
            self._prefixes.remove(topic)
        self._changed()
        return True

    def put_key(self, key: ApiKey) -> None:
        self.keys[key.key_id] = key
        self._changed()

    def remove_key(self, key_id: str) -> None:
        """Remove a key, if it exists."""
        self.keys.pop(key_id, None)
        self._changed()

    def put_quota(self, quota: Quota) -> None:
        """Add a quota or replace it."""
        self.quotas[quota.key] = quota
        self.quotas_version += 1

    def remove_quota(self, kind: str, name: str) -> None:
        """Remove a quota, if it exists."""
        self.quotas.pop((kind, name), None)
        self.quotas_version += 1

    def _changed(self) -> None:
        self.version += 1
        self._cache.clear()

    # -- queries ------------------------------------------------------------------------------

    def permissions_on(self, account: Account | None, topic_name: str) -> int:
        """Return the permissions of an account on a topic, as bits; None means any client without
        an account.

        This does not check whether the account is enabled. A principal with ADMIN by role may read
        the broker's internal topics; no principal may write them.
        """
        key = ("" if account is None else account.name, topic_name)
        found = self._cache.get(key)
        if found is None:
            found = self._find(account, topic_name)
            if len(topic_name) > MAX_NAME_BYTES:  # no topic has such a name, and any client may ask
                return found
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            self._cache[key] = found
        return found

    def _find(self, account: Account | None, topic_name: str) -> int:
        by_role = 0 if account is None else account.permissions
        if topic_name.startswith(RESERVED_PREFIX):
            return READ if by_role & ADMIN else 0
        lists = self.lists_for(topic_name)
        is_public = self._is_public(lists)
        found = by_role & (READ | WRITE | ADMIN)
        if is_public and (account is not None or self.policy.allow_anonymous):
            found |= READ | WRITE
        if account is not None:
            for one in lists:
                found |= one.users.get(account.name, 0)
                for role in account.roles:
                    found |= one.roles.get(role, 0)
        return found

    def is_public(self, topic_name: str) -> bool:
        """Return whether every logged-in account has READ and WRITE on a topic."""
        if topic_name.startswith(RESERVED_PREFIX):
            return False
        return self._is_public(self.lists_for(topic_name))

    def _is_public(self, lists: list[AccessList]) -> bool:
        return any(one.public for one in lists) if lists else self.policy.default_public

    def has_administrator_after(
        self, name: str, after: Account | None, without_key: str = "", certain: str = ""
    ) -> bool:
        """Return whether an account that can log in has ADMIN by role, once ``name`` is ``after``.

        An account can log in by a password, or by a key other than ``without_key``; those in
        ``certain`` always can.
        """
        others = [one for one in self.accounts.values() if one.name != name]
        owners = {one.owner for one in self.keys.values() if one.key_id != without_key}
        owners.add(certain)
        return any(
            one.enabled and one.permissions & ADMIN and (one.password or one.name in owners)
            for one in (others if after is None else [after, *others])
        )

    def lists_for(self, topic_name: str) -> list[AccessList]:
        """Return the lists of a topic: its own, and those of its prefixes."""
        own = self.lists.get((topic_name, False))
        found = [] if own is None else [own]
        found += [self.lists[prefix, True] for prefix in self._prefixes.of(topic_name)]
        return found
