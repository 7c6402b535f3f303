# Tests: tests/groups/test_dead_letters.py, tests/groups/test_model.py
"""The dead letters of a partition, chosen and taken out by the block.

An operator may replay or purge a million of them at once. What is done here to a block of 256
offsets of which all letters are chosen takes microseconds; blocks of which some are chosen are
looked through.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import compress
from struct import Struct, unpack
from typing import NamedTuple

from brokerd.groups.attempts import DEAD_LAYOUT
from brokerd.groups.bitmaps import keys_between
from brokerd.groups.rows import BLOCK_OFFSETS, BLOCK_SHIFT, OffsetRows

_REASON_AT = 2
"""Where in a row of `DEAD_LAYOUT` the reason is, in columns of four bytes."""
_ALL = (1 << BLOCK_OFFSETS) - 1
_DIGITS = bytes.maketrans(b"\0\1", b"01")


class Chosen(NamedTuple):
    """Of one block, the letters that were chosen, and those of the same reason that were not."""

    block: int
    bits: int
    others: int


class DeadLetters(OffsetRows):
    """Rows of `DEAD_LAYOUT`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(DEAD_LAYOUT)

    def chosen(
        self, first: int, end: int, reason: int | None, before_us: int | None
    ) -> Iterator[Chosen]:
        """The letters of [first, end) with ``reason`` whose last attempt was before ``before_us``.

        None does not matter. One for each block with letters, in order.
        """
        if first >= end:
            return
        low, high = first >> BLOCK_SHIFT, ((end - 1) >> BLOCK_SHIFT) + 1
        keys = keys_between(self.blocks, len(self.blocks), low, high)
        for key in sorted(key for key in keys if key in self.blocks):
            base = key << BLOCK_SHIFT
            inside = (1 << min(end - base, BLOCK_OFFSETS)) - (1 << max(first - base, 0))
            bits, others = self._matching(key, reason, before_us)
            yield Chosen(key, bits & inside, others & inside)

    def take_out(self, key: int, gone: int) -> None:
        """Remove these letters of a block."""
        bits, rows = self.blocks[key]
        if gone == bits:
            del self.blocks[key]
        else:
            kept = bits & ~gone
            each = unpack(f"{self.layout.size}s" * bits.bit_count(), rows)
            self.blocks[key] = (kept, b"".join(compress(each, _ranks(bits, kept))))
        self.count -= gone.bit_count()

    def _matching(self, key: int, reason: int | None, before_us: int | None) -> tuple[int, int]:
        """The bits of a block that match, and those that only have the reason."""
        bits, rows = self.blocks[key]
        if reason is None and before_us is None:
            return bits, 0
        with_reason = before = bits
        if reason is not None:
            reasons = memoryview(rows).cast("I")[_REASON_AT :: self.layout.size // 4].tolist()
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


@lru_cache(BLOCK_OFFSETS)
def _times(count: int) -> Struct:
    """The times of the last attempts in so many rows of `DEAD_LAYOUT`."""
    return Struct("<" + "20xq" * count)


def _where(bits: int, flags: bytes) -> int:
    """Those of the bits whose flag, in order, is 1."""
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
    """Whether each of the bits, in order, is one of these."""
    while bits:
        low = bits & -bits
        bits ^= low
        yield bool(some & low)
