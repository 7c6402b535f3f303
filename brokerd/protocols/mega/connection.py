# Tests: tests/protocols/test_mega.py
"""MEGA on the wire: docs/protocols/mega.rst.

The codec parses both dialects. The base class keeps order and durability. This module turns each
request into calls of the broker and their results into an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from brokerd.broker import Broker, Clock, Partition
from brokerd.broker.records.size import values_frame_bytes
from brokerd.codecs.mega import (
    MAX_OFFSET,
    MAX_PAYLOAD_BYTES,
    Code,
    Consume,
    CreateTopic,
    Produce,
    Refused,
    Request,
    RequestReader,
    StreamError,
    consumed,
    created,
    produced,
    produced_run,
    refused,
)
from brokerd.errors import (
    AuthenticationRequired,
    BrokerdError,
    Denied,
    InvalidName,
    LimitExceeded,
    NoSpace,
    UnknownTopic,
)
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.base.fetching import FetchConnection
from brokerd.protocols.base.framing import RUN_FRAMES_MIN, FrameConnection
from brokerd.protocols.base.request_times import OPERATION, operation_names
from brokerd.security import ADMIN, READ, WRITE
from brokerd.security.audit import EventType
from brokerd.security.quotas import Use
from brokerd.values import Encoding, Format, Record

_RunT = TypeVar("_RunT", Produce, Consume)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
_BYTES, _MEGA = int(Encoding.BYTES), int(Format.MEGA)
TOPICS_RUN_MAX = 64
"""PRODUCE requests for several topics that one run handles at most: half a millisecond."""
_CODES: dict[type[BrokerdError], Code] = {
    AuthenticationRequired: Code.INVALID_REQUEST,
    Denied: Code.INVALID_REQUEST,
    InvalidName: Code.INVALID_REQUEST,
    LimitExceeded: Code.RESOURCE_EXHAUSTED,
    NoSpace: Code.RESOURCE_EXHAUSTED,
}
"""Codes of the broker's refusals of a PRODUCE. All others are INTERNAL_ERROR."""
_CODES_OF_READS: dict[type[Exception], Code] = {
    AuthenticationRequired: Code.INVALID_REQUEST,
    Denied: Code.INVALID_REQUEST,
    UnknownTopic: Code.TOPIC_NOT_FOUND,
}
"""The same for reads, whose codes the protocol document gives. All others are INTERNAL_ERROR."""


