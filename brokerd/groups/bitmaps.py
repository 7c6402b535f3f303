# Tests: tests/groups/test_bitmaps.py
"""Sets of offsets as sparse bitmaps.

A bitmap is a dict of words: ``offset >> 10`` to a Python integer of up to 1024 bits. The integers
never change, so a frozen table of them is a snapshot of the set, and a word costs the same
(about 260 bytes with its dict slot, 100 when full, because all full words are one object) whether
it holds one offset or a thousand. The full words of a range that is added as a whole are one *run*,
however long it is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from brokerd.groups.tables import Table, frozen, grown

WORD_SHIFT = 10
WORD_BITS = 1 << WORD_SHIFT
WORD_MASK = WORD_BITS - 1
FULL = (1 << WORD_BITS) - 1
"""The one object that stands for every full word."""

BIT = tuple(1 << position for position in range(WORD_BITS))


def keys_between(keys: Iterable[int], size: int, first: int, end: int) -> list[int]:
    """Those of ``size`` dict keys that lie in [first, end), by the shorter of the two ways.

    The caller must expect keys that do not exist: a short range is returned as it is.
    """
    if end - first <= size:
        return list(range(first, end))
    return [key for key in keys if first <= key < end]


Run = tuple[int, int]
"""Words from the first key to the second, exclusive, that are full."""


class FrozenSet(NamedTuple):
    """A `FloorSet` at one moment. Nothing in it changes."""

    floor: int
    words: Mapping[int, int]
    runs: list[Run]


class FloorSet:
    """A set of offsets that holds everything below ``floor``, which itself is not in it.

    Adding the floor moves it over the members that follow. Used for the settled records (their
    floor is the lease floor) and for the touched ones (their floor is the cursor: the lowest record
    never leased).
    """

    __slots__ = ("above", "floor", "runs", "words")

    def __init__(self) -> None:
        self.floor = 0
        self.above = 0
        """How many members lie above the floor."""
        self.words: Table[int] = {}
        """Members above the floor; bits below the floor mean nothing."""
        self.runs: list[Run] = []
        """More members above the floor: disjoint, in order, and no key of them is in ``words``."""

    def __contains__(self, offset: int) -> bool:
        if offset < self.floor:
            return True
        key = offset >> WORD_SHIFT
        word = self.words.get(key)
        if word is None:
            return bool(self.runs) and self._in_run(key)
        return bool(word & BIT[offset & WORD_MASK])

    def add(self, offset: int) -> None:
        """Make ``offset`` a member. O(1) amortised: the floor passes each word once."""
        if offset == self.floor:
            if self.above:
                self._rise(offset + 1)
            else:
                self.floor = offset + 1
        elif offset > self.floor:
            self._merge_word(offset >> WORD_SHIFT, BIT[offset & WORD_MASK])

    def add_range(self, first: int, end: int) -> None:
        """Make [first, end) members. O(words and runs held), however long the range is."""
        if end <= max(first, self.floor):
            return
        if first <= self.floor:
            self._drop_below(end)
            self._rise(end)
            return
        self._merge_range(first, end)

    def _merge_range(self, first: int, end: int) -> None:
        """Make [first, end), none of it below the floor, members. The floor stays."""
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
        """The members of word ``key``, those below the floor included."""
        below = min(max(self.floor - (key << WORD_SHIFT), 0), WORD_BITS)
        word = self.words.get(key)
        if word is None:
            word = FULL if self.runs and self._in_run(key) else 0
        return word | (1 << below) - 1

    def next_absent(self, offset: int) -> int:
        """The first offset from ``offset`` on that is no member. O(1) a full word or run."""
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
        """Make the offsets of these words and bits, all of them members, no members.

        The floor goes down to the lowest of them. O(words given and runs held).
        """
        if not gone:
            return
        lowest = min(gone)
        self._sink((lowest << WORD_SHIFT) + (gone[lowest] & -gone[lowest]).bit_length() - 1)
        self._split_runs(sorted(gone))
        for key, bits in gone.items():
            old = self.words[key]
            inside = old & ~((1 << max(self.floor - (key << WORD_SHIFT), 0)) - 1)
            self.words[key] = inside & ~bits
            self.above -= (inside & bits).bit_count()
            if not self.words[key]:
                del self.words[key]
        self._tidy()

    def frozen(self) -> FrozenSet:
        """A copy that stays as it is, in O(runs), none of which is looked into."""
        return FrozenSet(self.floor, frozen(self.words), self.runs.copy())

    def load(self, floor: int, words: dict[int, int], runs: Iterable[Run] = ()) -> None:
        """Become the set of everything below ``floor`` and the members of ``words`` and ``runs``.

        No key is in two of them. Bits below the floor mean nothing.
        """
        self.words = grown(words)
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
        self._rise(floor)

    def _sink(self, offset: int) -> None:
        """Put the floor at ``offset`` if that is lower; what was below it stays a member."""
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
        """Make words of those of the runs that have these keys, which are in order."""
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
        self.words = grown(self.words)

    def _in_run(self, key: int) -> bool:
        at = bisect_right(self.runs, key, key=_first) - 1
        return at >= 0 and key < self.runs[at][1]

    def _merge_word(self, key: int, bits: int) -> None:
        """Make the offsets of these bits of word ``key``, all above the floor, members."""
        if self.runs and self._in_run(key):
            return
        old = self.words.get(key, 0)
        new = old | bits
        if new != old:
            self.above += (new ^ old).bit_count()
            self.words[key] = FULL if new == FULL else new
            if not old:
                self.words = grown(self.words)

    def _add_run(self, low: int, high: int) -> None:
        """Make all offsets of the words from ``low`` to ``high``, above the floor, members."""
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

    def _rise(self, offset: int) -> None:
        """Put the floor at the first offset from ``offset`` on that is no member."""
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
        """Keep no word of which all bits are below the floor, when that is all there is."""
        if not self.above and self.words:
            self.words = {}

    def _drop_below(self, end: int) -> None:
        """Take the members in [floor, end) out of the words and runs, and out of the count."""
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
    """The members of ``of``, from ``first`` on, that are none of ``among``, as words.

    Every member of ``among`` is one of ``of``. O(words and runs of both, and of the result).
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
    """The keys from ``low`` to ``high``, exclusive, that are in none of the runs."""
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
    """A set of offsets that names its lowest member at once; every operation is O(log words).

    The heap holds exactly the keys of ``words``; a word that became empty leaves both when it comes
    up, or when empty ones are more than half.
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
        """Make ``offset``, which is no member, a member."""
        self.add_word(offset >> WORD_SHIFT, BIT[offset & WORD_MASK])

    def add_word(self, key: int, bits: int) -> None:
        """Make the offsets of these bits of word ``key``, which are no members, members."""
        word = self.words.get(key)
        if word is None:
            heappush(self._heap, key)
            word = 0
        elif not word:
            self._empty -= 1
        self.words[key] = word | bits
        self.count += bits.bit_count()

    def discard(self, offset: int) -> None:
        """Make ``offset``, which is a member, no member."""
        self._clear(offset >> WORD_SHIFT, BIT[offset & WORD_MASK])

    def discard_range(self, first: int, end: int) -> None:
        """Make [first, end) no members. O(the words of the range, or all words if fewer)."""
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
        """The lowest member. The set must not be empty."""
        heap, words = self._heap, self.words
        while not (word := words[heap[0]]):
            del words[heappop(heap)]
            self._empty -= 1
        return (heap[0] << WORD_SHIFT) + (word & -word).bit_length() - 1

    def members(self, first: int = 0) -> Iterator[int]:
        """The members from ``first`` on, in order, while none changes."""
        for key in sorted(key for key in self.words if key >= first >> WORD_SHIFT):
            base = key << WORD_SHIFT
            word = self.words[key] >> max(first - base, 0) << max(first - base, 0)
            while word:
                yield base + (word & -word).bit_length() - 1
                word &= word - 1

    def clear(self) -> None:
        """Forget all members."""
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
