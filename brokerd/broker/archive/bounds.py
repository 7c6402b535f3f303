# Tests: tests/broker/test_bounds.py, tests/broker/test_stream_holds.py
"""Captures the bounds of topics: the offsets below which the rollup may remove records.

A bound stays valid after its capture: start offsets only grow, topics stay deleted, and no group
has work below ``compact_below``, and no named stream holds records there. A group that seeks back,
and a group or a hold that starts later, has the remaining records, as with retention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from brokerd.archive.contract.bounds import PartitionBounds, TopicBounds
from brokerd.broker.model.topics import GroupPartition, Partition, Topic
from brokerd.groups.packed import Position

PIECE_ITEMS = 100
"""Partitions, and groups in them, read between two pauses."""

HeldFrom = Callable[[Partition], int | None]
"""`Streams.held_from`."""

CommitPlace = Callable[[GroupPartition, Position], int | None]
"""`Overview.commit_place`."""


def capture(
    topics: Iterable[Topic], commit_place: CommitPlace, held_from: HeldFrom = lambda partition: None
) -> Iterator[TopicBounds | None]:
    """Yield the bounds of each existing topic; None for a pause, in which the state may change."""
    for topic in topics:
        yield from _capture_topic(topic, commit_place, held_from)


def _capture_topic(
    topic: Topic, commit_place: CommitPlace, held_from: HeldFrom
) -> Iterator[TopicBounds | None]:
    found = [(one, one.start_offset, one.next_offset) for one in topic.partitions]
    bounds = [end for _, _, end in found]
    used_by = [0] * len(found)
    groups = items = 0
    for group in list(topic.groups.values()):
        first: dict[int, int] = {}
        for group_partition in group.used():
            items += 1
            if items % PIECE_ITEMS == 0:
                yield None
            if group.deleted:
                break
            index = group_partition.partition.index
            first[index] = first_to_do(group_partition, commit_place)
        if not group.deleted:
            groups += 1
            for index, offset in first.items():
                used_by[index] += 1
                bounds[index] = min(bounds[index], offset)
    partitions = []
    for (partition, start, end), bound, used in zip(found, bounds, used_by, strict=True):
        items += 1
        if items % PIECE_ITEMS == 0:
            yield None
        if used < groups:
            bound = min(bound, _first_record(partition))
        held = held_from(partition)
        if held is not None:
            bound = min(bound, held)
        partitions.append(PartitionBounds(start, bound, end, partition.gaps))
    if not topic.deleted:
        compact = bool(topic.settings.compact)
        yield TopicBounds(topic.topic_id, topic.name, topic.internal_of, compact, partitions)


def _first_record(partition: Partition) -> int:
    """Return the floor of a group without events in this partition."""
    floor = partition.start_offset
    for first, end in sorted(partition.gaps):
        if first > floor:
            break
        floor = max(floor, end)
    return floor


def first_to_do(group_partition: GroupPartition, commit_place: CommitPlace) -> int:
    """Return the first offset that may be leased, delayed, a dead letter or unsettled in a group.

    For a group that commits and never leased, this is its committed offset.
    """
    position = group_partition.position
    place = commit_place(group_partition, position)
    if place is not None:
        return place
    if not position.dead:
        return position.floor
    return min(position.floor, next(group_partition.store.dead_letters()).offset)
