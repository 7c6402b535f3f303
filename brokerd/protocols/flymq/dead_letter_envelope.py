# Tests: tests/protocols/test_flymq_dead_letter_envelope.py
"""What a record of a topic for dead letters says (flymq-payloads, 6.3): JSON, or anything.

FlyMQ's programs write JSON objects there that hold the record's value in base64, where it came
from, and why it is there. What is no such object is a dead letter all the same.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from brokerd.values import Record

ID_BYTES_MAX = 65_535
"""Of an id that an answer can have."""


class Envelope(NamedTuple):
    """A dead letter, and where it goes when it is replayed."""

    message_id: str
    payload: bytes
    error: str = ""
    retries: int = 0
    topic: str = ""
    """Empty: the topic that the dead letters are of."""


class _Json(msgspec.Struct):
    """Members that count; others may be there."""

    id: str
    payload: bytes | None = None
    original_topic: str = ""
    reason: str = ""
    error_message: str = ""
    retry_count: int = 0


_DECODER = msgspec.json.Decoder(_Json)


def envelope_of(partition: int, record: Record) -> Envelope:
    """What a record says. One that is no such JSON is called by its offset.

    Behind a partition that is not the first, and a colon.
    """
    try:
        found = _DECODER.decode(record.value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _plain(partition, record)
    if not found.id or len(found.id.encode()) > ID_BYTES_MAX:
        return _plain(partition, record)
    error = found.error_message or found.reason
    return Envelope(found.id, found.payload or b"", error, found.retry_count, found.original_topic)


def _plain(partition: int, record: Record) -> Envelope:
    place = f"{partition}:{record.offset}" if partition else str(record.offset)
    return Envelope(place, record.value)
