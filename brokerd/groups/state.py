# Tests: tests/groups/test_store.py, tests/groups/test_model.py
"""The state of one (topic, group, partition), and what each event does to it.

Nothing here decides: an event is a fact, and applying the same events in the same order gives the
same state, live or at replay. docs/leases.rst tabulates the events and the states.

Where a record is kept:

- untouched: nowhere; it is not in ``_touched``, whose floor is the cursor
- leased: ``_leases``, by owner in ``_owners``, its deadline in ``_deadlines``
- came back: its attempts in ``_returned`` and either in ``_ready`` or in ``_delays``
- settled or dead: ``_settled``, whose floor is the lease floor; a dead one in ``_dead`` too

In a key-ordered group ``_order`` says which records may be given; else it is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from brokerd.errors import DamagedData, NewerFormat
from brokerd.groups.attempts import (
    DEAD_LAYOUT,
    NEVER_US,
    NO_ATTEMPTS,
    Attempts,
    DeadLetter,
    Lease,
    LeaseRow,
    first_attempt_us,
)
from brokerd.groups.bitmaps import (
    BIT,
    WORD_MASK,
    WORD_SHIFT,
    FloorSet,
    LowestFirst,
    keys_between,
    missing_words,
)
from brokerd.groups.delays import Delays
from brokerd.groups.due import DueQueue
from brokerd.groups.keys import NO_KEY, KeyOrder
from brokerd.groups.returned import Returned
from brokerd.groups.rows import BLOCK_SHIFT, OffsetRows
from brokerd.groups.settings import GroupSettings
from brokerd.groups.tables import Table
from brokerd.walformat import EventKind, GroupEvent

BLOCKS_PER_WORD_SHIFT = WORD_SHIFT - BLOCK_SHIFT
NO_OFFSET = -1
END_OF_OFFSETS = 1 << 63


class GroupState:
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
        "_reasons",
        "_returned",
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
        """Whether the group was given its settings; else they are those of the configuration."""
        self.committed = NO_OFFSET
        """The committed offset as given; -1 when there is none."""
        self.paused = False
        """Whether nothing is to be leased until the group is resumed."""
        self._token = 0
        self._epoch_us = 0
        """What the kept times of attempts are counted from."""
        self._settled = FloorSet()
        self._touched = FloorSet()
        self._leases: Table[LeaseRow] = {}
        self._owners: dict[str, set[int]] = {}
        self._deadlines = DueQueue(self._deadline_of)
        self._returned = Returned(self._first_us)
        self._ready = LowestFirst()
        self._delays = Delays()
        self._dead = OffsetRows(DEAD_LAYOUT)
        self._reasons: dict[str, int] = {}
        self._order: KeyOrder | None = None
        self._reorder()

    def apply(self, event: GroupEvent, now_us: int) -> None:
        """Do what ``event`` says, at ``now_us``.

        Raises NewerFormat for a kind of event that this version does not know, and DamagedData for
        an event that cannot follow the ones before it.
        """
        transition = _TRANSITIONS.get(event[0])
        if transition is None:
            raise NewerFormat(
                f"group event kind {event[0]} at offset {event[1]} is unknown to this version; "
                "start the brokerd that wrote it, or a newer one"
            )
        transition(self, event, now_us)

    # What can be seen

    @property
    def floor(self) -> int:
        """The lease floor: every record below it is settled or dead, the one at it is not."""
        return self._settled.floor

    @property
    def last_token(self) -> int:
        """Token of the latest grant; 0 before the first."""
        return self._token

    @property
    def leased(self) -> int:
        """Number of leases, those included that lapsed and were not yet noticed."""
        return len(self._leases)

    def owned(self, owner: str) -> int:
        """Number of leases of ``owner``, those included that lapsed and were not yet noticed."""
        return len(self._owners.get(owner, ()))

    @property
    def ready(self) -> int:
        """Number of records that came back and are eligible now."""
        return self._ready.count

    @property
    def delayed(self) -> int:
        """Number of records that came back and still wait."""
        return self._delays.count

    @property
    def dead(self) -> int:
        """Number of dead letters."""
        return self._dead.count

    @property
    def held(self) -> int:
        """Number of records that were passed over because their key is busy."""
        return 0 if self._order is None else len(self._order.held)

    def leases(self, first: int = 0, end: int = END_OF_OFFSETS) -> Iterator[Lease]:
        """The leases of [first, end), in offset order. O(those offsets, or all leases if fewer)."""
        for offset in sorted(keys_between(self._leases, len(self._leases), first, end)):
            row = self._leases.get(offset)
            if row is None:
                continue
            yield Lease(offset, *row[:6], self._epoch_us + self._first_us(row))

    def delays(self, first: int = 0) -> Iterator[tuple[int, int]]:
        """(offset, time at which it is ready) of the records that wait, from ``first`` on."""
        return ((offset, ready_us) for offset, (ready_us,) in self._delays.rows.items(first))

    def delayed_blocks(self, bound_us: int) -> list[int]:
        """Blocks of offsets in which a delay is over before ``bound_us``, in order. O(blocks)."""
        return self._delays.blocks_before(bound_us)

    def delayed_in(self, block: int, bound_us: int) -> list[tuple[int, int]]:
        """(time, offset) of the records of a block whose delay is over before ``bound_us``."""
        return self._delays.block_before(block, bound_us)

    def is_delayed(self, offset: int) -> bool:
        """Whether a record came back and still waits."""
        return offset in self._delays.rows

    def next_open(self, end: int) -> int:
        """The offset below ``end`` that is next, ready or never touched; -1 when there is none."""
        offset = self._touched.floor
        if self._ready.count and (lowest := self._ready.lowest()) < offset:
            offset = lowest
        return offset if offset < end else -1

    def dead_letters(self, first: int = 0, end: int = END_OF_OFFSETS) -> Iterator[DeadLetter]:
        """The dead letters of [first, end), in offset order."""
        reasons, epoch_us = list(self._reasons), self._epoch_us
        for offset, (grants, failures, reason, first_us, last_us) in self._dead.items(first, end):
            yield DeadLetter(
                offset, reasons[reason], grants, failures, epoch_us + first_us, epoch_us + last_us
            )

    def attempts(self, offset: int) -> tuple[int, int]:
        """(grants, failures) of a record that is not settled; dead ones included."""
        lease = self._leases.get(offset)
        if lease is not None:
            return lease[3], lease[4]
        row = self._returned.get(offset)
        if row is not None:
            return row[0], row[1] >> 1
        row = self._dead.get(offset)
        return (row[0], row[1]) if row is not None else (0, 0)

    def lag(self, end: int) -> int:
        """Number of records below ``end`` that are neither settled nor dead."""
        return max(end - self._settled.floor - self._settled.above, 0)

    def oldest_unsettled(self, end: int) -> int | None:
        """Offset of the first record below ``end`` that is neither settled nor dead, or None."""
        floor = self._settled.floor
        return floor if floor < end else None

    def next_due_us(self) -> int | None:
        """When ``expire`` next has something to do, or None: the earliest end of a lease or delay.

        A lease lapses strictly after its deadline, so for a lease this is one past it.
        """
        deadline = self._deadlines.earliest_us()
        due = self._delays.next_us()
        if deadline is None:
            return due
        return deadline + 1 if due is None or deadline < due else due

    # Parts of a transition

    def _is_leased(self, offset: int) -> bool:
        return offset in self._leases

    def _deadline_of(self, offset: int) -> int | None:
        lease = self._leases.get(offset)
        return None if lease is None else lease[0]

    def _end_lease(self, offset: int) -> LeaseRow | None:
        """Take the record out of the leases; None when it has none."""
        lease = self._leases.pop(offset, None)
        if lease is not None:
            owner = lease[1]
            held = self._owners[owner]
            held.discard(offset)
            if not held:
                del self._owners[owner]
        return lease

    def _take_back(self, offset: int) -> Attempts | None:
        """Take the record out of those that came back; None when it is none of them."""
        row = self._returned.pop(offset) if self._returned.count else None
        if row is None:
            return None
        if not (self._delays.count and self._delays.discard(offset)):
            self._ready.discard(offset)
        return row[0], row[1] >> 1, row[2], row[3]

    def _leave(self, offset: int) -> Attempts:
        """Take the record out of wherever it is: its attempts so far."""
        lease = self._end_lease(offset)
        if lease is not None:
            return lease[3], lease[4], lease[2], self._first_us(lease)
        row = self._take_back(offset)
        if row is not None:
            return row
        self._touched.add(offset)
        return NO_ATTEMPTS

    def _come_back(
        self, offset: int, attempts: Attempts, counted: bool, due_us: int, now_us: int
    ) -> None:
        """Keep the attempts of a record and make it eligible at ``due_us``."""
        grants, failures, token, first_us = attempts
        self._returned.put(offset, grants, failures << 1 | counted, token, first_us)
        if due_us > now_us:
            self._delays.put(offset, due_us)
        else:
            self._ready.add(offset)
        if self._order is not None:
            self._order.come_back(offset)

    def _first_us(self, lease: LeaseRow) -> int:
        """When the record of a lease was first attempted, relative to the epoch."""
        first_us = lease[6]
        return first_attempt_us(lease) - self._epoch_us if first_us is None else first_us

    def _live(self, event: GroupEvent) -> LeaseRow:
        lease = self._leases.get(event[1])
        if lease is None:
            raise DamagedData(
                f"group event {EventKind(event[0]).name} at offset {event[1]}, which has no lease: "
                "the events before it are incomplete"
            )
        return lease

    # One transition per kind of event

    def _apply_leased(self, event: GroupEvent, now_us: int) -> None:
        _, offset, duration_us, token, grants, owner, key = event
        row = self._take_back(offset) if self._returned.count else None
        failures, first_us = 0, None
        if row is None:
            self._touched.add(offset)
        else:
            failures = row[1]
            if row[3] != NEVER_US:
                first_us = row[3]
        deadline_us = now_us + duration_us if duration_us > 0 else now_us - 1
        self._leases[offset] = (deadline_us, owner, token, grants, failures, duration_us, first_us)
        held = self._owners.get(owner)
        if held is None:
            self._owners[owner] = {offset}
        else:
            held.add(offset)
        self._deadlines.push(deadline_us, offset)
        self._token = token
        if self._order is not None:
            self._order.lease(offset, int(key, 16) if key else NO_KEY)

    def _apply_extended(self, event: GroupEvent, now_us: int) -> None:
        lease = self._live(event)
        _, owner, token, grants, failures, _, _ = lease
        offset, duration_us = event[1], event[2]
        deadline_us = now_us + duration_us if duration_us > 0 else now_us - 1
        first_us = self._first_us(lease)
        self._leases[offset] = (deadline_us, owner, token, grants, failures, duration_us, first_us)
        self._deadlines.push(deadline_us, offset)

    def _apply_settled(self, event: GroupEvent, now_us: int) -> None:
        offset = event[1]
        if self._end_lease(offset) is None:
            self._leave(offset)
        self._settled.add(offset)
        if self._order is not None:
            self._order.leave(offset)

    def _apply_failed(self, event: GroupEvent, now_us: int) -> None:
        _, offset, delay_us, _, failures, _, _ = event
        grants, _, token, first_us = self._leave(offset)
        if first_us == NEVER_US:
            first_us = now_us - self._epoch_us
        attempts = (grants, failures, token, first_us)
        self._come_back(offset, attempts, True, now_us + delay_us, now_us)

    def _apply_ended(self, event: GroupEvent, now_us: int) -> None:
        """RELEASED or EXPIRED: the lease is over and no failure is counted."""
        lease = self._live(event)
        _, _, token, grants, failures, _, _ = lease
        offset, delay_us = event[1], event[2]
        self._end_lease(offset)
        attempts = (grants, failures, token, self._first_us(lease))
        self._come_back(offset, attempts, False, now_us + delay_us, now_us)

    def _apply_dead(self, event: GroupEvent, now_us: int) -> None:
        _, offset, ended_us, _, failures, _, reason = event
        grants, _, _, first_us = self._leave(offset)
        last_us = now_us - ended_us - self._epoch_us
        if first_us == NEVER_US:
            first_us = last_us
        index = self._reasons.setdefault(reason, len(self._reasons))
        self._dead.put(offset, grants, failures, index, first_us, last_us)
        self._settled.add(offset)
        if self._order is not None:
            self._order.leave(offset)

    def _apply_settled_range(self, event: GroupEvent, now_us: int) -> None:
        first, end = event[1], event[2]
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
        """The dead letters of the range are open again, as if they were never tried."""
        open_again: dict[int, int] = {}
        for offset in self._bury(event):
            key = offset >> WORD_SHIFT
            open_again[key] = open_again.get(key, 0) | BIT[offset & WORD_MASK]
            self._returned.put(offset, 0, 0, 0, NEVER_US)
            if self._order is not None:
                self._order.come_back(offset)
        for key, bits in open_again.items():
            self._ready.add_word(key, bits)
        self._settled.discard_words(open_again)

    def _apply_purged(self, event: GroupEvent, now_us: int) -> None:
        self._bury(event)

    def _apply_deleted(self, event: GroupEvent, now_us: int) -> None:
        self._token = max(self._token, event[3])
        self.committed = NO_OFFSET
        self.paused = False
        self._clear_leases()
        self._returned.clear()
        self._ready.clear()
        self._delays.clear()
        self._dead.clear()
        self._reasons.clear()
        self._touched.load(0, {})
        self._settled.load(0, {})
        self._reorder()

    # Parts of more than one

    def _bury(self, event: GroupEvent) -> list[int]:
        """List the dead letters of an event's range and reason no longer; returns their offsets."""
        _, first, end, _, _, _, reason = event
        index = self._reasons.get(reason)
        offsets = [
            offset for offset, row in self._dead.items(first, end) if not reason or row[2] == index
        ]
        for offset in offsets:
            self._dead.pop(offset)
        if not self._dead.count:
            self._reasons.clear()
        return offsets

    def _end_all(self, floor: int) -> dict[int, int]:
        """End all leases and delays. Of the records from ``floor`` on, keep the attempts.

        Returns the words of those that are ready now. O(words); O(leases) if they are few.
        """
        open_again = missing_words(self._touched, self._settled, floor)
        self._returned.take_over(self._leases)
        self._clear_leases()
        self._returned.drop_range(0, floor)
        self._delays.clear()
        self._ready.clear()
        for key, bits in open_again.items():
            self._ready.add_word(key, bits)
        return open_again

    def _make_ready(self, key: int, bits: int) -> None:
        """The delays of these records of a block are over."""
        self._ready.add_word(*word_of_block(key, bits))
        if self._order is not None:
            while bits:
                low = bits & -bits
                bits ^= low
                self._order.end_delay((key << BLOCK_SHIFT) + low.bit_length() - 1)

    def _clear_leases(self) -> None:
        self._leases = {}
        self._owners.clear()
        self._deadlines.refill([])

    def _reorder(self, keys: Mapping[int, int] | None = None) -> None:
        """Let all open records get in line again, if the group is key-ordered.

        ``keys`` are those known of them; by default, those that were known so far. O(words, keys).
        """
        if keys is None and self._order is not None:
            keys = self._order.keys
        self._order = None
        if self.settings.key_ordered:
            self._order = KeyOrder(self._is_leased, self._delays.rows.__contains__)
            self._order.load(missing_words(self._touched, self._settled, 0), keys or {})


def word_of_block(key: int, bits: int) -> tuple[int, int]:
    """The bitmap word, and the bits in it, of a row block and its bits."""
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
