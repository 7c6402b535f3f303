# Tests: tests/groups/test_dead_letters.py, tests/groups/test_model.py
"""The dead letters of a group partition, selected and removed in blocks of 256 offsets.

An operator may replay or purge a million of them at once. A block of which every letter is selected
takes microseconds. In other blocks each letter is examined.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from itertools import compress
from struct import Struct, calcsize, unpack
from sys import getsizeof
from typing import NamedTuple

from brokerd.groups.attempts import DEAD_LAYOUT
from brokerd.groups.rows import BLOCK_OFFSETS, BLOCK_SHIFT, Block, OffsetRows, Row

_REASON_AT = 2
"""Position of the reason in a row of `DEAD_LAYOUT`, in units of four bytes."""
_ROW_COLUMNS = calcsize(DEAD_LAYOUT) // 4
_INDEX_MAX = (1 << 32) - 1
_ALL = (1 << BLOCK_OFFSETS) - 1
_DIGITS = bytes.maketrans(b"\0\1", b"01")


class Selection(NamedTuple):
    """The selected letters of one block, and the ``others`` of the same reason."""

    block: int
    bits: int
    others: int


class Reasons:
    """The distinct reasons of dead letters. A letter refers to its reason by index."""

    __slots__ = ("_indexes", "_letters", "_next", "text_bytes", "texts")

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        """The reasons in use, by index."""
        self.text_bytes = 0
        """Memory of these texts."""
        self._indexes: dict[str, int] = {}
        self._letters: Counter[int] = Counter()
        self._next = 0

    def __len__(self) -> int:
        return len(self.texts)

    def index_of(self, reason: str) -> int | None:
        """Return the index of a reason; None if no letter has it."""
        return self._indexes.get(reason)

    def add(self, reason: str) -> int:
        """Count a letter with ``reason`` and return the index of the reason."""
        index = self._indexes.get(reason)
        if index is None:
            while self._next in self.texts:
                self._next = (self._next + 1) & _INDEX_MAX
            index = self._indexes[reason] = self._next
            self.texts[index] = reason
            self.text_bytes += getsizeof(reason)
        self._letters[index] += 1
        return index

    def discard(self, letters: Counter[int]) -> None:
        """Subtract the number of letters of each index. Drop reasons without letters."""
        for index, count in letters.items():
            self._letters[index] -= count
            if not self._letters[index]:
                text = self.texts.pop(index)
                self.text_bytes -= getsizeof(text)
                del self._letters[index]
                del self._indexes[text]

    def load(self, texts: list[str], letters: Counter[int]) -> None:
        """Replace all reasons. ``letters`` counts the letters of each index. Raises IndexError."""
        self.texts = {index: texts[index] for index in sorted(letters)}
        self.text_bytes = sum(map(getsizeof, self.texts.values()))
        self._indexes = {text: index for index, text in self.texts.items()}
        self._letters = letters
        self._next = len(texts)


class DeadLetters(OffsetRows):
    """Rows of `DEAD_LAYOUT`, and their reasons. Use `add` instead of `put`."""

    __slots__ = ("_keys", "reasons")

    def __init__(self) -> None:
        super().__init__(DEAD_LAYOUT)
        self.reasons = Reasons()
        self._keys: list[int] = []
        """The keys of ``blocks`` in order, so that a page reads only its own blocks."""

    def add(
        self, offset: int, grants: int, failures: int, reason: str, first_us: int, last_us: int
    ) -> None:
        """Add a dead letter. The record must not be one already."""
        if offset >> BLOCK_SHIFT not in self.blocks:
            insort(self._keys, offset >> BLOCK_SHIFT)
        self.put(offset, grants, failures, self.reasons.add(reason), first_us, last_us)

    def items(self, first: int = 0, end: int = 1 << 63) -> Iterator[tuple[int, Row]]:
        """Yield (offset, row) of [first, end) in offset order. O(log n) and the rows taken."""
        for key in self._keys_between(first, end):
            for offset, row in self.block_items(key):
                if first <= offset < end:
                    yield offset, row

    def select(
        self, first: int, end: int, reason: str = "", before_us: int | None = None
    ) -> Iterator[Selection]:
        """Yield the letters of [first, end) with ``reason`` whose last attempt is before a time.

        An empty reason, or a ``before_us`` of None, matches every letter. Yields one value per
        block with letters, in order.
        """
        index = self.reasons.index_of(reason) if reason else None
        if reason and index is None:
            return
        if len(self.reasons) == 1:
            index = None
        for key in self._keys_between(first, end):
            base = key << BLOCK_SHIFT
            inside = (1 << min(end - base, BLOCK_OFFSETS)) - (1 << max(first - base, 0))
            bits, others = self._matching(key, index, before_us)
            yield Selection(key, bits & inside, others & inside)

    def remove(self, letters: list[tuple[int, int]]) -> None:
        """Remove these letters, as (block, bits) in order."""
        for key, gone in letters:
            self._remove_bits(key, gone)
        if letters:
            self._drop_keys(letters[0][0], letters[-1][0])

    def drop_range(self, first: int, end: int) -> None:
        """Remove the letters of [first, end). O(the blocks of the range)."""
        self.remove([(key, bits) for key, bits, _ in self.select(first, end)])

    def clear(self) -> None:
        """Remove all letters."""
        super().clear()
        self._keys.clear()
        self.reasons = Reasons()

    def load(self, reasons: list[str]) -> None:
        """Derive the other attributes from ``blocks``, whose rows index ``reasons``.

        Raises IndexError.
        """
        self._keys = sorted(self.blocks)
        letters: Counter[int] = Counter()
        for _, rows in self.blocks.values():
            letters.update(_reason_column(rows))
        self.reasons.load(reasons, letters)

    def _keys_between(self, first: int, end: int) -> Iterator[int]:
        """Yield the keys of the blocks of [first, end) in order.

        The caller may remove blocks between two keys.
        """
        low, high = first >> BLOCK_SHIFT, (end - 1) >> BLOCK_SHIFT
        while first < end and (at := bisect_left(self._keys, low)) < len(self._keys):
            key = self._keys[at]
            if key > high:
                break
            yield key
            low = key + 1

    def _drop_keys(self, low: int, high: int) -> None:
        """Drop the keys from ``low`` to ``high`` whose block was removed."""
        at, stop = bisect_left(self._keys, low), bisect_right(self._keys, high)
        self._keys[at:stop] = [key for key in self._keys[at:stop] if key in self.blocks]

    def _remove_bits(self, key: int, gone: int) -> None:
        """Remove letters of one block."""
        bits, rows = self.blocks[key]
        reasons = _reason_column(rows)
        if gone == bits:
            del self.blocks[key]
        else:
            kept = bits & ~gone
            each = unpack(f"{self.layout.size}s" * bits.bit_count(), rows)
            self.blocks[key] = (kept, b"".join(compress(each, _ranks(bits, kept))))
            reasons = list(compress(reasons, _ranks(bits, gone)))
        self.count -= gone.bit_count()
        self.reasons.discard(Counter(reasons))

    def _matching(self, key: int, reason: int | None, before_us: int | None) -> tuple[int, int]:
        """Return the bits of a block that match, and the other bits with the same reason."""
        bits, rows = self.blocks[key]
        if reason is None and before_us is None:
            return bits, 0
        with_reason = before = bits
        if reason is not None:
            reasons = _reason_column(rows)
            count = reasons.count(reason)
            if not count:
                return 0, 0
            if count < len(reasons):
                with_reason = _where(bits, bytes(map(reason.__eq__, reasons)))
        if before_us is not None:
            times = _times(len(rows) // self.layout.size).unpack(rows)
            if max(times) >= before_us:
                before = _where(bits, bytes(map(before_us.__gt__, times)))
        return with_reason & before, with_reason & ~before


def _reason_column(rows: bytes) -> list[int]:
    """Return the reason indexes of packed rows of `DEAD_LAYOUT`."""
    return memoryview(rows).cast("I")[_REASON_AT::_ROW_COLUMNS].tolist()


def renumber_reasons(
    blocks: Mapping[int, Block], reasons: Collection[int]
) -> Iterator[tuple[int, Block]]:
    """Yield (key, block) with each reason index replaced by its rank in ``reasons``."""
    ranks = {index: rank for rank, index in enumerate(reasons)}
    if len(ranks) == max(ranks, default=-1) + 1:
        yield from blocks.items()
        return
    for key, (bits, rows) in blocks.items():
        columns = array("I", rows)
        columns[_REASON_AT::_ROW_COLUMNS] = array("I", map(ranks.__getitem__, _reason_column(rows)))
        yield key, (bits, columns.tobytes())


@lru_cache(BLOCK_OFFSETS)
def _times(count: int) -> Struct:
    """Return a struct that unpacks the last attempts of ``count`` rows of `DEAD_LAYOUT`."""
    return Struct("<" + "20xq" * count)


def _where(bits: int, flags: bytes) -> int:
    """Return the bits whose flag, in order, is 1."""
    if 1 not in flags:
        return 0
    if bits == _ALL:
        return int(flags.translate(_DIGITS)[::-1], 2)
    found = 0
    for flag in flags:
        low = bits & -bits
        bits ^= low
        if flag:
            found |= low
    return found


def _ranks(bits: int, some: int) -> Iterator[bool]:
    """Yield for each of the bits, in order, whether it is in ``some``."""
    while bits:
        low = bits & -bits
        bits ^= low
        yield bool(some & low)
