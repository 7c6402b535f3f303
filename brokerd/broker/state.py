# Tests: tests/broker/test_state.py
"""What survives a restart: topics, next offsets and groups, from snapshot and log.

A snapshot is a list of chunks. Each holds one topic or one lane as it was at one
position of the log (its LSN); different chunks may have different LSNs, so that taking a
snapshot never stalls the broker. Replay starts at the LSN where the snapshot began and applies
to each topic and lane only the frames after its own chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack

from brokerd.broker.topics import ConsumerGroup, Lane, Topic
from brokerd.errors import NewerFormat
from brokerd.groups import GroupPartition, GroupSettings
from brokerd.wal import Frame, SnapshotChunk
from brokerd.walformat import Entry, EntryKind, decode_group_events

SNAPSHOT_META = 1
SNAPSHOT_TOPIC = 2
SNAPSHOT_LANE = 3


def topic_created_entry(topic: Topic) -> Entry:
    """The log entry that creates ``topic``."""
    body = msgpack.packb(
        {"op": "created", "name": topic.name, "partitions": len(topic.partitions)}
    )
    return Entry(EntryKind.TOPIC, topic.topic_id, 0, 0, 0, body)


class State:
    """All topics and groups, and how the log changes them."""

    def __init__(self, group_settings: GroupSettings) -> None:
        self._group_settings = group_settings
        self.by_id: dict[int, Topic] = {}
        self.by_name: dict[str, Topic] = {}
        self.next_topic_id = 1
        self.last_time_us = 0
        self._monotonic_shift_us = 0
        """During replay: monotonic time less broker time, so that delays go on where they were."""
        self._fresh_from: dict[object, int] = {}
        """During replay: the LSN from which frames are news to a topic or lane."""

    def add_topic(self, topic: Topic) -> None:
        self.by_id[topic.topic_id] = topic
        self.by_name[topic.name] = topic
        self.next_topic_id = max(self.next_topic_id, topic.topic_id + 1)

    def lanes(self) -> Iterator[Lane]:
        for topic in self.by_id.values():
            for group in topic.groups.values():
                yield from group.lanes

    # -- from the log -------------------------------------------------------------------------

    def apply(self, frame: Frame) -> None:
        """Apply what a frame says; frames come in order."""
        self.last_time_us = max(self.last_time_us, frame.time_us)
        for entry in frame.entries:
            if entry.kind == EntryKind.RECORDS:
                self._apply_records(frame.lsn, entry)
            elif entry.kind == EntryKind.GROUP_EVENTS:
                self._apply_events(frame, entry)
            elif entry.kind == EntryKind.TOPIC:
                self._apply_topic(frame.lsn, entry)
            elif entry.kind != EntryKind.MARK:
                raise NewerFormat(
                    f"the frame at {frame.lsn} holds an entry of kind {entry.kind}, which this "
                    "version does not know; upgrade brokerd"
                )

    def _apply_records(self, lsn: int, entry: Entry) -> None:
        topic = self._topic(entry)
        partition = topic.partition(entry.partition)
        if lsn >= self._fresh_from.get(topic, 0):
            partition.restore(max(partition.next_offset, entry.base_offset + entry.count))

    def _apply_events(self, frame: Frame, entry: Entry) -> None:
        name, events = decode_group_events(entry.body, entry.count)
        group = self._group(self._topic(entry), name)
        lane = group.lanes[entry.partition]
        if frame.lsn >= self._fresh_from.get(lane, 0):
            now_us = frame.time_us + self._monotonic_shift_us
            for event in events:
                lane.store.apply(event, now_us)

    def _apply_topic(self, lsn: int, entry: Entry) -> None:
        fields = msgpack.unpackb(entry.body)
        if fields["op"] != "created":
            raise NewerFormat(
                f"the frame at {lsn} says {fields['op']!r} of a topic, which this version does "
                "not know; upgrade brokerd"
            )
        if entry.topic_id not in self.by_id:
            self.add_topic(Topic(entry.topic_id, fields["name"], fields["partitions"]))

    def _group(self, topic: Topic, name: str) -> ConsumerGroup:
        group = topic.groups.get(name)
        if group is None:
            group = topic.groups[name] = ConsumerGroup(topic, name, self._group_settings)
        return group

    def _topic(self, entry: Entry) -> Topic:
        topic = self.by_id.get(entry.topic_id)
        if topic is None:
            # Its creation stands in a damaged part of the log: serve what is left of it.
            topic = Topic(entry.topic_id, f"lost-topic-{entry.topic_id}", entry.partition + 1)
            self.add_topic(topic)
        return topic

    # -- from a snapshot ----------------------------------------------------------------------

    def load(self, chunk: SnapshotChunk) -> None:
        """Take over one chunk of a snapshot; topics come before their groups."""
        fields = msgpack.unpackb(chunk.body, strict_map_key=False)
        if chunk.kind == SNAPSHOT_META:
            self.next_topic_id = max(self.next_topic_id, fields["next_topic_id"])
            self.last_time_us = max(self.last_time_us, fields["time_us"])
        elif chunk.kind == SNAPSHOT_TOPIC:
            self._load_topic(chunk.lsn, fields)
        elif chunk.kind == SNAPSHOT_LANE:
            self._load_lane(chunk.lsn, fields)
        else:
            raise NewerFormat(
                f"the snapshot holds a chunk of kind {chunk.kind}, which this version does not "
                "know; upgrade brokerd"
            )

    def _load_topic(self, lsn: int, fields: dict[str, Any]) -> None:
        topic = Topic(fields["topic_id"], fields["name"], len(fields["next_offsets"]))
        for partition, next_offset in zip(topic.partitions, fields["next_offsets"], strict=True):
            partition.restore(next_offset)
        self.add_topic(topic)
        self._fresh_from[topic] = lsn

    def _load_lane(self, lsn: int, fields: dict[str, Any]) -> None:
        group = self._group(self.by_id[fields["topic_id"]], fields["group"])
        lane = group.lanes[fields["partition"]]
        lane.store = GroupPartition.decode(
            fields["store"], fields["time_us"] + self._monotonic_shift_us
        )
        lane.store.settings = self._group_settings
        self._fresh_from[lane] = lsn

    def begin_replay(self, monotonic_shift_us: int) -> None:
        """Prepare to `load` and `apply`; a time of the log plus the shift is monotonic time."""
        self._monotonic_shift_us = monotonic_shift_us

    def end_replay(self) -> None:
        """Forget what only replay needs."""
        self._fresh_from.clear()
