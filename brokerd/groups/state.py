# Tests: tests/groups/test_store.py, tests/groups/test_model.py
"""The state of one group partition, and its change by each event.

An event is a fact. The same events in the same order give the same state, live or at replay.
docs/leases.rst tabulates the events and the states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from brokerd.errors import DamagedData, NewerFormat
from brokerd.groups.attempts import (
    NEVER_US,
    NO_ATTEMPTS,
    Attempts,
    LeaseRow,
)
from brokerd.groups.bitmaps import (
    WORD_SHIFT,
    keys_between,
    missing_words,
)
from brokerd.groups.key_order import NO_KEY, KeyOrder
from brokerd.groups.rows import BLOCK_SHIFT
from brokerd.groups.settings import GroupSettings
from brokerd.groups.tables import NEIGHBOURS_SHIFT, SHARD_MASK, Shards
from brokerd.groups.view import END_OF_OFFSETS, NO_OFFSET, GroupView
from brokerd.walformat import EventKind, GroupEvent

BLOCKS_PER_WORD_SHIFT = WORD_SHIFT - BLOCK_SHIFT


class GroupState(GroupView):
    """The state of one group partition. Only events change it."""

    __slots__ = ()

    def __init__(self, settings: GroupSettings) -> None:
        super().__init__(settings)
        self._reorder()

    def apply(self, event: GroupEvent, now_us: int) -> None:
        """Apply ``event`` at ``now_us``.

        Raises NewerFormat for an unknown kind of event, and DamagedData for an event that cannot
        follow the events before it.
        """
        transition = _TRANSITIONS.get(event[0])
        if transition is None:
            raise NewerFormat(
                f"group event kind {event[0]} at offset {event[1]} is unknown to this version; "
                "start the brokerd that wrote it, or a newer one"
            )
        transition(self, event, now_us)

    # Parts of a transition

    def _end_lease(self, offset: int) -> LeaseRow | None:
        """Remove and return the lease of a record, or None."""
        leases = self._leases
        if type(leases) is Shards:
            leases = leases.shards[offset >> NEIGHBOURS_SHIFT & SHARD_MASK]
        lease = leases.pop(offset, None)
        if lease is None and self._runs.leased and self._lease_of(offset) is not None:
            lease = self._leases.pop(offset)
        if lease is not None:
            owned = self._owners[lease[1]]
            owned.discard(offset)
            if not owned:
                del self._owners[lease[1]]
        return lease

    def _remove_returned(self, offset: int) -> Attempts | None:
        """Remove a returned record; return its attempts, or None if it is not one."""
        row = self._returned.pop(offset) if self._returned.count else None
        if row is None:
            return None
        if not (self._delays.count and self._delays.discard(offset)):
            self._ready.discard(offset)
        return row[0], row[1] >> 1, row[2], row[3]

    def _remove(self, offset: int) -> Attempts:
        """Remove a record from the leases or the returned records; return its attempts."""
        lease = self._end_lease(offset)
        if lease is not None:
            return lease[3], lease[4], lease[2], self._first_us(lease)
        row = self._remove_returned(offset)
        if row is not None:
            return row
        self._touched.add(offset)
        return NO_ATTEMPTS

    def _return_record(
        self, offset: int, attempts: Attempts, counted: bool, due_us: int, now_us: int
    ) -> None:
        """Store the attempts of a record and make it eligible at ``due_us``."""
        grants, failures, token, first_us = attempts
        self._returned.put(offset, grants, failures << 1 | counted, token, first_us)
        if due_us > now_us:
            self._delays.put(offset, due_us)
        else:
            self._ready.add(offset)
        if self._order is not None:
            self._order.return_record(offset)

    # One transition per kind of event

    def _apply_leased(self, event: GroupEvent, now_us: int) -> None:
        _, offset, duration_us, token, grants, owner, key = event
        row = self._remove_returned(offset) if self._returned.count else None
        failures, first_us = 0, None
        if row is None:
            self._touched.add(offset)
        else:
            failures = row[1]
            if row[3] != NEVER_US:
                first_us = row[3]
        deadline_us = now_us + duration_us if duration_us > 0 else now_us - 1
        lease = (deadline_us, owner, token, grants, failures, duration_us, first_us)
        leases = self._leases
        if type(leases) is Shards:
            leases = leases.shards[offset >> NEIGHBOURS_SHIFT & SHARD_MASK]
        leases[offset] = lease
        owned = self._owners.get(owner)
        if owned is None:
            self._owners[owner] = {offset}
        else:
            owned.add(offset)
        self._deadlines.push(deadline_us, offset)
        self._token = token
        if self._order is not None:
            self._order.lease(offset, int(key, 16) if key else NO_KEY)

    def _apply_extended(self, event: GroupEvent, now_us: int) -> None:
        offset, duration_us = event[1], event[2]
        lease = self._lease_of(offset)
        if lease is None:
            raise _no_lease(event)
        _, owner, token, grants, failures, _, _ = lease
        deadline_us = now_us + duration_us if duration_us > 0 else now_us - 1
        first_us = self._first_us(lease)
        self._leases[offset] = (deadline_us, owner, token, grants, failures, duration_us, first_us)
        self._deadlines.push(deadline_us, offset)

    def _apply_settled(self, event: GroupEvent, now_us: int) -> None:
        offset = event[1]
        if self._end_lease(offset) is None:
            self._remove(offset)
        self._settled.add(offset)
        if self._order is not None:
            self._order.leave(offset)

    def _apply_failed(self, event: GroupEvent, now_us: int) -> None:
        _, offset, delay_us, _, failures, _, _ = event
        grants, _, token, first_us = self._remove(offset)
        if first_us == NEVER_US:
            first_us = now_us - self._epoch_us
        attempts = (grants, failures, token, first_us)
        self._return_record(offset, attempts, True, now_us + delay_us, now_us)

    def _apply_ended(self, event: GroupEvent, now_us: int) -> None:
        """RELEASED or EXPIRED: end the lease and count no failure."""
        offset, delay_us = event[1], event[2]
        lease = self._end_lease(offset)
        if lease is None:
            raise _no_lease(event)
        _, _, token, grants, failures, _, _ = lease
        attempts = (grants, failures, token, self._first_us(lease))
        self._return_record(offset, attempts, False, now_us + delay_us, now_us)

    def _apply_dead(self, event: GroupEvent, now_us: int) -> None:
        _, offset, ended_us, _, failures, _, reason = event
        grants, _, _, first_us = self._remove(offset)
        last_us = now_us - ended_us - self._epoch_us
        if first_us == NEVER_US:
            first_us = last_us
        self._dead.add(offset, grants, failures, reason, first_us, last_us)
        self._settled.add(offset)
        if self._order is not None:
            self._order.leave(offset)

    def _apply_settled_range(self, event: GroupEvent, now_us: int) -> None:
        first, end = event[1], event[2]
        self._split_all()
        for offset in keys_between(self._leases, len(self._leases), first, end):
            self._end_lease(offset)
        self._returned.drop_range(first, end)
        self._delays.discard_range(first, end)
        self._ready.discard_range(first, end)
        self._touched.add_range(first, end)
        self._settled.add_range(first, end)
        if self._order is not None:
            self._order.leave_range(first, end)

    def _apply_seek(self, event: GroupEvent, now_us: int) -> None:
        floor = event[1]
        touched = self._end_all(floor)
        self._dead.drop_range(floor, END_OF_OFFSETS)
        self._touched.load(floor, touched)
        self._settled.load(floor, {})
        self._reorder()

    def _apply_committed(self, event: GroupEvent, now_us: int) -> None:
        self.committed = event[1]

    def _apply_configured(self, event: GroupEvent, now_us: int) -> None:
        was_ordered = self.settings.key_ordered
        self.settings = GroupSettings.from_json(event[6])
        self.configured = True
        if self.settings.key_ordered != was_ordered:
            self._end_all(0)
            self._reorder()

    def _apply_paused(self, event: GroupEvent, now_us: int) -> None:
        self.paused = True

    def _apply_resumed(self, event: GroupEvent, now_us: int) -> None:
        self.paused = False

    def _apply_replayed(self, event: GroupEvent, now_us: int) -> None:
        """Make the dead letters of the range open again, without attempts."""
        open_again: dict[int, int] = {}
        for block, bits in self._remove_dead(event):
            self._returned.fill(block, bits, 0, 0, 0, NEVER_US)
            word, bits_of_word = word_of_block(block, bits)
            open_again[word] = open_again.get(word, 0) | bits_of_word
            while self._order is not None and bits:
                low = bits & -bits
                bits ^= low
                self._order.return_record((block << BLOCK_SHIFT) + low.bit_length() - 1)
        for word, bits in open_again.items():
            self._ready.add_word(word, bits)
        self._settled.discard_words(open_again)

    def _apply_purged(self, event: GroupEvent, now_us: int) -> None:
        self._remove_dead(event)

    def _apply_deleted(self, event: GroupEvent, now_us: int) -> None:
        self._token = max(self._token, event[3])
        self.committed = NO_OFFSET
        self.paused = False
        self._clear_leases()
        self._returned.clear()
        self._ready.clear()
        self._delays.clear()
        self._dead.clear()
        self._touched.load(0, {})
        self._settled.load(0, {})
        self._reorder()

    # Parts of more than one

    def _remove_dead(self, event: GroupEvent) -> list[tuple[int, int]]:
        """Remove the dead letters of an event's range and reason; return (block, bits) pairs."""
        _, first, end, _, _, _, reason = event
        found = [(block, bits) for block, bits, _ in self._dead.select(first, end, reason) if bits]
        self._dead.remove(found)
        return found

    def _end_all(self, floor: int) -> dict[int, int]:
        """End all leases and delays. Keep the attempts of the records from ``floor`` on.

        Return the bitmap words of the ready records. O(words), or O(leases) if they are few.
        """
        open_again = missing_words(self._touched, self._settled, floor)
        self._split_all()
        self._returned.add_ended(self._leases)
        self._clear_leases()
        self._returned.drop_range(0, floor)
        self._delays.clear()
        self._ready.clear()
        for key, bits in open_again.items():
            self._ready.add_word(key, bits)
        return open_again

    def _make_ready(self, key: int, bits: int) -> None:
        """End the delays of these records of a block."""
        self._ready.add_word(*word_of_block(key, bits))
        if self._order is not None:
            while bits:
                low = bits & -bits
                bits ^= low
                self._order.end_delay((key << BLOCK_SHIFT) + low.bit_length() - 1)

    def _clear_leases(self) -> None:
        self._leases = {}
        self._runs.clear()
        self._owners.clear()
        self._deadlines.refill([])

    def _reorder(self, keys: Mapping[int, int] | None = None) -> None:
        """Rebuild the key order of all open records, if the group is key-ordered.

        ``keys`` are their known keys, by default those of the present order. O(words, keys).
        """
        if keys is None and self._order is not None:
            keys = self._order.keys
        self._order = None
        if self.settings.key_ordered:
            self._order = KeyOrder(self._is_leased, self._delays.rows.__contains__)
            self._order.load(missing_words(self._touched, self._settled, 0), keys or {})


