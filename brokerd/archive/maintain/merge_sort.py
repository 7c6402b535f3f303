# Tests: tests/archive/test_rewrite.py
"""Rows of several files of a table in its order, each once, without those that go. No Spark."""

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
"""Topic id, partition and offset; in the table of events the LSN."""


# -- Rows that go --------------------------------------------------------------------------------

REASONS = ("deleted", "trimmed", "expired", "superseded", "tombstone")
"""Why a record goes: docs/archive-tables.rst."""


_DROPS = pa.schema([("row", pa.int64()), ("offset", pa.int64()), ("reason", pa.string())])


class Drops(NamedTuple):
    """Rows of a file that go."""

    rows: Integers
    """Their numbers in the file, in order, each once."""
    offsets: Integers
    """Their offsets, by which they are known again."""
    reasons: npt.NDArray[np.object_]


def read_drops(store: Store, paths: Iterable[str]) -> Drops:
    """Which rows of a file go, from files with ``row``, ``offset``, ``reason``.

    A row that is there more than once goes for the first of its reasons as `REASONS` has them.
    Raises as the store does, and DamagedData.
    """
    parts = [part for path in paths for part in PlainFileReader(store, path).read(_DROPS)]

    def every(name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.concatenate([np.zeros(0, dtype), *(part[name].to_numpy() for part in parts)])

    rows, reasons = every("row", np.int64), every("reason", np.object_)
    ranks = np.array([REASONS.index(reason) for reason in reasons], np.int64)
    order = np.lexsort((ranks, rows))
    rows, first = np.unique(rows[order], return_index=True)
    return Drops(rows, every("offset", np.int64)[order][first], reasons[order][first])


class Source:
    """A file, row group by row group, without the rows that go."""

    def __init__(self, file: ArchiveFile, layout: Layout, drops: Drops, gone: Counter[str]) -> None:
        self._file = file
        self._drops = drops
        self._gone = gone
        self._names = ("topic_id", "partition", "offset") if layout is RECORDS else ("lsn",)
        self._group = 0
        self._row = 0
        self.rows: pa.Table | None = None
        """Rows that were read and not taken yet, None if there are none."""
        self.first = self._key("first", 0) if len(file.groups) else None
        """The first key; None if it has no rows."""
        self.last: Key = ()
        """The last key that was read, whether its row goes or not."""

    def _key(self, end: str, group: int) -> Key:
        key: Key = self._file.groups[end][group].item()
        return key[-len(self._names) :]

    @property
    def is_read(self) -> bool:
        """Whether all of it was."""
        return self._group == len(self._file.groups)

    def fill(self) -> None:
        """Read on until there are rows to take, or no more."""
        while not self.rows and not self.is_read:
            rows = self._file.read_table([self._group])
            self.last = self._key("last", self._group)
            self.rows = rows.filter(pa.array(self._stays(rows)))
            self._group += 1
            self._row += len(rows)

    def _stays(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        drops = self._drops
        low, high = np.searchsorted(drops.rows, [self._row, self._row + len(rows)])
        places = drops.rows[low:high] - self._row
        if len(places) and (rows["offset"].to_numpy()[places] != drops.offsets[low:high]).any():
            raise DamagedData(f"{self._file.path} has other records than those looked at")
        self._gone.update(drops.reasons[low:high].tolist())
        stays = np.ones(len(rows), bool)
        stays[places] = False
        return stays

    def take(self, key: Key) -> pa.Table | None:
        """Rows up to a key, None if there are none."""
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


def in_order(sources: Sequence[Source], layout: Layout) -> Iterator[pa.Table]:
    """All rows of some files, in the order of the table, each once.

    Files may overlap. In memory is a row group of each file of which some rows come next.
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
    """Rows of several files, sorted; of rows with one key, only the first."""
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
