# Tests: tests/codecs/test_blipmq.py
"""Messages of the BlipMQ format, as values (page: docs/protocols/blipmq.rst).

A correlation id, a subscription id and a delivery tag are unsigned 64-bit integers. Some types go
both ways and mean something else each way: an `Ack` of the broker says that a request succeeded,
a `Publish` of the broker is a delivery.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from brokerd.errors import BrokerdError

VERSION = 1
MIN_LENGTH = 9
MAX_LENGTH = 16 << 20
"""A frame's length field, which excludes itself (section Frames)."""

DELIVERY_BYTES = 12
"""What a delivery's length counts besides the topic's bytes and the message: type, correlation id,
QoS, length of the topic."""


class FrameType(IntEnum):
    """What a frame is."""

    HELLO = 1
    AUTH = 2
    PUBLISH = 3
    SUBSCRIBE = 4
    ACK = 5
    NACK = 6
    PING = 7
    PONG = 8
    POLL = 9


class Code(IntEnum):
    """What a `Nack` complains of (section Codes)."""

    INVALID = 400
    UNAUTHORIZED = 401
    UNKNOWN = 404
    VERSION = 426
    FAILED = 500


HELLO_TWICE = "HELLO already performed"
HELLO_MISSING = "HELLO not performed"
WRONG_VERSION = "unsupported protocol version"
AUTH_TWICE = "already authenticated"
WRONG_KEY = "invalid API key"
UNAUTHENTICATED = "unauthenticated"
EMPTY_TOPIC = "empty topic"
WRONG_QOS = "invalid QoS value"
ZERO_ID = "subscription_id must be non-zero"
UNKNOWN_DELIVERY = "unknown subscription or delivery tag"


class Hello(NamedTuple):
    correlation_id: int
    version: int = VERSION


class Auth(NamedTuple):
    correlation_id: int
    key: str


class Publish(NamedTuple):
    """A message to be published, or one delivered."""

    correlation_id: int
    """Of a delivery of QoS 1: the delivery tag; of QoS 0: that of the POLL."""
    qos: int
    topic: str
    message: bytes


class Subscribe(NamedTuple):
    correlation_id: int
    topic: str
    qos: int


class Ack(NamedTuple):
    """A delivery acknowledged, or a request that succeeded."""

    correlation_id: int
    """From a client: the delivery tag."""
    subscription_id: int = 0


class Nack(NamedTuple):
    correlation_id: int
    code: int
    text: str


class Ping(NamedTuple):
    correlation_id: int


class Pong(NamedTuple):
    correlation_id: int


class Poll(NamedTuple):
    correlation_id: int
    subscription_id: int


Message = Hello | Auth | Publish | Subscribe | Ack | Nack | Ping | Pong | Poll


class InvalidFrame(BrokerdError):
    """A complete frame that does not say what its type should; the text is that of the `Nack`."""


class UnknownFrameType(BrokerdError):
    """A type that this version does not have, or no type at all; the connection must be closed."""