def _no_lease(event: GroupEvent) -> DamagedData:
    return DamagedData(
        f"group event {EventKind(event[0]).name} at offset {event[1]}, which has no lease: "
        "the events before it are incomplete"
    )


def word_of_block(key: int, bits: int) -> tuple[int, int]:
    """Convert a row block and its bits to a bitmap word and its bits."""
    position = key & ((1 << BLOCKS_PER_WORD_SHIFT) - 1)
    return key >> BLOCKS_PER_WORD_SHIFT, bits << (position << BLOCK_SHIFT)


_TRANSITIONS: dict[int, Callable[[GroupState, GroupEvent, int], None]] = {
    EventKind.LEASED: GroupState._apply_leased,
    EventKind.EXTENDED: GroupState._apply_extended,
    EventKind.SETTLED: GroupState._apply_settled,
    EventKind.FAILED: GroupState._apply_failed,
    EventKind.RELEASED: GroupState._apply_ended,
    EventKind.EXPIRED: GroupState._apply_ended,
    EventKind.DEAD: GroupState._apply_dead,
    EventKind.COMMITTED: GroupState._apply_committed,
    EventKind.SETTLED_RANGE: GroupState._apply_settled_range,
    EventKind.SEEK: GroupState._apply_seek,
    EventKind.CONFIGURED: GroupState._apply_configured,
    EventKind.DELETED: GroupState._apply_deleted,
    EventKind.PAUSED: GroupState._apply_paused,
    EventKind.RESUMED: GroupState._apply_resumed,
    EventKind.REPLAYED: GroupState._apply_replayed,
    EventKind.PURGED: GroupState._apply_purged,
}
