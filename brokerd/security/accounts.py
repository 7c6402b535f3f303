# Tests: tests/security/test_accounts.py
"""Accounts, access lists and API keys, as frozen values.

No `repr` shows a secret: neither the hash of a password nor that of a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from brokerd.errors import InvalidName, InvalidRequest, LimitExceeded, escaped
from brokerd.security.access import ADMIN, MONITOR, READ, WRITE
from brokerd.values import MAX_NAME_BYTES, RESERVED_PREFIX

ROLES_MAX = 100
"""Most roles of one account."""
GRANTS_MAX = 1_000
"""Most users and roles in one access list."""
PASSWORD_BYTES_MAX = 1_024
LABEL_BYTES_MAX = 255


class Role(NamedTuple):
    """A role with permissions on everything."""

    name: str
    permissions: int
    description: str


ROLES: Final = {
    role.name: role
    for role in (
        Role("admin", READ | WRITE | ADMIN | MONITOR, "may do everything"),
        Role("consumer", READ, "may read all topics"),
        Role("guest", 0, "may do nothing but what access lists grant"),
        Role("monitor", MONITOR, "may see status and metrics"),
        Role("producer", WRITE, "may write to all topics"),
    )
}
"""Sorted names. A role with another name has no permissions of its own."""


@dataclass(frozen=True)
class Account:
    """An account."""

    account_id: int
    """Above 0 and never reused: an account created again has a new id."""
    name: str
    roles: tuple[str, ...] = ()
    enabled: bool = True
    password: str = field(default="", repr=False)
    """Argon2 hash (PHC string); empty: no login by password."""
    created_us: int = 0
    updated_us: int = 0
    """Broker time, as all times here."""

    @property
    def permissions(self) -> int:
        """Permissions by role, on everything."""
        found = 0
        for name in self.roles:
            role = ROLES.get(name)
            if role is not None:
                found |= role.permissions
        return found


@dataclass(frozen=True)
class AccessList:
    """An access list: grants on a topic, or on all topics with a prefix.

    It exists whether or not the topic does.
    """

    topic: str
    """The topic's name, or the prefix; the empty prefix means all topics."""
    prefix: bool = False
    public: bool = False
    """READ and WRITE for every logged-in account; see docs/security.rst."""
    users: Mapping[str, int] = field(default_factory=dict)
    """Account -> permissions (READ, WRITE and ADMIN); the account need not exist."""
    roles: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, bool]:
        """Unique key of the list."""
        return self.topic, self.prefix


@dataclass(frozen=True)
class ApiKey:
    """An API key of an account. The broker does not store the key itself."""

    key_id: str
    """16 hexadecimal digits; no secret."""
    owner: str
    """The account's name."""
    digest: bytes = field(repr=False)
    """SHA-256 of the key."""
    label: str = ""
    """Label of its owner."""
    created_us: int = 0


class NewKey(NamedTuple):
    """A new key. Shown once."""

    key: ApiKey
    secret: str

    def __repr__(self) -> str:
        return f"NewKey({self.key!r})"


def check_account_name(name: str, what: str = "account name") -> None:
    """Raise `InvalidName` for an invalid name of an account or a role.

    Valid are 1 to `MAX_NAME_BYTES` bytes of UTF-8 without control characters.
    """
    if not 0 < _bytes_of(name) <= MAX_NAME_BYTES:
        raise InvalidName(f"{what}: expected 1 to {MAX_NAME_BYTES} bytes of UTF-8")
    if not _is_plain(name):
        raise InvalidName(f"{what} holds a control character: {escaped(name)!r}; leave it out")


def check_roles(roles: tuple[str, ...]) -> None:
    """Raise `InvalidName` or `LimitExceeded` for invalid roles."""
    if len(roles) > ROLES_MAX:
        raise LimitExceeded(f"an account has at most {ROLES_MAX} roles, not {len(roles)}")
    for role in roles:
        check_account_name(role, "role")


def check_password(password: str) -> None:
    """Raise `InvalidRequest` for an invalid password."""
    if not 0 < _bytes_of(password) <= PASSWORD_BYTES_MAX:
        raise InvalidRequest(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes of UTF-8")


def check_label(label: str) -> None:
    """Raise `InvalidRequest` for an invalid label of a key."""
    if _bytes_of(label) > LABEL_BYTES_MAX or not _is_plain(label):
        raise InvalidRequest(
            f"the label of a key has at most {LABEL_BYTES_MAX} bytes of UTF-8 and no control "
            "characters"
        )


def check_access_list(access_list: AccessList) -> None:
    """Raise `InvalidName`, `InvalidRequest` or `LimitExceeded` for an invalid list."""
    if not access_list.prefix or access_list.topic:
        check_account_name(access_list.topic, "topic of the access list")
    if access_list.topic.startswith(RESERVED_PREFIX):
        raise InvalidName(
            f"topics whose names begin with {RESERVED_PREFIX!r} are the broker's own, and "
            "access lists do not apply to them: the role admin reads the audit trail, and only the "
            "broker writes to it"
        )
    count = len(access_list.users) + len(access_list.roles)
    if count > GRANTS_MAX:
        raise LimitExceeded(
            f"an access list names at most {GRANTS_MAX} accounts and roles, not {count}; "
            "give them a role in common"
        )
    for what, grants in (("account name", access_list.users), ("role", access_list.roles)):
        for name, permissions in grants.items():
            check_account_name(name, what)
            if not permissions or permissions & ~(READ | WRITE | ADMIN):
                raise InvalidRequest(
                    f"a grant to {name!r} must have some of read, write and admin, and no others"
                )


def _bytes_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _is_plain(text: str) -> bool:
    return text.isprintable() or not any(
        ord(letter) < 32 or 127 <= ord(letter) < 160 or 0xD800 <= ord(letter) < 0xE000
        for letter in text
    )
