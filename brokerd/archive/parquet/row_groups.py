# Tests: tests/archive/test_writer.py
"""Cuts rows into row groups, and checks their order.

docs/archive-format.rst, section "Files", limits a row group.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from brokerd.archive.contract.layout import RECORDS, Layout, Range
from brokerd.archive.parquet.digest import byte_lengths

GROUP_ROWS = 8192
GROUP_BYTES = 8 << 20
"""The largest size of keys, values and metadata of a row group with several rows."""

Integers = npt.NDArray[np.int64]
Key = tuple[int, int, int]
"""Topic id, partition and offset; in the table of events 0, 0 and the LSN."""


def content_lengths(rows: pa.Table | pa.RecordBatch) -> Integers:
    """Return the bytes of key, value and metadata of each row. Each column must be one chunk."""
    total = np.zeros(len(rows), np.int64)
    for name in ("key", "value", "metadata"):
        column = rows[name].chunk(0) if isinstance(rows, pa.Table) else rows[name]
        if column.null_count < len(column):
            lengths = byte_lengths(column)
            if column.null_count:
                lengths = lengths * column.is_valid().to_numpy(zero_copy_only=False)
            total += lengths
    return total


class RowGroup(NamedTuple):
    """A complete row group."""

    table: pa.Table
    """A table with one chunk per column."""
    content: int
    """Bytes of keys, values and metadata."""


class RowGroupBuilder:
    """Collects rows into row groups."""

    def __init__(self, schema: pa.Schema, layout: Layout) -> None:
        self._schema = schema
        self._has_content = layout is RECORDS
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[RowGroup]:
        """Add rows, and yield the row groups that become complete."""
        sizes = content_lengths(batch) if self._has_content else np.zeros(len(batch), np.int64)
        ends = np.cumsum(sizes)
        at, before = 0, 0
        while at < len(batch):
            fit = int(np.searchsorted(ends, before + GROUP_BYTES - self._bytes, "right")) - at
            take = min(fit, GROUP_ROWS - self._rows, len(batch) - at)
            if take <= 0 and self._rows:
                yield self._group()
                continue
            take = max(take, 1)
            self._waiting.append(batch.slice(at, take))
            at += take
            self._rows += take
            self._bytes += int(ends[at - 1]) - before
            before = int(ends[at - 1])

    def finish(self) -> RowGroup | None:
        """Return the last row group, or None if no rows are left."""
        return self._group() if self._rows else None

    def _group(self) -> RowGroup:
        table = pa.Table.from_batches(self._waiting, self._schema).combine_chunks()
        group = RowGroup(table, self._bytes)
        self._waiting, self._rows, self._bytes = [], 0, 0
        return group


class OrderChecker:
    """Checks that rows are ordered, unique, and in the covered ranges of their file."""

    def __init__(self, ranges: Sequence[Range], layout: Layout) -> None:
        self._layout = layout
        self._ranges = ranges
        self._last: Key = (-1, -1, -1)

    def check(self, table: pa.Table) -> tuple[Key, Key]:
        """Check the next row group, and return its first and its last key.

        Raises ValueError for rows out of order or outside the covered ranges.
        """
        names = ("topic_id", "partition", "offset")
        if self._layout is not RECORDS:
            names = ("lsn", "seq", "seq")
        columns = [table[name].chunk(0).to_numpy().astype(np.int64) for name in names]
        if not self._rises(columns):
            raise ValueError(f"rows of the table {self._layout.name} are not in order")
        if self._layout is not RECORDS:
            zeros = np.zeros(len(table), np.int64)
            columns = [zeros, zeros, columns[0]]
        if not self._covered(columns):
            raise ValueError(f"rows of the table {self._layout.name} are in no covered range")
        return _key(columns, 0), _key(columns, -1)

    def _rises(self, columns: list[Integers]) -> bool:
        """Return whether each key is above the key before it."""
        steps = [np.diff(c, prepend=last) for c, last in zip(columns, self._last, strict=True)]
        self._last = _key(columns, -1)
        first, second, third = steps
        above = (first > 0) | ((first == 0) & ((second > 0) | ((second == 0) & (third > 0))))
        return bool(above.all())

    def _covered(self, columns: list[Integers]) -> bool:
        """Return whether each row is in a range. Columns are topic ids, partitions, offsets."""
        topic_id, partition, offset = columns
        changes = np.flatnonzero((np.diff(topic_id) != 0) | (np.diff(partition) != 0)) + 1
        return all(
            self._run_is_covered(int(topic_id[first]), int(partition[first]), offset[first:end])
            for first, end in pairwise([0, *changes.tolist(), len(offset)])
        )

    def _run_is_covered(self, topic_id: int, partition: int, offsets: Integers) -> bool:
        at = bisect_right(self._ranges, (topic_id, partition, int(offsets[0]), 1 << 63)) - 1
        while at in range(len(self._ranges)):
            found = self._ranges[at]
            first = int(offsets[0])
            if found[:2] != (topic_id, partition) or not found.first <= first < found.end:
                return False
            inside = int(np.searchsorted(offsets, found.end))
            if inside == len(offsets):
                return True
            offsets = offsets[inside:]
            at += 1
        return False


def _key(columns: list[Integers], row: int) -> Key:
    topic_id, partition, offset = (int(column[row]) for column in columns)
    return topic_id, partition, offset
