# Tests: tests/admin/test_security_calls.py
"""What the API takes and answers about accounts, access lists, keys and who one is."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from brokerd.admin.shapes.common import Time

Granted = Literal["read", "write", "admin"]
"""What may be granted on topics."""
Permission = Literal["read", "write", "admin", "monitor"]

Text = Annotated[str, Meta(max_length=1_024)]


class AccountShape(Struct):
    """An account. Nothing shows its password."""

    name: str
    roles: list[str]
    permissions: list[Permission]
    """Those on everything, by role."""
    enabled: bool
    has_password: bool
    created: Time
    updated: Time


class AccountList(Struct):
    """A page of accounts, by name."""

    users: list[AccountShape]
    next: int | None
    """How many to skip for the next page."""


class NewAccount(Struct, forbid_unknown_fields=True):
    """An account to be made. Without a password, keys, certificates and listeners lead to it."""

    name: Text
    password: Text = ""
    roles: list[Text] = []
    enabled: bool = True

    def __repr__(self) -> str:
        return f"NewAccount({self.name!r})"


class AccountChanges(Struct, forbid_unknown_fields=True):
    """What to change of an account; what is left out stays."""

    roles: list[Text] | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class NewPassword(Struct, forbid_unknown_fields=True):
    """Another password; one's own needs the current one."""

    password: Text
    current: Text = ""

    def __repr__(self) -> str:
        return "NewPassword()"


class Grants(Struct, forbid_unknown_fields=True):
    """An access list's content."""

    public: bool = False
    """READ and WRITE for everybody who has logged in."""
    users: dict[str, list[Granted]] = {}
    roles: dict[str, list[Granted]] = {}


class GrantChanges(Struct, forbid_unknown_fields=True):
    """What to grant and to revoke, by name; a list that grants nothing to anybody stays."""

    public: bool | UnsetType = UNSET
    grant_users: dict[str, list[Granted]] = {}
    grant_roles: dict[str, list[Granted]] = {}
    revoke_users: dict[str, list[Granted]] = {}
    revoke_roles: dict[str, list[Granted]] = {}


class AccessListShape(Struct):
    """An access list."""

    topic: str
    """The topic's name or, with ``prefix``, what names begin with."""
    prefix: bool
    public: bool
    users: dict[str, list[Granted]]
    roles: dict[str, list[Granted]]


class AccessLists(Struct):
    """A page of access lists, by topic."""

    access_lists: list[AccessListShape]
    next: int | None
    """How many to skip for the next page."""


class EffectiveAccess(Struct):
    """Who may do what with a topic, whether or not it exists, and by which lists."""

    topic: str
    access_lists: list[AccessListShape]
    """Those that fit: its own, and those of prefixes."""
    public: bool
    """Whether READ and WRITE are everybody's who has logged in."""
    anonymous: list[Granted]
    """What anonymous may do."""
    user: AccountShape | None
    """Who was asked about."""
    permissions: list[Granted] | None
    """What that one may do; nothing while the account is disabled."""


class KeyShape(Struct):
    """An API key, without the key."""

    key_id: str
    user: str
    label: str
    created: Time


class KeyList(Struct):
    """A page of keys, oldest first."""

    keys: list[KeyShape]
    next: int | None
    """How many to skip for the next page."""


class NewKeyOf(Struct, forbid_unknown_fields=True):
    """A key to be made."""

    user: Text
    label: Text = ""


class MadeKey(Struct):
    """A key that was just made."""

    key_id: str
    user: str
    label: str
    key: str
    """What it lets in with; shown this once."""

    def __repr__(self) -> str:
        return f"MadeKey({self.key_id!r})"


class WhoAmI(Struct):
    """Who asks."""

    name: str
    """Empty: anonymous."""
    roles: list[str]
    permissions: list[Permission]
    """Those on everything, by role."""
    auth: bool
    """Whether security is on."""
    known: bool
    """Whether an account of the name is let in; without one it may do what anonymous may."""
