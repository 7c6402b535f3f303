# Tests: tests/admin/test_site.py
"""The phase of the broker, for health checks."""

from __future__ import annotations

from enum import Enum
from typing import Any

from brokerd.admin.conditions import Conditions


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

    A broker with a standing condition is *degraded*. It is ready as long as it serves clients: to
    take it out of service would make its sound data unavailable too. The answer always has the
    names of the conditions and their reasons.
    """

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.reason = ""
        self.conditions = Conditions()

    def describe(self, with_reasons: bool = True) -> dict[str, Any]:
        """Return the phase, the standing conditions, and the reasons for them or for a failure.

        :param with_reasons: False leaves out the reasons, which may name topics and paths.
        """
        described: dict[str, Any] = {"phase": self.phase.value}
        if self.reason and with_reasons:
            described["reason"] = self.reason
        if self.conditions.standing:
            described["conditions"] = self.conditions.standing
            if with_reasons:
                described["degraded"] = self.conditions.reason
        return described

    @property
    def ready(self) -> bool:
        """Return whether the broker serves clients."""
        return self.phase is Phase.READY and self.conditions.serves

    def fail(self, reason: str) -> None:
        """Enter FAILED; the first reason is kept."""
        if self.phase is not Phase.FAILED:
            self.phase = Phase.FAILED
            self.reason = reason
