# Tests: tests/protocols/test_flymq.py, tests/protocols/test_flymq_delayed.py
"""FlyMQ's PRODUCE and its variants (docs/protocols/flymq.rst).

An answer contains the append time of its record, so it is made when the record is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from brokerd.broker import Broker, Chunk, Congested
from brokerd.broker.records.size import values_frame_bytes
from brokerd.codecs import flymq
from brokerd.codecs.flymq import (
    FETCHED_BYTES,
    MAX_LENGTH,
    RECORD_BYTES,
    AuthLayout,
    Frame,
    FrameReader,
    Opcode,
    Produce,
    ProduceDelayed,
    ProduceWithSchema,
    ProduceWithTtl,
    produce_run,
)
from brokerd.errors import RecordTooLarge, UnknownPartition
from brokerd.protocols.base.framing import RUN_FRAMES_MIN
from brokerd.protocols.flymq import delayed, schemas
from brokerd.protocols.flymq.request import RequestConnection
from brokerd.protocols.flymq.topics import NO_NAMES, checked_name
from brokerd.security import WRITE
from brokerd.values import Encoding, Format

CONTENT_BYTES_MAX = MAX_LENGTH - FETCHED_BYTES - RECORD_BYTES
"""Largest key and value together: every record fits an answer to FETCH."""

PRODUCE = int(Opcode.PRODUCE)
PRODUCED_BYTES = 38
"""Size of an answer to PRODUCE without the topic's name."""


@dataclass(frozen=True)
class FlymqSettings:
    """Options of FlyMQ listeners."""

    partitions: int = 1
    """Partitions of topics that a PRODUCE creates."""
    error_layout: Literal["auto", "seed", "sdk"] = "auto"
    """Layout of ERROR frames: the document's, the SDKs', or as the requests of the peer show."""
    cluster_id: str = "standalone"
    """Cluster and node in CLUSTER_METADATA."""
    advertised: str = ""
    """Address in CLUSTER_METADATA, ``host:port``; empty: the connection's own end."""
    principal: str = ""
    """Account of clients before their login; empty: anonymous."""
    auth_success_layout: AuthLayout = "seed"
    """Layout of a successful AUTH: the document's, the SDKs', one without names, or both."""
    delay_max_seconds: int = 86_400
    """Longest delay of a PRODUCE_DELAYED."""


class ProduceReceipt(NamedTuple):
    """An answer to PRODUCE or a variant, before its time is known."""

    topic: str
    partition: int
    number: int
    """The offset, or the number of a delayed record."""
    chunk: Chunk
    offset: int
    """Offset of the record in the chunk's partition."""
    key_size: int
    value_size: int
    opcode: int


