# Tests: tests/broker/test_clock.py
"""Broker time: microseconds since the Unix epoch that never go backwards.

Broker time is ``max(wall clock, last value + monotonic time elapsed since)``. It is written
into every frame, so after a restart it goes on from where the log says it was. A step of the
wall clock backwards is therefore invisible; a step forwards of more than `JUMP_US` is followed
(records must carry the time people see) but reported, and `settled` stays false for
`JUMP_QUARANTINE_US` of monotonic time, during which nothing may expire by it.

A jump across a restart cannot be told from the time that the broker was down, or had nothing to
write. So whenever a start finds the wall clock more than `JUMP_US` past the log, `settled` is false
as after a jump. Nor does a start end the wait after a jump: it goes on from where the log, or its
snapshot, says the last one was (`BrokerTime.jumped_us`). Delays are no expiry: they are over when
broker time says so.
"""

from __future__ import annotations

from collections.abc import Callable

JUMP_US = 3_600 * 1_000_000
"""A forward step of the wall clock larger than this is a jump."""

JUMP_QUARANTINE_US = 600 * 1_000_000
"""How long after a jump nothing expires by broker time."""


class BrokerTime:
    """Reads broker time from a wall clock and a monotonic clock.

    ``wall`` gives seconds since the epoch, ``monotonic`` seconds since anything;
    ``on_jump(from_us, to_us)`` is called once for every jump.
    """

    def __init__(
        self,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
        on_jump: Callable[[int, int], None],
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._on_jump = on_jump
        self._last_us = 0
        self._last_monotonic_us = 0
        self._jumped_at_us: int | None = None
        self.jumped_us = 0
        """Broker time just after the last jump, or what may be one; 0 for none."""

    def now_us(self) -> int:
        """Monotonic time, for leases and timers."""
        return int(self._monotonic() * 1_000_000)

    def resume_from(self, time_us: int, jumped_us: int = 0) -> int:
        """Go on from the last time found in the log, 0 for a new one, and from its last jump.

        Returns how far the wall clock is past the log, if that may be a jump, else 0.
        """
        now_us = self.time_us()
        self._last_us = max(now_us, time_us)
        if time_us and now_us - time_us > JUMP_US:
            self._jumped(self._last_monotonic_us, now_us)
            return now_us - time_us
        if jumped_us:
            self._jumped(self._last_monotonic_us - (self._last_us - jumped_us), jumped_us)
        return 0

    def time_us(self) -> int:
        """Broker time now."""
        monotonic_us = self.now_us()
        elapsed_us = self._last_us + monotonic_us - self._last_monotonic_us
        wall_us = int(self._wall() * 1_000_000)
        if self._last_us and wall_us - elapsed_us > JUMP_US:
            self._jumped(monotonic_us, wall_us)
            self._on_jump(elapsed_us, wall_us)
        self._last_us = max(wall_us, elapsed_us)
        self._last_monotonic_us = monotonic_us
        return self._last_us

    def _jumped(self, at_us: int, to_us: int) -> None:
        self._jumped_at_us, self.jumped_us = at_us, to_us

    @property
    def settled(self) -> bool:
        """Whether things may expire by broker time: no jump, nor what may be one, was recently.

        A jump counts from the moment it is asked for, whoever reads the time first.
        """
        self.time_us()
        return (
            self._jumped_at_us is None or self.now_us() - self._jumped_at_us >= JUMP_QUARANTINE_US
        )
