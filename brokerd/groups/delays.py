# Tests: tests/groups/test_delays.py
"""Delayed records, and the time at which each is ready again.

A heap entry for every record would cost several times the memory of its row. Here each block of 256
offsets has one entry, for its earliest record. When that record is ready, the block is searched for
the next one. Records with the same time leave together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct, pack, unpack

from brokerd.groups.bitmaps import BIT, keys_between
from brokerd.groups.due_queue import DueQueue
from brokerd.groups.rows import BLOCK_OFFSETS, BLOCK_SHIFT, Block, OffsetRows, block_parts

LAYOUT = "<q"
"""Time at which the record is ready, in microseconds."""

_TIME = Struct(LAYOUT)


class Delays:
    """Offsets and the times at which they are ready, earliest block first."""

    __slots__ = ("_earliest_us", "_queue", "rows")

    def __init__(self) -> None:
        self.rows = OffsetRows(LAYOUT)
        self._earliest_us: dict[int, int] = {}
        self._queue = DueQueue(self._earliest_us.get, self._earliest_us.__len__)

    @property
    def count(self) -> int:
        """Number of delayed records."""
        return self.rows.count

    def put(self, offset: int, ready_us: int) -> None:
        """Delay ``offset`` until ``ready_us``. It must not be delayed already."""
        self.rows.put(offset, ready_us)
        key = offset >> BLOCK_SHIFT
        earliest_us = self._earliest_us.get(key)
        if earliest_us is None or ready_us < earliest_us:
            self._expect(key, ready_us)

    def put_run(self, first: int, times_us: Sequence[int]) -> None:
        """Delay the offsets from ``first`` on until these times. None above is delayed already."""
        for key, bits, start, end in block_parts(first, first + len(times_us)):
            times = times_us[start - first : end - first]
            self.rows.put_above(key, bits, pack(f"<{len(times)}q", *times))
            ready_us = min(times)
            earliest_us = self._earliest_us.get(key)
            if earliest_us is None or ready_us < earliest_us:
                self._expect(key, ready_us)

    def discard(self, offset: int) -> bool:
        """Remove ``offset``; return False if it was not delayed."""
        row = self.rows.pop(offset)
        if row is None:
            return False
        key = offset >> BLOCK_SHIFT
        if row[0] == self._earliest_us[key]:
            self._push_earliest(key)
        return True

    def discard_range(self, first: int, end: int) -> None:
        """Remove the records of [first, end).

        O(the blocks of the range, or all blocks if fewer).
        """
        blocks = self.rows.blocks
        low, high = first >> BLOCK_SHIFT, (end >> BLOCK_SHIFT) + 1
        touched = [key for key in keys_between(blocks, len(blocks), low, high) if key in blocks]
        self.rows.drop_range(first, end)
        for key in touched:
            self._push_earliest(key)

    def pop_before(self, bound_us: int) -> tuple[int, int] | None:
        """Remove and return records ready before ``bound_us`` as (block, bits), or None."""
        key = self._queue.pop_before(bound_us)
        if key < 0:
            return None
        bits, packed = self.rows.blocks[key]
        first = key << BLOCK_SHIFT
        due = [rank for rank, ready_us in enumerate(_times(packed)) if ready_us < bound_us]
        if len(due) == bits.bit_count():
            self.rows.drop_range(first, first + BLOCK_OFFSETS)
            del self._earliest_us[key]
            return key, bits
        ready = 0
        for rank in due:
            position = _position(bits, rank)
            self.rows.pop(first + position)
            ready |= BIT[position]
        self._push_earliest(key)
        return key, ready

    def blocks_before(self, bound_us: int) -> list[int]:
        """Return the blocks with a record ready before ``bound_us``, in order. O(blocks)."""
        return sorted(key for key, ready_us in self._earliest_us.items() if ready_us < bound_us)

    def block_before(self, key: int, bound_us: int) -> list[tuple[int, int]]:
        """Return (time, offset) of the records of a block that are ready before ``bound_us``."""
        if key not in self.rows.blocks:
            return []
        bits, packed = self.rows.blocks[key]
        return [
            (ready_us, (key << BLOCK_SHIFT) + _position(bits, rank))
            for rank, ready_us in enumerate(_times(packed))
            if ready_us < bound_us
        ]

    def may_be_due(self, bound_us: int) -> bool:
        """Return False if ``pop_before`` would find nothing.

        A cheap test that may be wrong if True.
        """
        return self._queue.may_be_due(bound_us)

    def next_us(self) -> int | None:
        """Return the time at which the first record is ready, or None."""
        return self._queue.earliest_us()

    def clear(self) -> None:
        """Remove all records."""
        self.rows.clear()
        self._earliest_us.clear()
        self._queue.refill([])

    def load(self, by_us: int) -> None:
        """Move every time in ``rows`` by ``by_us`` and expect all its blocks."""
        self.rows.blocks.update(list(shift_times(self.rows.blocks, by_us)))
        for key, (_, packed) in self.rows.blocks.items():
            self._expect(key, min(_times(packed)))

    def _expect(self, key: int, ready_us: int) -> None:
        self._earliest_us[key] = ready_us
        self._queue.push(ready_us, key)

    def _push_earliest(self, key: int) -> None:
        """Push an entry for the earliest record of a block, if it has one."""
        block = self.rows.blocks.get(key)
        if block is None:
            del self._earliest_us[key]
        else:
            self._expect(key, min(_times(block[1])))


def shift_times(blocks: Mapping[int, Block], by_us: int) -> Iterator[tuple[int, Block]]:
    """Yield (key, block) with every time moved by ``by_us``."""
    for key, (bits, packed) in blocks.items():
        times = [ready_us + by_us for ready_us in _times(packed)]
        yield key, (bits, pack(f"<{len(times)}q", *times))


def _position(bits: int, rank: int) -> int:
    """Return the position of the set bit that has ``rank`` set bits below it."""
    position, width = 0, BLOCK_OFFSETS
    while width > 1:
        width >>= 1
        below = (bits >> position & (1 << width) - 1).bit_count()
        if rank >= below:
            rank -= below
            position += width
    return position


def _times(packed: bytes) -> tuple[int, ...]:
    return unpack(f"<{len(packed) // _TIME.size}q", packed)
