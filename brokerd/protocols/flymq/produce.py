# Tests: tests/protocols/test_flymq.py, tests/protocols/test_flymq_delayed.py
"""What a FlyMQ connection does to append a record: PRODUCE and its kin (docs/protocols/flymq.rst).

Their answers tell the time of the stored record, so they are made when it is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from brokerd.broker import Broker, Chunk, Congested
from brokerd.codecs import flymq
from brokerd.codecs.flymq import (
    FETCHED_BYTES,
    MAX_LENGTH,
    RECORD_BYTES,
    AuthLayout,
    FrameReader,
    Opcode,
    Produce,
    ProduceDelayed,
    ProduceWithSchema,
    ProduceWithTtl,
)
from brokerd.errors import RecordTooLarge, UnknownPartition
from brokerd.protocols.flymq import delayed, schemas
from brokerd.protocols.flymq.request import RequestConnection
from brokerd.protocols.flymq.topics import NO_NAMES, checked_name
from brokerd.security import WRITE
from brokerd.values import Encoding, Format

CONTENT_BYTES_MAX = MAX_LENGTH - FETCHED_BYTES - RECORD_BYTES
"""Key and value of a record together, so that every record fits a FETCH answer."""

PRODUCE = int(Opcode.PRODUCE)
PRODUCED_BYTES = 38
"""An answer to PRODUCE without the topic's name."""


@dataclass(frozen=True)
class FlymqSettings:
    """What an operator says about FlyMQ listeners."""

    partitions: int = 1
    """Of topics that a PRODUCE brings about."""
    error_layout: Literal["auto", "seed", "sdk"] = "auto"
    """Layout of ERROR frames: the document's, the SDKs', or by what the peer has shown to be."""
    cluster_id: str = "standalone"
    """Cluster and node in CLUSTER_METADATA."""
    advertised: str = ""
    """Address in CLUSTER_METADATA, ``host:port``; empty: the connection's own end."""
    principal: str = ""
    """Who a client is that has not logged in, which the guard says; empty: anonymous."""
    auth_success_layout: AuthLayout = "seed"
    """Layout of a successful AUTH: the document's, the SDKs', one without names, or both."""
    delay_max_seconds: int = 86_400
    """Longest delay of a PRODUCE_DELAYED."""


class ProduceReceipt(NamedTuple):
    """An answer to PRODUCE, or one of its kin, before its time is known."""

    topic: str
    partition: int
    number: int
    """The offset, or what a delayed record is called."""
    chunk: Chunk
    offset: int
    """Of the record in the chunk's partition."""
    key_size: int
    value_size: int
    opcode: int


class ProduceConnection(RequestConnection):
    """A connection that appends records; the subclass says when."""

    def __init__(self, broker: Broker, reader: FrameReader, settings: FlymqSettings) -> None:
        super().__init__(broker, reader, settings.partitions)
        self.settings = settings
        self._fits: ProduceWithSchema | None = None
        """One that waits for room in the log, and whose value was looked at."""
        self._receipts: list[ProduceReceipt] = []
        """Of PRODUCE requests whose answers are not queued yet."""

    def forget(self) -> None:
        """Let go of what was asked."""
        super().forget()
        self._receipts.clear()

    def produce(
        self, request: Any, expires_at_us: int | None = None, opcode: int = PRODUCE
    ) -> None:
        """PRODUCE, or one of its kin: ``request`` is (topic, key, value, partition).

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
        partition, offset = broker.writer.produce(
            self.access.actor,
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

    def produce_with_ttl(self, request: ProduceWithTtl) -> None:
        """PRODUCE_WITH_TTL."""
        ttl_ms = request.ttl_ms
        expires_at_us = self.broker.records.expiry_us(ttl_ms * 1000) if ttl_ms > 0 else 0
        plain = Produce(request.topic, None, request.value)
        self.produce(plain, expires_at_us, Opcode.PRODUCE_WITH_TTL)

    def produce_with_schema(self, request: ProduceWithSchema) -> None:
        """PRODUCE_WITH_SCHEMA: the value is looked at elsewhere first."""
        self.access.require(WRITE, request.topic)
        if len(request.value) > CONTENT_BYTES_MAX:
            raise too_large(len(request.value))
        fits, self._fits = self._fits, None
        if fits is not request:
            schemas.check_value(self, request)
        try:
            plain = Produce(request.topic, None, request.value)
            self.produce(plain, None, Opcode.PRODUCE_WITH_SCHEMA)
        except Congested:
            self._fits = request
            raise

    def produce_delayed(self, request: ProduceDelayed) -> None:
        """PRODUCE_DELAYED."""
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
        assert topic.internal is not None, "it holds the record that was just scheduled"
        chunk = topic.internal.partitions[0].chunks.open
        assert chunk is not None, "the record was just appended to it"
        number = delayed.number_of(topic, schedule_id)
        self._receipts.append(
            ProduceReceipt(
                topic.name, 0, number, chunk, schedule_id, -1, size, Opcode.PRODUCE_DELAYED
            )
        )

    def queue_receipts(self) -> None:
        """Queue the answers to the PRODUCE requests up to here: they tell the records' times."""
        stored = self._receipts
        if stored:
            self._receipts = []
            self.wrote()
            size = len(stored) * PRODUCED_BYTES + sum(len(one[0]) for one in stored)
            self.answer_durable(partial(_produced, stored), len(stored), size)


def too_large(size: int) -> RecordTooLarge:
    """The refusal of a record that no FETCH could carry."""
    return RecordTooLarge(
        f"key and value have {size} bytes together, and {CONTENT_BYTES_MAX} is the limit"
    )


def _produced(stored: list[ProduceReceipt]) -> bytes:
    """The answers of PRODUCE requests whose records are in the log."""
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
