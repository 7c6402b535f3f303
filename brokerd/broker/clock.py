# Tests: tests/broker/test_clock.py
"""Broker time, and the time by which records are removed (docs/broker.rst, "Clocks").

Broker time is ``max(wall clock, last value + monotonic time elapsed since)``: microseconds since
the Unix epoch that go backwards only when an operator sets them. Frames and records carry it.

A wall clock that is wrong for a moment leaves broker time ahead for good. So removal by age goes
by `BrokerTime.removal_us`, which a wall clock advances only if the monotonic clock confirms it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

START_GAP_US = 3_600 * 1_000_000
"""The largest difference of wall clock and log that a start takes for time without a broker."""


class Timer(Protocol):
    """The result of `Clock.callLater`."""

    def cancel(self) -> None: ...

    def active(self) -> bool: ...


class Clock(Protocol):
    """The part of Twisted's ``IReactorTime`` that the broker uses."""

    def seconds(self) -> float: ...

    def callLater(
        self, delay: float, function: Callable[..., object], /, *args: object
    ) -> Timer: ...


class StepTimer:
    """Makes the next call of work that is done in steps. At most one call waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._call: Timer | None = None
        self.is_stopped = False

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call ``function`` after a time, unless `stop` is called before."""

        def run() -> None:
            self._call = None
            function()

        if not self.is_stopped:
            self._call = self._clock.callLater(seconds, run)

    def stop(self) -> None:
        """Cancel the call that waits, and make no other."""
        self.is_stopped = True
        if self._call is not None:
            self._call.cancel()
            self._call = None


class ClockSettings(NamedTuple):
    """Section ``[clock]`` of the configuration, in microseconds."""

    tolerance_us: int = 60 * 1_000_000
    """The largest difference of two clocks that agree."""
    grace_us: int = 3_600 * 1_000_000
    """A wall clock that jumped is trusted again after this time without another jump."""


