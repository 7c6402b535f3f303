# Tests: tests/simulator/test_registry.py
"""A model of accounts, access lists, keys, schemas and quotas.

Written from docs/security.rst and docs/schemas.rst.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from simulator.history.registry import (
    PERMISSIONS_OF_ROLES,
    READ,
    WRITE,
    DeleteAccount,
    DeleteList,
    DeleteQuota,
    DeleteSchema,
    Fields,
    Inspect,
    ListRule,
    LogIn,
    MakeKey,
    Probe,
    PutAccount,
    PutList,
    PutPassword,
    PutQuota,
    RegisterSchema,
    RegistryOperation,
    RegistryView,
    RevokeKey,
    SetMode,
    Validate,
)
from simulator.rules import AccessRules

NO_ACCOUNT = "there is no account"
IS_ACCOUNT = "there is an account"
NO_KEY = "there is no API key"
NO_LOGIN = "invalid API key"
NO_SCHEMA = "schema not found"
BAD_SCHEMA = "invalid schema definition"
NOT_COMPATIBLE = "schema compatibility check failed"
REFUSALS = (
    NO_ACCOUNT,
    IS_ACCOUNT,
    NO_KEY,
    NO_LOGIN,
    NO_SCHEMA,
    BAD_SCHEMA,
    NOT_COMPATIBLE,
)
"""Texts of refusals that the registry's state decides."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class AccountState(NamedTuple):
    roles: tuple[str, ...]
    enabled: bool
    made_by: int
    """Number of the request that created it. A later account of its name is another one."""
    password: str = ""


class SchemaState(NamedTuple):
    mode: str
    last: int
    """The highest version ever registered."""
    versions: tuple[tuple[int, Fields], ...]


class Refused(NamedTuple):
    """The request must be refused, with a text that has this part; "" stands for any."""

    text: str


class Told(NamedTuple):
    """The request is carried out."""

    state: RegistryState
    fits: bool = True
    """Whether its answer is the right one, if it was answered."""


