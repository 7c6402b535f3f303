# Tests: tests/codecs/test_flymq_accounts.py
"""Decodes requests 0x70 to 0x7D (page, section Operations)."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.codecs.flymq.account_values import (
    AccountRequest,
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
    SetAcl,
    UpdateUser,
    WhoAmI,
)
from brokerd.codecs.flymq.fields import Fields
from brokerd.codecs.flymq.values import Opcode


def _auth(fields: Fields) -> Auth:
    return Auth(fields.text("user"), fields.text("password"))


def _user_fields(fields: Fields) -> tuple[str, str, str, tuple[str, ...], bool]:
    """Return the fields that USER_CREATE, USER_UPDATE and PASSWORD_CHANGE share."""
    name = fields.text("user")
    password = fields.text("password")
    old_password = fields.text("old password")
    roles = fields.texts("roles")
    return name, password, old_password, roles, fields.flag("enabled") if fields.left else False


def _create_user(fields: Fields) -> CreateUser:
    name, password, _, roles, _ = _user_fields(fields)
    return CreateUser(name, password, roles)


def _update_user(fields: Fields) -> UpdateUser:
    name, _, _, roles, enabled = _user_fields(fields)
    return UpdateUser(name, roles, enabled)


def _change_password(fields: Fields) -> ChangePassword:
    name, password, old_password, _, _ = _user_fields(fields)
    return ChangePassword(name, password, old_password)


def _set_acl(fields: Fields) -> SetAcl:
    topic = fields.text("topic")
    public = fields.flag("public")
    return SetAcl(topic, public, fields.texts("users"), fields.texts("roles"))


DECODERS: dict[int, Callable[[Fields], AccountRequest]] = {
    Opcode.AUTH: _auth,
    Opcode.WHOAMI: lambda fields: WhoAmI(),
    Opcode.USER_CREATE: _create_user,
    Opcode.USER_DELETE: lambda fields: DeleteUser(fields.text("user")),
    Opcode.USER_UPDATE: _update_user,
    Opcode.USER_LIST: lambda fields: ListUsers(),
    Opcode.USER_GET: lambda fields: GetUser(fields.text("user")),
    Opcode.ACL_SET: _set_acl,
    Opcode.ACL_GET: lambda fields: GetAcl(fields.text("topic")),
    Opcode.ACL_DELETE: lambda fields: DeleteAcl(fields.text("topic")),
    Opcode.ACL_LIST: lambda fields: ListAcls(),
    Opcode.PASSWORD_CHANGE: _change_password,
    Opcode.ROLE_LIST: lambda fields: ListRoles(),
}
