# Tests: tests/simulator/test_oracle_changes.py
"""When something is over by broker time, as far as a history tells: after docs/broker.rst.

Broker time is the wall clock, but never goes back; ten minutes after a jump forward of more than an
hour nothing expires by it.
"""

from __future__ import annotations

from simulator.history.operations import History
from simulator.oracle.spans import EVER_US, Lives

JUMP_US = 3_600 * 1_000_000
QUARANTINE_US = 600 * 1_000_000
NOTICE_US = 1_000_000
"""How much more than an hour a jump must be, so that it is one in any case."""


class BrokerTime:
    """Moments of the world at which waits of broker time are over."""

    def __init__(self, history: History, lives: Lives) -> None:
        self._steps = None if history.clock_steps is None else sorted(history.clock_steps)
        self._crossings = lives.crossings
        steps = self._steps or ()
        self._follows = (
            self._steps is not None
            and all(step.step_us >= 0 for step in steps)
            and sum(step.step_us for step in steps) < JUMP_US - NOTICE_US
        )
        """Whether it is the wall clock all the time, and never jumps."""

    def earliest_us(self, begun_us: int, wait_us: int) -> int:
        """The first moment at which a wait begun at ``begun_us`` may be over and acted upon."""
        if wait_us >= EVER_US or self._steps is None:
            return EVER_US if wait_us >= EVER_US else begun_us
        over_us = begun_us + wait_us
        for at_us, step_us in self._steps:
            if begun_us <= at_us < over_us and step_us > 0:
                over_us = max(at_us, over_us - step_us)
        return self._settled_us(over_us)

    def latest_us(self, begun_us: int, wait_us: int) -> int:
        """The last moment at which a wait begun at ``begun_us`` may not be over yet."""
        return min(begun_us + wait_us, EVER_US) if self._follows else EVER_US

    def _settled_us(self, at_us: int) -> int:
        """The first moment from ``at_us`` on that is not surely within ten minutes of a jump.

        A jump is sure when the clock never went back before it. A restart knows of it, too, unless
        the clock was set again before: then the log may not show it, or show it as longer ago.
        """
        steps = self._steps or []
        for index, step in enumerate(steps):
            if step.step_us < 0 or step.at_us > at_us:
                break
            if step.step_us > JUMP_US + NOTICE_US and at_us < step.at_us + QUARANTINE_US:
                again_us = min((other.at_us for other in steps[index + 1 :]), default=EVER_US)
                forgetting = [each.ready_us for each in self._crossings if each.ready_us > again_us]
                at_us = max(at_us, min([step.at_us + QUARANTINE_US, *forgetting]))
        return at_us
