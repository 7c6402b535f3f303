# Tests: tests/simulator/test_registry.py
"""Operations of administration: accounts, access lists, keys, schemas and quotas.

One client makes all changes, one after the other. The oracle compares its answers with a model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from simulator.history.operations import Operation

READ, WRITE, ADMIN, MONITOR = 1, 2, 4, 8
PERMISSIONS_OF_ROLES = {
    "admin": READ | WRITE | ADMIN | MONITOR,
    "consumer": READ,
    "producer": WRITE,
    "monitor": MONITOR,
}
"""Permissions of the roles on everything. Other roles have none."""

Grants = tuple[tuple[str, int], ...]
"""Name -> permissions, sorted."""


def sorted_grants(grants: Iterable[tuple[str, int]]) -> Grants:
    """Return grants in order; of a repeated name the last one."""
    return tuple(sorted(dict(grants).items()))


class ListRule(NamedTuple):
    """An access list."""

    topic: str
    prefix: bool
    public: bool
    users: Grants
    roles: Grants


class SchemaField(NamedTuple):
    """A field of an Avro record of integers."""

    name: str
    has_default: bool


Fields = tuple[SchemaField, ...]


class RegistryView(NamedTuple):
    """The whole registry, as reported; each part is sorted."""

    accounts: tuple[tuple[str, tuple[str, ...], bool], ...]
    """Name, roles, and whether it is enabled."""
    lists: tuple[ListRule, ...]
    keys: tuple[tuple[str, str], ...]
    """Label and owner."""
    schemas: tuple[tuple[str, str, tuple[tuple[int, Fields], ...]], ...]
    """Name, mode and versions."""
    quotas: tuple[tuple[str, str, int, int, int, int], ...]
    """Kind, name, requests and bytes of produces a second, connections, and bytes of answers a
    second; 0: no limit.
    """


@dataclass(kw_only=True)
class RegistryOperation(Operation):
    """A request about the registry."""


@dataclass(kw_only=True)
class PutAccount(RegistryOperation):
    """Creates an account, or changes it."""

    name: str
    roles: tuple[str, ...]
    enabled: bool
    creates: bool
    password: str = ""
    """Of a new account; "": it has none. Passwords of a run are distinct."""


@dataclass(kw_only=True)
class PutPassword(RegistryOperation):
    """Changes the password of an account."""

    name: str
    password: str


@dataclass(kw_only=True)
class DeleteAccount(RegistryOperation):
    name: str


@dataclass(kw_only=True)
class PutList(RegistryOperation):
    rule: ListRule


@dataclass(kw_only=True)
class DeleteList(RegistryOperation):
    pattern: str
    prefix: bool
    existed: bool = False


@dataclass(kw_only=True)
class MakeKey(RegistryOperation):
    owner: str
    label: str
    """Unique in a run."""


@dataclass(kw_only=True)
class RevokeKey(RegistryOperation):
    label: str


@dataclass(kw_only=True)
class LogIn(RegistryOperation):
    """Logs in with a key. A refusal is an error."""

    label: str


@dataclass(kw_only=True)
class WireLogIn(Operation):
    """The login of a connection, by name and password or by a key. A refusal is an error."""

    name: str = ""
    password: str = ""
    key: str = ""
    """Label of the key; "" for a password, or for a key that the registrar did not make."""
    is_configured: bool = False
    """Whether it is the key of the configuration, which stands for the principal."""


@dataclass(kw_only=True)
class Probe(RegistryOperation):
    """Asks a login for its permissions."""

    label: str
    """The key of the login."""
    subjects: tuple[str, ...]
    """Names of topics, existing or not."""
    permissions: tuple[int, ...] = ()
    """Permissions on each topic, and last those on the whole broker."""


@dataclass(kw_only=True)
class RegisterSchema(RegistryOperation):
    name: str
    schema: Fields | None
    """None: a text that is no schema."""
    version: int = 0


@dataclass(kw_only=True)
class SetMode(RegistryOperation):
    name: str
    mode: str


@dataclass(kw_only=True)
class DeleteSchema(RegistryOperation):
    name: str
    version: int
    """0: all of them."""


@dataclass(kw_only=True)
class Validate(RegistryOperation):
    """Checks a message by the latest version. The message has one integer for each field."""

    name: str
    fields: int
    is_valid: bool = False


@dataclass(kw_only=True)
class PutQuota(RegistryOperation):
    kind: str
    name: str
    requests: int = 0
    bytes_in: int = 0
    connections: int = 0
    bytes_out: int = 0


@dataclass(kw_only=True)
class DeleteQuota(RegistryOperation):
    kind: str
    name: str
    existed: bool = False


@dataclass(kw_only=True)
class Inspect(RegistryOperation):
    """Queries everything."""

    view: RegistryView | None = None
