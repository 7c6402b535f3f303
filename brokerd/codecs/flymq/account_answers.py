# Tests: tests/codecs/test_flymq_accounts.py
"""Encodes answers about users, access lists and roles (page, section Operations)."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from brokerd.codecs.flymq.account_values import Acl, Role, User
from brokerd.codecs.flymq.fields import pack_text, pack_texts
from brokerd.codecs.flymq.frames import frame
from brokerd.codecs.flymq.values import Opcode

_U32 = Struct(">I")
_TIMES = Struct(">?qq")


def user(opcode: int, one: User) -> bytes:
    """The answer to USER_CREATE or USER_GET."""
    return frame(opcode, _user(one))


def users(found: Sequence[User]) -> bytes:
    """The answer to USER_LIST, in the order given."""
    return frame(Opcode.USER_LIST, _U32.pack(len(found)) + b"".join(map(_user, found)))


def _user(one: User) -> bytes:
    names = pack_text(one.name) + pack_texts(one.roles) + pack_texts(one.permissions)
    return names + _TIMES.pack(one.enabled, one.created_seconds, one.updated_seconds)


def acl(one: Acl, default_public: bool) -> bytes:
    """The answer to ACL_GET. It contains ``default_public`` if the topic has no list."""
    flags = bytes([one.exists, one.public, default_public and not one.exists])
    payload = pack_text(one.topic) + flags + pack_texts(one.users) + pack_texts(one.roles)
    return frame(Opcode.ACL_GET, payload)


def acls(found: Sequence[Acl], default_public: bool) -> bytes:
    """The answer to ACL_LIST, in the order given."""
    parts = [_U32.pack(len(found)), *map(_acl, found), bytes([default_public])]
    return frame(Opcode.ACL_LIST, b"".join(parts))


def _acl(one: Acl) -> bytes:
    flags = bytes([one.exists, one.public])
    return pack_text(one.topic) + flags + pack_texts(one.users) + pack_texts(one.roles)


def roles(found: Sequence[Role]) -> bytes:
    """The answer to ROLE_LIST, in the order given."""
    return frame(Opcode.ROLE_LIST, _U32.pack(len(found)) + b"".join(map(_role, found)))


def _role(one: Role) -> bytes:
    return pack_text(one.name) + pack_texts(one.permissions) + pack_text(one.description)
