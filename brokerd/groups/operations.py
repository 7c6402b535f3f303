# Tests: tests/groups/test_store.py, tests/groups/test_model.py
"""What an operator or the broker itself does to a group's way through a partition.

Each command writes down what it did as an event. What workers do is in `brokerd.groups.store`.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.groups.attempts import DeadLetter
from brokerd.groups.settings import GroupSettings
from brokerd.groups.state import GroupState
from brokerd.groups.tables import grown
from brokerd.groups.view import END_OF_OFFSETS
from brokerd.walformat import EventKind, GroupEvent

MAX_COUNT = (1 << 31) - 1
"""Counters stop here; they never wrap."""

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

    def _record(self, event: GroupEvent, now_us: int) -> None:
        self.events.append(event)
        self.apply(event, now_us)

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
