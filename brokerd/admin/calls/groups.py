# Tests: tests/admin/test_group_calls.py
"""The API's calls about consumer groups: list, describe, seek, pause, configure, delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import msgspec
from msgspec import UNSET
from twisted.internet.defer import Deferred

from brokerd.admin.calls.records import offset_at_time
from brokerd.admin.http.routing import Call, Route
from brokerd.admin.shapes.common import (
    PAGE_PARTITIONS,
    Deleted,
    Page,
    seconds_of,
    time_us_of,
    us_of,
)
from brokerd.admin.shapes.groups import (
    AllGroups,
    GroupAdmin,
    GroupBrief,
    GroupList,
    GroupPartitionShape,
    GroupSettingsShape,
    GroupShape,
    Pause,
    Seek,
    SeekPartition,
    SeekPreview,
    SeekQuery,
    TopicGroupBrief,
)
from brokerd.broker import (
    Broker,
    ConsumerGroup,
    GroupPartition,
    GroupSettings,
    Partition,
    Position,
    Topic,
)
from brokerd.broker.leases.group_admin import seek_floor
from brokerd.broker.model.topics import unknown_group
from brokerd.errors import InvalidRequest, UnknownTopic
from brokerd.security import ADMIN, READ
from brokerd.security.audit import EventType

EXAMINED_MAX = 5_000
"""Most groups, and topics that the sender may not read, that one request examines."""
GROUP_PARTITIONS_MAX = 1_000
"""Most partitions in the description of a group."""


def existing_group(broker: Broker, topic: str, group: str) -> ConsumerGroup:
    """Return a group. Raises `UnknownTopic` and `UnknownGroup`."""
    place = broker.topics.existing(topic)
    found = place.groups.get(group)
    if found is None:
        raise unknown_group(place, group)
    return found


def check_group(call: Call, create: bool) -> None:
    """Refuse a group that does not exist, unless the call may create it.

    Raises `UnknownTopic` and `UnknownGroup`.
    """
    if not create:
        existing_group(call.broker, call.path["topic"], call.path["group"])


def list_groups(call: Call) -> GroupList:
    """Return a page of a topic's groups. Raises `UnknownTopic`."""
    query: Page = call.query
    topic = call.broker.topics.existing(call.path["topic"])
    page, following = query.select(topic.groups.values(), len(topic.partitions))
    return GroupList([_brief(call.broker, group) for group in page], following)


def list_all_groups(call: Call) -> AllGroups:
    """Return a page of the groups of all topics that the sender may read, by topic.

    Groups with thousands of partitions end a page early, and so do many topics that the sender may
    not read. Of their groups the answer reveals only how many were examined.
    """
    call.access.require_lists()
    query: Page = call.query
    page: list[TopicGroupBrief] = []
    partitions = position = steps = 0
    for topic in call.broker.topics.all():
        position += len(topic.groups)
        if position <= query.first:
            continue
        is_readable = call.access.may(READ, topic.name)
        beginning = max(0, query.first - position + len(topic.groups))
        for number, group in enumerate(islice(topic.groups.values(), beginning, None), beginning):
            place = position - len(topic.groups) + number
            if steps == EXAMINED_MAX:
                return AllGroups(page, place)
            steps += 1
            if not is_readable:
                break
            partitions += len(topic.partitions)
            if len(page) == query.limit or (page and partitions > PAGE_PARTITIONS):
                return AllGroups(page, place)
            brief = msgspec.structs.asdict(_brief(call.broker, group))
            page.append(TopicGroupBrief(**brief, topic=topic.name))
    return AllGroups(page, None)


def _brief(broker: Broker, group: ConsumerGroup) -> GroupBrief:
    group_partitions = list(group.partitions)
    positions = [group_partition.position for group_partition in group_partitions]
    committed = [one for position in positions if (one := _committed(position)) is not None]
    return GroupBrief(
        group=group.name,
        paused=positions[0].paused,
        lag=sum(map(broker.overview.lag, group_partitions, positions)),
        leased=sum(position.leased for position in positions),
        delayed=sum(position.delayed for position in positions),
        dead=sum(position.dead for position in positions),
        committed=sum(committed) if committed else None,
    )


def _committed(position: Position) -> int | None:
    return position.committed if position.committed >= 0 else None


