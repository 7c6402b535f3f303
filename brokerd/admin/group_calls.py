# Tests: tests/admin/test_group_calls.py
"""The API's calls about consumer groups: list, describe."""

from __future__ import annotations

from itertools import islice

from brokerd.admin.routing import Call, Route
from brokerd.admin.shapes import (
    GroupNames,
    GroupSettingsShape,
    GroupShape,
    LaneShape,
    Page,
    seconds_of,
)
from brokerd.broker import Broker, ConsumerGroup, GroupSettings, Lane
from brokerd.errors import UnknownGroup

LANES_MAX = 1_000
"""How many partitions a description of a group tells of."""


def existing_group(broker: Broker, topic: str, group: str) -> ConsumerGroup:
    """A group. Raises `UnknownTopic` and `UnknownGroup`."""
    found = broker.existing_topic(topic).groups.get(group)
    if found is None:
        raise UnknownGroup(
            f"topic {topic!r} has no group {group!r}; a group begins with its first lease"
        )
    return found


def list_groups(call: Call) -> GroupNames:
    """Names of a topic's groups. Raises `UnknownTopic`."""
    query: Page = call.query
    groups = call.broker.existing_topic(call.path["topic"]).groups
    return GroupNames(list(islice(groups, query.first, query.first + query.limit)))


def describe_group(call: Call) -> GroupShape:
    """Where a group stands. Raises `UnknownTopic` and `UnknownGroup`."""
    topic, name = call.path["topic"], call.path["group"]
    group = existing_group(call.broker, topic, name)
    info = call.broker.group_info(topic, name)
    store = group.lanes[0].store
    return GroupShape(
        topic=topic,
        group=name,
        paused=getattr(store, "paused", False),
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
        settings=_settings(store.settings),
        by_partition=[_lane(lane) for lane in group.lanes[:LANES_MAX]],
    )


def _settings(settings: GroupSettings) -> GroupSettingsShape:
    return GroupSettingsShape(
        max_attempts=settings.max_attempts,
        attempts=settings.attempts,
        backoff_base_seconds=seconds_of(settings.backoff_base_us),
        backoff_max_seconds=seconds_of(settings.backoff_max_us),
        default_duration_seconds=seconds_of(settings.default_duration_us),
        key_ordered=getattr(settings, "key_ordered", False),
    )


def _lane(lane: Lane) -> LaneShape:
    store, end = lane.store, lane.partition.next_offset
    return LaneShape(
        partition=lane.partition.index,
        floor=store.floor,
        next=end,
        lag=store.lag(end),
        leased=store.leased,
        delayed=store.delayed,
        dead=store.dead,
        committed=store.committed if store.committed >= 0 else None,
    )


GROUPS, GROUP = "/topics/{topic}/groups", "/topics/{topic}/groups/{group}"
ROUTES = [
    Route("GET", GROUPS, "Names of a topic's groups", list_groups, GroupNames, query=Page),
    Route("GET", GROUP, "Where a group stands", describe_group, GroupShape),
]
