# Tests: tests/codecs/test_flymq_accounts.py
"""Logins, users, access lists and roles: requests and answers, free of bytes.

Layouts: docs/protocols/flymq.rst, 0x70 to 0x7D. Passwords are not in any ``repr``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Auth:
    user: str
    password: str = field(repr=False)


class WhoAmI(NamedTuple):
    pass


@dataclass(frozen=True, slots=True)
class CreateUser:
    user: str
    password: str = field(repr=False)
    roles: tuple[str, ...] = ()


class DeleteUser(NamedTuple):
    user: str


class UpdateUser(NamedTuple):
    """Set the roles and whether the account is enabled."""

    user: str
    roles: tuple[str, ...] = ()
    enabled: bool = False


class ListUsers(NamedTuple):
    pass


class GetUser(NamedTuple):
    user: str


@dataclass(frozen=True, slots=True)
class ChangePassword:
    user: str
    password: str = field(repr=False)
    """The new password."""
    old_password: str = field(default="", repr=False)


class SetAcl(NamedTuple):
    topic: str
    public: bool = False
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


class GetAcl(NamedTuple):
    topic: str


class DeleteAcl(NamedTuple):
    topic: str


class ListAcls(NamedTuple):
    pass


class ListRoles(NamedTuple):
    pass


AccountRequest = (
    Auth
    | WhoAmI
    | CreateUser
    | DeleteUser
    | UpdateUser
    | ListUsers
    | GetUser
    | ChangePassword
    | SetAcl
    | GetAcl
    | DeleteAcl
    | ListAcls
    | ListRoles
)


class LoggedIn(NamedTuple):
    """A login succeeded. In the neutral layout the names are missing."""

    user: str
    roles: tuple[str, ...] = ()


class Identity(NamedTuple):
    """The answer to WHOAMI."""

    is_known: bool
    """Whether the connection has an account; otherwise the other fields are empty."""
    user: str = ""
    roles: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()


class User(NamedTuple):
    """An account in an answer."""

    name: str
    roles: tuple[str, ...]
    permissions: tuple[str, ...]
    """Empty except in the answer to USER_GET."""
    enabled: bool
    created_seconds: int
    """Since the Unix epoch; 0 in the answer to USER_CREATE."""
    updated_seconds: int


class Users(NamedTuple):
    users: tuple[User, ...]


class Acl(NamedTuple):
    """The access list of a topic."""

    topic: str
    exists: bool
    public: bool
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


class OneAcl(NamedTuple):
    """The answer to ACL_GET."""

    acl: Acl
    default_public: bool
    """Whether topics without a list are public; sent only for such a topic."""


class Acls(NamedTuple):
    """The answer to ACL_LIST."""

    acls: tuple[Acl, ...]
    default_public: bool


class Role(NamedTuple):
    name: str
    permissions: tuple[str, ...]
    description: str


class Roles(NamedTuple):
    roles: tuple[Role, ...]


AccountAnswer = LoggedIn | Identity | User | Users | OneAcl | Acls | Roles
