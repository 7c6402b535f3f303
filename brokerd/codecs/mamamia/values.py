# Tests: tests/codecs/test_mamamia_requests.py
"""The Mamamia format's values and errors, free of bytes. Layouts: docs/protocols/mamamia.rst.

Durations, waits and delays are seconds, as on the wire, finite and within plus or minus
``SECONDS_MAX``, so that microseconds fit 64 bits.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from brokerd.errors import BrokerdError
from brokerd.values import Encoding

MAX_LENGTH: Final = 10_485_760
"""Largest value of a frame's length field, which counts version, command and body."""
DEFAULT_DURATION: Final = 30.0
"""Lease seconds when a request has no duration (page, Leases)."""
SECONDS_MAX: Final = 3_155_760_000.0
"""100 years. Longer times are cut to this."""
MAX_BATCH: Final = 10_000
"""Largest number of messages or settles of one batch command."""
MAX_REASON_BYTES: Final = 255
"""Longest reason of a failed settle, UTF-8."""
MAX_PARTITION: Final = 32_766
MAX_MESSAGE_ID: Final = (1 << 63) - 1


class Command(IntEnum):
    """The command byte. From 0x80 up: brokerd's extensions."""

    PRODUCE = 0x01
    ACQUIRE_NEXT = 0x02
    SETTLE = 0x03
    EXTEND = 0x81
    PRODUCE_BATCH = 0x82
    ACQUIRE_BATCH = 0x83
    SETTLE_BATCH = 0x84
    GROUP_INFO = 0x85
    RELEASE = 0x86
    CANCEL = 0x87


class BodyError(BrokerdError):
    """A frame's body is not one MessagePack object: close the connection (page, Bad input)."""


class RequestError(BrokerdError):
    """A body with wrong values: answer ``{"error": text}`` and stay open."""


class Produce(NamedTuple):
    log_id: str
    value: bytes
    """Raw bytes (BYTES), UTF-8 (TEXT), or the MessagePack object as it was sent (MSGPACK)."""
    encoding: int = Encoding.BYTES
    metadata: bytes | None = None
    """A MessagePack map as it was sent."""
    key: bytes | None = None
    partition: int | None = None
    ttl: float | None = None
    """Seconds until the message expires, 0 for never; None leaves it to the log."""
    delay: float | None = None
    """Seconds until the message appears; None and 0 mean now."""


class Acquire(NamedTuple):
    log_id: str
    group_id: str
    client_id: str
    duration: float | None = DEFAULT_DURATION
    """Seconds; None leaves it to the group."""
    wait: float = 0.0


class Settle(NamedTuple):
    log_id: str
    group_id: str
    message_id: int
    client_id: str
    success: bool
    delay: float | None = None
    """Seconds until a failed message may be leased again; None leaves it to the group."""
    reason: str = ""
    """Reason of the failure."""
    dead: bool = False
    """Whether a failure makes it a dead letter at once."""


class Extend(NamedTuple):
    log_id: str
    group_id: str
    client_id: str
    message_id: int
    duration: float | None = DEFAULT_DURATION


class BatchMessage(NamedTuple):
    """One message of a PRODUCE_BATCH; fields as in `Produce`."""

    value: bytes
    encoding: int = Encoding.BYTES
    metadata: bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    ttl: float | None = None
    delay: float | None = None


class ProduceBatch(NamedTuple):
    log_id: str
    messages: tuple[BatchMessage, ...]
    producer_id: str | None = None
    sequence: int | None = None
    """Given together with ``producer_id``, or neither."""


class AcquireBatch(NamedTuple):
    log_id: str
    group_id: str
    client_id: str
    max_messages: int
    duration: float | None = DEFAULT_DURATION
    wait: float = 0.0


class BatchSettle(NamedTuple):
    """One settle of a SETTLE_BATCH."""

    message_id: int
    success: bool
    token: int | None = None
    """Token of the grant to settle; None settles as SETTLE by this client_id does."""
    delay: float | None = None
    reason: str = ""
    dead: bool = False


class SettleBatch(NamedTuple):
    log_id: str
    group_id: str
    client_id: str
    settles: tuple[BatchSettle, ...]


class GroupInfo(NamedTuple):
    log_id: str
    group_id: str


class Release(NamedTuple):
    log_id: str
    group_id: str
    client_id: str
    message_ids: tuple[int, ...] | None = None
    """None: all leases of the client."""


class Cancel(NamedTuple):
    log_id: str
    schedule_id: int


Request = (
    Produce
    | Acquire
    | Settle
    | Extend
    | ProduceBatch
    | AcquireBatch
    | SettleBatch
    | GroupInfo
    | Release
    | Cancel
)


class Message(NamedTuple):
    """A leased message on the client; payload and metadata are Python objects."""

    id: int
    log_id: str
    payload: Any
    metadata: dict[str | bytes, Any] | None


class Produced(NamedTuple):
    message_id: int


class Scheduled(NamedTuple):
    """The answer to a PRODUCE with a delay."""

    schedule_id: int


class Acquired(NamedTuple):
    message: Message | None


class Settled(NamedTuple):
    pass


class Failed(NamedTuple):
    """The broker refused the request and applied no part of it."""

    text: str


class Extended(NamedTuple):
    remaining: float
    """Seconds left of the lease."""


class ProducedBatch(NamedTuple):
    message_ids: tuple[int | None, ...]
    schedule_ids: tuple[int | None, ...] | None = None
    """Ids of the delayed messages, which have no message id; None without delayed messages."""


class LeasedMessage(NamedTuple):
    """One message of an ACQUIRE_BATCH; the last four are None in a bare item (page, batch)."""

    id: int
    payload: Any
    metadata: dict[str | bytes, Any] | None
    key: bytes | None
    token: int | None
    grants: int | None
    remaining: float | None


class AcquiredBatch(NamedTuple):
    messages: tuple[LeasedMessage, ...]


class SettledBatch(NamedTuple):
    results: tuple[str, ...]
    """``settled`` or an error text, in the order of the settles."""


class GroupState(NamedTuple):
    """The answer to GROUP_INFO; key by key as on the wire."""

    floor: int
    next: int
    lag: int
    leased: int
    ready: int
    delayed: int
    dead: int
    committed: int | None
    oldest_age: float | None
    """Seconds since the oldest unsettled record was appended; None when there is none."""
    max_attempts: int
    partitions: int


class Released(NamedTuple):
    released: int
    """Leases that ended."""


class Cancelled(NamedTuple):
    cancelled: bool


Answer = (
    Produced
    | Scheduled
    | Acquired
    | Settled
    | Failed
    | Extended
    | ProducedBatch
    | AcquiredBatch
    | SettledBatch
    | GroupState
    | Released
    | Cancelled
)