@dataclass(frozen=True)
class RegistryState:
    """One possible state. Changes make another one."""

    accounts: dict[str, AccountState] = field(default_factory=dict)
    lists: dict[tuple[str, bool], ListRule] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """Label -> owner."""
    schemas: dict[str, SchemaState] = field(default_factory=dict)
    quotas: dict[tuple[str, str], tuple[int, int, int, int]] = field(default_factory=dict)
    """Requests and bytes of produces a second, and connections."""
    rules: AccessRules = field(default_factory=AccessRules)

    def __hash__(self) -> int:
        versions = tuple(sorted((n, s.last) for n, s in self.schemas.items()))
        return hash((self.view(), tuple(sorted(self.accounts.items())), versions))

    def view(self) -> RegistryView:
        """Return the view that the broker must report."""
        return RegistryView(
            tuple(sorted((name, one.roles, one.enabled) for name, one in self.accounts.items())),
            tuple(sorted(self.lists.values())),
            tuple(sorted(self.keys.items())),
            tuple(sorted((name, one.mode, one.versions) for name, one in self.schemas.items())),
            tuple(sorted((*key, *limits) for key, limits in self.quotas.items())),
        )

    # -- permissions -----------------------------------------------------------------------------

    def by_role(self, name: str) -> int:
        """Return the permissions of an account on everything."""
        account = self.accounts.get(name)
        if account is None or not account.enabled:
            return 0
        found = 0
        for role in account.roles:
            found |= PERMISSIONS_OF_ROLES.get(role, 0)
        return found

    def permissions(self, name: str, topic: str) -> int:
        """Return the permissions of an account on a topic; without an account, of anonymous."""
        account = self.accounts.get(name)
        lists = [
            rule
            for rule in self.lists.values()
            if (topic.startswith(rule.topic) if rule.prefix else topic == rule.topic)
        ]
        is_public = any(rule.public for rule in lists) if lists else self.rules.default_public
        open_to_all = READ | WRITE if is_public else 0
        if account is None:
            return open_to_all if self.rules.allow_anonymous else 0
        if not account.enabled:
            return 0
        found = self.by_role(name) & 7 | open_to_all
        for rule in lists:
            found |= dict(rule.users).get(name, 0)
            for role, granted in rule.roles:
                found |= granted if role in account.roles else 0
        return found

    def is_enabled(self, name: str) -> bool:
        """Return whether there is such an account, and it is enabled."""
        account = self.accounts.get(name)
        return account is not None and account.enabled

    def is_live(self, label: str) -> bool:
        """Return whether a login with this key has any rights."""
        owner = self.accounts.get(self.keys.get(label, ""))
        return owner is not None and owner.enabled

    # -- requests --------------------------------------------------------------------------------

    def after(self, op: RegistryOperation) -> Refused | Told:
        """Return the result of a request in this state."""
        match op:
            case PutAccount():
                if op.creates and op.name in self.accounts:
                    return Refused(IS_ACCOUNT)
                if not op.creates and op.name not in self.accounts:
                    return Refused(NO_ACCOUNT)
                account = AccountState(op.roles, op.enabled, op.number, op.password)
                if not op.creates:
                    account = self.accounts[op.name]._replace(roles=op.roles, enabled=op.enabled)
                return Told(replace(self, accounts=with_item(self.accounts, op.name, account)))
            case PutPassword():
                if op.name not in self.accounts:
                    return Refused(NO_ACCOUNT)
                account = self.accounts[op.name]._replace(password=op.password)
                return Told(replace(self, accounts=with_item(self.accounts, op.name, account)))
            case DeleteAccount():
                if op.name not in self.accounts:
                    return Refused(NO_ACCOUNT)
                keys = {label: owner for label, owner in self.keys.items() if owner != op.name}
                accounts = without_item(self.accounts, op.name)
                return Told(replace(self, accounts=accounts, keys=keys))
            case PutList(rule=rule):
                lists = with_item(self.lists, (rule.topic, rule.prefix), rule)
                return Told(replace(self, lists=lists))
            case DeleteList():
                key = op.pattern, op.prefix
                lists = without_item(self.lists, key)
                return Told(replace(self, lists=lists), op.existed == (key in self.lists))
            case MakeKey():
                if op.owner not in self.accounts:
                    return Refused(NO_ACCOUNT)
                return Told(replace(self, keys=with_item(self.keys, op.label, op.owner)))
            case RevokeKey():
                if op.label not in self.keys:
                    return Refused(NO_KEY)
                return Told(replace(self, keys=without_item(self.keys, op.label)))
            case LogIn():
                return Told(self) if self.is_live(op.label) else Refused("")
            case Probe():
                return Told(self, op.permissions == self._probed(op))
            case PutQuota():
                limits = op.requests, op.bytes_in, op.connections, op.bytes_out
                quotas = with_item(self.quotas, (op.kind, op.name), limits)
                return Told(replace(self, quotas=quotas))
            case DeleteQuota():
                quota = op.kind, op.name
                quotas = without_item(self.quotas, quota)
                return Told(replace(self, quotas=quotas), op.existed == (quota in self.quotas))
            case Inspect():
                return Told(self, op.view == self.view())
            case _:
                return self._after_schema_request(op)

    def _probed(self, op: Probe) -> tuple[int, ...]:
        if not self.is_live(op.label):
            return (0,) * (len(op.subjects) + 1)
        owner = self.keys[op.label]
        return (*(self.permissions(owner, each) for each in op.subjects), self.by_role(owner))

    def _after_schema_request(self, op: RegistryOperation) -> Refused | Told:
        current = self.schemas.get(getattr(op, "name", ""))
        match op:
            case RegisterSchema():
                return self._registered(op, current)
            case _ if current is None:
                return Refused(NO_SCHEMA)
            case SetMode():
                return self._with_schema(op.name, current._replace(mode=op.mode))
            case DeleteSchema(version=0):
                return Told(replace(self, schemas=without_item(self.schemas, op.name)))
            case DeleteSchema():
                kept = tuple(each for each in current.versions if each[0] != op.version)
                if kept == current.versions:
                    return Refused(NO_SCHEMA)
                if not kept:
                    return Told(replace(self, schemas=without_item(self.schemas, op.name)))
                return self._with_schema(op.name, current._replace(versions=kept))
            case Validate():
                latest = current.versions[-1][1]
                return Told(self, op.is_valid == (op.fields == len(latest)))
        raise AssertionError(f"no model of {op}")

    def _registered(self, op: RegisterSchema, current: SchemaState | None) -> Refused | Told:
        if op.schema is None:
            return Refused(BAD_SCHEMA)
        if current is None:
            current = SchemaState("backward", 0, ())
        compared = [each for _, each in current.versions]
        if not current.mode.endswith("_transitive"):
            del compared[:-1]
        direction = current.mode.removesuffix("_transitive")
        for old in compared if direction != "none" else ():
            if direction != "forward" and not reads(op.schema, old):
                return Refused(NOT_COMPATIBLE)
            if direction != "backward" and not reads(old, op.schema):
                return Refused(NOT_COMPATIBLE)
        number = current.last + 1
        versions = (*current.versions, (number, op.schema))
        told = self._with_schema(op.name, current._replace(last=number, versions=versions))
        return told._replace(fits=op.version == number)

    def _with_schema(self, name: str, schema: SchemaState) -> Told:
        return Told(replace(self, schemas=with_item(self.schemas, name, schema)))


def reads(reader: Fields, writer: Fields) -> bool:
    """Return whether a record of the writer has all fields that the reader needs."""
    written = {each.name for each in writer}
    return all(each.has_default or each.name in written for each in reader)


def with_item(items: dict[Key, Value], key: Key, value: Any) -> dict[Key, Value]:
    return {**items, key: value}


def without_item(items: dict[Key, Value], key: Key) -> dict[Key, Value]:
    return {other: value for other, value in items.items() if other != key}
