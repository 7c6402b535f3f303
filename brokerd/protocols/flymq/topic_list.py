# Tests: tests/protocols/test_flymq_topic_list.py
"""Which topics somebody may know of: for LIST_TOPICS, and CLUSTER_METADATA of all of them.

Who has a permission on everything, by role, has it on each topic. For anybody else each topic is
looked at by itself, and there may be many: it is done in slices (docs/protocols/flymq.rst, Turns),
and for one connection after the other, so that their lists are not in memory all at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from brokerd.broker import Topic
from brokerd.protocols.base.slices import SLICE_SECONDS, Turns
from brokerd.protocols.flymq.request import AskingConnection, Done
from brokerd.protocols.flymq.topics import NO_NAMES
from brokerd.values import RESERVED_PREFIX

STEP_TOPICS = 100
"""Topics that are looked at between two looks at the clock: in half a millisecond."""


def known_topics(
    connection: AskingConnection, looks: Looks, request: object, permission: int
) -> list[Topic]:
    """Topics on which any of these permissions is given, but those that this format cannot name.

    Nor those of the broker's own. Raises `HandledLater`, `AuthenticationRequired` and `Denied`.
    """

    def ask(done: Done[list[Topic]]) -> None:
        connection.access.require_known()
        looks.take(_Look(connection, permission, done))

    if not connection.access.permissions & permission:
        broker = connection.broker
        found = connection.told(request, ask)
        return [topic for topic in found if broker.topics.find(topic.name) is topic]
    return list(_nameable(connection))


def _nameable(connection: AskingConnection) -> Iterator[Topic]:
    for topic in connection.broker.topics.all():
        if topic.name not in NO_NAMES and not topic.name.startswith(RESERVED_PREFIX):
            yield topic


class Looks:
    """Looks at all topics on behalf of the connections of a listener."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: deque[_Look] = deque()

    def take(self, look: _Look) -> None:
        """Begin a look when those before it are over."""
        self._waiting.append(look)
        if len(self._waiting) == 1:
            self._turns.take(self._slice)

    def _slice(self) -> None:
        look = self._waiting[0]
        connection = look.connection
        goes_on = not connection.gone and connection.guarded(look.goes_on)
        if not goes_on:
            self._waiting.popleft()
        if self._waiting:
            self._turns.take(self._slice)


class _Look:
    """One look at all topics, waiting or under way."""

    def __init__(
        self, connection: AskingConnection, permission: int, done: Done[list[Topic]]
    ) -> None:
        self.connection = connection
        self._permission = permission
        self._done = done
        self._found: list[Topic] = []
        self._rest: list[Topic] | None = None
        """Last one first."""

    def goes_on(self) -> bool:
        """Look at some topics; False if that was all, and ``done`` was called."""
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
