# Tests: tests/groups/test_redelivery.py, tests/groups/test_model.py
"""The attempts of returned records, whose lease ended without a settle.

A seek ends all leases at once. A row for each of a million leases would take a second to write, so
a large table of ended leases is kept as it is, for records without a row.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.groups import tables
from brokerd.groups.attempts import NEVER_US, RETURNED_LAYOUT, LeaseRow
from brokerd.groups.bitmaps import keys_between
from brokerd.groups.rows import OffsetRows, Row
from brokerd.groups.tables import Table


def _never_us(lease: LeaseRow) -> int:
    """First attempt of a lease in a disposed table."""
    return NEVER_US


class Redeliveries(OffsetRows):
    """Rows of `RETURNED_LAYOUT`. ``first_us`` gives a lease's first attempt, relative to the epoch.

    `put` expects an offset without attempts. While there are former leases, ``count`` is an upper
    bound, and `items` yields only rows.
    """

    __slots__ = ("_first_us", "first", "former")

    def __init__(self, first_us: Callable[[LeaseRow], int]) -> None:
        super().__init__(RETURNED_LAYOUT)
        self._first_us = first_us
        self.former: Table[LeaseRow] | None = None
        """Leases that ended together. From ``first`` on they hold their records' attempts."""
        self.first = 0

    def dispose(self) -> None:
        """Drop references to other objects, so that memory is freed at once."""
        self._first_us = _never_us

    def add_ended(self, leases: Table[LeaseRow]) -> None:
        """Store the attempts of these ended leases. The caller must not use the table again.

        O(1) for a large table after small ones, else O(former leases)."""
        self.write_rows()
        self.former = leases
        self.count += len(leases)
        if len(leases) < tables.LARGE:
            self.write_rows()

    def write_rows(self) -> None:
        """Write a row for each former lease and drop these."""
        former, self.former = self.former, None
        if former is not None:
            self.count -= len(former)
            for offset, lease in former.items():
                if offset >= self.first:
                    self.put(offset, *self._row(lease))
        self.first = 0

    def __contains__(self, offset: int) -> bool:
        return self.get(offset) is not None

    def get(self, offset: int) -> Row | None:
        """Return the attempts of ``offset``, or None."""
        row = super().get(offset)
        if row is None and self.former is not None and offset >= self.first:
            lease = self.former.get(offset)
            return None if lease is None else self._row(lease)
        return row

    def pop(self, offset: int) -> Row | None:
        """Remove and return the attempts of ``offset``, or None."""
        if self.former is None or super().__contains__(offset):
            return super().pop(offset)
        row = self.get(offset)
        self._forget(self.former, offset)
        return row

    def drop_range(self, first: int, end: int) -> None:
        """Remove the attempts of [first, end). O(the range, or all records if fewer)."""
        super().drop_range(first, end)
        if first <= self.first:
            self.first = max(self.first, 0 if self.former is None else end)
        elif self.former is not None:
            for offset in keys_between(self.former, len(self.former), first, end):
                self._forget(self.former, offset)

    def clear(self) -> None:
        """Remove all attempts."""
        super().clear()
        self.former = None
        self.first = 0

    def _forget(self, former: Table[LeaseRow], offset: int) -> None:
        if former.pop(offset, None) is not None:
            self.count -= 1

    def _row(self, lease: LeaseRow) -> Row:
        return lease[3], lease[4] << 1, lease[2], self._first_us(lease)
