# Tests: tests/codecs/test_flymq_accounts.py
"""The client's side of 0x70 to 0x7D: encodes requests and decodes answers strictly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd.codecs.flymq.account_values import (
    AccountAnswer,
    Acl,
    Acls,
    Auth,
    ChangePassword,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    GetAcl,
    GetUser,
    ListAcls,
    ListRoles,
    ListUsers,
    OneAcl,
    Role,
    Roles,
    SetAcl,
    UpdateUser,
    User,
    Users,
    WhoAmI,
)
from brokerd.codecs.flymq.fields import Fields, pack_text, pack_texts
from brokerd.codecs.flymq.logins import identity_of, login_of
from brokerd.codecs.flymq.values import Failed, Opcode, Request

_USER_BYTES = 27
_ACL_BYTES = 12
_ROLE_BYTES = 8

OPCODES: dict[type[Request], Opcode] = {
    Auth: Opcode.AUTH,
    WhoAmI: Opcode.WHOAMI,
    CreateUser: Opcode.USER_CREATE,
    DeleteUser: Opcode.USER_DELETE,
    UpdateUser: Opcode.USER_UPDATE,
    ListUsers: Opcode.USER_LIST,
    GetUser: Opcode.USER_GET,
    SetAcl: Opcode.ACL_SET,
    GetAcl: Opcode.ACL_GET,
    DeleteAcl: Opcode.ACL_DELETE,
    ListAcls: Opcode.ACL_LIST,
    ChangePassword: Opcode.PASSWORD_CHANGE,
    ListRoles: Opcode.ROLE_LIST,
}


def _user_fields(
    user: str, password: str, old_password: str, roles: tuple[str, ...], enabled: bool
) -> bytes:
    names = b"".join(map(pack_text, (user, password, old_password)))
    return names + pack_texts(roles) + bytes([enabled])


def _set_acl_payload(request: SetAcl) -> bytes:
    names = pack_texts(request.users) + pack_texts(request.roles)
    return pack_text(request.topic) + bytes([request.public]) + names


PAYLOADS: dict[type[Request], Callable[[Any], bytes]] = {
    Auth: lambda one: pack_text(one.user) + pack_text(one.password),
    WhoAmI: lambda one: b"",
    CreateUser: lambda one: _user_fields(one.user, one.password, "", one.roles, True),
    DeleteUser: lambda one: pack_text(one.user),
    UpdateUser: lambda one: _user_fields(one.user, "", "", one.roles, one.enabled),
    ListUsers: lambda one: b"",
    GetUser: lambda one: pack_text(one.user),
    SetAcl: _set_acl_payload,
    GetAcl: lambda one: pack_text(one.topic),
    DeleteAcl: lambda one: pack_text(one.topic),
    ListAcls: lambda one: b"",
    ChangePassword: lambda one: _user_fields(one.user, one.password, one.old_password, (), False),
    ListRoles: lambda one: b"",
}


def _user(fields: Fields) -> User:
    return User(
        fields.text("user"),
        fields.texts("roles"),
        fields.texts("permissions"),
        fields.flag("enabled"),
        fields.i64("created"),
        fields.i64("updated"),
    )


def _users(fields: Fields) -> Users:
    return Users(tuple([_user(fields) for _ in range(fields.count("users", _USER_BYTES))]))


def _one_acl(fields: Fields) -> OneAcl:
    topic = fields.text("topic")
    exists, public = fields.flag("exists"), fields.flag("public")
    default_public = fields.flag("default public")
    acl = Acl(topic, exists, public, fields.texts("users"), fields.texts("roles"))
    return OneAcl(acl, default_public)


def _acls(fields: Fields) -> Acls:
    found = tuple([_acl(fields) for _ in range(fields.count("lists", _ACL_BYTES))])
    return Acls(found, fields.flag("default public"))


def _acl(fields: Fields) -> Acl:
    return Acl(
        fields.text("topic"),
        fields.flag("exists"),
        fields.flag("public"),
        fields.texts("users"),
        fields.texts("roles"),
    )


def _roles(fields: Fields) -> Roles:
    return Roles(tuple([_role(fields) for _ in range(fields.count("roles", _ROLE_BYTES))]))


def _role(fields: Fields) -> Role:
    return Role(fields.text("role"), fields.texts("permissions"), fields.text("description"))


ANSWERS: dict[int, Callable[[Fields], AccountAnswer | Failed]] = {
    Opcode.AUTH: login_of,
    Opcode.WHOAMI: identity_of,
    Opcode.USER_CREATE: _user,
    Opcode.USER_LIST: _users,
    Opcode.USER_GET: _user,
    Opcode.ACL_GET: _one_acl,
    Opcode.ACL_LIST: _acls,
    Opcode.ROLE_LIST: _roles,
}
"""Decoders of answers other than OKMSG."""
