# Tests: tests/sim/test_format_clients.py
"""A random FlyMQ client, in the document's dialect or in that of the SDKs."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from brokerd.codecs import flymq
from brokerd.sim.clients.conversation import Ask, WrongAnswer
from brokerd.sim.clients.fifo_wire import FifoWire, unfit
from brokerd.sim.clients.offset_requests import OffsetRequests
from brokerd.sim.clients.values import PATTERNS
from brokerd.sim.history import DeleteTopic, Operation, Place, Produce
from brokerd.sim.offset_history import (
    Commit,
    Committed,
    CreateTopic,
    ListTopics,
    Position,
    Read,
    Reading,
    ResetOffset,
)
from brokerd.sim.payloads import value_of

HEADER_BYTES = 8
GZIP = 0.1
"""How likely a request is compressed."""
NO_GROUP = "consumer group not found"
NO_RECORD = "out of range", "is removed", "holds no record any more"
"""What CONSUME says where there is no record."""
Answer = tuple[int, bytes]
"""Opcode and payload."""


class FlyMQWire(FifoWire):
    """A `Wire` of FlyMQ; now and then a request is compressed."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance
        self._reader = flymq.FrameReader()

    def encoded(self, request: flymq.Request) -> bytes:
        """See `FifoWire`."""
        has_payload = not isinstance(request, flymq.ListTopics)
        return flymq.encode_request(request, has_payload and self._chance.random() < GZIP)

    def answers(self, data: bytes) -> Iterator[tuple[int, Answer]]:
        """See `FifoWire`."""
        for opcode, _, payload in self._reader.feed(data):
            yield HEADER_BYTES + len(payload), (opcode, payload)
        if self._reader.error is not None:
            raise WrongAnswer(f"was sent a broken frame: {self._reader.error}")

    def complete(self, ask: Ask, answer: Answer) -> None:
        """See `FifoWire`."""
        try:
            told = flymq.decode_answer(ask.request, *answer)
        except flymq.AnswerError as error:
            raise WrongAnswer(str(error)) from error
        if isinstance(told, flymq.Failed):
            refuse(ask.operation, told.text)
        else:
            fill(ask.operation, told)


def refuse(operation: Operation, text: str) -> None:
    """Put a refusal into its operation; some tell what is there, and that it is nothing."""
    if isinstance(operation, Read) and operation.exact and _tells_nothing(text):
        operation.readings = ()
    elif isinstance(operation, Committed) and NO_GROUP in text:
        operation.offset, operation.lag, operation.latest = None, None, None
        operation.told_as_zero = False
    else:
        operation.error = text or "no reason given"


def _tells_nothing(text: str) -> bool:
    return text.startswith("offset ") and any(each in text for each in NO_RECORD)


def fill(operation: Operation, told: flymq.Answer) -> None:
    """Put what an answer tells into its operation. Raises WrongAnswer for what is none."""
    match operation, told:
        case Produce(), flymq.Produced() if _agrees(operation, told):
            operation.places = (Place(told.partition, told.offset),)
        case Read(), flymq.Consumed():
            place = Place(operation.partition, operation.offset)
            operation.readings = (Reading(place, told.value, told.key, tells_key=True),)
        case Read(), flymq.Fetched():
            operation.readings = tuple(
                Reading(Place(operation.partition, each.offset), each.value, each.key, True)
                for each in told.records
            )
            operation.next = told.next_offset
        case Committed(lag=None), flymq.Position():
            operation.offset, operation.told_as_zero = told.offset, True
        case Committed(), flymq.Lag() if told.current == told.committed:
            operation.offset, operation.latest = told.committed, told.latest
            operation.lag = told.lag
        case Position(), flymq.Position():
            operation.offset = told.offset
        case ListTopics(), flymq.Topics():
            operation.topics = tuple((name, None) for name in told.names)
        case ((Commit() | ResetOffset() | CreateTopic() | DeleteTopic()), flymq.Done()):
            pass
        case _:
            raise unfit(told)


def _agrees(operation: Produce, told: flymq.Produced) -> bool:
    """Whether an answer is about what was sent."""
    (message,) = operation.messages
    return (
        told.topic == operation.topic
        and message.partition in (None, told.partition)
        and told.key_size == (-1 if message.key is None else len(message.key))
        and told.value_size == len(value_of(message.payload))
    )


class FlyMQRequests(OffsetRequests):
    """What a FlyMQ client asks."""

    def request(self, operation: Operation) -> Any:
        is_sdk = self._chance.random() < 0.5
        match operation:
            case Produce():
                (message,) = operation.messages
                partition = -1 if message.partition is None else message.partition
                value = value_of(message.payload)
                return flymq.Produce(operation.topic, message.key, value, partition)
            case Read(exact=True):
                opcode = self._chance.choice((flymq.Opcode.CONSUME, flymq.Opcode.CONSUME_ZERO_COPY))
                return flymq.Consume(operation.topic, operation.partition, operation.offset, opcode)
            case Read():
                return self._fetch(operation, is_sdk)
            case Commit():
                return flymq.Commit(*_lane(operation), operation.offset)
            case ResetOffset():
                return flymq.ResetOffset(*_lane(operation), operation.to, None, is_sdk)
            case Committed(lag=None):
                return flymq.GetOffset(*_lane(operation))
            case Committed():
                return flymq.GetLag(*_lane(operation))
            case Position():
                return flymq.Subscribe(*_lane(operation), operation.mode, is_sdk)
            case CreateTopic():
                return flymq.CreateTopic(operation.topic, operation.partitions)
            case DeleteTopic():
                return flymq.DeleteTopic(operation.topic)
            case ListTopics():
                return flymq.ListTopics()
        raise TypeError(f"FlyMQ has no {operation!r}")

    def _fetch(self, operation: Read, is_sdk: bool) -> flymq.Fetch:
        """A fetch in one of its layouts; a filter goes with the SDKs' alone."""
        opcode = self._chance.choice((flymq.Opcode.FETCH, flymq.Opcode.FETCH_BINARY))
        if is_sdk and self._values.often(self._plan.filter_permille):
            operation.pattern = self._chance.choice(PATTERNS)
        asked = operation.topic, operation.partition, operation.offset, operation.limit
        return flymq.Fetch(*asked, operation.pattern, is_sdk, opcode)


def _lane(operation: Commit | ResetOffset | Committed | Position) -> tuple[str, str, int]:
    return operation.topic, operation.group, operation.partition
