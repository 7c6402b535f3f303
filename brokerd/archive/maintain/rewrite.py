# Tests: tests/archive/test_rewrite.py
"""Rewrites files of the archive: merges them, and drops rows. No Spark.

Rows are written in the order of the table, each once. The new files cover the offsets of the old
files, except for offsets outside the retention bounds. A rewrite verifies new files and keeps old
files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from brokerd.archive.cluster.attempts import retry_later, task_error_text
from brokerd.archive.contract.layout import LAYOUTS, Layout, Range
from brokerd.archive.contract.ranges import merge_ranges
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.maintain.merge_sort import DroppedRows, Source, merge_sorted, read_drops
from brokerd.archive.maintain.retention_bounds import RetentionBounds
from brokerd.archive.parquet.reader import AHEAD_BYTES, ArchiveFile, open_file
from brokerd.archive.parquet.writer import FileInfo, FileWriter, verify_written
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store
from brokerd.errors import DamagedData


class RewriteUnit(NamedTuple):
    """Files to rewrite together."""

    root: Place
    """The archive."""
    table: str
    log_id: str
    paths: tuple[str, ...]
    """Paths relative to the table."""
    drops: Mapping[str, tuple[str, ...]] = {}
    """Files with the dropped rows of each file, by the file's path: `read_drops`."""
    bounds: RetentionBounds = RetentionBounds()
    file_bytes: int = 1 << 62
    """The approximate size limit of a shared file."""
    own_bytes: int = 1 << 62
    """A partition of at least this size gets its own file."""


class RewriteResult(NamedTuple):
    """The result of rewriting a unit."""

    paths: tuple[str, ...]
    """Files to remove from the table."""
    added: tuple[FileInfo, ...]
    """New files to add."""
    removed: dict[str, int]
    """The number of dropped rows, by reason."""


class RewriteFailure(NamedTuple):
    """The reason why a unit was not rewritten: the disk is full, or a file is damaged."""

    text: str


def rewrite(unit: RewriteUnit) -> RewriteResult | RewriteFailure:
    """Rewrite a unit, or return the reason for a failure."""
    try:
        return _rewrite(unit)
    except (DamagedData, ArchiveUnavailable, OSError) as error:
        retry_later(error)
        return RewriteFailure(task_error_text(error))


def _rewrite(unit: RewriteUnit) -> RewriteResult:
    store = open_store(unit.root)
    return rewrite_without(
        unit, [read_drops(store, unit.drops.get(path, ())) for path in unit.paths]
    )


def rewrite_without(unit: RewriteUnit, drops: Sequence[DroppedRows]) -> RewriteResult:
    """Rewrite a unit without some rows, and verify the new files.

    :param drops: the dropped rows of each file of the unit.
    :raises DamagedData: a file is damaged, or a new file does not have the rows.
    :raises ArchiveUnavailable: the disk or the server reports an error.
    :raises OSError: a write failed.
    """
    layout = LAYOUTS[unit.table]
    table = unit.root / unit.table
    files = [open_file(table, path, ahead_bytes=AHEAD_BYTES) for path in unit.paths]
    removed: Counter[str] = Counter()
    sources = [Source(file, layout, rows, removed) for file, rows in zip(files, drops, strict=True)]
    outputs = plan_outputs(files, unit)
    with _Outputs(table, layout, unit.log_id, outputs) as writer:
        for rows in merge_sorted(sources, layout):
            writer.write(rows)
        added = writer.close()
    for info in added:
        verify_written(table, info)
    return RewriteResult(unit.paths, tuple(added), dict(removed))


# -- Output files --------------------------------------------------------------------------------


def ranges_of(file: ArchiveFile) -> list[Range]:
    """Return the ranges that a file covers."""
    return [Range(*numbers) for numbers in file.ranges.tolist()]


def plan_outputs(files: Sequence[ArchiveFile], unit: RewriteUnit) -> list[list[Range]]:
    """Return the ranges of each new file. Return no file if no range must stay covered.

    A file of one partition has one range. A shared file has whole partitions.
    """
    retained = unit.bounds.retained(merge_ranges(one for file in files for one in ranges_of(file)))
    sizes = _bytes_by_partition(files)
    outputs: list[list[Range]] = []
    shared: list[Range] = []
    shared_bytes = 0
    for partition, ranges in groupby(retained, key=lambda one: one[:2]):
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
    """Estimate the bytes of each partition in some files by its share of their offsets."""
    sizes: Counter[tuple[int, int]] = Counter()
    for file in files:
        ranges = ranges_of(file)
        offsets = sum(one.end - one.first for one in ranges)
        for one in ranges:
            sizes[one[:2]] += file.size * (one.end - one.first) // offsets
    return sizes


class _Outputs:
    """Writes each row to the file that covers it. Without `close` it leaves no file.

    The first row above all ranges of a file completes the file and frees its memory.
    """

    def __init__(
        self, table: Place, layout: Layout, log_id: str, outputs: Sequence[Sequence[Range]]
    ) -> None:
        self._open = partial(FileWriter, table, layout, log_id)
        self._outputs = outputs
        every = sorted((one, at) for at, ranges in enumerate(outputs) for one in ranges)
        self._ranges = [one for one, _ in every]
        self._output_of = [at for _, at in every]
        self._last_of = {at: index for index, at in enumerate(self._output_of)}
        self._writers: dict[int, FileWriter] = {}
        self._done: dict[int, FileInfo] = {}

    def __enter__(self) -> _Outputs:
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self._writers.values():
            writer.abandon()

    def write(self, rows: pa.Table) -> None:
        """Append rows. They follow the rows of earlier calls."""
        if len(self._outputs) == 1:
            self._writer(0).write(rows)
            return
        for index, first, end in self._runs(rows):
            for at in [at for at in self._writers if self._last_of[at] < index]:
                self._close(at)
            self._writer(self._output_of[index]).write(rows.slice(first, end - first))

    def close(self) -> list[FileInfo]:
        """Complete all files, even files without rows, and return them."""
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
        """Yield a run of rows for each file: the index of its last range, first row, end."""
        topic_id, partition, offset = (
            rows[name].to_numpy() for name in ("topic_id", "partition", "offset")
        )
        changes = np.flatnonzero((np.diff(topic_id) != 0) | (np.diff(partition) != 0)) + 1
        start, before = 0, -1
        for first, end in pairwise([0, *changes.tolist(), len(rows)]):
            while first < end:
                key = (int(topic_id[first]), int(partition[first]), int(offset[first]))
                index = bisect_right(self._ranges, (*key, 1 << 63)) - 1
                if before >= 0 and self._output_of[index] != self._output_of[before]:
                    yield before, start, first
                    start = first
                before = index
                last = self._ranges[index].end
                first += max(1, int(np.searchsorted(offset[first:end], last)))
        yield before, start, len(rows)
