# Tests: tests/broker/test_snapshotter.py
"""Captures topics and group partitions for a snapshot: copies at one LSN, encodes later.

Any thread may encode. docs/wal-format.rst, section "Snapshot", has the layout. Small group
partitions that were copied at the same LSN share a chunk. A large group partition has several
chunks. So 100,000 groups, or a group with 10,000,000 records, take short steps and little memory to
write and to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import msgpack

from brokerd.broker.model.state import (
    SNAPSHOT_DELETED_TOPIC,
    SNAPSHOT_GROUP_PARTITION,
    SNAPSHOT_GROUP_PARTITIONS,
    Encode,
)
from brokerd.broker.model.topics import GroupPartition, Topic
from brokerd.groups.snapshot import FrozenGroup
from brokerd.wal import SNAPSHOT_TOPIC, SnapshotChunk

CHUNK_BYTES = 1 << 20
"""A shared chunk is closed when it reaches this size."""

SHARED_BYTES = 1 << 18
"""A group partition that is larger has chunks of its own."""


class CapturedGroupPartition(NamedTuple):
    """A group partition as it was at an LSN. Its times are relative to a broker time."""

    lsn: int
    topic_id: int
    partition: int
    group: str
    time_us: int
    store: FrozenGroup | bytes
    """A copy to encode, or the encoding."""


class CapturedTopic:
    """A topic, and the group partitions of it that are copied so far."""

    def __init__(self, topic: Encode | None = None) -> None:
        self.topic = topic
        """None until the topic is copied."""
        self.group_partitions: list[CapturedGroupPartition] = []

    def encode(self) -> Iterator[SnapshotChunk]:
        """Yield the chunk of the topic, if it was copied, then those of its group partitions."""
        if self.topic is not None:
            yield self.topic()
            yield from encode_group_partitions(self.group_partitions)


def capture_topic(topic: Topic, lsn: int) -> Encode:
    """Copy ``topic`` for a snapshot."""
    fields: dict[str, Any] = {
        "topic_id": topic.topic_id,
        "name": topic.name,
        "next_offsets": [partition.next_offset for partition in topic.partitions],
        "gaps": {p.index: list(p.gaps) for p in topic.partitions if p.gaps},
        "starts": {p.index: p.start_offset for p in topic.partitions if p.start_offset},
        "archived": {p.index: p.archived_end for p in topic.partitions if p.archived_end},
        "settings": topic.settings.given(),
        "internal_of": topic.internal_of,
    }
    key = b"%d" % topic.topic_id
    return lambda: SnapshotChunk(SNAPSHOT_TOPIC, key, lsn, msgpack.packb(fields))


def capture_deleted(topic: Topic, lsn: int) -> Encode:
    """Return the chunk of a topic that was deleted while the snapshot was taken."""
    fields = {"topic_id": topic.topic_id}
    key = b"%d" % topic.topic_id
    return lambda: SnapshotChunk(SNAPSHOT_DELETED_TOPIC, key, lsn, msgpack.packb(fields))


def capture_group_partition(
    group_partition: GroupPartition, lsn: int, now_us: int, time_us: int
) -> CapturedGroupPartition:
    """Copy a group partition at monotonic ``now_us`` and broker time ``time_us``."""
    partition = group_partition.partition
    store, at_us = group_partition.capture(now_us)
    return CapturedGroupPartition(
        lsn,
        partition.topic.topic_id,
        partition.index,
        group_partition.group.name,
        time_us + at_us - now_us,
        store,
    )


def encode_group_partitions(
    group_partitions: Iterable[CapturedGroupPartition],
) -> Iterator[SnapshotChunk]:
    """Yield the chunks of group partitions of one topic, one group partition at a time."""
    shared: list[tuple[int, str, int, bytes]] = []
    size = lsn = topic_id = 0
    for group_partition in group_partitions:
        begun: list[bytes] = []
        begun_bytes = 0
        store = group_partition.store
        pieces = iter([store]) if isinstance(store, bytes) else store.encode()
        for piece in pieces:
            begun.append(piece)
            begun_bytes += len(piece)
            if begun_bytes > SHARED_BYTES:
                break
        if begun_bytes > SHARED_BYTES:
            yield from _own_chunks(group_partition, chain(begun, pieces))
            continue
        if shared and (group_partition.lsn != lsn or size + begun_bytes > CHUNK_BYTES):
            yield _shared_chunk(topic_id, lsn, shared)
            shared, size = [], 0
        topic_id, lsn = group_partition.topic_id, group_partition.lsn
        shared.append(
            (
                group_partition.partition,
                group_partition.group,
                group_partition.time_us,
                b"".join(begun),
            )
        )
        size += begun_bytes + len(group_partition.group)
    if shared:
        yield _shared_chunk(topic_id, lsn, shared)


def _shared_chunk(
    topic_id: int, lsn: int, group_partitions: list[tuple[int, str, int, bytes]]
) -> SnapshotChunk:
    body = msgpack.packb({"topic_id": topic_id, "lanes": group_partitions})
    return SnapshotChunk(SNAPSHOT_GROUP_PARTITIONS, b"%d" % topic_id, lsn, body)


def _own_chunks(
    group_partition: CapturedGroupPartition, pieces: Iterable[bytes]
) -> Iterator[SnapshotChunk]:
    """Yield a chunk that names the group partition, then chunks with the rest of its store."""
    body = msgpack.packb(
        {
            "topic_id": group_partition.topic_id,
            "partition": group_partition.partition,
            "group": group_partition.group,
            "time_us": group_partition.time_us,
        }
    )
    key = b"%d/%d/%s" % (
        group_partition.topic_id,
        group_partition.partition,
        group_partition.group.encode(),
    )
    for piece in pieces:
        yield SnapshotChunk(SNAPSHOT_GROUP_PARTITION, key, group_partition.lsn, body, True)
        body = piece
    yield SnapshotChunk(SNAPSHOT_GROUP_PARTITION, key, group_partition.lsn, body)
