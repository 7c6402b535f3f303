# Tests: tests/protocols/test_rustlog.py
"""RustLog's committed offsets, including those of unknown topics and partitions."""

from __future__ import annotations

from collections import OrderedDict

from brokerd.broker import Broker, Partition
from brokerd.broker.model.topics import check_name
from brokerd.codecs.rustlog import MAX_OFFSET
from brokerd.errors import InvalidName, InvalidRequest

UNPLACED_MAX = 10_000
"""Largest number of kept commits of unknown partitions. The oldest ones are dropped."""

CommitKey = tuple[str, int, str]
"""Topic, partition, group."""


class OffsetCommits:
    """Committed offsets of the groups of one listener.

    The log holds the commits of existing partitions. The reference's group rules also accept
    commits of unknown partitions. These stay in memory until the partition exists and has a commit.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._unplaced: OrderedDict[CommitKey, int] = OrderedDict()

    def find_partition(self, topic_name: str, partition_index: int) -> Partition | None:
        """Return a partition or None. RustLog has no topic with the empty name; Mamamia has."""
        topic = self._broker.topics.find(topic_name) if topic_name else None
        if topic is None or partition_index >= len(topic.partitions):
            return None
        return topic.partitions[partition_index]

    def committed(
        self, topic_name: str, partition_index: int, group_name: str, or_unplaced: bool = False
    ) -> int | None:
        """Return a group's committed offset or None.

        With ``or_unplaced``, also from commits of unknown partitions.
        """
        partition = self.find_partition(topic_name, partition_index)
        if partition is None:
            key = (topic_name, partition_index, group_name)
            return self._unplaced.get(key) if or_unplaced else None
        if group_name not in partition.topic.groups:
            return None
        return self._broker.groups.committed_offset(topic_name, group_name, partition_index)

    def commit(
        self,
        topic_name: str,
        partition_index: int,
        group_name: str,
        offset: int,
        keep_unplaced: bool,
    ) -> bool:
        """Commit an offset; return False for an unknown partition, unless ``keep_unplaced``.

        Raises `InvalidName`, `InvalidRequest`, `NoSpace` and `Congested`.
        """
        if not group_name:
            raise InvalidName("the group has no name; give it one")
        if offset > MAX_OFFSET:
            raise InvalidRequest(f"offset {offset} is above {MAX_OFFSET}, the largest offset")
        if self.find_partition(topic_name, partition_index) is not None:
            self._unplaced.pop((topic_name, partition_index, group_name), None)
            self._broker.groups.commit_offset(topic_name, group_name, partition_index, offset)
            return True
        if not keep_unplaced:
            return False
        check_name(topic_name, "topic name")
        check_name(group_name, "group name")
        self._unplaced[topic_name, partition_index, group_name] = offset
        self._unplaced.move_to_end((topic_name, partition_index, group_name))
        if len(self._unplaced) > UNPLACED_MAX:
            self._unplaced.popitem(last=False)
        return True

    def lag(self, topic_name: str, partition_index: int, group_name: str) -> int | None:
        """Return the number of records from the group's commit on; None without a commit."""
        partition = self.find_partition(topic_name, partition_index)
        committed = self.committed(topic_name, partition_index, group_name)
        if partition is None or committed is None:
            return None
        return max(0, partition.next_offset - max(committed, partition.start_offset))
