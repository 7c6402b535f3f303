# Tests: tests/broker/test_overview.py
"""Counters of the broker's services for the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from brokerd.broker.model.traffic import Traffic
from brokerd.values import Format

REMOVALS = ("trimmed", "retention_time", "retention_bytes", "fired")
"""Reasons why records are removed: a request; age; size; a delayed message that ended (it fired,
was cancelled, expired or was lost)."""


@dataclass
class Counters:
    """Counts since the broker started."""

    records_produced: dict[int, int] = field(default_factory=lambda: dict.fromkeys(Format, 0))
    bytes_produced: int = 0
    leases_granted: int = 0
    settled: int = 0
    failed: int = 0
    lapsed: int = 0
    records_removed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REMOVALS, 0))
    """Records below the start offsets, by the reason why the start offset moved."""
    dead_letters_removed: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    """Records and bytes by topic."""
    refusals: dict[tuple[str, str], int] = field(default_factory=dict)
    """Refused requests by format and by the name of the error."""

    def count_refusal(self, wire_format: str, error: Exception) -> None:
        """Count a refused request."""
        key = wire_format, getattr(error, "cause_name", "") or type(error).__name__
        self.refusals[key] = self.refusals.get(key, 0) + 1
