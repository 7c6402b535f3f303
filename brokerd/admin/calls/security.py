# Tests: tests/admin/test_security_calls.py
"""The API's calls about accounts, access lists and keys (docs/security.rst)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import UNSET
from twisted.internet.defer import Deferred
from twisted.web import http

from brokerd.admin.http.routing import Call, NotFound, Route
from brokerd.admin.shapes.common import Deleted, Page, time_of
from brokerd.admin.shapes.security import (
    AccessLists,
    AccessListShape,
    AccountChanges,
    AccountList,
    AccountShape,
    DeletedAccount,
    GrantChanges,
    Granted,
    Grants,
    KeyList,
    KeyShape,
    MadeKey,
    NewAccount,
    NewKeyOf,
    NewPassword,
    WhoAmI,
    WhoAmIQuery,
)
from brokerd.errors import BrokerdError
from brokerd.security import ADMIN, OPEN, READ, WRITE, Access, access, quotas
from brokerd.security.accounts import AccessList, Account

_BITS = {name: bit for bit, name in access.NAMES.items()}

# -- who ----------------------------------------------------------------------------------------


def who_am_i(call: Call) -> WhoAmI:
    """Return the account of the request and its permissions, by role and on a topic."""
    access, query = call.access, call.query
    return WhoAmI(
        access.name,
        [*access.roles],
        names_of(access.permissions),
        call.access is not OPEN,
        access.is_known,
        UNSET if query.topic is None else names_of(permissions_on(access, query.topic)),
    )


# -- accounts -----------------------------------------------------------------------------------


def list_accounts(call: Call) -> AccountList:
    """Return a page of accounts."""
    query: Page = call.query
    page, following = query.select(call.broker.accounts.accounts(), 1)
    return AccountList([account_shape(one) for one in page], following)


def describe_account(call: Call) -> AccountShape:
    """Return an account. Raises `UnknownAccount`."""
    return account_shape(call.broker.accounts.account(call.path["name"]))


async def create_account(call: Call) -> AccountShape:
    """Create an account. Raises as `Accounts.create_account`."""
    new: NewAccount = call.body
    made = await _later(
        call,
        lambda done: call.broker.accounts.create_account(
            call.access, new.name, new.password, new.roles, done, new.enabled
        ),
    )
    return account_shape(made)


async def update_account(call: Call) -> AccountShape:
    """Change roles, or enable or disable an account. Raises as `Accounts.update_account`."""
    changes: AccountChanges = call.body
    update = partial(
        call.broker.accounts.update_account,
        call.access,
        call.path["name"],
        None if changes.roles is UNSET else changes.roles,
        None if changes.enabled is UNSET else changes.enabled,
    )
    return account_shape(await call.when_admitted(update))


async def change_password(call: Call) -> AccountShape:
    """Change a password. Raises as `Accounts.change_password`."""
    new: NewPassword = call.body
    changed = await _later(
        call,
        lambda done: call.broker.accounts.change_password(
            call.access, call.path["name"], new.password, done, new.current
        ),
    )
    return account_shape(changed)


async def delete_account(call: Call) -> DeletedAccount:
    """Delete an account. Raises as `Accounts.delete_account`."""
    name = call.path["name"]
    await call.when_admitted(partial(call.broker.accounts.delete_account, call.access, name))
    return DeletedAccount(name, call.broker.quotas.find(quotas.ACCOUNT, name) is not None)


async def _later(call: Call, begin: Callable[[Any], None]) -> Account:
    """Return the result of a call that hashes a password, once it is durable."""
    changed: Deferred[Account] = Deferred()

    def done(account: Account | None, refusal: BrokerdError | None) -> None:
        if account is None:
            changed.errback(refusal)
        else:
            call.broker.group_commit.when_all_durable(partial(changed.callback, account))

    begin(done)
    return await changed


# -- access lists -------------------------------------------------------------------------------


def list_access_lists(call: Call) -> AccessLists:
    """Return a page of access lists."""
    query: Page = call.query
    page, following = query.select(call.broker.accounts.access_lists(), 1)
    return AccessLists([access_list_shape(one) for one in page], following)


def describe_access_list(call: Call, prefix: bool) -> AccessListShape:
    """Return an access list. Raises `NotFound`."""
    name = call.path["name"]
    found = call.broker.accounts.access_list(name, prefix)
    if found is None:
        raise NotFound(f"there is no access list of {'the prefix' if prefix else 'topic'} {name!r}")
    return access_list_shape(found)


async def set_access_list(call: Call, prefix: bool) -> AccessListShape:
    """Replace an access list. Raises as `Accounts.set_access_list`."""
    grants: Grants = call.body
    after = AccessList(
        call.path["name"], prefix, grants.public, _granted(grants.users), _granted(grants.roles)
    )
    await call.when_admitted(partial(call.broker.accounts.set_access_list, call.access, after))
    return access_list_shape(after)


async def change_access_list(call: Call, prefix: bool) -> AccessListShape:
    """Grant and revoke. Raises as `Accounts.set_access_list`.

    A list that grants nothing stays: without any list, a topic may be public.
    """
    changes: GrantChanges = call.body
    accounts, name = call.broker.accounts, call.path["name"]

    def change() -> AccessList:
        current = accounts.access_list(name, prefix)
        before = current or AccessList(name, prefix)
        after = replace(
            before,
            public=before.public if changes.public is UNSET else changes.public,
            users=_changed(before.users, changes.grant_users, changes.revoke_users),
            roles=_changed(before.roles, changes.grant_roles, changes.revoke_roles),
        )
        if current is not None or after != before or changes.public is not UNSET:
            accounts.set_access_list(call.access, after)
        return after

    return access_list_shape(await call.when_admitted(change))


async def delete_access_list(call: Call, prefix: bool) -> Deleted:
    """Delete an access list, if it exists."""
    name = call.path["name"]
    await call.when_admitted(
        partial(call.broker.accounts.delete_access_list, call.access, name, prefix)
    )
    return Deleted(name)


def _changed(
    before: Mapping[str, int],
    grant: Mapping[str, list[Granted]],
    revoke: Mapping[str, list[Granted]],
) -> dict[str, int]:
    after = dict(before)
    for name, permissions in _granted(grant).items():
        after[name] = after.get(name, 0) | permissions
    for name, permissions in _granted(revoke).items():
        after[name] = after.get(name, 0) & ~permissions
    return {name: permissions for name, permissions in after.items() if permissions}


# -- keys ---------------------------------------------------------------------------------------


def list_keys(call: Call) -> KeyList:
    """Return a page of keys."""
    query: Page = call.query
    page, following = query.select(call.broker.accounts.keys(), 1)
    shown = [KeyShape(one.key_id, one.owner, one.label, time_of(one.created_us)) for one in page]
    return KeyList(shown, following)


async def make_key(call: Call) -> MadeKey:
    """Create an API key. Raises as `Accounts.make_key`."""
    new: NewKeyOf = call.body
    made = await call.when_admitted(
        partial(call.broker.accounts.make_key, call.access, new.user, new.label)
    )
    return MadeKey(made.key.key_id, made.key.owner, made.key.label, made.secret)


async def revoke_key(call: Call) -> Deleted:
    """Revoke an API key. Raises as `Accounts.revoke_key`."""
    key_id = call.path["key_id"]
    await call.when_admitted(partial(call.broker.accounts.revoke_key, call.access, key_id))
    return Deleted(key_id)


# -- shapes -------------------------------------------------------------------------------------


def account_shape(account: Account) -> AccountShape:
    """Describe an account, without its password."""
    return AccountShape(
        name=account.name,
        roles=[*account.roles],
        permissions=names_of(account.permissions),
        enabled=account.enabled,
        has_password=bool(account.password),
        created=time_of(account.created_us),
        updated=time_of(account.updated_us),
    )


def access_list_shape(found: AccessList) -> AccessListShape:
    """Describe an access list, with sorted names."""

    def shown(grants: Mapping[str, int]) -> dict[str, list[Granted]]:
        return {name: names_of(permissions) for name, permissions in sorted(grants.items())}

    return AccessListShape(
        found.topic, found.prefix, found.public, shown(found.users), shown(found.roles)
    )


def permissions_on(access: Access, topic_name: str) -> int:
    """Return the permissions on a topic, existing or not."""
    return sum(bit for bit in (READ, WRITE, ADMIN) if access.may(bit, topic_name))


def names_of(permissions: int) -> list[Any]:
    """Return the names of permissions, as in the shapes."""
    return [*access.names_of(permissions)]


def _granted(grants: Mapping[str, list[Granted]]) -> dict[str, int]:
    return {name: sum({_BITS[one] for one in given}) for name, given in grants.items()}


ACCOUNT, KEY = "/users/{name}", "/keys/{key_id}"
LISTS = {False: "/acls/topics/{name}", True: "/acls/prefixes/{name}"}


def _list_routes(prefix: bool) -> list[Route]:
    path, what = LISTS[prefix], "a prefix" if prefix else "a topic"

    def of(act: Callable[..., Any]) -> Any:
        bound = partial(act, prefix=prefix)
        bound.__name__ = f"{act.__name__}_of_{'prefix' if prefix else 'topic'}"  # type: ignore[attr-defined]
        return bound

    return [
        Route(
            "GET",
            path,
            ADMIN,
            f"Show the access list of {what}",
            of(describe_access_list),
            AccessListShape,
        ),
        Route(
            "PUT",
            path,
            ADMIN,
            f"Replace the access list of {what}",
            of(set_access_list),
            AccessListShape,
            body=Grants,
        ),
        Route(
            "PATCH",
            path,
            ADMIN,
            f"Grant and revoke on {what}",
            of(change_access_list),
            AccessListShape,
            body=GrantChanges,
        ),
        Route(
            "DELETE",
            path,
            ADMIN,
            f"Delete the access list of {what}",
            of(delete_access_list),
            Deleted,
        ),
    ]


ROUTES = [
    Route(
        "GET",
        "/whoami",
        0,
        "Show the account of this request and its permissions",
        who_am_i,
        WhoAmI,
        query=WhoAmIQuery,
    ),
    Route("GET", "/users", ADMIN, "List accounts, by name", list_accounts, AccountList, query=Page),
    Route(
        "POST",
        "/users",
        ADMIN,
        "Create an account",
        create_account,
        AccountShape,
        body=NewAccount,
        status=http.CREATED,
    ),
    Route("GET", ACCOUNT, ADMIN, "Show an account", describe_account, AccountShape),
    Route(
        "PATCH",
        ACCOUNT,
        ADMIN,
        "Change roles, or enable or disable an account",
        update_account,
        AccountShape,
        body=AccountChanges,
    ),
    Route(
        "DELETE", ACCOUNT, ADMIN, "Delete an account and its keys", delete_account, DeletedAccount
    ),
    Route(
        "POST",
        f"{ACCOUNT}/password",
        0,
        "Change a password: your own, or as admin any",
        change_password,
        AccountShape,
        body=NewPassword,
    ),
    Route(
        "GET",
        "/acls",
        ADMIN,
        "List all access lists, by topic",
        list_access_lists,
        AccessLists,
        query=Page,
    ),
    *_list_routes(False),
    *_list_routes(True),
    Route("GET", "/keys", ADMIN, "List all API keys, oldest first", list_keys, KeyList, query=Page),
    Route(
        "POST",
        "/keys",
        ADMIN,
        "Create an API key; the answer shows it once",
        make_key,
        MadeKey,
        body=NewKeyOf,
        status=http.CREATED,
    ),
    Route("DELETE", KEY, ADMIN, "Revoke an API key", revoke_key, Deleted),
]
