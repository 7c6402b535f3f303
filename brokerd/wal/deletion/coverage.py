# Tests: tests/wal/test_deletion.py, tests/broker/test_segment_cleaner.py
"""Which segments can go because an archive has their records that are not removed.

An archive may be taken away, so nothing is remembered of what it has. But what one version of it
lacks, that version lacks for good: it is not asked for the segment again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.errors import BrokerdError, RecordRemoved
from brokerd.wal.catalog import Catalog
from brokerd.wal.deletion.removal import Removable, StartOffsets, is_kept, read_spans
from brokerd.wal.disk import Disk
from brokerd.wal.segment import Lack, Segment
from brokerd.walformat.index import PartitionSpan

SPANS_MAX = 100_000
"""A plan ends when what it found has so many partitions, counted for each segment: memory."""


class Coverage(NamedTuple):
    """What a version of an archive has, and which segments may go because of it.

    ``covers(topic_id, partition, first, end)`` says whether the archive knows all of the offsets;
    it is called in the plan's thread, may block, and may raise any `BrokerdError`, or OSError.
    """

    number: int
    """Tells this version from any other that there was since the start; above 0."""
    covers: Callable[[int, int, int, int], bool]
    archived_lsn: int
    """The archive has all that the log had below."""
    kept_lsn: int
    """Segments that end above stay, because reads from them are quicker."""
    snapshot_lsn: int
    """Where the second-newest snapshot begins."""


@dataclass
class Staying:
    """Bytes of the sealed segments that an archive might let go, by what they wait for."""

    archive: int = 0
    """For the archive to get there."""
    kept: int = 0
    """For more log to follow."""
    snapshot: int = 0
    """For snapshots."""
    lacking: int = 0
    """For the archive to have what it should have."""
    lack: str | None = None
    """What that is, of one segment."""


class CoveragePlan:
    """Finds out which of some sealed ``segments`` can go, by :meth:`run` in a thread.

    Each of them was looked at by a `RemovalPlan` before; those all of whose records are removed are
    its own business.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        catalog: Catalog,
        segments: Sequence[Segment],
        starts: StartOffsets,
        topic_ids: Collection[int],
        coverage: Coverage,
    ) -> None:
        self._disk = disk
        self._path = path
        self._catalog = catalog
        self._segments = segments
        self._starts = starts
        self._topic_ids = topic_ids
        self._coverage = coverage
        self.staying = Staying()
        """What does not go, once the plan has run."""
        self.is_cut_short = False
        """Whether there are segments that the plan did not get to: `SPANS_MAX`."""
        self._found: list[tuple[Segment, Lack]] = []

    def remember(self) -> None:
        """Keep with the segments what the archive lacks of them; in the log's own thread."""
        for segment, lack in self._found:
            segment.lack = lack
        self._found.clear()

    def run(self) -> list[Removable]:
        """Read indexes' directories and ask the archive; blocks. The segments, oldest first.

        Raises DamagedData or OSError when an index can be neither read nor made again.
        """
        found: list[Removable] = []
        left = SPANS_MAX
        for segment in self._segments:
            if segment.kept_by is None or self._waits(segment):
                continue
            if left <= 0:
                self.is_cut_short = True
                break
            removable = self._look(segment)
            if removable is not None:
                found.append(removable)
                left -= len(removable.partitions)
        return found

    def _waits(self, segment: Segment) -> bool:
        """Whether a segment has to wait, whatever the archive has of it."""
        coverage, lack, size = self._coverage, segment.lack, segment.position
        if segment.end_lsn > coverage.archived_lsn:
            self.staying.archive += size
        elif segment.end_lsn > coverage.kept_lsn:
            self.staying.kept += size
        elif segment.end_lsn > coverage.snapshot_lsn:
            self.staying.snapshot += size
        elif (
            lack is not None
            and lack.number == coverage.number
            and self._needed(lack.span) == lack.span
        ):
            self._lacks(segment, lack)
        else:
            return False
        return True

    def _look(self, segment: Segment) -> Removable | None:
        """The segment if the archive has all that is not removed."""
        try:
            spans = list(read_spans(self._disk, self._path, self._catalog, segment))
        except RecordRemoved:  # it was deleted meanwhile
            return None
        kept = [needed for span in spans if (needed := self._needed(span)) is not None]
        lack = _first_lack(kept, self._coverage)
        if lack is not None:
            self._lacks(segment, lack)
            return None
        archived = [(span.topic_id, span.partition, span.end_offset) for span in kept]
        return Removable(segment, [span[:2] for span in spans], archived)

    def _needed(self, span: PartitionSpan) -> PartitionSpan | None:
        """A span without the offsets at its beginning that are removed; None if they all are."""
        if not is_kept(span, self._starts, self._topic_ids):
            return None
        start = self._starts.get(span[:2], 0)
        return span if start <= span.first_offset else span._replace(first_offset=start)

    def _lacks(self, segment: Segment, lack: Lack) -> None:
        self._found.append((segment, lack))
        self.staying.lacking += segment.position
        self.staying.lack = self.staying.lack or f"{segment.name}: {lack.problem}"


def _first_lack(spans: Iterable[PartitionSpan], coverage: Coverage) -> Lack | None:
    """The first of ``spans`` that the archive does not know all of, or cannot be asked for."""
    for span in spans:
        topic_id, partition, first, end, _, _ = span
        what = f"topic id {topic_id} partition {partition} offsets {first} to {end - 1}"
        try:
            if not coverage.covers(topic_id, partition, first, end):
                return Lack(coverage.number, span, f"the archive does not know {what}")
        except (BrokerdError, OSError) as error:
            return Lack(0, span, f"whether the archive knows {what} cannot be said: {error}")
    return None
