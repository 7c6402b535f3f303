# Tests: tests/broker/test_damage.py
"""What is known to be damaged and is not served: where it lies, and which offsets it took.

Damage is found by the replay of a start, and by reads while the broker serves. Everything is told
once in the log, and stays in the status for as long as the process lives: nothing here is ever
taken back, because only ``brokerctl wal repair`` and a new start can say that it is over.

A place is one however often damage is found in it. Where nobody can tell the place, as when the
header of an entry is gone that a read looks for, all such damage of a partition is one.

Memory: at most `RANGES_MAX` ranges of offsets, as many places to tell apart, `SHOWN_MAX`
descriptions, and `BURIED_MAX` ranges that groups came to; what reads find beyond that is known to
their groups' dead letters alone.
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
"""How many places a status describes, and ranges of each, and a start logs one by one."""

BURIED_MAX = 1_000
"""Of how many groups' partitions it is known to which damaged range they came last."""

ARCHIVE_ADVICE = "bring the damaged files of the archive back from a backup"


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
        """As a status shows it; ``last`` is inclusive."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "first": self.first,
            "last": self.end - 1,
        }


class Place(NamedTuple):
    """A stretch of a file that is wrong; the positions are -1 where nobody can tell."""

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
        """Add a range; returns how many ranges and how many numbers that made more."""
        low = bisect_left(self.ends, first)
        high = bisect_right(self.firsts, end)
        covered = sum(self.ends[low:high]) - sum(self.firsts[low:high])
        if low < high:
            first = min(first, self.firsts[low])
            end = max(end, self.ends[high - 1])
        self.firsts[low:high] = [first]
        self.ends[low:high] = [end]
        return 1 - (high - low), end - first - covered

    def hold(self, first: int, end: int) -> bool:
        """Whether all of a range is in them."""
        at = bisect_right(self.firsts, first) - 1
        return at >= 0 and end <= self.ends[at]


class _Shown:
    """A place, and all that is known to be lost there."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lost: dict[tuple[str, int], _Spans] = {}

    def add(self, lost: Iterable[OffsetRange]) -> None:
        for one in lost:
            self._lost.setdefault((one.topic, one.partition), _Spans()).add(one.first, one.end)

    def described(self) -> dict[str, Any]:
        """As a status shows it; ``problem`` is what was found first."""
        lost = [one.described() for one in islice(self._ranges(), SHOWN_MAX)]
        return {**self._place._asdict(), "lost": lost}

    def _ranges(self) -> Iterator[OffsetRange]:
        for (topic, partition), spans in self._lost.items():
            for first, end in zip(spans.firsts, spans.ends, strict=True):
                yield OffsetRange(topic, partition, first, end)


def _key(place: Place, lost: list[OffsetRange]) -> tuple[str, int, int]:
    """What tells a place from others; where nobody can tell the place, the partition does."""
    if place.file or not lost:
        return place[:3]
    return lost[0].topic, lost[0].partition, -1


