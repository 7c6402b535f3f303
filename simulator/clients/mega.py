# Tests: tests/simulator/test_format_clients.py
"""A random MEGA client: creates topics, produces and consumes single records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Any

from brokerd.codecs import mega
from simulator.clients.conversation import Ask, WrongAnswer
from simulator.clients.fifo_wire import FifoWire, unfit
from simulator.clients.offset_requests import OffsetRequests
from simulator.history.offsets import CreateTopic, Read, Reading
from simulator.history.operations import Operation, Place, Produce
from simulator.payloads import value_of
from simulator.plan import ClientPlan

NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
SIZES = {mega.Refused: 6, mega.Created: 15, mega.Produced: 17, mega.Consumed: 21}
"""Bytes of an answer besides a topic or a payload."""
CORRELATION_IDS = (0, 1, -1, 0x01000000, 0x02000000, 77)
"""A client chooses any ids, and may use an id again."""


class MegaWire(FifoWire):
    """A `Wire` of MEGA, in both dialects at random."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance
        self._reader = mega.AnswerReader()

    def encoded(self, request: mega.Request) -> bytes:
        """See `FifoWire`."""
        self._reader.expect(request)
        return mega.encode_request(request, self._chance.choice(list(mega.Dialect)))

    def answers(self, data: bytes) -> Iterator[tuple[int, mega.Answer]]:
        """See `FifoWire`."""
        for answer in self._reader.feed(data):
            yield _size(answer), answer
        if self._reader.error is not None:
            raise WrongAnswer(f"was sent a broken answer: {self._reader.error}")

    def complete(self, ask: Ask, answer: mega.Answer) -> None:
        """See `FifoWire`."""
        request: mega.Request = ask.request
        match ask.operation, answer:
            case Read() as read, mega.Refused(code=mega.Code.INVALID_OFFSET):
                read.readings = ()
            case CreateTopic() as create, mega.Refused(code=mega.Code.TOPIC_ALREADY_EXISTS):
                create.existed, create.error = True, "the topic exists"
            case operation, mega.Refused(code=code):
                operation.error = mega.Code(code).name
            case Produce() as produce, mega.Produced() if answer.timestamp == request.timestamp:
                produce.places = (Place(0, answer.offset),)
            case Read() as read, mega.Consumed():
                place = Place(0, answer.next_offset - 1)
                read.readings = (Reading(place, answer.payload, timestamp=answer.timestamp),)
                read.next = answer.next_offset
            case CreateTopic(), mega.Created() if (answer.timestamp, answer.topic) == (
                request.timestamp,
                request.topic,
            ):
                pass
            case _:
                raise unfit(answer)


def _size(answer: mega.Answer) -> int:
    rest = 0
    if isinstance(answer, mega.Created):
        rest = len(answer.topic.encode())
    elif isinstance(answer, mega.Consumed):
        rest = len(answer.payload)
    return SIZES[type(answer)] + rest


class MegaRequests(OffsetRequests):
    """The requests of a MEGA client, all in partition 0."""

    def __init__(self, plan: ClientPlan, chance: Random) -> None:
        super().__init__(plan, chance)
        self._timestamp = 0

    def accepts(self, topic: str) -> bool:
        return NAME.fullmatch(topic) is not None

    def request(self, operation: Operation) -> Any:
        self._timestamp += 1
        correlation_id = self._chance.choice(CORRELATION_IDS)
        match operation:
            case Produce():
                (message,) = operation.messages
                message = message._replace(key=None, partition=0, timestamp=self._timestamp)
                operation.messages = (message,)
                value = value_of(message.payload)
                return mega.Produce(correlation_id, operation.topic, self._timestamp, value)
            case Read():
                operation.partition, operation.limit = 0, 1
                return mega.Consume(
                    correlation_id, operation.topic, self._timestamp, operation.offset
                )
            case CreateTopic():
                operation.partitions = 1
                return mega.CreateTopic(correlation_id, operation.topic, self._timestamp)
        raise TypeError(f"MEGA has no {operation!r}")
