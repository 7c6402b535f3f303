# Tests: tests/codecs/test_mega_requests.py
"""The MEGA format's values and limits, free of bytes. Layouts: docs/protocols/mega.rst.

Timestamps come from clients: any signed 64-bit integer, by custom milliseconds.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple

from brokerd.errors import BrokerdError

MAX_PAYLOAD_BYTES: Final = 1_048_576
"""Largest payload (page, Sizes and durability)."""
MAX_SKIPPED_BYTES: Final = 64 << 20
"""Largest payload that is skipped, so that the connection stays open."""
MAX_TOPIC_BYTES: Final = 65_535
"""Largest topic of a request (page, Sizes and durability); a new topic has at most 255 bytes."""
MAX_OFFSET: Final = (1 << 31) - 1


class Type(IntEnum):
    """The type byte of a request."""

    PRODUCE = 1
    CONSUME = 2
    CREATE_TOPIC = 3


class Code(IntEnum):
    """The code of an error answer."""

    INVALID_REQUEST = 1
    INVALID_MESSAGE_TYPE = 2
    MESSAGE_TOO_LARGE = 3
    TOPIC_NOT_FOUND = 4
    TOPIC_ALREADY_EXISTS = 5
    INVALID_OFFSET = 6
    INTERNAL_ERROR = 7
    NETWORK_ERROR = 8
    RESOURCE_EXHAUSTED = 9


class Dialect(Enum):
    """The dialect of a client's requests; servers accept both."""

    DOCUMENT = "seed"
    """The document's."""
    SEED = DOCUMENT
    """The same under its first name."""
    REFERENCE = "reference"
    """The reference server's: CREATE_TOPIC and CONSUME end with an empty payload's length."""


class StreamError(BrokerdError):
    """The rest of the byte stream is unreadable."""


class Produce(NamedTuple):
    correlation_id: int
    topic: str
    """Bytes other than UTF-8 are escaped as lone surrogates, which topic names cannot have."""
    timestamp: int
    payload: bytes


class Consume(NamedTuple):
    correlation_id: int
    topic: str
    timestamp: int
    offset: int


class CreateTopic(NamedTuple):
    correlation_id: int
    topic: str
    timestamp: int


class Refused(NamedTuple):
    """An error answer; among requests, a request that must be answered with this error."""

    correlation_id: int
    code: int


class Created(NamedTuple):
    correlation_id: int
    timestamp: int
    topic: str


class Produced(NamedTuple):
    correlation_id: int
    timestamp: int
    offset: int


class Consumed(NamedTuple):
    correlation_id: int
    timestamp: int
    """The timestamp of the record."""
    next_offset: int
    payload: bytes


Request = Produce | Consume | CreateTopic
Answer = Created | Produced | Consumed | Refused
