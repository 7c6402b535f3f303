# Tests: tests/protocols/test_flymq_accounts.py
"""FlyMQ's logins, users, access lists and roles (docs/protocols/flymq.rst, 0x70 to 0x7D).

Texts of refusals are those of flymq-payloads, 5.70 to 5.7C. A permission is asked for before it is
looked whether there is what the request names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from brokerd.broker import Broker
from brokerd.codecs import flymq
from brokerd.codecs.flymq import (
    Acl,
    Auth,
    AuthLayout,
    ChangePassword,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    GetAcl,
    GetUser,
    Identity,
    ListAcls,
    ListRoles,
    ListUsers,
    Opcode,
    Role,
    SetAcl,
    UpdateUser,
    User,
    WhoAmI,
)
from brokerd.errors import AccountExists, BrokerdError, InvalidRequest, UnknownAccount
from brokerd.protocols.base.steps import Done
from brokerd.protocols.base.transport import peer_text
from brokerd.protocols.flymq.request import RequestConnection
from brokerd.protocols.flymq.topics import fitting
from brokerd.security import ADMIN, READ, WRITE, Access
from brokerd.security.access import names_of
from brokerd.security.accounts import ROLES, AccessList, Account

SECOND_US = 1_000_000

# -- who somebody is --------------------------------------------------------------------------


def auth(connection: RequestConnection, request: Auth, layout: AuthLayout) -> bytes:
    """AUTH: be somebody from now on. A login that fails leaves what was."""
    factory = connection.factory
    peer = peer_text(connection.transport)
    log_in = partial(factory.guard.log_in, factory.name, peer, request.user, request.password)
    try:
        access: Access = connection.await_result(request, log_in)
    except BrokerdError as refusal:
        return flymq.login_refused(str(refusal))
    connection.access = access
    return flymq.logged_in(access.name or request.user, access.roles, layout)


def who_am_i(connection: RequestConnection, request: WhoAmI) -> bytes:
    """WHOAMI: nobody, unless somebody has logged in and is let in now."""
    access = connection.access
    if not access.name or not access.is_known:
        return flymq.identity(Identity(False))
    return flymq.identity(Identity(True, access.name, access.roles, names_of(access.permissions)))


# -- users ------------------------------------------------------------------------------------


def create_user(connection: RequestConnection, request: CreateUser) -> bytes:
    """USER_CREATE: enabled, whatever the request says."""

    def create(done: Done[Account]) -> None:
        connection.access.require_server(ADMIN)
        if not request.user or not request.password:
            raise InvalidRequest("username and password are required")
        connection.broker.accounts.create_account(
            connection.access, request.user, request.password, request.roles, done
        )

    try:
        account = connection.await_result(request, create)
    except AccountExists:
        raise AccountExists(f'user "{request.user}" already exists') from None
    made = User(account.name, account.roles, (), account.enabled, 0, 0)
    return flymq.user(Opcode.USER_CREATE, made)


def delete_user(connection: RequestConnection, request: DeleteUser) -> bytes:
    """USER_DELETE: anybody but oneself."""
    connection.access.require_server(ADMIN)
    _existing(connection.broker, request.user)
    connection.broker.accounts.delete_account(connection.access, request.user)
    return flymq.ok(Opcode.USER_DELETE, request.user)


def update_user(connection: RequestConnection, request: UpdateUser) -> bytes:
    """USER_UPDATE: roles and whether it is enabled, both as they are given."""
    connection.access.require_server(ADMIN)
    _existing(connection.broker, request.user)
    connection.broker.accounts.update_account(
        connection.access, request.user, request.roles, request.enabled
    )
    return flymq.ok(Opcode.USER_UPDATE, request.user)


def change_password(connection: RequestConnection, request: ChangePassword) -> bytes:
    """PASSWORD_CHANGE: one's own with the old one, or anybody's with ADMIN."""
    change = partial(
        connection.broker.accounts.change_password,
        connection.access,
        request.user,
        request.password,
        current=request.old_password,
    )
    try:
        connection.await_result(request, change)
    except UnknownAccount:
        raise _unknown(request.user) from None
    return flymq.ok(Opcode.PASSWORD_CHANGE, request.user)


def list_users(connection: RequestConnection, request: ListUsers) -> bytes:
    """USER_LIST: sorted, without permissions."""
    connection.access.require_server(ADMIN)
    found = [_user(account, ()) for account in connection.broker.accounts.accounts()]
    return fitting(flymq.users(found), "the list of all users")


def get_user(connection: RequestConnection, request: GetUser) -> bytes:
    """USER_GET."""
    connection.access.require_server(ADMIN)
    account = _existing(connection.broker, request.user)
    return flymq.user(Opcode.USER_GET, _user(account, names_of(account.permissions)))


def _existing(broker: Broker, name: str) -> Account:
    """The account of this name. Raises `UnknownAccount`."""
    try:
        return broker.accounts.account(name)
    except UnknownAccount:
        raise _unknown(name) from None


def _unknown(name: str) -> UnknownAccount:
    return UnknownAccount(f'user "{name}" not found')


def _user(account: Account, permissions: tuple[str, ...]) -> User:
    return User(
        account.name,
        account.roles,
        permissions,
        account.enabled,
        account.created_us // SECOND_US,
        account.updated_us // SECOND_US,
    )


# -- access lists and roles -------------------------------------------------------------------


def set_acl(connection: RequestConnection, request: SetAcl) -> bytes:
    """ACL_SET: this is the topic's list from now on, whether or not there is the topic."""
    connection.access.require_server(ADMIN)
    accounts = connection.broker.accounts
    if request.public and not accounts.directory.policy.allow_anonymous:
        raise InvalidRequest(
            "cannot make topic public because anonymous access is disabled in server configuration"
        )
    users = dict.fromkeys(request.users, READ | WRITE)
    roles = dict.fromkeys(request.roles, READ | WRITE)
    made = AccessList(request.topic, False, request.public, users, roles)
    accounts.set_access_list(connection.access, made)
    return flymq.ok(Opcode.ACL_SET, request.topic)


