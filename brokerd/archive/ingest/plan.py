# Tests: tests/archive/test_plan.py
"""Plans a lot: a part of the log that one commit archives, divided into tasks. No Spark.

Each task writes one file. A lot lists partitions and segments. The planner lists the batches of
only one segment at a time, so its memory does not grow with the pending log.

A plan leaves out batches of deleted topics, and batches wholly below the start offset of their
partition. No client can read them, and the bounds never revoke this.
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
"""The largest number of pieces of a lot with several segments. A piece takes 56 bytes."""
EVENTS_LOG_BYTES = 512 << 20
"""The approximate bytes of the log that a file of events covers."""
SHARED_PART = 8
"""A partition with less than an eighth of a file's size shares a file with other partitions. Pieces
are about an eighth of a file."""

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
``end`` (exclusive), ``bytes`` of bodies, and ``rows`` rows of the segment's index from ``row`` on.
``segment`` is the number of the segment in the lot or task."""

Pieces = npt.NDArray[np.void]


class RecordsSplit(NamedTuple):
    """The input of a task that writes one file of records."""

    bucket: int
    segments: tuple[Segment, ...]
    pieces: Pieces
    """Sorted by topic id, partition and offset."""
    topics: Mapping[int, str]
    """Topic names by id."""
    gaps: Mapping[tuple[int, int], Sequence[tuple[int, int]]]
    """Ranges of offsets that damage destroyed, by topic id and partition."""
    known_damage: Damage

    @property
    def bytes(self) -> int:
        """Return the size of the bodies."""
        return int(self.pieces["bytes"].sum())


class EventsSplit(NamedTuple):
    """The input of a task that writes one file of events, or no file if it finds no events."""

    segments: tuple[Segment, ...]
    first_lsn: int
    end_lsn: int
    topics: Mapping[int, str]
    known_damage: Damage


class Lot(NamedTuple):
    """A part of the log that one commit archives. An empty ``segments`` means nothing to do."""

    segments: tuple[Segment, ...]
    first_lsn: int
    end_lsn: int
    records: list[RecordsSplit]
    events: list[EventsSplit]
    stop: Stop | None
    """The reason why no lot can follow it for now, or None."""

    @property
    def bytes(self) -> int:
        """Return the size of the segments."""
        return sum(segment.bytes for segment in self.segments)


# -- Pieces --------------------------------------------------------------------------------------


class _BatchFilter:
    """Excludes the batches that no client can read."""

    def __init__(self, bounds: Bounds) -> None:
        self._next_topic_id = bounds.next_topic_id
        self._live = np.array(sorted(topic.id for topic in bounds.topics), np.int64)
        self._starts = bounds.start_offsets()

    def mask(self, batches: Batches) -> npt.NDArray[np.bool_]:
        """Return a mask that excludes deleted topics and batches below start offsets."""
        topic_id = batches.topic_id
        mask = np.isin(topic_id, self._live) | (topic_id >= self._next_topic_id)
        if self._starts:
            # Look up a start offset once for each partition: partitions have many batches.
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
    """Group batches of a segment into pieces of at most ``size`` bytes, or of one larger batch."""
    rows = np.flatnonzero(mask)
    if not len(rows):
        return np.empty(0, PIECE)
    selected = batches.select(rows)
    total = np.cumsum(selected.body_bytes)
    # Excluded rows come first in their partition, so the rows of a piece are neighbours.
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
    """Return the part number of each batch. Partitions are cut into parts of ``size`` bytes."""
    heads = _heads(batches.topic_id, batches.partition)
    lengths = np.diff(np.append(heads, len(total)))
    before = np.repeat(total[heads] - batches.body_bytes[heads], lengths)
    part: npt.NDArray[np.int64] = (total - batches.body_bytes - before) // size
    return part


# -- Planning ------------------------------------------------------------------------------------


class LotLimits(NamedTuple):
    """Limits of a lot, in bytes."""

    lot_bytes: int
    """Bytes of the log. A lot has at least one segment."""
    file_bytes: int
    """The approximate size of a file."""
    free_bytes: int
    """Free space of the archive. A file takes at most the bytes of its records in the log."""


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

    :param records_lsn: the table of records holds the log below this LSN.
    :param events_lsn: the table of events holds the log below this LSN.
    :param before: the lot ends before the LSN of this stop.
    :param names: topic names, by id, that earlier lots found in the log. This lot adds names: the
        broker may delete their segments once they are archived.
    :raises JobFailed: the archive has no space for one segment.
    :raises FileNotFoundError: the broker deleted a segment during the call.
    :raises OSError: the log cannot be read.
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
        """Return whether a segment fits the lot. Raises JobFailed if the first does not fit."""
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
        """Return the pieces of a segment; no pieces if the table of records has them."""
        if segment.first_lsn < self._records_lsn:
            return np.empty(0, PIECE)
        batches = batches_of(index)
        size = max(1, self._limits.file_bytes // SHARED_PART)
        return _pieces(batches, self._filter.mask(batches), len(self._segments), size)

    def add(self, segment: Segment, pieces: Pieces) -> bool:
        """Add a segment and return True. Return False if the lot would have too many pieces."""
        if self._segments and self._count + len(pieces) > PIECES_MAX:
            return False
        self._segments.append(segment)
        self._pieces.append(pieces)
        self._bytes += segment.bytes
        self._count += len(pieces)
        return True

    def lot(self, since: int, events_lsn: int, names: Mapping[int, str], stop: Stop | None) -> Lot:
        """Return the lot of the added segments."""
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
        """Divide pieces into tasks, the largest first, so that a large task does not run last."""
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
    """Yield groups of sorted pieces. Each group becomes one file."""
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
    """Yield groups of pieces of one partition, for files of nearly equal size."""
    target = size / -(-size // file_bytes)
    before = np.cumsum(pieces["bytes"]) - pieces["bytes"]
    yield from np.split(pieces, _heads((before // target).astype(np.int64))[1:])


class _TopicNames:
    """Names of topics, from the bounds and the log after the bounds."""

    def __init__(self, wal: Path, bounds: Bounds, names: dict[int, str]) -> None:
        self._wal = wal
        self._bounds = bounds
        self._has_read = False
        self.names = names
        """Names by id: the caller's mapping, which grows."""
        names |= {topic.id: topic.name for topic in bounds.topics}

    def look_up(self, segment: Segment, pieces: Pieces) -> Stop | None:
        """Find the names of the topics of a segment's pieces. Return a `Stop` if one is unknown."""
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
