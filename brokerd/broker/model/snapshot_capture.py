# Tests: tests/broker/test_snapshotter.py
"""What a snapshot says of topics and lanes: copied at one moment, encoded later in any thread.

docs/wal-format.rst, section "Snapshot", has the layout. Small lanes share a chunk, as many as were
copied at one LSN, and a large lane has several chunks, so that neither 100,000 groups nor
10,000,000 records of one of them take long steps or much memory to write and to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import msgpack

from brokerd.broker.model.state import (
    SNAPSHOT_DELETED_TOPIC,
    SNAPSHOT_LANE,
    SNAPSHOT_LANES,
    Encode,
)
from brokerd.broker.model.topics import Lane, Topic
from brokerd.groups.snapshot import FrozenGroup
from brokerd.wal import SNAPSHOT_TOPIC, SnapshotChunk

CHUNK_BYTES = 1 << 20
"""A chunk with lanes is closed when it has grown to this size."""

SHARED_BYTES = 1 << 18
"""A lane that takes more has chunks of its own."""


class CapturedLane(NamedTuple):
    """A lane as it was at an LSN and broker time."""

    lsn: int
    topic_id: int
    partition: int
    group: str
    time_us: int
    store: FrozenGroup


class CapturedTopic:
    """A topic and those of its lanes that are copied already."""

    def __init__(self, topic: Encode | None = None) -> None:
        self.topic = topic
        """None while it is not copied yet."""
        self.lanes: list[CapturedLane] = []

    def encode(self) -> Iterator[SnapshotChunk]:
        """The topic first, if it was copied, then its lanes."""
        if self.topic is not None:
            yield self.topic()
            yield from encode_lanes(self.lanes)


def capture_topic(topic: Topic, lsn: int) -> Encode:
    """Copy what a snapshot says of ``topic``."""
    fields: dict[str, Any] = {
        "topic_id": topic.topic_id,
        "name": topic.name,
        "next_offsets": [partition.next_offset for partition in topic.partitions],
        "gaps": {p.index: list(p.gaps) for p in topic.partitions if p.gaps},
        "starts": {p.index: p.start_offset for p in topic.partitions if p.start_offset},
        "archived": {p.index: p.archived for p in topic.partitions if p.archived},
        "settings": topic.settings.given(),
        "internal_of": topic.internal_of,
    }
    key = b"%d" % topic.topic_id
    return lambda: SnapshotChunk(SNAPSHOT_TOPIC, key, lsn, msgpack.packb(fields))


def capture_deleted(topic: Topic, lsn: int) -> Encode:
    """What a snapshot says of a topic that was deleted while it was taken."""
    fields = {"topic_id": topic.topic_id}
    key = b"%d" % topic.topic_id
    return lambda: SnapshotChunk(SNAPSHOT_DELETED_TOPIC, key, lsn, msgpack.packb(fields))


def capture_lane(lane: Lane, lsn: int, now_us: int, time_us: int) -> CapturedLane:
    """Copy a lane at monotonic ``now_us`` and broker time ``time_us``."""
    partition = lane.partition
    return CapturedLane(
        lsn,
        partition.topic.topic_id,
        partition.index,
        lane.group.name,
        time_us,
        lane.store.freeze(now_us),
    )


def encode_lanes(lanes: Iterable[CapturedLane]) -> Iterator[SnapshotChunk]:
    """The chunks of lanes of one topic. Takes one lane after another."""
    shared: list[tuple[int, str, int, bytes]] = []
    size = lsn = topic_id = 0
    for lane in lanes:
        begun: list[bytes] = []
        begun_bytes = 0
        pieces = lane.store.encode()
        for piece in pieces:
            begun.append(piece)
            begun_bytes += len(piece)
            if begun_bytes > SHARED_BYTES:
                break
        if begun_bytes > SHARED_BYTES:
            yield from _own_chunks(lane, chain(begun, pieces))
            continue
        if shared and (lane.lsn != lsn or size + begun_bytes > CHUNK_BYTES):
            yield _shared_chunk(topic_id, lsn, shared)
            shared, size = [], 0
        topic_id, lsn = lane.topic_id, lane.lsn
        shared.append((lane.partition, lane.group, lane.time_us, b"".join(begun)))
        size += begun_bytes + len(lane.group)
    if shared:
        yield _shared_chunk(topic_id, lsn, shared)


def _shared_chunk(
    topic_id: int, lsn: int, lanes: list[tuple[int, str, int, bytes]]
) -> SnapshotChunk:
    body = msgpack.packb({"topic_id": topic_id, "lanes": lanes})
    return SnapshotChunk(SNAPSHOT_LANES, b"%d" % topic_id, lsn, body)


def _own_chunks(lane: CapturedLane, pieces: Iterable[bytes]) -> Iterator[SnapshotChunk]:
    """A chunk that names the lane, and those that go on with the encoding of its store."""
    body = msgpack.packb(
        {
            "topic_id": lane.topic_id,
            "partition": lane.partition,
            "group": lane.group,
            "time_us": lane.time_us,
        }
    )
    key = b"%d/%d/%s" % (lane.topic_id, lane.partition, lane.group.encode())
    for piece in pieces:
        yield SnapshotChunk(SNAPSHOT_LANE, key, lane.lsn, body, True)
        body = piece
    yield SnapshotChunk(SNAPSHOT_LANE, key, lane.lsn, body)
