# Tests: tests/broker/test_damage.py
"""Registers damage that the broker does not serve: the places in files and the lost offsets.

The replay of a start finds damage, and so do reads while the broker serves. The registry logs each
finding once. The status shows it until the process ends: only ``brokerctl wal repair`` and a new
start can prove that the damage is gone.

Damage is counted once per place, however often it is read. If the place is unknown, for example
because a read lacks the header of an entry, all such damage of a partition counts as one place.

Memory: at most `RANGES_MAX` ranges of offsets, `RANGES_MAX` places, `SHOWN_MAX` descriptions, and
`DEAD_LETTERED_MAX` ranges that groups reached. Only the groups' dead letters show further damage.
"""

from __future__ import annotations

import shlex
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from twisted.logger import Logger

from brokerd.broker.model.topics import GroupPartition, Partition

RANGES_MAX = 10_000
SHOWN_MAX = 100
"""Places that a status describes, ranges that it lists for each, and ranges that a start logs."""

DEAD_LETTERED_MAX = 1_000
"""Group partitions for which the registry keeps the damaged range that they reached last."""

ARCHIVE_ADVICE = "restore the damaged files of the archive from a backup"


class OffsetRange(NamedTuple):
    """Offsets of a partition; ``end`` is exclusive."""

    topic: str
    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} partition {self.partition} "
            f"offsets {self.first} to {self.end - 1}"
        )

    def described(self) -> dict[str, Any]:
        """Return the range as JSON values of the status; ``last`` is inclusive."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "first": self.first,
            "last": self.end - 1,
        }


class DamagedBytes(NamedTuple):
    """A damaged part of a file; the positions are -1 if they are unknown."""

    file: str
    position: int
    end: int
    problem: str

    def __str__(self) -> str:
        if not self.file:
            return self.problem
        return f"{self.file} at {self.position} to {self.end}: {self.problem}"


class _Spans:
    """Disjoint ranges of numbers, in order."""

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.ends: list[int] = []

    def add(self, first: int, end: int) -> tuple[int, int]:
        """Add a range; return how many ranges and how many numbers it added."""
        low = bisect_left(self.ends, first)
        high = bisect_right(self.firsts, end)
        covered = sum(self.ends[low:high]) - sum(self.firsts[low:high])
        if low < high:
            first = min(first, self.firsts[low])
            end = max(end, self.ends[high - 1])
        self.firsts[low:high] = [first]
        self.ends[low:high] = [end]
        return 1 - (high - low), end - first - covered

    def contains(self, first: int, end: int) -> bool:
        """Return whether one of the ranges contains the whole range."""
        at = bisect_right(self.firsts, first) - 1
        return at >= 0 and end <= self.ends[at]


class _Shown:
    """A damaged place and the offsets lost there."""

    def __init__(self, place: DamagedBytes) -> None:
        self._place = place
        self._lost: dict[tuple[str, int], _Spans] = {}

    def add(self, lost: Iterable[OffsetRange]) -> None:
        for one in lost:
            self._lost.setdefault((one.topic, one.partition), _Spans()).add(one.first, one.end)

    def described(self) -> dict[str, Any]:
        """Return the place as JSON values of the status; ``problem`` is the first problem found."""
        lost = [one.described() for one in islice(self._ranges(), SHOWN_MAX)]
        return {**self._place._asdict(), "lost": lost}

    def _ranges(self) -> Iterator[OffsetRange]:
        for (topic, partition), spans in self._lost.items():
            for first, end in zip(spans.firsts, spans.ends, strict=True):
                yield OffsetRange(topic, partition, first, end)


def _key(place: DamagedBytes, lost: list[OffsetRange]) -> tuple[str, int, int]:
    """Return the key of a place; the key of its partition if the place is unknown."""
    if place.file or not lost:
        return place[:3]
    return lost[0].topic, lost[0].partition, -1


class DamageRegistry:
    """Holds the damage that one run of the broker found; its advice names ``data_dir``."""

    _log = Logger()

    def __init__(self, data_dir: str = "DATA_DIR") -> None:
        self._advice = f"run brokerctl --data-dir {shlex.quote(data_dir)} wal verify"
        self.in_log = False
        """Whether the log is damaged."""
        self.in_archive = False
        """Whether the archive is damaged."""
        self.places = 0
        """Damaged places of the log and the archive."""
        self.ranges = 0
        """Unreadable ranges of offsets; adjacent ranges count as one."""
        self.records = 0
        """Unreadable offsets."""
        self.reads = 0
        """Reads of records that met damage, known or new."""
        self.failed_reads = 0
        """Reads that failed for other reasons, such as an error of the disk."""
        self._spans: dict[tuple[str, int], _Spans] = {}
        self._known: set[tuple[str, int, int]] = set()
        self._shown: dict[tuple[str, int, int], _Shown] = {}
        self.recorded_places = 0
        """Damaged places that a repair recorded; ``places`` does not count them."""
        self.recorded_records = 0
        """Offsets known to be lost in the recorded places."""
        self._dead_lettered: OrderedDict[tuple[int, int, str], OffsetRange] = OrderedDict()
        """The last damaged range that a group reached, by topic id, partition and group name."""
        self._recorded: dict[tuple[str, int], _Spans] = {}
        self._recorded_shown: list[dict[str, Any]] = []
        self._left_out: list[dict[str, Any]] = []
        self._left_out_count = 0

    # -- findings ----------------------------------------------------------------------------

    def found(self, place: DamagedBytes, lost: Iterable[OffsetRange]) -> None:
        """Register and log a damaged place that the replay found, with its lost offsets."""
        ranges = list(lost)
        for one in ranges:
            self._lose(one)
        self.in_log = True
        self._show(place, ranges[:SHOWN_MAX])
        self._log.error(
            "the log is damaged, and the broker does not serve this part: {place}{lost}; {advice}",
            event_id="damage",
            advice=self._advice,
            place=str(place),
            lost="".join(f"; lost {one}" for one in ranges[:SHOWN_MAX]),
            **place._asdict(),
        )

    def on_record(self, place: DamagedBytes, lost: Iterable[OffsetRange]) -> None:
        """Register a damaged place that a repair recorded; it does not degrade the broker."""
        shown = _Shown(place)
        for one in lost:
            spans = self._recorded.setdefault((one.topic, one.partition), _Spans())
            self.recorded_records += spans.add(one.first, one.end)[1]
            shown.add([one])
        self.recorded_places += 1
        if len(self._recorded_shown) < SHOWN_MAX:
            self._recorded_shown.append(shown.described())

    def left_out(self, what: OffsetRange) -> None:
        """Register offsets that the replay skips because damaged bytes may have held them."""
        self._left_out_count += 1
        if len(self._left_out) < SHOWN_MAX:
            self._left_out.append(what.described())
            self._log.error(
                "the broker skips {range}: damaged bytes may have held them",
                event_id="offsets-left-out",
                range=str(what),
                **what.described(),
            )

    def read_damaged(
        self,
        partition: Partition,
        first: int,
        end: int,
        place: DamagedBytes,
        in_archive: bool = False,
    ) -> None:
        """Register damage that a read met; log new damage."""
        self.reads += 1
        lost = OffsetRange(partition.topic.name, partition.index, first, end)
        recorded = self._recorded.get((lost.topic, lost.partition))
        if recorded is not None and recorded.contains(first, end):
            return
        if self._lose(lost):
            self.in_archive |= in_archive
            self.in_log |= not in_archive
            self._show(place, [lost])
            self._log.error(
                "{lost} cannot be read: {place}; {advice}",
                event_id="read-damaged",
                advice=ARCHIVE_ADVICE if in_archive else self._advice,
                lost=str(lost),
                place=str(place),
                **lost.described(),
                **place._asdict(),
            )

    def dead_lettered(
        self, group_partition: GroupPartition, first: int, end: int, damage: str
    ) -> None:
        """Log that a damaged record became a dead letter, once per group and range."""
        partition = group_partition.partition
        key = partition.topic.topic_id, partition.index, group_partition.group.name
        known = self._dead_lettered.pop(key, None)
        lost = OffsetRange(partition.topic.name, partition.index, first, end)
        if known is not None and known.first <= first and end <= known.end:
            lost = known
        else:
            self._log.error(
                "{lost} are damaged; each becomes a dead letter when group {group!r} reaches it: "
                "{damage}",
                event_id="record-damaged",
                lost=str(lost),
                group=group_partition.group.name,
                damage=damage,
                **lost.described(),
            )
        self._dead_lettered[key] = lost
        if len(self._dead_lettered) > DEAD_LETTERED_MAX:
            self._dead_lettered.popitem(last=False)

    def read_failed(self, partition: Partition, offset: int, error: Exception) -> None:
        """Count and log a read that failed for a reason that may pass."""
        self.failed_reads += 1
        self._log.error(
            "topic {topic!r} partition {partition} offset {offset} cannot be read now: {error}",
            event_id="read-failed",
            topic=partition.topic.name,
            partition=partition.index,
            offset=offset,
            error=str(error),
        )

    def _lose(self, lost: OffsetRange) -> bool:
        """Count a lost range; return whether any of its offsets is new."""
        if self.ranges >= RANGES_MAX:
            return False
        spans = self._spans.setdefault((lost.topic, lost.partition), _Spans())
        ranges, records = spans.add(lost.first, lost.end)
        self.ranges += ranges
        self.records += records
        return records > 0

    def _show(self, place: DamagedBytes, lost: list[OffsetRange]) -> None:
        """Count a place if it is new, and add the lost ranges to its description."""
        key = _key(place, lost)
        if key not in self._known:
            self.places += 1
            if len(self._known) < RANGES_MAX:
                self._known.add(key)
            if len(self._shown) < SHOWN_MAX:
                self._shown[key] = _Shown(place)
        if key in self._shown:
            self._shown[key].add(lost)

    # -- status -------------------------------------------------------------------------------

    def known_places(self) -> Iterator[tuple[str, int, int]]:
        """Yield file, position and end of the damaged places whose position is known."""
        return (key for key in self._known if key[2] >= 0)

    @property
    def reason(self) -> str:
        """The reason why the broker is degraded; "" if it is healthy."""
        if not self.places:
            return ""
        where = [("the log", self._advice, self.in_log)]
        where.append(("the archive", ARCHIVE_ADVICE, self.in_archive))
        what = " and ".join(name for name, _, is_damaged in where if is_damaged)
        advice = ", ".join(text for _, text, is_damaged in where if is_damaged)
        return (
            f"{what} is damaged (places: {self.places}, records known to be lost: {self.records})"
            "; the broker serves the rest, and repeats this until a restart; see damage in "
            f"/api/v1/status, {advice}"
        )

    def status(self) -> dict[str, Any]:
        """Return counts, and the first places and ranges, as JSON values."""
        return {
            "degraded": self.reason,
            "places": self.places,
            "ranges": self.ranges,
            "records": self.records,
            "reads": self.reads,
            "failed_reads": self.failed_reads,
            "shown": [shown.described() for shown in self._shown.values()],
            "recorded_places": self.recorded_places,
            "recorded_records": self.recorded_records,
            "recorded": self._recorded_shown,
            "left_out": self._left_out,
            "left_out_ranges": self._left_out_count,
        }
