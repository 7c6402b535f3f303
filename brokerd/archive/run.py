# Tests: tests/archive/test_job.py
"""The context of the job's steps. A step takes a `Run` and returns a `StepReport`.

A `Run` holds the inputs: archive, bounds, settings, tables and Spark. `brokerd.archive.job` makes
it and calls the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.delta.tables import Tables
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import Store, open_store

if TYPE_CHECKING:
    from brokerd.archive.cluster.frames import Frames


def count_text(count: int, noun: str) -> str:
    """Format a count and its noun: ``1 file``, ``2,000 files``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class Settings(NamedTuple):
    """Settings of the job: section ``[archive]`` of the configuration."""

    lot_bytes: int = 4 << 30
    local_lot_bytes: int = 0
    """The job's own process writes a lot of at most this size, without Spark."""
    file_bytes: int = 128 << 20
    derived: bool = True
    typed: bool = False
    retention: bool = True
    compaction: bool = True
    tombstone_seconds: int = 86_400
    rewrite_percent: int = 20
    merge: bool = True
    vacuum: bool = True
    vacuum_hours: int = 24
    events_days: int = 0
    iceberg: bool = False
    iceberg_catalog: str = ""
    iceberg_namespace: str = "brokerd"


@dataclass
class StepReport:
    """The report of a step."""

    name: str
    numbers: dict[str, int] = field(default_factory=dict)
    """Counts for programs: ``{"files_removed": 3}``."""
    lines: list[str] = field(default_factory=list)
    """Sentences for people, one for each action; empty if the step changed nothing."""


@dataclass(frozen=True)
class Run:
    """One run of the job."""

    root: Place
    """The archive; its tables are directories below."""
    bounds: Bounds
    """The bounds of removal. Every decision uses their ``time_us`` as the present time."""
    settings: Settings
    tables: Tables
    spark: SparkRunner
    now_ms: Callable[[], int]
    """The wall clock in milliseconds, for the history of Delta tables only."""
    only: frozenset[int] | None = None
    """Ids of the topics to maintain, or None for all topics."""
    merge_growth: int = 2
    """The parameter ``growth`` of `brokerd.archive.maintain.merge_policy.neighbours_to_merge`."""
    failpoint: Callable[[str], None] = lambda name: None
    """Is called at named points, where tests stop the process."""

    @cached_property
    def store(self) -> Store:
        """Return the store of the archive."""
        return open_store(self.root)

    @cached_property
    def frames(self) -> Frames:
        """Return the data frames over files of the archive."""
        from brokerd.archive.cluster.frames import Frames

        return Frames(self.root, self.spark)

    @property
    def tasks_have_journal(self) -> bool:
        """Return whether tasks can read the journal: true if the archive is in a directory."""
        return isinstance(self.root, Path) or self.spark.is_local()
