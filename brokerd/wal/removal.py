# Tests: tests/wal/test_deletion.py, tests/broker/test_sweep.py
"""Which segments hold nothing that anybody needs, and how they are deleted.

A record is removed when it lies below the start offset of its partition, or its topic is deleted. A
segment can go when all its records are removed, or an archive has them, and two snapshots hold
whatever else it says. Which segments that are is found out by :class:`RemovalPlan` in a thread,
since it reads the directories of indexes.

Start offsets only grow and topics stay deleted, so what was found to be removed stays so: a segment
remembers the first partition that keeps it, and the next plan goes on from there. An archive may be
taken away. So nothing is remembered of what it has; what one version of it lacks, it lacks for
good, so the segment is not asked for again before there is another.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from twisted.logger import Logger

from brokerd.errors import BrokerdError, DamagedData
from brokerd.wal.catalog import Catalog, Lack, Segment, index_name
from brokerd.wal.committer import Committer
from brokerd.wal.deleted import LsnRange, record_deleted
from brokerd.wal.disk import Disk
from brokerd.wal.recovery import read_directory
from brokerd.walindex import PartitionSpan, iter_spans

StartOffsets = Mapping[tuple[int, int], int]
"""(topic id, partition) -> records below are removed. One that is not in it begins at 0."""


SPANS_MAX = 100_000
"""A plan ends when what it found has so many partitions, counted for each segment: memory."""


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


class RemovalPlan:
    """Finds out which of some sealed ``segments`` can be deleted, by :meth:`run` in a thread."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        catalog: Catalog,
        segments: Sequence[Segment],
        starts: StartOffsets,
        topic_ids: Collection[int],
        coverage: Coverage | None = None,
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

    def run(self) -> list[Removable]:
        """Read the indexes' directories; blocks. The segments that can go, oldest first.

        Raises DamagedData or OSError when an index can be neither read nor made again.
        """
        found: list[Removable] = []
        left = SPANS_MAX
        for segment in self._segments:
            if left <= 0:
                self.is_cut_short = True
                break
            removable = self._removable(segment)
            if removable is not None:
                found.append(removable)
                left -= len(removable.partitions)
        return found

    def _removable(self, segment: Segment) -> Removable | None:
        """The segment if it can go."""
        if segment.kept_by is None or not self._is_kept(segment.kept_by):
            spans = self._spans(segment, segment.removed_spans)
            more, segment.kept_by = first_kept(spans, self._starts, self._topic_ids)
            segment.removed_spans += more
        if segment.kept_by is None:
            return Removable(segment, [span[:2] for span in self._spans(segment)])
        if self._coverage is None or self._waits(segment, self._coverage):
            return None
        return self._archived(segment, self._coverage)

    def _is_kept(self, span: PartitionSpan) -> bool:
        return is_kept(span, self._starts, self._topic_ids)

    def _needed(self, span: PartitionSpan) -> PartitionSpan:
        """A span without the offsets at its beginning that are removed."""
        start = self._starts.get(span[:2], 0)
        return span if start <= span.first_offset else span._replace(first_offset=start)

    def _waits(self, segment: Segment, coverage: Coverage) -> bool:
        """Whether a segment has to wait, whatever the archive has of it."""
        lack, size = segment.lack, segment.position
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

    def _archived(self, segment: Segment, coverage: Coverage) -> Removable | None:
        """The segment if the archive has all that is not removed."""
        spans = list(self._spans(segment))
        kept = [self._needed(span) for span in spans if self._is_kept(span)]
        lack = _first_lack(kept, coverage)
        if lack is not None:
            self._lacks(segment, lack)
            return None
        archived = [(span.topic_id, span.partition, span.end_offset) for span in kept]
        return Removable(segment, [span[:2] for span in spans], archived)

    def _lacks(self, segment: Segment, lack: Lack) -> None:
        segment.lack = lack
        self.staying.lacking += segment.position
        self.staying.lack = self.staying.lack or f"{segment.name}: {lack.problem}"

    def _spans(self, segment: Segment, at: int = 0) -> Iterator[PartitionSpan]:
        try:
            directory = read_directory(self._disk, self._path, segment, segment.end_lsn)
            return iter_spans(*directory, at)
        except (DamagedData, FileNotFoundError):
            return islice(self._catalog.open(segment)[1].spans(), at, None)


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
