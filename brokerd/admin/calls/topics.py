# Tests: tests/admin/test_topic_calls.py
"""The API's calls about topics: list, create, describe, configure, trim, delete."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

from msgspec import UNSET
from twisted.web import http

from brokerd.admin.http.routing import AlreadyExists, Call, Route
from brokerd.admin.shapes.common import (
    PAGE_PARTITIONS,
    Deleted,
    Page,
    seconds_of,
    us_of,
)
from brokerd.admin.shapes.topics import (
    NewTopic,
    TopicAdmin,
    TopicList,
    TopicSettingsShape,
    TopicShape,
    Trim,
    Trimmed,
)
from brokerd.broker import Topic
from brokerd.broker.model.topics import TopicSettings
from brokerd.security import ADMIN, ANY
from brokerd.security.audit import EventType

EXAMINED_MAX = 2_000
"""Most topics that one request examines; it checks the permission of each, in some milliseconds."""


def list_topics(call: Call) -> TopicList:
    """Return a page of the topics that the sender may see.

    Topics with thousands of partitions end a page early. Of other topics the answer reveals only
    how many were examined.
    """
    call.access.require_lists()
    query: Page = call.query
    page: list[TopicShape] = []
    partitions = 0
    for number, topic in enumerate(islice(call.broker.topics.all(), query.first, None)):
        if number == EXAMINED_MAX:
            return TopicList(page, query.first + number)
        if not call.access.may(ANY, topic.name):
            continue
        partitions += len(topic.partitions)
        if len(page) == query.limit or (page and partitions > PAGE_PARTITIONS):
            return TopicList(page, query.first + number)
        page.append(_shape(topic))
    return TopicList(page, None)


def describe_topic(call: Call) -> TopicShape:
    """Return a topic. Raises `UnknownTopic`."""
    return _shape(call.broker.topics.existing(call.path["topic"]))


async def create_topic(call: Call) -> TopicShape:
    """Create a topic. Raises `AlreadyExists`, and as `Broker.topics.create`."""
    new: NewTopic = call.body
    call.access.require(ADMIN, new.name)
    settings = with_changes(TopicSettings(), new.settings)

    def create() -> Topic:
        call.access.require(ADMIN, new.name)  # again: it may have waited
        if call.broker.topics.find(new.name) is not None:
            raise AlreadyExists(
                f"there is a topic {new.name!r} already; use it, or delete it first"
            )
        return call.broker.topics.create(new.name, new.partitions, settings)

    return _shape(await call.carry_out(EventType.TOPIC_CREATED, create, new.name))


async def configure_topic(call: Call) -> TopicShape:
    """Change a topic's settings. Raises as `Broker.topics.configure`."""
    broker, name = call.broker, call.path["topic"]

    def configure() -> Topic:
        topic = broker.topics.existing(name)
        broker.topics.configure(name, with_changes(topic.settings, call.body))
        return topic

    return _shape(await call.carry_out(EventType.TOPIC_CONFIGURED, configure))


async def trim_topic(call: Call) -> Trimmed:
    """Remove records below an offset. Raises as `Broker.topics.trim`."""
    trim: Trim = call.body
    broker, name = call.broker, call.path["topic"]
    start = await call.carry_out(
        EventType.TOPIC_TRIMMED,
        lambda: broker.topics.trim(name, trim.partition, trim.offset),
        partition=str(trim.partition),
        offset=str(trim.offset),
    )
    return Trimmed(start)


async def delete_topic(call: Call) -> Deleted:
    """Delete a topic. Raises as `Broker.topics.delete`."""
    broker, name = call.broker, call.path["topic"]
    await call.carry_out(EventType.TOPIC_DELETED, lambda: broker.topics.delete(name))
    return Deleted(name)


def with_changes(settings: TopicSettings, changes: TopicAdmin) -> TopicSettings:
    """Apply the changes to settings."""
    given: dict[str, Any] = {
        "retention_us": changes.retention_seconds,
        "retention_bytes": changes.retention_bytes,
        "ttl_us": changes.ttl_seconds,
        "compact": changes.compact,
    }
    values: dict[str, Any] = {
        name: us_of(value) if name.endswith("_us") and value is not None else value
        for name, value in given.items()
        if value is not UNSET
    }
    return replace(settings, **values)


def _shape(topic: Topic) -> TopicShape:
    return TopicShape(
        name=topic.name,
        topic_id=topic.topic_id,
        start_offsets=[partition.start_offset for partition in topic.partitions],
        next_offsets=[partition.next_offset for partition in topic.partitions],
        groups=len(topic.groups),
        settings=TopicSettingsShape(
            retention_seconds=_seconds(topic.settings.retention_us),
            retention_bytes=topic.settings.retention_bytes,
            ttl_seconds=_seconds(topic.settings.ttl_us),
            compact=topic.settings.compact,
        ),
    )


def _seconds(duration_us: int | None) -> float | None:
    return None if duration_us is None else seconds_of(duration_us)


TOPICS, TOPIC = "/topics", "/topics/{topic}"
ROUTES = [
    Route(
        "GET",
        TOPICS,
        0,
        "List all topics, in order of creation",
        list_topics,
        TopicList,
        query=Page,
    ),
    Route(
        "POST",
        TOPICS,
        0,
        "Create a topic",
        create_topic,
        TopicShape,
        body=NewTopic,
        status=http.CREATED,
    ),
    Route("GET", TOPIC, ANY, "Show a topic", describe_topic, TopicShape),
    Route(
        "DELETE",
        TOPIC,
        ADMIN,
        "Delete a topic with its records, groups and delayed messages",
        delete_topic,
        Deleted,
    ),
    Route(
        "PATCH",
        f"{TOPIC}/settings",
        ADMIN,
        "Change a topic's settings",
        configure_topic,
        TopicShape,
        body=TopicAdmin,
    ),
    Route(
        "POST",
        f"{TOPIC}/trim",
        ADMIN,
        "Remove records below an offset",
        trim_topic,
        Trimmed,
        body=Trim,
    ),
]
