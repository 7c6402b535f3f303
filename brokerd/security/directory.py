# Tests: tests/security/test_directory.py
"""All accounts, access lists and keys, and what follows from them for a topic.

Nothing here is checked or kept on a disk: who changes the directory has done that. `version` grows
with each change, so that others may remember what they found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brokerd.security.access import ADMIN, READ, WRITE
from brokerd.security.accounts import AccessList, Account, ApiKey
from brokerd.security.prefixes import Prefixes
from brokerd.values import MAX_NAME_BYTES, RESERVED_PREFIX

REMEMBERED_MAX: Final = 10_000
"""Answers that are remembered: one for each account and topic."""


@dataclass(frozen=True)
class Policy:
    """What holds where no list and no account says otherwise."""

    allow_anonymous: bool = False
    """Anonymous may read and write public topics."""
    default_public: bool = False
    """Topics without any list are public."""


class Directory:
    """What principals there are, and what they may do."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.version = 0
        self.accounts: dict[str, Account] = {}
        """By name."""
        self.lists: dict[tuple[str, bool], AccessList] = {}
        """By `AccessList.key`."""
        self.keys: dict[str, ApiKey] = {}
        """By id, oldest first."""
        self.next_account_id = 1
        self._prefixes = Prefixes()
        """Those that lists are of."""
        self._remembered: dict[tuple[str, str], int] = {}

    # -- changes ------------------------------------------------------------------------------

    def put_account(self, account: Account) -> None:
        """Have an account, instead of the one of this name if there is one."""
        self.accounts[account.name] = account
        self.next_account_id = max(self.next_account_id, account.account_id + 1)
        self._changed()

    def remove_account(self, name: str) -> None:
        """Forget an account and its keys, if there is one."""
        self.accounts.pop(name, None)
        for key_id in [key.key_id for key in self.keys.values() if key.owner == name]:
            del self.keys[key_id]
        self._changed()

    def put_list(self, access_list: AccessList) -> None:
        """Have a list, instead of the former one if there was one."""
        if access_list.prefix:
            self._prefixes.add(access_list.topic)
        self.lists[access_list.key] = access_list
        self._changed()

    def remove_list(self, topic: str, prefix: bool) -> bool:
        """Forget a list; whether there was one."""
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
        """Forget a key, if there is one."""
        self.keys.pop(key_id, None)
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._remembered.clear()

    # -- questions ----------------------------------------------------------------------------

    def permissions_on(self, account: Account | None, topic_name: str) -> int:
        """What an account may do with a topic, as bits; None is anybody without an account.

        Whether the account is enabled is not asked here. Topics of the broker's own are read by
        whoever has ADMIN on everything, and written by nobody.
        """
        key = ("" if account is None else account.name, topic_name)
        found = self._remembered.get(key)
        if found is None:
            found = self._find(account, topic_name)
            if len(topic_name) > MAX_NAME_BYTES:  # no topic has such a name, and anybody may ask
                return found
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[key] = found
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
        """Whether READ and WRITE on a topic are everybody's who has logged in."""
        if topic_name.startswith(RESERVED_PREFIX):
            return False
        return self._is_public(self.lists_for(topic_name))

    def _is_public(self, lists: list[AccessList]) -> bool:
        return any(one.public for one in lists) if lists else self.policy.default_public

    def has_administrator_after(
        self, name: str, after: Account | None, without_key: str = "", certain: str = ""
    ) -> bool:
        """Whether somebody who can log in has ADMIN on everything, once ``name`` is ``after``.

        One can by a password, or by a key other than ``without_key``; ``certain`` can anyhow.
        """
        others = [one for one in self.accounts.values() if one.name != name]
        owners = {one.owner for one in self.keys.values() if one.key_id != without_key}
        owners.add(certain)
        return any(
            one.enabled and one.permissions & ADMIN and (one.password or one.name in owners)
            for one in (others if after is None else [after, *others])
        )

    def lists_for(self, topic_name: str) -> list[AccessList]:
        """The lists that fit a topic: its own, and those of prefixes."""
        own = self.lists.get((topic_name, False))
        found = [] if own is None else [own]
        found += [self.lists[prefix, True] for prefix in self._prefixes.of(topic_name)]
        return found
