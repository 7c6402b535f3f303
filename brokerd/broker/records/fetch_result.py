# Tests: tests/broker/test_fetch_result.py
"""The records of a fetch: rows of chunks, copied when they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from brokerd.broker.model.chunks import Rows
from brokerd.values import Columns, Record, Records


class FetchedRecords(Records):
    """Rows of several chunks, one after the other."""

    def __init__(self, *rows: Rows) -> None:
        self._rows: list[Rows] = []
        self._count = 0
        for one in rows:
            self.add(one)

    def add(self, rows: Rows) -> None:
        """Append the records of some rows."""
        if rows.offsets:
            self._rows.append(rows)
            self._count += len(rows.offsets)

    def columns(self) -> Columns:
        offsets: list[int] = []
        keys: list[bytes | None] = []
        values: list[bytes] = []
        for chunk, some, part in self._rows:
            offsets += some
            keys += chunk.keys[part]
            values += chunk.values[part]
        return Columns(offsets, _unless_none(keys), values)

    def runs(self) -> list[Columns]:
        return [
            Columns(some, _unless_none(chunk.keys[part]), chunk.values[part], chunk.value_size())
            for chunk, some, part in self._rows
        ]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(rows.records() for rows in self._rows)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return list(self)[index]
        at = index if index >= 0 else index + self._count
        for rows in self._rows:
            if 0 <= at < len(rows.offsets):
                return rows.cut(at, at + 1).records()[0]
            at -= len(rows.offsets)
        raise IndexError(f"{index} of {self._count} records")


def _unless_none(keys: Sequence[bytes | None]) -> Sequence[bytes | None] | None:
    """Return None if no record has a key, else the keys."""
    return None if keys.count(None) == len(keys) else keys
