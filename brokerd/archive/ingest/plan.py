# Tests: tests/archive/test_plan.py
"""Plan a lot: the part of the log that is archived at once, divided into tasks. No Spark.

Each task writes one file. A lot lists partitions and segments; only one segment at a time is listed
by its batches. So the memory of a plan is bounded, however much of the log is pending.

Batches of deleted topics, and batches wholly below the start offset of their partition, are left
out: no client can read them, and the bounds never take that back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.contract.layout import BUCKETS, bucket_of
from brokerd.archive.errors import JobFailed
from brokerd.archive.journal.sealed import Batches, Segment, batches_of
from brokerd.archive.journal.segment_list import (
    Damage,
    Stop,
    damaged_places,
    sealed_segments,
)
from brokerd.archive.journal.topics import new_topics
from brokerd.walformat.index import FileIndex

PIECES_MAX = 1_000_000
"""The most pieces of a lot, apart from those of one segment. A piece takes 56 bytes."""
EVENTS_LOG_BYTES = 512 << 20
"""A file of events covers about this much of the log."""
SHARED_PART = 8
"""A partition with less than an eighth of a file's size shares a file with others. Pieces are about
an eighth of a file."""

PIECE = np.dtype(
    [
        ("topic_id", np.int64),
        ("partition", np.int64),
        ("first", np.int64),
        ("end", np.int64),
        ("bytes", np.int64),
        ("segment", np.int32),
        ("row", np.int32),
        ("rows", np.int32),
    ]
)
"""A piece: neighbouring batches of one partition in one segment. It has the offsets ``first`` to
``end``, exclusive, ``bytes`` of bodies, and ``rows`` rows of the segment's index from ``row`` on.
``segment`` is the number of the segment in the lot or task."""

Pieces = npt.NDArray[np.void]


class RecordsSplit(NamedTuple):
    """The input of a task that writes one file of records."""

    bucket: int
    segments: tuple[Segment, ...]
    pieces: Pieces
    """By topic id, partition and offset."""
    topics: Mapping[int, str]
    """Names by id."""
    gaps: Mapping[tuple[int, int], Sequence[tuple[int, int]]]
    """Offsets that were lost to damage, by topic id and partition."""
    known_damage: Damage

    @property
    def bytes(self) -> int:
        """The size of the bodies."""
        return int(self.pieces["bytes"].sum())


class EventsSplit(NamedTuple):
    """The input of a task that writes one file of events, or none if there are no events."""

    segments: tuple[Segment, ...]
    first_lsn: int
    end_lsn: int
    topics: Mapping[int, str]
    known_damage: Damage


class Lot(NamedTuple):
    """A part of the log that is archived at once. Without ``segments`` there is nothing to do."""

    segments: tuple[Segment, ...]
    first_lsn: int
    end_lsn: int
    records: list[RecordsSplit]
    events: list[EventsSplit]
    stop: Stop | None
    """Set if no lot can follow it for now."""

    @property
    def bytes(self) -> int:
        """The size of the segments."""
        return sum(segment.bytes for segment in self.segments)


# -- Pieces --------------------------------------------------------------------------------------


class _BatchFilter:
    """Leaves out the batches that no client can read."""

    def __init__(self, bounds: Bounds) -> None:
        self._next_topic_id = bounds.next_topic_id
        self._live = np.array(sorted(topic.id for topic in bounds.topics), np.int64)
        self._starts = bounds.start_offsets()

    def mask(self, batches: Batches) -> npt.NDArray[np.bool_]:
        """Return a mask without deleted topics and without batches below start offsets."""
        topic_id = batches.topic_id
        mask = np.isin(topic_id, self._live) | (topic_id >= self._next_topic_id)
        if self._starts:
            # A start offset is looked up once for each partition, not for each batch.
            heads = _heads(topic_id, batches.partition)
            keys = zip(topic_id[heads].tolist(), batches.partition[heads].tolist(), strict=True)
            starts = np.array([self._starts.get(key, 0) for key in keys], np.int64)
            lengths = np.diff(np.append(heads, len(topic_id)))
            mask &= batches.base_offset + batches.count > np.repeat(starts, lengths)
        return mask


def _heads(*columns: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return the rows at which any of the columns has a new value."""
    new = np.zeros(len(columns[0]), np.bool_)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


def _pieces(batches: Batches, mask: npt.NDArray[np.bool_], ordinal: int, size: int) -> Pieces:
    """Group batches of a segment into pieces of at most ``size`` bytes, or of one batch."""
    rows = np.flatnonzero(mask)
    if not len(rows):
        return np.empty(0, PIECE)
    selected = batches.select(rows)
    total = np.cumsum(selected.body_bytes)
    # Rows that are left out come first in their partition, so the rows of a piece are neighbours.
    part = _parts(selected, total, size)
    heads = _heads(selected.topic_id, selected.partition, part)
    lasts = np.append(heads[1:], len(rows)) - 1
    pieces = np.empty(len(heads), PIECE)
    pieces["topic_id"] = selected.topic_id[heads]
    pieces["partition"] = selected.partition[heads]
    pieces["first"] = selected.base_offset[heads]
    pieces["end"] = selected.base_offset[lasts] + selected.count[lasts]
    pieces["bytes"] = total[lasts] - total[heads] + selected.body_bytes[heads]
    pieces["segment"] = ordinal
    pieces["row"] = rows[heads]
    pieces["rows"] = lasts - heads + 1
    return pieces


