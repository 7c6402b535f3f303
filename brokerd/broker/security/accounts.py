# Tests: tests/broker/test_security.py
"""Creates, changes and deletes accounts, access lists and API keys: ``broker.accounts``.

The argument ``by`` is the client that makes a change; the audit trail names it. The caller checks
``by.require_server(ADMIN)`` first, so that other clients do not learn which accounts exist. Because
a change may wait, it checks the permission again when it is made. `change_password` needs no check
by the caller.

A change takes effect at once, is one entry of the journal, and is durable with the next commit. It
may use the log's reserve. A change that removes a right may use the last of the reserve, so that a
key can be revoked on a full disk.

Methods that hash a password call ``done`` later, with the account or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from brokerd.broker.context import Context
from brokerd.broker.group_commit import ENTRY_OVERHEAD_BYTES, Congested
from brokerd.broker.model.map_entries import Map
from brokerd.broker.security.audit import AuditTrail
from brokerd.broker.security.entries import (
    SecurityReplay,
    account_deleted_map,
    apply,
    entry_of,
    key_revoked_map,
    list_deleted_map,
    put_map,
    quota_deleted_map,
)
from brokerd.errors import (
    AccountExists,
    BrokerdError,
    InvalidRequest,
    LimitExceeded,
    LoginFailed,
    UnknownAccount,
    UnknownKey,
)
from brokerd.security.access import ADMIN, OPEN, Access, names_of
from brokerd.security.accounts import (
    AccessList,
    Account,
    ApiKey,
    NewKey,
    check_access_list,
    check_account_name,
    check_label,
    check_password,
    check_roles,
)
from brokerd.security.attempts import PasswordAttempt
from brokerd.security.audit import EventType, Result, event
from brokerd.security.directory import Directory, Policy
from brokerd.security.keys import new_key
from brokerd.security.passwords import Passwords
from brokerd.security.quotas import Quota
from brokerd.security.throttle import Throttle

EACH_MAX = 100_000
"""Limit on accounts, on access lists and on API keys."""

AccountDone = Callable[[Account | None, BrokerdError | None], None]


class Accounts:
    """The accounts of the broker and their permissions. ``directory`` answers every check."""

    def __init__(
        self,
        context: Context,
        audit: AuditTrail,
        passwords: Passwords,
        policy: Policy,
        each_max: int = EACH_MAX,
    ) -> None:
        self.directory = Directory(policy)
        self.passwords = passwords
        self.throttle = Throttle()
        self._group_commit = context.group_commit
        self._time = context.time
        self._audit = audit
        self._each_max = each_max
        SecurityReplay(context.state, self.directory)

    # -- accounts -----------------------------------------------------------------------------

    def accounts(self) -> list[Account]:
        """Return all accounts, sorted by name."""
        return sorted(self.directory.accounts.values(), key=lambda account: account.name)

    def account(self, name: str) -> Account:
        """Return an account by its name. Raises `UnknownAccount`."""
        account = self.directory.accounts.get(name)
        if account is None:
            raise UnknownAccount(f"there is no account {name!r}")
        return account

    def create_account(
        self,
        by: Access,
        name: str,
        password: str,
        roles: Sequence[str],
        done: AccountDone,
        enabled: bool = True,
    ) -> None:
        """Create an account. An empty ``password`` means that nobody can log in by password.

        Needs ADMIN by role. ``done`` may get `InvalidName`, `InvalidRequest`, `AccountExists`,
        `LimitExceeded`, `TooManyLogins` (the queue of the password hash is full), `Denied`,
        `AuthenticationRequired`, `NoSpace` or `ShuttingDown`.
        """

        def create(password_hash: str) -> Account:
            by.require_server(ADMIN)
            self._check_new(name)
            now_us = self._time.time_us()
            account = Account(
                self.directory.next_account_id,
                name,
                _unique(roles),
                enabled,
                password_hash,
                now_us,
                now_us,
            )
            details = {"roles": ", ".join(account.roles), "enabled": _text(enabled)}
            admit = self._group_commit.admit_events
            self._change(by, EventType.USER_CREATED, name, put_map(account), details, admit)
            return self.directory.accounts[name]

        def begin() -> None:
            by.require_server(ADMIN)
            check_account_name(name)
            check_roles(_unique(roles))
            self._check_new(name)
            self._with_hash(password, create, done)

        _guarded(begin, done)

    def _check_new(self, name: str) -> None:
        if name in self.directory.accounts:
            raise AccountExists(f"there is an account {name!r} already")
        self._check_room(len(self.directory.accounts), "accounts")

    def update_account(
        self,
        by: Access,
        name: str,
        roles: Sequence[str] | None = None,
        enabled: bool | None = None,
    ) -> Account:
        """Set the roles or the state of an account; None leaves them as they are.

        Raises `UnknownAccount`, `InvalidName`, `LimitExceeded`, `NoSpace` or `Congested`, and
        `InvalidRequest` if the broker would have no administrator.
        """
        account = self.account(name)
        new_roles = account.roles if roles is None else _unique(roles)
        check_roles(new_roles)
        changed = replace(
            account,
            roles=new_roles,
            enabled=account.enabled if enabled is None else enabled,
            updated_us=self._time.time_us(),
        )
        self._check_administrator_left(by, name, changed)
        details = {"roles": ", ".join(changed.roles), "enabled": _text(changed.enabled)}
        self._change(by, EventType.USER_UPDATED, name, put_map(changed), details)
        return changed

    def change_password(
        self, by: Access, name: str, password: str, done: AccountDone, current: str = ""
    ) -> None:
        """Set the password of an account.

        A client needs its ``current`` password for its own account, and ADMIN by role for another
        one. Connections that logged in with the old password lose their permissions, except the
        connection of ``by``. ``done`` may get `LoginFailed` ("invalid current password"),
        `LoginThrottled`, `Denied`, `AuthenticationRequired`, `UnknownAccount`, `InvalidRequest`,
        `NoSpace` or `ShuttingDown`.
        """
        before = self.directory.accounts.get(name)

        def change(password_hash: str) -> Account:
            self._check_unchanged(by, name, before)
            changed = replace(
                self.account(name), password=password_hash, updated_us=self._time.time_us()
            )
            admit = self._group_commit.admit_events if by.name == name else None
            self._change(by, EventType.PASSWORD_CHANGED, name, put_map(changed), admit=admit)
            if by.name == name:
                by.adopt_password()
            return changed

        def begin() -> None:
            if name and by.name == name:
                by.require_known()
                check_password(password)
                self._check_current(
                    by, current, done, lambda: self._with_hash(password, change, done)
                )
            else:
                by.require_server(ADMIN)
                check_password(password)
                self.account(name)
                self._with_hash(password, change, done)

        _guarded(begin, done)

    def _check_unchanged(self, by: Access, name: str, before: Account | None) -> None:
        """Check again, after the hash is made, whether ``by`` may set the password.

        The account must be the same as ``before``. If it is the client's own, its password must be
        the same too, because the client has proved no other.
        """
        is_own = bool(name) and by.name == name
        if is_own:
            by.require_known()
        else:
            by.require_server(ADMIN)
        now = self.account(name)
        if before is None or now.account_id != before.account_id:
            raise UnknownAccount(f"the account {name!r} was deleted and created again meanwhile")
        if is_own and now.password != before.password:
            raise self._wrong_password(by)

    def _wrong_password(self, by: Access) -> LoginFailed:
        """Record a wrong current password in the audit trail, and return the error."""
        self._audit.record(
            event(by.actor, EventType.PASSWORD_CHANGED, by.name, result=Result.FAILURE)
        )
        return LoginFailed("invalid current password")

    def _check_current(
        self, by: Access, current: str, done: AccountDone, go_on: Callable[[], None]
    ) -> None:
        """Call ``go_on`` if ``current`` is the client's password, before and after the check."""
        account = self.account(by.name)
        attempt = PasswordAttempt(
            self.passwords, self.throttle, self._time.monotonic_us, by.peer, by.name
        )

        def checked(is_right: bool | None, error: BrokerdError | None) -> None:
            if error is not None:
                done(None, error)
            elif not is_right or self.directory.accounts.get(by.name) != account:
                attempt.failed()
                done(None, self._wrong_password(by))
            else:
                _guarded(go_on, done)

        attempt.check(account.password, current, checked)

    def delete_account(self, by: Access, name: str) -> None:
        """Delete an account and its keys. Access lists may go on naming it.

        Raises `InvalidRequest` for the client's own account and for that of the last
        administrator, `UnknownAccount`, `NoSpace` or `Congested`.
        """
        if name and by.name == name:
            raise InvalidRequest("cannot delete your own account")
        self.account(name)
        self._check_administrator_left(by, name, None)
        self._change(by, EventType.USER_DELETED, name, account_deleted_map(name))

    # -- access lists -------------------------------------------------------------------------

    def access_lists(self) -> list[AccessList]:
        """Return all access lists by topic, a name before the prefix with the same characters."""
        return sorted(self.directory.lists.values(), key=lambda each: each.key)

    def access_list(self, topic: str, prefix: bool = False) -> AccessList | None:
        """Return the access list of a topic, or of a prefix."""
        return self.directory.lists.get((topic, prefix))

    def set_access_list(self, by: Access, access_list: AccessList) -> None:
        """Create or replace an access list.

        Raises `InvalidName`, `InvalidRequest`, `LimitExceeded`, `NoSpace` or `Congested`.
        """
        check_access_list(access_list)
        if access_list.key not in self.directory.lists:
            self._check_room(len(self.directory.lists), "access lists")
        details = {
            "public": _text(access_list.public),
            "users": _grants(access_list.users),
            "roles": _grants(access_list.roles),
        }
        resource = _pattern(access_list.topic, access_list.prefix)
        self._change(by, EventType.ACL_SET, resource, put_map(access_list), details)

    def delete_access_list(self, by: Access, topic: str, prefix: bool = False) -> bool:
        """Delete an access list and return whether it existed. Raises `NoSpace` or `Congested`."""
        if (topic, prefix) not in self.directory.lists:
            return False
        resource = _pattern(topic, prefix)
        self._change(by, EventType.ACL_DELETED, resource, list_deleted_map(topic, prefix))
        return True

    # -- API keys -----------------------------------------------------------------------------

    def keys(self, owner: str | None = None) -> list[ApiKey]:
        """Return all keys, or the keys of one account, oldest first."""
        return [key for key in self.directory.keys.values() if owner in (None, key.owner)]

    def make_key(self, by: Access, owner: str, label: str = "") -> NewKey:
        """Create a key that authenticates a client as ``owner``.

        Raises `UnknownAccount`, `InvalidRequest`, `LimitExceeded`, `NoSpace` or `Congested`.
        """
        self.account(owner)
        check_label(label)
        self._check_room(len(self.directory.keys), "API keys")
        made = new_key(owner, label, self._time.time_us(), self.passwords.random_bytes)
        details = {"owner": owner, "label": label}
        admit = self._group_commit.admit_events
        self._change(by, EventType.KEY_CREATED, made.key.key_id, put_map(made.key), details, admit)
        return made

    def revoke_key(self, by: Access, key_id: str) -> None:
        """Revoke a key.

        Raises `UnknownKey`, `NoSpace` or `Congested`, and `InvalidRequest` if no administrator
        could log in without the key.
        """
        key = self.directory.keys.get(key_id)
        if key is None:
            raise UnknownKey(f"there is no API key {key_id!r}")
        self._check_administrator_left(by, key.owner, self.account(key.owner), key_id)
        details = {"owner": key.owner, "label": key.label}
        self._change(by, EventType.KEY_DELETED, key_id, key_revoked_map(key_id), details)

    # -- quotas -------------------------------------------------------------------------------

    def change_quota(self, by: Access, kind: EventType, quota: Quota, is_set: bool) -> None:
        """Set or delete a quota, as `Quotas` asks. Raises `NoSpace` or `Congested`."""
        fields = put_map(quota) if is_set else quota_deleted_map(quota)
        limits = {what: str(limit) for what, limit in quota.limits().items()}
        self._change(by, kind, f"{quota.kind}/{quota.name}", fields, limits if is_set else None)

    # -- checks and changes -------------------------------------------------------------------

    def _check_administrator_left(
        self, by: Access, name: str, after: Account | None, without_key: str = ""
    ) -> None:
        """Raise `InvalidRequest` if no administrator could log in after a change.

        ``after`` is the account after the change. An administrator can log in by a password, by a
        key, or in the way ``by`` did, for example by a certificate. While security is off every
        change is allowed.
        """
        if by is OPEN or not self.directory.accounts[name].permissions & ADMIN:
            return
        certain = "" if by.key_id else by.name
        if not self.directory.has_administrator_after(name, after, without_key, certain):
            raise InvalidRequest(
                f"without {name!r} no administrator could log in; give another account the role "
                "admin, and a password or a key, first"
            )

    def _check_room(self, count: int, what: str) -> None:
        if count >= self._each_max:
            raise LimitExceeded(f"there are {count} {what} already, which is the limit")

    def _change(
        self,
        by: Access,
        kind: EventType,
        resource: str,
        fields: Map,
        details: Mapping[str, str] | None = None,
        admit: Callable[[int], None] | None = None,
    ) -> None:
        """Apply a map to the directory and add it to the log. Raises `NoSpace` or `Congested`.

        Checks the permission of ``by`` again, because the change may have waited for room in the
        log. ``admit`` reserves room in the log; the default may use the last of the reserve.
        """
        if kind is not EventType.PASSWORD_CHANGED:  # `change_password` has checked
            by.require_server(ADMIN)
        entry = entry_of(fields)
        room_for = admit or self._group_commit.admit_revocation

        def change() -> None:
            room_for(len(entry.body) + ENTRY_OVERHEAD_BYTES)
            self._group_commit.add_entry(entry)
            apply(self.directory, fields)

        self._audit.carry_out(by.actor, kind, resource, change, details, admit=room_for)

    def _with_hash(
        self, password: str, change: Callable[[str], Account], done: AccountDone
    ) -> None:
        """Hash a password and call ``change`` with the hash; with "" at once if it is empty."""
        if not password:
            self._change_when_room(partial(change, ""), done)
            return
        check_password(password)

        def hashed(password_hash: str | None, error: BrokerdError | None) -> None:
            if password_hash is None:
                done(None, error)
            else:
                self._change_when_room(partial(change, password_hash), done)

        self.passwords.hash(password, hashed)

    def _change_when_room(self, change: Callable[[], Account], done: AccountDone) -> None:
        """Call ``change``, and again when the log has room while it raises `Congested`."""
        try:
            account = change()
        except Congested:
            self._group_commit.when_uncongested(partial(self._change_when_room, change, done))
        except BrokerdError as error:
            done(None, error)
        else:
            done(account, None)


def _guarded(begin: Callable[[], None], done: AccountDone) -> None:
    """Call ``begin``, and pass a `BrokerdError` that it raises to ``done``."""
    try:
        begin()
    except BrokerdError as error:
        done(None, error)


def _unique(roles: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(roles))


def _text(value: bool) -> str:
    return "true" if value else "false"


def _pattern(topic: str, prefix: bool) -> str:
    """Return the name of an access list in the audit trail."""
    return f"{topic}*" if prefix else topic


def _grants(grants: Mapping[str, int]) -> str:
    """Format grants, for example as ``ann:read+write, bob:read``."""
    return ", ".join(f"{name}:{'+'.join(names_of(bits))}" for name, bits in grants.items())
