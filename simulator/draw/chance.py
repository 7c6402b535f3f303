# Tests: tests/simulator/test_plan.py
"""Random numbers for plans, and the features that a seed switches on or off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")

KIB = 1024
MS = 1_000
SECOND = 1_000_000

FEATURES = {
    # faults
    "kills": 0.4,
    "power losses": 0.5,
    "stops": 0.3,
    "disk errors": 0.35,
    "crashes in recovery": 0.4,
    "crashes in stops": 0.3,
    "full disk": 0.2,
    "small disk": 0.1,
    "slow disk": 0.25,
    "stuck syncs": 0.25,
    "drops": 0.4,
    "stalls": 0.3,
    "slow readers": 0.3,
    "clock steps": 0.4,
    "rot": 0.06,
    # the broker
    "small segments": 0.7,
    "segments by age": 0.2,
    "snapshots": 0.6,
    "small caches": 0.5,
    "small buffers": 0.3,
    "back-off": 0.3,
    "attempts": 0.5,
    "lazy durability": 0.15,
    # the wire
    "splits": 0.4,
    "far away": 0.2,
    "impatience": 0.2,
    # actions of clients
    "pipelining": 0.6,
    "batches": 0.6,
    "waits": 0.4,
    "tokens": 0.6,
    "failures": 0.6,
    "delays": 0.4,
    "extends": 0.4,
    "late settles": 0.4,
    "settles again": 0.4,
    "foreign settles": 0.3,
    "blind settles": 0.2,
    "forgets": 0.3,
    "short leases": 0.5,
    "spent leases": 0.05,
    "shared identities": 0.2,
    "partitions": 0.4,
    "many partitions": 0.07,
    "keys": 0.3,
    "metadata": 0.4,
    "large payloads": 0.15,
    "empty payloads": 0.1,
    "odd names": 0.1,
    "vandals": 0.2,
    "schedules": 0.25,
    "expiry": 0.2,
    "resends": 0.25,
    "default durations": 0.2,
    "wire releases": 0.2,
    # actions of operators
    "operators": 0.6,
    "pauses": 0.2,
    "group settings": 0.25,
    "key order": 0.3,
    "seeks": 0.2,
    "group deletions": 0.15,
    "releases": 0.2,
    "letter changes": 0.25,
    "trims": 0.2,
    "retention": 0.2,
    "topic deletions": 0.15,
}
"""Probability of each feature."""


LATER = {"verdicts": 0.25, "aged letters": 0.25}
"""Probabilities of features that are drawn with their own random numbers.

So the seeds of older runs keep their plans.
"""

NEEDS_FSYNC = frozenset(
    ("empty payloads", "schedules", "resends", "trims", "retention", "topic deletions")
)
"""Features of runs that lose nothing.

After a loss a place may have had two records, and only the payload tells them apart.
"""


class Chance(Random):
    """Random numbers of the kinds that plans use."""

    def on(self, probability: float) -> bool:
        return self.random() < probability

    def scale(self, low: int, high: int) -> int:
        """Draw an integer from ``low`` (at least 1) to ``high``; magnitudes are equally likely."""
        return min(high, int(low * ((high + 1) / low) ** self.random()))

    def one(self, options: Sequence[T]) -> T:
        return options[self.randrange(len(options))]


@dataclass(frozen=True)
class DrawContext:
    """The common values of a plan while its parts are drawn."""

    chance: Chance
    features: frozenset[str]
    end_us: int

    def when(self) -> int:
        return self.chance.randrange(self.end_us)
