# Tests: tests/admin/test_site.py
"""The phase of the broker, for health checks."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Phase(Enum):
    """The phases of a broker's life, in order; FAILED may follow any of them."""

    STARTING = "starting"
    REPLAYING = "replaying"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


class Health:
    """The current phase, and the reason if it is FAILED. The service sets it, the admin site reads
    it.

    A *degraded* broker is ready and serves all sound data. To take it out of service would make
    that unavailable too. So degradation changes no status code; the answer always has its reason.
    """

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.reason = ""
        self.degradation: Callable[[], str] = lambda: ""
        """Returns why the broker is degraded, "" if it is not."""

    def describe(self) -> dict[str, str]:
        """Return the phase and the reason for a failure or degradation."""
        described = {"phase": self.phase.value}
        if self.reason:
            described["reason"] = self.reason
        degraded = self.degradation()
        if degraded:
            described["degraded"] = degraded
        return described

    @property
    def ready(self) -> bool:
        """Return whether the broker serves clients."""
        return self.phase is Phase.READY

    def fail(self, reason: str) -> None:
        """Enter FAILED; the first reason is kept."""
        if self.phase is not Phase.FAILED:
            self.phase = Phase.FAILED
            self.reason = reason
