# Tests: tests/wal/test_deletion.py
"""Which segments hold nothing that anybody needs, and how they are deleted.

A record is removed when it lies below the start offset of its partition, or its topic is deleted. A
segment can go when all its records are removed and two snapshots hold whatever else it says. Which
segments that are is found out by :class:`RemovalPlan` in a thread, since it reads the directories
of indexes. Start offsets only grow and topics stay deleted, so what was found to be removed stays
so: a segment remembers the first partition that keeps it, and the next plan goes on from there.

Segments may go because of an archive, too: brokerd/wal/deletion/coverage.py.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from twisted.logger import Logger

from brokerd.errors import DamagedData
from brokerd.wal.catalog import Catalog
from brokerd.wal.committer import Committer
from brokerd.wal.deletion.deleted_ranges import LsnRange, record_deleted
from brokerd.wal.disk import Disk
from brokerd.wal.index_files import load_spans
from brokerd.wal.segment import Segment, index_name
from brokerd.walformat.index import PartitionSpan

StartOffsets = Mapping[tuple[int, int], int]
"""(topic id, partition) -> records below are removed. One that is not in it begins at 0."""


class Removable(NamedTuple):
    """A segment that can go, and the partitions its records were of."""

    segment: Segment
    partitions: Sequence[tuple[int, int]]
    archived: Sequence[tuple[int, int, int]] = ()
    """(topic id, partition, end offset) of records that are not removed: an archive has them."""

    @property
    def name(self) -> str:
        return self.segment.name

    @property
    def size(self) -> int:
        """Bytes of the segment's file."""
        return self.segment.position


def first_kept(
    spans: Iterable[PartitionSpan], starts: StartOffsets, topic_ids: Collection[int]
) -> tuple[int, PartitionSpan | None]:
    """The first of ``spans`` with a record that is not removed, and how many come before it.

    None if all records are removed. ``topic_ids`` are the topics that are not deleted.
    """
    count = 0
    for span in spans:
        if is_kept(span, starts, topic_ids):
            return count, span
        count += 1
    return count, None


def is_kept(span: PartitionSpan, starts: StartOffsets, topic_ids: Collection[int]) -> bool:
    """Whether a record of the span is not removed."""
    topic_id, partition, _, end_offset, _, _ = span
    return topic_id in topic_ids and end_offset > starts.get((topic_id, partition), 0)


def read_spans(
    disk: Disk, path: str, catalog: Catalog, segment: Segment, at: int = 0
) -> Iterator[PartitionSpan]:
    """The directory of a sealed segment's index, from the span ``at`` on; blocks.

    Raises DamagedData or OSError when the index can be neither read nor made again.
    """
    try:
        return load_spans(disk, path, segment, segment.end_lsn, at)
    except (DamagedData, FileNotFoundError):
        return islice(catalog.open(segment)[1].spans(), at, None)


class RemovalPlan:
    """Finds out which of some sealed ``segments`` can be deleted, by :meth:`run` in a thread.

    Then :meth:`remember` saves the next plan from reading the same again.
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

    def remember(self) -> None:
        """Keep with the segments how far the run got; in the log's own thread."""
        for segment, removed_spans, kept_by in self._progress:
            segment.removed_spans = removed_spans
            segment.kept_by = kept_by
        self._progress.clear()

    def run(self) -> list[Removable]:
        """Read the indexes' directories; blocks. The segments that can go, oldest first.

        Raises DamagedData or OSError when an index can be neither read nor made again.
        """
        found = []
        for segment in self._segments:
            spans = self._spans(segment, segment.removed_spans)
            more, kept_by = first_kept(spans, self._starts, self._topic_ids)
            self._progress.append((segment, segment.removed_spans + more, kept_by))
            if kept_by is None:
                found.append(Removable(segment, [span[:2] for span in self._spans(segment)]))
        return found

    def _spans(self, segment: Segment, at: int = 0) -> Iterator[PartitionSpan]:
        return read_spans(self._disk, self._path, self._catalog, segment, at)


Deleted = Callable[[int, Exception | None], None]


