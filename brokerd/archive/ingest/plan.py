# Tests: tests/archive/test_plan.py
"""What is archived in one go, and how the work is divided into tasks. No Spark.

:func:`plan_lot` takes as much of the log as may be done in one go, and divides it: each task writes
one file. A lot is known by its partitions and segments; only one segment at a time is known by its
batches. So the memory that a plan takes is bounded, however much there is to do.

Batches of deleted topics, and those wholly below the start offset of their partition, are left out:
nobody can read them any more, and what bounds say of them stays true.
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
from brokerd.archive.journal.sealed import Batches, Segment, batches_of
from brokerd.archive.journal.segment_list import (
    Damage,
    Stop,
    damaged_places,
    sealed_segments,
)
from brokerd.archive.journal.topics import new_topics
from brokerd.archive.run import JobFailed

PIECES_MAX = 1_000_000
"""A lot is divided into no more pieces than this, and one segment's: 56 bytes each."""
EVENTS_LOG_BYTES = 512 << 20
"""Events of about so much of the log stand in one file."""
SHARED_PART = 8
"""A partition with less than an eighth of a file's size shares a file with others, and files are
cut to an eighth of it."""

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
"""A run of batches of one partition in one segment: offsets ``first`` to ``end``, exclusive,
``bytes`` of bodies, the ``rows`` of the segment's index from ``row`` on. ``segment`` counts in the
lot's, or in a task's."""

Pieces = npt.NDArray[np.void]


class RecordsSplit(NamedTuple):
    """What one task writes into one file of records."""

    bucket: int
    segments: tuple[Segment, ...]
    pieces: Pieces
    """By topic id, partition and offset."""
    topics: Mapping[int, str]
    """Names by id."""
    gaps: Mapping[tuple[int, int], Sequence[tuple[int, int]]]
    """Offsets of a topic id and partition that damage took."""
    known_damage: Damage

    @property
    def bytes(self) -> int:
        """Of bodies."""
        return int(self.pieces["bytes"].sum())


class EventsSplit(NamedTuple):
    """What one task writes into one file of events, unless there are none."""

    segments: tuple[Segment, ...]
    first_lsn: int
    end_lsn: int
    topics: Mapping[int, str]
    known_damage: Damage


class Lot(NamedTuple):
    """What is archived in one go, if ``segments`` are any: the log from one LSN to another."""

    segments: tuple[Segment, ...]
    first_lsn: int
    end_lsn: int
    records: list[RecordsSplit]
    events: list[EventsSplit]
    stop: Stop | None
    """Set if there is nothing after it for now."""

    @property
    def bytes(self) -> int:
        """Of the segments."""
        return sum(segment.bytes for segment in self.segments)


# -- Which pieces --------------------------------------------------------------------------------


class _Wanted:
    """Which batches are to be archived, by the bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self._next_topic_id = bounds.next_topic_id
        self._live = np.array(sorted(topic.id for topic in bounds.topics), np.int64)
        self._starts = {
            (topic.id, index): partition.start
            for topic in bounds.topics
            for index, partition in enumerate(topic.partitions)
            if partition.start > 0
        }

    def rows(self, batches: Batches) -> npt.NDArray[np.bool_]:
        """A mask of the batches that are not of deleted topics, nor below start offsets."""
        topic_id = batches.topic_id
        wanted = np.isin(topic_id, self._live) | (topic_id >= self._next_topic_id)
        if self._starts:
            # A start is looked up once for each partition, not for each batch.
            heads = _heads(topic_id, batches.partition)
            keys = zip(topic_id[heads].tolist(), batches.partition[heads].tolist(), strict=True)
            starts = np.array([self._starts.get(key, 0) for key in keys], np.int64)
            lengths = np.diff(np.append(heads, len(topic_id)))
            wanted &= batches.base_offset + batches.count > np.repeat(starts, lengths)
        return wanted


def _heads(*columns: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Where a new value of any of the columns begins."""
    new = np.zeros(len(columns[0]), np.bool_)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


