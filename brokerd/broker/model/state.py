# Tests: tests/broker/test_state.py
"""State that survives a restart: topics, next offsets and groups, from snapshot and log.

A snapshot is a list of chunks. Each holds one topic or one group partition as it was at one
position of the log (its LSN); different chunks may have different LSNs, so that taking a
snapshot never stalls the broker. Replay starts at the LSN where the snapshot began and applies
to each topic and group partition only the frames after its own chunk.

`DamageRecovery` completes the state after damage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgpack

from brokerd.broker.model.damage_recovery import DamageRecovery, Replay
from brokerd.broker.model.group_stores import ALL, GroupStores
from brokerd.broker.model.topics import (
    ConsumerGroup,
    GroupPartition,
    Partition,
    Topic,
    TopicSettings,
)
from brokerd.errors import DamagedData, NewerFormat, UnknownTopic
from brokerd.groups import GroupSettings
from brokerd.wal import (
    SNAPSHOT_TOPIC,
    Damage,
    DamageFingerprint,
    Frame,
    LostRange,
    RecoveryReport,
    SnapshotChunk,
)
from brokerd.walformat import Entry, EntryKind, EventKind, decode_group_events

SNAPSHOT_META = 1
SNAPSHOT_GROUP_PARTITION = 3
SNAPSHOT_DELETED_TOPIC = 4
SNAPSHOT_GROUP_PARTITIONS = 6

_DELETED = int(EventKind.DELETED)

_MALFORMED = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    struct.error,
    msgpack.UnpackException,
)
"""Errors of reading a body whose form is not that of docs/wal-format.rst. Its checksum is right, so
a broker wrote the body in that form."""

Apply = Callable[[Frame, Entry], None]
"""Applies one entry of a frame of the log."""

Load = Callable[[int, dict[str, Any]], None]
"""Loads a chunk of a snapshot: its LSN and the map in its body. If more chunks continue it, the
map's ``rest`` is an iterator of their bodies."""

Encode = Callable[[], SnapshotChunk]
"""Encodes captured state. It may run later, and in any thread."""

Capture = Callable[[int], list[Encode]]
"""Copies a part of the state at an LSN, for chunks of a snapshot. It is called once for each
snapshot, when the state in memory equals the log up to the LSN."""


