# Tests: tests/broker/test_security.py
"""Encodes changes of accounts, access lists and API keys as bodies of SECURITY entries, and back.

docs/wal-format.rst, section "SECURITY body", is the contract. A chunk of a snapshot holds the same
maps, one for each account, access list and key.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from brokerd.broker.model.map_entries import Map, MapLayout, MapReplay
from brokerd.broker.model.state import Encode, State
from brokerd.security.accounts import AccessList, Account, ApiKey
from brokerd.security.directory import Directory
from brokerd.security.quotas import Quota
from brokerd.wal import SnapshotChunk
from brokerd.walformat import Entry, EntryKind

SNAPSHOT_SECURITY = 8
CHUNK_MAPS = 200
"""Accounts, lists and keys in one chunk of a snapshot: at most 50 MiB."""

LAYOUT = MapLayout(EntryKind.SECURITY, SNAPSHOT_SECURITY, "security", "security")
Value = Account | AccessList | ApiKey | Quota


def put_map(value: Value) -> Map:
    """Return the map that creates or replaces a value."""
    if isinstance(value, Account):
        return _account_map(value)
    if isinstance(value, Quota):
        return {"op": "quota", "kind": value.kind, "name": value.name, **value.limits()}
    return _list_map(value) if isinstance(value, AccessList) else _key_map(value)


def quota_deleted_map(quota: Quota) -> Map:
    """Return the map that deletes a quota."""
    return {"op": "quota_deleted", "kind": quota.kind, "name": quota.name}


def _account_map(account: Account) -> Map:
    return {
        "op": "account",
        "name": account.name,
        "roles": account.roles,
        "enabled": account.enabled,
        "password": account.password,
        "created_us": account.created_us,
        "updated_us": account.updated_us,
    }


def account_deleted_map(name: str) -> Map:
    """Return the map that deletes an account and its keys."""
    return {"op": "account_deleted", "name": name}


def _list_map(access_list: AccessList) -> Map:
    return {
        "op": "acl",
        "topic": access_list.topic,
        "prefix": access_list.prefix,
        "public": access_list.public,
        "users": dict(access_list.users),
        "roles": dict(access_list.roles),
    }


def list_deleted_map(topic: str, prefix: bool) -> Map:
    """Return the map that deletes an access list."""
    return {"op": "acl_deleted", "topic": topic, "prefix": prefix}


def _key_map(key: ApiKey) -> Map:
    return {
        "op": "key",
        "id": key.key_id,
        "owner": key.owner,
        "digest": key.digest,
        "label": key.label,
        "created_us": key.created_us,
    }


def key_revoked_map(key_id: str) -> Map:
    """Return the map that revokes a key."""
    return {"op": "key_revoked", "id": key_id}


def entry_of(fields: Map) -> Entry:
    """Return the log entry with this map."""
    return LAYOUT.entry(fields)


def apply(directory: Directory, fields: Map) -> bool:
    """Apply a map, which may happen twice; return False if its ``op`` is unknown."""
    change = _CHANGES.get(fields["op"])
    if change is None:
        return False
    change(directory, fields)
    return True


def _put_account(directory: Directory, fields: Map) -> None:
    current = directory.accounts.get(fields["name"])
    directory.put_account(
        Account(
            directory.next_account_id if current is None else current.account_id,
            fields["name"],
            tuple(fields["roles"]),
            fields["enabled"],
            fields["password"],
            fields["created_us"],
            fields["updated_us"],
        )
    )


def _put_list(directory: Directory, fields: Map) -> None:
    directory.put_list(
        AccessList(
            fields["topic"], fields["prefix"], fields["public"], fields["users"], fields["roles"]
        )
    )


def _put_key(directory: Directory, fields: Map) -> None:
    directory.put_key(
        ApiKey(
            fields["id"], fields["owner"], fields["digest"], fields["label"], fields["created_us"]
        )
    )


_CHANGES: dict[str, Callable[[Directory, Map], object]] = {
    "account": _put_account,
    "account_deleted": lambda directory, fields: directory.remove_account(fields["name"]),
    "acl": _put_list,
    "acl_deleted": lambda directory, fields: directory.remove_list(
        fields["topic"], fields["prefix"]
    ),
    "key": _put_key,
    "quota": lambda directory, fields: directory.put_quota(
        Quota(
            fields["kind"],
            fields["name"],
            fields["requests"],
            fields["bytes_in"],
            fields["bytes_out"],
            fields["connections"],
        )
    ),
    "quota_deleted": lambda directory, fields: directory.remove_quota(
        fields["kind"], fields["name"]
    ),
    "key_revoked": lambda directory, fields: directory.remove_key(fields["id"]),
}


class SecurityReplay(MapReplay):
    """Restores a directory from snapshot and log, and captures it for the next snapshot."""

    def __init__(self, state: State, directory: Directory) -> None:
        super().__init__(state, LAYOUT, partial(apply, directory))
        self._directory = directory
        state.captures.append(self._captures)

    def _captures(self, lsn: int) -> list[Encode]:
        """Return encoders of the directory's chunks."""
        directory = self._directory
        values: list[Value] = [
            *directory.accounts.values(),
            *directory.lists.values(),
            *directory.keys.values(),
            *directory.quotas.values(),
        ]
        firsts = range(0, len(values), CHUNK_MAPS)
        return [partial(_chunk, lsn, first, values) for first in firsts]


def _chunk(lsn: int, first: int, values: list[Value]) -> SnapshotChunk:
    return LAYOUT.chunk(first, lsn, map(put_map, values[first : first + CHUNK_MAPS]))
