# Tests: tests/protocols/test_rustlog.py
"""Answers that take several turns of the reactor to make, so that nobody has to wait for them."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from brokerd.broker import Broker
from brokerd.codecs.rustlog import MAX_PAYLOAD, Codec
from brokerd.protocols.base.connection import Connection, Hold
from brokerd.protocols.rustlog.refusals import LIST_FAILED
from brokerd.security import ANY, Access

Steps = Generator[bool, None, bytes]
"""Makes an answer; yields where the turn may end: True to go on when the log is not congested."""

TOPICS_A_TURN = 1_000
"""Topics that ListTopics describes in one turn: some milliseconds, if each is to be permitted."""


class CooperativeAnswer:
    """An answer under way; requests behind it wait."""

    def __init__(self, connection: Connection, steps: Steps) -> None:
        self._connection = connection
        self._steps = steps
        connection.hold(Hold.READING)
        self._place = connection.pending()
        self._next_turn()

    def _next_turn(self) -> None:
        connection = self._connection
        connection.factory.slices.add(partial(connection.guarded, self._step))

    def _step(self) -> None:
        connection = self._connection
        if connection.gone:
            return
        try:
            is_congested = next(self._steps)
        except StopIteration as done:
            connection.resolve(self._place, done.value)
            connection.release(Hold.READING)
            return
        if is_congested:
            connection.journal.when_uncongested(partial(connection.guarded, self._step))
        else:
            self._next_turn()


def list_topics(broker: Broker, codec: Codec, access: Access) -> Steps:
    """The answer to ListTopics: those that have a name, by name. Raises `Refusal`.

    None that ``access`` may not know of, and so none of the broker's own.
    """
    names = [topic.name for topic in broker.topics.all() if topic.name]
    yield False
    names.sort()
    rows: list[bytes] = []
    count = size = 0
    for first in range(0, len(names), TOPICS_A_TURN):
        yield False
        topics = map(broker.topics.find, names[first : first + TOPICS_A_TURN])
        described = [
            (topic.name, len(topic.partitions))
            for topic in topics
            if topic is not None and access.may(ANY, topic.name)
        ]
        rows.append(codec.encode_topics(described))
        count += len(described)
        size += len(rows[-1])
        if size > MAX_PAYLOAD:
            break
    answer = codec.encode_topic_list(rows, count)
    if len(answer) > MAX_PAYLOAD:
        raise LIST_FAILED.because(
            f"the topics do not fit an answer of {MAX_PAYLOAD} bytes; list them with brokerctl"
        )
    return answer
