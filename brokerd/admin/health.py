# Tests: tests/admin/test_site.py
"""Where the broker is in its life, as health checks ask for it."""

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
    """The phase now, and the reason if it is FAILED. Set by the service, read by the admin site.

    A broker that is *degraded* is ready all the same: what is sound is served, and taking it out
    of service would only keep that away too. So it changes no status code, and always says why.
    """

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.reason = ""
        self.degradation: Callable[[], str] = lambda: ""
        """Says why the broker is degraded, "" if it is not."""

    def describe(self) -> dict[str, str]:
        """The phase, and what is wrong, if anything is."""
        described = {"phase": self.phase.value}
        if self.reason:
            described["reason"] = self.reason
        degraded = self.degradation()
        if degraded:
            described["degraded"] = degraded
        return described

    @property
    def ready(self) -> bool:
        """Whether the broker takes requests of clients."""
        return self.phase is Phase.READY

    def fail(self, reason: str) -> None:
        """Enter FAILED; the first reason is kept."""
        if self.phase is not Phase.FAILED:
            self.phase = Phase.FAILED
            self.reason = reason
