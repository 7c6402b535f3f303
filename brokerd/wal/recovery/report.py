# Tests: tests/wal/test_recover.py
"""The values in which a replay reports what it found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.wal.recovery.damage_fingerprint import KnownDamage
from brokerd.walformat import SEGMENT_HEADER_BYTES, Entry


class LostRange(NamedTuple):
    """Offsets of a partition that cannot be read any more; ``end`` is exclusive."""

    topic_id: int
    partition: int
    first: int
    end: int

    def lies_in(self, other: LostRange) -> bool:
        return self[:2] == other[:2] and other.first <= self.first and self.end <= other.end


class Frame(NamedTuple):
    """A frame as replayed: the entries of it that are sound. ``end`` is the LSN just past it."""

    lsn: int
    end: int
    time_us: int
    entries: list[Entry]
    lost: Sequence[LostRange] = ()
    """Batches in the frame of which only the entry's header is sound."""


@dataclass(frozen=True)
class Damage:
    """Bytes that were written and synced once, and are wrong now."""

    name: str
    """The segment's file name."""
    position: int
    end: int
    """Position of the next byte that is sound."""
    problem: str
    lost: list[LostRange] = field(default_factory=list)
    """As far as entry headers and the gaps in later offsets tell."""
    is_counted: bool = False
    """Every entry there ever was has a sound header, so that no record is lost unknown."""

    @property
    def may_hold_frames(self) -> bool:
        """Whether it may have hit frames: it is no header block, and no stray file."""
        is_stray = self.is_counted and self.position < SEGMENT_HEADER_BYTES
        return self.end > SEGMENT_HEADER_BYTES and not is_stray

    def __str__(self) -> str:
        text = f"{self.name} at {self.position} to {self.end}: {self.problem}"
        for lost in self.lost:
            text += (
                f"; lost topic id {lost.topic_id} partition {lost.partition} "
                f"offsets {lost.first} to {lost.end - 1}"
            )
        return text


class Cut(NamedTuple):
    """Where a torn tail was cut off."""

    name: str
    position: int
    lsn: int
    problem: str


@dataclass
class RecoveryReport:
    """What a start found."""

    frames: int = 0
    """Frames applied."""
    bytes: int = 0
    """Bytes of the frames applied."""
    seconds: float = 0.0
    cut: Cut | None = None
    damages: list[Damage] = field(default_factory=list)
    recorded: list[Damage] = field(default_factory=list)
    """Damage that a repair has put on record; it is not among ``damages``."""
    loss_entries: list[Entry] = field(default_factory=list)
    """The LOST entries that were read."""
    void_losses: list[Entry] = field(default_factory=list)
    """Those of them whose place is not as it was recorded any more."""
    known: list[KnownDamage] = field(default_factory=list)
    """The places whose damage the replayed state shows, those on record included."""
    first_lsn: int = 0
    """Where the log is known to begin."""
    next_lsn: int = 0
    next_offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    """(topic id, partition) -> the offset after the last known record."""
    last_topic_id: int = 0
    """The highest that the header of any entry names, its body sound or not."""
    rewritten_bytes: int = 0
    """Accepted bytes that were written and synced again."""
    rebuilt_indexes: int = 0
    bad_indexes: list[str] = field(default_factory=list)
    """What was wrong with index files that had to be made again."""
    holes: list[LostRange] = field(default_factory=list)
    """Offsets before others of which not even a batch's header is left."""
    odd: list[str] = field(default_factory=list)
    """Names in the directory that are none of the log's; they are left alone."""

    def follow(self, topic_id: int, partition: int, first: int, end: int) -> None:
        """Follow the offsets of a partition; a gap after damage is what the damage lost."""
        key = topic_id, partition
        # A log without its beginning, as retention leaves it, may begin with any offset.
        expected = self.next_offsets.get(key, first if self.first_lsn else 0)
        if first > expected and self.damages:
            hole = LostRange(topic_id, partition, expected, first)
            self.damages[-1].lost.append(hole)
            self.holes.append(hole)
        self.next_offsets[key] = max(expected, end)

    def take_back(self, needed: Mapping[tuple[int, int], int]) -> None:
        """Do not call lost what the log need not hold: `still_needed`.

        Where segments were deleted, offsets are missing that no damage took.
        """
        self.holes = still_needed(self.holes, needed)
        for damage in (*self.damages, *self.recorded):
            damage.lost[:] = still_needed(damage.lost, needed)


def still_needed(
    lost: Iterable[LostRange], needed: Mapping[tuple[int, int], int]
) -> list[LostRange]:
    """What of some ranges the log has to hold.

    These are, by (topic id, partition), the offsets from ``needed`` on: those below are removed, or
    an archive has them.
    """
    clipped = (one._replace(first=max(one.first, needed.get(one[:2], 0))) for one in lost)
    return [one for one in clipped if one.first < one.end]
