# Tests: tests/broker/test_quota_waits.py, tests/protocols/test_quotas.py
"""Requests that wait for a quota go on in the order in which they came.

Each meter has a queue of reads and one of produces, and one timer. A connection has at most one
request in a queue, so connections go on in turn, and each is woken once for a request. With a timer
for each connection, all of them were woken whenever one could go on.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from brokerd.broker.clock import Clock
from brokerd.security.quotas import Meter

LOOK_SECONDS = 1.0
"""A changed quota counts for the requests that wait after this time at the latest."""

TURN_SECONDS = 0.001
"""Time that the woken requests of one meter have in a reactor turn."""

Resume = Callable[[bool], object]
"""Lets a request go on. The argument tells whether it is due; else its quotas have changed."""


class QuotaWaits:
    """The queues and timers of meters whose requests wait.

    ``seconds`` returns monotonic time, the time of the meters. ``version`` returns a number that
    grows with each change of a quota.
    """

    def __init__(
        self, clock: Clock, seconds: Callable[[], float], version: Callable[[], int]
    ) -> None:
        self._clock = clock
        self.seconds = seconds
        self._version = version
        self._versions: dict[Meter, int] = {}
        """Meters with a timer, and the version of the quotas when it began."""
        self._moved: deque[Resume] = deque()
        """Requests of meters whose quotas may have changed: they look for their meters again."""

    def wait(self, meter: Meter, use: int, resume: Resume, is_due: bool) -> None:
        """Call ``resume(True)`` when it is the turn of this request, which is *due* then.

        When a quota has changed, call ``resume(False)`` in place of that: the meters of the request
        may be others now. A request that was due before, for this or another meter, comes first.
        """
        queue = meter.queues.setdefault(use, OrderedDict())
        queue[resume] = None
        meter.waiting += 1
        if is_due:
            queue.move_to_end(resume, last=False)
        else:
            meter.waits += 1
        if meter not in self._versions:
            self._versions[meter] = self._version()
            self._look_later(meter)

    def forget(self, meter: Meter, use: int, resume: Resume) -> None:
        """Drop a request of a closed connection, if it waits."""
        if resume in meter.queues[use]:
            del meter.queues[use][resume]
            meter.waiting -= 1

    def _look_later(self, meter: Meter) -> None:
        now_seconds = self.seconds()
        waits = [meter.wait_seconds(use, now_seconds) for use, one in meter.queues.items() if one]
        delay_seconds = min(LOOK_SECONDS, max(0.0, min(waits)))
        self._clock.callLater(delay_seconds, self._look, meter)

    def _look(self, meter: Meter) -> None:
        """Resume requests while the meter has time left."""
        try:
            if self._versions[meter] != self._version():
                self._move(meter)
            else:
                end_seconds = self.seconds() + TURN_SECONDS
                while self._resume_next(meter) and self.seconds() <= end_seconds:
                    pass
        finally:
            if meter.waiting:
                self._look_later(meter)
            else:
                del self._versions[meter]

    def _resume_next(self, meter: Meter) -> bool:
        """Resume a read or a produce, in turn; return whether one could go on."""
        now_seconds = self.seconds()
        for use, queue in meter.queues.items():
            if queue and meter.wait_seconds(use, now_seconds) <= 0:
                meter.queues[use] = meter.queues.pop(use)  # the last one next time
                resume, _ = queue.popitem(last=False)
                meter.waiting -= 1
                resume(True)
                return True
        return False

    def _move(self, meter: Meter) -> None:
        if not self._moved:
            self._clock.callLater(0, self._resume_moved)
        for queue in meter.queues.values():
            self._moved.extend(queue)
            queue.clear()
        meter.waiting = 0

    def _resume_moved(self) -> None:
        end_seconds = self.seconds() + TURN_SECONDS
        try:
            while self._moved:
                self._moved.popleft()(False)
                if self.seconds() > end_seconds:
                    break
        finally:
            if self._moved:
                self._clock.callLater(0, self._resume_moved)
