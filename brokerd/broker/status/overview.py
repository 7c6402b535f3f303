# Tests: tests/broker/test_overview.py, tests/broker/test_broker.py
"""Shows counts of the broker and the positions of its groups.

Leases define the position of a group partition. Without leases, the committed offset defines it:
docs/leases.rst, section "Rules".
"""

from __future__ import annotations

from typing import Any, NamedTuple

from brokerd.broker.archive.append_times import ArchiveAppendTimes
from brokerd.broker.context import Context
from brokerd.broker.model.topics import GroupPartition
from brokerd.broker.status.group_listing import GroupListing
from brokerd.errors import DamagedData
from brokerd.groups.packed import Position
from brokerd.groups.view import END_OF_OFFSETS, NO_OFFSET
from brokerd.values import Format


class GroupInfo(NamedTuple):
    """Position of a group over all partitions of a topic; counts of records."""

    floor: int
    next: int
    lag: int
    leased: int
    ready: int
    delayed: int
    dead: int
    committed: int | None
    oldest_age_us: int | None
    max_attempts: int
    partitions: int


class Overview:
    """Reads the state without changing it."""

    def __init__(
        self, context: Context, max_attempts: int, archived_times: ArchiveAppendTimes
    ) -> None:
        self._state = context.state
        self._wal = context.wal
        self._time = context.time
        self._counters = context.counters
        self._max_attempts = max_attempts
        self._archived_times = archived_times
        self._listing = GroupListing(context.state, context.clock, self._group_partition, self.lag)
        self.groups = self._listing.rows
        self.stop = self._listing.stop

    def counts(self) -> dict[str, Any]:
        """Return the number of topics and the counters, by name."""
        counters = self._counters
        return {
            "topics": len(self._state.by_name),
            "records_produced": {
                Format(wire_format).name.lower(): count
                for wire_format, count in counters.records_produced.items()
            },
            "bytes_produced": counters.bytes_produced,
            "leases_granted": counters.leases_granted,
            "settled": counters.settled,
            "failed": counters.failed,
            "expired": counters.lapsed,
            "records_removed": dict(counters.records_removed),
            "dead_letters_removed": counters.dead_letters_removed,
            "refusals": [
                {"format": wire_format, "reason": reason, "count": count}
                for (wire_format, reason), count in counters.refusals.items()
            ],
            "traffic": {
                name: [
                    one.written_records,
                    one.written_bytes,
                    one.read_records,
                    one.read_bytes,
                ]
                for name, one in counters.traffic.by_name.items()
            },
        }

    def _group_partition(self, group_partition: GroupPartition) -> dict[str, Any]:
        position = group_partition.position
        age_us = self._oldest_age_us(group_partition, position)
        return {
            "topic": group_partition.partition.topic.name,
            "group": group_partition.group.name,
            "partition": group_partition.partition.index,
            "start": group_partition.partition.start_offset,
            "floor": position.floor,
            "lag": self.lag(group_partition, position),
            "leased": position.leased,
            "delayed": position.delayed,
            "dead": position.dead,
            "committed": position.committed if position.committed != NO_OFFSET else None,
            "paused": position.paused,
            "key_ordered": group_partition.settings.key_ordered,
            "oldest_age_seconds": None if age_us is None else age_us / 1e6,
        }

    def group_info(self, topic_name: str, group_name: str) -> GroupInfo:
        """Return the position of a group in a topic; an unknown group counts as empty."""
        topic = self._state.by_name.get(topic_name)
        group = topic.groups.get(group_name) if topic is not None else None
        group_partitions = list(group.partitions) if group is not None else []
        positions = [group_partition.position for group_partition in group_partitions]
        partitions = topic.partitions if topic is not None else []
        starts = sum(partition.start_offset for partition in partitions)
        ends = sum(partition.next_offset for partition in partitions)
        committed = [one.committed for one in positions if one.committed != NO_OFFSET]
        ages = [
            age
            for group_partition, position in zip(group_partitions, positions, strict=True)
            if (age := self._oldest_age_us(group_partition, position)) is not None
        ]
        lag = sum(map(self.lag, group_partitions, positions)) if group_partitions else ends - starts
        leased = sum(position.leased for position in positions)
        delayed = sum(position.delayed for position in positions)
        return GroupInfo(
            floor=sum(position.floor for position in positions) if group_partitions else starts,
            next=ends,
            lag=lag,
            leased=leased,
            ready=lag - leased - delayed,
            delayed=delayed,
            dead=sum(position.dead for position in positions),
            committed=min(sum(committed), END_OF_OFFSETS - 1) if committed else None,
            oldest_age_us=max(ages, default=None),
            max_attempts=self._max_attempts if group is None else group.settings.max_attempts,
            partitions=len(partitions),
        )

    def commit_place(
        self, group_partition: GroupPartition, position: Position | None = None
    ) -> int | None:
        """Return the position of a group partition that commits and never leased; else None.

        The position is the committed offset, or the partition's start offset if that is higher. A
        group partition never leased if its last token is not above the token base, which is above
        all tokens of deleted groups. ``position`` is that of the group partition, if known.
        """
        found = position or group_partition.position
        if found.committed == NO_OFFSET or found.last_token > self._state.token_base:
            return None
        if found.leased or found.ready or found.delayed or found.dead:
            return None
        return max(found.committed, group_partition.partition.start_offset)

    def lag(self, group_partition: GroupPartition, position: Position | None = None) -> int:
        """Return how many records of a group partition are unsettled, or follow its commit."""
        found = position or group_partition.position
        end, place = (
            group_partition.partition.next_offset,
            self.commit_place(group_partition, found),
        )
        return found.lag(end) if place is None else max(end - place, 0)

    def _oldest(self, group_partition: GroupPartition, position: Position) -> int | None:
        """Return the first offset of a group partition's lag; None without lag."""
        end = group_partition.partition.next_offset
        place = self.commit_place(group_partition, position)
        first = position.floor if place is None else place
        return first if first < end else None

    def _oldest_age_us(self, group_partition: GroupPartition, position: Position) -> int | None:
        """Return the age of the oldest record of a group partition's lag; None if unknown."""
        partition = group_partition.partition
        offset = self._oldest(group_partition, position)
        if offset is None:
            return None
        now_us = self._time.time_us()
        chunk = partition.find(offset)
        if chunk is not None and chunk.hole_end(offset) < chunk.end:
            index = chunk.hole_end(offset) - chunk.base
            return max(0, now_us - chunk.record(index, now_us).append_time_us)
        try:
            found = self._wal.time_of(partition.topic.topic_id, partition.index, offset)
        except (DamagedData, OSError):
            return None  # a read of the record reports the error
        if found is None:
            found = self._archived_times.time_of(partition, offset)
        return None if found is None else max(0, now_us - found)
