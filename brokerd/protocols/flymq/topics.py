# Tests: tests/protocols/test_flymq_topics.py
"""FlyMQ's topics: names, lookups, creation, deletion, METADATA and CLUSTER_METADATA.

Texts of refusals and rules of names: docs/protocols/flymq.rst, Names and Bad input.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from brokerd.broker import Broker, Partition, Topic
from brokerd.broker.model.topics import check_name
from brokerd.codecs import flymq
from brokerd.codecs.flymq import (
    CreateTopic,
    DeleteTopic,
    Metadata,
    Opcode,
    PartitionOffsets,
    PartitionPlace,
)
from brokerd.errors import (
    InvalidName,
    InvalidRequest,
    LimitExceeded,
    UnknownPartition,
    UnknownTopic,
)
from brokerd.protocols.base.steps import Steps
from brokerd.security import Access
from brokerd.security.audit import EventType

NO_NAMES = frozenset(("", ".", ".."))
"""Names that FlyMQ allows for no topic or group. Other formats may use them."""
NO_LEVELS = frozenset((".", ".."))
HIDDEN_PREFIX = "__"

LEADER = 0
"""Leader of every partition in METADATA."""
EPOCH = 1
ONLINE = "online"
STEP_TOPICS = 500
"""Names of topics that one step of a list takes; it takes half a millisecond."""
PLACES_MAX = 20_000
"""Largest number of partitions in an answer to CLUSTER_METADATA: it is made in one turn."""


def checked_name(name: str, what: str) -> str:
    """Return ``name`` if it may name a topic or group, else raise `InvalidName`.

    Patterns of clients split names at slashes, so the levels of a name must not be ``.`` or ``..``
    either.
    """
    if name in NO_NAMES or not NO_LEVELS.isdisjoint(name.split("/")):
        raise InvalidName(
            f"{what} must not be {name[:32]!r}: give it 1 to 255 bytes of UTF-8 without control "
            "characters, and no '.' or '..' alone or between slashes"
        )
    return check_name(name, what)


def named_topic(broker: Broker, name: str) -> Topic | None:
    """Return the topic of this name, or None if a new topic may have the name.

    Names with the levels ``.`` or ``..`` are refused for new topics only: a topic of another format
    may have such a name. Raises `InvalidName`.
    """
    topic = broker.topics.find(name)
    if topic is None or name in NO_NAMES:
        checked_name(name, "topic name")
    return topic


def existing_topic(broker: Broker, name: str) -> Topic:
    """Return the topic of this name. Raises `UnknownTopic` and `InvalidName`."""
    topic = named_topic(broker, name)
    if topic is None:
        raise UnknownTopic(f"topic not found: {name}")
    return topic


def existing_partition(broker: Broker, topic_name: str, partition_index: int) -> Partition:
    """Return a partition. Raises `UnknownTopic`, `InvalidName` and `UnknownPartition`."""
    partitions = existing_topic(broker, topic_name).partitions
    if not 0 <= partition_index < len(partitions):
        raise UnknownPartition(f"partition {partition_index} not found")
    return partitions[partition_index]


def create_topic(broker: Broker, access: Access, request: CreateTopic) -> bytes:
    """CREATE_TOPIC: 0 partitions mean 1. An existing topic is not changed."""
    name = request.topic
    is_new = named_topic(broker, name) is None
    if request.partitions < 0:
        raise InvalidRequest(
            f"a topic cannot have {request.partitions} partitions; ask for 1 or more, or for 0, "
            "which means 1"
        )
    partitions = request.partitions or 1
    if is_new:
        create = partial(broker.topics.create, name, partitions)
        details = {"partitions": str(partitions)}
        broker.audit.carry_out(access.actor, EventType.TOPIC_CREATED, name, create, details)
    return flymq.ok(Opcode.CREATE_TOPIC)


def delete_topic(broker: Broker, access: Access, request: DeleteTopic) -> bytes:
    """DELETE_TOPIC: delete a topic; succeeds without one."""
    name = request.topic
    if named_topic(broker, name) is not None:
        delete = partial(broker.topics.delete, name)
        broker.audit.carry_out(access.actor, EventType.TOPIC_DELETED, name, delete)
    return flymq.ok(Opcode.DELETE_TOPIC)


def list_topics(broker: Broker, topics: Sequence[Topic]) -> Steps[bytes]:
    """LIST_TOPICS: sorted names of existing topics, without those that begin with ``__``."""
    names: list[str] = []
    find = broker.topics.find
    for first in range(0, len(topics), STEP_TOPICS):
        step = [one.name for one in topics[first : first + STEP_TOPICS] if find(one.name) is one]
        names += sorted([name for name in step if not name.startswith(HIDDEN_PREFIX)])
        yield None
    names.sort()  # sorted runs, which takes a fraction of the time
    parts = []
    for first in range(0, len(names), STEP_TOPICS):
        parts.append(flymq.some_topics(names[first : first + STEP_TOPICS]))
        yield None
    return fitting(flymq.all_topics(len(names), parts), "the list of all topics")


def metadata(broker: Broker, request: Metadata) -> bytes:
    """METADATA: the start offset and next offset of each partition."""
    topic = existing_topic(broker, request.topic)
    return flymq.topic_metadata(
        topic.name,
        [
            PartitionOffsets(one.index, LEADER, one.start_offset, one.next_offset)
            for one in topic.partitions
        ],
    )


def all_metadata(
    broker: Broker, cluster_id: str, address: str, topics: Sequence[Topic]
) -> Steps[bytes]:
    """CLUSTER_METADATA of all topics."""
    yield from ()
    there = [topic for topic in topics if broker.topics.find(topic.name) is topic]
    return cluster_metadata(there, cluster_id, address)


def cluster_metadata(topics: Sequence[Topic], cluster_id: str, address: str) -> bytes:
    """CLUSTER_METADATA: this node leads every partition of these topics."""
    node = (cluster_id,)
    places = [
        PartitionPlace(index, cluster_id, address, EPOCH, ONLINE, node, node)
        for index in range(max((len(topic.partitions) for topic in topics), default=0))
    ]
    partitions = sum(len(topic.partitions) for topic in topics)
    if partitions > PLACES_MAX:
        raise LimitExceeded(
            f"all topics together have {partitions} partitions, and an answer has room for "
            f"{PLACES_MAX}; ask for one topic"
        )
    return fitting(
        flymq.cluster_metadata(
            cluster_id, [(topic.name, places[: len(topic.partitions)]) for topic in topics]
        ),
        "the metadata of all topics",
    )


def fitting(answer: bytes, what: str) -> bytes:
    """Return an answer that a frame can carry, else raise `LimitExceeded`."""
    if len(answer) > flymq.MAX_LENGTH:
        raise LimitExceeded(f"{what} takes {len(answer)} bytes, more than an answer can have")
    return answer
