# Tests: tests/protocols/test_rustlog.py
"""Committed offsets as RustLog sees them, also those that have no place in the log."""

from __future__ import annotations

from collections import OrderedDict

from brokerd.broker import Broker, Partition
from brokerd.broker.model.topics import check_name
from brokerd.codecs.rustlog import MAX_OFFSET
from brokerd.errors import InvalidName, InvalidRequest

UNPLACED_MAX = 10_000
"""Commits to places that do not exist that are kept, the latest."""

Place = tuple[str, int, str]
"""Topic, partition, group."""


class Commits:
    """Commits of one listener.

    Those to places that do not exist are kept in memory, if they are to be kept at all, and only
    until their place exists: from then on the log has the commits.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._unplaced: OrderedDict[Place, int] = OrderedDict()

    def place(self, topic_name: str, index: int) -> Partition | None:
        """A partition by name and number; the empty name, which Mamamia may use, is none here."""
        topic = self._broker.topics.find(topic_name) if topic_name else None
        if topic is None or index >= len(topic.partitions):
            return None
        return topic.partitions[index]

    def committed(
        self, topic_name: str, index: int, group_name: str, or_unplaced: bool = False
    ) -> int | None:
        """What a group has committed, if anything; also to a place that is not there, if wanted."""
        partition = self.place(topic_name, index)
        if partition is None:
            place = (topic_name, index, group_name)
            return self._unplaced.get(place) if or_unplaced else None
        if group_name not in partition.topic.groups:
            return None
        return self._broker.groups.committed_offset(topic_name, group_name, index)

    def commit(
        self, topic_name: str, index: int, group_name: str, offset: int, keep_unplaced: bool
    ) -> bool:
        """Keep an offset; False if there is no such place, unless it is to be kept all the same.

        Raises `InvalidName`, `InvalidRequest`, `NoSpace`, `Congested` and the like.
        """
        if not group_name:
            raise InvalidName("the group has no name; give it one")
        if offset > MAX_OFFSET:
            raise InvalidRequest(f"offset {offset} is above {MAX_OFFSET}, the last that can be")
        if self.place(topic_name, index) is not None:
            self._unplaced.pop((topic_name, index, group_name), None)
            self._broker.groups.commit_offset(topic_name, group_name, index, offset)
            return True
        if not keep_unplaced:
            return False
        check_name(topic_name, "topic name")
        check_name(group_name, "group name")
        self._unplaced[topic_name, index, group_name] = offset
        self._unplaced.move_to_end((topic_name, index, group_name))
        if len(self._unplaced) > UNPLACED_MAX:
            self._unplaced.popitem(last=False)
        return True

    def behind(self, topic_name: str, index: int, group_name: str) -> int | None:
        """How many records are at or above the group's commit; None without one."""
        partition = self.place(topic_name, index)
        committed = self.committed(topic_name, index, group_name)
        if partition is None or committed is None:
            return None
        return max(0, partition.next_offset - max(committed, partition.start_offset))
