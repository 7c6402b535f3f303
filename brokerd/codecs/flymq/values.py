# Tests: tests/codecs/test_flymq_requests.py
"""The FlyMQ format's values and errors, free of bytes. Layouts: docs/protocols/flymq.rst.

Offsets are unsigned 64-bit numbers. An empty key is None.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from brokerd.codecs.flymq.account_values import AccountAnswer, AccountRequest
from brokerd.codecs.flymq.audit_values import AuditAnswer, AuditRequest
from brokerd.codecs.flymq.cluster_values import ClusterAnswer, ClusterRequest
from brokerd.codecs.flymq.dead_letter_values import DeadLetterAnswer, DeadLetterRequest
from brokerd.codecs.flymq.group_values import GroupAnswer, GroupRequest
from brokerd.codecs.flymq.schema_values import SchemaAnswer, SchemaRequest
from brokerd.codecs.flymq.timed_values import TimedRequest
from brokerd.codecs.flymq.transaction_values import TransactionAnswer, TransactionRequest
from brokerd.errors import BrokerdError

MAGIC: Final = 0xAF
VERSION: Final = 1
MAX_LENGTH: Final = 33_554_432
"""Largest payload, in bytes, inclusive (document, section Constants)."""
FLAG_BINARY: Final = 0x01
COMPRESSION_MASK: Final = 0x0E
GZIP: Final = 0x02
"""The only supported compression (page, Compression)."""
MAX_OFFSET: Final = (1 << 63) - 1
"""Largest offset of a commit."""


class Opcode(IntEnum):
    """The opcodes that brokerd supports."""

    PRODUCE = 0x01
    CONSUME = 0x02
    CREATE_TOPIC = 0x03
    METADATA = 0x04
    SUBSCRIBE = 0x05
    COMMIT = 0x06
    FETCH = 0x07
    LIST_TOPICS = 0x08
    DELETE_TOPIC = 0x09
    CONSUME_ZERO_COPY = 0x0A
    FETCH_BINARY = 0x0B
    REGISTER_SCHEMA = 0x10
    GET_SCHEMA = 0x11
    LIST_SCHEMAS = 0x12
    VALIDATE_SCHEMA = 0x13
    PRODUCE_WITH_SCHEMA = 0x14
    DELETE_SCHEMA = 0x15
    FETCH_DLQ = 0x20
    REPLAY_DLQ = 0x21
    PURGE_DLQ = 0x22
    PRODUCE_DELAYED = 0x30
    CANCEL_DELAYED = 0x31
    PRODUCE_WITH_TTL = 0x35
    TXN_BEGIN = 0x40
    TXN_COMMIT = 0x41
    TXN_ROLLBACK = 0x42
    TXN_PRODUCE = 0x43
    CLUSTER_JOIN = 0x50
    CLUSTER_LEAVE = 0x51
    CLUSTER_STATUS = 0x52
    CLUSTER_METADATA = 0x53
    GET_OFFSET = 0x60
    RESET_OFFSET = 0x61
    LIST_GROUPS = 0x62
    DESCRIBE_GROUP = 0x63
    GET_LAG = 0x64
    DELETE_GROUP = 0x65
    SEEK_TO_TIMESTAMP = 0x66
    AUTH = 0x70
    AUTH_RESPONSE = 0x71
    """Answers AUTH; not a request."""
    WHOAMI = 0x72
    USER_CREATE = 0x73
    USER_DELETE = 0x74
    USER_UPDATE = 0x75
    USER_LIST = 0x76
    USER_GET = 0x77
    ACL_SET = 0x78
    ACL_GET = 0x79
    ACL_DELETE = 0x7A
    ACL_LIST = 0x7B
    PASSWORD_CHANGE = 0x7C
    ROLE_LIST = 0x7D
    AUDIT_QUERY = 0x80
    AUDIT_EXPORT = 0x81
    AUDIT_QUERY_JAVA = 0xA0
    AUDIT_EXPORT_JAVA = 0xA1
    ERROR = 0xFF


class FrameError(BrokerdError):
    """The rest of the byte stream is unreadable: close the connection.

    ``answer`` is True if an ERROR frame with this text is sent before (page, Bad input).
    """

    def __init__(self, text: str, answer: bool) -> None:
        super().__init__(text)
        self.answer = answer


class FieldError(BrokerdError):
    """A field of a payload is missing or wrong; the text names the field."""


class RequestError(BrokerdError):
    """A request is malformed: answer ERROR with this text and stay open."""


class UnknownOpcode(RequestError):
    """An unknown opcode: answer ERROR with this text and stay open."""


class AnswerError(BrokerdError):
    """A malformed answer: close the connection."""


class Produce(NamedTuple):
    topic: str
    key: bytes | None
    value: bytes
    partition: int = -1
    """Negative: the broker chooses."""


class Consume(NamedTuple):
    topic: str
    partition: int
    offset: int
    opcode: Opcode = Opcode.CONSUME
    """CONSUME or CONSUME_ZERO_COPY; the answer has the same opcode."""


class CreateTopic(NamedTuple):
    topic: str
    partitions: int


class Metadata(NamedTuple):
    topic: str


class Subscribe(NamedTuple):
    topic: str
    group: str
    partition: int
    mode: str
    sdk: bool = False
    """Whether the mode came as the SDKs send it."""


class Commit(NamedTuple):
    topic: str
    group: str
    partition: int
    offset: int


class Fetch(NamedTuple):
    topic: str
    partition: int
    offset: int
    max_messages: int
    filter: str = ""
    sdk: bool = False
    """Whether the request had a filter field, even if empty, as the SDKs send it."""
    opcode: Opcode = Opcode.FETCH
    """FETCH or FETCH_BINARY; the answer has the same opcode."""

    @property
    def answer_is_sdk(self) -> bool:
        """Return whether the answer has the SDKs' layout (page, FETCH)."""
        return self.sdk or self.opcode == Opcode.FETCH_BINARY


