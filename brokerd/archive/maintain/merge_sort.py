# Tests: tests/archive/test_rewrite.py
"""Merges the rows of several files in the table's order, without dropped rows. No Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from brokerd.archive.contract.layout import RECORDS, Layout
from brokerd.archive.parquet.plain_file import PlainFileReader
from brokerd.archive.parquet.reader import ArchiveFile
from brokerd.archive.storage.store import Store
from brokerd.errors import DamagedData

Integers = npt.NDArray[np.int64]
Key = tuple[int, ...]
"""Topic id, partition and offset; the LSN in the table of events."""


# -- Dropped rows --------------------------------------------------------------------------------

REASONS = ("deleted", "trimmed", "expired", "superseded", "tombstone")
"""The reasons to remove a record: docs/archive-tables.rst."""


_DROPS = pa.schema([("row", pa.int64()), ("offset", pa.int64()), ("reason", pa.string())])


class DroppedRows(NamedTuple):
    """Rows of a file to drop."""

    rows: Integers
    """Their numbers in the file, ascending and unique."""
    offsets: Integers
    """Their offsets, to check that the file has not changed."""
    reasons: npt.NDArray[np.object_]


def read_drops(store: Store, paths: Iterable[str]) -> DroppedRows:
    """Read the dropped rows of a file from files with ``row``, ``offset``, ``reason``.

    A row with several reasons gets the first in the order of `REASONS`. Raises the errors of the
    store, and DamagedData.
    """
    parts = [part for path in paths for part in PlainFileReader(store, path).read(_DROPS)]

    def every(name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.concatenate([np.zeros(0, dtype), *(part[name].to_numpy() for part in parts)])

    rows, reasons = every("row", np.int64), every("reason", np.object_)
    ranks = np.array([REASONS.index(reason) for reason in reasons], np.int64)
    order = np.lexsort((ranks, rows))
    rows, first = np.unique(rows[order], return_index=True)
    return DroppedRows(rows, every("offset", np.int64)[order][first], reasons[order][first])


class Source:
    """A file that is read row group by row group, without its dropped rows."""

    def __init__(
        self, file: ArchiveFile, layout: Layout, drops: DroppedRows, removed: Counter[str]
    ) -> None:
        self._file = file
        self._drops = drops
        self._removed = removed
        self._names = ("topic_id", "partition", "offset") if layout is RECORDS else ("lsn",)
        self._group = 0
        self._row = 0
        self.rows: pa.Table | None = None
        """Rows that were read and not taken yet, or None."""
        self.first = self._key("first", 0) if len(file.groups) else None
        """The first key, or None if the file has no rows."""
        self.last: Key = ()
        """The last key that was read. Its row may be dropped."""

    def _key(self, end: str, group: int) -> Key:
        key: Key = self._file.groups[end][group].item()
        return key[-len(self._names) :]

    @property
    def is_read(self) -> bool:
        """Return whether the whole file was read."""
        return self._group == len(self._file.groups)

    def fill(self) -> None:
        """Read row groups until rows can be taken, or the file ends. Raises DamagedData."""
        while not self.rows and not self.is_read:
            rows = self._file.read_table([self._group])
            self.last = self._key("last", self._group)
            self.rows = rows.filter(pa.array(self._retained(rows)))
            self._group += 1
            self._row += len(rows)

    def _retained(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        drops = self._drops
        low, high = np.searchsorted(drops.rows, [self._row, self._row + len(rows)])
        dropped = drops.rows[low:high] - self._row
        if len(dropped) and (rows["offset"].to_numpy()[dropped] != drops.offsets[low:high]).any():
            raise DamagedData(f"{self._file.path} changed since its records were examined")
        self._removed.update(drops.reasons[low:high].tolist())
        mask = np.ones(len(rows), bool)
        mask[dropped] = False
        return mask

    def take(self, key: Key) -> pa.Table | None:
        """Take the rows up to a key (inclusive). Return None if no such row is left."""
        rows = self.rows
        if not rows:
            return None
        above = np.zeros(len(rows), bool)
        equal = np.ones(len(rows), bool)
        for name, number in zip(self._names, key, strict=True):
            column = rows[name].to_numpy()
            above |= equal & (column > number)
            equal &= column == number
        count = len(rows) - int(above.sum())
        self.rows = rows.slice(count) if count < len(rows) else None
        return rows.slice(0, count) if count else None


def merge_sorted(sources: Sequence[Source], layout: Layout) -> Iterator[pa.Table]:
    """Yield the rows of files in the order of the table, each once.

    Files may overlap. Memory holds a row group of each file that has the next rows.
    """
    waiting = [
        one
        for _, _, one in sorted(
            (one.first, at, one) for at, one in enumerate(sources) if one.first is not None
        )
    ]
    active: list[Source] = []
    while waiting or active:
        if not active:
            active.append(waiting.pop(0))
        for one in active:
            one.fill()
        more = [one.last for one in active if not one.is_read]
        key = min(more) if more else max(one.last for one in active)
        if waiting and (waiting[0].first or ()) <= key:
            active.append(waiting.pop(0))
            continue
        parts = [part for one in active if (part := one.take(key)) is not None]
        if parts:
            yield _sorted(parts, layout)
        active = [one for one in active if one.rows or not one.is_read]


def _sorted(parts: Sequence[pa.Table], layout: Layout) -> pa.Table:
    """Sort the rows of several files. Of rows with equal keys keep the first."""
    if len(parts) == 1:
        return parts[0]
    rows = pa.concat_tables(parts).combine_chunks()
    names = ("topic_id", "partition", "offset") if layout is RECORDS else ("lsn", "seq")
    keys = np.stack([rows[name].to_numpy().astype(np.int64) for name in names])
    order = np.lexsort(keys[::-1])
    keys = keys[:, order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (np.diff(keys, axis=1) != 0).any(axis=0)
    return rows.take(pa.array(order[is_new])).combine_chunks()
