# Tests: tests/protocols/test_flymq_lists.py
"""Which topics somebody may know of: for LIST_TOPICS, and CLUSTER_METADATA of all of them.

Who has a permission on everything, by role, has it on each topic. For anybody else each topic is
looked at by itself, and there may be many: it is done in slices (docs/protocols/flymq.rst, Turns).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from brokerd.broker import Topic
from brokerd.protocols.flymq_asking import AskingConnection, Done
from brokerd.protocols.flymq_topics import NO_NAMES
from brokerd.protocols.turns import SLICE_SECONDS
from brokerd.values import RESERVED_PREFIX

STEP_TOPICS = 100
"""Topics that are looked at between two looks at the clock: in half a millisecond."""


def known_topics(connection: AskingConnection, request: object, permission: int) -> list[Topic]:
    """Topics on which any of these permissions is given, but those that this format cannot name.

    Nor those of the broker's own. Raises `HandledLater`, `AuthenticationRequired` and `Denied`.
    """

    def ask(done: Done[list[Topic]]) -> None:
        connection.access.require_known()
        _Look(connection, permission, done).go_on_later()

    if not connection.access.permissions & permission:
        broker = connection.broker
        found = connection.told(request, ask)
        return [topic for topic in found if broker.topic(topic.name) is topic]
    return list(_nameable(connection))


def _nameable(connection: AskingConnection) -> Iterator[Topic]:
    for topic in connection.broker.topics():
        if topic.name not in NO_NAMES and not topic.name.startswith(RESERVED_PREFIX):
            yield topic


class _Look:
    """One look at all topics, under way."""

    def __init__(
        self, connection: AskingConnection, permission: int, done: Done[list[Topic]]
    ) -> None:
        self._connection = connection
        self._permission = permission
        self._done = done
        self._found: list[Topic] = []
        self._rest = list(_nameable(connection))
        self._rest.reverse()

    def go_on_later(self) -> None:
        self._connection.factory.turns.take(
            partial(self._connection.guarded, self._go_on),
        )

    def _go_on(self) -> None:
        """Look at topics until the time is over or they are."""
        connection = self._connection
        if connection.gone:
            return
        clock, may = connection.factory.clock, connection.access.may
        end_seconds = clock.seconds() + SLICE_SECONDS
        rest = self._rest
        while rest:
            step = rest[: -STEP_TOPICS - 1 : -1]
            del rest[-STEP_TOPICS:]
            self._found += [topic for topic in step if may(self._permission, topic.name)]
            if clock.seconds() > end_seconds:
                self.go_on_later()
                return
        self._done(self._found, None)
