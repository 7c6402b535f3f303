# Tests: tests/groups/test_store.py, tests/groups/test_model.py
"""What an operator or the broker itself does to a group's way through a partition.

Each command writes down what it did as an event. What workers do is in `brokerd.groups.store`.
"""

from __future__ import annotations

from collections.abc import Iterator

from brokerd.groups.rows import BLOCK_SHIFT
from brokerd.groups.settings import GroupSettings
from brokerd.groups.state import GroupState
from brokerd.groups.tables import grown
from brokerd.groups.view import END_OF_OFFSETS
from brokerd.walformat import EventKind, GroupEvent

MAX_COUNT = (1 << 31) - 1
"""Counters stop here; they never wrap."""

DeadRun = tuple[int, int]
"""From the first offset to the second, exclusive."""

LOOKS_A_BLOCK = 10
LOOKS_A_FILTERED_BLOCK = 24
LOOKS_A_RUN = 80
LOOKS_A_KEY = 8
"""What it takes to replay dead letters, in half microseconds: a block of 256 offsets, the same when
letters are chosen by reason or time, a run, and in a key-ordered group a letter."""

_FAILED = int(EventKind.FAILED)
_COMMITTED = int(EventKind.COMMITTED)
_SETTLED_RANGE = int(EventKind.SETTLED_RANGE)
_SEEK = int(EventKind.SEEK)
_CONFIGURED = int(EventKind.CONFIGURED)
_DELETED = int(EventKind.DELETED)
_PAUSED = int(EventKind.PAUSED)
_RESUMED = int(EventKind.RESUMED)
_REPLAYED = int(EventKind.REPLAYED)
_PURGED = int(EventKind.PURGED)


class GroupOperations(GroupState):
    """Settings, pauses, seeks, dead letters, deletion, and what comes after a replay."""

    __slots__ = ("events",)

    def __init__(self, settings: GroupSettings) -> None:
        super().__init__(settings)
        self.events: list[GroupEvent] = []
        """What happened since the caller last took the events out, oldest first."""

    def settle_range(self, first: int, end: int) -> None:
        """Settle every record of [first, end), ending the leases in it: the records are gone.

        O(what is kept about the partition), however long the range is.
        """
        first = max(first, self._settled.floor)
        if first < end:
            self._record((_SETTLED_RANGE, first, end, 0, 0, "", ""), 0)

    def delay(self, now_us: int, offset: int, delay_us: int) -> None:
        """Let a record that nobody ever leased wait for ``delay_us``; that is no failure."""
        self._record((_FAILED, offset, delay_us, 0, 0, "", ""), now_us)

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
        before_us: int | None = None,
    ) -> int:
        """Make dead letters of [first, end) ready again, with counters at zero; returns how many.

        Only those with ``reason``, unless it is empty, whose last attempt was before ``before_us``,
        unless it is None. One event for each of `dead_runs`.
        """
        runs, _ = self.dead_runs(first, end, reason, before_us)
        return self.replay_runs(runs, reason)

    def replay_runs(self, runs: list[DeadRun], reason: str = "") -> int:
        """Replay what `dead_runs` found for this reason; returns how many."""
        return self._bury_runs(_REPLAYED, runs, reason)

    def purge_dead(
        self,
        first: int = 0,
        end: int = END_OF_OFFSETS,
        reason: str = "",
        before_us: int | None = None,
    ) -> int:
        """Forget dead letters, which stay settled; chosen and counted as by `replay_dead`."""
        runs, _ = self.dead_runs(first, end, reason, before_us)
        return self.purge_runs(runs, reason)

    def purge_runs(self, runs: list[DeadRun], reason: str = "") -> int:
        """Purge what `dead_runs` found for this reason; returns how many."""
        return self._bury_runs(_PURGED, runs, reason)

    def dead_runs(
        self,
        first: int = 0,
        end: int = END_OF_OFFSETS,
        reason: str = "",
        before_us: int | None = None,
        looks: int = MAX_COUNT,
    ) -> tuple[list[DeadRun], int]:
        """Ranges between whose ends all dead letters with ``reason`` match, and ``looks`` left.

        Replaying or purging them takes about half a microsecond for each look. When that is more
        than ``looks``, zero or less are left, and the ranges end where that was noticed.
        """
        before = None if before_us is None else before_us - self._epoch_us
        is_whole = before is None and len(self._dead.reasons) <= 1
        runs: list[DeadRun] = []
        is_open = False
        for block, bits, others in self._dead.chosen(first, end, reason, before):
            looks -= self._looks_at(block, bits, is_whole)
            if looks <= 0:
                break
            base = block << BLOCK_SHIFT
            for low, high in _stretches(bits, others):
                if low < high:
                    if is_open:
                        runs[-1] = (runs[-1][0], base + high)
                    else:
                        runs.append((base + low, base + high))
                        looks -= LOOKS_A_RUN
                is_open = low < high
        return runs, looks

    def _looks_at(self, block: int, bits: int, is_whole: bool) -> int:
        """What it takes to choose these letters of a block, and to take them out."""
        letters = self._dead.blocks[block][0]
        looks = LOOKS_A_BLOCK if is_whole else LOOKS_A_FILTERED_BLOCK
        if bits and bits != letters:
            looks += letters.bit_count()
        if self._order is not None:
            looks += LOOKS_A_KEY * bits.bit_count()
        return looks

    def delete(self) -> None:
        """Forget everything but the last token; the caller drops the store, and its settings."""
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

    def set_deadline(self, offset: int, token: int, deadline_us: int) -> bool:
        """Let the lease with this token end at another time; False if it is over.

        No event tells of it, because a restart gives each lease its full duration anyway.
        """
        lease = self._leases.get(offset)
        if lease is None or lease[2] != token:
            return False
        _, owner, _, grants, failures, duration_us, _ = lease
        first_us = self._first_us(lease)
        self._leases[offset] = (deadline_us, owner, token, grants, failures, duration_us, first_us)
        self._deadlines.push(deadline_us, offset)
        return True

    def _record(self, event: GroupEvent, now_us: int) -> None:
        self.events.append(event)
        self.apply(event, now_us)

    def _bury_runs(self, kind: int, runs: list[DeadRun], reason: str) -> int:
        before = self._dead.count
        for first, end in runs:
            self._record((kind, first, end, 0, 0, "", reason), 0)
        return before - self._dead.count


def _stretches(bits: int, others: int) -> Iterator[tuple[int, int]]:
    """Between which positions only ``bits`` are set; (0, 0) for each stretch of ``others``."""
    while bits or others:
        if not others:
            yield (bits & -bits).bit_length() - 1, bits.bit_length()
            return
        below = (others & -others) - 1
        if bits & below:
            yield (bits & -bits).bit_length() - 1, (bits & below).bit_length()
            bits &= ~below
        if not bits:
            yield 0, 0
            return
        yield 0, 0
        others &= ~((bits & -bits) - 1)
