# Tests: tests/archive/test_rewrite.py
"""Writes files of the archive anew, with fewer records or several in one. No Spark.

Rows come in the order of the table, whatever the order of the files, and each once. What the files
covered stays covered, but for what `Trims` says. Files that are written are proved by reading them
back; those that they replace are not touched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from brokerd.archive.contract.layout import LAYOUTS, Layout, Range
from brokerd.archive.contract.ranges import merge_ranges
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.maintain.merge_sort import Source, in_order, read_drops
from brokerd.archive.parquet.reader import AHEAD_BYTES, ArchiveFile, open_file
from brokerd.archive.parquet.writer import FileInfo, FileWriter, verify_written
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store
from brokerd.errors import DamagedData


class Trims(NamedTuple):
    """Which offsets nobody has to know of any more, as far as some files are concerned."""

    next_topic_id: int = 0
    """A smaller id that is not ``live`` is that of a deleted topic."""
    live: frozenset[int] = frozenset()
    starts: Mapping[tuple[int, int], int] = {}
    """Start offsets above 0, by topic id and partition."""

    def is_deleted(self, topic_id: int) -> bool:
        """Whether the topic is gone."""
        return topic_id < self.next_topic_id and topic_id not in self.live

    def of_partition(self, topic_id: int, partition: int) -> Trims:
        """The same, for files of one partition."""
        start = self.starts.get((topic_id, partition), 0)
        live = self.live & {topic_id}
        return Trims(self.next_topic_id, live, {(topic_id, partition): start} if start else {})

    def kept(self, ranges: Iterable[Range]) -> list[Range]:
        """What has to stay covered."""
        found = []
        for one in ranges:
            if self.is_deleted(one.topic_id):
                continue
            first = max(one.first, self.starts.get(one[:2], 0))
            if first < one.end:
                found.append(one._replace(first=first))
        return found


class Unit(NamedTuple):
    """Files that are written anew together."""

    root: Place
    """Where the archive is."""
    table: str
    log_id: str
    paths: tuple[str, ...]
    """Relative to the table."""
    drops: Mapping[str, tuple[str, ...]] = {}
    """Files that say which rows of one go, by the one's path: `read_drops`."""
    trims: Trims = Trims()
    file_bytes: int = 1 << 62
    """Shared files are about so large at most."""
    own_bytes: int = 1 << 62
    """A partition of which there is so much gets a file of its own."""


class Rewritten(NamedTuple):
    """What became of a unit."""

    paths: tuple[str, ...]
    """Files that are to be removed from the table."""
    added: tuple[FileInfo, ...]
    """Those that take their place."""
    gone: dict[str, int]
    """Rows that went, by reason."""


class Refused(NamedTuple):
    """Why a unit is as it was: the disk has no room for it, or one of its files is damaged."""

    text: str


def rewrite(unit: Unit) -> Rewritten | Refused:
    """Write a unit anew."""
    try:
        return _rewrite(unit)
    except (DamagedData, ArchiveUnavailable) as error:
        return Refused(str(error))
    except OSError as error:
        return Refused(f"{error.filename or unit.root}: {error.strerror or error}")


def _rewrite(unit: Unit) -> Rewritten:
    layout = LAYOUTS[unit.table]
    table, store = unit.root / unit.table, open_store(unit.root)
    files = [open_file(table, path, ahead_bytes=AHEAD_BYTES) for path in unit.paths]
    gone: Counter[str] = Counter()
    drops = [read_drops(store, unit.drops.get(path, ())) for path in unit.paths]
    sources = [Source(file, layout, rows, gone) for file, rows in zip(files, drops, strict=True)]
    outputs = plan_outputs(files, unit)
    with _Outputs(table, layout, unit.log_id, outputs) as writing:
        for rows in in_order(sources, layout):
            writing.write(rows)
        added = writing.close()
    for info in added:
        verify_written(table, info)
    return Rewritten(unit.paths, tuple(added), dict(gone))


# -- Into which files they go --------------------------------------------------------------------


def ranges_of(file: ArchiveFile) -> list[Range]:
    """What a file covers."""
    return [Range(*numbers) for numbers in file.ranges.tolist()]


