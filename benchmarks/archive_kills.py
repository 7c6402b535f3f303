# Tests: tests/test_archive_torture.py
"""List the kills of the archive torture and sum up a run."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import NamedTuple

POINTS = (
    "planned",
    "records written",
    "events written",
    "before records commit",
    "after records commit",
    "before events commit",
    "after events commit",
    "before deliveries",
    "before deliveries commit",
    "after deliveries commit",
    "before hourly",
    "before hourly commit",
    "after hourly commit",
    "clean planned",
    "clean examined",
    "before clean commit",
    "after clean commit",
    "before events are merged",
    "before deliveries are merged",
    "before vacuum of records",
)
"""The points where the job stops for a kill."""
_WORKED_AT = ("planned", "before deliveries", "before hourly", "clean planned")
"""The points after which workers of the job are busy."""
EXECUTORS = {"executor": 1, "executors": 2}
"""How many of the two executors of a round are killed."""
REFRESHED, DELETING = "refreshed", "deleting"
"""The other moments at which the broker is killed."""


class Kill(NamedTuple):
    """The victim and the moment of a kill."""

    victim: str
    when: str

    def __str__(self) -> str:
        return f"{self.victim} at {self.when!r}"


KILLS = (
    *(Kill("driver", point) for point in POINTS),
    *(Kill("broker", point) for point in POINTS),
    *(Kill("worker", point) for point in _WORKED_AT),
    *(Kill("workers", point) for point in _WORKED_AT),
    *(Kill("executor", point) for point in _WORKED_AT),
    *(Kill("executors", point) for point in _WORKED_AT),
    *(Kill("broker", when) for when in (REFRESHED, DELETING) * 4),
)
"""All kills that the torture knows."""


def some_kills(rounds: int, seed: int) -> list[Kill]:
    """Return ``rounds`` kills; no kill of `KILLS` repeats before all have had their turn."""
    chance = random.Random(seed)
    found: list[Kill] = []
    while len(found) < rounds:
        found += chance.sample(KILLS, len(KILLS))
    return found[:rounds]


@dataclass
class Summary:
    """The result of a run."""

    rounds: int = 0
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    """Number of kills by victim."""
    missed: list[Kill] = field(default_factory=list)
    """Kills that did not happen because the job did not reach the point."""
    acknowledged: int = 0
    archived: int = 0
    compacted: int = 0
    segments_deleted: int = 0
    readers: int = 0
    seen: int = 0
    digest: str = ""
    findings: list[str] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        """Add the results of a run with another log; keep that run's digest."""
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            setattr(self, one.name, theirs if one.name == "digest" else mine + theirs)

    def text(self) -> str:
        """Return the summary as text for people."""
        kills = ", ".join(f"{count} of {victim}" for victim, count in sorted(self.kills.items()))
        lines = [
            f"{self.rounds} rounds in {self.seconds:.0f} s, kills: {kills or 'none'}",
            f"{self.acknowledged:,} records acknowledged, {self.archived:,} in the archive, "
            f"{self.compacted:,} compacted, {self.segments_deleted} journal files deleted",
            f"{self.readers} readers saw {self.seen:,} records, each once, in order; "
            f"digest {self.digest[:16]}",
        ]
        if self.missed:
            lines.append(f"never came to: {'; '.join(map(str, self.missed))}")
        lines += [f"BROKEN: {finding}" for finding in self.findings]
        lines.append("broken promises" if self.findings else "every promise kept")
        return "\n".join(lines)
