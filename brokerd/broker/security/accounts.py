# Tests: tests/broker/test_security.py
"""Accounts, access lists and API keys, made and changed durably: ``broker.accounts``.

Every change takes who makes it, for the audit trail; *whether* that one may is what the caller asks
first (``by.require_server(ADMIN)``), because nobody else shall learn what there is. A change asks
again when it is made, whatever it waited for meanwhile. `change_password` asks itself. A change is
applied at once, stands in one entry of the journal, and is durable with the next commit. It may use
the log's reserve; and what takes something from somebody, the last of it, which nothing else may:
a key can be revoked on a full disk.

What needs a password hashed calls ``done`` later, with the account or with what went wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from brokerd.broker.context import Context
from brokerd.broker.journal import BATCH_FRAME_BYTES, Congested
from brokerd.broker.model.map_entries import Map
from brokerd.broker.security.audit import AuditTrail
from brokerd.broker.security.entries import (
    SecurityReplay,
    account_deleted_map,
    apply,
    entry_of,
    key_revoked_map,
    list_deleted_map,
    map_of,
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
from brokerd.security.audit import EventType, Result, event
from brokerd.security.directory import Directory, Policy
from brokerd.security.keys import new_key
from brokerd.security.passwords import Passwords
from brokerd.security.throttle import Throttle

EACH_MAX = 100_000
"""Accounts; access lists; keys."""

AccountDone = Callable[[Account | None, BrokerdError | None], None]


class Accounts:
    """What principals there are, and what they are granted."""

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
        self._journal = context.journal
        self._time = context.time
        self._audit = audit
        self._each_max = each_max
        SecurityReplay(context.state, self.directory)

    # -- accounts -----------------------------------------------------------------------------

    def accounts(self) -> list[Account]:
        """All of them, by name."""
        return sorted(self.directory.accounts.values(), key=lambda account: account.name)

    def account(self, name: str) -> Account:
        """Raises `UnknownAccount`."""
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
        """Make an account; without a password, if that is empty.

        Needs ADMIN by role. ``done`` may get `InvalidName`, `InvalidRequest`, `AccountExists`,
        `LimitExceeded`, `LoginThrottled` (too many passwords wait to be hashed), `Denied`,
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
            admit = self._journal.admit_events
            self._change(by, EventType.USER_CREATED, name, map_of(account), details, admit)
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
        """Change what is not None.

        Raises `UnknownAccount`, `InvalidName`, `LimitExceeded`, `NoSpace` or `Congested`, and
        `InvalidRequest` if nobody would be left who may change anything.
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
        self._keep_an_administrator(by, name, changed)
        details = {"roles": ", ".join(changed.roles), "enabled": _text(changed.enabled)}
        self._change(by, EventType.USER_UPDATED, name, map_of(changed), details)
        return changed

    def change_password(
        self, by: Access, name: str, password: str, done: AccountDone, current: str = ""
    ) -> None:
        """Give an account another password: one's own, with the ``current`` one, or anybody's.

        Who logged in with the former one may do nothing any more, but for ``by``.
        Anybody else's needs ADMIN by role. ``done`` may get `LoginFailed` ("invalid current
        password"), `LoginThrottled`, `Denied`, `AuthenticationRequired`, `UnknownAccount`,
        `InvalidRequest`, `NoSpace` or `ShuttingDown`.
        """

        before = self.directory.accounts.get(name)

        def change(password_hash: str) -> Account:
            self._check_unchanged(by, name, before)
            changed = replace(
                self.account(name), password=password_hash, updated_us=self._time.time_us()
            )
            admit = self._journal.admit_events if by.name == name else None
            self._change(by, EventType.PASSWORD_CHANGED, name, map_of(changed), admit=admit)
            if by.name == name:
                by.keep_up()
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
        """Ask again before a password that was hashed meanwhile becomes that of an account.

        One's own must be as it was, because one has shown no other; anybody's account must be that
        which it was.
        """
        is_own = bool(name) and by.name == name
        if is_own:
            by.require_known()
        else:
            by.require_server(ADMIN)
        now = self.account(name)
        if before is None or now.account_id != before.account_id:
            raise UnknownAccount(f"the account {name!r} is another one than when this began")
        if is_own and now.password != before.password:
            raise self._current_is_wrong(by)

    def _current_is_wrong(self, by: Access) -> LoginFailed:
        """What is told, here and in the trail, of a wrong current password."""
        self._audit.record(
            event(by.actor, EventType.PASSWORD_CHANGED, by.name, result=Result.FAILURE)
        )
        return LoginFailed("invalid current password")

    def _check_current(
        self, by: Access, current: str, done: AccountDone, go_on: Callable[[], None]
    ) -> None:
        """Go on if this is the password of who asks, and still is when that is known."""
        account = self.account(by.name)
        attempt = self.throttle.begin(by.peer, by.name, self._time.now_us())

        def checked(right: bool | None, error: BrokerdError | None) -> None:
            if error is not None or right:
                self.throttle.give_back(attempt)
            if error is not None:
                done(None, error)
            elif not right or self.directory.accounts.get(by.name) != account:
                done(None, self._current_is_wrong(by))
            else:
                _guarded(go_on, done)

        try:
            self.passwords.check(account.password, current, checked)
        except BrokerdError:
            self.throttle.give_back(attempt)
            raise

    def delete_account(self, by: Access, name: str) -> None:
        """Delete an account and its keys; access lists stay as they are.

        Raises `InvalidRequest` for one's own and that of the last administrator,
        `UnknownAccount`, `NoSpace` or `Congested`.
        """
        if name and by.name == name:
            raise InvalidRequest("cannot delete your own account")
        self.account(name)
        self._keep_an_administrator(by, name, None)
        self._change(by, EventType.USER_DELETED, name, account_deleted_map(name))

    # -- access lists -------------------------------------------------------------------------

    def access_lists(self) -> list[AccessList]:
        """All of them, by topic, each name before the prefix of the same letters."""
        return sorted(self.directory.lists.values(), key=lambda one: one.key)

    def access_list(self, topic: str, prefix: bool = False) -> AccessList | None:
        """The one of a topic, or of a prefix."""
        return self.directory.lists.get((topic, prefix))

    def set_access_list(self, by: Access, access_list: AccessList) -> None:
        """Have a list, instead of the former one if there was one.

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
        self._change(by, EventType.ACL_SET, resource, map_of(access_list), details)

    def delete_access_list(self, by: Access, topic: str, prefix: bool = False) -> bool:
        """Whether there was one. Raises `NoSpace` or `Congested`."""
        if (topic, prefix) not in self.directory.lists:
            return False
        resource = _pattern(topic, prefix)
        self._change(by, EventType.ACL_DELETED, resource, list_deleted_map(topic, prefix))
        return True

    # -- API keys -----------------------------------------------------------------------------

    def keys(self, owner: str | None = None) -> list[ApiKey]:
        """All of them, or those of an account, oldest first."""
        return [key for key in self.directory.keys.values() if owner in (None, key.owner)]

    def make_key(self, by: Access, owner: str, label: str = "") -> NewKey:
        """A key that lets somebody be ``owner``.

        Raises `UnknownAccount`, `InvalidRequest`, `LimitExceeded`, `NoSpace` or `Congested`.
        """
        self.account(owner)
        check_label(label)
        self._check_room(len(self.directory.keys), "API keys")
        made = new_key(owner, label, self._time.time_us(), self.passwords.random_bytes)
        details = {"owner": owner, "label": label}
        admit = self._journal.admit_events
        self._change(by, EventType.KEY_CREATED, made.key.key_id, map_of(made.key), details, admit)
        return made

    def revoke_key(self, by: Access, key_id: str) -> None:
        """Raises `UnknownKey`, `InvalidRequest` for the last one, `NoSpace` or `Congested`.

        The last one is that without which no administrator could log in.
        """
        key = self.directory.keys.get(key_id)
        if key is None:
            raise UnknownKey(f"there is no API key {key_id!r}")
        self._keep_an_administrator(by, key.owner, self.account(key.owner), key_id)
        details = {"owner": key.owner, "label": key.label}
        self._change(by, EventType.KEY_DELETED, key_id, key_revoked_map(key_id), details)

    # -- how it is done -----------------------------------------------------------------------

    def _keep_an_administrator(
        self, by: Access, name: str, after: Account | None, without_key: str = ""
    ) -> None:
        """Raise `InvalidRequest` if no administrator who can log in would be left.

        ``after`` is the account of that name then. One can log in by a password, by a key, or as
        ``by`` did, by a certificate say. While security is off nobody needs to.
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
            raise LimitExceeded(f"there are {count} {what} already, and no more can be")

    def _change(
        self,
        by: Access,
        kind: EventType,
        resource: str,
        fields: Map,
        details: Mapping[str, str] | None = None,
        admit: Callable[[int], None] | None = None,
    ) -> None:
        """Do what a map says, here and in the log. Raises `NoSpace` or `Congested`.

        Asks again whether ``by`` may, who may have waited for room in the log since he was asked.
        ``admit`` finds room in the log; if none is given, in the last of the reserve too.
        """
        if kind is not EventType.PASSWORD_CHANGED:  # which may be one's own; it has been asked
            by.require_server(ADMIN)
        entry = entry_of(fields)
        room_for = admit or self._journal.admit_last

        def change() -> None:
            room_for(len(entry.body) + BATCH_FRAME_BYTES)
            self._journal.add_entry(entry)
            apply(self.directory, fields)

        self._audit.carry_out(by.actor, kind, resource, change, details, admit=room_for)

    def _with_hash(
        self, password: str, change: Callable[[str], Account], done: AccountDone
    ) -> None:
        """Make a change with the hash of a password, or with "" for none, later or now."""
        if not password:
            self._until_done(partial(change, ""), done)
            return
        check_password(password)

        def hashed(password_hash: str | None, error: BrokerdError | None) -> None:
            if password_hash is None:
                done(None, error)
            else:
                self._until_done(partial(change, password_hash), done)

        self.passwords.hash(password, hashed)

    def _until_done(self, change: Callable[[], Account], done: AccountDone) -> None:
        """Make a change, when the log has room."""
        try:
            account = change()
        except Congested:
            self._journal.when_uncongested(partial(self._until_done, change, done))
        except BrokerdError as error:
            done(None, error)
        else:
            done(account, None)


def _guarded(begin: Callable[[], None], done: AccountDone) -> None:
    """Call, and tell ``done`` what is wrong already."""
    try:
        begin()
    except BrokerdError as error:
        done(None, error)


def _unique(roles: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(roles))


def _text(value: bool) -> str:
    return "true" if value else "false"


def _pattern(topic: str, prefix: bool) -> str:
    """How the audit trail names an access list."""
    return f"{topic}*" if prefix else topic


def _grants(grants: Mapping[str, int]) -> str:
    """Such as ``ann:read+write, bob:read``."""
    return ", ".join(f"{name}:{'+'.join(names_of(bits))}" for name, bits in grants.items())