def plan_outputs(files: Sequence[ArchiveFile], unit: Unit) -> list[list[Range]]:
    """What each file covers that takes the place of some; none if nothing has to stay covered.

    A file of one partition has one range, a shared one has whole partitions.
    """
    kept = unit.trims.kept(merge_ranges(one for file in files for one in ranges_of(file)))
    sizes = _bytes_by_partition(files)
    outputs: list[list[Range]] = []
    shared: list[Range] = []
    shared_bytes = 0
    for partition, ranges in groupby(kept, key=lambda one: one[:2]):
        if sizes[partition] >= unit.own_bytes:
            outputs += [[one] for one in ranges]
            continue
        if not shared or shared_bytes + sizes[partition] > unit.file_bytes:
            shared, shared_bytes = [], 0
            outputs.append(shared)
        shared += ranges
        shared_bytes += sizes[partition]
    return outputs


def _bytes_by_partition(files: Sequence[ArchiveFile]) -> dict[tuple[int, int], int]:
    """About how much of some files is of each partition: as much as of the offsets they cover."""
    sizes: Counter[tuple[int, int]] = Counter()
    for file in files:
        ranges = ranges_of(file)
        offsets = sum(one.end - one.first for one in ranges)
        for one in ranges:
            sizes[one[:2]] += file.size * (one.end - one.first) // offsets
    return sizes


class _Outputs:
    """Files that are written, each row to the one that covers it. Leaves none if it is not closed.

    A file is complete, and takes no memory any more, when a row comes that lies above all of it.
    """

    def __init__(
        self, table: Place, layout: Layout, log_id: str, outputs: Sequence[Sequence[Range]]
    ) -> None:
        self._open = partial(FileWriter, table, layout, log_id)
        self._outputs = outputs
        every = sorted((one, at) for at, ranges in enumerate(outputs) for one in ranges)
        self._ranges = [one for one, _ in every]
        self._output_of = [at for _, at in every]
        self._last_of = {at: place for place, at in enumerate(self._output_of)}
        self._writers: dict[int, FileWriter] = {}
        self._done: dict[int, FileInfo] = {}

    def __enter__(self) -> _Outputs:
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self._writers.values():
            writer.abandon()

    def write(self, rows: pa.Table) -> None:
        """Add rows, which follow those before them."""
        if len(self._outputs) == 1:
            self._writer(0).write(rows)
            return
        for place, first, end in self._runs(rows):
            for at in [at for at in self._writers if self._last_of[at] < place]:
                self._close(at)
            self._writer(self._output_of[place]).write(rows.slice(first, end - first))

    def close(self) -> list[FileInfo]:
        """Complete all files, those without rows too."""
        for at in range(len(self._outputs)):
            if at not in self._done:
                self._close(at)
        return [self._done[at] for at in range(len(self._outputs))]

    def _writer(self, at: int) -> FileWriter:
        if at not in self._writers:
            self._writers[at] = self._open(self._outputs[at])
        return self._writers[at]

    def _close(self, at: int) -> None:
        self._done[at] = self._writer(at).close()
        del self._writers[at]

    def _runs(self, rows: pa.Table) -> Iterator[tuple[int, int, int]]:
        """Runs of rows of one file: the last range that they are of, first row, end."""
        topic_id, partition, offset = (
            rows[name].to_numpy() for name in ("topic_id", "partition", "offset")
        )
        changes = np.flatnonzero((np.diff(topic_id) != 0) | (np.diff(partition) != 0)) + 1
        start, before = 0, -1
        for first, end in pairwise([0, *changes.tolist(), len(rows)]):
            while first < end:
                key = (int(topic_id[first]), int(partition[first]), int(offset[first]))
                place = bisect_right(self._ranges, (*key, 1 << 63)) - 1
                if before >= 0 and self._output_of[place] != self._output_of[before]:
                    yield before, start, first
                    start = first
                before = place
                last = self._ranges[place].end
                first += max(1, int(np.searchsorted(offset[first:end], last)))
        yield before, start, len(rows)
