# Tests: tests/admin/test_topic_calls.py
"""The API's calls about topics: list, create, describe."""

from __future__ import annotations

from itertools import islice

from twisted.web import http

from brokerd.admin.routing import Call, Exists, Route
from brokerd.admin.shapes import NewTopic, Page, TopicList, TopicSettingsShape, TopicShape
from brokerd.broker import Topic
from brokerd.broker.asking import ask


def list_topics(call: Call) -> TopicList:
    """A page of topics."""
    query: Page = call.query
    chosen = islice(call.broker.topics(), query.first, query.first + query.limit)
    return TopicList([_shape(topic) for topic in chosen])


def describe_topic(call: Call) -> TopicShape:
    """One topic. Raises `UnknownTopic`."""
    return _shape(call.broker.existing_topic(call.path["topic"]))


async def create_topic(call: Call) -> TopicShape:
    """A new topic. Raises `Exists`, and as `Broker.create_topic`."""
    new: NewTopic = call.body

    def create() -> Topic:
        if call.broker.topic(new.name) is not None:
            raise Exists(f"there is a topic {new.name!r} already; use it, or delete it first")
        return call.broker.create_topic(new.name, new.partitions)

    return _shape(await ask(call.broker, create))


def _shape(topic: Topic) -> TopicShape:
    return TopicShape(
        name=topic.name,
        topic_id=topic.topic_id,
        start_offsets=[partition.start_offset for partition in topic.partitions],
        next_offsets=[partition.next_offset for partition in topic.partitions],
        groups=len(topic.groups),
        settings=TopicSettingsShape(None, None, None),
    )


TOPICS, TOPIC = "/topics", "/topics/{topic}"
ROUTES = [
    Route("GET", TOPICS, "All topics, in order of creation", list_topics, TopicList, query=Page),
    Route(
        "POST",
        TOPICS,
        "Create a topic",
        create_topic,
        TopicShape,
        body=NewTopic,
        status=http.CREATED,
    ),
    Route("GET", TOPIC, "One topic", describe_topic, TopicShape),
]
