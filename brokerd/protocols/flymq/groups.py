# Tests: tests/protocols/test_flymq_groups.py
"""FlyMQ's consumer groups: one committed offset per (topic, group, partition), stored as given.

Flymq-payloads, 5.5, 5.6 and 5.60 to 5.64. There is no assignment and no heartbeat: every FETCH
names its offset.
"""

from __future__ import annotations

from functools import partial

from brokerd.broker import Broker, Partition
from brokerd.codecs import flymq
from brokerd.codecs.flymq import (
    Commit,
    GetLag,
    GetOffset,
    Opcode,
    ResetOffset,
    SeekToTimestamp,
    Subscribe,
)
from brokerd.errors import InvalidRequest, UnknownGroup
from brokerd.protocols.flymq.members import Memberships
from brokerd.protocols.flymq.request import RequestConnection
from brokerd.protocols.flymq.topics import checked_name, existing_partition
from brokerd.security import Access
from brokerd.security.audit import EventType

NOTHING_COMMITTED = -1
"""Creates a group without a committed offset."""
TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""


def subscribe(broker: Broker, memberships: Memberships, address: str, request: Subscribe) -> bytes:
    """SUBSCRIBE: create and join the group, and return the offset to begin at.

    The member's name is ``address``. An empty group name means no group.
    """
    topic_name, group, index, mode, _ = request
    partition = existing_partition(broker, topic_name, index)
    if group:
        checked_name(group, "group name")
    if mode == "earliest":
        offset = partition.start_offset
    elif mode in ("latest", ""):
        offset = partition.next_offset
    elif mode == "commit":
        committed = _committed(broker, partition, group)
        offset = partition.start_offset if committed is None else committed
    else:
        raise InvalidRequest(f"unknown subscribe mode: {mode}")
    if group and group not in partition.topic.groups:
        broker.groups.commit_offset(topic_name, group, index, NOTHING_COMMITTED)
    if group:
        memberships.join(partition.topic.groups[group], address)
    return flymq.position(Opcode.SUBSCRIBE, offset)


def commit(broker: Broker, request: Commit) -> bytes:
    """COMMIT: commit an offset, forward or back."""
    existing_partition(broker, request.topic, request.partition)
    checked_name(request.group, "group name")
    broker.groups.commit_offset(*request)
    return flymq.ok(Opcode.COMMIT)


def reset_offset(broker: Broker, access: Access, request: ResetOffset) -> bytes:
    """RESET_OFFSET: commit the first offset, the next one, or the one given."""
    topic_name, group, index, mode, given, _ = request
    partition = existing_partition(broker, topic_name, index)
    checked_name(group, "group name")
    if mode == "earliest":
        offset = partition.start_offset
    elif mode == "latest":
        offset = partition.next_offset
    elif mode == "offset" and given is not None:
        offset = given
    else:
        raise InvalidRequest(f"unknown reset mode: {mode}")
    reset = partial(broker.groups.commit_offset, topic_name, group, index, offset)
    resource = f"{topic_name}/{group}"
    details = {"partition": str(index), "offset": str(offset)}
    broker.audit.carry_out(access.actor, EventType.GROUP_SOUGHT, resource, reset, details)
    return flymq.ok(Opcode.RESET_OFFSET)


def get_offset(broker: Broker, request: GetOffset) -> bytes:
    """GET_OFFSET: the committed offset, 0 without one."""
    partition = existing_partition(broker, request.topic, request.partition)
    committed = _committed_of_existing(broker, partition, request.group)
    return flymq.position(Opcode.GET_OFFSET, committed)


def get_lag(broker: Broker, request: GetLag) -> bytes:
    """GET_LAG: the number of records after the committed offset."""
    partition = existing_partition(broker, request.topic, request.partition)
    committed = _committed_of_existing(broker, partition, request.group)
    latest = partition.next_offset
    return flymq.lag(committed, committed, latest, max(0, latest - committed))


def seek_to_timestamp(connection: RequestConnection, request: SeekToTimestamp) -> bytes:
    """SEEK_TO_TIMESTAMP: the first offset since a time; commit it if a group is named."""
    broker = connection.broker
    partition = existing_partition(broker, request.topic, request.partition)
    group = request.group
    if group:
        checked_name(group, "group name")
    time_us = min(max(request.time_ms, 0), TIME_MS_MAX) * 1000
    offset = connection.await_result(
        request, partial(broker.reader.offset_at_time, partition, time_us)
    )
    if group:
        broker.groups.commit_offset(request.topic, group, partition.index, offset)
    return flymq.position(Opcode.SEEK_TO_TIMESTAMP, offset)


def _committed(broker: Broker, partition: Partition, group: str) -> int | None:
    """Return the committed offset; None without the group or a commit."""
    topic = partition.topic
    if not group or group not in topic.groups:
        return None
    return broker.groups.committed_offset(topic.name, group, partition.index)


def _committed_of_existing(broker: Broker, partition: Partition, group: str) -> int:
    """Return the committed offset, 0 without one. Raises `UnknownGroup`."""
    topic = partition.topic
    if not group or group not in topic.groups:
        raise UnknownGroup(f"consumer group not found: {topic.name}:{group}")
    return broker.groups.committed_offset(topic.name, group, partition.index) or 0