class DamageRegistry:
    """All that one run of the broker knows of damage; ``data_dir`` is for the advice it gives."""

    _log = Logger()

    def __init__(self, data_dir: str = "DATA_DIR") -> None:
        self._advice = f"run brokerctl --data-dir {shlex.quote(data_dir)} wal verify"
        self._in_log = False
        self._in_archive = False
        self.places = 0
        """Damaged places of the log and the archive."""
        self.ranges = 0
        """Ranges of offsets that cannot be read; those that touch are one."""
        self.records = 0
        """Offsets in them."""
        self.reads = 0
        """Tries to read a record that met damage, known or not."""
        self.failed_reads = 0
        """Reads that failed otherwise: of what the disk holds they say nothing."""
        self._spans: dict[tuple[str, int], _Spans] = {}
        self._known: set[tuple[str, int, int]] = set()
        self._shown: dict[tuple[str, int, int], _Shown] = {}
        self.recorded_places = 0
        """Damaged places that a repair has put on record; they are not among ``places``."""
        self.recorded_records = 0
        """Offsets known to be lost in them."""
        self._buried: OrderedDict[tuple[int, int, str], OffsetRange] = OrderedDict()
        """The damaged range that a group came to last: by topic id, partition and its name."""
        self._recorded: dict[tuple[str, int], _Spans] = {}
        self._recorded_shown: list[dict[str, Any]] = []
        self._left_out: list[dict[str, Any]] = []
        self._left_out_count = 0

    # -- what is found ------------------------------------------------------------------------

    def found(self, place: Place, lost: Iterable[OffsetRange]) -> None:
        """The replay found a damaged place, and what records it can tell are lost by it."""
        ranges = list(lost)
        for one in ranges:
            self._lose(one)
        self._in_log = True
        self._show(place, ranges[:SHOWN_MAX])
        self._log.error(
            "damage in the log, not served: {place}{lost}; {advice}",
            event_id="damage",
            advice=self._advice,
            place=str(place),
            lost="".join(f"; lost {one}" for one in ranges[:SHOWN_MAX]),
            **place._asdict(),
        )

    def on_record(self, place: Place, lost: Iterable[OffsetRange]) -> None:
        """A repair has put a damaged place on record: it is known, and degrades nothing."""
        shown = _Shown(place)
        for one in lost:
            spans = self._recorded.setdefault((one.topic, one.partition), _Spans())
            self.recorded_records += spans.add(one.first, one.end)[1]
            shown.add([one])
        self.recorded_places += 1
        if len(self._recorded_shown) < SHOWN_MAX:
            self._recorded_shown.append(shown.described())

    def left_out(self, what: OffsetRange) -> None:
        """The replay leaves offsets out which damage may have held: nobody knows whether it did."""
        self._left_out_count += 1
        if len(self._left_out) < SHOWN_MAX:
            self._left_out.append(what.described())
            self._log.error(
                "{range} are left out: damaged bytes may have held them",
                event_id="offsets-left-out",
                range=str(what),
                **what.described(),
            )

    def read_damaged(
        self, partition: Partition, first: int, end: int, place: Place, in_archive: bool = False
    ) -> None:
        """A read met damage."""
        self.reads += 1
        lost = OffsetRange(partition.topic.name, partition.index, first, end)
        recorded = self._recorded.get((lost.topic, lost.partition))
        if recorded is not None and recorded.hold(first, end):
            return
        if self._lose(lost):
            self._in_archive |= in_archive
            self._in_log |= not in_archive
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

    def buried(self, group_partition: GroupPartition, first: int, end: int, damage: str) -> None:
        """A record of a damaged range became a dead letter; told once a group and range."""
        partition = group_partition.partition
        key = partition.topic.topic_id, partition.index, group_partition.group.name
        told = self._buried.pop(key, None)
        lost = OffsetRange(partition.topic.name, partition.index, first, end)
        if told is not None and told.first <= first and end <= told.end:
            lost = told
        else:
            self._log.error(
                "{lost} are damaged, and each that group {group!r} comes to is a dead letter of "
                "it now: {damage}",
                event_id="record-damaged",
                lost=str(lost),
                group=group_partition.group.name,
                damage=damage,
                **lost.described(),
            )
        self._buried[key] = lost
        if len(self._buried) > BURIED_MAX:
            self._buried.popitem(last=False)

    def read_failed(self, partition: Partition, offset: int, error: Exception) -> None:
        """A read failed in a way that may pass."""
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
        """Count a range; whether any of it is news."""
        if self.ranges >= RANGES_MAX:
            return False
        spans = self._spans.setdefault((lost.topic, lost.partition), _Spans())
        ranges, records = spans.add(lost.first, lost.end)
        self.ranges += ranges
        self.records += records
        return records > 0

    def _show(self, place: Place, lost: list[OffsetRange]) -> None:
        """Count a place if it is news, and describe what is lost there."""
        key = _key(place, lost)
        if key not in self._known:
            self.places += 1
            if len(self._known) < RANGES_MAX:
                self._known.add(key)
            if len(self._shown) < SHOWN_MAX:
                self._shown[key] = _Shown(place)
        if key in self._shown:
            self._shown[key].add(lost)

    # -- what can be seen ---------------------------------------------------------------------

    def known_places(self) -> Iterator[tuple[str, int, int]]:
        """File, position and end of the damaged places of which somebody can tell these."""
        return (key for key in self._known if key[2] >= 0)

    @property
    def reason(self) -> str:
        """Why the broker is degraded, "" if it is not."""
        if not self.places:
            return ""
        where = [("the log", self._advice, self._in_log)]
        where.append(("the archive", ARCHIVE_ADVICE, self._in_archive))
        what = " and ".join(name for name, _, is_damaged in where if is_damaged)
        advice = ", ".join(text for _, text, is_damaged in where if is_damaged)
        return (
            f"{what} is damaged (places: {self.places}, records known to be lost: {self.records})"
            "; the rest is served, and this is said until a restart; see damage in "
            f"/api/v1/status, {advice}"
        )

    def status(self) -> dict[str, Any]:
        """Counts, and the first places and ranges, in values that JSON can hold."""
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
