# Tests: tests/groups/test_bitmaps.py
"""Sets of offsets as sparse bitmaps.

A bitmap is a dict of words: ``offset >> 10`` to a Python integer of up to 1024 bits. The integers
are immutable, so a copy of the table is a snapshot of the set. A word takes about 260 bytes with
its dict slot, and 100 bytes if full, because all full words are one object. The full words of a
range that is added as a whole are one *run* of any length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from brokerd.groups.tables import Table, freeze_table, grow

WORD_SHIFT = 10
WORD_BITS = 1 << WORD_SHIFT
WORD_MASK = WORD_BITS - 1
FULL = (1 << WORD_BITS) - 1
"""The object of every full word."""

BIT = tuple(1 << position for position in range(WORD_BITS))


def keys_between(keys: Iterable[int], size: int, first: int, end: int) -> list[int]:
    """Return the keys in [first, end) of a dict with ``size`` keys.

    A range shorter than the dict is returned as it is, with keys that may be missing.
    """
    if end - first <= size:
        return list(range(first, end))
    return [key for key in keys if first <= key < end]


Run = tuple[int, int]
"""Full words from the first key to the second, exclusive."""


class FrozenSet(NamedTuple):
    """An immutable copy of a `FloorSet`."""

    floor: int
    words: Mapping[int, int]
    runs: list[Run]


class FloorSet:
    """A set of offsets with every offset below ``floor`` and without the floor itself.

    Adding the floor moves it past the members that follow. The settled records are such a set with
    the lease floor, and the touched records with the cursor: the lowest offset never leased.
    """

    __slots__ = ("above", "floor", "runs", "words")

    def __init__(self) -> None:
        self.floor = 0
        self.above = 0
        """Number of members above the floor."""
        self.words: Table[int] = {}
        """Members above the floor. Bits below the floor are ignored."""
        self.runs: list[Run] = []
        """More members above the floor: disjoint and in order, with keys that ``words`` lacks."""

    def __contains__(self, offset: int) -> bool:
        if offset < self.floor:
            return True
        key = offset >> WORD_SHIFT
        word = self.words.get(key)
        if word is None:
            return bool(self.runs) and self._in_run(key)
        return bool(word & BIT[offset & WORD_MASK])

    def add(self, offset: int) -> None:
        """Add ``offset``. O(1) amortised: the floor passes each word once."""
        if offset == self.floor:
            if self.above:
                self._raise_floor(offset + 1)
            else:
                self.floor = offset + 1
        elif offset > self.floor:
            self._merge_word(offset >> WORD_SHIFT, BIT[offset & WORD_MASK])

    def add_range(self, first: int, end: int) -> None:
        """Add [first, end). O(words and runs of the set), for any range."""
        if end <= max(first, self.floor):
            return
        if first <= self.floor:
            self._drop_below(end)
            self._raise_floor(end)
            return
        self._merge_range(first, end)

    def _merge_range(self, first: int, end: int) -> None:
        """Add [first, end), which is not below the floor. The floor stays."""
        low, high = first >> WORD_SHIFT, end >> WORD_SHIFT
        below_end = (1 << (end & WORD_MASK)) - 1
        from_first = FULL ^ ((1 << (first & WORD_MASK)) - 1)
        if low == high:
            self._merge_word(low, from_first & below_end)
            return
        if first & WORD_MASK:
            self._merge_word(low, from_first)
            low += 1
        if below_end:
            self._merge_word(high, below_end)
        if low < high:
            self._add_run(low, high)

    def word(self, key: int) -> int:
        """Return the members of word ``key``, including those below the floor."""
        below = min(max(self.floor - (key << WORD_SHIFT), 0), WORD_BITS)
        word = self.words.get(key)
        if word is None:
            word = FULL if self.runs and self._in_run(key) else 0
        return word | (1 << below) - 1

    def next_absent(self, offset: int) -> int:
        """Return the first offset from ``offset`` on that is not a member. O(full words, runs)."""
        offset = max(offset, self.floor)
        words, runs = self.words, self.runs
        while True:
            key = offset >> WORD_SHIFT
            word = words.get(key)
            if word is None:
                at = bisect_right(runs, key, key=_first) - 1 if runs else -1
                if at < 0 or key >= runs[at][1]:
                    break
                offset = runs[at][1] << WORD_SHIFT
                continue
            rest = word >> (offset & WORD_MASK)
            offset += (~rest & (rest + 1)).bit_length() - 1
            if offset >> WORD_SHIFT == key:
                break
        return offset

    def discard_words(self, gone: dict[int, int]) -> None:
        """Remove the offsets of these words and bits, all of them members.

        The floor moves down to the lowest of them. O(words of ``gone`` and runs of the set).
        """
        if not gone:
            return
        lowest = min(gone)
        self._lower_floor((lowest << WORD_SHIFT) + (gone[lowest] & -gone[lowest]).bit_length() - 1)
        self._split_runs(sorted(gone))
        for key, bits in gone.items():
            old = self.words[key]
            inside = old & ~((1 << max(self.floor - (key << WORD_SHIFT), 0)) - 1)
            self.words[key] = inside & ~bits
            self.above -= (inside & bits).bit_count()
            if not self.words[key]:
                del self.words[key]
        self._tidy()

    def freeze(self) -> FrozenSet:
        """Return an immutable copy in O(runs)."""
        return FrozenSet(self.floor, freeze_table(self.words), self.runs.copy())

    def load(self, floor: int, words: dict[int, int], runs: Iterable[Run] = ()) -> None:
        """Replace the set by the offsets below ``floor`` and the members of ``words`` and ``runs``.

        No key may be in both. Bits below the floor are ignored.
        """
        self.words = grow(words)
        self.runs = sorted(runs)
        if not words and not self.runs:
            self.above = 0
            self.floor = floor
            return
        self.above = sum(
            (word >> max(floor - (key << WORD_SHIFT), 0)).bit_count() for key, word in words.items()
        ) + sum(
            max((end << WORD_SHIFT) - max(first << WORD_SHIFT, floor), 0)
            for first, end in self.runs
        )
        self._raise_floor(floor)

    def _lower_floor(self, offset: int) -> None:
        """Lower the floor to ``offset``, if lower; offsets below the old floor stay members."""
        old = self.floor
        if offset >= old:
            return
        word = self.words.pop(old >> WORD_SHIFT, 0)
        inside = word >> (old & WORD_MASK) << (old & WORD_MASK)
        if inside:
            self.words[old >> WORD_SHIFT] = inside
        self.floor = offset
        self._merge_range(offset, old)

    def _split_runs(self, keys: list[int]) -> None:
        """Replace the parts of runs with these sorted keys by words."""
        if not self.runs:
            return
        runs: list[Run] = []
        left = iter(keys)
        key = next(left, None)
        for first, end in self.runs:
            while key is not None and key < end:
                if key >= first:
                    self.words[key] = FULL
                    if first < key:
                        runs.append((first, key))
                    first = key + 1
                key = next(left, None)
            if first < end:
                runs.append((first, end))
        self.runs = runs
        self.words = grow(self.words)

    def _in_run(self, key: int) -> bool:
        at = bisect_right(self.runs, key, key=_first) - 1
        return at >= 0 and key < self.runs[at][1]

    def _merge_word(self, key: int, bits: int) -> None:
        """Add the offsets of these bits of word ``key``, all above the floor."""
        if self.runs and self._in_run(key):
            return
        old = self.words.get(key, 0)
        new = old | bits
        if new != old:
            self.above += (new ^ old).bit_count()
            self.words[key] = FULL if new == FULL else new
            if not old:
                self.words = grow(self.words)

    def _add_run(self, low: int, high: int) -> None:
        """Add all offsets of the words from ``low`` to ``high``, above the floor."""
        words, runs = self.words, self.runs
        for key in keys_between(words, len(words), low, high):
            self.above -= words.pop(key, 0).bit_count()
        at = bisect_left(runs, low, key=_end)
        stop = bisect_right(runs, high, key=_first)
        for first, end in runs[at:stop]:
            self.above -= (end - first) << WORD_SHIFT
            low, high = min(low, first), max(high, end)
        runs[at:stop] = [(low, high)]
        self.above += (high - low) << WORD_SHIFT

    def _raise_floor(self, offset: int) -> None:
        """Raise the floor to the first offset from ``offset`` on that is not a member."""
        words, runs = self.words, self.runs
        if not offset & WORD_MASK:
            words.pop((offset >> WORD_SHIFT) - 1, None)
        while True:
            key = offset >> WORD_SHIFT
            if runs and runs[0][0] <= key:
                end = runs.pop(0)[1] << WORD_SHIFT
                if offset < end:
                    self.above -= end - offset
                    offset = end
                continue
            word = words.get(key)
            if word is None:
                break
            rest = word >> (offset & WORD_MASK)
            run = (~rest & (rest + 1)).bit_length() - 1
            if not run:
                break
            self.above -= run
            offset += run
            if offset & WORD_MASK:
                break
            del words[(offset >> WORD_SHIFT) - 1]
        self.floor = offset
        self._tidy()

    def _tidy(self) -> None:
        """Drop the last word if all its bits are below the floor."""
        if not self.above and self.words:
            self.words = {}

    def _drop_below(self, end: int) -> None:
        """Remove the members in [floor, end) from the words, the runs and the count."""
        words, runs = self.words, self.runs
        low, high = self.floor >> WORD_SHIFT, end >> WORD_SHIFT
        for key in keys_between(words, len(words), low, high + 1):
            word = words.get(key)
            if word is None:
                continue
            base = key << WORD_SHIFT
            inside = word >> max(self.floor - base, 0) << max(self.floor - base, 0)
            if key == high:
                inside &= (1 << (end - base)) - 1
            self.above -= inside.bit_count()
            if key < high:
                del words[key]
        while runs and runs[0][0] < high:
            first, last = runs.pop(0)
            self.above -= (min(last, high) - first) << WORD_SHIFT
            if last > high:
                runs.insert(0, (high, last))
        if runs and runs[0][0] == high:
            self.above -= end - (high << WORD_SHIFT)


def missing_words(of: FloorSet, among: FloorSet, first: int) -> dict[int, int]:
    """Return the members of ``of`` from ``first`` on that are not in its subset ``among``.

    The result maps keys to words. O(words and runs of both, and of the result).
    """
    keys: set[int] = {key for key in of.words if key << WORD_SHIFT >= of.floor}
    keys.update(key for key in among.words if key << WORD_SHIFT >= of.floor)
    low = max(first, among.floor) >> WORD_SHIFT
    for run_first, run_end in ((low, (of.floor >> WORD_SHIFT) + 1), *of.runs):
        keys.update(_outside(among.runs, max(run_first, low), run_end))
    found = {}
    for key in keys:
        bits = of.word(key) & ~among.word(key)
        bits &= ~((1 << min(max(first - (key << WORD_SHIFT), 0), WORD_BITS)) - 1)
        if bits:
            found[key] = bits
    return found


def _outside(runs: list[Run], low: int, high: int) -> Iterator[int]:
    """Yield the keys from ``low`` to ``high``, exclusive, that are in no run."""
    at = bisect_right(runs, low, key=_first) - 1
    if at >= 0:
        low = max(low, runs[at][1])
    for run_first, run_end in islice(runs, at + 1, None):
        if run_first >= high:
            break
        yield from range(low, run_first)
        low = run_end
    yield from range(low, high)


def _first(run: Run) -> int:
    return run[0]


def _end(run: Run) -> int:
    return run[1]


class LowestFirst:
    """A set of offsets with its lowest member at hand; every operation is O(log words).

    The heap holds exactly the keys of ``words``. An empty word leaves both when it comes up, or
    when more than half of the words are empty.
    """

    __slots__ = ("_empty", "_heap", "count", "words")

    def __init__(self) -> None:
        self.count = 0
        self.words: dict[int, int] = {}
        self._heap: list[int] = []
        self._empty = 0

    def __contains__(self, offset: int) -> bool:
        word = self.words.get(offset >> WORD_SHIFT)
        return word is not None and bool(word & BIT[offset & WORD_MASK])

    def add(self, offset: int) -> None:
        """Add ``offset``, which must not be a member."""
        self.add_word(offset >> WORD_SHIFT, BIT[offset & WORD_MASK])

    def add_word(self, key: int, bits: int) -> None:
        """Add the offsets of these bits of word ``key``. None may be a member."""
        word = self.words.get(key)
        if word is None:
            heappush(self._heap, key)
            word = 0
        elif not word:
            self._empty -= 1
        self.words[key] = word | bits
        self.count += bits.bit_count()

    def discard(self, offset: int) -> None:
        """Remove ``offset``, which must be a member."""
        self._clear(offset >> WORD_SHIFT, BIT[offset & WORD_MASK])

    def discard_range(self, first: int, end: int) -> None:
        """Remove [first, end). O(the words of the range, or all words if fewer)."""
        if first >= end:
            return
        low, high = first >> WORD_SHIFT, ((end - 1) >> WORD_SHIFT) + 1
        for key in keys_between(self.words, len(self.words), low, high):
            if key in self.words:
                base = key << WORD_SHIFT
                below_end = (1 << min(end - base, WORD_BITS)) - 1
                below_first = (1 << max(first - base, 0)) - 1
                self._clear(key, below_end ^ below_first)

    def lowest(self) -> int:
        """Return the lowest member. The set must not be empty."""
        heap, words = self._heap, self.words
        while not (word := words[heap[0]]):
            del words[heappop(heap)]
            self._empty -= 1
        return (heap[0] << WORD_SHIFT) + (word & -word).bit_length() - 1

    def members(self, first: int = 0) -> Iterator[int]:
        """Yield the members from ``first`` on, in order. The caller must not change the set."""
        for key in sorted(key for key in self.words if key >= first >> WORD_SHIFT):
            base = key << WORD_SHIFT
            word = self.words[key] >> max(first - base, 0) << max(first - base, 0)
            while word:
                yield base + (word & -word).bit_length() - 1
                word &= word - 1

    def clear(self) -> None:
        """Remove all members."""
        self.words.clear()
        self._heap.clear()
        self.count = self._empty = 0

    def _clear(self, key: int, bits: int) -> None:
        old = self.words[key]
        new = old & ~bits
        self.words[key] = new
        self.count -= (old ^ new).bit_count()
        if old and not new:
            self._empty += 1
            if self._empty > 64 and self._empty * 2 > len(self._heap):
                self._compact()

    def _compact(self) -> None:
        for key in [key for key, word in self.words.items() if not word]:
            del self.words[key]
        self._heap[:] = self.words
        heapify(self._heap)
        self._empty = 0
