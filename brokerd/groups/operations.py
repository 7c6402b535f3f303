# Tests: tests/groups/test_store.py, tests/groups/test_model.py
"""Commands of operators and of the broker itself to a group partition.

Each command but `GroupOperations.set_deadline` writes an event. The commands of workers are in
`brokerd.groups.store`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

from brokerd.groups.rows import BLOCK_SHIFT, block_parts
from brokerd.groups.settings import GroupSettings
from brokerd.groups.state import GroupState
from brokerd.groups.tables import Shards, Table, grow
from brokerd.groups.view import END_OF_OFFSETS
from brokerd.walformat import EventKind, GroupEvent

MAX_COUNT = (1 << 31) - 1
"""Counters stop here; they never wrap."""

FEW = 256
"""Fewer leases are freed in one step."""

DeadRun = tuple[int, int]
"""First offset and end offset, exclusive."""

BLOCK_COST = 10
FILTERED_BLOCK_COST = 24
RUN_COST = 80
KEY_COST = 8
"""Cost of a replay of dead letters in half microseconds: per block of 256 offsets, per block with a
filter by reason or time, per run, and in a key-ordered group per letter."""

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
    """Settings, pauses, seeks, dead letters, deletion, and the end of a replay."""

    __slots__ = ("events",)

    def __init__(self, settings: GroupSettings) -> None:
        super().__init__(settings)
        self.events: list[GroupEvent] = []
        """Events since the caller last took them, oldest first."""

    def settle_range(self, first: int, end: int) -> None:
        """Settle every record of [first, end) and end its lease: the records are gone.

        O(state) for a range of any length.
        """
        first = max(first, self._settled.floor)
        if first < end:
            self._record((_SETTLED_RANGE, first, end, 0, 0, "", ""), 0)

    def delay(self, now_us: int, offset: int, delay_us: int) -> None:
        """Delay a record that was never leased by ``delay_us``, without a failure."""
        self._record((_FAILED, offset, delay_us, 0, 0, "", ""), now_us)

    def delay_run(self, now_us: int, first: int, delays_us: Sequence[int]) -> None:
        """Delay the records from ``first`` on as `delay` does, in a fraction of the time.

        No record at or above ``first`` may have been leased, settled or delayed before.
        """
        if self._order is not None or min(delays_us) <= 0:
            for offset, delay_us in enumerate(delays_us, first):
                self.delay(now_us, offset, delay_us)
            return
        end = first + len(delays_us)
        self._delays.put_run(first, [now_us + delay_us for delay_us in delays_us])
        row = self._returned.layout.pack(0, 1, 0, now_us - self._epoch_us)
        for key, bits, start, stop in block_parts(first, end):
            self._returned.put_above(key, bits, row * (stop - start))
        self._touched.add_range(first, end)
        zero, empty = repeat(0), repeat("")
        self.events += zip(
            repeat(_FAILED), range(first, end), delays_us, zero, zero, empty, empty, strict=False
        )

    def settle_gap(self, first: int, end: int) -> None:
        """Settle [first, end) without an event: every start computes the gaps again."""
        if self._settled.floor < end:
            self.apply((_SETTLED_RANGE, first, end, 0, 0, "", ""), 0)

    def skip_tokens(self, last: int) -> None:
        """Use no token up to ``last``. No event: every start computes ``last`` again."""
        self._token = max(self._token, last)

    def seek(self, floor: int) -> None:
        """End all leases and set the floor: records below are settled, all others open.

        Open records keep their attempts, settled and dead ones lose them. O(state).
        """
        self._record((_SEEK, max(floor, 0), 0, 0, 0, "", ""), 0)

    def commit_offset(self, offset: int) -> None:
        """Store the committed offset as given; -1 means none."""
        self._record((_COMMITTED, offset, 0, 0, 0, "", ""), 0)

    def configure(self, settings: GroupSettings) -> None:
        """Change the settings. They take precedence over the configuration at later starts.

        Dead letters stay dead. A change of ``key_ordered`` ends all leases and delays without a
        failure, in O(state).
        """
        self._record((_CONFIGURED, 0, 0, 0, 0, "", settings.to_json()), 0)

    def pause(self) -> None:
        """Lease no record until `unpause`. Other commands work."""
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
        """Make dead letters of [first, end) ready, counters at zero; return their number.

        A non-empty ``reason`` selects by reason, ``before_us`` by the time of the last attempt.
        Writes one event for each run of `dead_runs`.
        """
        runs, _ = self.dead_runs(first, end, reason, before_us)
        return self.replay_runs(runs, reason)

    def replay_runs(self, runs: list[DeadRun], reason: str = "") -> int:
        """Replay the runs that `dead_runs` found for this reason; return the number of letters."""
        return self._record_runs(_REPLAYED, runs, reason)

    def purge_dead(
        self,
        first: int = 0,
        end: int = END_OF_OFFSETS,
        reason: str = "",
        before_us: int | None = None,
    ) -> int:
        """Remove dead letters; they stay settled. Arguments and result as of `replay_dead`."""
        runs, _ = self.dead_runs(first, end, reason, before_us)
        return self.purge_runs(runs, reason)

    def purge_runs(self, runs: list[DeadRun], reason: str = "") -> int:
        """Purge the runs that `dead_runs` found for this reason; return the number of letters."""
        return self._record_runs(_PURGED, runs, reason)

    def dead_runs(
        self,
        first: int = 0,
        end: int = END_OF_OFFSETS,
        reason: str = "",
        before_us: int | None = None,
        budget: int = MAX_COUNT,
    ) -> tuple[list[DeadRun], int]:
        """Return ranges in which every dead letter with ``reason`` matches, and the budget left.

        The unit of ``budget`` is half a microsecond of the replay or purge. If the ranges take
        more, the result is cut, and the budget left is 0 or negative.
        """
        before = None if before_us is None else before_us - self._epoch_us
        is_whole = before is None and len(self._dead.reasons) <= 1
        runs: list[DeadRun] = []
        is_open = False
        for block, bits, others in self._dead.select(first, end, reason, before):
            budget -= self._cost(block, bits, is_whole)
            if budget <= 0:
                break
            base = block << BLOCK_SHIFT
            for low, high in _ranges(bits, others):
                if low < high:
                    if is_open:
                        runs[-1] = (runs[-1][0], base + high)
                    else:
                        runs.append((base + low, base + high))
                        budget -= RUN_COST
                is_open = low < high
        return runs, budget

    def _cost(self, block: int, bits: int, is_whole: bool) -> int:
        """Return the cost to select and remove these letters of a block, in units of 0.5 us."""
        letters = self._dead.blocks[block][0]
        cost = BLOCK_COST if is_whole else FILTERED_BLOCK_COST
        if bits and bits != letters:
            cost += letters.bit_count()
        if self._order is not None:
            cost += KEY_COST * bits.bit_count()
        return cost

    def take_tables(self) -> list[Any]:
        """Take out the leases as dicts, sets and lists for the caller to empty; none if few.

        Afterwards the store can only be deleted or disposed. O(owners).
        """
        if len(self._leases) < FEW and not self._returned.former:
            return []
        former, self._returned.former = self._returned.former, None
        tables = [*_dicts(self._leases), *_dicts(former), *self._owners.values()]
        self._leases, self._owners = {}, {}
        return [*tables, *self._deadlines.take_heaps()]

    def delete(self) -> None:
        """Clear everything but the last token. The caller drops the store and its settings."""
        self._record((_DELETED, 0, 0, self._token, 0, "", ""), 0)

    def resume(self, now_us: int, behind_us: int = 0) -> None:
        """Restart every lease after a replay, with its full duration from ``now_us``.

        Move the times of delays and attempts back by ``behind_us``: the replay assumed later ones.
        """
        if behind_us and self._delays.count:
            self._delays.load(-behind_us)
        if behind_us:
            self._returned.write_rows()
        self._split_all()
        for offset, row in self._leases.items():
            _, owner, token, grants, failures, duration_us, _ = row
            deadline_us = now_us + duration_us if duration_us > 0 else now_us - 1
            first = self._first_us(row)
            self._leases[offset] = (deadline_us, owner, token, grants, failures, duration_us, first)
        self._leases = grow(self._leases)
        self._epoch_us -= behind_us
        self._deadlines.refill([(lease[0], offset) for offset, lease in self._leases.items()])

    def set_deadline(
        self,
        offset: int,
        token: int,
        deadline_us: int,
        is_final: bool = True,
        instead_of_us: int | None = None,
    ) -> bool:
        """Set the deadline of the lease with this token; return False if it has ended.

        Writes no event, because a restart gives each lease its full duration. The lease does not
        lapse by a deadline that is not final: another call sets the final one. With
        ``instead_of_us`` the lease must still have that deadline: an extension has replaced it
        otherwise.
        """
        lease = self._lease_of(offset)
        if lease is None or lease[2] != token:
            return False
        if instead_of_us is not None and lease[0] != instead_of_us:
            return False
        _, owner, _, grants, failures, duration_us, _ = lease
        first_us = self._first_us(lease)
        self._leases[offset] = (deadline_us, owner, token, grants, failures, duration_us, first_us)
        if is_final:
            self._deadlines.push(deadline_us, offset)
        return True

    def _record(self, event: GroupEvent, now_us: int) -> None:
        self.events.append(event)
        self.apply(event, now_us)

    def _record_runs(self, kind: int, runs: list[DeadRun], reason: str) -> int:
        before = self._dead.count
        for first, end in runs:
            self._record((kind, first, end, 0, 0, "", reason), 0)
        return before - self._dead.count


def _dicts(table: Table[Any] | None) -> list[Any]:
    if table is None:
        return []
    return table.shards if isinstance(table, Shards) else [table]


def _ranges(bits: int, others: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of positions with ``bits`` only; (0, 0) for each stretch of ``others``."""
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
