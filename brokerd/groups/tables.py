# Tests: tests/groups/test_tables.py, tests/groups/test_model.py
"""Tables with integer keys and a fast freeze.

A small table is a dict, and a freeze copies it. A table of `LARGE` entries or more is a `Shards`:
many dicts. A frozen table shares all shards with the live one. The freeze takes less than a
millisecond, and the first write to a shard after it copies that shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from itertools import chain
from typing import Any, TypeVar
from weakref import ref

LARGE = 65_536
"""Number of entries from which a table is in shards."""
SHARD_COUNT = 1_024
NEIGHBOURS_SHIFT = 6
"""Keys that are equal after this shift share a shard: neighbours are written together."""
SHARD_MASK = SHARD_COUNT - 1

_EMPTY: Mapping[int, Any] = {}
"""Most tables of small groups are empty and share this object."""

Value = TypeVar("Value")
Table = MutableMapping[int, Value]


def grow(table: Table[Value]) -> Table[Value]:
    """Return the table, converted to `Shards` once it is large. O(LARGE), once."""
    return Shards(table) if type(table) is dict and len(table) >= LARGE else table


def freeze_table(table: Table[Value]) -> Mapping[int, Value]:
    """Return the present entries. Later writes to the table do not change them."""
    if type(table) is not dict and isinstance(table, Shards):  # the second test is a slow one
        return table.freeze()
    return dict(table) if table else _EMPTY


class Shards(MutableMapping[int, Value]):
    """A large table. ``len`` visits every shard.

    Fast paths use the dict ``shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK]`` itself.
    """

    __slots__ = ("__weakref__", "shards")

    def __init__(self, entries: Mapping[int, Value]) -> None:
        self.shards: list[Table[Value]] = [{} for _ in range(SHARD_COUNT)]
        for key, value in entries.items():
            self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK][key] = value

    def freeze(self) -> Mapping[int, Value]:
        """Return a copy that shares every shard."""
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
        """Yield (key, value) of each entry."""
        return chain.from_iterable([shard.items() for shard in self.shards])

    def __getitem__(self, key: int) -> Value:
        return self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK][key]

    def get(self, key: int, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default``."""
        return self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK].get(key, default)

    def __setitem__(self, key: int, value: Value) -> None:
        self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK][key] = value

    def __delitem__(self, key: int) -> None:
        del self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK][key]

    def pop(self, key: int, default: Any = None) -> Any:
        """Remove ``key`` and return its value, or ``default`` if missing."""
        return self.shards[key >> NEIGHBOURS_SHIFT & SHARD_MASK].pop(key, default)


class _Shared(MutableMapping[int, Value]):
    """A shard that a frozen copy shares. The first write replaces it by a copy.

    Its reference to the table is weak: a cycle would keep the table until the collector runs.
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
        """Replace this shard by a copy of its own and return that."""
        self.entries = dict(self.entries)
        table = self._table()
        if table is not None:
            table.shards[self._at] = self.entries
        return self.entries
