# Tests: tests/simulator/test_flips.py
"""The state that a broker shows after a start: records, groups, and reported damage.

Groups are described record by record, so that states compare across recoveries that skip records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from brokerd.broker import ConsumerGroup, GroupPartition
from brokerd.values import Record
from simulator.directory.byte_map import GroupPartitionName
from simulator.directory.reference import SECOND_US, Key
from simulator.machine.bare import AcceptAll, BareBroker

READER = "reads everything"
"""The name of a new group."""

RecordState = tuple[object, ...]
"""State of a record in a group: ("leased", ...), ("dead", ...), ("ready", ...).

A settled or delayed record has none.
"""


@dataclass
class GroupPartitionSight:
    """The state of a group in one partition."""

    committed: int
    delayed: int
    states: dict[int, RecordState] = field(default_factory=dict)
    """States by offset."""

    def without(self, lost: set[int], end: int) -> GroupPartitionSight:
        """Return the state without lost records and records from ``end`` on.

        Delayed records are not visible one by one, so their number is unknown if records are lost.
        """
        states = {o: s for o, s in self.states.items() if o < end and o not in lost}
        return GroupPartitionSight(self.committed, -1 if lost else self.delayed, states)


@dataclass
class Sight:
    """The state that a start shows."""

    damage: dict[str, Any]
    """The damage as the status reports it."""
    cut: bool
    next_topic_id: int
    names: dict[int, str] = field(default_factory=dict)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    records: dict[Key, Record] = field(default_factory=dict)
    group_partitions: dict[GroupPartitionName, GroupPartitionSight] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    @property
    def says_damaged(self) -> bool:
        """Whether the broker reports a loss."""
        return bool(self.damage["degraded"]) or self.cut

    def names_lost(self, key: Key) -> bool:
        """Return whether the broker reports that this record is, or may be, lost."""
        topic_id, partition, offset = key
        name = self.names.get(topic_id, f"(id {topic_id})")
        told = [lost for place in self.damage["shown"] for lost in place["lost"]]
        return any(
            (one["topic"], one["partition"]) == (name, partition)
            and one["first"] <= offset <= one["last"]
            for one in (*told, *self.damage["left_out"])
        )


def look(house: BareBroker) -> Sight:
    """Return everything that the broker shows. It leases all ready records to see them."""
    broker = house.broker
    topics = list(broker.topics.all())
    group_partitions: dict[GroupPartitionName, GroupPartitionSight] = {}
    for topic in topics:
        for group in list(topic.groups.values()):
            group_partitions |= _look_at_group(house, group)
    records: dict[Key, Record] = {}
    complaints: list[str] = []
    for topic in topics:
        found, wrong = house.drain(topic.name, READER)
        complaints += wrong
        for (index, offset), record in found.items():
            records[topic.topic_id, index, offset] = record
    sight = Sight(
        broker.status()["damage"],
        house.report.cut is not None,
        broker.topics.create("made after the start").topic_id,
        records=records,
        group_partitions=group_partitions,
        complaints=complaints + [str(error) for error in house.failures],
    )
    for topic in topics:
        sight.names[topic.topic_id] = topic.name
        for partition in topic.partitions:
            sight.ends[topic.topic_id, partition.index] = partition.next_offset
    return sight


def _look_at_group(
    house: BareBroker, group: ConsumerGroup
) -> dict[GroupPartitionName, GroupPartitionSight]:
    found = {
        _name(group_partition): GroupPartitionSight(
            group_partition.store.committed, group_partition.store.delayed
        )
        for group_partition in group.partitions
    }
    for group_partition in group.partitions:
        states = found[_name(group_partition)].states
        for one in group_partition.store.leases():  # without times, which restart at every start
            lease = one.owner, one.token, one.grants, one.failures, one.duration_us
            states[one.offset] = ("leased", *lease)
        for letter in group_partition.store.dead_letters():
            states[letter.offset] = ("dead", letter.reason, letter.grants, letter.failures)
    grants = house.broker.leases.acquire(
        group.topic.name, group.name, "looks", SECOND_US, 10_000, AcceptAll()
    )
    for group_partition, grant in grants:
        found[_name(group_partition)].states[grant.offset] = ("ready", grant.grants, grant.failures)
    return found


def _name(group_partition: GroupPartition) -> GroupPartitionName:
    return (
        group_partition.partition.topic.topic_id,
        group_partition.partition.index,
        group_partition.group.name,
    )
