# Tests: tests/admin/test_site.py
"""Where the broker is in its life, as health checks ask for it."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """The phases of a broker's life, in order; FAILED may follow any of them."""

    STARTING = "starting"
    REPLAYING = "replaying"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


class Health:
    """The phase now, and the reason if it is FAILED. Set by the service, read by the admin site."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.reason = ""

    @property
    def ready(self) -> bool:
        """Whether the broker takes requests of clients."""
        return self.phase is Phase.READY

    def fail(self, reason: str) -> None:
        """Enter FAILED; the first reason is kept."""
        if self.phase is not Phase.FAILED:
            self.phase = Phase.FAILED
            self.reason = reason