def _fault(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def known_damage(chunk: SnapshotChunk) -> list[DamageFingerprint]:
    """Return the damaged places that a chunk of a snapshot names. A META chunk names all."""
    if chunk.kind != SNAPSHOT_META:
        return []
    places = msgpack.unpackb(chunk.body).get("damage", ())
    return [
        DamageFingerprint(file, position, end, checksum, tuple(inside))
        for file, position, end, checksum, inside in places
    ]


class State:
    """All topics and groups, and how the log changes them.

    Other state that must survive a restart registers before `begin_replay`: in `appliers` by kind
    of entry, in `loaders` by kind of chunk, and in `captures`, which a snapshot calls after all
    topics and groups. A chunk holds the effect of every entry below its LSN. Replay may begin below
    that LSN, so an applier skips the frames that its chunk holds.
    """

    def __init__(self, group_settings: GroupSettings, group_state_max: int = ALL) -> None:
        self.stores = GroupStores(group_settings, group_state_max)
        self.by_id: dict[int, Topic] = {}
        self.by_name: dict[str, Topic] = {}
        self.starts: dict[tuple[int, int], int] = {}
        """Start offsets above 0, by topic id and partition."""
        self.archived: dict[tuple[int, int], int] = {}
        """`Partition.archived_end` above 0, by topic id and partition."""
        self.next_topic_id = 1
        self.doubted_topic_id = 0
        """Topics with this id or a higher one may be lost by damage; 0: all topics are known."""
        self.last_time_us = 0
        self.ahead_us = 0
        """`BrokerTime.ahead_us` at the end of the log."""
        self.first_lsn = 0
        """The LSN at which the log begins."""
        self.known_damage: list[DamageFingerprint] = []
        """The damaged places that affected this state."""
        self.behind_us = 0
        """How far the wall clock was behind the log when replay began."""
        self.recorded: dict[tuple[str, int, int], Damage] = {}
        """Damaged places that repairs recorded in the log, by file, position and end."""
        self.new_gaps: dict[Partition, list[tuple[int, int]]] = {}
        """Ranges of offsets that this replay made gaps."""
        self.appliers: dict[int, Apply] = {
            EntryKind.RECORDS: lambda frame, entry: self._apply_records(frame.lsn, entry),
            EntryKind.GROUP_EVENTS: self._apply_events,
            EntryKind.TOPIC: self._apply_topic,
            EntryKind.LOST: lambda frame, entry: self._apply_loss_entry(entry),
            EntryKind.MARK: self._apply_mark,
        }
        self.loaders: dict[int, Load] = {
            SNAPSHOT_TOPIC: self._load_topic,
            SNAPSHOT_GROUP_PARTITION: self._load_group_partition,
            SNAPSHOT_GROUP_PARTITIONS: self._load_group_partitions,
            SNAPSHOT_DELETED_TOPIC: lambda lsn, fields: self._load_deleted(fields),
        }
        self.captures: list[Capture] = []
        self.dispose: Callable[[Iterable[ConsumerGroup]], None] = dispose
        """Frees the groups of a deleted topic. During replay it does so at once."""
        self._topic_ops: dict[str, Callable[[int, Entry, dict[str, Any]], None]] = {
            "created": self._apply_created,
            "configured": self._apply_configured,
            "deleted": self._apply_deleted,
            "start": self._apply_start,
            "archived": self._apply_archived,
        }
        self._replay = Replay(0, 0)

    # -- topics and groups --------------------------------------------------------------------

    def add_topic(self, topic: Topic) -> None:
        """Add a new topic. An internal topic is not found by name."""
        self.by_id[topic.topic_id] = topic
        if topic.internal_of:
            target = self.by_id.get(topic.internal_of)
            if target is not None:
                target.internal = topic
        else:
            self.by_name[topic.name] = topic
        self.next_topic_id = max(self.next_topic_id, topic.topic_id + 1)

    def remove_topic(self, topic: Topic) -> None:
        """Remove a topic, its groups, and the internal topic that serves it."""
        if topic.internal is not None:
            self.remove_topic(topic.internal)
        topic.deleted = True
        self.by_id.pop(topic.topic_id, None)
        for partition in topic.partitions:
            partition.move_start(partition.next_offset)  # a reader that holds it finds no records
            self.starts.pop((topic.topic_id, partition.index), None)
            self.archived.pop((topic.topic_id, partition.index), None)
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
        groups, topic.groups = topic.groups, {}
        self.dispose(groups.values())
        topic.dispose()

    def remove_group(self, group: ConsumerGroup) -> None:
        """Remove a group. No later group grants a token that it may have granted."""
        self.token_base = max(self.token_base, last_token([group]))
        group.topic.groups.pop(group.name, None)
        group.dispose()

    @property
    def token_base(self) -> int:
        """`GroupStores.token_base`."""
        return self.stores.token_base

    @token_base.setter
    def token_base(self, token: int) -> None:
        self.stores.token_base = token

    def new_group(self, topic: Topic, name: str) -> ConsumerGroup:
        """Return a group without history, which is not yet added to ``topic``."""
        return ConsumerGroup(topic, name, self.stores)

    def move_start(self, partition: Partition, offset: int) -> None:
        """Remove the records below ``offset``. Each group settles them before its next use."""
        partition.move_start(offset)
        self.starts[partition.topic.topic_id, partition.index] = partition.start_offset

    def archive(self, partition: Partition, offset: int) -> None:
        """Note that an archive has the records below ``offset``: the log may lack them."""
        if offset > partition.archived_end:
            partition.archived_end = offset
            self.archived[partition.topic.topic_id, partition.index] = offset

    def needed_from(self) -> dict[tuple[int, int], int]:
        """Return the offset from which on the log must hold records, where it is above 0.

        Keys are topic id and partition. Records below are removed, or an archive has them.
        """
        return {
            key: max(self.starts.get(key, 0), self.archived.get(key, 0))
            for key in self.starts.keys() | self.archived.keys()
        }

    def existing_topic(self, name: str) -> Topic:
        """Return the topic of this name. Raises `UnknownTopic`."""
        topic = self.by_name.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}; create it or produce to it first")
        return topic

    def group_partitions(self) -> Iterator[GroupPartition]:
        """Yield the group partitions with events, of all groups."""
        for topic in self.by_id.values():
            for group in topic.groups.values():
                yield from group.used()

    # -- from the log -------------------------------------------------------------------------

    def apply(self, frame: Frame) -> None:
        """Apply the entries of a frame. Frames come in the order of the log."""
        self.last_time_us = max(self.last_time_us, frame.time_us)
        for entry in frame.entries:
            apply = self.appliers.get(entry.kind)
            if apply is None:
                raise NewerFormat(
                    f"the frame at {frame.lsn} holds an entry of kind {entry.kind}, which this "
                    "version does not know; upgrade brokerd"
                )
            try:
                apply(frame, entry)
            except _MALFORMED as error:
                raise NewerFormat(
                    f"the frame at {frame.lsn} holds an entry of kind {entry.kind} that this "
                    f"version cannot read ({_fault(error)}); upgrade if a newer brokerd wrote it, "
                    "else this version has a fault; the log has the traceback"
                ) from error
        for lost in frame.lost:
            self._apply_damaged_batch(frame.lsn, lost)
        self.stores.trim()

    def _apply_loss_entry(self, entry: Entry) -> None:
        self._replay.losses.append(entry)
        self._replay.was_damaged = True

    def _apply_mark(self, frame: Frame, entry: Entry) -> None:
        fields = msgpack.unpackb(entry.body) if entry.body else {}
        self._replay.was_damaged |= fields.get("damaged", False)
        self.ahead_us = fields.get("ahead_us", self.ahead_us)
        if fields.get("set", False):
            self.last_time_us = frame.time_us

    def _apply_damaged_batch(self, lsn: int, lost: LostRange) -> None:
        """Use the header of a damaged batch."""
        partition = self.partition(lost.topic_id, lost.partition)
        if partition is not None and lsn >= self._replay.fresh_from.get(partition.topic, 0):
            if lost.first > partition.next_offset:
                partition.gaps.append((partition.next_offset, lost.first))
            partition.remove_gap(lost.first, lost.end)
            partition.restore(max(partition.next_offset, lost.end))
            self._replay.known_at[partition] = lsn

    def _apply_records(self, lsn: int, entry: Entry) -> None:
        if entry.topic_id in self._replay.deleted:
            return
        topic = self._topic(entry)
        partition = topic.partition(entry.partition)
        if lsn >= self._replay.fresh_from.get(topic, 0):
            if entry.base_offset > partition.next_offset:
                partition.gaps.append((partition.next_offset, entry.base_offset))
            partition.restore(max(partition.next_offset, entry.base_offset + entry.count))
            self._replay.known_at[partition] = lsn

    def _apply_events(self, frame: Frame, entry: Entry) -> None:
        if entry.topic_id in self._replay.deleted:
            return
        name, events = decode_group_events(bytes(entry.body), entry.count)
        group = self._group(self._topic(entry), name)
        if frame.lsn < self._replay.unused_from.get((group, entry.partition), 0):
            return
        group_partition = _kept(group, entry.partition)
        if frame.lsn >= self._replay.fresh_from.get(group_partition, 0):
            now_us = frame.time_us + self._replay.shift_us
            store = group_partition.store
            last_token = store.last_token
            for event in events:
                try:
                    store.apply(event, now_us)
                except DamagedData as error:
                    self._replay.passed_over.setdefault(group_partition, []).append(
                        f"topic id {entry.topic_id} partition {entry.partition} group {name!r}: "
                        f"{error}"
                    )
            if store.last_token != last_token:
                self._replay.token_known_at[group_partition] = frame.lsn
            group_partition.events_framed()
            group_partition.count_memory()
            if events[-1][0] == _DELETED:
                self._forget_group(group)
                self.remove_group(group)

    def _apply_topic(self, frame: Frame, entry: Entry) -> None:
        fields = msgpack.unpackb(entry.body)
        apply = self._topic_ops.get(fields["op"])
        if apply is None:
            raise NewerFormat(
                f"the frame at {frame.lsn} says {fields['op']!r} of a topic, which this version "
                "does not know; upgrade brokerd"
            )
        if entry.topic_id not in self._replay.deleted or fields["op"] == "deleted":
            apply(frame.lsn, entry, fields)

    def _apply_created(self, lsn: int, entry: Entry, fields: dict[str, Any]) -> None:
        if fields.get("internal_of") in self._replay.deleted:
            self._replay.deleted.add(entry.topic_id)
            self.next_topic_id = max(self.next_topic_id, entry.topic_id + 1)
        elif entry.topic_id not in self.by_id:
            topic = Topic(
                entry.topic_id,
                fields["name"],
                fields["partitions"],
                TopicSettings.read(fields.get("settings", {})),
                fields.get("internal_of", 0),
            )
            namesake = self.by_name.get(topic.name)
            if namesake is not None and not topic.internal_of:
                # It was created while the creation of the first was unreadable.
                self._replay.nameless.add(namesake)
            self.add_topic(topic)
            self._replay.topic_created_at = lsn
            self._replay.known_at.update(dict.fromkeys(topic.partitions, lsn))

    def _apply_configured(self, lsn: int, entry: Entry, fields: dict[str, Any]) -> None:
        topic = self._topic(entry)
        if lsn >= self._replay.fresh_from.get(topic, 0):
            topic.settings = TopicSettings.read(fields["settings"])

    def _apply_deleted(self, lsn: int, entry: Entry, fields: dict[str, Any]) -> None:
        self.token_base = max(self.token_base, fields["token_base"])
        topic = self.by_id.get(entry.topic_id)
        if topic is not None:
            self._forget(topic)
        self._replay.deleted.add(entry.topic_id)

    def _apply_start(self, lsn: int, entry: Entry, fields: dict[str, Any]) -> None:
        partition = self._partition_given(entry, fields["offset"])
        self.move_start(partition, fields["offset"])
        for group in partition.topic.groups.values():
            group_partition = group.kept.get(partition.index)
            if group_partition is not None:
                group_partition.settle_removed()
                self.stores.trim()

    def _apply_archived(self, lsn: int, entry: Entry, fields: dict[str, Any]) -> None:
        self.archive(self._partition_given(entry, fields["offset"]), fields["offset"])

    def _partition_given(self, entry: Entry, end: int) -> Partition:
        """Return the partition of an entry that proves that offsets below ``end`` are assigned."""
        partition = self._topic(entry).partition(entry.partition)
        if end > partition.next_offset:  # after damage
            partition.restore(end)
        return partition

    def _forget(self, topic: Topic) -> None:
        """Remove a topic during replay, and the notes of the replay about it."""
        replay = self._replay
        for one in (topic, topic.internal):
            if one is not None:
                replay.deleted.add(one.topic_id)
                replay.nameless.discard(one)
                replay.fresh_from.pop(one, None)
                for partition in one.partitions:
                    replay.known_at.pop(partition, None)
                for group in one.groups.values():
                    self._forget_group(group)
        self.remove_topic(topic)

    def _forget_group(self, group: ConsumerGroup) -> None:
        if self._replay.unused_from:
            for index in range(len(group.partitions)):
                self._replay.unused_from.pop((group, index), None)
        for group_partition in group.kept.values():
            self._replay.fresh_from.pop(group_partition, None)
            self._replay.token_known_at.pop(group_partition, None)
            self._replay.passed_over.pop(group_partition, None)

    def _group(self, topic: Topic, name: str) -> ConsumerGroup:
        group = topic.groups.get(name)
        if group is None:
            group = self.new_group(topic, name)
            group.enlist()
        return group

    def _topic(self, entry: Entry) -> Topic:
        topic = self.by_id.get(entry.topic_id)
        if topic is None:
            # The topic's creation is in a damaged part of the log. Serve its other records.
            topic = self.by_id[entry.topic_id] = Topic(entry.topic_id, "", 0)
            self.next_topic_id = max(self.next_topic_id, entry.topic_id + 1)
            self._replay.nameless.add(topic)
        if topic in self._replay.nameless and entry.partition >= len(topic.partitions):
            topic.grow(entry.partition + 1)
        return topic

    # -- from a snapshot ----------------------------------------------------------------------

    def load_all(self, chunks: Iterable[SnapshotChunk]) -> None:
        """Load a snapshot. Topics come before their groups."""
        left = iter(chunks)
        for chunk in left:
            self._load(chunk, left)

    def _load(self, chunk: SnapshotChunk, left: Iterator[SnapshotChunk]) -> None:
        """Load a chunk, and from ``left`` the chunks that continue it."""
        fields = msgpack.unpackb(chunk.body, strict_map_key=False)
        if chunk.more:
            fields["rest"] = _bodies(left)
        if chunk.kind == SNAPSHOT_META:
            self.next_topic_id = max(self.next_topic_id, fields["next_topic_id"])
            self.last_time_us = max(self.last_time_us, fields["time_us"])
            self.ahead_us = fields.get("ahead_us", 0)
            self.first_lsn = fields.get("first_lsn", 0)
            self.token_base = fields.get("token_base", 0)
            self.doubted_topic_id = fields.get("doubted_topic_id", 0)
            self._replay.topics_known_below = fields["next_topic_id"]
            for name, position, end, problem, lost in fields.get("recorded", ()):
                ranges = [LostRange(*one) for one in lost]
                self.record(Damage(name, position, end, problem, ranges))
            self.known_damage = known_damage(chunk)
            self._replay.topic_created_at = self._replay.groups_known_at = chunk.lsn
            return
        load = self.loaders.get(chunk.kind)
        if load is None:
            raise NewerFormat(
                f"the snapshot holds a chunk of kind {chunk.kind}, which this version does not "
                "know; upgrade brokerd"
            )
        try:
            load(chunk.lsn, fields)
        except _MALFORMED as error:
            raise NewerFormat(
                f"the snapshot holds a chunk of kind {chunk.kind} that this version cannot read "
                f"({_fault(error)}); upgrade if a newer brokerd wrote it, else this version has a "
                "fault; the log has the traceback"
            ) from error

    def _load_topic(self, lsn: int, fields: dict[str, Any]) -> None:
        topic = Topic(
            fields["topic_id"],
            fields["name"],
            len(fields["next_offsets"]),
            TopicSettings.read(fields.get("settings", {})),
            fields.get("internal_of", 0),
        )
        starts, archived = fields.get("starts", {}), fields.get("archived", {})
        for index, start in starts.items():
            self.starts[topic.topic_id, index] = start
        for partition, next_offset in zip(topic.partitions, fields["next_offsets"], strict=True):
            partition.restore(next_offset)
            partition.gaps += map(tuple, fields.get("gaps", {}).get(partition.index, ()))
            partition.move_start(starts.get(partition.index, 0))
            self.archive(partition, archived.get(partition.index, 0))
            self._replay.known_at[partition] = lsn
        self.add_topic(topic)
        self._replay.fresh_from[topic] = lsn

    def _load_deleted(self, fields: dict[str, Any]) -> None:
        self._replay.deleted.add(fields["topic_id"])

    def _load_group_partition(self, lsn: int, fields: dict[str, Any]) -> None:
        """Load a group partition that has a chunk of its own, or several if it is large."""
        store = fields["rest"] if "rest" in fields else fields["store"]
        topic = self.by_id[fields["topic_id"]]
        self._load_store(lsn, topic, fields["partition"], fields["group"], fields["time_us"], store)

    def _load_group_partitions(self, lsn: int, fields: dict[str, Any]) -> None:
        topic = self.by_id[fields["topic_id"]]
        for partition, group, time_us, store in fields["lanes"]:  # group partitions
            self._load_store(lsn, topic, partition, group, time_us, store)

    def _load_store(
        self,
        lsn: int,
        topic: Topic,
        partition: int,
        group: str,
        time_us: int,
        store: bytes | Iterable[bytes],
    ) -> None:
        group_partition = self._group(topic, group).partitions[partition]
        owner = group_partition.group
        # A group keeps at least one: snapshots know groups by their group partitions alone.
        if owner.kept and isinstance(store, bytes) and group_partition.is_unused(store):
            self._replay.unused_from[owner, partition] = lsn
            return
        group_partition.load(store, time_us + self._replay.shift_us)
        self.stores.trim()
        self._replay.fresh_from[group_partition] = self._replay.token_known_at[group_partition] = (
            lsn
        )

    # -- before and after -----------------------------------------------------------------------

    def begin_replay(self, now_us: int, time_us: int) -> None:
        """Prepare to `load` and `apply`, at monotonic ``now_us`` and broker time ``time_us``."""
        self._replay = Replay(now_us, time_us)

    def end_replay(self, report: RecoveryReport) -> None:
        """Complete the state after damage, and drop the notes of the replay.

        Raises `DamagedData` if the log contradicts itself, although no part of it is or was
        damaged.
        """
        replay, self._replay = self._replay, Replay(0, 0)
        self.behind_us = max(0, self.last_time_us - replay.time_us)
        DamageRecovery(self, replay, report).run()
        for topic in self.by_id.values():
            for partition in topic.partitions:
                partition.forget_gaps()

    @property
    def topics_known_below(self) -> int:
        """Return the id below which an unknown topic is a deleted topic."""
        return self.doubted_topic_id or self.next_topic_id

    def record(self, damage: Damage) -> None:
        """Note a damaged place that a repair recorded."""
        self.recorded[damage.name, damage.position, damage.end] = damage

    def raise_next_offset(self, topic_id: int, index: int, next_offset: int) -> None:
        """Raise the next offset to that of a header, which may be intact in a damaged batch."""
        self.next_topic_id = max(self.next_topic_id, topic_id + 1)
        partition = self.partition(topic_id, index)
        if partition is not None and next_offset > partition.next_offset:
            partition.restore(next_offset)

    def partition(self, topic_id: int, index: int) -> Partition | None:
        """Return the partition; None if the topic or the partition does not exist."""
        topic = self.by_id.get(topic_id)
        if topic is None or index >= len(topic.partitions):
            return None
        return topic.partitions[index]


def dispose(groups: Iterable[ConsumerGroup]) -> None:
    """Drop references of these deleted groups, so that their memory is freed."""
    for group in groups:
        group.dispose()


def _bodies(left: Iterator[SnapshotChunk]) -> Iterator[bytes]:
    """Yield the bodies of the chunks that continue the previous chunk."""
    for chunk in left:
        yield chunk.body
        if not chunk.more:
            return


def last_token(groups: Iterable[ConsumerGroup]) -> int:
    """Return the highest token that any of these groups granted; 0 if none did."""
    return max(
        (group_partition.last_token for group in groups for group_partition in group.kept.values()),
        default=0,
    )


def _kept(group: ConsumerGroup, index: int) -> GroupPartition:
    """Return the group partition of an event. The group keeps it from now on."""
    group_partition = group.partitions[index]
    group_partition.keep()
    return group_partition
