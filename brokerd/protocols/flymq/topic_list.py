# Tests: tests/protocols/test_flymq_topic_list.py
"""The topics that a client may see: for LIST_TOPICS, and for CLUSTER_METADATA of all topics.

A role with a permission on everything sees all topics. For other clients the permissions of each
topic are checked in slices (docs/protocols/flymq.rst, Turns), one connection after the other, so
that only one list is in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from brokerd.broker import Topic
from brokerd.protocols.base.slices import SLICE_SECONDS, SliceQueue
from brokerd.protocols.base.steps import Done
from brokerd.protocols.flymq.request import RequestConnection
from brokerd.protocols.flymq.topics import NO_NAMES
from brokerd.values import RESERVED_PREFIX

STEP_TOPICS = 100
"""Topics checked between two readings of the clock; they take half a millisecond."""


def known_topics(
    connection: RequestConnection, queue: TopicListQueue, request: object, permission: int
) -> list[Topic]:
    """Return the topics on which the client has any of these permissions.

    Omits topics of the broker's own and names that this format cannot use.
    Raises `FrameOnHold`, `AwaitMemory`, `AuthenticationRequired` and `Denied`.
    """
    connection.await_room()

    def ask(done: Done[list[Topic]]) -> None:
        connection.access.require_known()
        queue.add(_TopicList(connection, permission, done))

    if not connection.access.permissions & permission:
        broker = connection.broker
        found = connection.await_result(request, ask)
        return [topic for topic in found if broker.topics.find(topic.name) is topic]
    return list(_nameable(connection))


def _nameable(connection: RequestConnection) -> Iterator[Topic]:
    for topic in connection.broker.topics.all():
        if topic.name not in NO_NAMES and not topic.name.startswith(RESERVED_PREFIX):
            yield topic


class TopicListQueue:
    """Makes the topic lists of a listener's connections, one list at a time."""

    def __init__(self, slices: SliceQueue) -> None:
        self._slices = slices
        self._waiting: deque[_TopicList] = deque()

    def add(self, topic_list: _TopicList) -> None:
        """Queue a list behind the lists that wait."""
        self._waiting.append(topic_list)
        if len(self._waiting) == 1:
            self._slices.add(self._slice)

    def _slice(self) -> None:
        topic_list = self._waiting[0]
        connection = topic_list.connection
        if connection.gone or not connection.close_on_fault(topic_list.advance):
            self._waiting.popleft()
        if self._waiting:
            self._slices.add(self._slice)


class _TopicList:
    """The topic list of one request, waiting or in progress."""

    def __init__(
        self, connection: RequestConnection, permission: int, done: Done[list[Topic]]
    ) -> None:
        self.connection = connection
        self._permission = permission
        self._done = done
        self._found: list[Topic] = []
        self._rest: list[Topic] | None = None
        """Topics to check, the last one first."""

    def advance(self) -> bool:
        """Check some topics; return False when all are checked and ``done`` was called."""
        connection = self.connection
        if self._rest is None:
            self._rest = list(_nameable(connection))
            self._rest.reverse()
        clock, may = connection.factory.clock, connection.access.may
        end_seconds = clock.seconds() + SLICE_SECONDS
        rest = self._rest
        while rest:
            step = rest[: -STEP_TOPICS - 1 : -1]
            del rest[-STEP_TOPICS:]
            self._found += [topic for topic in step if may(self._permission, topic.name)]
            if clock.seconds() > end_seconds:
                return True
        self._done(self._found, None)
        return False