class Deleter:
    """Deletes segments in the background, one lot after the other.

    ``failed(what, error)`` is called when what is on record may not be on the disk, which is fatal
    as any failed sync; ``idle()`` when a lot is done.
    """

    _log = Logger()

    def __init__(
        self,
        disk: Disk,
        path: str,
        background: Committer,
        catalog: Catalog,
        failed: Callable[[str, Exception], None],
        idle: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._path = path
        self._background = background
        self._catalog = catalog
        self._failed = failed
        self._idle = idle
        self._lots: deque[tuple[list[Removable], Deleted]] = deque()
        self._replaced: list[str] = []
        self.busy = False
        """Whether segments are being deleted."""
        self.stopped = False
        """Set to have no more segments deleted than the one under way."""
        self.segments = 0
        """Segments deleted so far."""
        self.bytes = 0
        """Bytes of their files."""
        self.archived_segments = 0
        """Those of them that went because an archive has their records."""
        self.archived_bytes = 0

    def delete(self, removables: Sequence[Removable], done: Deleted) -> None:
        """Delete segments; ``done(count, error)`` tells how many are gone, and why not all."""
        self._lots.append(([] if self.stopped else list(removables), done))
        if not self.busy:
            self._next_lot()

    def _next_lot(self) -> None:
        self.busy = bool(self._lots)
        if not self._lots:
            self._idle()
            return
        lot, done = self._lots.popleft()
        left = deque(one for one in lot if not one.segment.deleted)
        ranges = [LsnRange(one.segment.first_lsn, one.segment.end_lsn) for one in left]
        count = len(left)
        if not left:
            done(0, None)
            self._next_lot()
            return

        def finish(error: Exception | None) -> None:
            done(count - len(left), error)
            self._next_lot()

        def recorded(result: OSError | None, error: Exception | None) -> None:
            if error is not None:
                self._failed("recording deleted segments failed", error)
            if error is not None or result is not None:
                finish(error or result)
            else:
                self._next(left, finish)

        self._background.submit(lambda: self._record(ranges), recorded)

    def _record(self, ranges: list[LsnRange]) -> OSError | None:
        """Put the ranges on record. An error to create a file is returned: nothing is done then."""
        try:
            self._replaced += record_deleted(self._disk, self._path, ranges)
        except OSError as error:
            return error
        self._disk.sync_directory(self._path)
        return None

    def _next(self, left: deque[Removable], finish: Callable[[Exception | None], None]) -> None:
        """Delete one segment a turn: the catalog forgets it first, so that no new read wants it."""
        if not left or self.stopped:
            self._background.submit(self._clean_up, lambda _, error: finish(error))
            return
        removable = left.popleft()
        self._catalog.remove(removable.segment, removable.partitions)

        def unlinked(_: object, error: Exception | None) -> None:
            if error is not None:
                self._log.warn(
                    "{name} cannot be deleted: {error}; it is tried again after the next start",
                    name=removable.name,
                    error=error,
                    event_id="segment-not-deleted",
                )
            else:
                self._count(removable)
            self._next(left, finish)

        self._background.submit(lambda: self._unlink(removable.segment), unlinked)

    def _count(self, removable: Removable) -> None:
        """Tell of a segment that is gone."""
        self.segments += 1
        self.bytes += removable.size
        why = "its records are removed"
        if removable.archived:
            self.archived_segments += 1
            self.archived_bytes += removable.size
            why = "the archive has its records"
        self._log.info(
            "{name} is deleted: {why}", name=removable.name, why=why, event_id="segment-deleted"
        )

    def _unlink(self, segment: Segment) -> None:
        with self._catalog.opening:  # nobody makes its index again meanwhile
            self._catalog.let_go(segment)
            for name in (index_name(segment.first_lsn), segment.name):
                self._disk.unlink(os.path.join(self._path, name))

    def _clean_up(self) -> None:
        """Delete the records that others replaced, which are durable."""
        replaced, self._replaced = self._replaced, []
        for name in replaced:
            self._disk.unlink(os.path.join(self._path, name))
        self._disk.sync_directory(self._path)
