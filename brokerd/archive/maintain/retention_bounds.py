# Tests: tests/archive/test_rewrite.py
"""The retention bounds of some files: deleted topics and start offsets. No Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.contract.layout import BUCKETS, Range, bucket_of


class RetentionBounds(NamedTuple):
    """The offsets that files may stop covering."""

    next_topic_id: int = 0
    """A smaller id that ``live`` lacks belongs to a deleted topic."""
    live: frozenset[int] = frozenset()
    starts: Mapping[tuple[int, int], int] = {}
    """Start offsets above 0, by topic id and partition."""

    def is_deleted(self, topic_id: int) -> bool:
        """Return whether a topic is deleted."""
        return topic_id < self.next_topic_id and topic_id not in self.live

    def of_partition(self, topic_id: int, partition: int) -> RetentionBounds:
        """Return the bounds of files of one partition."""
        start = self.starts.get((topic_id, partition), 0)
        starts = {(topic_id, partition): start} if start else {}
        return RetentionBounds(self.next_topic_id, self.live & {topic_id}, starts)

    def retained(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the parts of ranges that must stay covered."""
        parts = []
        for one in ranges:
            if self.is_deleted(one.topic_id):
                continue
            first = max(one.first, self.starts.get(one[:2], 0))
            if first < one.end:
                parts.append(one._replace(first=first))
        return parts


def bounds_by_bucket(bounds: Bounds, only: Collection[int] | None = None) -> list[RetentionBounds]:
    """Return the retention bounds of each bucket's files.

    :param only: ids of the topics to maintain. None means all, and deleted topics.
    """
    live: list[set[int]] = [set() for _ in range(BUCKETS)]
    starts: list[dict[tuple[int, int], int]] = [{} for _ in range(BUCKETS)]
    for topic in bounds.topics:
        live[bucket_of(topic.id)].add(topic.id)
    for (topic_id, partition), start in bounds.start_offsets().items():
        if only is None or topic_id in only:
            starts[bucket_of(topic_id)][topic_id, partition] = start
    next_topic_id = bounds.next_topic_id if only is None else 0
    return [
        RetentionBounds(next_topic_id, frozenset(live[bucket]), starts[bucket])
        for bucket in range(BUCKETS)
    ]
