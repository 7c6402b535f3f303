"""Accounts, access lists and keys in a snapshot, however large they are."""

from __future__ import annotations

from brokerd.broker.security_entries import CHUNK_MAPS, entry_of, map_of
from brokerd.security.access import READ
from brokerd.security.accounts import GRANTS_MAX, AccessList, check_access_list
from brokerd.values import MAX_NAME_BYTES
from brokerd.wal.snapshot import CHUNK_BYTES_MAX


def test_no_chunk_of_a_snapshot_is_too_large_whatever_lists_there_are() -> None:
    """Otherwise no snapshot could be written any more."""
    names = [f"{number:04}".ljust(MAX_NAME_BYTES, "x") for number in range(GRANTS_MAX)]
    largest = AccessList("t", users=dict.fromkeys(names, READ))
    check_access_list(largest)
    assert len(entry_of(map_of(largest)).body) * CHUNK_MAPS < CHUNK_BYTES_MAX // 16
