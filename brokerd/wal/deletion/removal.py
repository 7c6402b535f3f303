# Tests: tests/wal/test_deletion.py
"""Finds the segments whose records are all removed.

A record is removed if it lies below the start offset of its partition, or if its topic is deleted.
A segment can go when its records are removed and two snapshots hold the rest of its content.
:class:`RemovalPlan` reads the directories of indexes in a thread. Start offsets only grow, and a
deleted topic stays deleted. So a segment remembers the first partition that still has records, and
the next plan continues there.

brokerd/wal/deletion/coverage.py finds the segments that can go because of an archive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from brokerd.errors import DamagedData
from brokerd.wal.catalog import Catalog
from brokerd.wal.disk import Disk
from brokerd.wal.index_files import load_spans
from brokerd.wal.segment import Segment
from brokerd.walformat.index import PartitionSpan

StartOffsets = Mapping[tuple[int, int], int]
"""(topic id, partition) -> records below are removed. 0 for partitions that are not in it."""


class RemovableSegment(NamedTuple):
    """A segment that can go, with the partitions in it."""

    segment: Segment
    partitions: Sequence[tuple[int, int]]
    archived: Sequence[tuple[int, int, int]] = ()
    """(topic id, partition, end offset) of records that only an archive will have."""

    @property
    def name(self) -> str:
        return self.segment.name

    @property
    def size(self) -> int:
        """Bytes of the segment's file."""
        return self.segment.position


def first_with_records(
    spans: Iterable[PartitionSpan], starts: StartOffsets, topic_ids: Collection[int]
) -> tuple[int, PartitionSpan | None]:
    """Return the first span with records that are not removed, and the number of spans before it.

    None if all records are removed. ``topic_ids`` are the topics that are not deleted.
    """
    count = 0
    for span in spans:
        if has_records(span, starts, topic_ids):
            return count, span
        count += 1
    return count, None


def has_records(span: PartitionSpan, starts: StartOffsets, topic_ids: Collection[int]) -> bool:
    """Whether a span has a record that is not removed."""
    topic_id, partition, _, end_offset, _, _ = span
    return topic_id in topic_ids and end_offset > starts.get((topic_id, partition), 0)


def read_spans(
    disk: Disk, path: str, catalog: Catalog, segment: Segment, at: int = 0
) -> Iterator[PartitionSpan]:
    """Return the directory of a sealed segment's index, from span ``at`` on. Blocks.

    Raises DamagedData or OSError if the index can be neither read nor made again.
    """
    try:
        return load_spans(disk, path, segment, segment.end_lsn, at)
    except (DamagedData, FileNotFoundError):
        return islice(catalog.open(segment)[1].spans(), at, None)


class RemovalPlan:
    """Finds which of some sealed ``segments`` can be deleted.

    :meth:`run` runs in a thread. Then :meth:`remember` keeps its progress for the next plan.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        catalog: Catalog,
        segments: Sequence[Segment],
        starts: StartOffsets,
        topic_ids: Collection[int],
    ) -> None:
        self._disk = disk
        self._path = path
        self._catalog = catalog
        self._segments = segments
        self._starts = starts
        self._topic_ids = topic_ids
        self._progress: list[tuple[Segment, int, PartitionSpan | None]] = []

    def run(self) -> list[RemovableSegment]:
        """Return the segments that can go, oldest first. Reads directories of indexes, and blocks.

        Raises DamagedData or OSError if an index can be neither read nor made again.
        """
        found = []
        for segment in self._segments:
            spans = self._spans(segment, segment.removed_span_count)
            more, kept_span = first_with_records(spans, self._starts, self._topic_ids)
            count = segment.removed_span_count + more
            if kept_span is None:
                # All spans again: an index that was made again may lack some of the earlier ones.
                every = list(self._spans(segment))
                count, kept_span = first_with_records(every, self._starts, self._topic_ids)
                if kept_span is None:
                    found.append(RemovableSegment(segment, [span[:2] for span in every]))
            self._progress.append((segment, count, kept_span))
        return found

    def remember(self) -> None:
        """Keep the progress of the run with the segments. Call it in the reactor's thread."""
        for segment, removed_span_count, kept_span in self._progress:
            segment.removed_span_count = removed_span_count
            segment.kept_span = kept_span
        self._progress.clear()

    def _spans(self, segment: Segment, at: int = 0) -> Iterator[PartitionSpan]:
        return read_spans(self._disk, self._path, self._catalog, segment, at)
