# Tests: tests/protocols/test_flymq_group_admin.py
"""Administration of FlyMQ's groups: list, describe, delete (0x62, 0x63, 0x65).

A group belongs to a topic. A request without a topic means all groups of that name, and needs ADMIN
by role.
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
from brokerd.protocols.base.steps import Steps, sorted_names
from brokerd.protocols.flymq.request import RequestConnection
from brokerd.protocols.flymq.topics import NO_NAMES, fitting
from brokerd.security import ADMIN
from brokerd.security.audit import EventType
from brokerd.values import RESERVED_PREFIX

GROUP_BYTES_MIN, OFFSET_BYTES = 14, 12
"""Smallest size of a group in an answer, and the size of each of its offsets."""
STEP_TOPICS = 1_000
"""Topics that one step of a request without a topic looks at: half a millisecond."""
MEMBERS, NO_MEMBERS = "Stable", "Empty"
"""Kafka's states of a group with and without members, for the Java SDK's layout."""


def list_groups(connection: RequestConnection, request: ListGroups) -> bytes:
    """LIST_GROUPS: all groups with a name, by topic, then by name."""
    connection.access.require_server(ADMIN)
    found = connection.run_steps(request, partial(_collect, connection.broker))
    return fitting(flymq.listed_groups(found), "the list of all groups")


def _collect(broker: Broker) -> Steps[list[Group]]:
    found: list[Group] = []
    size = 0
    for topic_name in (yield from _topic_names(broker)):
        yield None
        topic = broker.topics.find(topic_name)
        if topic is None:  # deleted meanwhile
            continue
        for name in (yield from sorted_names(topic.groups)):
            group = topic.groups.get(name)
            if name and group is not None:
                found.append(_group(group))
                size += GROUP_BYTES_MIN + OFFSET_BYTES * len(found[-1].offsets)
            if size > MAX_LENGTH:
                raise LimitExceeded("there are more groups than an answer can have")
            yield None
    return found


def describe_group(connection: RequestConnection, request: DescribeGroup) -> bytes:
    """DESCRIBE_GROUP: one group, in the layout of the request."""
    topic, name = request.topic, request.group
    _require(connection, topic)
    if topic:
        found = _groups_in(connection.broker, topic, name)
    else:
        steps = partial(_groups_of_name, connection.broker, name)
        found = [group for group in connection.run_steps(request, steps) if not group.deleted]
    if not found:
        raise _not_found(topic, name)
    one: Group | JavaGroup = _group(found[0]) if topic is not None else _java_group(found)
    return fitting(flymq.described_group(one), "the description of the group")


def delete_group(connection: RequestConnection, request: DeleteGroup) -> bytes:
    """DELETE_GROUP: delete the group of a topic, or of all topics that have it."""
    _require(connection, request.topic)
    if not connection.run_steps(request, partial(_delete_groups, connection, request)):
        raise _not_found(request.topic, request.group)
    return flymq.ok(Opcode.DELETE_GROUP)


def _delete_groups(connection: RequestConnection, request: DeleteGroup) -> Steps[int]:
    """Delete groups and return their number."""
    broker, count = connection.broker, 0
    if request.topic:
        groups = _groups_in(broker, request.topic, request.group)
    else:
        groups = yield from _groups_of_name(broker, request.group)
    for group in groups:
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


def _topic_names(broker: Broker) -> Steps[Iterator[str]]:
    """Return the names of topics that FlyMQ can name, sorted, without the broker's own."""
    names = yield from _names_where(broker, lambda topic: True)
    return (yield from sorted_names(names))


def _names_where(broker: Broker, is_wanted: Callable[[Topic], bool]) -> Steps[list[str]]:
    topics, names = list(broker.topics.all()), list[str]()
    for first in range(0, len(topics), STEP_TOPICS):
        names += [
            topic.name
            for topic in topics[first : first + STEP_TOPICS]
            if is_wanted(topic)
            and topic.name not in NO_NAMES
            and not topic.name.startswith(RESERVED_PREFIX)
        ]
        yield None
    return names


def _groups_in(broker: Broker, topic_name: str, name: str) -> list[ConsumerGroup]:
    """Return the group of a topic, or none."""
    topic = broker.topics.find(topic_name)
    group = None if topic is None or not name else topic.groups.get(name)
    return [] if group is None else [group]


def _groups_of_name(broker: Broker, name: str) -> Steps[list[ConsumerGroup]]:
    """Return the groups of a name in all topics, by topic."""
    if not name:
        return []
    names = yield from _names_where(broker, lambda topic: name in topic.groups)
    found: list[ConsumerGroup] = []
    for one in (yield from sorted_names(names)):
        yield None
        topic = broker.topics.find(one)
        if topic is not None and name in topic.groups:
            found.append(topic.groups[name])
    return found


def _group(group: ConsumerGroup) -> Group:
    committed = [
        (group_partition.partition.index, group_partition.position.committed)
        for group_partition in group.used()
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