class MegaConnection(FrameConnection[Request | Refused, StreamError], FetchConnection):
    """One client's connection."""

    _reader: RequestReader

    def __init__(self, broker: Broker, frame_bytes: int) -> None:
        super().__init__(broker, RequestReader(min(frame_bytes, MAX_PAYLOAD_BYTES)))

    def handle(self, frame: Request | Refused) -> None:
        """Carry out a request."""
        self._DISPATCH[type(frame)](self, frame)

    def quota_use(self, frame: Request | Refused) -> tuple[int, int]:
        """Return how a request counts against quotas."""
        if isinstance(frame, Produce):
            return Use.PRODUCE, len(frame.payload)
        return Use.READ, 0

    def handle_run(self, frames: list[Request | Refused]) -> int:
        """Carry out PRODUCE requests, or CONSUME requests for one topic, in one step."""
        first = frames[0]
        if type(first) is Produce:
            run = _like(first, frames)
            if len(run) >= RUN_FRAMES_MIN:
                return self._produce_run(run)
            return self._produce_each(frames[:TOPICS_RUN_MAX])
        if type(first) is Consume:
            return self._consume_run(_like(first, frames))
        return 0

    def _produce_run(self, run: list[Produce]) -> int:
        topic_name = run[0].topic
        count, partition = len(run), self._partition(topic_name)
        if (
            partition is None
            or partition.next_offset + count - 1 > MAX_OFFSET
            or not self.access.may(WRITE, topic_name)
        ):
            return 0
        ids, _, timestamps, values = zip(*run, strict=True)
        if not self.group_commit.has_room(values_frame_bytes(values)):
            return 0
        offset = self.broker.appender.append_values(partition, values, _MEGA, timestamps)
        self.wrote()
        answers = produced_run(ids, timestamps, range(offset, offset + count))
        self.answer_run(answers, count)
        return count

    def _produce_each(self, frames: list[Request | Refused]) -> int:
        """Carry out the PRODUCE requests at the beginning, for any topics."""
        partitions: list[Partition] = []
        find, may = self.broker.topics.find, self.access.may
        for request in frames:
            if type(request) is not Produce:
                break
            topic_name = request.topic
            topic = find(topic_name) if topic_name else None
            if topic is None or not may(WRITE, topic_name):
                break
            partition = topic.partitions[0]
            if partition.next_offset > MAX_OFFSET - TOPICS_RUN_MAX:
                break
            partitions.append(partition)
        count = len(partitions)
        if count < RUN_FRAMES_MIN:
            return 0
        ids, _, timestamps, values = zip(*frames[:count], strict=True)
        if not self.group_commit.has_room(values_frame_bytes(values), count):
            return 0
        offsets = self.broker.appender.append_each(partitions, values, _MEGA, timestamps)
        self.wrote()
        self.answer_run(produced_run(ids, timestamps, offsets), count)
        return count

    def _consume_run(self, run: list[Consume]) -> int:
        """Answer with records that are in memory. `_consume` finds the others, one by one."""
        topic_name = run[0].topic
        partition = self._partition(topic_name)
        if partition is None or not self.access.may(READ, topic_name):
            return 0
        records = self.records_in_memory(partition, [request.offset for request in run])
        if not records:
            return 0
        answers = [
            _consume_answer(request.correlation_id, (record,), 0, None)
            for request, record in zip(run, records, strict=False)
        ]
        self.answer_run(b"".join(answers), len(answers), at_once=True)
        return len(answers)

    def refuse(self, frame: Request | Refused, refusal: BrokerdError) -> None:
        """Answer with the code of the refusal."""
        code = _CODES.get(type(refusal), Code.INTERNAL_ERROR)
        self.answers.append(refused(frame.correlation_id, code))

    def operation_of(self, frame: Request | Refused) -> str:
        """Return the name of the request."""
        return _OPERATIONS.get(type(frame), OPERATION)

    def last_answer(self) -> bytes:
        """Return the refusal of a request that was not finished in time."""
        return refused(self._reader.partial_id, Code.NETWORK_ERROR)

    def _refused(self, request: Refused) -> None:
        self.answers.append(refused(request.correlation_id, request.code))

    def _create_topic(self, request: CreateTopic) -> None:
        correlation_id, topic_name, timestamp = request
        self.access.require(ADMIN, topic_name)
        if not _NAME.fullmatch(topic_name):
            self.answers.append(refused(correlation_id, Code.INVALID_REQUEST))
        elif self.broker.topics.find(topic_name) is not None:
            self.answers.append(refused(correlation_id, Code.TOPIC_ALREADY_EXISTS))
        else:
            self.broker.audit.carry_out(
                self.access.actor,
                EventType.TOPIC_CREATED,
                topic_name,
                lambda: self.broker.topics.create(topic_name),
            )
            self.wrote()
            self.answers.append(created(correlation_id, timestamp, topic_name))

    def _produce(self, request: Produce) -> None:
        correlation_id, topic_name, timestamp, payload = request
        self.access.require(WRITE, topic_name)
        partition = self._partition(topic_name)
        if partition is None:
            self.answers.append(refused(correlation_id, Code.TOPIC_NOT_FOUND))
        elif partition.next_offset > MAX_OFFSET:
            self.answers.append(refused(correlation_id, Code.RESOURCE_EXHAUSTED))
        else:
            offset = self.broker.appender.produce(
                partition, payload, _BYTES, None, None, _MEGA, timestamp
            )
            self.wrote()
            self.answers.append(produced(correlation_id, timestamp, offset))

    def _consume(self, request: Consume) -> None:
        correlation_id, topic_name, _, offset = request
        self.access.require(READ, topic_name)
        partition = self._partition(topic_name)
        if partition is None:
            self.answers.append(refused(correlation_id, Code.TOPIC_NOT_FOUND))
        elif not 0 <= offset < partition.next_offset:
            self.answer_existence(partition.topic, refused(correlation_id, Code.INVALID_OFFSET))
        else:
            answer = partial(_consume_answer, correlation_id)
            self.fetch(partition, offset, 1, MAX_PAYLOAD_BYTES, answer)

    def _partition(self, topic_name: str) -> Partition | None:
        """Return partition 0 of a topic, or None. MEGA has no topic with the empty name."""
        topic = self.broker.topics.find(topic_name) if topic_name else None
        return None if topic is None else topic.partitions[0]

    _DISPATCH: ClassVar[dict[type, Callable[[MegaConnection, Any], None]]] = {
        Produce: _produce,
        Consume: _consume,
        CreateTopic: _create_topic,
        Refused: _refused,
    }


def _like(first: _RunT, frames: list[Request | Refused]) -> list[_RunT]:
    """Return the first frames as long as they have the type and the topic of ``first``."""
    kind, topic_name = type(first), first.topic
    run: list[_RunT] = []
    for one in frames:
        if type(one) is not kind or one.topic != topic_name:
            break
        run.append(one)
    return run


def _consume_answer(
    correlation_id: int, records: Sequence[Record], next_offset: int, error: Exception | None
) -> bytes:
    """Return the answer to a CONSUME with the records that were read."""
    if error is not None:
        return refused(correlation_id, _CODES_OF_READS.get(type(error), Code.INTERNAL_ERROR))
    if not records or records[0].offset > MAX_OFFSET:
        return refused(correlation_id, Code.INVALID_OFFSET)
    record = records[0]
    if len(record.value) > MAX_PAYLOAD_BYTES:
        return refused(correlation_id, Code.MESSAGE_TOO_LARGE)
    timestamp = record.producer_time
    if timestamp is None:
        timestamp = record.append_time_us // 1000
    return consumed(correlation_id, timestamp, record.offset, record.value)


_OPERATIONS = operation_names(MegaConnection._DISPATCH)
"""Names of operations in the metrics."""


class MegaFactory(ConnectionFactory):
    """Connections of one MEGA listener."""

    def __init__(self, broker: Broker, clock: Clock, limits: Limits) -> None:
        super().__init__("mega", broker, clock, limits)

    def new_connection(self) -> MegaConnection:
        return MegaConnection(self.broker, self.limits.frame_bytes)