class ProduceConnection(RequestConnection):
    """A connection with the requests that append records."""

    def __init__(self, broker: Broker, reader: FrameReader, settings: FlymqSettings) -> None:
        super().__init__(broker, reader, settings.partitions)
        self.settings = settings
        self._validated: ProduceWithSchema | None = None
        """A request with a valid value that waits for room in the log."""
        self._receipts: list[ProduceReceipt] = []
        """PRODUCE requests whose answers are not queued yet."""

    def forget(self) -> None:
        """Drop the requests in progress."""
        super().forget()
        self._receipts.clear()

    def produce(
        self, request: Any, expires_at_us: int | None = None, opcode: int = PRODUCE
    ) -> None:
        """PRODUCE or a variant: ``request`` is (topic, key, value, partition).

        ``expires_at_us`` as in `brokerd.broker.records.append.RecordAppender.append`.
        """
        name, key, value, index = request
        self.access.require(WRITE, name)
        size = len(value)
        if key is not None:
            size += len(key)
        if size > CONTENT_BYTES_MAX:
            raise too_large(size)
        broker = self.broker
        topic = broker.topics.find(name)
        if topic is None or name in NO_NAMES:
            checked_name(name, "topic name")
        if index >= (self.settings.partitions if topic is None else len(topic.partitions)):
            raise UnknownPartition(f"partition {index} not found")
        partition, offset = broker.topic_writer.produce(
            self.access,
            name,
            index if index >= 0 else None,
            value,
            Encoding.BYTES,
            key,
            None,
            Format.FLYMQ,
            expires_at_us,
            self.settings.partitions,
        )
        chunk = partition.chunks.open
        assert chunk is not None, "the record was just appended to it"
        key_size = -1 if key is None else len(key)
        self._receipts.append(
            ProduceReceipt(
                name, partition.index, offset, chunk, offset, key_size, len(value), opcode
            )
        )

    def handle_run(self, frames: list[Frame]) -> int:
        """Append the records of PRODUCE requests for one topic, without keys, in one step."""
        if self.pending_request is not None:
            return 0
        name, values = produce_run(frames)
        broker, count = self.broker, len(values)
        topic = broker.topics.find(name) if count >= RUN_FRAMES_MIN else None
        if (
            topic is None
            or name in NO_NAMES
            or len(topic.partitions) != 1
            or max(map(len, values)) > CONTENT_BYTES_MAX
            or not self.access.may(WRITE, name)
            or not broker.group_commit.has_room(values_frame_bytes(values))
        ):
            return 0
        partition = topic.partitions[0]
        first = broker.appender.append_values(partition, values, Format.FLYMQ)
        chunk = partition.chunks.open
        assert chunk is not None, "the records were just appended to it"
        self.queue_receipts()
        self.wrote()
        answers = partial(_run_answers, name, first, chunk, list(map(len, values)))
        self.answer_when_durable(answers, count, count * (PRODUCED_BYTES + len(name)))
        return count

    def produce_with_ttl(self, request: ProduceWithTtl) -> None:
        """PRODUCE_WITH_TTL: produce a record that expires."""
        ttl_ms = request.ttl_ms
        expires_at_us = self.broker.appender.expiry_us(ttl_ms * 1000) if ttl_ms > 0 else 0
        plain = Produce(request.topic, None, request.value)
        self.produce(plain, expires_at_us, Opcode.PRODUCE_WITH_TTL)

    def produce_with_schema(self, request: ProduceWithSchema) -> None:
        """PRODUCE_WITH_SCHEMA: validate the value in the pool, then produce it."""
        self.access.require(WRITE, request.topic)
        if len(request.value) > CONTENT_BYTES_MAX:
            raise too_large(len(request.value))
        fits, self._validated = self._validated, None
        if fits is not request:
            schemas.check_value(self, request)
        try:
            plain = Produce(request.topic, None, request.value)
            self.produce(plain, None, Opcode.PRODUCE_WITH_SCHEMA)
        except Congested:
            self._validated = request
            raise

    def produce_delayed(self, request: ProduceDelayed) -> None:
        """PRODUCE_DELAYED: schedule a record."""
        size = len(request.value)
        if size > CONTENT_BYTES_MAX:
            raise too_large(size)
        settings = self.settings
        topic, schedule_id = delayed.produce_delayed(
            self.broker,
            self.access,
            request,
            settings.partitions,
            settings.delay_max_seconds * 1000,
        )
        assert topic.internal is not None, "the record was just scheduled in it"
        chunk = topic.internal.partitions[0].chunks.open
        assert chunk is not None, "the record was just appended to it"
        number = delayed.number_of(topic, schedule_id)
        self._receipts.append(
            ProduceReceipt(
                topic.name, 0, number, chunk, schedule_id, -1, size, Opcode.PRODUCE_DELAYED
            )
        )

    def queue_receipts(self) -> None:
        """Queue the answers to all PRODUCE requests so far, to be made when they are durable."""
        stored = self._receipts
        if stored:
            self._receipts = []
            self.wrote()
            size = len(stored) * PRODUCED_BYTES + sum(len(one[0]) for one in stored)
            self.answer_when_durable(partial(_produce_answers, stored), len(stored), size)


def too_large(size: int) -> RecordTooLarge:
    """Return the refusal of a record that does not fit an answer to FETCH."""
    return RecordTooLarge(
        f"key and value have {size} bytes together, and {CONTENT_BYTES_MAX} is the limit"
    )


def _run_answers(topic: str, first: int, chunk: Chunk, value_sizes: list[int]) -> bytes:
    """Return the answers to a run of PRODUCE requests, all of one frame of the log."""
    time_ms = chunk.times_us[first - chunk.base] // 1000
    return flymq.produced_run(topic, first, time_ms, value_sizes)


def _produce_answers(stored: list[ProduceReceipt]) -> bytes:
    """Return the answers to PRODUCE requests whose records are durable."""
    return b"".join(
        [
            flymq.produced(
                name,
                index,
                number,
                chunk.times_us[offset - chunk.base] // 1000,
                key_size,
                value_size,
                opcode,
            )
            for name, index, number, chunk, offset, key_size, value_size, opcode in stored
        ]
    )
