# Tests: tests/broker/test_security.py
"""What the log says of accounts, access lists and API keys: bodies of SECURITY entries.

docs/wal-format.rst, section "SECURITY body", is the contract. A chunk of a snapshot holds the same
maps, one for each account, list and key that there is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from brokerd.broker.model.map_entries import Map, MapLayout, MapReplay
from brokerd.broker.model.state import Encode, State
from brokerd.security.accounts import AccessList, Account, ApiKey
from brokerd.security.directory import Directory
from brokerd.wal import SnapshotChunk
from brokerd.walformat import Entry, EntryKind

SNAPSHOT_SECURITY = 8
CHUNK_MAPS = 200
"""Accounts, lists and keys in one chunk of a snapshot: 50 MiB if all are as large as can be."""

LAYOUT = MapLayout(EntryKind.SECURITY, SNAPSHOT_SECURITY, "security", "security")
Value = Account | AccessList | ApiKey


def map_of(value: Value) -> Map:
    """What is made, or is so from now on."""
    if isinstance(value, Account):
        return _account_map(value)
    return _list_map(value) if isinstance(value, AccessList) else _key_map(value)


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
    """An account is gone, and its keys."""
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
    """An access list is gone."""
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
    """A key is gone."""
    return {"op": "key_revoked", "id": key_id}


def entry_of(fields: Map) -> Entry:
    """The log entry that says so."""
    return LAYOUT.entry(fields)


def apply(directory: Directory, fields: Map) -> bool:
    """Do what a map says, for the first or another time; False if its ``op`` is not known."""
    change = _CHANGES.get(fields["op"])
    if change is None:
        return False
    change(directory, fields)
    return True


def _put_account(directory: Directory, fields: Map) -> None:
    known = directory.accounts.get(fields["name"])
    directory.put_account(
        Account(
            directory.next_account_id if known is None else known.account_id,
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
    "key_revoked": lambda directory, fields: directory.remove_key(fields["id"]),
}


class SecurityReplay(MapReplay):
    """Brings a directory back from snapshot and log."""

    def __init__(self, state: State, directory: Directory) -> None:
        super().__init__(state, LAYOUT, partial(apply, directory))
        self._directory = directory
        state.captures.append(self._captures)

    def _captures(self, lsn: int) -> list[Encode]:
        """All that there is now, in chunks."""
        directory = self._directory
        values: list[Value] = [
            *directory.accounts.values(),
            *directory.lists.values(),
            *directory.keys.values(),
        ]
        firsts = range(0, len(values), CHUNK_MAPS)
        return [partial(_chunk, lsn, first, values) for first in firsts]


def _chunk(lsn: int, first: int, values: list[Value]) -> SnapshotChunk:
    return LAYOUT.chunk(first, lsn, map(map_of, values[first : first + CHUNK_MAPS]))
