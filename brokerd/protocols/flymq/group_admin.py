# Tests: tests/protocols/test_flymq_group_admin.py
"""FlyMQ's groups as administrators see them: lists, descriptions, deletion (0x62, 0x63, 0x65).

A group belongs to a topic. Who names none means a group of that name wherever it is, and needs
ADMIN by role (flymq-payloads, 5.62 to 5.65).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from brokerd.broker import Broker, ConsumerGroup, Topic
from brokerd.codecs import flymq
from brokerd.codecs.flymq import (
    MAX_LENGTH,
    DeleteGroup,
    DescribeGroup,
    Group,
    GroupOffset,
    JavaGroup,
    ListGroups,
    Opcode,
)
from brokerd.errors import LimitExceeded, UnknownGroup
from brokerd.protocols.base.steps import Steps
from brokerd.protocols.flymq.request import RequestConnection
from brokerd.protocols.flymq.topics import NO_NAMES, fitting
from brokerd.security import ADMIN
from brokerd.security.audit import EventType
from brokerd.values import RESERVED_PREFIX

GROUP_BYTES_MIN, OFFSET_BYTES = 14, 12
"""What an answer has for a group, and for each of its offsets."""
MEMBERS, NO_MEMBERS = "Stable", "Empty"
"""States of a group in the Java SDK's layout: Kafka's words for one with members, and without."""


def list_groups(connection: RequestConnection, request: ListGroups) -> bytes:
    """LIST_GROUPS: by topic, then by name. One without a name has none here either."""
    connection.access.require_server(ADMIN)
    found = connection.run_steps(request, partial(_listed, connection.broker))
    return fitting(flymq.listed_groups(found), "the list of all groups")


def _listed(broker: Broker) -> Steps[list[Group]]:
    found: list[Group] = []
    size = 0
    for topic in _topics(broker):
        for name in () if topic.deleted else sorted(topic.groups):
            group = topic.groups.get(name)
            if name and group is not None:
                found.append(_group(group))
                size += GROUP_BYTES_MIN + OFFSET_BYTES * len(found[-1].offsets)
            if size > MAX_LENGTH:
                raise LimitExceeded("there are more groups than an answer can have")
            yield None
    return found


def describe_group(connection: RequestConnection, request: DescribeGroup) -> bytes:
    """DESCRIBE_GROUP, in the layout of its request."""
    topic, name = request.topic, request.group
    _require(connection, topic)
    found = list(_named(connection.broker, topic, name))
    if not found:
        raise _not_found(topic, name)
    one: Group | JavaGroup = _group(found[0]) if topic is not None else _java_group(found)
    return fitting(flymq.described_group(one), "the description of the group")


def delete_group(connection: RequestConnection, request: DeleteGroup) -> bytes:
    """DELETE_GROUP: of a topic, or of all that have it, one after the other."""
    _require(connection, request.topic)
    if not connection.run_steps(request, partial(_deleted, connection, request)):
        raise _not_found(request.topic, request.group)
    return flymq.ok(Opcode.DELETE_GROUP)


def _deleted(connection: RequestConnection, request: DeleteGroup) -> Steps[int]:
    """How many."""
    broker, count = connection.broker, 0
    for group in list(_named(broker, request.topic, request.group)):
        if group.deleted:
            continue
        topic = group.topic.name
        delete = partial(broker.groups.delete, topic, group.name)
        resource = f"{topic}/{group.name}"
        broker.audit.carry_out(connection.access.actor, EventType.GROUP_DELETED, resource, delete)
        count += 1
        yield None
    return count


ANSWERS: dict[type[Any], Callable[[Any, Any], bytes]] = {
    ListGroups: list_groups,
    DescribeGroup: describe_group,
    DeleteGroup: delete_group,
}


def _require(connection: RequestConnection, topic: str | None) -> None:
    if topic:
        connection.access.require(ADMIN, topic)
    else:
        connection.access.require_server(ADMIN)


def _topics(broker: Broker) -> list[Topic]:
    """Those that this format can name, but the broker's own; sorted."""
    found = [
        topic
        for topic in broker.topics.all()
        if topic.name not in NO_NAMES and not topic.name.startswith(RESERVED_PREFIX)
    ]
    return sorted(found, key=lambda topic: topic.name)


def _named(broker: Broker, topic_name: str | None, name: str) -> Iterator[ConsumerGroup]:
    """The groups of a name, of one topic or of all."""
    topic = broker.topics.find(topic_name) if topic_name else None
    if not name or (topic_name and topic is None):
        return
    for one in _topics(broker) if topic is None else [topic]:
        group = one.groups.get(name)
        if group is not None:
            yield group


def _group(group: ConsumerGroup) -> Group:
    committed = [
        (group_partition.partition.index, group_partition.store.committed)
        for group_partition in group.partitions
    ]
    offsets = [GroupOffset(*one) for one in committed if one[1] >= 0]
    return Group(group.topic.name, group.name, len(group.members or ()), tuple(offsets))


def _java_group(groups: list[ConsumerGroup]) -> JavaGroup:
    members = sorted({one: name for group in groups for one, name in _members(group)}.values())
    return JavaGroup(
        groups[0].name,
        MEMBERS if members else NO_MEMBERS,
        tuple(members),
        tuple([group.topic.name for group in groups]),
    )


def _members(group: ConsumerGroup) -> Iterable[tuple[object, str]]:
    return (group.members or {}).items()


def _not_found(topic: str | None, name: str) -> UnknownGroup:
    return UnknownGroup(f"consumer group not found: {topic or ''}:{name}")
