# Tests: tests/wal/test_log.py
"""How a log is kept: sizes, durability and what stays in reserve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from brokerd.walformat import SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN

MARK_ROOM_BYTES = 4096
"""Kept even from settles, so that marks can always be written."""


@dataclass(frozen=True)
class WalOptions:
    """Raises ValueError for sizes that make no sense."""

    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    durability: Literal["fsync", "interval", "os"] = "fsync"
    """When a frame counts as durable: synced, or (the two others) written. With ``interval`` the
    owner calls ``Wal.sync`` at the interval of its choice."""
    seal_age_us: int = 900_000_000
    reserve_bytes: int = 4 << 20
    """Of the allocated space, what only settles may use; at most an eighth of a segment."""
    last_reserve_bytes: int = 256 << 10
    """Of the reserve, what not even settles may use; at most a quarter of it."""
    free_bytes_min: int = 64 << 20
    """Allocation leaves this much of the disk to snapshots, indexes and the archive."""

    def __post_init__(self) -> None:
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(
                f"segment_bytes must be {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}, "
                f"not {self.segment_bytes}"
            )

    @property
    def reserve(self) -> int:
        """Bytes of frames that ordinary work must leave."""
        return min(self.reserve_bytes, self.segment_bytes // 8)

    @property
    def last_reserve(self) -> int:
        """Bytes of frames that settles must leave to what shuts somebody out."""
        return min(self.last_reserve_bytes, self.reserve // 4)
