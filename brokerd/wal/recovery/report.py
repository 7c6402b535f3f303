# Tests: tests/wal/test_recover.py, tests/wal/test_damage_fingerprint.py
"""The report of a replay: frames, damage, lost records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.wal.recovery.damage_fingerprint import DamageFingerprint
from brokerd.walformat import SEGMENT_HEADER_BYTES, Entry


class LostRange(NamedTuple):
    """Offsets of a partition that cannot be read any more. ``end`` is exclusive."""

    topic_id: int
    partition: int
    first: int
    end: int

    def lies_in(self, other: LostRange) -> bool:
        return self[:2] == other[:2] and other.first <= self.first and self.end <= other.end


class KnownEnd(NamedTuple):
    """The files in ``state/`` prove that the log was synced up to ``lsn``.

    0 and empty values mean that no file proves anything.
    """

    lsn: int = 0
    segment_lsn: int = 0
    """The first LSN of the last segment."""
    segment_id: bytes = b""
    """The id of that segment, empty if it is not known."""
    next_topic_id: int = 0
    assigned: Sequence[LostRange] = ()
    """Offsets that have records, or had them."""
    starts: Mapping[tuple[int, int], int] = {}
    """(topic id, partition) -> records below this offset are removed."""


NOTHING_KNOWN = KnownEnd()
"""No file in ``state/`` proves anything."""


class Frame(NamedTuple):
    """A replayed frame with its sound entries. ``end`` is the LSN after it."""

    lsn: int
    end: int
    time_us: int
    entries: list[Entry]
    lost: Sequence[LostRange] = ()
    """Batches with a sound header and a damaged body."""


@dataclass(frozen=True)
class Damage:
    """Bytes that were written and synced once, and are wrong now."""

    name: str
    """File name of the segment."""
    position: int
    end: int
    """Position of the next sound byte."""
    problem: str
    lost: list[LostRange] = field(default_factory=list)
    """Lost records, as far as entry headers and gaps in later offsets tell."""
    is_counted: bool = False
    """All entries have sound headers, so that ``lost`` is complete."""

    @property
    def may_hold_frames(self) -> bool:
        """Whether frames may be damaged. False for a header block and for a stray file."""
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
    """The state of the log at a start."""

    frames: int = 0
    """Frames applied."""
    bytes: int = 0
    """Bytes of the frames applied."""
    seconds: float = 0.0
    cut: Cut | None = None
    damages: list[Damage] = field(default_factory=list)
    """Damage without a record in the log."""
    recorded: list[Damage] = field(default_factory=list)
    """Damage that a repair recorded in the log."""
    loss_entries: list[Entry] = field(default_factory=list)
    """The LOST entries that were read."""
    stale_losses: list[Entry] = field(default_factory=list)
    """LOST entries whose damage has changed since."""
    damage_fingerprints: list[DamageFingerprint] = field(default_factory=list)
    """The damage that the replayed state reflects, recorded damage included."""
    first_lsn: int = 0
    """The first LSN of the log, as far as it is known."""
    known_end: KnownEnd = NOTHING_KNOWN
    """How far the log was synced, by the files in ``state/``."""
    next_lsn: int = 0
    next_offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    """(topic id, partition) -> the offset after the last known record."""
    last_topic_id: int = 0
    """The highest topic id in any entry header."""
    rewritten_bytes: int = 0
    """Accepted bytes that were written and synced again."""
    rebuilt_indexes: int = 0
    bad_indexes: list[str] = field(default_factory=list)
    """Problems of index files that had to be made again."""
    holes: list[LostRange] = field(default_factory=list)
    """Offsets before later ones of which no batch header is left."""
    foreign_names: list[str] = field(default_factory=list)
    """Names in the directory that do not belong to the log. They are left alone."""

    def follow(self, topic_id: int, partition: int, first: int, end: int) -> None:
        """Note that a partition has the offsets from ``first`` to ``end``.

        A gap before them, after damage, is lost by the last damage.
        """
        key = topic_id, partition
        # After retention a log without its beginning may begin with any offset.
        expected = self.next_offsets.get(key, first if self.first_lsn else 0)
        if first > expected and self.damages:
            hole = LostRange(topic_id, partition, expected, first)
            self.damages[-1].lost.append(hole)
            self.holes.append(hole)
        self.next_offsets[key] = max(expected, end)

    def keep_needed(self, log_starts: Mapping[tuple[int, int], int]) -> None:
        """Reduce all lost ranges to the offsets that the log must hold.

        Offsets of deleted segments are missing too, and no damage took them.
        """
        self.holes = needed_ranges(self.holes, log_starts)
        for damage in (*self.damages, *self.recorded):
            damage.lost[:] = needed_ranges(damage.lost, log_starts)


def needed_ranges(
    lost: Iterable[LostRange], log_starts: Mapping[tuple[int, int], int]
) -> list[LostRange]:
    """Return the parts of ``lost`` that the log must hold.

    The log must hold the offsets from ``log_starts`` on, by (topic id, partition). Lower offsets
    are removed, or an archive has them.
    """
    clipped = (one._replace(first=max(one.first, log_starts.get(one[:2], 0))) for one in lost)
    return [one for one in clipped if one.first < one.end]


def ranges_outside(gaps: Iterable[tuple[int, int]], next_offset: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of offsets below ``next_offset`` that are in no gap."""
    first = 0
    for gap_first, gap_end in sorted(gaps):
        if first < gap_first:
            yield first, gap_first
        first = max(first, gap_end)
    if first < next_offset:
        yield first, next_offset
