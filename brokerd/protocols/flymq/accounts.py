# Tests: tests/protocols/test_flymq_accounts.py
"""FlyMQ's logins, users, access lists and roles (docs/protocols/flymq.rst, 0x70 to 0x7D).

Texts of refusals are those of the page. A permission is checked before the
existence of the named object.
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

# -- login ------------------------------------------------------------------------------------


def auth(connection: RequestConnection, request: Auth, layout: AuthLayout) -> bytes:
    """AUTH: log in. A failed login leaves the connection's access unchanged."""
    factory = connection.factory
    peer = peer_text(connection.transport)
    log_in = partial(factory.guard.log_in, factory.name, peer, request.user, request.password)
    try:
        access: Access = connection.await_result(request, log_in)
    except BrokerdError as refusal:
        return flymq.login_refused(str(refusal))
    connection.logged_in(access)
    return flymq.logged_in(access.name or request.user, access.roles, layout)


def who_am_i(connection: RequestConnection, request: WhoAmI) -> bytes:
    """WHOAMI: the account of the connection, or no account."""
    access = connection.access
    if not access.name or not access.is_known:
        return flymq.identity(Identity(False))
    return flymq.identity(Identity(True, access.name, access.roles, names_of(access.permissions)))


# -- users ------------------------------------------------------------------------------------


def create_user(connection: RequestConnection, request: CreateUser) -> bytes:
    """USER_CREATE: create an enabled account."""

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
    """USER_DELETE: delete an account other than the client's own."""
    connection.access.require_server(ADMIN)
    _existing(connection.broker, request.user)
    connection.broker.accounts.delete_account(connection.access, request.user)
    return flymq.ok(Opcode.USER_DELETE, request.user)


def update_user(connection: RequestConnection, request: UpdateUser) -> bytes:
    """USER_UPDATE: set an account's roles and whether it is enabled."""
    connection.access.require_server(ADMIN)
    _existing(connection.broker, request.user)
    connection.broker.accounts.update_account(
        connection.access, request.user, request.roles, request.enabled
    )
    return flymq.ok(Opcode.USER_UPDATE, request.user)


def change_password(connection: RequestConnection, request: ChangePassword) -> bytes:
    """PASSWORD_CHANGE: the client's own, with the old password, or any with ADMIN."""
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
    """USER_LIST: all accounts, sorted, without permissions."""
    connection.access.require_server(ADMIN)
    found = [_user(account, ()) for account in connection.broker.accounts.accounts()]
    return fitting(flymq.users(found), "the list of all users")


def get_user(connection: RequestConnection, request: GetUser) -> bytes:
    """USER_GET: one account with its permissions."""
    connection.access.require_server(ADMIN)
    account = _existing(connection.broker, request.user)
    return flymq.user(Opcode.USER_GET, _user(account, names_of(account.permissions)))


def _existing(broker: Broker, name: str) -> Account:
    """Return the account of this name. Raises `UnknownAccount`."""
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
    """ACL_SET: replace a topic's access list. The topic need not exist."""
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
    """ACL_GET: the access list of the topic itself, not of prefixes."""
    connection.access.require_server(ADMIN)
    accounts = connection.broker.accounts
    found = accounts.access_list(request.topic)
    acl = Acl(request.topic, False, False) if found is None else _acl(found)
    return flymq.acl(acl, accounts.directory.policy.default_public)


def delete_acl(connection: RequestConnection, request: DeleteAcl) -> bytes:
    """ACL_DELETE: delete a topic's access list; succeeds without one."""
    connection.access.require_server(ADMIN)
    connection.broker.accounts.delete_access_list(connection.access, request.topic)
    return flymq.ok(Opcode.ACL_DELETE, request.topic)


def list_acls(connection: RequestConnection, request: ListAcls) -> bytes:
    """ACL_LIST: the access lists of topics, sorted, without those of prefixes."""
    connection.access.require_server(ADMIN)
    accounts = connection.broker.accounts
    found = [_acl(one) for one in accounts.access_lists() if not one.prefix]
    answer = flymq.acls(found, accounts.directory.policy.default_public)
    return fitting(answer, "the list of all access lists")


def _acl(found: AccessList) -> Acl:
    return Acl(found.topic, True, found.public, _granted(found.users), _granted(found.roles))


def _granted(grants: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names that may read or write. FlyMQ has one permission for both."""
    return tuple(sorted(name for name, bits in grants.items() if bits & (READ | WRITE)))


def list_roles(connection: RequestConnection, request: ListRoles) -> bytes:
    """ROLE_LIST: the roles, sorted by name."""
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
"""Functions that carry out a request other than AUTH and return its answer."""
