# Tests: tests/groups/test_store.py, tests/groups/test_model.py
"""The lease store of one (topic, group, partition): values in, values and events out.

Every command decides, writes what it decided as a GroupEvent to ``events``, and applies that event
by the code that replay uses (``brokerd.groups.state``). The caller drains ``events`` into the
journal. No clock: ``now_us`` is monotonic microseconds, ``end`` the next offset of the partition.
docs/leases.rst is the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from brokerd.errors import LeaseLost, NotLeaseOwner, UnknownOffset
from brokerd.groups import snapshot, thaw
from brokerd.groups.attempts import DeadLetter, LeaseRow
from brokerd.groups.choice import GONE, TAKE, Choice, KeyOf, Takes
from brokerd.groups.settings import MAX_DURATION_US, GroupSettings
from brokerd.groups.state import END_OF_OFFSETS, GroupState
from brokerd.groups.tables import LARGE, grown
from brokerd.values import Grant
from brokerd.walformat import EventKind, GroupEvent

MAX_COUNT = (1 << 31) - 1
"""Counters stop here; they never wrap."""

STALE_PER_LAPSE = 8
"""Deadlines of leases that were extended or are over which `expire` passes over for each lapse."""

MAX_ATTEMPTS_REASON = "max_attempts"

# Plain integers: looking a member up in its enum costs more than the rest of an event.
_LEASED = int(EventKind.LEASED)
_EXTENDED = int(EventKind.EXTENDED)
_SETTLED = int(EventKind.SETTLED)
_FAILED = int(EventKind.FAILED)
_RELEASED = int(EventKind.RELEASED)
_EXPIRED = int(EventKind.EXPIRED)
_DEAD = int(EventKind.DEAD)
_COMMITTED = int(EventKind.COMMITTED)
_SETTLED_RANGE = int(EventKind.SETTLED_RANGE)
_SEEK = int(EventKind.SEEK)
_CONFIGURED = int(EventKind.CONFIGURED)
_DELETED = int(EventKind.DELETED)
_PAUSED = int(EventKind.PAUSED)
_RESUMED = int(EventKind.RESUMED)
_REPLAYED = int(EventKind.REPLAYED)
_PURGED = int(EventKind.PURGED)

_new_tuple = tuple.__new__


class GroupPartition(GroupState):
    """Lease store of one topic, group and partition.

    An ``owner`` or ``token`` of None is not checked.
    """

    __slots__ = ("cut_short", "events")

    def __init__(self, settings: GroupSettings) -> None:
        super().__init__(settings)
        self.events: list[GroupEvent] = []
        """What happened since the caller last took the events out, oldest first."""
        self.cut_short = False
        """Whether the last `acquire` passed over so many records that it stopped: ask again."""

    def acquire(
        self,
        now_us: int,
        end: int,
        owner: str,
        duration_us: int,
        limit: int = 1,
        takes: Takes | None = None,
        expire: bool = True,
        key_of: KeyOf | None = None,
    ) -> list[Grant]:
        """Lease up to ``limit`` eligible records below ``end`` to ``owner``, lowest offset first.

        ``takes(offset)`` is asked before each lease: TAKE; STOP ends the call; GONE says that the
        record is removed or expired, which settles it by an event, and the next one is looked at.
        ``key_of(offset)``, which a key-ordered group needs, gives the 64-bit hash of the record's
        key; NO_KEY when it has none or is gone; UNKNOWN, which ends the call, when it is not in
        memory. `cut_short` is True afterwards if LOOKS_MAX records or RANGES_MAX ranges were passed
        over, so that there may be more.

        A duration of zero or less lapses at once. ``expire`` False: the caller has called `expire`,
        as far as it wants to go now. A paused group gives nothing. O(log n) a record.
        """
        if expire and (
            self._deadlines.may_be_due(now_us)
            or (self._delays.count and self._delays.may_be_due(now_us + 1))
        ):
            self.expire(now_us)
        self.cut_short = False
        if self.paused:
            return []
        if len(self._leases) >= LARGE:
            self._leases = grown(self._leases)
        duration_us = _bounded(duration_us)
        granted: list[Grant] = []
        if self._order is not None:
            if key_of is None:
                raise ValueError("acquire from a key-ordered group needs key_of")
            choice = Choice(self, self.events, end, takes, key_of)
            self._grant(choice, now_us, owner, duration_us, limit, granted)
            return granted
        touched, ready = self._touched, self._ready
        add_event, apply_leased = self.events.append, self._apply_leased
        token = self._token
        for _ in range(limit):
            offset = touched.floor
            grants, failures = 1, 0
            if ready.count and (lowest := ready.lowest()) < offset:
                offset = lowest
                grants, failures = self.attempts(offset)
                grants = min(grants + 1, MAX_COUNT)
            if offset >= end:
                break
            if takes is not None and (answer := takes(offset)) != TAKE:
                if answer == GONE:
                    choice = Choice(self, self.events, end, takes, None)
                    choice.pass_over(offset)
                    self._grant(choice, now_us, owner, duration_us, limit, granted)
                break
            token += 1
            event = (_LEASED, offset, duration_us, token, grants, owner, "")
            add_event(event)
            apply_leased(event, now_us)
            granted.append(_new_tuple(Grant, (offset, token, grants, failures, duration_us)))
        return granted

    def settle(
        self,
        now_us: int,
        end: int,
        offset: int,
        success: bool,
        owner: str | None = None,
        token: int | None = None,
        delay_us: int | None = None,
        reason: str = "",
    ) -> bool:
        """Settle a record: done, or failed (``delay_us`` None means the group's back-off).

        True when it changed something, False when it was so already. Raises NotLeaseOwner while
        another owner's lease lives, LeaseLost for a token that is not the latest of the record, and
        UnknownOffset for an offset that was never assigned.
        """
        lease = self._leases.get(offset)
        if lease is None or lease[0] < now_us:
            return self._settle_unleased(now_us, end, offset, success, token, delay_us, reason)
        if owner is not None and owner != lease[1]:
            raise _not_owner()
        if token is not None and token != lease[2]:
            raise _lease_lost(offset)
        if success:
            event = (_SETTLED, offset, 0, 0, 0, "", "")
            self.events.append(event)
            self._apply_settled(event, now_us)
        else:
            self._fail(now_us, offset, delay_us, reason)
        return True

    def extend(
        self,
        now_us: int,
        offset: int,
        duration_us: int,
        owner: str | None = None,
        token: int | None = None,
    ) -> int:
        """Let the live lease run ``duration_us`` from now instead; returns what remains of it.

        Raises NotLeaseOwner and, when no such lease lives, LeaseLost.
        """
        lease = self._live_lease(now_us, offset, owner, token)
        duration_us = _bounded(duration_us)
        self._record((_EXTENDED, offset, duration_us, lease[2], 0, "", ""), now_us)
        return duration_us

    def release(
        self,
        now_us: int,
        offset: int,
        owner: str | None = None,
        token: int | None = None,
        delay_us: int = 0,
    ) -> None:
        """End the live lease without a failure; the record is eligible again after ``delay_us``.

        Raises NotLeaseOwner and, when no such lease lives, LeaseLost.
        """
        lease = self._live_lease(now_us, offset, owner, token)
        self._record((_RELEASED, offset, _bounded(delay_us), lease[2], 0, "", ""), now_us)

    def release_owner(self, now_us: int, owner: str, limit: int = MAX_COUNT) -> int:
        """End live leases of ``owner``, at most ``limit`` of them; returns how many.

        O(log n) a lease. `owned` tells whether that was all.
        """
        held = sorted(islice(self._owners.get(owner, ()), limit))
        released = 0
        for offset in held:
            if not self._lapse_if_due(now_us, offset):
                token = self._leases[offset][2]
                self._record((_RELEASED, offset, 0, token, 0, "", ""), now_us)
                released += 1
        return released

    def dead_letter(self, now_us: int, end: int, offset: int, reason: str) -> bool:
        """Make a record a dead letter, whoever holds it. False when it is settled or dead already.

        Raises UnknownOffset for an offset that was never assigned.
        """
        _check_offset(offset, end)
        self._lapse_if_due(now_us, offset)
        if offset in self._settled:
            return False
        self._record((_DEAD, offset, 0, 0, self.attempts(offset)[1], "", reason), now_us)
        return True

    def expire(self, now_us: int, limit: int = MAX_COUNT) -> int:
        """End the leases that lapsed and ready the records whose delay is over; returns how many.

        O(log n) a record. Only the former are events, at most ``limit`` of them; delays end by the
        block, until about ``limit`` have changed in all. `next_due_us` tells whether that was all.
        """
        changed = 0
        self._deadlines.looks = STALE_PER_LAPSE * limit
        while changed < limit and (offset := self._deadlines.pop_before(now_us)) >= 0:
            self._lapse(now_us, offset)
            changed += 1
        while changed < limit and (block := self._delays.pop_before(now_us + 1)) is not None:
            self._make_ready(*block)
            changed += block[1].bit_count()
        return changed

    def settle_range(self, first: int, end: int) -> None:
        """Settle every record of [first, end), ending the leases in it: the records are gone.

        O(what is kept about the partition), however long the range is.
        """
        first = max(first, self._settled.floor)
        if first < end:
            self._record((_SETTLED_RANGE, first, end, 0, 0, "", ""), 0)

    def leave_out(self, first: int, end: int) -> None:
        """As `settle_range`, but no event: every start finds again that nothing is there."""
        if self._settled.floor < end:
            self.apply((_SETTLED_RANGE, first, end, 0, 0, "", ""), 0)

    def skip_tokens(self, last: int) -> None:
        """Give no token up to ``last`` any more. No event: every start finds again why."""
        self._token = max(self._token, last)

    def seek(self, floor: int) -> None:
        """End all leases and go on from ``floor``: below all settled, from there on all open.

        Records that were open keep their attempts, settled and dead ones begin anew. O(all state).
        """
        self._record((_SEEK, max(floor, 0), 0, 0, 0, "", ""), 0)

    def commit_offset(self, offset: int) -> None:
        """Store the committed offset as given; -1 means none."""
        self._record((_COMMITTED, offset, 0, 0, 0, "", ""), 0)

    def configure(self, settings: GroupSettings) -> None:
        """Take other settings from now on, whatever the configuration says at later starts.

        Records that are dead already stay so. A change of ``key_ordered`` ends all leases and
        delays, without a failure. O(all state) then.
        """
        self._record((_CONFIGURED, 0, 0, 0, 0, "", settings.to_json()), 0)

    def pause(self) -> None:
        """Lease nothing until `unpause`. All else goes on."""
        if not self.paused:
            self._record((_PAUSED, 0, 0, 0, 0, "", ""), 0)

    def unpause(self) -> None:
        """End a pause."""
        if self.paused:
            self._record((_RESUMED, 0, 0, 0, 0, "", ""), 0)

    def replay_dead(
        self,
        first: int = 0,
        end: int = END_OF_OFFSETS,
        reason: str = "",
        matches: Callable[[DeadLetter], bool] | None = None,
        limit: int = MAX_COUNT,
    ) -> int:
        """Make dead letters of [first, end) ready again, with counters at zero; returns how many.

        Only those with ``reason``, unless it is empty, for which ``matches`` is true; at most
        ``limit``, the lowest. One event for each run of dead letters that match. O(log n) each.
        """
        return self._bury_some(_REPLAYED, first, end, reason, matches, limit)

    def purge_dead(
        self,
        first: int = 0,
        end: int = END_OF_OFFSETS,
        reason: str = "",
        matches: Callable[[DeadLetter], bool] | None = None,
        limit: int = MAX_COUNT,
    ) -> int:
        """Forget dead letters, which stay settled; chosen and counted as by `replay_dead`."""
        return self._bury_some(_PURGED, first, end, reason, matches, limit)

    def delete(self) -> None:
        """Forget everything but the settings and the last token."""
        self._record((_DELETED, 0, 0, self._token, 0, "", ""), 0)

    def resume(self, now_us: int, behind_us: int = 0) -> None:
        """After replay: every lease gets its full duration again, counted from ``now_us``.

        Delays end, and attempts were, ``behind_us`` earlier than replay had to assume.
        """
        if behind_us and self._delays.count:
            self._delays.load(-behind_us)
        if behind_us:
            self._returned.write_rows()
        for offset, row in self._leases.items():
            _, owner, token, grants, failures, duration_us, _ = row
            deadline_us = now_us + duration_us if duration_us > 0 else now_us - 1
            first = self._first_us(row)
            self._leases[offset] = (deadline_us, owner, token, grants, failures, duration_us, first)
        self._leases = grown(self._leases)
        self._epoch_us -= behind_us
        self._deadlines.refill([(lease[0], offset) for offset, lease in self._leases.items()])

    def freeze(self, now_us: int = 0) -> snapshot.FrozenGroup:
        """A copy that stays as it is, taken in milliseconds; ``encode`` it at leisure.

        Times are kept relative to ``now_us``.
        """
        return snapshot.freeze(self, now_us)

    @classmethod
    def decode(
        cls,
        data: bytes | Iterable[bytes],
        now_us: int = 0,
        settings: GroupSettings | None = None,
    ) -> GroupPartition:
        """The store that was frozen and encoded, times counted from ``now_us``; no events.

        ``data`` is the chunks of ``encode``, in order, or all of them joined; ``settings`` are for
        a group that was given none (`configure`). Raises DamagedData and NewerFormat.
        """
        return thaw.decode(cls, data, now_us, settings or GroupSettings())

    def _record(self, event: GroupEvent, now_us: int) -> None:
        self.events.append(event)
        self.apply(event, now_us)

    def _grant(
        self,
        choice: Choice,
        now_us: int,
        owner: str,
        duration_us: int,
        limit: int,
        granted: list[Grant],
    ) -> None:
        """Lease what ``choice`` gives until ``limit`` are ``granted``."""
        try:
            while len(granted) < limit and (offset := choice.next()) >= 0:
                grants, failures = self.attempts(offset)
                grants = min(grants + 1, MAX_COUNT)
                token = self._token + 1
                key = f"{choice.key:016x}" if choice.key else ""
                choice.flush()
                self._record((_LEASED, offset, duration_us, token, grants, owner, key), now_us)
                granted.append(Grant(offset, token, grants, failures, duration_us))
        finally:
            choice.flush()
            self.cut_short = choice.cut_short

    def _bury_some(
        self,
        kind: int,
        first: int,
        end: int,
        reason: str,
        matches: Callable[[DeadLetter], bool] | None,
        limit: int,
    ) -> int:
        """Write an event for each run of matching dead letters."""
        runs: list[list[int]] = []
        count = 0
        is_open = False
        for letter in self.dead_letters(first, end):
            if count >= limit:
                break
            if reason and letter.reason != reason:
                continue
            if matches is not None and not matches(letter):
                is_open = False
                continue
            if is_open:
                runs[-1][1] = letter.offset + 1
            else:
                runs.append([letter.offset, letter.offset + 1])
            is_open = True
            count += 1
        for run_first, run_end in runs:
            self._record((kind, run_first, run_end, 0, 0, "", reason), 0)
        return count

    def _settle_unleased(
        self,
        now_us: int,
        end: int,
        offset: int,
        success: bool,
        token: int | None,
        delay_us: int | None,
        reason: str,
    ) -> bool:
        """Settle a record that has no live lease: late, resent, or never leased."""
        _check_offset(offset, end)
        self._lapse_if_due(now_us, offset)
        if offset in self._settled:
            return False
        row = self._returned.get(offset)
        if token is not None and (row is None or row[2] != token):
            raise _lease_lost(offset)
        if success:
            self._record((_SETTLED, offset, 0, 0, 0, "", ""), now_us)
        elif row is not None and row[1] & 1:
            return False
        else:
            self._fail(now_us, offset, delay_us, reason)
        return True

    def _fail(self, now_us: int, offset: int, delay_us: int | None, reason: str) -> None:
        grants, failures = self.attempts(offset)
        failures = min(failures + 1, MAX_COUNT)
        if self._is_last(grants, failures):
            event = (_DEAD, offset, 0, 0, failures, "", reason or MAX_ATTEMPTS_REASON)
        else:
            wait_us = self.settings.backoff_us(failures) if delay_us is None else _bounded(delay_us)
            event = (_FAILED, offset, wait_us, 0, failures, "", reason)
        self._record(event, now_us)

    def _lapse(self, now_us: int, offset: int) -> None:
        """End a lease whose deadline has passed; a back-off runs from the deadline on."""
        deadline_us, _, token, grants, failures, _, _ = self._leases[offset]
        settings = self.settings
        if settings.attempts == "grants" and grants >= settings.max_attempts:
            ended_us = now_us - deadline_us
            event = (_DEAD, offset, ended_us, 0, failures, "", MAX_ATTEMPTS_REASON)
        else:
            delay_us = max(deadline_us + settings.backoff_us(failures) - now_us, 0)
            event = (_EXPIRED, offset, delay_us, token, 0, "", "")
        self._record(event, now_us)

    def _lapse_if_due(self, now_us: int, offset: int) -> bool:
        """End the record's lease if it lapsed, whether or not a timer has seen it."""
        lease = self._leases.get(offset)
        if lease is None or lease[0] >= now_us:
            return False
        self._lapse(now_us, offset)
        return True

    def _is_last(self, grants: int, failures: int) -> bool:
        settings = self.settings
        attempts = grants if settings.attempts == "grants" else failures
        return attempts >= settings.max_attempts

    def _live_lease(
        self, now_us: int, offset: int, owner: str | None, token: int | None
    ) -> LeaseRow:
        self._lapse_if_due(now_us, offset)
        lease = self._leases.get(offset)
        if lease is None:
            raise _lease_lost(offset)
        if owner is not None and owner != lease[1]:
            raise _not_owner()
        if token is not None and token != lease[2]:
            raise _lease_lost(offset)
        return lease


def _bounded(duration_us: int) -> int:
    return min(max(duration_us, 0), MAX_DURATION_US)


def _check_offset(offset: int, end: int) -> None:
    if not 0 <= offset < end:
        raise UnknownOffset(
            f"offset {offset} has not been assigned: the next offset of this partition is {end}"
        )


def _not_owner() -> NotLeaseOwner:
    # Mamamia clients know this text: docs/protocols/mamamia.rst.
    return NotLeaseOwner("Client does not own the lease for this message")


def _lease_lost(offset: int) -> LeaseLost:
    return LeaseLost(
        f"the lease of offset {offset} is over, or another one took its place; acquire it again"
    )
