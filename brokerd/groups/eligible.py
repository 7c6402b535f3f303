# Tests: tests/groups/test_store.py, tests/groups/test_model.py
"""The search of an acquire for the next record: the lowest eligible one that exists.

The search settles removed and expired records; neighbours share one event, and a hole of any length
is one step. In a key-ordered group it passes over records with a busy key and blocks them
(`brokerd.groups.key_order`). Its work is bounded, so that one call takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.groups.key_order import BLOCKED_MAX, UNKNOWN, KeyOrder
from brokerd.groups.state import GroupState
from brokerd.groups.view import NO_OFFSET
from brokerd.walformat import EventKind, GroupEvent

STOP = 0
"""End the acquire."""
TAKE = 1
"""Lease the record."""
GONE = 2
"""The record is removed or expired: settle it and go on.

`gone_until` makes the verdict for a range.
"""

EXAMINED_MAX = 10_000
"""Largest number of records that one call passes over."""
RANGES_MAX = 64
"""Largest number of events about removed and expired records in one call."""

Accept = Callable[[int], int]
"""offset -> STOP, TAKE, GONE or `gone_until`."""
KeyOf = Callable[[int], int]
"""offset -> 64-bit hash of the record's key, NO_KEY or UNKNOWN."""

_SETTLED = int(EventKind.SETTLED)
_SETTLED_RANGE = int(EventKind.SETTLED_RANGE)


def gone_until(end: int) -> int:
    """Return the verdict that the record and all later ones below ``end`` are gone.

    Leases of these records end.
    """
    return -end


class EligibleSearch:
    """Finds the records that one acquire may lease, one after the other.

    The caller leases a record before it asks for the next. It calls `flush` before each event of
    its own, and at the end.
    """

    __slots__ = (
        "_accept",
        "_end",
        "_events",
        "_examined",
        "_gone_end",
        "_gone_first",
        "_key_of",
        "_ranges",
        "_state",
        "cut_short",
        "key",
    )

    def __init__(
        self,
        state: GroupState,
        events: list[GroupEvent],
        end: int,
        accept: Accept | None,
        key_of: KeyOf | None,
    ) -> None:
        self.key = 0
        """In a key-ordered group, the key of the record that `next` returned."""
        self.cut_short = False
        """Whether a bound ended the search before its end."""
        self._state = state
        self._events = events
        self._end = end
        self._accept = accept
        self._key_of = key_of
        self._examined = self._ranges = 0
        self._gone_first = self._gone_end = NO_OFFSET

    def next(self) -> int:
        """Return the offset of the next record to lease, or -1."""
        while (offset := self._candidate()) >= 0:
            verdict = TAKE if self._accept is None else self._accept(offset)
            if verdict == TAKE:
                return offset
            if verdict == STOP:
                break
            self.settle_gone(offset, verdict)
        return NO_OFFSET

    def settle_gone(self, offset: int, verdict: int) -> None:
        """Settle an eligible record that is gone, and the range that is gone with it."""
        self._examined += 1
        if self._gone_end < 0 or self._state._settled.next_absent(self._gone_end) != offset:
            self.flush()
            self._gone_first = offset
            self._ranges += 1
        if verdict == GONE:
            self._gone_end = offset + 1
            self._state.apply((_SETTLED, offset, 0, 0, 0, "", ""), 0)
        else:
            self._gone_end = max(offset + 1, min(-verdict, self._end))
            self._state.apply((_SETTLED_RANGE, offset, self._gone_end, 0, 0, "", ""), 0)

    def flush(self) -> None:
        """Write the event that settles the records passed over so far."""
        if self._gone_end >= 0:
            self._events.append((_SETTLED_RANGE, self._gone_first, self._gone_end, 0, 0, "", ""))
            self._gone_first = self._gone_end = NO_OFFSET

    def _candidate(self) -> int:
        """Return the lowest eligible offset, or -1."""
        if self._is_cut_short():
            return NO_OFFSET
        state = self._state
        if state._order is not None:
            return self._candidate_in_order(state._order)
        offset = state._touched.floor
        if state._ready.count:
            offset = min(offset, state._ready.lowest())
        return offset if offset < self._end else NO_OFFSET

    def _candidate_in_order(self, order: KeyOrder) -> int:
        key_of, touched = self._key_of, self._state._touched
        assert key_of is not None
        while not self._is_cut_short():
            if order.unresolved.count:
                offset = order.unresolved.lowest()
                known = order.keys.get(offset)
                key = key_of(offset) if known is None else known
                if key == UNKNOWN:
                    break
                order.resolve(offset, key)
                self._examined += 1
                continue
            order.scan = offset = touched.next_absent(order.scan)
            if order.free.count and (lowest := order.free.lowest()) < offset:
                self.key = order.key_of(lowest)
                return lowest
            if offset >= self._end or len(order.blocked) >= BLOCKED_MAX:
                break
            self.key = key = key_of(offset)
            if key == UNKNOWN:
                break
            if not (key and order.is_busy(key)):
                return offset
            order.block(offset, key)
            order.scan = offset + 1
            self._examined += 1
        return NO_OFFSET

    def _is_cut_short(self) -> bool:
        self.cut_short = self._examined >= EXAMINED_MAX or self._ranges >= RANGES_MAX
        return self.cut_short
