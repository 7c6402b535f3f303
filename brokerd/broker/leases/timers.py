# Tests: tests/broker/test_timers.py
"""One timer for all leases and delays: finds the group partition that is due next."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from brokerd.broker.clock import BrokerTime, Clock, Timer
from brokerd.broker.model.topics import GroupPartition

TURN_LIMIT = 512
"""Leases and delays that end in one reactor turn, approximately. Later turns end others."""

GROUP_PARTITION_COST = 4
"""Cost of a visit to a group partition, in units of an ended lease."""

RETRY_US = 100_000
"""Time until the next attempt if the leases of a group partition cannot end now."""

SLACK = 1024
"""Stale entries that never cause a sweep, so that a small heap is not swept all the time."""

SWEPT = 4
"""Entries that a sweep looks at when one is pushed. 100,000 in one step would take 20 ms."""

_Entry = tuple[int, int, GroupPartition]
"""Due time, number of the entry, and group partition."""


class LeaseTimers:
    """Calls ``due(group_partition, now_us)`` at the end of a lease or delay of a group partition.

    ``due`` ends some of them and returns how many. It returns -1 to be called again later, and None
    if it calls `schedule` for the group partition itself.

    ``group_partition.scheduled_us`` is the time of the group partition's live entry in the heap. An
    entry with another time is stale. It is dropped when it reaches the top, or in a sweep.

    A sweep begins when more than half of the entries may be stale. The heap becomes the old heap,
    new entries go to another one, and with each of these some entries move from the end of the old
    heap (what is left is a heap), unless they are stale. Memory is one entry, about 150 bytes, for
    each group partition with a due time.
    """

    def __init__(
        self, clock: Clock, time: BrokerTime, due: Callable[[GroupPartition, int], int | None]
    ) -> None:
        self._clock = clock
        self._time = time
        self._due = due
        self._heap: list[_Entry] = []
        self._old: list[_Entry] = []
        """What is left to sweep."""
        self._moved: set[GroupPartition] = set()
        """Group partitions of the entries that the sweep moved: another one is stale."""
        self._count = 0
        """Number of entries ever pushed. It orders entries with the same time."""
        self._call: Timer | None = None
        self._call_us = 0
        self._firing = False
        """Whether `_fire` is running. It sets the timer at its end."""
        self._limit = SLACK
        """Size of the heap at which more than half of the entries may be stale, without a sweep."""
        self._stopped = False

    def schedule(self, group_partition: GroupPartition) -> None:
        """Set the timer for the next end of a lease or delay of ``group_partition``."""
        due_us = group_partition.store.next_due_us()
        if due_us is not None and (
            group_partition.scheduled_us is None or due_us < group_partition.scheduled_us
        ):
            self.schedule_at(group_partition, due_us)

    def schedule_at(self, group_partition: GroupPartition, due_us: int) -> None:
        """Schedule ``group_partition`` at ``due_us``, earlier than before."""
        group_partition.scheduled_us = due_us
        self._count += 1
        heapq.heappush(self._heap, (due_us, self._count, group_partition))
        if self._old or self._moved:
            self._sweep()
        elif len(self._heap) > self._limit:
            self._heap, self._old = [], self._heap
        if not self._firing and (self._call is None or due_us < self._call_us):
            self._arm(due_us)

    def _sweep(self) -> None:
        """Move some live entries out of the old heap."""
        old, moved = self._old, self._moved
        for entry in old[: -SWEPT - 1 : -1]:
            group_partition = entry[2]
            if group_partition.scheduled_us == entry[0] and group_partition not in moved:
                moved.add(group_partition)
                heapq.heappush(self._heap, entry)
        del old[-SWEPT:]
        if not old:  # the last entries may have been due meanwhile
            self._moved = set()
            self._limit = 2 * len(self._heap) + SLACK

    def _first(self) -> list[_Entry]:
        """Return the heap with the earliest entry; it is empty if there is none."""
        heap, old = self._heap, self._old
        return old if old and (not heap or old[0] < heap[0]) else heap

    def _arm(self, due_us: int) -> None:
        if self._stopped:
            return
        if self._call is not None:
            self._call.cancel()
        self._call_us = due_us
        delay = max(0.0, (due_us - self._time.monotonic_us()) / 1e6)
        self._call = self._clock.callLater(delay, self._fire)

    def _fire(self) -> None:
        self._call = None
        self._firing = True
        try:
            self._handle_due()
        finally:
            self._firing = False
            if heap := self._first():
                self._arm(heap[0][0])

    def _handle_due(self) -> None:
        """Handle due group partitions, up to the limit of a reactor turn."""
        now_us = self._time.monotonic_us()
        left = TURN_LIMIT
        while left > 0 and (heap := self._first()) and heap[0][0] <= now_us:
            due_us, _, group_partition = heapq.heappop(heap)
            if group_partition.scheduled_us != due_us or group_partition.group.deleted:
                continue
            group_partition.scheduled_us = None
            ended = self._due(group_partition, now_us)
            if ended is None:
                left -= GROUP_PARTITION_COST
            elif ended < 0:
                self.schedule_at(group_partition, now_us + RETRY_US)
            else:
                self.schedule(group_partition)
                left -= GROUP_PARTITION_COST + ended
                if self._is_due(group_partition, now_us):
                    break  # the rest of its leases and delays ends in the next turn

    @staticmethod
    def _is_due(group_partition: GroupPartition, now_us: int) -> bool:
        return group_partition.scheduled_us is not None and group_partition.scheduled_us <= now_us

    def stop(self) -> None:
        self._stopped = True
        if self._call is not None:
            self._call.cancel()
            self._call = None