def describe_group(call: Call) -> GroupShape:
    """Describe a group. Raises `UnknownTopic` and `UnknownGroup`."""
    topic, name = call.path["topic"], call.path["group"]
    group = existing_group(call.broker, topic, name)
    info = call.broker.overview.group_info(topic, name)
    return GroupShape(
        topic=topic,
        group=name,
        paused=group.partitions[0].position.paused,
        partitions=info.partitions,
        floor=info.floor,
        next=info.next,
        lag=info.lag,
        leased=info.leased,
        ready=info.ready,
        delayed=info.delayed,
        dead=info.dead,
        committed=info.committed,
        oldest_age_seconds=None if info.oldest_age_us is None else seconds_of(info.oldest_age_us),
        settings=_settings(group.settings),
        by_partition=[
            _group_partition(call.broker, group_partition)
            for group_partition in group.partitions[:GROUP_PARTITIONS_MAX]
        ],
    )


def _carry_out(call: Call, kind: EventType, change: Callable[[], None]) -> Deferred[GroupShape]:
    """Change a group; fires with its description once the change is durable.

    The description is made in the reactor turn of the change: another client may change or delete
    the group before the change is durable.
    """

    def change_and_describe() -> GroupShape:
        change()
        return describe_group(call)

    return call.carry_out(kind, change_and_describe)


async def configure_group(call: Call) -> GroupShape:
    """Change a group's settings. Raises as `Broker.groups.configure`."""
    broker, topic, group = call.broker, call.path["topic"], call.path["group"]

    def configure() -> None:
        check_group(call, call.body.create)
        found = broker.topics.existing(topic).groups.get(group)
        defaults = broker.settings.groups
        settings = found.settings if found is not None else defaults
        broker.groups.configure(topic, group, with_changes(settings, defaults, call.body))

    return await _carry_out(call, EventType.GROUP_CONFIGURED, configure)


def with_changes(
    settings: GroupSettings, defaults: GroupSettings, changes: GroupAdmin
) -> GroupSettings:
    """Apply the changes to settings; null means the default."""
    values: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(changes).items():
        if value is UNSET or name == "create":
            continue
        ours = name.removesuffix("_seconds") + "_us" if name.endswith("_seconds") else name
        if value is None:
            value = getattr(defaults, ours)
        elif ours != name:
            value = us_of(value)
        values[ours] = value
    return replace(settings, **values)


async def pause_group(call: Call) -> GroupShape:
    """Pause a group. Raises as `Broker.groups.pause`."""
    broker, topic, group = call.broker, call.path["topic"], call.path["group"]

    def pause() -> None:
        check_group(call, call.body.create)
        broker.groups.pause(topic, group)

    return await _carry_out(call, EventType.GROUP_PAUSED, pause)


async def resume_group(call: Call) -> GroupShape:
    """Resume a group. Raises as `Broker.groups.resume`."""
    broker, topic, group = call.broker, call.path["topic"], call.path["group"]
    resume = partial(broker.groups.resume, topic, group)
    return await _carry_out(call, EventType.GROUP_RESUMED, resume)


async def seek_group(call: Call) -> GroupShape:
    """Move a group. Raises as `Broker.groups.seek`, and `InvalidRequest`."""
    seek: Seek = call.body
    broker, topic, group = call.broker, call.path["topic"], call.path["group"]
    _check_target(seek)
    if seek.to is None:
        return await _seek_to_time(call, seek)
    to = seek.to

    def go() -> None:
        check_group(call, seek.create)
        broker.groups.seek(topic, group, to, seek.partition)

    return await _carry_out(call, EventType.GROUP_SOUGHT, go)


def _check_target(seek: Seek | SeekQuery) -> None:
    if (seek.to is None) == (seek.to_time is None):
        raise InvalidRequest("a seek has either to or to_time")


async def _seek_to_time(call: Call, seek: Seek) -> GroupShape:
    """Find the offset in each partition, then seek all partitions at once."""
    broker, topic, group = call.broker, call.path["topic"], call.path["group"]
    found = broker.topics.existing(topic)
    check_group(call, seek.create)
    offsets = await _offsets_at_time(call, found, seek)

    def go() -> None:
        if found.deleted:  # the offsets do not belong to a new topic of that name
            raise UnknownTopic(f"topic {topic!r} was deleted while offsets were looked up")
        check_group(call, seek.create)
        broker.groups.seek(topic, group, offsets)

    return await _carry_out(call, EventType.GROUP_SOUGHT, go)


