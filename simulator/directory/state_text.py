# Tests: tests/simulator/test_state_text.py
"""Describe the state of a directory as text, to compare two ways of reading it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from brokerd.broker import Broker, GroupPartition, Topic
from brokerd.server.assembly import broker_settings
from brokerd.server.config import Config
from brokerd.wal import WalOptions
from simulator.clients.registry_calls import view_of
from simulator.machine.bare import STATE_DIR, BareBroker, counting_ids
from simulator.machine.disk import SimDisk


def state_of(disk: SimDisk, config: Config) -> list[str]:
    """Return the state of a broker that starts on a copy of ``disk``."""
    options = WalOptions(segment_bytes=config.wal.segment_bytes, free_bytes_min=0)
    house = BareBroker(disk.fork(), options, counting_ids(b"copy"), broker_settings(config))
    return list(describe(house.broker))


def without_snapshots(disk: SimDisk) -> SimDisk:
    """Return a copy of the disk without snapshots: the log has the whole state."""
    copy = disk.fork()
    for name in _snapshots(copy):
        copy.unlink(os.path.join(STATE_DIR, name))
    return copy


def without_newest_snapshot(disk: SimDisk) -> SimDisk | None:
    """Return a copy of the disk with only the older snapshot; None without one."""
    copy = disk.fork()
    *older, newest = _snapshots(copy) or [""]
    if not older:
        return None
    copy.unlink(os.path.join(STATE_DIR, newest))
    return copy


def _snapshots(disk: SimDisk) -> list[str]:
    """Return the names of the snapshots, oldest first."""
    return sorted(name for name in disk.list(STATE_DIR) if name.endswith(".snap"))


def describe(broker: Broker) -> Iterator[str]:
    """Yield a line for each partition and each group partition, in order, without times.

    Streams, accounts, schemas and quotas follow.
    """
    for topic in sorted(broker.topics.all(), key=lambda topic: topic.topic_id):
        yield from _topic(topic)
        if topic.internal is not None:
            yield from _topic(topic.internal)
    for stream in broker.streams.all():
        offsets = {topic_id: list(one) for topic_id, one in stream.offsets.items()}
        yield f"stream {stream.name!r}: {stream.lsn} {offsets} {stream.holds} {stream.hold_dropped}"
    for part, items in view_of(broker)._asdict().items():
        yield from (f"{part}: {item}" for item in items)


def _topic(topic: Topic) -> Iterator[str]:
    yield f"{topic.topic_id} {topic.name!r} {topic.settings.given()}"
    for partition in topic.partitions:
        archived = f", archived below {partition.archived_end}" if partition.archived_end else ""
        yield (
            f"{topic.topic_id} {topic.name!r}/{partition.index}: {partition.start_offset} "
            f"to {partition.next_offset}{archived}"
        )
        for name in sorted(topic.groups):
            yield f"  {name!r}: {_group_partition(topic.groups[name].partitions[partition.index])}"


def _group_partition(group_partition: GroupPartition) -> str:
    store = group_partition.store
    end = group_partition.partition.next_offset
    attempts = {
        offset: counts
        for offset in range(store.floor, end)
        if (counts := store.attempts(offset)) != (0, 0)
    }
    leases = sorted((lease.offset, lease.owner, lease.token) for lease in store.leases())
    letters = [(one.offset, one.reason, one.grants, one.failures) for one in store.dead_letters()]
    return (
        f"floor {store.floor} lag {store.lag(end)} token {_token(group_partition)} leases {leases} "
        f"attempts {attempts} dead {letters} {store.settings.to_json()}{' paused' * store.paused}"
    )


def _token(group_partition: GroupPartition) -> int:
    """Return the token of the latest grant, or the token base if that is higher.

    A start leaves unused group partitions of a snapshot out, and makes them anew: they begin at the
    token base of that time, which may be higher (`GroupPartition.is_unused`). Later events, such as
    new settings, find a used group partition in one reading and an unused one in the other.
    """
    return max(group_partition.store.last_token, group_partition.group.stores.token_base)
