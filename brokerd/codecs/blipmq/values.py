# Tests: tests/codecs/test_blipmq.py
"""Messages of the BlipMQ format, as values (page: docs/protocols/blipmq.rst).

A correlation id, a subscription id and a delivery tag are unsigned 64-bit integers. Some types have
another meaning in each direction: an `Ack` of the broker means that a request succeeded, a
`Publish` of the broker is a delivery.
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
"""Size of a delivery without the topic and the message: type, correlation id, QoS, length of the
topic."""


class FrameType(IntEnum):
    """The type of a frame."""

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
    """The code of a `Nack` (section Codes)."""

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
    """A published or delivered message."""

    correlation_id: int
    """In a delivery of QoS 1 the delivery tag, of QoS 0 the correlation id of the POLL."""
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
    """A complete frame with a wrong payload. The text is that of the `Nack`."""


class UnknownFrameType(BrokerdError):
    """An unknown or missing type. The connection must be closed."""
