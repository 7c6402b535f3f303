# Tests: tests/wal/test_log.py
"""Options of a log: sizes, durability and reserves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from brokerd.walformat import SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN

MARK_ROOM_BYTES = 4096
"""The last reserve of all, which only marks use."""


@dataclass(frozen=True)
class WalOptions:
    """Options of a log. Raises ValueError for a segment size out of range."""

    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    durability: Literal["fsync", "interval", "os"] = "fsync"
    """When a frame counts as durable: with ``fsync`` when it is synced, else when it is written.
    With ``interval`` the owner calls ``Wal.sync`` regularly."""
    seal_age_us: int = 900_000_000
    reserve_bytes: int = 4 << 20
    """The allocated space for settles alone, at most an eighth of a segment."""
    last_reserve_bytes: int = 256 << 10
    """The part of the reserve that settles may not use, at most a quarter of it."""
    free_bytes_min: int = 64 << 20
    """Free bytes that allocation leaves on the disk for snapshots, indexes and the archive."""

    def __post_init__(self) -> None:
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(
                f"segment_bytes must be {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}, "
                f"not {self.segment_bytes}"
            )

    @cached_property
    def reserve(self) -> int:
        """Bytes of frames that ordinary work leaves free."""
        return min(self.reserve_bytes, self.segment_bytes // 8)

    @cached_property
    def last_reserve(self) -> int:
        """Bytes of frames that settles leave free for changes that take access away."""
        return min(self.last_reserve_bytes, self.reserve // 4)
