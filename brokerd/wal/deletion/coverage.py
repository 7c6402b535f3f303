# Tests: tests/wal/test_deletion.py, tests/broker/test_segment_cleaner.py
"""Finds the segments that can go because an archive has their records.

An archive may be taken away, so the log does not remember what an archive has. It remembers what
one version of an archive lacks: that version is not asked for the segment again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.errors import BrokerdError, RecordRemoved
from brokerd.wal.catalog import Catalog
from brokerd.wal.deletion.removal import (
    RemovableSegment,
    StartOffsets,
    has_records,
    read_spans,
)
from brokerd.wal.disk import Disk
from brokerd.wal.segment import ArchiveGap, Segment
from brokerd.walformat.index import PartitionSpan

SPANS_MAX = 100_000
"""A plan ends when its segments have so many partitions in all, to bound its memory."""


class Coverage(NamedTuple):
    """The content of a version of an archive, and the segments that may go because of it.

    ``covers(topic_id, partition, first, end)`` tells whether the archive has all of the offsets. It
    is called in the plan's thread, may block, and may raise any `BrokerdError`, or OSError.
    """

    number: int
    """The version's number since the start, above 0."""
    covers: Callable[[int, int, int, int], bool]
    archived_lsn: int
    """The archive has all of the log below."""
    kept_lsn: int
    """Segments that end above stay, because reads from the log are quicker."""
    snapshot_lsn: int
    """Where the second-newest snapshot begins."""
    bounds_lsn: int
    """Segments that end above stay, because the file of bounds lacks topics that they create."""


@dataclass
class RetainedBytes:
    """Bytes of sealed segments that stay although an archive is in use, by their reason."""

    archive: int = 0
    """The archive has not reached them."""
    kept: int = 0
    """They are among the newest, which stay."""
    snapshot: int = 0
    """The older snapshot still needs them."""
    bounds: int = 0
    """The last written bounds do not cover them."""
    lacking: int = 0
    """The archive lacks records of them."""
    lack: str | None = None
    """Describes records that the archive lacks, for one of these segments."""


class CoveragePlan:
    """Finds which of some sealed ``segments`` can go because of an archive.

    :meth:`run` runs in a thread, after a `RemovalPlan` for the same segments. It skips segments
    whose records are all removed. Then :meth:`remember` stores the gaps that it found.
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
        self.retained = RetainedBytes()
        """The bytes that stay, once the plan has run."""
        self.is_cut_short = False
        """Whether the plan left out segments because of `SPANS_MAX`."""
        self._gaps: list[tuple[Segment, ArchiveGap]] = []

    def run(self) -> list[RemovableSegment]:
        """Return the segments that can go, oldest first. Reads indexes, asks the archive, blocks.

        Raises DamagedData or OSError if an index can be neither read nor made again.
        """
        found: list[RemovableSegment] = []
        left = SPANS_MAX
        for segment in self._segments:
            if segment.kept_span is None or self._has_to_wait(segment):
                continue
            if left <= 0:
                self.is_cut_short = True
                break
            removable = self._ask(segment)
            if removable is not None:
                found.append(removable)
                left -= len(removable.partitions)
        return found

    def remember(self) -> None:
        """Store the archive's gaps in the segments. Call it in the reactor's thread."""
        for segment, gap in self._gaps:
            segment.archive_gap = gap
        self._gaps.clear()

    def _has_to_wait(self, segment: Segment) -> bool:
        """Whether a segment stays without a question to the archive."""
        coverage, gap, size = self._coverage, segment.archive_gap, segment.position
        if segment.end_lsn > coverage.archived_lsn:
            self.retained.archive += size
        elif segment.end_lsn > coverage.kept_lsn:
            self.retained.kept += size
        elif segment.end_lsn > coverage.snapshot_lsn:
            self.retained.snapshot += size
        elif segment.end_lsn > coverage.bounds_lsn:
            self.retained.bounds += size
        elif (
            gap is not None
            and gap.number == coverage.number
            and self._kept_part(gap.span) == gap.span
        ):
            self._add_gap(segment, gap)
        else:
            return False
        return True

    def _ask(self, segment: Segment) -> RemovableSegment | None:
        """Return the segment if the archive has all records that are not removed."""
        try:
            spans = list(read_spans(self._disk, self._path, self._catalog, segment))
        except RecordRemoved:  # the segment was deleted during the plan
            return None
        kept = [part for span in spans if (part := self._kept_part(span)) is not None]
        gap = _first_gap(kept, self._coverage)
        if gap is not None:
            self._add_gap(segment, gap)
            return None
        archived = [(span.topic_id, span.partition, span.end_offset) for span in kept]
        return RemovableSegment(segment, [span[:2] for span in spans], archived)

    def _kept_part(self, span: PartitionSpan) -> PartitionSpan | None:
        """Return a span without the removed records at its beginning, None if all are removed."""
        if not has_records(span, self._starts, self._topic_ids):
            return None
        start = self._starts.get(span[:2], 0)
        return span if start <= span.first_offset else span._replace(first_offset=start)

    def _add_gap(self, segment: Segment, gap: ArchiveGap) -> None:
        self._gaps.append((segment, gap))
        self.retained.lacking += segment.position
        self.retained.lack = self.retained.lack or f"{segment.name}: {gap.problem}"


def _first_gap(spans: Iterable[PartitionSpan], coverage: Coverage) -> ArchiveGap | None:
    """Return the first of ``spans`` that the archive lacks a part of, or cannot be asked for."""
    for span in spans:
        topic_id, partition, first, end, _, _ = span
        what = f"topic id {topic_id} partition {partition} offsets {first} to {end - 1}"
        try:
            if not coverage.covers(topic_id, partition, first, end):
                return ArchiveGap(coverage.number, span, f"the archive does not know {what}")
        except (BrokerdError, OSError) as error:
            return ArchiveGap(0, span, f"whether the archive knows {what} cannot be said: {error}")
    return None
