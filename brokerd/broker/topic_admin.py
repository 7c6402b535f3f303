# Tests: tests/broker/test_topic_admin.py
"""Creates, configures, trims and deletes topics.

Each method asks the journal for space first, then changes the state and adds one entry. Records
and events that the change ends go to the log before it, in a frame of their own, because entries of
topics come first in a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from brokerd.broker.context import Context
from brokerd.broker.group_commit import ENTRY_OVERHEAD_BYTES
from brokerd.broker.leases.removed_records import RemovedRecords
from brokerd.broker.leases.waiters import Waiters
from brokerd.broker.model.chunks import ChunkCache
from brokerd.broker.model.snapshotter import Snapshotter
from brokerd.broker.model.state import last_token
from brokerd.broker.model.topic_entries import (
    topic_archived_entry,
    topic_configured_entry,
    topic_created_entry,
    topic_deleted_entry,
    topic_start_entry,
)
from brokerd.broker.model.topics import (
    Partition,
    Topic,
    TopicSettings,
    check_name,
    check_settings,
)
from brokerd.errors import InvalidName, LimitExceeded, UnknownOffset
from brokerd.values import RESERVED_PREFIX

OWN_TOPIC_BYTES = 1024
"""Upper bound in a frame of a new topic, or of new settings of one of the broker's own topics."""


def check_topic_name(name: str) -> None:
    """Raise `InvalidName` for a name that topics of clients must not have."""
    check_name(name, "topic name")
    if name.startswith(RESERVED_PREFIX):
        raise InvalidName(
            f"topic names that begin with {RESERVED_PREFIX!r} are the broker's own; use another"
        )


