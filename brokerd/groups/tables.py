# Tests: tests/groups/test_tables.py, tests/groups/test_model.py
"""Tables from integers that are frozen at once, however large they are.

A small table is a dict, and freezing it copies the dict. From `LARGE` entries on it is a `Shards`:
many dicts, of which a frozen table and the live one share those that were not written to since.
Freezing then takes less than a millisecond, and the first write to a shard after it copies that
shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from itertools import chain
from typing import Any, TypeVar
from weakref import ref

LARGE = 65_536
"""Entries from which on a table is in shards."""
SHARD_COUNT = 1_024
NEIGHBOURS_SHIFT = 6
"""Neighbouring keys, which are written to one after the other, share a shard."""
SHARD_MASK = SHARD_COUNT - 1

_EMPTY: Mapping[int, Any] = {}
"""Of many small groups, most tables are empty."""

Value = TypeVar("Value")
Table = MutableMapping[int, Value]


def grown(table: Table[Value]) -> Table[Value]:
    """The table itself, or its entries in shards when it has become large. O(LARGE), once."""
    return Shards(table) if type(table) is dict and len(table) >= LARGE else table


def frozen(table: Table[Value]) -> Mapping[int, Value]:
    """The entries as they are now; whatever happens to the table, they stay."""
    if isinstance(table, Shards):
        return table.frozen()
    return dict(table) if table else _EMPTY


class Shards(MutableMapping[int, Value]):
    """A large table.

    ``len`` looks at every shard. Where each microsecond counts, use
    ``shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK]``, which has all methods of a dict that are used.
    """

    __slots__ = ("__weakref__", "shards")

    def __init__(self, entries: Mapping[int, Value]) -> None:
        self.shards: list[Table[Value]] = [{} for _ in range(SHARD_COUNT)]
        for key, value in entries.items():
            self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK][key] = value

    def frozen(self) -> Mapping[int, Value]:
        """A copy that shares every shard."""
        copy: Shards[Value] = Shards.__new__(Shards)
        copy.shards = [getattr(shard, "entries", shard) for shard in self.shards]
        table = ref(self)
        self.shards = [_Shared(table, at, entries) for at, entries in enumerate(copy.shards)]
        return copy

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def __bool__(self) -> bool:
        return any(self.shards)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.shards)

    def __contains__(self, key: Any) -> bool:
        return key in self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK]

    def items(self) -> Any:
        """(key, value) of each entry."""
        return chain.from_iterable([shard.items() for shard in self.shards])

    def __getitem__(self, key: int) -> Value:
        return self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK][key]

    def get(self, key: int, default: Any = None) -> Any:
        """The value of ``key``, or ``default``."""
        return self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK].get(key, default)

    def __setitem__(self, key: int, value: Value) -> None:
        self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK][key] = value

    def __delitem__(self, key: int) -> None:
        del self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK][key]

    def pop(self, key: int, default: Any = None) -> Any:
        """Take out ``key``: its value, or ``default`` when it is not there."""
        return self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK].pop(key, default)


class _Shared(MutableMapping[int, Value]):
    """A shard that a frozen copy knows. The first write puts a copy of it in its place.

    It must not keep its table in memory, which would then be one only the collector takes away.
    """

    __slots__ = ("_at", "_table", "entries")

    def __init__(self, table: ref[Shards[Value]], at: int, entries: Table[Value]) -> None:
        self._table = table
        self._at = at
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self.entries)

    def __contains__(self, key: Any) -> bool:
        return key in self.entries

    def items(self) -> Any:
        return self.entries.items()

    def __getitem__(self, key: int) -> Value:
        return self.entries[key]

    def get(self, key: int, default: Any = None) -> Any:
        return self.entries.get(key, default)

    def __setitem__(self, key: int, value: Value) -> None:
        self._own()[key] = value

    def __delitem__(self, key: int) -> None:
        del self._own()[key]

    def pop(self, key: int, default: Any = None) -> Any:
        return self._own().pop(key, default) if key in self.entries else default

    def _own(self) -> Table[Value]:
        """A copy, in the place of this one, that no frozen copy knows."""
        self.entries = dict(self.entries)
        table = self._table()
        if table is not None:
            table.shards[self._at] = self.entries
        return self.entries
