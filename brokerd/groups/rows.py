# Tests: tests/groups/test_rows.py
"""A sparse table from offsets to rows of fixed size, in blocks of 256 offsets.

A block is (bits of the offsets with a row, the packed rows in offset order). The index of a row is
the number of set bits below its own. Blocks are immutable: a write makes a new one and copies at
most a few kilobytes. So a copy of the table of blocks is a snapshot. A row takes its packed size, a
block about 250 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from struct import Struct

from brokerd.groups.bitmaps import BIT, keys_between
from brokerd.groups.tables import Table, grow

BLOCK_SHIFT = 8
BLOCK_OFFSETS = 1 << BLOCK_SHIFT
BLOCK_MASK = BLOCK_OFFSETS - 1

Block = tuple[int, bytes]
Row = tuple[int, ...]


def block_parts(first: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (key, bits, first, end) of each block's part of the offsets [first, end)."""
    while first < end:
        key = first >> BLOCK_SHIFT
        stop = min(end, (key + 1) << BLOCK_SHIFT)
        yield key, ((1 << stop - first) - 1) << (first & BLOCK_MASK), first, stop
        first = stop


_struct = cache(Struct)
"""All tables of a layout share its Struct."""


class OffsetRows:
    """offset -> row of integers; ``layout`` is a struct format such as ``"<QQ"``."""

    __slots__ = ("blocks", "count", "layout")

    def __init__(self, layout: str) -> None:
        self.layout = _struct(layout)
        self.blocks: Table[Block] = {}
        self.count = 0

    @property
    def row_bytes(self) -> int:
        """Packed size of one row."""
        return self.layout.size

    def __contains__(self, offset: int) -> bool:
        block = self.blocks.get(offset >> BLOCK_SHIFT)
        return block is not None and bool(block[0] & BIT[offset & BLOCK_MASK])

    def get(self, offset: int) -> Row | None:
        """Return the row of ``offset``, or None."""
        block = self.blocks.get(offset >> BLOCK_SHIFT)
        if block is None:
            return None
        bits, rows = block
        bit = BIT[offset & BLOCK_MASK]
        if not bits & bit:
            return None
        return self.layout.unpack_from(rows, (bits & (bit - 1)).bit_count() * self.layout.size)

    def put(self, offset: int, *row: int) -> None:
        """Set the row of ``offset``."""
        bits, rows = self.blocks.get(offset >> BLOCK_SHIFT, (0, b""))
        bit = BIT[offset & BLOCK_MASK]
        start = (bits & (bit - 1)).bit_count() * self.layout.size
        rest = start
        if bits & bit:
            rest += self.layout.size
        else:
            self.count += 1
        packed = self.layout.pack(*row)
        self.blocks[offset >> BLOCK_SHIFT] = (bits | bit, rows[:start] + packed + rows[rest:])
        if not bits:
            self.blocks = grow(self.blocks)

    def fill(self, key: int, bits: int, *row: int) -> None:
        """Set one row for several offsets of a block. None of them may have a row."""
        base = key << BLOCK_SHIFT
        if key not in self.blocks:
            self.count += bits.bit_count()
            self.blocks[key] = (bits, self.layout.pack(*row) * bits.bit_count())
            self.blocks = grow(self.blocks)
            return
        while bits:
            low = bits & -bits
            bits ^= low
            self.put(base + low.bit_length() - 1, *row)

    def put_above(self, key: int, bits: int, packed: bytes) -> None:
        """Set the packed rows of several offsets of a block. They lie above all rows of the block.

        Raises ValueError otherwise.
        """
        old, rows = self.blocks.get(key, (0, b""))
        if old >= bits & -bits:
            raise ValueError(f"block {key} has rows at or above the new ones")
        self.blocks[key] = (old | bits, rows + packed)
        self.count += bits.bit_count()
        if not old:
            self.blocks = grow(self.blocks)

    def pop(self, offset: int) -> Row | None:
        """Remove and return the row of ``offset``, or None."""
        row = self.get(offset)
        if row is not None:
            self._remove(offset >> BLOCK_SHIFT, BIT[offset & BLOCK_MASK])
        return row

    def drop_range(self, first: int, end: int) -> None:
        """Remove the rows of [first, end). O(the blocks of the range, or all blocks if fewer)."""
        if first >= end:
            return
        low, high = first >> BLOCK_SHIFT, ((end - 1) >> BLOCK_SHIFT) + 1
        for key in keys_between(self.blocks, len(self.blocks), low, high):
            if key in self.blocks:
                base = key << BLOCK_SHIFT
                below_end = (1 << min(end - base, BLOCK_OFFSETS)) - 1
                self._remove(key, below_end ^ ((1 << max(first - base, 0)) - 1))

    def clear(self) -> None:
        """Remove all rows."""
        self.blocks = {}
        self.count = 0

    def items(self, first: int = 0, end: int = 1 << 63) -> Iterator[tuple[int, Row]]:
        """Yield (offset, row) of [first, end) in offset order."""
        low, high = first >> BLOCK_SHIFT, (end - 1) >> BLOCK_SHIFT
        for key in sorted(key for key in self.blocks if low <= key <= high):
            for offset, row in self.block_items(key):
                if first <= offset < end:
                    yield offset, row

    def block_items(self, key: int) -> Iterator[tuple[int, Row]]:
        """Yield (offset, row) of one block as of the call, in offset order."""
        bits, rows = self.blocks[key]
        for row in self.layout.iter_unpack(rows):
            low = bits & -bits
            bits ^= low
            yield (key << BLOCK_SHIFT) + low.bit_length() - 1, row

    def _remove(self, key: int, mask: int) -> None:
        """Remove the rows of the contiguous positions in ``mask`` from one block."""
        bits, rows = self.blocks[key]
        removed = bits & mask
        if removed == bits:
            del self.blocks[key]
        elif removed:
            start = (bits & ((mask & -mask) - 1)).bit_count() * self.layout.size
            rest = start + removed.bit_count() * self.layout.size
            self.blocks[key] = (bits ^ removed, rows[:start] + rows[rest:])
        self.count -= removed.bit_count()
