# Tests: tests/broker/test_timetable.py
"""One timer for all leases and delays: which lane is due next."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from brokerd.broker.clock import BrokerTime
from brokerd.broker.journal import Clock, DelayedCall
from brokerd.broker.topics import Lane


class Timetable:
    """Calls ``due(lane)`` when a lease of the lane lapses or a delayed record is ready.

    ``lane.scheduled_us`` is the time of the state's live entry in the heap, so an entry with
    another time is stale and is dropped when it surfaces.
    """

    def __init__(
        self, clock: Clock, time: BrokerTime, due: Callable[[Lane, int], None]
    ) -> None:
        self._clock = clock
        self._time = time
        self._due = due
        self._heap: list[tuple[int, int, Lane]] = []
        self._count = 0
        self._call: DelayedCall | None = None
        self._call_us = 0
        self._stopped = False

    def schedule(self, lane: Lane) -> None:
        """Look when ``lane`` is due next and make sure that the timer knows."""
        due_us = lane.store.next_due_us()
        if due_us is not None and (lane.scheduled_us is None or due_us < lane.scheduled_us):
            self.schedule_at(lane, due_us)

    def schedule_at(self, lane: Lane, due_us: int) -> None:
        """``lane`` is due at ``due_us``, earlier than it was scheduled so far."""
        lane.scheduled_us = due_us
        self._count += 1
        heapq.heappush(self._heap, (due_us, self._count, lane))
        if self._call is None or due_us < self._call_us:
            self._arm(due_us)

    def _arm(self, due_us: int) -> None:
        if self._stopped:
            return
        if self._call is not None:
            self._call.cancel()
        self._call_us = due_us
        delay = max(0.0, (due_us - self._time.now_us()) / 1e6)
        self._call = self._clock.callLater(delay, self._fire)

    def _fire(self) -> None:
        self._call = None
        now_us = self._time.now_us()
        heap = self._heap
        while heap and heap[0][0] <= now_us:
            due_us, _, lane = heapq.heappop(heap)
            if lane.scheduled_us == due_us:
                lane.scheduled_us = None
                self._due(lane, now_us)
                self.schedule(lane)
        if heap and self._call is None:
            self._arm(heap[0][0])

    def stop(self) -> None:
        self._stopped = True
        if self._call is not None:
            self._call.cancel()
            self._call = None
