# Tests: tests/protocols/test_flymq_topic_list.py
"""Answers with the topics that a client may see: LIST_TOPICS, CLUSTER_METADATA of all topics.

More than `AT_ONCE_TOPICS` are checked and encoded in slices (docs/protocols/flymq.rst, Cooperative
slices), one connection after the other, so that only one list is in memory. A role with a
permission on everything sees all topics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from brokerd.broker import Topic
from brokerd.broker.slices import SLICE_SECONDS, SliceQueue
from brokerd.errors import BrokerdError, without_traceback
from brokerd.protocols.base.steps import Done, Steps
from brokerd.protocols.flymq.request import RequestConnection
from brokerd.protocols.flymq.topics import NO_NAMES
from brokerd.values import RESERVED_PREFIX

AT_ONCE_TOPICS = 500
"""A client with a role that sees all topics gets a list of so many at once."""

STEP_TOPICS = 100
"""Topics checked between two readings of the clock; they take half a millisecond."""

Encode = Callable[[Sequence[Topic]], Steps[bytes]]
"""Makes the answer of these topics in steps, and leaves out those deleted meanwhile."""


def answer_topics(
    connection: RequestConnection,
    queue: TopicListQueue,
    request: object,
    permission: int,
    encode: Encode,
) -> bytes:
    """Return the answer with the topics on which the client has any of these permissions.

    Omits topics of the broker's own and names that this format cannot use.
    Raises `FrameOnHold`, `AwaitMemory`, `AuthenticationRequired`, `Denied` and `LimitExceeded`.
    """
    connection.await_memory()

    def ask(done: Done[bytes]) -> None:
        connection.access.require_known()
        queue.add(_TopicList(connection, permission, encode, done))

    if connection.access.permissions & permission and not connection.awaits(request):
        few = list(islice(_nameable(connection), AT_ONCE_TOPICS + 1))
        if len(few) <= AT_ONCE_TOPICS:
            return finish(encode(few))
    return connection.await_result(request, ask)


def finish(steps: Steps[bytes]) -> bytes:
    """Run all steps at once and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            answer: bytes = stop.value
            return answer


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
            self._go_on_later()

    def _go_on_later(self) -> None:
        self._slices.add(self._slice, self._waiting[0].connection.slice_owner())

    def _slice(self) -> None:
        topic_list = self._waiting[0]
        connection = topic_list.connection
        if connection.gone or not connection.close_on_fault(topic_list.advance):
            self._waiting.popleft()
        if self._waiting:
            self._go_on_later()


class _TopicList:
    """The topic list of one request, waiting or in progress."""

    def __init__(
        self, connection: RequestConnection, permission: int, encode: Encode, done: Done[bytes]
    ) -> None:
        self.connection = connection
        self._permission = permission
        self._encode = encode
        self._done = done
        self._steps: Steps[bytes] | None = None

    def advance(self) -> bool:
        """Take some steps; return False when all are taken and ``done`` was called."""
        clock = self.connection.factory.clock
        if self._steps is None:
            self._steps = self._answer()
        end_seconds = clock.seconds() + SLICE_SECONDS
        try:
            while True:
                next(self._steps)
                if clock.seconds() > end_seconds:
                    return True
        except StopIteration as stop:
            self._done(stop.value, None)
        except BrokerdError as refusal:
            self._done(None, without_traceback(refusal))
        return False

    def _answer(self) -> Steps[bytes]:
        """Check the permissions of all topics, then encode the answer."""
        connection, permission = self.connection, self._permission
        rest = list(_nameable(connection))
        rest.reverse()
        yield None
        found: list[Topic] = []
        while rest:
            step = rest[: -STEP_TOPICS - 1 : -1]
            del rest[-STEP_TOPICS:]
            access = connection.access
            if access.permissions & permission:
                found += step
            else:
                found += [topic for topic in step if access.may(permission, topic.name)]
            yield None
        return (yield from self._encode(found))
