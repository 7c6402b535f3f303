"""Stand-in for pyflymq's transactions, delayed records and records with a TTL.

Layouts and the handling of answers are pyflymq's. Of the answers to TXN_* only the id is read. The
place of a record is read in each answer that has one. The context manager commits at the end of its
block, and rolls back after any error, an error of the commit included.
"""

from __future__ import annotations

import struct
from types import TracebackType

from tests.reference import flymq
from tests.reference.flymq import Fields, RecordMetadata, text
from tests.reference.pyflymq import FlyMQClient


def value_field(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def produce_delayed(client: FlyMQClient, topic: str, value: bytes, delay_ms: int) -> RecordMetadata:
    """Send PRODUCE_DELAYED; the delay is unsigned."""
    payload = text(topic) + value_field(value) + struct.pack(">Q", delay_ms)
    return flymq.record_metadata(client.call(flymq.PRODUCE_DELAYED, payload))


def produce_with_ttl(client: FlyMQClient, topic: str, value: bytes, ttl_ms: int) -> RecordMetadata:
    payload = text(topic) + value_field(value) + struct.pack(">q", ttl_ms)
    return flymq.record_metadata(client.call(flymq.PRODUCE_WITH_TTL, payload))


class Transaction:
    """A transaction; the constructor begins it."""

    def __init__(self, client: FlyMQClient) -> None:
        self._client = client
        self.id = Fields(client.call(flymq.TXN_BEGIN, b"")).text()
        self.active = True

    def produce(self, topic: str, value: bytes) -> RecordMetadata:
        payload = text(self.id) + text(topic) + value_field(value)
        return flymq.record_metadata(self._client.call(flymq.TXN_PRODUCE, payload))

    def commit(self) -> None:
        """Send TXN_COMMIT and ignore the success byte."""
        self._client.call(flymq.TXN_COMMIT, text(self.id))
        self.active = False

    def rollback(self) -> None:
        self._client.call(flymq.TXN_ROLLBACK, text(self.id))
        self.active = False

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is not None:
            self.rollback()
            return
        if self.active:
            try:
                self.commit()
            except Exception:
                self.rollback()
                raise
