# Tests: tests/admin/test_security_calls.py
"""Requests and answers about accounts, access lists, keys and the sender of a request."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from brokerd.admin.shapes.common import Deleted, Query, Time

Granted = Literal["read", "write", "admin"]
"""Permissions that an access list grants."""
Permission = Literal["read", "write", "admin", "monitor"]

Text = Annotated[str, Meta(max_length=1_024)]


class AccountShape(Struct):
    """An account, without its password."""

    name: str
    roles: list[str]
    permissions: list[Permission]
    """Permissions by role, which apply to all topics."""
    enabled: bool
    has_password: bool
    created: Time
    updated: Time


class AccountList(Struct):
    """A page of accounts, by name."""

    users: list[AccountShape]
    next: int | None
    """``first`` of the next page."""


class NewAccount(Struct, forbid_unknown_fields=True):
    """An account to create. Without a password, clients use keys, certificates or listeners."""

    name: Text
    password: Text = ""
    roles: list[Text] = []
    enabled: bool = True

    def __repr__(self) -> str:
        return f"NewAccount({self.name!r})"


class DeletedAccount(Deleted):
    """The name of the deleted account."""

    quota_stays: bool
    """Whether there is a quota of this account. It applies to a later account of that name."""


class AccountChanges(Struct, forbid_unknown_fields=True):
    """Fields of an account to change. Fields that are left out stay."""

    roles: list[Text] | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class NewPassword(Struct, forbid_unknown_fields=True):
    """A new password. ``current`` is needed for the sender's own account."""

    password: Text
    current: Text = ""

    def __repr__(self) -> str:
        return "NewPassword()"


class NewSession(Struct, forbid_unknown_fields=True):
    """The account that logs in."""

    name: Text
    password: Text

    def __repr__(self) -> str:
        return "NewSession()"


class SessionShape(Struct):
    """The session of a browser. Its writes carry ``csrf_token`` as the header X-CSRF-Token."""

    name: str
    csrf_token: str
    seconds_left: float
    """Life of the session without use."""

    def __repr__(self) -> str:
        return f"SessionShape({self.name!r})"


class OpenSession(Struct):
    """An open session of a browser."""

    id: int
    user: str
    address: str
    """The address of its login, which alone can use it."""
    open_seconds: float
    idle_seconds: float
    """Time without use."""
    seconds_left: float
    """Life of the session without use."""
    current: bool
    """Whether it is the session of the request."""


class SessionList(Struct):
    """A page of open sessions, oldest first."""

    sessions: list[OpenSession]
    next: int | None
    """``first`` of the next page."""


class Grants(Struct, forbid_unknown_fields=True):
    """The content of an access list."""

    public: bool = False
    """Whether every client that has logged in has READ and WRITE."""
    users: dict[str, list[Granted]] = {}
    roles: dict[str, list[Granted]] = {}


class GrantChanges(Struct, forbid_unknown_fields=True):
    """Permissions to grant and to revoke, by name. A list without grants stays."""

    public: bool | UnsetType = UNSET
    grant_users: dict[str, list[Granted]] = {}
    grant_roles: dict[str, list[Granted]] = {}
    revoke_users: dict[str, list[Granted]] = {}
    revoke_roles: dict[str, list[Granted]] = {}


class AccessListShape(Struct):
    """An access list."""

    topic: str
    """The name of a topic or, with ``prefix``, the beginning of names."""
    prefix: bool
    public: bool
    users: dict[str, list[Granted]]
    roles: dict[str, list[Granted]]


class AccessLists(Struct):
    """A page of access lists, by topic."""

    access_lists: list[AccessListShape]
    next: int | None
    """``first`` of the next page."""


class EffectiveAccess(Struct):
    """Permissions on a topic, which need not exist, and the access lists that grant them."""

    topic: str
    access_lists: list[AccessListShape]
    """The access list of the topic, and those of matching prefixes."""
    public: bool
    """Whether every client that has logged in has READ and WRITE."""
    anonymous: list[Granted]
    """Permissions of anonymous clients."""
    user: AccountShape | None
    """The account in the query."""
    permissions: list[Granted] | None
    """Permissions of that account; empty while it is disabled."""


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
    """``first`` of the next page."""


class NewKeyOf(Struct, forbid_unknown_fields=True):
    """An API key to create."""

    user: Text
    label: Text = ""


class MadeKey(Struct):
    """A new API key."""

    key_id: str
    user: str
    label: str
    key: str
    """The secret, which no other answer contains."""

    def __repr__(self) -> str:
        return f"MadeKey({self.key_id!r})"


class WhoAmIQuery(Query, frozen=True):
    """A topic, existing or not."""

    topic: str | None = None


class WhoAmI(Struct):
    """The account of the request."""

    name: str
    """Empty: anonymous."""
    roles: list[str]
    permissions: list[Permission]
    """Permissions by role, which apply to all topics."""
    auth: bool
    """Whether security is on."""
    known: bool
    """Whether the account exists and is enabled. Otherwise only permissions of anonymous apply."""
    topic_permissions: list[Permission] | UnsetType = UNSET
    """Permissions on the topic of the query, if it names one."""
