# Tests: tests/groups/test_key_order.py, tests/groups/test_model.py
"""Key order: records of one key are leased one at a time, the lowest offset first.

The *line* of a key holds its known open records: leased, returned or blocked. A *blocked* record
was never leased: the search passed over it because its key was busy. The *front* of a line is its
leased record, else the lowest one. Only a front may be leased, and only if it is *free*: neither
leased nor delayed. Records without a key are free when they are ready.

The keys of leased and returned records come from the journal and from snapshots. Blocked records
exist in this object only: after a restart the search begins again at the cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from brokerd.groups.bitmaps import LowestFirst, keys_between
from brokerd.groups.tables import Table, grow

NO_KEY = 0
"""The key of a record that has none or is gone."""
UNKNOWN = -1
"""The key of a record that is not in memory."""

BLOCKED_MAX = 10_000
"""Largest number of blocked records of one partition. At this number no new record is examined."""
SLACK = 64
"""Stale entries that are always tolerated, so that small lines are not rebuilt often."""


class KeyOrder:
    """The free records of a key-ordered partition.

    ``is_leased`` and ``is_delayed`` return the state of an offset after the reported change.
    """

    __slots__ = (
        "_behind",
        "_front",
        "_is_delayed",
        "_is_leased",
        "_limit",
        "_waiting",
        "blocked",
        "free",
        "keys",
        "scan",
        "unresolved",
    )

    def __init__(self, is_leased: Callable[[int], bool], is_delayed: Callable[[int], bool]) -> None:
        self._is_leased = is_leased
        self._is_delayed = is_delayed
        self.keys: Table[int] = {}
        """Known key hashes of leased and returned records; 0 means no key."""
        self.blocked: dict[int, int] = {}
        """Key hashes of blocked records."""
        self.free = LowestFirst()
        """Records that may be leased."""
        self.unresolved = LowestFirst()
        """Leased and returned records that are in no line yet, mostly because of an unknown key."""
        self.scan = 0
        """Every untouched record below this offset is blocked."""
        self._front: dict[int, int] = {}
        self._behind: dict[int, list[int]] = {}
        """Heaps of the records behind each front. Stale entries stay until they come up."""
        self._waiting = 0
        """Number of entries in these heaps."""
        self._limit = SLACK
        """Number of entries at which more than half may be stale."""

    @property
    def size(self) -> int:
        """Number of leased, returned and blocked records with a known key."""
        return len(self.keys) + len(self.blocked)

    def is_busy(self, key: int) -> bool:
        """Return whether a record of ``key`` is leased, returned or blocked."""
        return key in self._front

    def key_of(self, offset: int) -> int:
        """Return the key of a free record."""
        key = self.keys.get(offset)
        return self.blocked[offset] if key is None else key

    def load(self, words: dict[int, int], keys: Mapping[int, int]) -> None:
        """Replace everything by these leased and returned records and the keys of some.

        ``words`` are bitmap words. The records join a line when they are resolved.
        """
        for word, bits in words.items():
            self.unresolved.add_word(word, bits)
        is_open = self.unresolved.__contains__
        self.keys = grow({offset: key for offset, key in keys.items() if is_open(offset)})

    def resolve(self, offset: int, key: int) -> None:
        """Add an unresolved record, whose key is known now, to its line."""
        self.unresolved.discard(offset)
        self._join(offset, key)

    def block(self, offset: int, key: int) -> None:
        """Add an untouched record with a busy key to the line of this key."""
        self.blocked[offset] = key
        self._line_up(offset, key)

    def lease(self, offset: int, key: int) -> None:
        """Report a lease of a record with this key."""
        self._unfree(offset)
        if offset in self.unresolved:
            self.unresolved.discard(offset)
        self.blocked.pop(offset, None)
        self._join(offset, key)

    def return_record(self, offset: int) -> None:
        """Report the end of a lease. The record is ready or delayed."""
        self._unfree(offset)
        if offset in self.unresolved:
            return
        key = self.keys.get(offset)
        if key is None:
            key = self.blocked.pop(offset, None)
        if key is None:
            self.unresolved.add(offset)
        else:
            self._join(offset, key)

    def end_delay(self, offset: int) -> None:
        """Report the end of a delay. The record is ready."""
        if offset not in self.unresolved:
            key = self.keys[offset]
            if not key or self._front[key] == offset:
                self.free.add(offset)

    def leave(self, offset: int) -> None:
        """Remove a record that is settled, dead or gone."""
        self._unfree(offset)
        key = self.keys.pop(offset, None)
        if offset in self.unresolved:
            self.unresolved.discard(offset)
            return
        if key is None:
            key = self.blocked.pop(offset, None)
        if key and self._front[key] == offset:
            self._next_in_line(key)

    def leave_range(self, first: int, end: int) -> None:
        """Remove the records of [first, end). O(the range, or all records if fewer)."""
        tables: tuple[Table[int], ...] = (self.keys, self.blocked)
        for table in tables:
            for offset in keys_between(table, len(table), first, end):
                if offset in table:
                    self.leave(offset)
        self.unresolved.discard_range(first, end)

    def _join(self, offset: int, key: int) -> None:
        """Store the key of a leased or returned record, and add it to its line."""
        self.keys[offset] = key
        self.keys = grow(self.keys)
        if key:
            self._line_up(offset, key)
        else:
            self._free_if_ready(offset)

    def _line_up(self, offset: int, key: int) -> None:
        front = self._front.get(key)
        if front is None:
            self._front[key] = offset
        elif front != offset:
            if self._is_leased(offset):
                self._unfree(front)
                self._front[key] = offset
                offset = front
            self._push(key, offset)
        self._choose(key)

    def _choose(self, key: int) -> None:
        """Make the lowest record of the line its front, unless the front is leased."""
        front = self._front[key]
        if self._is_leased(front):
            return
        lowest = self._lowest_behind(key)
        if lowest is not None and lowest < front:
            self._unfree(front)
            self._push(key, front)
            self._front[key] = front = lowest
        self._free_if_ready(front)

    def _next_in_line(self, key: int) -> None:
        lowest = self._lowest_behind(key)
        if lowest is None:
            del self._front[key]
        else:
            self._front[key] = lowest
            self._free_if_ready(lowest)

    def _lowest_behind(self, key: int) -> int | None:
        """Return the lowest record behind the front, or None."""
        behind, front = self._behind.get(key), self._front[key]
        while behind:
            offset = behind[0]
            if offset != front and self._is_in_line(offset, key):
                return offset
            heappop(behind)
            self._waiting -= 1
            if not behind:
                del self._behind[key]
        return None

    def _is_in_line(self, offset: int, key: int) -> bool:
        return self.keys.get(offset) == key or self.blocked.get(offset) == key

    def _push(self, key: int, offset: int) -> None:
        heappush(self._behind.setdefault(key, []), offset)
        self._waiting += 1
        if self._waiting > self._limit:
            self._limit = 2 * (len(self.keys) + len(self.blocked)) + SLACK
            if self._waiting > self._limit:
                self._compact()

    def _compact(self) -> None:
        for key, behind in list(self._behind.items()):
            behind[:] = {offset for offset in behind if self._is_in_line(offset, key)}
            heapify(behind)
            if not behind:
                del self._behind[key]
        self._waiting = sum(map(len, self._behind.values()))

    def _free_if_ready(self, offset: int) -> None:
        if not (self._is_leased(offset) or self._is_delayed(offset) or offset in self.free):
            self.free.add(offset)

    def _unfree(self, offset: int) -> None:
        if offset in self.free:
            self.free.discard(offset)
