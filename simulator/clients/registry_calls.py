# Tests: tests/simulator/test_registry.py
"""The calls of a registrar: the operation for the history, the call, and its result."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from brokerd.broker import Broker
from brokerd.broker.schemas.entries import SchemaName
from brokerd.errors import BrokerdError
from brokerd.schemas.values import Mode, SchemaType
from brokerd.security.access import ADMIN, MONITOR, OPEN, READ, WRITE, Access
from brokerd.security.accounts import AccessList
from brokerd.security.guard import Guard
from brokerd.security.quotas import Quota
from simulator.clients.operator_access import OperatorAccess
from simulator.history.operations import Operation
from simulator.history.registry import (
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
    RegistryView,
    RevokeKey,
    SchemaField,
    SetMode,
    Validate,
    sorted_grants,
)

UNNUMBERED = -1
BROKEN_SCHEMA = b'{"type": "record"'
WIRE_FORMAT, PEER = "flymq", "10.0.0.1"
Finish = Callable[[Any, BrokerdError | None], None]


class RegistryCall(NamedTuple):
    """A call with its operation."""

    operation: Operation
    begin: Callable[[Broker, Finish], None]
    """Makes the call, which may raise a refusal, and takes the callback for its end."""
    tell: Callable[[Any], None]
    """Stores the result of the call in the operation."""


def _at_once(
    operation: Operation,
    call: Callable[[Broker], Any],
    tell: Callable[[Any], None] = lambda result: None,
) -> RegistryCall:
    """Return a call that ends at once."""
    return RegistryCall(operation, lambda broker, finish: finish(call(broker), None), tell)


# -- accounts --------------------------------------------------------------------------------------


def create_account(
    client: str, name: str, roles: tuple[str, ...], enabled: bool = True, password: str = ""
) -> RegistryCall:
    operation = PutAccount(
        number=UNNUMBERED,
        client=client,
        name=name,
        roles=roles,
        enabled=enabled,
        creates=True,
        password=password,
    )

    def begin(broker: Broker, finish: Finish) -> None:
        broker.accounts.create_account(
            OperatorAccess(client), name, password, roles, finish, enabled
        )

    return RegistryCall(operation, begin, lambda result: None)


# With security on, a principal may not take away the last administrator. The model knows no such
# rule, so changes that may do that are made without a principal.


def update_account(client: str, name: str, roles: tuple[str, ...], enabled: bool) -> RegistryCall:
    operation = PutAccount(
        number=UNNUMBERED, client=client, name=name, roles=roles, enabled=enabled, creates=False
    )
    return _at_once(
        operation,
        lambda broker: broker.accounts.update_account(OPEN, name, roles, enabled),
    )


def set_password(client: str, name: str, password: str) -> RegistryCall:
    operation = PutPassword(number=UNNUMBERED, client=client, name=name, password=password)

    def begin(broker: Broker, finish: Finish) -> None:
        broker.accounts.change_password(OperatorAccess(client), name, password, finish)

    return RegistryCall(operation, begin, lambda result: None)


def delete_account(client: str, name: str) -> RegistryCall:
    operation = DeleteAccount(number=UNNUMBERED, client=client, name=name)
    return _at_once(operation, lambda broker: broker.accounts.delete_account(OPEN, name))


def put_list(client: str, rule: ListRule) -> RegistryCall:
    operation = PutList(number=UNNUMBERED, client=client, rule=rule)
    access_list = AccessList(
        rule.topic, rule.prefix, rule.public, dict(rule.users), dict(rule.roles)
    )
    return _at_once(
        operation,
        lambda broker: broker.accounts.set_access_list(OperatorAccess(client), access_list),
    )


def delete_list(client: str, pattern: str, prefix: bool) -> RegistryCall:
    operation = DeleteList(number=UNNUMBERED, client=client, pattern=pattern, prefix=prefix)
    return _at_once(
        operation,
        lambda broker: broker.accounts.delete_access_list(OperatorAccess(client), pattern, prefix),
        partial(setattr, operation, "existed"),
    )


# -- keys and logins -------------------------------------------------------------------------------


def make_key(
    client: str, owner: str, label: str, key_ids: dict[str, str], secrets: dict[str, str]
) -> RegistryCall:
    """Make a key, and put its id and its text into the dicts."""
    operation = MakeKey(number=UNNUMBERED, client=client, owner=owner, label=label)

    def tell(made: Any) -> None:
        key_ids[label], secrets[label] = made.key.key_id, made.secret

    return _at_once(
        operation,
        lambda broker: broker.accounts.make_key(OperatorAccess(client), owner, label),
        tell,
    )


def revoke_key(client: str, label: str, key_id: str) -> RegistryCall:
    operation = RevokeKey(number=UNNUMBERED, client=client, label=label)
    return _at_once(operation, lambda broker: broker.accounts.revoke_key(OPEN, key_id))


def log_in(
    client: str, label: str, secret: str, guard: Callable[[], Guard], found: list[Access]
) -> RegistryCall:
    """Log in with a key, and add the access to ``found``."""
    operation = LogIn(number=UNNUMBERED, client=client, label=label)
    return _at_once(
        operation,
        lambda broker: guard().log_in_with_key(WIRE_FORMAT, PEER, secret),
        found.append,
    )


def probe(client: str, label: str, access: Access, subjects: tuple[str, ...]) -> RegistryCall:
    operation = Probe(number=UNNUMBERED, client=client, label=label, subjects=subjects)

    def call(broker: Broker) -> tuple[int, ...]:
        on_topics = [
            sum(bit for bit in (READ, WRITE, ADMIN) if access.may(bit, topic)) for topic in subjects
        ]
        return (*on_topics, access.permissions & (READ | WRITE | ADMIN | MONITOR))

    return _at_once(operation, call, partial(setattr, operation, "permissions"))


# -- schemas ---------------------------------------------------------------------------------------


def text_of(schema: Fields | None) -> bytes:
    """Return the Avro text of a record of integers."""
    if schema is None:
        return BROKEN_SCHEMA
    fields = [
        {"name": each.name, "type": "int", **({"default": 1} if each.has_default else {})}
        for each in schema
    ]
    return json.dumps({"type": "record", "name": "R", "fields": fields}).encode()


def fields_of(text: bytes) -> Fields:
    """Read the text of `text_of`."""
    fields = json.loads(text)["fields"]
    return tuple(SchemaField(each["name"], "default" in each) for each in fields)


def register_schema(client: str, name: str, schema: Fields | None) -> RegistryCall:
    operation = RegisterSchema(number=UNNUMBERED, client=client, name=name, schema=schema)

    def begin(broker: Broker, finish: Finish) -> None:
        broker.schemas.register(
            OperatorAccess(client), name, SchemaType.AVRO, text_of(schema), finish
        )

    def tell(made: Any) -> None:
        operation.version = made.version

    return RegistryCall(operation, begin, tell)


def set_mode(client: str, name: str, mode: str) -> RegistryCall:
    operation = SetMode(number=UNNUMBERED, client=client, name=name, mode=mode)
    return _at_once(
        operation, lambda broker: broker.schemas.set_mode(OperatorAccess(client), name, Mode(mode))
    )


def delete_schema(client: str, name: str, version: int) -> RegistryCall:
    operation = DeleteSchema(number=UNNUMBERED, client=client, name=name, version=version)
    return _at_once(
        operation, lambda broker: broker.schemas.delete(OperatorAccess(client), name, version)
    )


def validate(client: str, name: str, fields: int) -> RegistryCall:
    """Check a message of as many integers, each one byte of Avro's."""
    operation = Validate(number=UNNUMBERED, client=client, name=name, fields=fields)

    def begin(broker: Broker, finish: Finish) -> None:
        broker.schemas.validate(name, bytes(range(2, 2 + fields)), finish)

    def tell(faults: list[str]) -> None:
        operation.is_valid = not faults

    return RegistryCall(operation, begin, tell)


