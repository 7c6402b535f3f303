# Tests: tests/broker/test_bounds.py
"""Captures the bounds of topics: the offsets below which the rollup may remove records.

A bound stays valid after its capture: start offsets only grow, topics stay deleted, and no group
has work below ``compact_below``, until a group seeks there. A group that seeks back or starts later
receives the remaining records, as with retention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from brokerd.archive.contract.bounds import PartitionBounds, TopicBounds
from brokerd.broker.model.topics import GroupPartition, Topic

PIECE_ITEMS = 100
"""Partitions, and groups in them, read between two pauses."""

CommitPlace = Callable[[GroupPartition], int | None]
"""`Overview.commit_place`."""


def capture(topics: Iterable[Topic], commit_place: CommitPlace) -> Iterator[TopicBounds | None]:
    """Yield the bounds of each existing topic; None for a pause, in which the state may change."""
    items = 0
    for topic in topics:
        partitions = []
        for partition in list(topic.partitions):
            start, bound, end = partition.start_offset, partition.next_offset, partition.next_offset
            for group in list(topic.groups.values()):
                items += 1
                if items % PIECE_ITEMS == 0:
                    yield None
                if not group.deleted:
                    bound = min(bound, first_to_do(group.partitions[partition.index], commit_place))
            items += 1
            if items % PIECE_ITEMS == 0:
                yield None
            partitions.append(PartitionBounds(start, bound, end, partition.gaps))
        if not topic.deleted:
            compact = bool(topic.settings.compact)
            yield TopicBounds(topic.topic_id, topic.name, topic.internal_of, compact, partitions)


def first_to_do(group_partition: GroupPartition, commit_place: CommitPlace) -> int:
    """Return the first offset that may be leased, delayed, a dead letter or unsettled in a group.

    For a group that commits and never leased, this is its committed offset.
    """
    place = commit_place(group_partition)
    if place is not None:
        return place
    store = group_partition.store
    if not store.dead:
        return store.floor
    return min(store.floor, next(store.dead_letters()).offset)
