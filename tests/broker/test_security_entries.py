"""Accounts, access lists and keys in a snapshot, however large they are."""

from __future__ import annotations

import pytest

from brokerd.broker.model.state import State
from brokerd.broker.security.entries import (
    CHUNK_MAPS,
    SNAPSHOT_SECURITY,
    SecurityReplay,
    account_deleted_map,
    entry_of,
    put_map,
)
from brokerd.errors import NewerFormat
from brokerd.groups import GroupSettings
from brokerd.security.access import READ
from brokerd.security.accounts import GRANTS_MAX, AccessList, Account, check_access_list
from brokerd.security.directory import Directory, Policy
from brokerd.values import MAX_NAME_BYTES
from brokerd.wal import Frame
from brokerd.wal.snapshot import CHUNK_BYTES_MAX
from brokerd.walformat import Entry, EntryKind


def frame_at(lsn: int, entry: Entry) -> Frame:
    """A frame with nothing else in it."""
    return Frame(lsn, lsn + 8, 1, [entry])


def test_what_a_snapshot_holds_is_not_replayed_over_it() -> None:
    """The log may have lost, by damage, what the snapshot knows: that a grant was revoked."""
    directory, state = Directory(Policy()), State(GroupSettings())
    SecurityReplay(state, directory)
    granted = entry_of(put_map(AccessList("t", users={"ann": READ})))
    kept = put_map(Account(1, "ann"))
    state.loaders[SNAPSHOT_SECURITY](100, {"security": [kept]})
    state.appliers[EntryKind.SECURITY](frame_at(92, granted), granted)
    gone = entry_of(account_deleted_map("ann"))
    state.appliers[EntryKind.SECURITY](frame_at(92, gone), gone)
    assert list(directory.accounts) == ["ann"] and not directory.lists
    state.appliers[EntryKind.SECURITY](frame_at(100, granted), granted)
    assert list(directory.lists) == [("t", False)]


def test_a_snapshot_of_a_later_version_is_refused() -> None:
    """And not read without what it says of security."""
    state = State(GroupSettings())
    SecurityReplay(state, Directory(Policy()))
    with pytest.raises(NewerFormat, match="the snapshot says 'decree' of security"):
        state.loaders[SNAPSHOT_SECURITY](100, {"security": [{"op": "decree"}]})


def test_no_chunk_of_a_snapshot_is_too_large_whatever_lists_there_are() -> None:
    """Otherwise no snapshot could be written any more."""
    names = [f"{number:04}".ljust(MAX_NAME_BYTES, "x") for number in range(GRANTS_MAX)]
    largest = AccessList("t", users=dict.fromkeys(names, READ))
    check_access_list(largest)
    assert len(entry_of(put_map(largest)).body) * CHUNK_MAPS < CHUNK_BYTES_MAX // 16