# -- quotas and everything -------------------------------------------------------------------------


def put_quota(client: str, quota: Quota) -> RegistryCall:
    operation = PutQuota(
        number=UNNUMBERED,
        client=client,
        kind=quota.kind,
        name=quota.name,
        requests=quota.requests,
        bytes_in=quota.bytes_in,
        connections=quota.connections,
        bytes_out=quota.bytes_out,
    )
    return _at_once(operation, lambda broker: broker.quotas.put(OperatorAccess(client), quota))


def delete_quota(client: str, kind: str, name: str) -> RegistryCall:
    operation = DeleteQuota(number=UNNUMBERED, client=client, kind=kind, name=name)
    return _at_once(
        operation,
        lambda broker: broker.quotas.delete(OperatorAccess(client), kind, name),
        partial(setattr, operation, "existed"),
    )


def inspect(client: str) -> RegistryCall:
    operation = Inspect(number=UNNUMBERED, client=client)
    return _at_once(operation, view_of, partial(setattr, operation, "view"))


def view_of(broker: Broker) -> RegistryView:
    """Return the whole registry of a broker."""
    accounts, key_list = broker.accounts, broker.accounts.keys()
    return RegistryView(
        tuple((each.name, tuple(each.roles), each.enabled) for each in accounts.accounts()),
        tuple(
            sorted(
                ListRule(
                    each.topic,
                    each.prefix,
                    each.public,
                    sorted_grants(each.users.items()),
                    sorted_grants(each.roles.items()),
                )
                for each in accounts.access_lists()
            )
        ),
        tuple(sorted((key.label, key.owner) for key in key_list)),
        tuple(map(_schema, broker.schemas.names())),
        tuple(
            (
                each.kind,
                each.name,
                each.requests,
                each.bytes_in,
                each.connections,
                each.bytes_out,
            )
            for each in broker.quotas.quotas()
        ),
    )


def _schema(name: SchemaName) -> tuple[str, str, tuple[tuple[int, Fields], ...]]:
    versions = tuple((each.version, fields_of(each.text)) for each in name.versions.values())
    return name.name, name.mode.value, versions
