# Tests: tests/broker/test_traffic.py
"""Counts records and bytes by topic for the metrics.

At most `TOPICS_MAX` topics have counters of their own, those that are used first. All later ones
share the counters of `OTHERS`, so a client that makes topics cannot make series without end. The
counts of a deleted topic are added to those of `OTHERS`, so that sums over all topics never fall.
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.broker.model.chunks import Chunk, DenseChunk
from brokerd.broker.model.topics import Topic
from brokerd.values import total_bytes

TOPICS_MAX = 500
OTHERS = ""
"""Name of the counters that further topics share. No topic has it."""


class TopicTraffic:
    """Records and bytes of one topic since the start."""

    __slots__ = ("read_bytes", "read_records", "written_bytes", "written_records")

    def __init__(self) -> None:
        self.written_records = 0
        self.written_bytes = 0
        """Bytes of batches in the journal."""
        self.read_records = 0
        self.read_bytes = 0
        """Bytes of keys, values and metadata; of leased records the values only."""


class Traffic:
    """The counters of all topics."""

    def __init__(self) -> None:
        self.by_name: dict[str, TopicTraffic] = {}

    def of(self, topic: Topic) -> TopicTraffic:
        """Return the counters of a topic."""
        found: TopicTraffic | None = topic.traffic
        if found is None:
            found = topic.traffic = self._begin(topic)
        return found

    def _begin(self, topic: Topic) -> TopicTraffic:
        found = self.by_name.get(topic.name)
        if found is not None:
            return found
        name = topic.name
        if (
            topic.internal_of
            or topic.deleted
            or len(self.by_name) - (OTHERS in self.by_name) >= TOPICS_MAX
        ):
            name = OTHERS
        return self.by_name.setdefault(name, TopicTraffic())

    def end(self, topic: Topic) -> None:
        """Add the counts of a deleted topic to those of `OTHERS`."""
        ended: TopicTraffic | None = topic.traffic
        topic.traffic = None
        if ended is not None and self.by_name.get(topic.name) is ended:
            del self.by_name[topic.name]
            others = self.by_name.setdefault(OTHERS, TopicTraffic())
            others.written_records += ended.written_records
            others.written_bytes += ended.written_bytes
            others.read_records += ended.read_records
            others.read_bytes += ended.read_bytes

    def count_leased(self, topic: Topic, taken: Sequence[tuple[Chunk, int]]) -> None:
        """Count the records of an acquire, at least one; those of one dense run need no loop."""
        traffic = topic.traffic or self.of(topic)
        chunk, first = taken[0]
        count = len(taken)
        traffic.read_records += count
        if count == 1:
            traffic.read_bytes += len(chunk.values[first])
            return
        last_chunk, last = taken[-1]
        if chunk is last_chunk and last - first == count - 1 and isinstance(chunk, DenseChunk):
            traffic.read_bytes += total_bytes(chunk.values[first : last + 1])
        else:
            traffic.read_bytes += sum(len(one.values[index]) for one, index in taken)