class TopicAdmin:
    """Creates, changes and deletes topics. It calls ``configured()`` when settings change."""

    def __init__(
        self,
        context: Context,
        snapshotter: Snapshotter,
        waiters: Waiters,
        tail: ChunkCache,
        cold: ChunkCache,
        max_topics: int,
        max_partitions: int,
        removed_records: RemovedRecords,
        configured: Callable[[], None],
    ) -> None:
        self._state = context.state
        self._group_commit = context.group_commit
        self._snapshotter = snapshotter
        self._waiters = waiters
        self._tail = tail
        self._cold = cold
        self._counters = context.counters
        self.max_topics = max_topics
        self.max_partitions = max_partitions
        self._removed_records = removed_records
        self._configured = configured

    def find(self, name: str) -> Topic | None:
        """Return the topic of this name, or None."""
        return self._state.by_name.get(name)

    def find_id(self, topic_id: int) -> Topic | None:
        """Return the topic with this id, or None; an internal topic does not count."""
        topic = self._state.by_id.get(topic_id)
        return None if topic is None or topic.internal_of else topic

    def existing(self, name: str) -> Topic:
        """Return the topic of this name. Raises `UnknownTopic`."""
        return self._state.existing_topic(name)

    def all(self) -> Iterator[Topic]:
        """Iterate over the topics that have names, in order of creation."""
        return (topic for topic in self._state.by_id.values() if not topic.internal_of)

    def create(
        self, name: str, partitions: int = 1, settings: TopicSettings | None = None
    ) -> Topic:
        """Create a topic, or return the existing topic of that name unchanged.

        Raises `InvalidName`, `InvalidRequest`, `LimitExceeded`, `NoSpace` or `Congested`.
        """
        existing = self._state.by_name.get(name)
        if existing is not None:
            return existing
        settings = settings or TopicSettings()
        check_settings(settings)
        self.check_new(name, partitions)
        return self._add(Topic(self._state.next_topic_id, name, partitions, settings))

    def check_new(self, name: str, partitions: int, before: int = 0) -> None:
        """Raise `InvalidName` or `LimitExceeded` if no such topic may be created.

        ``before`` is the number of topics that the caller creates before this one.
        """
        check_topic_name(name)
        if not 1 <= partitions <= self.max_partitions:
            raise LimitExceeded(
                f"a topic has 1 to {self.max_partitions} partitions, not {partitions}; "
                "limits.partitions says how many"
            )
        if len(self._state.by_name) + before >= self.max_topics:
            others = f", and {before} more are to be made before {name!r}" if before else ""
            raise LimitExceeded(
                f"there are {len(self._state.by_name)} topics already{others}, and "
                f"limits.max_topics is {self.max_topics}; raise it"
            )

    def create_admitted(self, name: str, partitions: int) -> Topic:
        """Create a topic that passed `check_new` and is admitted.

        It takes `OWN_TOPIC_BYTES` and an entry.
        """
        return self._add_admitted(Topic(self._state.next_topic_id, name, partitions))

    def internal_topic(self, target: Topic) -> Topic:
        """Return the internal topic that serves ``target``. The first call creates it.

        It has one partition, is not listed, and is deleted with ``target``. It keeps its records
        until its start offset moves. Raises `NoSpace` or `Congested`.
        """
        if target.internal is not None:
            return target.internal
        name = f"{RESERVED_PREFIX}{target.topic_id}"
        forever = TopicSettings(0, 0, 0)
        return self._add(Topic(self._state.next_topic_id, name, 1, forever, target.topic_id))

    def own_topic(self, name: str, settings: TopicSettings) -> Topic:
        """Return one of the broker's own topics, with one partition and these settings.

        Create or configure it if needed. The caller has admitted `OWN_TOPIC_BYTES` for it.
        """
        topic = self._state.by_name.get(name)
        if topic is None:
            return self._add_admitted(Topic(self._state.next_topic_id, name, 1, settings))
        if topic.settings != settings:
            self._configure_admitted(topic, settings)
        return topic

    def _add(self, topic: Topic) -> Topic:
        self._group_commit.admit(len(topic_created_entry(topic).body) + ENTRY_OVERHEAD_BYTES)
        return self._add_admitted(topic)

    def _add_admitted(self, topic: Topic) -> Topic:
        self._state.add_topic(topic)
        self._group_commit.add_entry(topic_created_entry(topic))
        # Not `ticket`, which may end the frame: the caller may have more for the same frame.
        topic.ticket = self._group_commit.next_ticket
        return topic

    def configure(self, name: str, settings: TopicSettings) -> None:
        """Set all settings of a topic. None means the default of the broker.

        Raises `UnknownTopic`, `InvalidName`, `InvalidRequest`, `NoSpace` or `Congested`.
        """
        topic = self._topic_to_change(name)
        check_settings(settings)
        entry = topic_configured_entry(topic, settings)
        self._group_commit.admit(len(entry.body) + ENTRY_OVERHEAD_BYTES)
        self._configure_admitted(topic, settings)

    def _configure_admitted(self, topic: Topic, settings: TopicSettings) -> None:
        topic.settings = settings
        self._group_commit.add_entry(topic_configured_entry(topic, settings))
        self._configured()

    def delete(self, name: str) -> None:
        """Delete a topic with its records, groups and delayed messages.

        Long polls on it time out at once. The name is free at once for a new topic, whose offsets
        begin at 0. Raises `UnknownTopic`, `InvalidName`, `NoSpace` or `Congested`.
        """
        topic = self._topic_to_change(name)
        self._group_commit.admit_events(2 * ENTRY_OVERHEAD_BYTES)
        self._group_commit.end_frame_early()
        gone = [one for one in (topic, topic.internal) if one is not None]
        tokens = [last_token(one.groups.values()) for one in gone]
        # Deleted groups count, too: a start may find only this entry of them.
        token_base = self._state.token_base = max(self._state.token_base, *tokens)
        for one in gone:
            self._snapshotter.topic_deleted(one)
            self._tail.drop(partition.chunks for partition in one.partitions)
            self._cold.drop(partition.cold for partition in one.partitions)
            self._counters.traffic.end(one)
        self._state.remove_topic(topic)
        self._group_commit.add_entry(topic_deleted_entry(topic, token_base))
        self._waiters.end(name)

    def trim(self, name: str, partition: int, offset: int) -> int:
        """Remove the records of a partition below ``offset``; return its new start offset.

        The start offset never goes back, and never passes the next offset. Raises `UnknownTopic`,
        `InvalidName`, `UnknownPartition`, `UnknownOffset`, `NoSpace` or `Congested`.
        """
        trimmed = self._topic_to_change(name).partition(partition)
        if not 0 <= offset <= trimmed.next_offset:
            raise UnknownOffset(
                f"topic {name!r} partition {partition} cannot begin at offset {offset}: use one "
                f"from {trimmed.start_offset} to {trimmed.next_offset}"
            )
        self.remove([(trimmed, offset)], "trimmed")
        return trimmed.start_offset

    def _topic_to_change(self, name: str) -> Topic:
        """Return a topic of clients by name. Raises `UnknownTopic` or `InvalidName`."""
        topic = self._state.existing_topic(name)
        check_topic_name(name)
        return topic

    def remove(self, starts: list[tuple[Partition, int]], reason: str) -> int:
        """Move start offsets forward, in one frame; return how many records this removed.

        An offset at or below the start offset changes nothing. Long polls try again, because keys
        may be free now. The metric counts by ``reason``. Raises `NoSpace` or `Congested`.
        """
        moved = [
            (partition, offset) for partition, offset in starts if offset > partition.start_offset
        ]
        if not moved:
            return 0
        self._group_commit.admit_events(2 * ENTRY_OVERHEAD_BYTES * len(moved))
        self._group_commit.end_frame_early()
        removed = 0
        for partition, offset in moved:
            removed += offset - partition.start_offset
            self._group_commit.add_entry(topic_start_entry(partition, offset))
            self._state.move_start(partition, offset)
        self._counters.records_removed[reason] += removed
        self._removed_records.settle(partition for partition, _ in moved)
        self._waiters.serve({partition.topic.name for partition, _ in moved})
        return removed

    def set_archived_ends(self, ends: list[tuple[Partition, int]]) -> int:
        """Record in one frame that an archive has the records of partitions below offsets.

        The log may then lack them. Offsets that are not above the recorded ones, and deleted
        topics, change nothing. Return how many changed. Raises `NoSpace` or `Congested`.
        """
        news = [
            (partition, end)
            for partition, end in ends
            if end > partition.archived_end and not partition.topic.deleted
        ]
        if news:
            self._group_commit.admit_events(2 * ENTRY_OVERHEAD_BYTES * len(news))
        for partition, end in news:
            self._group_commit.add_entry(topic_archived_entry(partition, end))
            self._state.archive(partition, end)
        return len(news)
