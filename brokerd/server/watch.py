# Tests: tests/test_watch.py, tests/test_conditions.py
"""Watches the running broker: its conditions, the lag of the event loop, the supervisor's watchdog.

The service starts it before the replay and stops it last. `BrokerCore` has the conditions of disk,
log, archive and clock, `certificate_conditions` those of TLS files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from brokerd.admin.conditions import Condition, Conditions
from brokerd.broker.callbacks import run_callback
from brokerd.histogram import Histogram
from brokerd.server.notify import Notifier

SAMPLE_SECONDS = 0.25
"""Interval at which the lag of the event loop is measured."""
CHECK_SAMPLES = 4
"""The conditions are checked at every fourth sample."""
STALL_SECONDS = 1.0
"""Lag of the event loop at which it counts as stalled."""
STALL_SHOWN_SECONDS = 60.0
"""Time for which a stall stays a condition: nobody can ask while it lasts."""


class LoopLag:
    """How late the event loop calls its timers."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self.times = Histogram()
        """All measured lags."""
        self._stall_seconds = 0.0
        self._stalled_at = 0.0

    def add(self, lag_seconds: float) -> None:
        """Note the lag of one timer."""
        lag_seconds = max(0.0, lag_seconds)
        self.times.observe(lag_seconds)
        if lag_seconds >= max(STALL_SECONDS, self._recent_seconds):
            self._stall_seconds, self._stalled_at = lag_seconds, self._seconds()

    @property
    def _recent_seconds(self) -> float:
        """The longest stall that still counts; 0 if there is none."""
        is_recent = self._seconds() - self._stalled_at < STALL_SHOWN_SECONDS
        return self._stall_seconds if is_recent else 0.0

    @property
    def problem(self) -> str:
        """Describe the longest recent stall; "" if there is none."""
        stall_seconds = self._recent_seconds
        if not stall_seconds:
            return ""
        return (
            f"the event loop did nothing for {stall_seconds:.1f} s within the last minute, and all "
            "clients waited; is the machine short of processors or memory?"
        )


class Watch:
    """Measures the loop, checks the conditions every second, and keeps the watchdog quiet.

    :param clock: the reactor.
    :param measure: starts measurements that the conditions need; it must not block.
    :param commit_seconds: returns the time for which the commit under way has waited for the disk.
    """

    def __init__(
        self,
        clock: Any,
        conditions: Conditions,
        measure: Callable[[], None],
        commit_seconds: Callable[[], float],
        notifier: Notifier,
    ) -> None:
        self._clock = clock
        self._conditions = conditions
        self._measure = measure
        self._commit_seconds = commit_seconds
        self._notifier = notifier
        self.lag = LoopLag(clock.seconds)
        self._samples = 0
        self._call: Any = None
        self._due = 0.0
        self._fed_at = float("-inf")
        conditions.add([Condition("loop-stalled", lambda: self.lag.problem)])

    def start(self) -> None:
        """Check now, and from now on every second."""
        self.check()
        self._sample_later()

    def stop(self) -> None:
        """Stop."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def check(self) -> None:
        """Check the conditions."""
        run_callback(self._measure)
        run_callback(self._conditions.check)
        self._feed_watchdog()

    def _sample_later(self) -> None:
        self._due = self._clock.seconds() + SAMPLE_SECONDS
        self._call = self._clock.callLater(SAMPLE_SECONDS, self._sample)

    def _sample(self) -> None:
        self.lag.add(self._clock.seconds() - self._due)
        self._sample_later()
        self._samples += 1
        if self._samples % CHECK_SAMPLES == 0:
            self.check()

    def _feed_watchdog(self) -> None:
        """Tell the supervisor that loop and commits go on, four times in its time.

        It ends the process after that time without a word. A commit that takes longer counts as
        hung, so the process ends at most twice that time after the disk stopped.
        """
        watchdog_seconds, now = self._notifier.watchdog_seconds, self._clock.seconds()
        if not watchdog_seconds or now - self._fed_at < watchdog_seconds / 4:
            return
        if self._commit_seconds() < watchdog_seconds:
            self._fed_at = now
            self._notifier.send("WATCHDOG=1")


def certificate_conditions(endpoints: Iterable[Any]) -> Iterator[Condition]:
    """Yield the conditions of the TLS files of all endpoints."""
    found = (getattr(endpoint, "credentials", None) for endpoint in endpoints)
    credentials = list(dict.fromkeys(one for one in found if one is not None))

    def first(problems: Iterable[str]) -> str:
        return "; ".join(filter(None, problems))

    if credentials:
        yield Condition("certificate-expires", lambda: first(one.expiry for one in credentials))
        yield Condition("tls-files-unusable", lambda: first(one.problem for one in credentials))