def _parts(batches: Batches, total: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Return for each batch the number of its part, in parts of ``size`` bytes a partition."""
    heads = _heads(batches.topic_id, batches.partition)
    lengths = np.diff(np.append(heads, len(total)))
    before = np.repeat(total[heads] - batches.body_bytes[heads], lengths)
    part: npt.NDArray[np.int64] = (total - batches.body_bytes - before) // size
    return part


# -- Planning ------------------------------------------------------------------------------------


class LotLimits(NamedTuple):
    """Limits of a lot, in bytes."""

    lot_bytes: int
    """Of the log; a lot has at least one segment."""
    file_bytes: int
    """The approximate size of a file."""
    free_bytes: int
    """Free space of the archive. A file takes at most what its records take in the log."""


def plan_lot(
    wal: Path,
    bounds: Bounds,
    records_lsn: int,
    events_lsn: int,
    limits: LotLimits,
    before: Stop | None = None,
    names: dict[int, str] | None = None,
) -> Lot:
    """Plan the next lot.

    :param records_lsn: the table of records has the log below it.
    :param events_lsn: the table of events has the log below it.
    :param before: where the log must not be taken further.
    :param names: topic names, by id, that earlier lots found in the log. This lot adds its own:
        the broker may delete the segments that have them once they are archived.
    :raises JobFailed: there is no space for one segment.
    :raises FileNotFoundError: the broker deleted a segment meanwhile; so does OSError.
    """
    since = min(records_lsn, events_lsn)
    topics = _TopicNames(wal, bounds, {} if names is None else names)
    planner = _LotPlanner(bounds, records_lsn, limits)
    stop = None
    for found in sealed_segments(wal, bounds, since):
        if isinstance(found, Stop):
            stop = found
            break
        if before is not None and found.first_lsn >= before.lsn:
            stop = before
            break
        segment = Segment(found.path, found.segment_id, found.first_lsn, found.end_lsn)
        if not planner.has_space(segment):
            break
        pieces = planner.pieces(segment, found.index)
        stop = topics.look_up(segment, pieces)
        if stop is not None or not planner.add(segment, pieces):
            break
    return planner.lot(since, events_lsn, topics.names, stop)


class _LotPlanner:
    """Collects the segments of a lot."""

    def __init__(self, bounds: Bounds, records_lsn: int, limits: LotLimits) -> None:
        self._bounds = bounds
        self._filter = _BatchFilter(bounds)
        self._records_lsn = records_lsn
        self._limits = limits
        self._segments: list[Segment] = []
        self._pieces: list[Pieces] = []
        self._bytes = self._count = 0

    def has_space(self, segment: Segment) -> bool:
        """Return whether a segment fits the lot. Raises JobFailed if one alone does not fit."""
        lot_bytes, _, free_bytes = self._limits
        if self._segments:
            return self._bytes + segment.bytes <= min(lot_bytes, free_bytes)
        if segment.bytes > free_bytes:
            raise JobFailed(
                f"the archive has {free_bytes} bytes of free space, and "
                f"{os.path.basename(segment.path)} may need {segment.bytes}: free some space"
            )
        return True

    def pieces(self, segment: Segment, index: FileIndex) -> Pieces:
        """Return the pieces of a segment; none if the table of records has them."""
        if segment.first_lsn < self._records_lsn:
            return np.empty(0, PIECE)
        batches = batches_of(index)
        size = max(1, self._limits.file_bytes // SHARED_PART)
        return _pieces(batches, self._filter.mask(batches), len(self._segments), size)

    def add(self, segment: Segment, pieces: Pieces) -> bool:
        """Add a segment; return False if the lot would have too many pieces."""
        if self._segments and self._count + len(pieces) > PIECES_MAX:
            return False
        self._segments.append(segment)
        self._pieces.append(pieces)
        self._bytes += segment.bytes
        self._count += len(pieces)
        return True

    def lot(self, since: int, events_lsn: int, names: Mapping[int, str], stop: Stop | None) -> Lot:
        """Return the lot."""
        segments = tuple(self._segments)
        splitter = _Splitter(segments, self._bounds, names)
        pieces = np.concatenate([np.empty(0, PIECE), *self._pieces])
        return Lot(
            segments,
            since,
            segments[-1].end_lsn if segments else since,
            splitter.records(pieces, self._limits.file_bytes),
            splitter.events(events_lsn),
            stop,
        )


class _Splitter:
    """Divides a lot into tasks."""

    def __init__(
        self, segments: tuple[Segment, ...], bounds: Bounds, topics: Mapping[int, str]
    ) -> None:
        self._segments = segments
        self._topics = topics
        self._damage = damaged_places(bounds)
        self._gaps = {
            (topic.id, index): partition.gaps
            for topic, index, partition in bounds.partitions()
            if partition.gaps
        }

    def records(self, pieces: Pieces, file_bytes: int) -> list[RecordsSplit]:
        """Divide pieces into tasks, the largest first, so that no large task runs alone last."""
        topic_id = pieces["topic_id"]
        order = np.lexsort((pieces["first"], pieces["partition"], topic_id, topic_id % BUCKETS))
        pieces = pieces[order]
        splits = [self._records_split(part) for part in _divide(pieces, file_bytes)]
        return sorted(splits, key=lambda split: split.bytes, reverse=True)

    def _records_split(self, pieces: Pieces) -> RecordsSplit:
        ordinals, renumbered = np.unique(pieces["segment"], return_inverse=True)
        pieces = pieces.copy()
        pieces["segment"] = renumbered
        segments = tuple(self._segments[one] for one in ordinals.tolist())
        heads = _heads(pieces["topic_id"], pieces["partition"])
        keys = pieces[["topic_id", "partition"]][heads].tolist()
        return RecordsSplit(
            _bucket(pieces),
            segments,
            pieces,
            {topic_id: self._topics[topic_id] for topic_id, _ in keys},
            {key: self._gaps[key] for key in keys if key in self._gaps},
            self._damage_of(segments),
        )

    def events(self, lsn: int) -> list[EventsSplit]:
        """Divide the segments from an LSN on into tasks of about `EVENTS_LOG_BYTES`."""
        splits: list[EventsSplit] = []
        group: list[Segment] = []
        for segment in (one for one in self._segments if one.first_lsn >= lsn):
            group.append(segment)
            if segment.end_lsn - group[0].first_lsn >= EVENTS_LOG_BYTES:
                splits.append(self._events_split(group, lsn))
                lsn, group = segment.end_lsn, []
        if group:
            splits.append(self._events_split(group, lsn))
        return splits

    def _events_split(self, group: Sequence[Segment], lsn: int) -> EventsSplit:
        segments = tuple(group)
        damage = self._damage_of(segments)
        return EventsSplit(segments, lsn, segments[-1].end_lsn, self._topics, damage)

    def _damage_of(self, segments: Iterable[Segment]) -> dict[str, list[tuple[int, int]]]:
        names = (os.path.basename(segment.path) for segment in segments)
        return {name: self._damage[name] for name in names if name in self._damage}


def _divide(pieces: Pieces, file_bytes: int) -> Iterator[Pieces]:
    """Divide sorted pieces into those of one file each."""
    shared: list[Pieces] = []
    shared_bytes = 0
    heads = _heads(pieces["topic_id"], pieces["partition"])
    for first, end in pairwise([*heads.tolist(), len(pieces)]):
        own = pieces[first:end]
        size = int(own["bytes"].sum())
        is_large = size >= file_bytes // SHARED_PART
        is_other = bool(shared) and _bucket(shared[0]) != _bucket(own)
        if shared and (is_other or (not is_large and shared_bytes + size > file_bytes)):
            yield np.concatenate(shared)
            shared, shared_bytes = [], 0
        if is_large:
            yield from _divide_partition(own, size, file_bytes)
        else:
            shared.append(own)
            shared_bytes += size
    if shared:
        yield np.concatenate(shared)


def _bucket(pieces: Pieces) -> int:
    return bucket_of(int(pieces["topic_id"][0]))


def _divide_partition(pieces: Pieces, size: int, file_bytes: int) -> Iterator[Pieces]:
    """Divide the pieces of one partition into files of nearly equal size."""
    target = size / -(-size // file_bytes)
    before = np.cumsum(pieces["bytes"]) - pieces["bytes"]
    yield from np.split(pieces, _heads((before // target).astype(np.int64))[1:])


class _TopicNames:
    """Names of topics, from the bounds and from the log after them."""

    def __init__(self, wal: Path, bounds: Bounds, names: dict[int, str]) -> None:
        self._wal = wal
        self._bounds = bounds
        self._has_read = False
        self.names = names
        """By id. It is the caller's, and grows."""
        names |= {topic.id: topic.name for topic in bounds.topics}

    def look_up(self, segment: Segment, pieces: Pieces) -> Stop | None:
        """Make sure that the topics of a segment's pieces have names; else say why to stop."""
        if segment.end_lsn > self._bounds.lsn and not self._has_read:
            self._read()
        unknown = self._unknown(pieces)
        if unknown:  # a segment may have been sealed since the last read
            self._read()
            unknown = self._unknown(pieces)
        if not unknown:
            return None
        return Stop(
            segment.first_lsn,
            f"the name of topic id {unknown[0]} is unknown, and {segment.path} has records of it: "
            "start the broker, which writes what it knows of the topic",
            True,
        )

    def _read(self) -> None:
        self._has_read = True
        self.names |= new_topics(self._wal, self._bounds)

    def _unknown(self, pieces: Pieces) -> list[int]:
        return [id for id in np.unique(pieces["topic_id"]).tolist() if id not in self.names]
