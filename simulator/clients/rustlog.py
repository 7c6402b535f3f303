# Tests: tests/simulator/test_format_clients.py
"""A random RustLog client. Each request uses one of the dialects, and its answer the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from brokerd.codecs import rustlog
from brokerd.codecs.rustlog import Dialect
from simulator.clients.conversation import Ask, WrongAnswer
from simulator.clients.fifo_wire import FifoWire, unfit
from simulator.clients.offset_requests import OffsetRequests
from simulator.history.offsets import (
    Commit,
    Committed,
    CreateTopic,
    ListTopics,
    Position,
    Read,
    Reading,
)
from simulator.history.operations import Operation, Place, Produce
from simulator.payloads import value_of

EXISTS = "already exists"
MAX_BYTES = 0, 10, 1_000, 1 << 20
"""Limits of fetches."""
MANY = 65_536
"""A limit above the most records of an answer."""


class RustLogWire(FifoWire):
    """A `Wire` of RustLog. Each pending request keeps its dialect."""

    def __init__(self) -> None:
        super().__init__()
        self._reader = rustlog.FrameReader()

    def encoded(self, request: tuple[Dialect, rustlog.Request]) -> bytes:
        """See `FifoWire`."""
        dialect, asked = request
        return rustlog.CODECS[dialect].encode_request(asked)

    def answers(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """See `FifoWire`."""
        for payload in self._reader.feed(data):
            yield rustlog.LENGTH_BYTES + len(payload), payload
        if self._reader.error is not None:
            raise WrongAnswer(f"was sent a broken frame: {self._reader.error}")

    def complete(self, ask: Ask, answer: bytes) -> None:
        """See `FifoWire`."""
        dialect, _ = ask.request
        if rustlog.dialect_of(answer) != dialect:
            raise unfit(answer)
        try:
            told = rustlog.CODECS[dialect].decode_answer(answer)
        except rustlog.AnswerError as error:
            raise WrongAnswer(str(error)) from error
        fill(ask.operation, told)


def fill(operation: Operation, told: rustlog.Answer) -> None:
    """Store an answer in its operation. Raises WrongAnswer if it does not answer the request."""
    match operation, told:
        case _, rustlog.Failed():
            operation.error = told.message or "no reason given"
            if isinstance(operation, CreateTopic):
                operation.existed = EXISTS in told.message
        case Produce(), rustlog.Produced(base, count) if count == len(operation.messages):
            partition = operation.messages[0].partition or 0
            operation.places = tuple(Place(partition, base + index) for index in range(count))
        case Read(), rustlog.Fetched():
            operation.readings = tuple(
                Reading(Place(operation.partition, offset), value)
                for offset, value in zip(told.offsets, told.records, strict=True)
            )
            operation.next = told.next_offset
        case Commit(), rustlog.OffsetCommitted():
            operation.error = "" if told.success else "it was not stored"
        case Committed(), rustlog.OffsetFetched():
            operation.offset = told.offset
        case Position(), rustlog.PartitionDescription() if (told.topic, told.partition) == (
            operation.topic,
            operation.partition,
        ):
            operation.offset = told.next_offset
        case CreateTopic(), rustlog.TopicCreated():
            pass
        case ListTopics(), rustlog.TopicList():
            operation.topics = tuple((name, count) for name, count in told.topics)
        case _:
            raise unfit(told)


class RustLogRequests(OffsetRequests):
    """The requests of a RustLog client."""

    def request(self, operation: Operation) -> Any:
        dialect = self._chance.choice(list(Dialect))
        return dialect, self._request(operation, dialect)

    def _request(self, operation: Operation, dialect: Dialect) -> rustlog.Request:
        match operation:
            case Produce():
                return self._produced(operation)
            case Read():
                return self._fetch(operation, dialect)
            case Commit():
                (topic,) = (topic for topic in self._topics if topic.name == operation.topic)
                is_there = operation.partition < topic.partitions
                operation.is_kept = is_there or not self._has_reference_groups(dialect)
                group_partition = operation.topic, operation.partition, operation.group
                return rustlog.OffsetCommit(*group_partition, operation.offset)
            case Committed():
                return rustlog.OffsetFetch(operation.topic, operation.partition, operation.group)
            case Position():
                operation.mode = "latest"
                return rustlog.DescribePartition(operation.topic, operation.partition)
            case CreateTopic():
                return rustlog.CreateTopic(operation.topic, operation.partitions)
            case ListTopics():
                return rustlog.ListTopics()
        raise TypeError(f"RustLog has no {operation!r}")

    def _has_reference_groups(self, dialect: Dialect) -> bool:
        return self._plan.has_reference_groups and dialect is Dialect.BINARY

    def _produced(self, operation: Produce) -> rustlog.Produce:
        """Return a produce without a key, and with a partition."""
        partition = operation.messages[0].partition
        if partition is None:
            (topic,) = (topic for topic in self._topics if topic.name == operation.topic)
            partition = self._partition(topic)
        operation.messages = tuple(
            message._replace(key=None, partition=partition) for message in operation.messages
        )
        values = [value_of(message.payload) for message in operation.messages]
        return rustlog.Produce(operation.topic, partition, values)

    def _fetch(self, operation: Read, dialect: Dialect) -> rustlog.Fetch:
        operation.limit = MANY
        operation.limit_bytes = self._chance.choice(MAX_BYTES)
        operation.stops_at_gaps = dialect is Dialect.BINARY
        if self._plan.groups and self._chance.random() < 0.3:
            operation.group = self._chance.choice(self._plan.groups)
            operation.by_reference = self._has_reference_groups(dialect)
        asked = operation.topic, operation.partition, operation.offset, operation.limit_bytes
        return rustlog.Fetch(*asked, operation.group or None)
