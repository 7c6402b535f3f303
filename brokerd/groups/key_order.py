# Tests: tests/groups/test_key_order.py, tests/groups/test_model.py
"""Key order: of the records of one key, one at a time and the lowest first.

The *line* of a key is its open records as far as they are known: leased, come back, or held. A
held record was never leased; it was looked at when its turn came, and passed over because of its
key. The *front* of a line is the record that is leased, else the lowest. Only fronts may be given,
and of those only the free ones: neither leased nor delayed. Records without a key are free whenever
they are ready.

The keys of leased and returned records come from the journal and from snapshots. Held records are
known to this object alone: after a restart the look ahead begins again at the cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from brokerd.groups.bitmaps import LowestFirst, keys_between
from brokerd.groups.tables import Table, grown

NO_KEY = 0
"""What the record of an offset has that has no key, or that is gone."""
UNKNOWN = -1
"""The key of a record that is not in memory."""

HELD_MAX = 10_000
"""Records of one partition that may be held. With so many, nothing that is new is looked at."""
SLACK = 64
"""Entries of the lines that are always tolerated, so that they are not rebuilt all the time."""


class KeyOrder:
    """Which records of a key-ordered partition may be given.

    ``is_leased`` and ``is_delayed`` tell the state of an offset, after what is being reported.
    """

    __slots__ = (
        "_behind",
        "_front",
        "_is_delayed",
        "_is_leased",
        "_limit",
        "_waiting",
        "free",
        "held",
        "keys",
        "scan",
        "unresolved",
    )

    def __init__(self, is_leased: Callable[[int], bool], is_delayed: Callable[[int], bool]) -> None:
        self._is_leased = is_leased
        self._is_delayed = is_delayed
        self.keys: Table[int] = {}
        """Key hashes of leased and returned records, as far as they are known; 0 means no key."""
        self.held: dict[int, int] = {}
        """Key hashes of the records that were passed over."""
        self.free = LowestFirst()
        """Records that may be given."""
        self.unresolved = LowestFirst()
        """Leased and returned records that are not in line yet; of most, nobody said the key."""
        self.scan = 0
        """Below this, every untouched record is held."""
        self._front: dict[int, int] = {}
        self._behind: dict[int, list[int]] = {}
        """Heaps of the others in line. Records that left stay until they come up."""
        self._waiting = 0
        """How many entries these heaps have."""
        self._limit = SLACK
        """Number of entries at which more than half may be of records that left."""

    def is_busy(self, key: int) -> bool:
        """Whether a record of ``key`` is leased, came back, or is held."""
        return key in self._front

    def key_of(self, offset: int) -> int:
        """The key of a free record."""
        key = self.keys.get(offset)
        return self.held[offset] if key is None else key

    def load(self, words: dict[int, int], keys: Mapping[int, int]) -> None:
        """All leased and returned records, as words of bits, and the keys of some.

        They get in line when their turn to be resolved comes. Other keys are forgotten.
        """
        for word, bits in words.items():
            self.unresolved.add_word(word, bits)
        is_open = self.unresolved.__contains__
        self.keys = grown({offset: key for offset, key in keys.items() if is_open(offset)})

    def resolve(self, offset: int, key: int) -> None:
        """Put an unresolved record in line, now that its key is known."""
        self.unresolved.discard(offset)
        self._join(offset, key)

    def hold(self, offset: int, key: int) -> None:
        """Look at an untouched record whose key, which is one, is busy: it gets in line."""
        self.held[offset] = key
        self._line_up(offset, key)

    def lease(self, offset: int, key: int) -> None:
        """The record was leased, and this is its key."""
        self._unfree(offset)
        if offset in self.unresolved:
            self.unresolved.discard(offset)
        self.held.pop(offset, None)
        self._join(offset, key)

    def come_back(self, offset: int) -> None:
        """The record failed, or its lease is over; it is ready, or waits."""
        self._unfree(offset)
        if offset in self.unresolved:
            return
        key = self.keys.get(offset)
        if key is None:
            key = self.held.pop(offset, None)
        if key is None:
            self.unresolved.add(offset)
        else:
            self._join(offset, key)

    def end_delay(self, offset: int) -> None:
        """The record waited, and is ready now."""
        if offset not in self.unresolved:
            key = self.keys[offset]
            if not key or self._front[key] == offset:
                self.free.add(offset)

    def leave(self, offset: int) -> None:
        """The record is settled, dead, or gone."""
        self._unfree(offset)
        key = self.keys.pop(offset, None)
        if offset in self.unresolved:
            self.unresolved.discard(offset)
            return
        if key is None:
            key = self.held.pop(offset, None)
        if key and self._front[key] == offset:
            self._next_in_line(key)

    def leave_range(self, first: int, end: int) -> None:
        """The records of [first, end) are gone. O(the range, or all records if fewer)."""
        tables: tuple[Table[int], ...] = (self.keys, self.held)
        for table in tables:
            for offset in keys_between(table, len(table), first, end):
                if offset in table:
                    self.leave(offset)
        self.unresolved.discard_range(first, end)

    def _join(self, offset: int, key: int) -> None:
        """Know the key of a leased or returned record; put it in line, or in order there."""
        self.keys[offset] = key
        self.keys = grown(self.keys)
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
        """Let the lowest of the line be its front unless the front is leased."""
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
        """The lowest record behind the front, or None."""
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
        return self.keys.get(offset) == key or self.held.get(offset) == key

    def _push(self, key: int, offset: int) -> None:
        heappush(self._behind.setdefault(key, []), offset)
        self._waiting += 1
        if self._waiting > self._limit:
            self._limit = 2 * (len(self.keys) + len(self.held)) + SLACK
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
