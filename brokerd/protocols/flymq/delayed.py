# Tests: tests/protocols/test_flymq_delayed.py
"""FlyMQ's delayed records (docs/protocols/flymq.rst, 0x30 to 0x35).

The number of a delayed record is unique in the broker: the id of its topic in the upper bits, the
schedule's own id in the lower bits.
"""

from __future__ import annotations

from brokerd.broker import Broker, Topic
from brokerd.broker.delayed.schedule import delays_frame_bytes
from brokerd.broker.group_commit import ENTRY_OVERHEAD_BYTES
from brokerd.broker.records.size import record_frame_bytes
from brokerd.broker.topic_admin import OWN_TOPIC_BYTES
from brokerd.codecs import flymq
from brokerd.codecs.flymq import CancelDelayed, Opcode, ProduceDelayed
from brokerd.errors import InvalidRequest
from brokerd.protocols.flymq.topics import named_topic
from brokerd.security import WRITE, Access
from brokerd.values import Encoding, Format

TOPIC_SHIFT = 40
"""Bits of a number that are the schedule's own id."""
AT_ONCE_US = 1
PREFIX = "delayed-"
DIGITS_MAX = 20
"""Digits of the largest number."""


def number_of(topic: Topic, schedule_id: int) -> int:
    """Return the number of a schedule id of a topic."""
    return topic.topic_id << TOPIC_SHIFT | schedule_id


def produce_delayed(
    broker: Broker, access: Access, request: ProduceDelayed, partitions: int, most_ms: int
) -> tuple[Topic, int]:
    """PRODUCE_DELAYED: schedule a record and return its topic and schedule id.

    An unknown topic is created with ``partitions`` partitions. Raises `InvalidRequest`,
    `InvalidName`, `NoSpace` and others before any change.
    """
    name, value, delay_ms = request
    if delay_ms > most_ms:
        raise InvalidRequest(f"delay {delay_ms} ms exceeds maximum allowed delay {most_ms} ms")
    topics_bytes = 2 * (OWN_TOPIC_BYTES + ENTRY_OVERHEAD_BYTES)
    size = record_frame_bytes(value) + delays_frame_bytes(1) + topics_bytes
    topic = named_topic(broker, name) or broker.topic_writer.topic(access, name, size, partitions)
    delay_us = max(delay_ms * 1000, AT_ONCE_US)
    schedule_id = broker.delayed.produce(
        topic, value, Encoding.BYTES, None, None, Format.FLYMQ, None, delay_us
    )
    return topic, schedule_id


def cancel_delayed(broker: Broker, access: Access, request: CancelDelayed) -> bytes:
    """CANCEL_DELAYED: cancel a scheduled record."""
    if request.topic is None:
        access.require_known()
    else:
        access.require(WRITE, request.topic)
    number = _number(request.message)
    topic_id, schedule_id = number >> TOPIC_SHIFT, number & (1 << TOPIC_SHIFT) - 1
    if request.topic is None:
        topic = broker.topics.find_id(topic_id)
        if topic is not None and not access.may(WRITE, topic.name):
            topic = None
    else:
        topic = named_topic(broker, request.topic)
        if topic is not None and topic_id not in (0, topic.topic_id):
            topic = None
    if topic is None or not broker.delayed.cancel(topic.name, schedule_id):
        raise _not_found(request.message)
    return flymq.ok(Opcode.CANCEL_DELAYED)


def _number(message: int | str) -> int:
    """Return the number that a request names as number or text."""
    if isinstance(message, int):
        return message
    digits = message.removeprefix(PREFIX)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX):
        raise _not_found(message)
    return int(digits)


def _not_found(message: int | str) -> InvalidRequest:
    return InvalidRequest(f"message not found: {message}")