def _pieces(batches: Batches, wanted: npt.NDArray[np.bool_], ordinal: int, size: int) -> Pieces:
    """The wanted batches of a segment as pieces of at most ``size`` bytes, or one batch."""
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return np.empty(0, PIECE)
    chosen = batches.select(rows)
    total = np.cumsum(chosen.body_bytes)
    # Rows that are left out lie between two of the same partition only where the latter is new.
    part = _parts(chosen, total, size)
    heads = _heads(chosen.topic_id, chosen.partition, part)
    lasts = np.append(heads[1:], len(rows)) - 1
    pieces = np.empty(len(heads), PIECE)
    pieces["topic_id"] = chosen.topic_id[heads]
    pieces["partition"] = chosen.partition[heads]
    pieces["first"] = chosen.base_offset[heads]
    pieces["end"] = chosen.base_offset[lasts] + chosen.count[lasts]
    pieces["bytes"] = total[lasts] - total[heads] + chosen.body_bytes[heads]
    pieces["segment"] = ordinal
    pieces["row"] = rows[heads]
    pieces["rows"] = lasts - heads + 1
    return pieces


def _parts(batches: Batches, total: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """For each batch, in which part of its partition it is, when a part has ``size`` bytes."""
    heads = _heads(batches.topic_id, batches.partition)
    lengths = np.diff(np.append(heads, len(total)))
    before = np.repeat(total[heads] - batches.body_bytes[heads], lengths)
    part: npt.NDArray[np.int64] = (total - batches.body_bytes - before) // size
    return part


# -- Dividing ------------------------------------------------------------------------------------


def plan_lot(
    wal: Path,
    bounds: Bounds,
    records_lsn: int,
    events_lsn: int,
    lot_bytes: int,
    file_bytes: int,
    room_bytes: int,
    before: Stop | None = None,
    names: dict[int, str] | None = None,
) -> Lot:
    """What is to be archived next. The tables hold the log up to the two LSNs.

    At most ``lot_bytes`` of the log, but at least one segment. ``room_bytes`` is what may be
    written: a file of the archive takes at most what its records take in the log. Files are of
    about ``file_bytes``. Nothing is taken from ``before`` on, if it is given. ``names`` are those
    of topics, by id, that lots before this one found in the log, and take what this one finds:
    the broker deletes what tells them as soon as it is archived.

    Raises JobFailed when there is no room for one segment, FileNotFoundError when the broker
    deleted one meanwhile, and OSError.
    """
    since = min(records_lsn, events_lsn)
    wanted = _Wanted(bounds)
    topics = _TopicNames(wal, bounds, {} if names is None else names)
    segments: list[Segment] = []
    pieces: list[Pieces] = []
    stop = None
    size = count = 0
    for found in sealed_segments(wal, bounds, since):
        if isinstance(found, Stop):
            stop = found
            break
        if before is not None and found.first_lsn >= before.lsn:
            stop = before
            break
        segment = Segment(found.path, found.segment_id, found.first_lsn, found.end_lsn)
        if not segments and segment.bytes > room_bytes:
            raise _no_room(segment, room_bytes)
        if segments and size + segment.bytes > min(lot_bytes, room_bytes):
            break
        new = np.empty(0, PIECE)
        if segment.first_lsn >= records_lsn:
            batches = batches_of(found.index)
            piece_bytes = max(1, file_bytes // SHARED_PART)
            new = _pieces(batches, wanted.rows(batches), len(segments), piece_bytes)
        nameless = topics.look_up(segment, new)
        if nameless is not None:
            stop = nameless
            break
        if segments and count + len(new) > PIECES_MAX:
            break
        segments.append(segment)
        pieces.append(new)
        size += segment.bytes
        count += len(new)
    splitter = _Splitter(tuple(segments), bounds, topics.known)
    return Lot(
        tuple(segments),
        since,
        segments[-1].end_lsn if segments else since,
        splitter.records(np.concatenate([np.empty(0, PIECE), *pieces]), file_bytes),
        splitter.events(events_lsn),
        stop,
    )


def _no_room(segment: Segment, room_bytes: int) -> JobFailed:
    return JobFailed(
        f"there are {room_bytes} bytes free for the archive, and {os.path.basename(segment.path)} "
        f"may need {segment.bytes}: free some space"
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
            for topic in bounds.topics
            for index, partition in enumerate(topic.partitions)
            if partition.gaps
        }

    def records(self, pieces: Pieces, file_bytes: int) -> list[RecordsSplit]:
        """The largest first, so that no task is alone at the end."""
        topic_id = pieces["topic_id"]
        order = np.lexsort((pieces["first"], pieces["partition"], topic_id, topic_id % BUCKETS))
        pieces = pieces[order]
        splits = [self._records_split(part) for part in _files(pieces, file_bytes)]
        return sorted(splits, key=lambda split: split.bytes, reverse=True)

    def _records_split(self, pieces: Pieces) -> RecordsSplit:
        ordinals, renumbered = np.unique(pieces["segment"], return_inverse=True)
        pieces = pieces.copy()
        pieces["segment"] = renumbered
        segments = tuple(self._segments[one] for one in ordinals.tolist())
        heads = _heads(pieces["topic_id"], pieces["partition"])
        keys = pieces[["topic_id", "partition"]][heads].tolist()
        return RecordsSplit(
            _bucket_of(pieces),
            segments,
            pieces,
            {topic_id: self._topics[topic_id] for topic_id, _ in keys},
            {key: self._gaps[key] for key in keys if key in self._gaps},
            self._damage_of(segments),
        )

    def events(self, lsn: int) -> list[EventsSplit]:
        """One for about `EVENTS_LOG_BYTES` of the log each, from ``lsn`` on."""
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


def _files(pieces: Pieces, file_bytes: int) -> Iterator[Pieces]:
    """Divide pieces, which are in order, into those of one file each."""
    shared: list[Pieces] = []
    shared_bytes = 0
    heads = _heads(pieces["topic_id"], pieces["partition"])
    for first, end in pairwise([*heads.tolist(), len(pieces)]):
        own = pieces[first:end]
        size = int(own["bytes"].sum())
        is_large = size >= file_bytes // SHARED_PART
        is_other = bool(shared) and _bucket_of(shared[0]) != _bucket_of(own)
        if shared and (is_other or (not is_large and shared_bytes + size > file_bytes)):
            yield np.concatenate(shared)
            shared, shared_bytes = [], 0
        if is_large:
            yield from _cut(own, size, file_bytes)
        else:
            shared.append(own)
            shared_bytes += size
    if shared:
        yield np.concatenate(shared)


def _bucket_of(pieces: Pieces) -> int:
    return bucket_of(int(pieces["topic_id"][0]))


def _cut(pieces: Pieces, size: int, file_bytes: int) -> Iterator[Pieces]:
    """Cut the pieces of one partition into files of nearly equal size."""
    target = size / -(-size // file_bytes)
    before = np.cumsum(pieces["bytes"]) - pieces["bytes"]
    yield from np.split(pieces, _heads((before // target).astype(np.int64))[1:])


class _TopicNames:
    """Names of topics: those that bounds know, and those made in the log after the bounds.

    ``known`` is added to.
    """

    def __init__(self, wal: Path, bounds: Bounds, known: dict[int, str]) -> None:
        self._wal = wal
        self._bounds = bounds
        self._has_read = False
        self.known = known
        known |= {topic.id: topic.name for topic in bounds.topics}

    def look_up(self, segment: Segment, pieces: Pieces) -> Stop | None:
        """Make sure that the topics of a segment's pieces have names."""
        if segment.end_lsn > self._bounds.lsn and not self._has_read:
            self._read()
        unknown = self._unknown(pieces)
        if unknown:  # a segment may have been sealed since it was read
            self._read()
            unknown = self._unknown(pieces)
        if not unknown:
            return None
        return Stop(
            segment.first_lsn,
            f"nothing tells the name of topic id {unknown[0]}, of which {segment.path} has "
            "records: start the broker, which says what it knows of it",
            True,
        )

    def _read(self) -> None:
        self._has_read = True
        self.known |= new_topics(self._wal, self._bounds)

    def _unknown(self, pieces: Pieces) -> list[int]:
        return [id for id in np.unique(pieces["topic_id"]).tolist() if id not in self.known]