def get_acl(connection: RequestConnection, request: GetAcl) -> bytes:
    """ACL_GET: the topic's own list, not those of prefixes."""
    connection.access.require_server(ADMIN)
    accounts = connection.broker.accounts
    found = accounts.access_list(request.topic)
    acl = Acl(request.topic, False, False) if found is None else _acl(found)
    return flymq.acl(acl, accounts.directory.policy.default_public)


def delete_acl(connection: RequestConnection, request: DeleteAcl) -> bytes:
    """ACL_DELETE: one that is not there is success."""
    connection.access.require_server(ADMIN)
    connection.broker.accounts.delete_access_list(connection.access, request.topic)
    return flymq.ok(Opcode.ACL_DELETE, request.topic)


def list_acls(connection: RequestConnection, request: ListAcls) -> bytes:
    """ACL_LIST: sorted; those of prefixes have no place in it."""
    connection.access.require_server(ADMIN)
    accounts = connection.broker.accounts
    found = [_acl(one) for one in accounts.access_lists() if not one.prefix]
    answer = flymq.acls(found, accounts.directory.policy.default_public)
    return fitting(answer, "the list of all access lists")


def _acl(found: AccessList) -> Acl:
    return Acl(found.topic, True, found.public, _granted(found.users), _granted(found.roles))


def _granted(grants: Mapping[str, int]) -> tuple[str, ...]:
    """Who may read or write; this format knows no difference."""
    return tuple(sorted(name for name, bits in grants.items() if bits & (READ | WRITE)))


def list_roles(connection: RequestConnection, request: ListRoles) -> bytes:
    """ROLE_LIST: those that give something by themselves."""
    connection.access.require_known()
    roles = sorted(ROLES.values())
    return flymq.roles(
        [Role(one.name, names_of(one.permissions), one.description) for one in roles]
    )


ANSWERS: dict[type, Callable[[RequestConnection, Any], bytes]] = {
    WhoAmI: who_am_i,
    CreateUser: create_user,
    DeleteUser: delete_user,
    UpdateUser: update_user,
    ListUsers: list_users,
    GetUser: get_user,
    SetAcl: set_acl,
    GetAcl: get_acl,
    DeleteAcl: delete_acl,
    ListAcls: list_acls,
    ChangePassword: change_password,
    ListRoles: list_roles,
}
"""Carries a request out, other than AUTH, and returns its answer."""
