# Tests: tests/powerloss/test_check.py
"""What clients of one run asked and were told, and at which position of the recording.

The position ``before`` a request is read before it is sent, ``after`` it once its answer was read.
An answer with an ``after`` of at most P was given before a power loss at P. A request with a
``before`` of P or more had no effect by then.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.crowd import KEYED, SHARED
from benchmarks.ledger import Ledger
from benchmarks.oracle import Origin

LEFT, RIGHT, TRIMMED, SHORT, DELAYED = "left", "right", "trimmed", "short", "delayed"
"""Topics: of transactions (two), of trims, with a retention, and of delayed records."""
TOPICS = (SHARED, KEYED, LEFT, RIGHT, TRIMMED, SHORT, DELAYED)
GROUP = "work"
"""The group that settles records of `SHARED`."""


@dataclass
class Asked:
    """A request and its answer."""

    before: int
    after: int | None = None
    """None: no answer came."""

    def is_told(self, point: int) -> bool:
        """Whether it was answered before a power loss."""
        return self.after is not None and self.after <= point

    def is_possible(self, point: int) -> bool:
        """Whether it may have had an effect before a power loss."""
        return self.before < point


@dataclass
class Transaction(Asked):
    """The end of a transaction."""

    origins: dict[str, list[Origin]] = field(default_factory=dict)
    """By topic."""
    is_commit: bool = True


@dataclass
class Trim(Asked):
    """The removal of the records of `TRIMMED` below an offset."""

    offset: int = 0


@dataclass
class Facts:
    """All of one run. It can be pickled."""

    seed: int
    has_rollups: bool = True
    sent: dict[Origin, int] = field(default_factory=dict)
    """The position before each record was sent."""
    told: dict[str, dict[Origin, tuple[int | None, int]]] = field(default_factory=dict)
    """By topic: offset, None where it is not told, and position of each acknowledged record."""
    settles: dict[int, Asked] = field(default_factory=dict)
    """By offset."""
    transactions: list[Transaction] = field(default_factory=list)
    trims: list[Trim] = field(default_factory=list)
    deletions: dict[str, Asked] = field(default_factory=dict)
    """By topic, of topics that were deleted."""
    findings: list[str] = field(default_factory=list)
    """What went wrong while the recording was made."""

    def ledger(self, point: int) -> Ledger:
        """The books of all records acknowledged before a power loss."""
        ledger = Ledger(self.seed)
        for topic, records in self.told.items():
            for origin, (offset, after) in records.items():
                if after <= point:
                    ledger.acknowledge(topic, [origin], [] if offset is None else [offset])
        return ledger

    def save(self, path: Path) -> None:
        """Write it to a file."""
        path.write_bytes(pickle.dumps(self))

    @staticmethod
    def load(path: Path) -> Facts:
        """Read a file that `save` wrote."""
        facts: Facts = pickle.loads(path.read_bytes())
        return facts


class TimedLedger(Ledger):
    """A ledger that notes positions, for the writers of `benchmarks.crowd`."""

    def __init__(self, facts: Facts, position: Callable[[], int]) -> None:
        super().__init__(facts.seed)
        self.facts = facts
        self.findings = facts.findings
        self.position = position

    def value(self, origin: Origin) -> bytes:
        """The bytes of a record that is about to be sent."""
        self.facts.sent.setdefault(origin, self.position())
        return super().value(origin)

    def acknowledge(self, topic: str, origins: Sequence[Origin], offsets: Sequence[int]) -> None:
        """Note that records were acknowledged just now."""
        after = self.position()
        super().acknowledge(topic, origins, offsets)
        told = self.facts.told.setdefault(topic, {})
        for at, origin in enumerate(origins):
            told[origin] = (offsets[at] if offsets else None, after)
