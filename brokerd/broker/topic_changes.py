# Tests: tests/broker/test_broker.py
"""Topics made and changed."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.broker.journal import BATCH_FRAME_BYTES, Journal
from brokerd.broker.state import State, topic_created_entry
from brokerd.broker.topics import Topic, check_name
from brokerd.errors import LimitExceeded

MAX_PARTITIONS = 32_767


class TopicChanges:
    """Creates topics. ``admit(size)`` finds room in the log, as `Producing.admit`."""

    def __init__(
        self, state: State, journal: Journal, admit: Callable[[int], None], max_topics: int
    ) -> None:
        self._state = state
        self._journal = journal
        self._admit = admit
        self._max_topics = max_topics

    def create_topic(self, name: str, partitions: int = 1) -> Topic:
        """Create a topic, or return the one of that name.

        Raises `InvalidName`, `LimitExceeded`, `NoSpace` or `Congested`.
        """
        existing = self._state.by_name.get(name)
        if existing is not None:
            return existing
        check_name(name, "topic name")
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise LimitExceeded(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
        if len(self._state.by_name) >= self._max_topics:
            raise LimitExceeded(
                f"there are {len(self._state.by_name)} topics already; raise limits.max_topics"
            )
        topic = Topic(self._state.next_topic_id, name, partitions)
        entry = topic_created_entry(topic)
        self._admit(len(entry.body) + BATCH_FRAME_BYTES)
        self._state.add_topic(topic)
        self._journal.add_entry(entry)
        return topic