class BrokerTime:
    """Reads broker time from a wall clock and a monotonic clock.

    :param wall: gives seconds since the epoch.
    :param monotonic: gives seconds since any moment.
    :param on_jump: ``on_jump(from_us, to_us)`` is called when broker time jumps forward.
    :param on_ahead: is called when ``ahead_us`` becomes 0 or leaves 0.
    """

    def __init__(
        self,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
        on_jump: Callable[[int, int], None] = lambda from_us, to_us: None,
        on_ahead: Callable[[], None] = lambda: None,
        settings: ClockSettings | None = None,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._on_jump = on_jump
        self._on_ahead = on_ahead
        self._settings = settings or ClockSettings()
        now_us = self.monotonic_us()
        self._offset_us = self._trusted_us = self._steady_us = self._wall_us() - now_us
        """Differences to monotonic time: of broker time, of the wall clock when it was last
        trusted, and of the wall clock after its last jump."""
        self._steady_since_us = now_us
        self.ahead_us = 0
        """How far broker time is ahead of the time for removal; 0 while broker time is trusted."""
        self.skew_us = 0
        """How far broker time is ahead of the wall clock."""
        self._logged_us = 0
        """The last ``ahead_us`` in the log."""
        self._agree_from_us, self._agree_to_us, self._agree_until_us = 0, -1, 0
        """While the wall clock is within the first two (differences to monotonic time), up to this
        monotonic time, `time_us` has nothing to compare. No wall clock is within 0 and -1."""

    def monotonic_us(self) -> int:
        """Return monotonic time, the time of leases and timers."""
        return int(self._monotonic() * 1_000_000)

    def resume_from(self, time_us: int, ahead_us: int = 0) -> None:
        """Continue from the last broker time in the log and its ``ahead_us``.

        :param time_us: 0 for a new log.
        """
        now_us, wall_us = self.monotonic_us(), self._wall_us()
        self._offset_us = max(wall_us, time_us) - now_us
        self._trust(wall_us - now_us, now_us)
        self._logged_us = ahead_us
        if time_us and not 0 <= wall_us - (time_us - ahead_us) <= START_GAP_US:
            self._trusted_us = time_us - ahead_us - now_us
        self._compare(wall_us - now_us, now_us)

    def time_us(self) -> int:
        """Compare the clocks, and return the broker time."""
        now_us = int(self._monotonic() * 1_000_000)
        wall_us = int(self._wall() * 1_000_000) - now_us
        offset_us = self._offset_us
        if self._agree_from_us <= wall_us <= self._agree_to_us and now_us < self._agree_until_us:
            self.skew_us = offset_us - wall_us
            return offset_us + now_us
        return self._compare(wall_us, now_us)

    def _compare(self, wall_us: int, now_us: int) -> int:
        """Return broker time at ``now_us``, when the wall clock is ``wall_us`` past it."""
        before_us, tolerance_us = self._offset_us, self._settings.tolerance_us
        if wall_us > before_us:
            self._offset_us = wall_us
        if abs(wall_us - self._steady_us) > tolerance_us:
            self._steady_us, self._steady_since_us = wall_us, now_us
        elif now_us - self._steady_since_us >= self._settings.grace_us:
            self._trust(wall_us, now_us)
        self.skew_us = self._offset_us - wall_us
        ahead_us = self._offset_us - min(wall_us, self._trusted_us)
        was_ahead = self.ahead_us > 0
        self.ahead_us = ahead_us if ahead_us > tolerance_us else 0
        self._expect_agreement()
        if wall_us - before_us > tolerance_us:
            self._on_jump(before_us + now_us, wall_us + now_us)
        if was_ahead != (self.ahead_us > 0):
            self._on_ahead()
        return self._offset_us + now_us

    def _expect_agreement(self) -> None:
        """Compute in which range the wall clock changes no more than ``skew_us``."""
        tolerance_us = self._settings.tolerance_us
        self._agree_from_us = max(self._offset_us, self._steady_us) - tolerance_us
        self._agree_to_us = min(self._offset_us, self._steady_us + tolerance_us)
        self._agree_until_us = self._steady_since_us + self._settings.grace_us
        if self.ahead_us:
            self._agree_to_us = self._agree_from_us - 1

    def removal_us(self) -> int:
        """Return the time by which records, tombstones and dead letters are old.

        That is broker time, or an earlier time while broker time cannot be trusted.
        """
        return self.time_us() - self.ahead_us

    def lead_us(self) -> int:
        """Compare the clocks, and return ``ahead_us``."""
        self.time_us()
        return self.ahead_us

    def set_to_wall(self) -> None:
        """Trust the wall clock and continue from it. Broker time may go back."""
        now_us = self.monotonic_us()
        self._offset_us = self._wall_us() - now_us
        self._trust(self._offset_us, now_us)
        self._compare(self._offset_us, now_us)
        self._logged_us = 0

    @property
    def problem(self) -> str:
        """Return why broker time is not trusted; "" if it is."""
        if not self.ahead_us:
            return ""
        return (
            f"broker time is not trusted: it is {self.skew_us // 1_000_000} s ahead of the wall "
            f"clock, and {self.ahead_us // 1_000_000} s ahead of the time by which records are "
            "removed; correct the wall clock if it is wrong, then see brokerctl clock"
        )

    def status(self) -> dict[str, Any]:
        """Return the clocks and their differences, in values that JSON can hold."""
        time_us = self.time_us()
        return {
            "time_us": time_us,
            "wall_us": time_us - self.skew_us,
            "removal_us": time_us - self.ahead_us,
            "skew_seconds": self.skew_us / 1e6,
            "ahead_seconds": self.ahead_us / 1e6,
            "degraded": self.problem,
        }

    def unlogged(self) -> dict[str, Any]:
        """Return the fields of a MARK if the log has another ``ahead_us``, else an empty dict.

        The caller must put them into the log.
        """
        if abs(self.ahead_us - self._logged_us) <= self._settings.tolerance_us:
            return {}
        self._logged_us = self.ahead_us
        return {"ahead_us": self.ahead_us}

    def _wall_us(self) -> int:
        return int(self._wall() * 1_000_000)

    def _trust(self, wall_us: int, now_us: int) -> None:
        """Trust the wall clock, which is ``wall_us`` past the monotonic clock."""
        self._trusted_us = self._steady_us = wall_us
        self._steady_since_us = now_us
