"""Further calls of FlyMQ's SDKs, in their layouts: all but records, subscriptions and logins.

pyflymq reads few answers; the calls here read the same
parts. `GoCalls` and `JavaCalls` have the calls whose layout differs in these clients.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from tests.reference import flymq
from tests.reference.flymq import Fields, ProtocolError, RecordMetadata, text

Call = Callable[[int, bytes], bytes]
"""Sends an opcode and a payload; returns the payload of the answer."""


class Schema(NamedTuple):
    """One entry of a list of schemas."""

    name: str
    kind: str
    version: int


class Letter(NamedTuple):
    """A dead letter."""

    message_id: str
    payload: bytes
    error: str
    retries: int


class Group(NamedTuple):
    """A group as pyflymq and Go read it."""

    topic: str
    group: str
    members: int
    offsets: dict[int, int]


class JavaGroup(NamedTuple):
    """A group as Java reads it."""

    group: str
    state: str
    members: list[str]
    topics: list[str]
    coordinator: str


def data(value: bytes) -> bytes:
    """Encode a ``bytes``."""
    return struct.pack(">I", len(value)) + value


def success_u32(payload: bytes) -> tuple[bool, str]:
    """Decode the answer to a replay by offset as pyflymq and Java do.

    Any byte but 0 is success; a ``str`` with a ``u32`` length follows.
    """
    fields = Fields(payload)
    return fields.number("B") != 0, fields.data().decode()


def schemas(payload: bytes) -> list[Schema]:
    """Decode a list of schemas and ignore the following bytes."""
    fields = Fields(payload)
    return [
        Schema(fields.text(), fields.text("B"), fields.number("I"))
        for _ in range(fields.number("I"))
    ]


def group(fields: Fields) -> Group:
    """Decode one group."""
    names, members = (fields.text(), fields.text()), fields.number("I")
    offsets = {fields.number("i"): fields.number("Q") for _ in range(fields.number("I"))}
    return Group(*names, members, offsets)


class PyCalls:
    """The calls of pyflymq, over the ``call`` of a client."""

    def __init__(self, call: Call) -> None:
        self.call = call

    # -- schemas ------------------------------------------------------------------------------

    def register_schema(self, name: str, kind: str, definition: bytes) -> None:
        """Send REGISTER_SCHEMA and ignore the answer."""
        self.call(0x10, text(name) + text(kind, "B") + data(definition))

    def get_schema(self, name: str, version: int = 0) -> Schema:
        """Send GET_SCHEMA and read the answer as a list."""
        return schemas(self.call(0x11, text(name) + struct.pack(">I", version)))[0]

    def list_schemas(self, name: str = "") -> list[Schema]:
        """Send LIST_SCHEMAS."""
        return schemas(self.call(0x12, text(name)))

    def validate_schema(self, name: str, message: bytes) -> bool:
        """Send VALIDATE_SCHEMA and read the first byte of the answer."""
        return self.call(0x13, text(name) + data(message))[0] == 1

    def produce_with_schema(self, topic: str, value: bytes, schema: str) -> RecordMetadata:
        """Send PRODUCE_WITH_SCHEMA, value first."""
        return flymq.record_metadata(self.call(0x14, text(topic) + data(value) + text(schema)))

    def delete_schema(self, name: str, version: int) -> None:
        """Send DELETE_SCHEMA."""
        self.call(0x15, text(name) + struct.pack(">I", version))

    # -- dead letters -------------------------------------------------------------------------

    def fetch_dlq(self, topic: str, most: int = 10) -> list[Letter]:
        """Send FETCH_DLQ."""
        fields = Fields(self.call(0x20, text(topic) + struct.pack(">i", most)))
        return [
            Letter(fields.text(), fields.data(), fields.text(), fields.number("i"))
            for _ in range(fields.number("I"))
        ]

    def replay_dlq(self, topic: str, message_id: str) -> None:
        """Send REPLAY_DLQ by id and ignore the answer."""
        self.call(0x21, text(topic) + text(message_id))

    def re_inject_dlq(self, topic: str, offset: int) -> tuple[bool, str]:
        """Send REPLAY_DLQ by offset."""
        return success_u32(self.call(0x21, text(topic) + struct.pack(">Q", offset)))

    def purge_dlq(self, topic: str) -> None:
        """Send PURGE_DLQ."""
        self.call(0x22, text(topic))

    # -- delays, expiry, transactions -------------------------------------------------------------

    def produce_delayed(self, topic: str, value: bytes, delay_ms: int) -> RecordMetadata:
        """Send PRODUCE_DELAYED; the delay is unsigned."""
        answer = self.call(0x30, text(topic) + data(value) + struct.pack(">Q", delay_ms))
        return flymq.record_metadata(answer)

    def produce_with_ttl(self, topic: str, value: bytes, ttl_ms: int) -> RecordMetadata:
        """Send PRODUCE_WITH_TTL."""
        answer = self.call(0x35, text(topic) + data(value) + struct.pack(">Q", ttl_ms))
        return flymq.record_metadata(answer)

    def transaction(self) -> Transaction:
        """Send TXN_BEGIN and return the transaction."""
        return Transaction(self, self.begin())

    def begin(self) -> str:
        """Return the id of a new transaction; ignore the following bytes."""
        return Fields(self.call(0x40, b"")).text()

    # -- the cluster and groups ---------------------------------------------------------------

    def cluster_join(self, peer: str) -> None:
        """Send CLUSTER_JOIN."""
        self.call(0x50, text(peer))

    def cluster_leave(self) -> None:
        """Send CLUSTER_LEAVE."""
        self.call(0x51, b"")

    def list_groups(self) -> list[Group]:
        """Send LIST_GROUPS."""
        fields = Fields(self.call(0x62, b""))
        return [group(fields) for _ in range(fields.number("I"))]

    def describe_group(self, topic: str, name: str) -> Group:
        """Send DESCRIBE_GROUP."""
        return group(Fields(self.call(0x63, text(topic) + text(name))))

    def delete_group(self, topic: str, name: str) -> None:
        """Send DELETE_GROUP."""
        self.call(0x65, text(topic) + text(name))


class Transaction:
    """The context manager of pyflymq: commits, or rolls back after an exception."""

    def __init__(self, calls: PyCalls, transaction: str) -> None:
        self._calls = calls
        self.transaction = transaction

    def produce(self, topic: str, value: bytes) -> RecordMetadata:
        """Send TXN_PRODUCE."""
        request = text(self.transaction) + text(topic) + data(value)
        return flymq.record_metadata(self._calls.call(0x43, request))

    def commit(self) -> None:
        """Send TXN_COMMIT."""
        Fields(self._calls.call(0x41, text(self.transaction))).text()

    def rollback(self) -> None:
        """Send TXN_ROLLBACK."""
        Fields(self._calls.call(0x42, text(self.transaction))).text()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.rollback()
            return
        try:
            self.commit()
        except Exception:
            self.rollback()
            raise


class GoCalls(PyCalls):
    """The calls of the Go client."""

    def produce_with_schema(self, topic: str, value: bytes, schema: str) -> RecordMetadata:
        """Send PRODUCE_WITH_SCHEMA, schema first."""
        return flymq.record_metadata(self.call(0x14, text(topic) + text(schema) + data(value)))

    def validate(self, name: str, message: bytes) -> tuple[bool, list[str]]:
        """Send VALIDATE_SCHEMA and read the result and the required list of errors."""
        fields = Fields(self.call(0x13, text(name) + data(message)))
        return bool(fields.number("?")), fields.texts()

    def delete_schemas(self, name: str) -> None:
        """Send DELETE_SCHEMA of version 0, which means all versions."""
        self.delete_schema(name, 0)

    def begin(self) -> str:
        """Send TXN_BEGIN; read the id and a required byte."""
        fields = Fields(self.call(0x40, b""))
        name = fields.text()
        if fields.number("B") != 1:
            raise ProtocolError("no transaction")
        return name

    def describe(self, name: str) -> Group:
        """Send DESCRIBE_GROUP, always with an empty topic."""
        return self.describe_group("", name)

    def delete(self, name: str) -> None:
        """Send DELETE_GROUP, always with an empty topic."""
        self.delete_group("", name)


class JavaCalls(PyCalls):
    """The calls of the Java SDK."""

    def describe(self, name: str) -> JavaGroup:
        """Send DESCRIBE_GROUP with a group alone."""
        fields = Fields(self.call(0x63, text(name)))
        return JavaGroup(
            fields.text(), fields.text(), fields.texts(), fields.texts(), fields.text()
        )

    def delete(self, name: str) -> None:
        """Send DELETE_GROUP with a group alone."""
        self.call(0x65, text(name))

    def reset_offset(self, topic: str, name: str, mode: str) -> None:
        """Send RESET_OFFSET, always with an offset at the end."""
        where = text(topic) + text(name) + struct.pack(">i", 0)
        self.call(0x61, where + text(mode, "B") + bytes(8))

    def metadata(self, topic: str) -> tuple[str, int]:
        """Send METADATA; return the name and the number of partitions."""
        fields = Fields(self.call(0x04, text(topic)))
        return fields.text(), fields.number("i")
