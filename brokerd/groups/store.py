# Tests: tests/groups/test_store.py, tests/groups/test_model.py
"""The lease store of one (topic, group, partition): values in, values and events out.

Every command writes its decision as a GroupEvent to ``events``, and applies that event by the code
that replay uses (``brokerd.groups.state``). The caller drains ``events`` into the
journal. No clock: ``now_us`` is monotonic microseconds, ``end`` the next offset of the partition.
docs/leases.rst is the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice, repeat

from brokerd.errors import LeaseLost, NotLeaseOwner, UnknownOffset
from brokerd.groups import snapshot, snapshot_decode
from brokerd.groups.attempts import LeaseRow
from brokerd.groups.eligible import STOP, TAKE, Accept, EligibleSearch, KeyOf
from brokerd.groups.lease_runs import RUN_LEASES_MAX, RUN_MIN, LeaseRun
from brokerd.groups.operations import MAX_COUNT, GroupOperations
from brokerd.groups.settings import MAX_DURATION_US, GroupSettings
from brokerd.groups.tables import LARGE, NEIGHBOURS_SHIFT, SHARD_MASK, Shards, grow
from brokerd.values import Grant
from brokerd.walformat import EventKind

STALE_PER_LAPSE = 8
"""Stale deadlines that `end_due` passes over for each lapse."""

MAX_ATTEMPTS_REASON = "max_attempts"
GIVEN_UP_REASON = "given_up"
"""Reason of a record that its worker made a dead letter without a reason."""

# Plain integers: looking a member up in its enum costs more than the rest of an event.
_LEASED = int(EventKind.LEASED)
_EXTENDED = int(EventKind.EXTENDED)
_SETTLED = int(EventKind.SETTLED)
_FAILED = int(EventKind.FAILED)
_RELEASED = int(EventKind.RELEASED)
_EXPIRED = int(EventKind.EXPIRED)
_DEAD = int(EventKind.DEAD)

_new_tuple = tuple.__new__
_new_grant: Callable[[tuple[int, ...]], Grant] = partial(_new_tuple, Grant)

Failure = tuple[int | None, str, bool]
"""(delay_us, reason, dead) of a failed settle."""


class LeaseStore(GroupOperations):
    """Lease store of one group partition.

    An ``owner`` or ``token`` of None is not checked.
    """

    __slots__ = ("cut_short",)

    def __init__(self, settings: GroupSettings) -> None:
        super().__init__(settings)
        self.cut_short = False
        """Whether the last `acquire` stopped at its bound of passed records: acquire again."""

    def acquire(
        self,
        now_us: int,
        end: int,
        owner: str,
        duration_us: int,
        limit: int = 1,
        accept: Accept | None = None,
        end_due_first: bool = True,
        key_of: KeyOf | None = None,
        accept_run: Callable[[int, int], int] | None = None,
    ) -> list[Grant]:
        """Lease up to ``limit`` eligible records below ``end`` to ``owner``, lowest offset first.

        ``accept(offset)`` is called before each lease and returns TAKE, STOP, which ends the call,
        or GONE for a removed or expired record, which is settled by an event. ``gone_until(end)``
        is GONE for all records below ``end``.
        ``key_of(offset)``, which a key-ordered group needs, returns the 64-bit hash of the record's
        key, NO_KEY for a record without a key or a gone one, or UNKNOWN for a record that is not in
        memory, which ends the call. ``accept_run(first, count)`` returns how many of ``count``
        records that were never leased are taken at once; ``accept`` is not called for these.
        `cut_short` is True afterwards if EXAMINED_MAX records or RANGES_MAX ranges were passed
        over; then more records may be eligible.

        A lease with a duration of zero or less lapses at once. With ``lease_doubling`` the duration
        is that of a record's first lease. ``end_due_first`` is False if the caller has called
        `end_due` before. A paused group leases nothing. O(log n) per record.
        """
        if end_due_first and (
            self._deadlines.may_be_due(now_us)
            or (self._delays.count and self._delays.may_be_due(now_us + 1))
        ):
            self.end_due(now_us)
        self.cut_short = False
        if self.paused:
            return []
        if type(self._leases) is dict and len(self._leases) >= LARGE:
            self._leases = grow(self._leases)
        duration_us = _bounded(duration_us)
        granted: list[Grant] = []
        if self._order is not None:
            if key_of is None:
                raise ValueError("acquire from a key-ordered group needs key_of")
            search = EligibleSearch(self, self.events, end, accept, key_of)
            self._grant(search, now_us, owner, duration_us, limit, granted)
            return granted
        touched, ready = self._touched, self._ready
        leases, first = self._leases, touched.floor
        if (
            accept_run is not None
            and type(leases) is dict
            and first < end
            and not (ready.count or touched.above)
        ):
            count = accept_run(first, min(limit, end - first))
            if count:
                granted = self._lease_run(first, count, now_us, owner, duration_us)
        add_event, apply_leased = self.events.append, self._apply_leased
        token = self._token
        for _ in range(limit - len(granted)):
            offset = touched.floor
            grants, failures, lasts_us = 1, 0, duration_us
            if ready.count and (lowest := ready.lowest()) < offset:
                offset = lowest
                grants, failures = self.attempts(offset)
                grants = min(grants + 1, MAX_COUNT)
                lasts_us = self.settings.lease_us(duration_us, grants)
            if offset >= end:
                break
            if accept is not None and (verdict := accept(offset)) != TAKE:
                if verdict != STOP:
                    search = EligibleSearch(self, self.events, end, accept, None)
                    search.settle_gone(offset, verdict)
                    self._grant(search, now_us, owner, duration_us, limit, granted)
                break
            token += 1
            event = (_LEASED, offset, lasts_us, token, grants, owner, "")
            add_event(event)
            apply_leased(event, now_us)
            granted.append(_new_tuple(Grant, (offset, token, grants, failures, lasts_us)))
        return granted

    def _lease_run(
        self, first: int, count: int, now_us: int, owner: str, duration_us: int
    ) -> list[Grant]:
        """Lease ``count`` records from ``first`` on, of which none was ever leased.

        It has the effect of the loop of `acquire`, in a fraction of the time.
        """
        token = self._token + 1
        offsets, tokens = range(first, first + count), range(token, token + count)
        ones, zeros, durations = repeat(1), repeat(0), repeat(duration_us)
        deadline_us = now_us + duration_us if duration_us > 0 else now_us - 1
        self.events += zip(
            repeat(_LEASED),
            offsets,
            durations,
            tokens,
            ones,
            repeat(owner),
            repeat(""),
            strict=False,
        )
        run = LeaseRun(first, first + count, deadline_us, owner, token, duration_us)
        if RUN_MIN <= count <= RUN_LEASES_MAX - self._runs.leased:
            self._runs.add(run)
            self._deadlines.push(deadline_us, first)
        else:
            self._add_rows(run)
            self._deadlines.push_run(deadline_us, first, count)
        self._touched.add_range(first, first + count)
        self._token += count
        return list(map(_new_grant, zip(offsets, tokens, ones, zeros, durations, strict=False)))

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
        dead: bool = False,
    ) -> bool:
        """Settle a record as done or failed (``delay_us`` None means the group's back-off).

        A failure with ``dead`` makes the record a dead letter at any attempt.

        Return True if the state changed, False if the record was settled so before. Raises
        NotLeaseOwner during the lease of another owner, LeaseLost for a token that is not the
        record's latest, and UnknownOffset for an offset that was never assigned.
        """
        leases = self._leases
        if type(leases) is Shards:
            leases = leases.shards[offset >> NEIGHBOURS_SHIFT & SHARD_MASK]
        lease = leases.get(offset)
        if lease is None and self._runs.leased:
            lease = self._lease_of(offset)
        if lease is None or lease[0] < now_us:
            failure = (delay_us, reason, dead)
            return self._settle_unleased(now_us, end, offset, success, token, failure)
        if owner is not None and owner != lease[1]:
            raise _not_owner()
        if token is not None and token != lease[2]:
            raise _lease_lost(offset)
        if success:
            event = (_SETTLED, offset, 0, 0, 0, "", "")
            self.events.append(event)
            self._apply_settled(event, now_us)
        else:
            self._fail(now_us, offset, lease[3], lease[4], (delay_us, reason, dead))
        return True

    def settle_run(
        self, now_us: int, offsets: Sequence[int], owner: str | None, tokens: Sequence[int | None]
    ) -> int:
        """Settle records as done, each during its live lease; return how many.

        An ``owner`` or a token of None is not checked. Ends before the first record without such a
        lease. It has the effect of `settle` for each, in a fraction of the time. Settles
        nothing in a key-ordered or a very large group.
        """
        leases = self._leases
        if type(leases) is not dict or self._order is not None:
            return 0
        in_runs = self._settle_in_runs(now_us, offsets, owner, tokens) if self._runs.leased else 0
        if in_runs:
            offsets, tokens = offsets[in_runs:], tokens[in_runs:]
        if len(offsets) >= RUN_MIN and self._settle_range(leases, now_us, offsets, owner, tokens):
            return in_runs + len(offsets)
        owners, add_event, add_settled = self._owners, self.events.append, self._settled.add
        settled = 0
        for offset, token in zip(offsets, tokens, strict=True):
            lease = self._lease_of(offset)
            if (
                lease is None
                or lease[0] < now_us
                or (owner is not None and owner != lease[1])
                or (token is not None and token != lease[2])
            ):
                break
            del leases[offset]
            owned = owners[lease[1]]
            owned.discard(offset)
            if not owned:
                del owners[lease[1]]
            add_settled(offset)
            add_event((_SETTLED, offset, 0, 0, 0, "", ""))
            settled += 1
        return in_runs + settled

    def _settle_in_runs(
        self, now_us: int, offsets: Sequence[int], owner: str | None, tokens: Sequence[int | None]
    ) -> int:
        """Settle the first records that are parts of runs; return how many.

        It has the effect of the loop of `settle_run`, in a few steps for each run.
        """
        runs, settled = self._runs, 0
        while settled < len(offsets):
            first = offsets[settled]
            run = runs.find(first)
            if run is None:
                break
            end = min(run.end, first + len(offsets) - settled)
            stop = settled + end - first
            token = run.token + first - run.first
            if (
                end - first < RUN_MIN
                or run.deadline_us < now_us
                or (owner is not None and owner != run.owner)
                or not _is_range(offsets[settled:stop], first)
                or not (
                    _is_range(tokens[settled:stop], token)
                    or tokens[settled:stop].count(None) == end - first
                )
            ):
                break
            runs.remove(run)
            if run.first < first:
                runs.add(run.part(run.first, first))
            if end < run.end:
                runs.add(run.part(end, run.end))
                self._deadlines.push(run.deadline_us, end)
            self._settled.add_range(first, end)
            self.events += zip(
                repeat(_SETTLED),
                range(first, end),
                repeat(0),
                repeat(0),
                repeat(0),
                repeat(""),
                repeat(""),
                strict=False,
            )
            settled = stop
        return settled

    def _settle_range(
        self,
        leases: dict[int, LeaseRow],
        now_us: int,
        offsets: Sequence[int],
        owner: str | None,
        tokens: Sequence[int | None],
    ) -> bool:
        """Settle consecutive records that one owner has leased; return False if they are not.

        It has the effect of the loop of `settle_run`, in a fraction of the time.
        """
        first, end = offsets[0], offsets[0] + len(offsets)
        rows = list(map(self._lease_of if self._runs.leased else leases.get, offsets))
        if None in rows or list(offsets) != list(range(first, end)):
            return False
        deadlines, holders, held_tokens, *_ = zip(*rows, strict=True)
        holder = holders[0]
        if (
            min(deadlines) < now_us
            or holders.count(holder) < len(holders)
            or (owner is not None and owner != holder)
            or (tokens.count(None) < len(tokens) and tuple(tokens) != held_tokens)
        ):
            return False
        for offset in offsets:
            del leases[offset]
        owned = self._owners[holder]
        owned.difference_update(offsets)
        if not owned:
            del self._owners[holder]
        self._settled.add_range(first, end)
        zeros, texts = repeat(0), repeat("")
        self.events += zip(
            repeat(_SETTLED), offsets, zeros, zeros, zeros, texts, texts, strict=False
        )
        return True

    def leased_run(self, now_us: int, offsets: Sequence[int]) -> int:
        """Return how many records `settle_run` would settle without an owner and tokens."""
        if type(self._leases) is not dict or self._order is not None:
            return 0
        count = 0
        for offset in offsets:
            lease = self._lease_of(offset)
            if lease is None or lease[0] < now_us:
                break
            count += 1
        return count

    def settle_leased(
        self, now_us: int, offset: int, owner: str | None = None, token: int | None = None
    ) -> None:
        """Settle a record as done during its lease.

        Raises NotLeaseOwner, and LeaseLost without a live lease.
        """
        self._live_lease(now_us, offset, owner, token)
        self._record((_SETTLED, offset, 0, 0, 0, "", ""), now_us)

    def extend(
        self,
        now_us: int,
        offset: int,
        duration_us: int,
        owner: str | None = None,
        token: int | None = None,
    ) -> int:
        """Set the live lease to end ``duration_us`` from now; return the remaining time.

        Raises NotLeaseOwner, and LeaseLost without a live lease.
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

        Raises NotLeaseOwner, and LeaseLost without a live lease.
        """
        lease = self._live_lease(now_us, offset, owner, token)
        self._record((_RELEASED, offset, _bounded(delay_us), lease[2], 0, "", ""), now_us)

    def release_owner(self, now_us: int, owner: str, limit: int = MAX_COUNT) -> int:
        """End at most ``limit`` live leases of ``owner``; return their number.

        O(log n) per lease. `owned` is 0 afterwards if no lease is left.
        """
        for run in self._runs.owned(owner):
            self._split(run)
        owned = sorted(islice(self._owners.get(owner, ()), limit))
        released = 0
        for offset in owned:
            if not self._lapse_if_due(now_us, offset):
                token = self._leases[offset][2]
                self._record((_RELEASED, offset, 0, token, 0, "", ""), now_us)
                released += 1
        return released

    def dead_letter(self, now_us: int, end: int, offset: int, reason: str) -> bool:
        """Make a record a dead letter, even if it is leased; return False if settled or dead.

        Raises UnknownOffset for an offset that was never assigned.
        """
        _check_offset(offset, end)
        self._lapse_if_due(now_us, offset)
        if offset in self._settled:
            return False
        self._record((_DEAD, offset, 0, 0, self.attempts(offset)[1], "", reason), now_us)
        return True

    def end_due(self, now_us: int, limit: int = MAX_COUNT) -> int:
        """End lapsed leases, and make records ready whose delay has ended; return their number.

        Ends at most ``limit`` leases, with an event each, and then delays, in blocks, until about
        ``limit`` records have changed. `next_due_us` tells whether more are due. O(log n) per
        record.
        """
        changed = 0
        self._deadlines.stale_left = STALE_PER_LAPSE * limit
        while changed < limit and (offset := self._deadlines.pop_before(now_us)) >= 0:
            self._lapse(now_us, offset)
            changed += 1
        while changed < limit and (block := self._delays.pop_before(now_us + 1)) is not None:
            self._make_ready(*block)
            changed += block[1].bit_count()
        return changed

    def freeze(self, now_us: int = 0) -> snapshot.FrozenGroup:
        """Return an immutable copy, taken in milliseconds, which any thread may ``encode``.

        Its times are relative to ``now_us``.
        """
        return snapshot.freeze(self, now_us)

    @classmethod
    def decode(
        cls,
        data: bytes | Iterable[bytes],
        now_us: int = 0,
        settings: GroupSettings | None = None,
    ) -> LeaseStore:
        """Return the store of an encoded snapshot, with times relative to ``now_us``, no events.

        ``data`` is the chunks of ``encode``, in order or joined. ``settings`` are for a group
        without settings of its own (`configure`). Raises DamagedData and NewerFormat.
        """
        store = cls(settings or GroupSettings())
        store.load(data, now_us)
        return store

    def load(self, data: bytes | Iterable[bytes], now_us: int = 0) -> None:
        """Load an encoded snapshot into this new store; arguments as of `decode`."""
        snapshot_decode.load(self, data, now_us)

    def _grant(
        self,
        search: EligibleSearch,
        now_us: int,
        owner: str,
        duration_us: int,
        limit: int,
        granted: list[Grant],
    ) -> None:
        """Lease the records that ``search`` finds until ``limit`` are ``granted``."""
        try:
            while len(granted) < limit and (offset := search.next()) >= 0:
                grants, failures = self.attempts(offset)
                grants = min(grants + 1, MAX_COUNT)
                token = self._token + 1
                key = f"{search.key:016x}" if search.key else ""
                lasts_us = self.settings.lease_us(duration_us, grants)
                search.flush()
                self._record((_LEASED, offset, lasts_us, token, grants, owner, key), now_us)
                granted.append(Grant(offset, token, grants, failures, lasts_us))
        finally:
            search.flush()
            self.cut_short = search.cut_short

    def _settle_unleased(
        self,
        now_us: int,
        end: int,
        offset: int,
        success: bool,
        token: int | None,
        failure: Failure,
    ) -> bool:
        """Settle a record without a live lease: late, repeated or never leased."""
        _check_offset(offset, end)
        self._lapse_if_due(now_us, offset)
        if offset in self._settled:
            return False
        row = self._returned.get(offset)
        if token is not None and (row is None or row[2] != token):
            raise _lease_lost(offset)
        if success:
            self._record((_SETTLED, offset, 0, 0, 0, "", ""), now_us)
        elif row is not None and row[1] & 1:  # the failure of this grant is counted
            if not failure[2]:
                return False
            self.dead_letter(now_us, end, offset, failure[1] or GIVEN_UP_REASON)
        else:
            grants, failures = self.attempts(offset)
            self._fail(now_us, offset, grants, failures, failure)
        return True

    def _fail(
        self,
        now_us: int,
        offset: int,
        grants: int,
        failures: int,
        failure: Failure,
    ) -> None:
        """Count a failure of a record with these attempts."""
        delay_us, reason, dead = failure
        failures = min(failures + 1, MAX_COUNT)
        if dead:
            event = (_DEAD, offset, 0, 0, failures, "", reason or GIVEN_UP_REASON)
        elif self._is_last(grants, failures):
            event = (_DEAD, offset, 0, 0, failures, "", reason or MAX_ATTEMPTS_REASON)
        else:
            wait_us = self.settings.backoff_us(failures) if delay_us is None else _bounded(delay_us)
            event = (_FAILED, offset, wait_us, 0, failures, "", reason)
        self._record(event, now_us)

    def _lapse(self, now_us: int, offset: int) -> None:
        """End a lease whose deadline has passed; a back-off runs from the deadline on."""
        lease = self._lease_of(offset)
        assert lease is not None, "only a lease lapses"
        deadline_us, _, token, grants, failures, duration_us, _ = lease
        settings = self.settings
        if settings.attempts == "grants" and grants >= settings.max_attempts:
            # A spent lease has a deadline before its grant, but did not end before it began.
            ended_us = now_us - deadline_us - (duration_us <= 0)
            event = (_DEAD, offset, ended_us, 0, failures, "", MAX_ATTEMPTS_REASON)
        else:
            delay_us = max(deadline_us + settings.backoff_us(failures) - now_us, 0)
            event = (_EXPIRED, offset, delay_us, token, 0, "", "")
        self._record(event, now_us)

    def _lapse_if_due(self, now_us: int, offset: int) -> bool:
        """End the record's lease if its deadline has passed."""
        lease = self._lease_of(offset)
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
        lease = self._lease_of(offset)
        if lease is not None and lease[0] < now_us:
            self._lapse(now_us, offset)
            lease = None
        if lease is None:
            raise _lease_lost(offset)
        if owner is not None and owner != lease[1]:
            raise _not_owner()
        if token is not None and token != lease[2]:
            raise _lease_lost(offset)
        return lease


def _is_range(numbers: Sequence[int | None], first: int) -> bool:
    """Return whether the numbers are consecutive from ``first`` on."""
    run = range(first, first + len(numbers))
    return numbers == run or (type(numbers) is not range and tuple(numbers) == tuple(run))


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
