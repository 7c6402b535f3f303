# Tests: tests/groups/test_delays.py
"""Records that wait, and when each is ready again.

A heap entry for every record would cost several times what the record does. Here each block of 256
offsets has one entry, for its earliest record; whoever takes that record finds the next one of the
block by looking through it. Records of a batch that failed together leave together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct, pack, unpack

from brokerd.groups.bitmaps import BIT, keys_between
from brokerd.groups.due_queue import DueQueue
from brokerd.groups.rows import BLOCK_OFFSETS, BLOCK_SHIFT, Block, OffsetRows

LAYOUT = "<q"
"""When the record is ready, microseconds."""

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
        """How many records wait."""
        return self.rows.count

    def put(self, offset: int, ready_us: int) -> None:
        """Let ``offset``, which does not wait yet, wait until ``ready_us``."""
        self.rows.put(offset, ready_us)
        key = offset >> BLOCK_SHIFT
        earliest_us = self._earliest_us.get(key)
        if earliest_us is None or ready_us < earliest_us:
            self._expect(key, ready_us)

    def discard(self, offset: int) -> bool:
        """Let ``offset`` wait no longer; False when it did not."""
        row = self.rows.pop(offset)
        if row is None:
            return False
        key = offset >> BLOCK_SHIFT
        if row[0] == self._earliest_us[key]:
            self._look_through(key)
        return True

    def discard_range(self, first: int, end: int) -> None:
        """Let the records of [first, end) wait no longer. O(the blocks of the range, or all)."""
        blocks = self.rows.blocks
        low, high = first >> BLOCK_SHIFT, (end >> BLOCK_SHIFT) + 1
        touched = [key for key in keys_between(blocks, len(blocks), low, high) if key in blocks]
        self.rows.drop_range(first, end)
        for key in touched:
            self._look_through(key)

    def pop_before(self, bound_us: int) -> tuple[int, int] | None:
        """Take out records that are ready before ``bound_us``: (block, bits), or None."""
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
        self._look_through(key)
        return key, ready

    def blocks_before(self, bound_us: int) -> list[int]:
        """The blocks in which something is ready before ``bound_us``, in order. O(blocks)."""
        return sorted(key for key, ready_us in self._earliest_us.items() if ready_us < bound_us)

    def block_before(self, key: int, bound_us: int) -> list[tuple[int, int]]:
        """(time, offset) of the records of a block that are ready before ``bound_us``."""
        if key not in self.rows.blocks:
            return []
        bits, packed = self.rows.blocks[key]
        return [
            (ready_us, (key << BLOCK_SHIFT) + _position(bits, rank))
            for rank, ready_us in enumerate(_times(packed))
            if ready_us < bound_us
        ]

    def may_be_due(self, bound_us: int) -> bool:
        """Whether ``pop_before`` may find something; cheap, and True for nothing at times."""
        return self._queue.may_be_due(bound_us)

    def next_us(self) -> int | None:
        """When the first record is ready, or None."""
        return self._queue.earliest_us()

    def clear(self) -> None:
        """Forget all."""
        self.rows.clear()
        self._earliest_us.clear()
        self._queue.refill([])

    def load(self, by_us: int) -> None:
        """Move every time in ``rows`` by ``by_us`` and expect all its blocks."""
        self.rows.blocks.update(list(moved(self.rows.blocks, by_us)))
        for key, (_, packed) in self.rows.blocks.items():
            self._expect(key, min(_times(packed)))

    def _expect(self, key: int, ready_us: int) -> None:
        self._earliest_us[key] = ready_us
        self._queue.push(ready_us, key)

    def _look_through(self, key: int) -> None:
        """Expect the earliest record that is left in a block, if any is."""
        block = self.rows.blocks.get(key)
        if block is None:
            del self._earliest_us[key]
        else:
            self._expect(key, min(_times(block[1])))


def moved(blocks: Mapping[int, Block], by_us: int) -> Iterator[tuple[int, Block]]:
    """(key, block) of blocks of delays, with every time moved by ``by_us``."""
    for key, (bits, packed) in blocks.items():
        times = [ready_us + by_us for ready_us in _times(packed)]
        yield key, (bits, pack(f"<{len(times)}q", *times))


def _position(bits: int, rank: int) -> int:
    """Where in a block the bit is before which ``rank`` others are set."""
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
