# Tests: tests/powerloss/test_check.py
"""The requests and answers of a run's clients, with positions in the recording.

``before`` is the position read before a request is sent. ``after`` is the position read after its
answer. An answer with ``after`` <= P came before a power loss at P. A request with ``before`` >= P
had no effect by then.
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
"""The topics: two for transactions, then one each for trims, retention, delayed records."""
TOPICS = (SHARED, KEYED, LEFT, RIGHT, TRIMMED, SHORT, DELAYED)
GROUP = "work"
"""The group that settles records of `SHARED`."""


@dataclass
class Asked:
    """A request and its answer."""

    before: int
    after: int | None = None
    """None if no answer came."""

    def is_told(self, point: int) -> bool:
        """Return whether the answer came before a power loss."""
        return self.after is not None and self.after <= point

    def is_possible(self, point: int) -> bool:
        """Return whether the request may have had an effect before a power loss."""
        return self.before < point


@dataclass
class Transaction(Asked):
    """The end of a transaction."""

    origins: dict[str, list[Origin]] = field(default_factory=dict)
    """The records by topic."""
    is_commit: bool = True


@dataclass
class Trim(Asked):
    """The removal of the records of `TRIMMED` below an offset."""

    offset: int = 0


@dataclass
class Facts:
    """The facts of one run. They can be pickled."""

    seed: int
    has_rollups: bool = True
    in_bucket: bool = False
    """Whether the archive is in a bucket."""
    sent: dict[Origin, int] = field(default_factory=dict)
    """The position before each record was sent."""
    told: dict[str, dict[Origin, tuple[int | None, int]]] = field(default_factory=dict)
    """By topic and record: the offset or None, and the position of the acknowledgement."""
    settles: dict[int, Asked] = field(default_factory=dict)
    """The settles by offset."""
    transactions: list[Transaction] = field(default_factory=list)
    trims: list[Trim] = field(default_factory=list)
    deletions: dict[str, Asked] = field(default_factory=dict)
    """The deletions by topic."""
    findings: list[str] = field(default_factory=list)
    """Faults found while the recording was made."""

    def ledger(self, point: int) -> Ledger:
        """Return a ledger of all records acknowledged before a power loss."""
        ledger = Ledger(self.seed)
        for topic, records in self.told.items():
            for origin, (offset, after) in records.items():
                if after <= point:
                    ledger.acknowledge(topic, [origin], [] if offset is None else [offset])
        return ledger

    def save(self, path: Path) -> None:
        """Write the facts to a file."""
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
        """Return the bytes of a record that is about to be sent, and note the position."""
        self.facts.sent.setdefault(origin, self.position())
        return super().value(origin)

    def acknowledge(self, topic: str, origins: Sequence[Origin], offsets: Sequence[int]) -> None:
        """Book records that were acknowledged just now, with the position."""
        after = self.position()
        super().acknowledge(topic, origins, offsets)
        told = self.facts.told.setdefault(topic, {})
        for at, origin in enumerate(origins):
            told[origin] = (offsets[at] if offsets else None, after)