class ListTopics(NamedTuple):
    pass


class DeleteTopic(NamedTuple):
    topic: str


class ClusterMetadata(NamedTuple):
    topic: str = ""
    """Empty: all topics."""


class GetOffset(NamedTuple):
    topic: str
    group: str
    partition: int


class ResetOffset(NamedTuple):
    topic: str
    group: str
    partition: int
    mode: str
    offset: int | None = None
    """With mode ``offset``, else None."""
    sdk: bool = False
    """Whether the mode came as the SDKs send it."""


class GetLag(NamedTuple):
    topic: str
    group: str
    partition: int


Request = (
    Produce
    | Consume
    | CreateTopic
    | Metadata
    | Subscribe
    | Commit
    | Fetch
    | ListTopics
    | DeleteTopic
    | ClusterMetadata
    | GetOffset
    | ResetOffset
    | GetLag
    | GroupRequest
    | DeadLetterRequest
    | ClusterRequest
    | AccountRequest
    | AuditRequest
    | SchemaRequest
    | TimedRequest
    | TransactionRequest
)


class Produced(NamedTuple):
    """Topic, partition, offset and time of a stored record (RecordMetadata)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key_size: int
    """-1: the record has no key."""
    value_size: int


class Consumed(NamedTuple):
    key: bytes | None
    value: bytes


class FetchedRecord(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes


class Fetched(NamedTuple):
    records: tuple[FetchedRecord, ...]
    next_offset: int


class Done(NamedTuple):
    """The operation was carried out."""


class Position(NamedTuple):
    """The answer to SUBSCRIBE, GET_OFFSET and SEEK_TO_TIMESTAMP."""

    offset: int


class Topics(NamedTuple):
    names: tuple[str, ...]


class PartitionOffsets(NamedTuple):
    """One partition in the answer to METADATA."""

    partition: int
    leader: int
    oldest: int
    newest: int
    """The offset of the next record."""


class TopicOffsets(NamedTuple):
    """The answer to METADATA."""

    topic: str
    partitions: tuple[PartitionOffsets, ...]


class PartitionPlace(NamedTuple):
    """One partition in the answer to CLUSTER_METADATA."""

    partition: int
    leader_id: str
    leader_address: str
    epoch: int
    state: str
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]


class TopicPlaces(NamedTuple):
    topic: str
    partitions: tuple[PartitionPlace, ...]


class Cluster(NamedTuple):
    """The answer to CLUSTER_METADATA."""

    cluster_id: str
    topics: tuple[TopicPlaces, ...]


class Lag(NamedTuple):
    current: int
    committed: int
    latest: int
    lag: int


class Failed(NamedTuple):
    """The broker refused the request and applied no part of it."""

    text: str


Answer = (
    Produced
    | Consumed
    | Fetched
    | Done
    | Position
    | Topics
    | TopicOffsets
    | Cluster
    | Lag
    | GroupAnswer
    | DeadLetterAnswer
    | ClusterAnswer
    | AccountAnswer
    | AuditAnswer
    | SchemaAnswer
    | TransactionAnswer
    | Failed
)
