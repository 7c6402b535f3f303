"""A data directory with a log made by hand, an archive beside it, and rollups without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from brokerd.archive.contract.bounds import (
    FILE_NAME,
    Bounds,
    DamagedPlace,
    PartitionBounds,
    TopicBounds,
    encode_bounds,
)
from brokerd.archive.ingest.ingest import IngestReport
from brokerd.archive.job import open_paired_tables
from brokerd.archive.run import Settings
from brokerd.walformat import EventKind
from tests.archive.inline import NO_LIMIT, NOW_MS, ingest_inline
from tests.archive.making import LOG_ID, LogMaker, events_entry, topic_entry

__all__ = ["MIB", "NO_LIMIT", "NOW_MS", "Data"]

MIB = 1 << 20


class Data:
    """The data directory of an absent broker, and the expected contents of its archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wal = path / "wal"
        self.root = path / "archive"
        for directory in (self.wal, path / "state"):
            directory.mkdir(parents=True)
        self.log = LogMaker(self.wal)
        self.starts: dict[int, int] = {}
        """The start offset of partition 0, by topic id."""
        self.compacted: set[int] = set()
        """Topics that may keep only the latest record of a key."""
        self.gaps: list[tuple[int, int]] = []
        self.damage: list[DamagedPlace] = []
        self.appended: list[tuple[int, int, int, bytes]] = []
        """Topic id, partition, offset and value of each record."""
        self.happened: list[tuple[int, str, int, str]] = []
        """Topic id, group, offset and owner of each lease."""

    # -- The log -------------------------------------------------------------------------------

    def append(self, topic_id: int, partition: int, *values: bytes, **columns: Any) -> None:
        """Add a frame with a batch of records; the first use of a topic creates it."""
        if topic_id not in self.starts:
            self.starts[topic_id] = 0
            self.log.add(topic_entry(topic_id, "created", name=f"topic-{topic_id}", partitions=2))
        base = self.log.append(topic_id, partition, values, **columns)
        self.appended += [
            (topic_id, partition, base + at, value) for at, value in enumerate(values)
        ]
        self.log.frame()

    def lease(self, topic_id: int, group: str, offset: int, owner: str) -> None:
        """Add a frame with a lease of a group."""
        event = (EventKind.LEASED, offset, 1_000_000, 7, 1, owner, "")
        self.log.add(events_entry(topic_id, 0, group, [event]))
        self.happened.append((topic_id, group, offset, owner))
        self.log.frame()

    def settle(self, topic_id: int, group: str, offset: int) -> None:
        """Add a frame with a settle of a leased record."""
        event = (EventKind.SETTLED, offset, 0, 0, 0, "", "")
        self.log.add(events_entry(topic_id, 0, group, [event]))
        self.log.frame()

    def fill(self, segments: int = 3) -> list[Path]:
        """Write segments with entries of all these kinds; return their paths."""
        paths = []
        for _ in range(segments):
            for topic_id in (1, 2, 17):
                at = len(self.appended)
                self.append(topic_id, 0, *(b"value %d" % (at + n) for n in range(3)))
                self.append(topic_id, 1, b"other %d" % at)
                self.lease(topic_id, "workers", at, f"owner-{at}")
            paths.append(self.log.seal())
        return paths

    def bounds(self) -> Bounds:
        """Return the current bounds, as the broker would write them."""
        topics = [
            TopicBounds(
                number,
                f"topic-{number}",
                0,
                number in self.compacted,
                [
                    PartitionBounds(start, 1 << 40, 1 << 40, self.gaps),
                    PartitionBounds(0, 1 << 40, 1 << 40),
                ],
            )
            for number, start in self.starts.items()
        ]
        highest = max(self.starts, default=0)
        time_us = self.log.time_us
        return Bounds(LOG_ID, self.log.first_lsn, time_us, True, highest + 1, topics, self.damage)

    def publish(self) -> None:
        """Write the bounds in the place of the broker."""
        (self.path / "state" / FILE_NAME).write_bytes(encode_bounds(self.bounds()))

    # -- The archive ---------------------------------------------------------------------------

    def roll_up(
        self,
        at: Callable[[str], None] = lambda point: None,
        free_bytes: Callable[[], int] = lambda: NO_LIMIT,
        **settings: Any,
    ) -> IngestReport:
        """Run a rollup in this process."""
        bounds = self.bounds()
        open_paired_tables(self.path, self.root, bounds)
        given = Settings(**{"file_bytes": MIB, **settings})
        return ingest_inline(self.root, self.wal, bounds, given, at, free_bytes)

    def _rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            DeltaTable(str(self.root / table)).to_pyarrow_table().to_pylist()
        )
        return found

    def records(self) -> list[tuple[int, int, int, bytes]]:
        """Return the rows of the table of records, in the form of `appended`."""
        names = ("topic_id", "partition", "offset", "value")
        return sorted(tuple(row[name] for name in names) for row in self._rows("records"))

    def events(self) -> list[tuple[int, str, int, str]]:
        """Return the rows of the table of events, in the form of `happened`."""
        names = ("topic_id", "group_name", "offset", "owner")
        rows = sorted(self._rows("events"), key=lambda row: (row["lsn"], row["seq"]))
        return [tuple(row[name] for name in names) for row in rows]

    def check(self) -> None:
        """Check that the archive has all sealed data exactly once."""
        assert self.records() == sorted(self.appended)
        assert self.events() == self.happened
