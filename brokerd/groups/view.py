# Tests: tests/groups/test_store.py, tests/groups/test_model.py
"""The attributes of a group partition's state, and the queries of it.

The attributes that hold a record, by its state:

- untouched: none. ``_touched`` has the records that were ever leased or settled. Its floor is the
  cursor.
- leased: ``_runs`` and ``_deadlines``, which has the first record of a run; or ``_leases``,
  ``_owners`` by owner, and ``_deadlines``
- returned: its attempts in ``_returned``, and either ``_ready`` or ``_delays``
- settled or dead: ``_settled``, whose floor is the lease floor; ``_dead`` for a dead one

In a key-ordered group ``_order`` holds the records that may be leased; else it is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import takewhile

from brokerd.groups.attempts import (
    DeadLetter,
    Lease,
    LeaseRow,
    first_attempt_us,
)
from brokerd.groups.bitmaps import FloorSet, LowestFirst, keys_between
from brokerd.groups.dead_letters import DeadLetters
from brokerd.groups.delays import Delays
from brokerd.groups.due_queue import DueQueue
from brokerd.groups.key_order import KeyOrder
from brokerd.groups.lease_runs import LeaseRun, LeaseRuns
from brokerd.groups.redelivery import Redeliveries
from brokerd.groups.settings import GroupSettings
from brokerd.groups.tables import Table

NO_OFFSET = -1
END_OF_OFFSETS = 1 << 63

STORE_MEMORY = 2_600
"""Memory of an empty store."""
WORD_MEMORY = 260
RUN_MEMORY = 200
BLOCK_MEMORY = 260
RETURNED_MEMORY = 24
DELAYED_BLOCK_MEMORY = 400
DELAYED_MEMORY = 8
DEAD_MEMORY = 28
REASON_MEMORY = 150
"""Of a distinct reason, besides its text."""
LEASE_MEMORY = 350
OWNER_MEMORY = 300
KEY_MEMORY = 130
"""Memory of the parts of a store: docs/leases.rst, section "Cost"."""


class GroupView:
    """Leases, attempts, floor, dead letters and committed offset of one group and partition."""

    __slots__ = (
        "_dead",
        "_deadlines",
        "_delays",
        "_epoch_us",
        "_leases",
        "_order",
        "_owners",
        "_ready",
        "_returned",
        "_runs",
        "_settled",
        "_token",
        "_touched",
        "committed",
        "configured",
        "paused",
        "settings",
    )

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.configured = False
        """Whether the settings were set for this group; else they come from the configuration."""
        self.committed = NO_OFFSET
        """The committed offset as given; -1 without one."""
        self.paused = False
        """Whether the group is paused and leases no records."""
        self._token = 0
        self._epoch_us = 0
        """The time from which stored times of attempts count."""
        self._settled = FloorSet()
        self._touched = FloorSet()
        self._leases: Table[LeaseRow] = {}
        self._owners: dict[str, set[int]] = {}
        self._runs = LeaseRuns()
        self._deadlines = DueQueue(self._deadline_of, lambda: self.leased)
        self._returned = Redeliveries(self._first_us)
        self._ready = LowestFirst()
        self._delays = Delays()
        self._dead = DeadLetters()
        self._order: KeyOrder | None = None

    # Queries

    @property
    def entries(self) -> int:
        """Number of words, ranges, blocks and leases in memory."""
        return (
            len(self._settled.words)
            + len(self._settled.runs)
            + len(self._touched.words)
            + len(self._touched.runs)
            + len(self._returned.blocks)
            + len(self._delays.rows.blocks)
            + len(self._dead.blocks)
            + self.leased
            + (len(self._returned.former) if self._returned.former is not None else 0)
        )

    @property
    def memory_bytes(self) -> int:
        """About the most memory of this store, by the formula of docs/leases.rst."""
        return (
            STORE_MEMORY
            + WORD_MEMORY * (len(self._settled.words) + len(self._touched.words))
            + RUN_MEMORY * (len(self._settled.runs) + len(self._touched.runs))
            + BLOCK_MEMORY * (len(self._returned.blocks) + len(self._dead.blocks))
            + RETURNED_MEMORY * self._returned.count
            + DELAYED_BLOCK_MEMORY * len(self._delays.rows.blocks)
            + DELAYED_MEMORY * self._delays.count
            + DEAD_MEMORY * self._dead.count
            + REASON_MEMORY * len(self._dead.reasons)
            + self._dead.reasons.text_bytes
            + LEASE_MEMORY * self.leased
            + OWNER_MEMORY * len(self._owners)
            + (0 if self._order is None else KEY_MEMORY * self._order.size)
        )

    @property
    def settled_above(self) -> int:
        """Number of settled and dead records above the floor."""
        return self._settled.above

    def knows(self, offset: int) -> bool:
        """Return whether a record was leased or settled, or failed without a lease."""
        return offset in self._touched

    @property
    def floor(self) -> int:
        """The lease floor: the lowest offset that is neither settled nor dead."""
        return self._settled.floor

    @property
    def last_token(self) -> int:
        """Token of the latest grant; 0 before the first."""
        return self._token

    @property
    def leased(self) -> int:
        """Number of leases, including lapsed ones that are still to be ended."""
        return len(self._leases) + self._runs.leased

    def owned(self, owner: str) -> int:
        """Number of leases of ``owner``, including lapsed ones that are still to be ended."""
        in_runs = sum(run.end - run.first for run in self._runs.owned(owner))
        return len(self._owners.get(owner, ())) + in_runs

    @property
    def ready(self) -> int:
        """Number of returned records that are eligible now."""
        return self._ready.count

    @property
    def delayed(self) -> int:
        """Number of returned records that are delayed."""
        return self._delays.count

    @property
    def dead(self) -> int:
        """Number of dead letters."""
        return self._dead.count

    @property
    def blocked(self) -> int:
        """Number of records that are blocked because their key is busy."""
        return 0 if self._order is None else len(self._order.blocked)

    def leases(self, first: int = 0, end: int = END_OF_OFFSETS) -> Iterator[Lease]:
        """Yield the leases of [first, end) in offset order.

        O(the range, or all leases if fewer).
        """
        rows: dict[int, LeaseRow] = {}
        for offset in keys_between(self._leases, len(self._leases), first, end):
            row = self._leases.get(offset)
            if row is not None:
                rows[offset] = row
        for run in self._runs.between(first, end):
            rows.update(run.rows())
        for offset in sorted(rows):
            row = rows[offset]
            yield Lease(offset, *row[:6], self._epoch_us + self._first_us(row))

    def delays(self, first: int = 0) -> Iterator[tuple[int, int]]:
        """Yield (offset, time at which it is ready) of delayed records from ``first`` on."""
        return ((offset, ready_us) for offset, (ready_us,) in self._delays.rows.items(first))

    def delayed_blocks(self, bound_us: int) -> list[int]:
        """Return the blocks in which a delay ends before ``bound_us``, in order. O(blocks)."""
        return self._delays.blocks_before(bound_us)

    def delayed_in(self, block: int, bound_us: int) -> list[tuple[int, int]]:
        """Return (time, offset) of the records of a block whose delay ends before ``bound_us``."""
        return self._delays.block_before(block, bound_us)

    def is_delayed(self, offset: int) -> bool:
        """Return whether a record is delayed."""
        return offset in self._delays.rows

    def next_open(self, end: int) -> int:
        """Return the lowest offset below ``end`` that is ready or untouched; -1 without one."""
        offset = self._touched.floor
        if self._ready.count and (lowest := self._ready.lowest()) < offset:
            offset = lowest
        return offset if offset < end else -1

    def open(self, first: int, end: int) -> Iterator[int]:
        """Yield the offsets of [first, end) that are ready or untouched, in order. O(words)."""
        return takewhile(
            lambda offset: offset < end, merge(self._ready.members(first), self._untouched(first))
        )

    def _untouched(self, first: int) -> Iterator[int]:
        while True:
            first = self._touched.next_absent(first)
            yield first
            first += 1

    def dead_letters(self, first: int = 0, end: int = END_OF_OFFSETS) -> Iterator[DeadLetter]:
        """Yield the dead letters of [first, end) in offset order.

        O(log n) and the letters taken.
        """
        reasons, epoch_us = self._dead.reasons.texts, self._epoch_us
        for offset, (grants, failures, reason, first_us, last_us) in self._dead.items(first, end):
            yield DeadLetter(
                offset, reasons[reason], grants, failures, epoch_us + first_us, epoch_us + last_us
            )

    def attempts(self, offset: int) -> tuple[int, int]:
        """Return (grants, failures) of a record that is not settled, or is dead."""
        lease = self._leases.get(offset)
        if lease is not None:
            return lease[3], lease[4]
        row = self._returned.get(offset)
        if row is not None:
            return row[0], row[1] >> 1
        row = self._dead.get(offset)
        if row is not None:
            return row[0], row[1]
        return (0, 0) if self._runs.find(offset) is None else (1, 0)

    def lag(self, end: int) -> int:
        """Return the number of records below ``end`` that are neither settled nor dead."""
        return max(end - self._settled.floor - self._settled.above, 0)

    def oldest_unsettled(self, end: int) -> int | None:
        """Return the first offset below ``end`` that is neither settled nor dead, or None."""
        floor = self._settled.floor
        return floor if floor < end else None

    def next_due_us(self) -> int | None:
        """Return the time of the earliest end of a lease or delay, or None.

        A lease lapses strictly after its deadline, so for a lease this is its deadline plus one.
        """
        deadline = self._deadlines.earliest_us()
        due = self._delays.next_us()
        if deadline is None:
            return due
        return deadline + 1 if due is None or deadline < due else due

    def dispose(self) -> None:
        """Break the reference cycles of the store, so that its memory is freed at once.

        The caller may still take the waiting events.
        """
        self._deadlines.dispose()
        self._returned.dispose()
        self._order = None

    # Parts

    def _is_leased(self, offset: int) -> bool:
        return offset in self._leases or self._runs.find(offset) is not None

    def _deadline_of(self, offset: int) -> int | None:
        """Return the deadline of a lease; None for a lease of a run that is not its first."""
        lease = self._leases.get(offset)
        if lease is not None:
            return lease[0]
        run = self._runs.find(offset) if self._runs.leased else None
        return run.deadline_us if run is not None and run.first == offset else None

    def _lease_of(self, offset: int) -> LeaseRow | None:
        """Return the lease of a record, or None. If a run has it, the run becomes rows."""
        lease = self._leases.get(offset)
        if lease is None and self._runs.leased:
            run = self._runs.find(offset)
            if run is not None:
                self._split(run)
                lease = self._leases.get(offset)
        return lease

    def _split(self, run: LeaseRun) -> None:
        """Turn the leases of a run into rows."""
        self._runs.remove(run)
        self._add_rows(run)
        self._deadlines.push_run(run.deadline_us, run.first + 1, run.end - run.first - 1)

    def _split_all(self) -> None:
        """Turn all runs into rows. O(RUN_LEASES_MAX)."""
        for run in self._runs.runs.copy():
            self._split(run)

    def _add_rows(self, run: LeaseRun) -> None:
        self._leases.update(run.rows())
        self._owners.setdefault(run.owner, set()).update(range(run.first, run.end))

    def _first_us(self, lease: LeaseRow) -> int:
        """Return the first attempt of a lease's record, relative to the epoch."""
        first_us = lease[6]
        return first_attempt_us(lease) - self._epoch_us if first_us is None else first_us
