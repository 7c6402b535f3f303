# Tests: tests/admin/test_openapi.py
"""Requests and answers about open transactions; see `brokerd.admin.shapes.common`."""

from __future__ import annotations

from msgspec import Struct

from brokerd.admin.shapes.common import Limit, Offset, Query


class TransactionQuery(Query, frozen=True):
    """A page of open transactions, from a number on."""

    first_number: Offset = 0
    limit: Limit = 1_000


class TransactionShape(Struct):
    """An open transaction. Its records are in memory, and no consumer sees them."""

    number: int
    """Counted from 1 since the broker started."""
    records: int
    topics: list[str]
    """The first ten topics of its records."""
    topics_count: int
    held_bytes: int
    seconds_left: float
    """Time until the broker rolls it back."""
    commit_waits: bool
    """Whether its commit waits for room in the journal."""


class TransactionList(Struct):
    """A page of open transactions, by number, and counts since the start."""

    transactions: list[TransactionShape]
    next_number: int | None
    """``first_number`` of the next page."""
    open: int
    held_bytes: int
    """Memory of all open transactions."""
    held_bytes_max: int
    """Its limit (``limits.transaction_bytes``)."""
    committed: int
    rolled_back: int
    timed_out: int
