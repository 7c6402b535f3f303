"""The common part of FlyMQ's Python and Go clients: frames, fields, and results of calls.

Both put version 1 and flags 1 in every request and ignore bytes after the last field of an answer.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

DEFAULT_ADDRESS = "127.0.0.1:9092"
MAGIC, VERSION, FLAG_BINARY, FLAG_GZIP = 0xAF, 1, 1, 2
HEADER_BYTES, PAYLOAD_BYTES_MAX = 8, 33_554_432

PRODUCE, CONSUME, CREATE_TOPIC, METADATA, SUBSCRIBE, COMMIT, FETCH = range(1, 8)
LIST_TOPICS, DELETE_TOPIC, CONSUME_ZERO_COPY, FETCH_BINARY = range(8, 12)
CLUSTER_METADATA, GET_OFFSET, RESET_OFFSET, GET_LAG, ERROR = 0x53, 0x60, 0x61, 0x64, 0xFF
PRODUCE_DELAYED, CANCEL_DELAYED, PRODUCE_WITH_TTL = 0x30, 0x31, 0x35
TXN_BEGIN, TXN_COMMIT, TXN_ROLLBACK, TXN_PRODUCE = range(0x40, 0x44)
AUTH, AUTH_RESPONSE, WHOAMI = 0x70, 0x71, 0x72


class FlymqError(Exception):
    """Base of the errors that a client raises itself."""


class ServerError(FlymqError):
    """The broker sent an ERROR frame."""


class NotLeaderError(ServerError):
    """The broker sent an ERROR frame with ``not leader`` in its text."""


class AuthenticationError(FlymqError):
    """The broker refused a login."""


class ProtocolError(FlymqError):
    """The client cannot read an answer."""


class RecordMetadata(NamedTuple):
    """The place of a record; ``key_size`` is -1 without a key."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key_size: int
    value_size: int


class Login(NamedTuple):
    """The answer to AUTH, as pyflymq and the Go client read it; Go reads WHOAMI so, too."""

    success: bool
    user: str
    roles: list[str]
    error: str


class Record(NamedTuple):
    """A fetched record."""

    offset: int
    key: bytes
    value: bytes


class Lag(NamedTuple):
    """The answer to GET_LAG."""

    current: int
    committed: int
    latest: int
    lag: int


class PartitionInfo(NamedTuple):
    """One partition in CLUSTER_METADATA."""

    partition: int
    leader_id: str
    leader_address: str
    epoch: int
    state: str
    replicas: list[str]
    in_sync: list[str]


class Fields:
    """Reads the fields of an answer in order."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._position = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes unchanged."""
        taken = self._payload[self._position : self._position + count]
        if len(taken) < count:
            raise ProtocolError(f"{count} bytes wanted, {len(taken)} left")
        self._position += count
        return taken

    def number(self, form: str) -> int:
        """Return the next number, in a format of ``struct``."""
        value: int = struct.unpack(f">{form}", self.take(struct.calcsize(form)))[0]
        return value

    def text(self, length: str = "H") -> str:
        """Return a ``str``: u16 length, UTF-8; with length ``B`` a ``str8``."""
        return self.take(self.number(length)).decode("utf-8", "replace")

    def data(self) -> bytes:
        """Return a ``bytes``: u32 length."""
        return self.take(self.number("I"))

    def texts(self) -> list[str]:
        """Return a list of ``str``."""
        return [self.text() for _ in range(self.number("I"))]


def header(opcode: int, length: int, flags: int = FLAG_BINARY) -> bytes:
    """Return the eight bytes before a payload."""
    return struct.pack(">BBBBI", MAGIC, VERSION, opcode, flags, length)


def text(value: str, length: str = "H") -> bytes:
    """Encode a ``str``; with length ``B`` a ``str8``."""
    data = value.encode("utf-8")
    return struct.pack(f">{length}", len(data)) + data


def produce_request(topic: str, value: bytes, key: bytes, partition: int) -> bytes:
    """Return the payload of PRODUCE."""
    key_and_value = struct.pack(">I", len(key)) + key + struct.pack(">I", len(value)) + value
    return text(topic) + key_and_value + struct.pack(">i", partition)


def fetch_request(topic: str, partition: int, offset: int, most: int, pattern: str) -> bytes:
    """Return the payload of FETCH, which always ends with a filter."""
    return text(topic) + struct.pack(">iQi", partition, offset, most) + text(pattern)


def subscribe_request(topic: str, group: str, partition: int, mode: str) -> bytes:
    """Return the payload of SUBSCRIBE, whose mode has one byte of length."""
    return text(topic) + text(group) + struct.pack(">i", partition) + text(mode, "B")


def record_metadata(payload: bytes) -> RecordMetadata:
    """Decode the answer to PRODUCE."""
    fields = Fields(payload)
    return RecordMetadata(fields.text(), *struct.unpack(">iQqii", fields.take(28)))


def login(payload: bytes) -> Login:
    """Decode the answer to AUTH: success, user, roles with lengths of one byte, error."""
    fields = Fields(payload)
    success, user = fields.number("?"), fields.text()
    roles = [fields.text("B") for _ in range(fields.number("I"))]
    return Login(bool(success), user, roles, fields.text())


def key_and_value(payload: bytes) -> tuple[bytes, bytes]:
    """Decode the answer to CONSUME."""
    fields = Fields(payload)
    return fields.data(), fields.data()


def fetched(payload: bytes) -> tuple[list[Record], int]:
    """Decode the answer to FETCH: count, next offset, then offset, key and value of each record."""
    fields = Fields(payload)
    count, next_offset = fields.number("I"), fields.number("Q")
    records = [Record(fields.number("Q"), fields.data(), fields.data()) for _ in range(count)]
    return records, next_offset


def cluster_metadata(payload: bytes) -> dict[str, list[PartitionInfo]]:
    """Decode the answer to CLUSTER_METADATA, without the cluster's id."""
    fields = Fields(payload)
    fields.text()
    return {
        fields.text(): [_partition_info(fields) for _ in range(fields.number("I"))]
        for _ in range(fields.number("I"))
    }


def _partition_info(fields: Fields) -> PartitionInfo:
    return PartitionInfo(
        fields.number("i"),
        fields.text(),
        fields.text(),
        fields.number("Q"),
        fields.text(),
        fields.texts(),
        fields.texts(),
    )
