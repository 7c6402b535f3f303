"""Settings that all tests share: fast by default, HYPOTHESIS_PROFILE=long digs deeper.

SIGTERM ends the session. Twisted's own handler, which a running reactor installs, would stop the
reactor alone, and every test after that would fail.

Logging has begun, to nobody. Until it does, Twisted keeps every event for whoever is told later,
and with it what the event is about: brokers with their disks, gigabytes in a run of all tests.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from twisted.logger import globalLogBeginner

# No deadlines: a loaded machine is slow, not wrong.
settings.register_profile(
    "fast", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", settings.get_profile("fast"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)

_ended = False


def _end(*_: object) -> None:
    """End the session now; what swallows exceptions only delays it to the next test."""
    global _ended
    _ended = True
    pytest.exit("ended by SIGTERM", returncode=128 + signal.SIGTERM)


def pytest_runtest_setup() -> None:
    """Before each test, as a reactor may have taken the signal in the meantime."""
    if _ended:
        _end()
    signal.signal(signal.SIGTERM, _end)