async def _offsets_at_time(call: Call, topic: Topic, seek: Seek | SeekQuery) -> dict[int, int]:
    """Return partition -> first offset appended at or after the time of the seek."""
    assert seek.to_time is not None
    time_us = time_us_of(seek.to_time)
    return {
        one.index: await offset_at_time(call.broker, one, time_us)
        for one in _chosen(topic, seek.partition)
    }


def _chosen(topic: Topic, partition: int | None) -> list[Partition]:
    return topic.partitions if partition is None else [topic.partition(partition)]


async def preview_seek(call: Call) -> SeekPreview:
    """Return what a seek would change. Raises as `seek_group`."""
    query: SeekQuery = call.query
    broker = call.broker
    _check_target(query)
    group = existing_group(broker, call.path["topic"], call.path["group"])
    to: Any = query.to
    targets = (
        await _offsets_at_time(call, group.topic, query)
        if to is None
        else {one.index: to for one in _chosen(group.topic, query.partition)}
    )
    changes = [_seek_partition(broker, group.partitions[one], to) for one, to in targets.items()]
    return SeekPreview(
        partitions=len(changes),
        lag=sum(one.lag for one in changes),
        new_lag=sum(one.new_lag for one in changes),
        leased=sum(one.leased for one in changes),
        by_partition=changes[:GROUP_PARTITIONS_MAX],
    )


def _seek_partition(broker: Broker, group_partition: GroupPartition, to: Any) -> SeekPartition:
    partition, position = group_partition.partition, group_partition.position
    floor = seek_floor(partition, to)
    return SeekPartition(
        partition=partition.index,
        floor=position.floor,
        new_floor=floor,
        lag=broker.overview.lag(group_partition, position),
        new_lag=partition.next_offset - floor,
        leased=position.leased,
        delayed=position.delayed,
        dead=position.dead,
        committed=_committed(position),
    )


async def delete_group(call: Call) -> Deleted:
    """Delete a group. Raises as `Broker.groups.delete`."""
    broker, topic, group = call.broker, call.path["topic"], call.path["group"]
    await call.carry_out(EventType.GROUP_DELETED, lambda: broker.groups.delete(topic, group))
    return Deleted(group)


def _settings(settings: GroupSettings) -> GroupSettingsShape:
    return GroupSettingsShape(
        max_attempts=settings.max_attempts,
        attempts=settings.attempts,
        backoff_base_seconds=seconds_of(settings.backoff_base_us),
        backoff_max_seconds=seconds_of(settings.backoff_max_us),
        default_duration_seconds=seconds_of(settings.default_duration_us),
        key_ordered=settings.key_ordered,
        lease_doubling=settings.lease_doubling,
    )


def _group_partition(broker: Broker, group_partition: GroupPartition) -> GroupPartitionShape:
    position = group_partition.position
    return GroupPartitionShape(
        partition=group_partition.partition.index,
        floor=position.floor,
        next=group_partition.partition.next_offset,
        lag=broker.overview.lag(group_partition, position),
        leased=position.leased,
        delayed=position.delayed,
        dead=position.dead,
        committed=_committed(position),
        lag_by_commit=broker.overview.commit_place(group_partition, position) is not None,
    )


GROUPS, GROUP = "/topics/{topic}/groups", "/topics/{topic}/groups/{group}"
ROUTES = [
    Route("GET", GROUPS, READ, "List the groups of a topic", list_groups, GroupList, query=Page),
    Route(
        "GET",
        "/groups",
        0,
        "List the groups of all topics that the sender may read",
        list_all_groups,
        AllGroups,
        query=Page,
    ),
    Route("GET", GROUP, READ, "Show positions and counts of a group", describe_group, GroupShape),
    Route("DELETE", GROUP, ADMIN, "Delete a group", delete_group, Deleted),
    Route(
        "PATCH",
        f"{GROUP}/settings",
        ADMIN,
        "Change a group's settings",
        configure_group,
        GroupShape,
        body=GroupAdmin,
    ),
    Route(
        "POST",
        f"{GROUP}/pause",
        ADMIN,
        "Pause a group",
        pause_group,
        GroupShape,
        body=Pause,
    ),
    Route("POST", f"{GROUP}/resume", ADMIN, "Resume a group", resume_group, GroupShape),
    Route(
        "POST",
        f"{GROUP}/seek",
        ADMIN,
        "Move a group to other offsets",
        seek_group,
        GroupShape,
        body=Seek,
    ),
    Route(
        "GET",
        f"{GROUP}/seek",
        READ,
        "Show what a seek would change",
        preview_seek,
        SeekPreview,
        query=SeekQuery,
    ),
]
