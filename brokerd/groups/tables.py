# Tests: tests/groups/test_tables.py, tests/groups/test_model.py
"""Tables from integers that are frozen at once, however large they are.

A small table is a dict, and freezing it copies the dict. From `LARGE` entries on it is a `Shards`:
many dicts, of which a frozen table and the live one share those that were not written to since.
Freezing then takes microseconds, and the first write to a shard after it copies that shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from itertools import chain
from typing import Any, TypeVar

LARGE = 65_536
"""Entries from which on a table is in shards."""
SHARD_COUNT = 1_024
NEIGHBOURS_SHIFT = 6
"""Neighbouring keys, which are written to one after the other, share a shard."""
_MASK = SHARD_COUNT - 1

Value = TypeVar("Value")
Table = MutableMapping[int, Value]


def grown(table: Table[Value]) -> Table[Value]:
    """The table itself, or its entries in shards when it has become large. O(LARGE), once."""
    return Shards(table) if type(table) is dict and len(table) >= LARGE else table


def frozen(table: Table[Value]) -> Mapping[int, Value]:
    """The entries as they are now; whatever happens to the table, they stay."""
    if isinstance(table, Shards):
        return table.frozen()
    return dict(table)


class Shards(MutableMapping[int, Value]):
    """A large table. A shard that a frozen copy knows is copied before it is written to."""

    __slots__ = ("_count", "_own", "_shards")

    def __init__(self, entries: Mapping[int, Value]) -> None:
        self._shards: list[dict[int, Value]] = [{} for _ in range(SHARD_COUNT)]
        for key, value in entries.items():
            self._shards[key >> NEIGHBOURS_SHIFT & _MASK][key] = value
        self._own = bytearray(b"\1") * SHARD_COUNT
        self._count = len(entries)

    def frozen(self) -> Mapping[int, Value]:
        """A copy that shares every shard."""
        copy: Shards[Value] = Shards.__new__(Shards)
        copy._shards = self._shards.copy()
        copy._own = bytearray(SHARD_COUNT)
        copy._count = self._count
        self._own = bytearray(SHARD_COUNT)
        return copy

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._shards)

    def __contains__(self, key: Any) -> bool:
        return key in self._shards[key >> NEIGHBOURS_SHIFT & _MASK]

    def items(self) -> Any:
        """(key, value) of each entry."""
        return chain.from_iterable([shard.items() for shard in self._shards])

    def __getitem__(self, key: int) -> Value:
        return self._shards[key >> NEIGHBOURS_SHIFT & _MASK][key]

    def get(self, key: int, default: Any = None) -> Any:
        """The value of ``key``, or ``default``."""
        return self._shards[key >> NEIGHBOURS_SHIFT & _MASK].get(key, default)

    def __setitem__(self, key: int, value: Value) -> None:
        at = key >> NEIGHBOURS_SHIFT & _MASK
        shard = self._shards[at] if self._own[at] else self._owned(key)
        if key not in shard:
            self._count += 1
        shard[key] = value

    def __delitem__(self, key: int) -> None:
        del self._owned(key)[key]
        self._count -= 1

    def pop(self, key: int, default: Any = None) -> Any:
        """Take out ``key``: its value, or ``default`` when it is not there."""
        at = key >> NEIGHBOURS_SHIFT & _MASK
        shard = self._shards[at]
        if key not in shard:
            return default
        if not self._own[at]:
            shard = self._owned(key)
        self._count -= 1
        return shard.pop(key)

    def _owned(self, key: int) -> dict[int, Value]:
        """The shard of ``key``, which no frozen copy shares."""
        at = key >> NEIGHBOURS_SHIFT & _MASK
        if not self._own[at]:
            self._shards[at] = self._shards[at].copy()
            self._own[at] = 1
        return self._shards[at]
