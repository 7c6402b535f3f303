# Tests: tests/groups/test_store.py, tests/groups/test_model.py
"""Which record an acquire gives next: the lowest eligible one that is still there.

What is removed or expired is settled on the way, and neighbours share one event; a hole of any
length is passed over in one go. In a key-ordered
group, records whose key is busy are passed over and held (`brokerd.groups.key_order`). All of it is
bounded, so that a call takes milliseconds whatever lies in its way.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.groups.key_order import HELD_MAX, UNKNOWN, KeyOrder
from brokerd.groups.state import GroupState
from brokerd.groups.view import NO_OFFSET
from brokerd.walformat import EventKind, GroupEvent

STOP = 0
"""Nothing more is to be leased in this call."""
TAKE = 1
"""The record is to be leased."""
GONE = 2
"""The record is removed or expired: it is settled, and the next one is looked at. As `gone_until`
says, all that follow up to some offset may be gone with it."""

LOOKS_MAX = 10_000
"""Records that one call may pass over."""
RANGES_MAX = 64
"""Events about removed and expired records that one call may cause."""

Accept = Callable[[int], int]
"""offset -> STOP, TAKE, GONE or `gone_until`."""
KeyOf = Callable[[int], int]
"""offset -> 64-bit hash of the record's key, NO_KEY or UNKNOWN."""

_SETTLED = int(EventKind.SETTLED)
_SETTLED_RANGE = int(EventKind.SETTLED_RANGE)


def gone_until(end: int) -> int:
    """The answer that all records from the one asked for up to offset ``end``, exclusive, are gone.

    Leases among them end.
    """
    return -end


class EligibleSearch:
    """The records that one acquire may give, one after the other.

    Whoever takes one leases it before asking for the next. `flush` comes before each further event,
    and last.
    """

    __slots__ = (
        "_accept",
        "_end",
        "_events",
        "_gone_end",
        "_gone_first",
        "_key_of",
        "_looks",
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
        """The key of the record that `next` gave, in a key-ordered group."""
        self.cut_short = False
        """Whether a bound ended it, so that there may be more."""
        self._state = state
        self._events = events
        self._end = end
        self._accept = accept
        self._key_of = key_of
        self._looks = self._ranges = 0
        self._gone_first = self._gone_end = NO_OFFSET

    def next(self) -> int:
        """The next record to lease, or -1."""
        while (offset := self._candidate()) >= 0:
            answer = TAKE if self._accept is None else self._accept(offset)
            if answer == TAKE:
                return offset
            if answer == STOP:
                break
            self.pass_over(offset, answer)
        return NO_OFFSET

    def pass_over(self, offset: int, answer: int) -> None:
        """Settle a record that may be given, because it is gone, and those gone with it."""
        self._looks += 1
        if self._gone_end < 0 or self._state._settled.next_absent(self._gone_end) != offset:
            self.flush()
            self._gone_first = offset
            self._ranges += 1
        if answer == GONE:
            self._gone_end = offset + 1
            self._state.apply((_SETTLED, offset, 0, 0, 0, "", ""), 0)
        else:
            self._gone_end = max(offset + 1, min(-answer, self._end))
            self._state.apply((_SETTLED_RANGE, offset, self._gone_end, 0, 0, "", ""), 0)

    def flush(self) -> None:
        """Write down what was passed over."""
        if self._gone_end >= 0:
            self._events.append((_SETTLED_RANGE, self._gone_first, self._gone_end, 0, 0, "", ""))
            self._gone_first = self._gone_end = NO_OFFSET

    def _candidate(self) -> int:
        """The lowest record that may be given, or -1."""
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
                self._looks += 1
                continue
            order.scan = offset = touched.next_absent(order.scan)
            if order.free.count and (lowest := order.free.lowest()) < offset:
                self.key = order.key_of(lowest)
                return lowest
            if offset >= self._end or len(order.held) >= HELD_MAX:
                break
            self.key = key = key_of(offset)
            if key == UNKNOWN:
                break
            if not (key and order.is_busy(key)):
                return offset
            order.hold(offset, key)
            order.scan = offset + 1
            self._looks += 1
        return NO_OFFSET

    def _is_cut_short(self) -> bool:
        self.cut_short = self._looks >= LOOKS_MAX or self._ranges >= RANGES_MAX
        return self.cut_short
