# Tests: tests/protocols/test_flymq_dead_letter_envelope.py
"""Records of a dead-letter topic: JSON envelopes, or any bytes.

FlyMQ's clients write JSON objects with the record's value in base64, its original topic and the
reason. Any other value is a dead letter without these.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from brokerd.values import Record

ID_BYTES_MAX = 65_535
"""Longest id that an answer can hold."""


class Envelope(NamedTuple):
    """A dead letter, and the topic to which a replay produces it."""

    message_id: str
    payload: bytes
    error: str = ""
    retries: int = 0
    topic: str = ""
    """Empty: the topic ``NAME`` of the dead-letter topic ``NAME.dlq``."""


class _Json(msgspec.Struct):
    """Members of the JSON object that are read."""

    id: str
    payload: bytes | None = None
    original_topic: str = ""
    reason: str = ""
    error_message: str = ""
    retry_count: int = 0


_DECODER = msgspec.json.Decoder(_Json)


def envelope_of(partition: int, record: Record) -> Envelope:
    """Decode a record. The id of a record without an envelope is its offset.

    In partitions other than 0 it is ``PARTITION:OFFSET``.
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
