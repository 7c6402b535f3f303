"""What the SDKs of FlyMQ call besides records, subscriptions and logins, in their layouts.

From the payload facts, sections 5 and 8. pyflymq looks at few answers: where it stops, the calls
here stop too. `GoCalls` and `JavaCalls` have what these two lay out in another way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from tests.reference import flymq
from tests.reference.flymq import Fields, ProtocolError, RecordMetadata, text

Call = Callable[[int, bytes], bytes]
"""Sends an opcode and a payload; the payload of the answer."""


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
    """A ``bytes``."""
    return struct.pack(">I", len(value)) + value


def success_u32(payload: bytes) -> tuple[bool, str]:
    """What pyflymq and Java decode of a replay by offset: any byte but 0, then a ``u32`` length."""
    fields = Fields(payload)
    return fields.number("B") != 0, fields.data().decode()


def schemas(payload: bytes) -> list[Schema]:
    """A list of schemas; what follows is not looked at."""
    fields = Fields(payload)
    return [
        Schema(fields.text(), fields.text("B"), fields.number("I"))
        for _ in range(fields.number("I"))
    ]


def group(fields: Fields) -> Group:
    """One group."""
    names, members = (fields.text(), fields.text()), fields.number("I")
    offsets = {fields.number("i"): fields.number("Q") for _ in range(fields.number("I"))}
    return Group(*names, members, offsets)


class PyCalls:
    """pyflymq's, over the ``call`` of a client."""

    def __init__(self, call: Call) -> None:
        self.call = call

    # -- schemas ------------------------------------------------------------------------------

    def register_schema(self, name: str, kind: str, definition: bytes) -> None:
        """REGISTER_SCHEMA; nobody reads its answer."""
        self.call(0x10, text(name) + text(kind, "B") + data(definition))

    def get_schema(self, name: str, version: int = 0) -> Schema:
        """GET_SCHEMA, read as a list."""
        return schemas(self.call(0x11, text(name) + struct.pack(">I", version)))[0]

    def list_schemas(self, name: str = "") -> list[Schema]:
        """LIST_SCHEMAS."""
        return schemas(self.call(0x12, text(name)))

    def validate_schema(self, name: str, message: bytes) -> bool:
        """VALIDATE_SCHEMA: its first byte."""
        return self.call(0x13, text(name) + data(message))[0] == 1

    def produce_with_schema(self, topic: str, value: bytes, schema: str) -> RecordMetadata:
        """PRODUCE_WITH_SCHEMA, value first."""
        return flymq.record_metadata(self.call(0x14, text(topic) + data(value) + text(schema)))

    def delete_schema(self, name: str, version: int) -> None:
        """DELETE_SCHEMA."""
        self.call(0x15, text(name) + struct.pack(">I", version))

    # -- dead letters -------------------------------------------------------------------------

    def fetch_dlq(self, topic: str, most: int = 10) -> list[Letter]:
        """FETCH_DLQ."""
        fields = Fields(self.call(0x20, text(topic) + struct.pack(">i", most)))
        return [
            Letter(fields.text(), fields.data(), fields.text(), fields.number("i"))
            for _ in range(fields.number("I"))
        ]

    def replay_dlq(self, topic: str, message_id: str) -> None:
        """REPLAY_DLQ by id; nobody reads its answer."""
        self.call(0x21, text(topic) + text(message_id))

    def re_inject_dlq(self, topic: str, offset: int) -> tuple[bool, str]:
        """REPLAY_DLQ by offset."""
        return success_u32(self.call(0x21, text(topic) + struct.pack(">Q", offset)))

    def purge_dlq(self, topic: str) -> None:
        """PURGE_DLQ."""
        self.call(0x22, text(topic))

    # -- later, for a time, all at once -------------------------------------------------------

    def produce_delayed(self, topic: str, value: bytes, delay_ms: int) -> RecordMetadata:
        """PRODUCE_DELAYED; the delay is packed unsigned."""
        answer = self.call(0x30, text(topic) + data(value) + struct.pack(">Q", delay_ms))
        return flymq.record_metadata(answer)

    def produce_with_ttl(self, topic: str, value: bytes, ttl_ms: int) -> RecordMetadata:
        """PRODUCE_WITH_TTL."""
        answer = self.call(0x35, text(topic) + data(value) + struct.pack(">Q", ttl_ms))
        return flymq.record_metadata(answer)

    def transaction(self) -> Transaction:
        """TXN_BEGIN."""
        return Transaction(self, self.begin())

    def begin(self) -> str:
        """The id of a new transaction; nothing behind it is read."""
        return Fields(self.call(0x40, b"")).text()

    # -- the cluster and groups ---------------------------------------------------------------

    def cluster_join(self, peer: str) -> None:
        """CLUSTER_JOIN."""
        self.call(0x50, text(peer))

    def cluster_leave(self) -> None:
        """CLUSTER_LEAVE."""
        self.call(0x51, b"")

    def list_groups(self) -> list[Group]:
        """LIST_GROUPS."""
        fields = Fields(self.call(0x62, b""))
        return [group(fields) for _ in range(fields.number("I"))]

    def describe_group(self, topic: str, name: str) -> Group:
        """DESCRIBE_GROUP."""
        return group(Fields(self.call(0x63, text(topic) + text(name))))

    def delete_group(self, topic: str, name: str) -> None:
        """DELETE_GROUP."""
        self.call(0x65, text(topic) + text(name))


class Transaction:
    """pyflymq's context manager: commits, or rolls back when anything is raised."""

    def __init__(self, calls: PyCalls, transaction: str) -> None:
        self._calls = calls
        self.transaction = transaction

    def produce(self, topic: str, value: bytes) -> RecordMetadata:
        """TXN_PRODUCE."""
        request = text(self.transaction) + text(topic) + data(value)
        return flymq.record_metadata(self._calls.call(0x43, request))

    def commit(self) -> None:
        """TXN_COMMIT."""
        Fields(self._calls.call(0x41, text(self.transaction))).text()

    def rollback(self) -> None:
        """TXN_ROLLBACK."""
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
    """The Go client's."""

    def produce_with_schema(self, topic: str, value: bytes, schema: str) -> RecordMetadata:
        """Schema first."""
        return flymq.record_metadata(self.call(0x14, text(topic) + text(schema) + data(value)))

    def validate(self, name: str, message: bytes) -> tuple[bool, list[str]]:
        """VALIDATE_SCHEMA with its errors, of which there must be a list."""
        fields = Fields(self.call(0x13, text(name) + data(message)))
        return bool(fields.number("?")), fields.texts()

    def delete_schemas(self, name: str) -> None:
        """DELETE_SCHEMA of version 0: all."""
        self.delete_schema(name, 0)

    def begin(self) -> str:
        """The id, and a byte that must be there."""
        fields = Fields(self.call(0x40, b""))
        name = fields.text()
        if fields.number("B") != 1:
            raise ProtocolError("no transaction")
        return name

    def describe(self, name: str) -> Group:
        """DESCRIBE_GROUP, always with an empty topic."""
        return self.describe_group("", name)

    def delete(self, name: str) -> None:
        """DELETE_GROUP, always with an empty topic."""
        self.delete_group("", name)


class JavaCalls(PyCalls):
    """The Java SDK's."""

    def describe(self, name: str) -> JavaGroup:
        """DESCRIBE_GROUP of a group alone."""
        fields = Fields(self.call(0x63, text(name)))
        return JavaGroup(
            fields.text(), fields.text(), fields.texts(), fields.texts(), fields.text()
        )

    def delete(self, name: str) -> None:
        """DELETE_GROUP of a group alone."""
        self.call(0x65, text(name))

    def reset_offset(self, topic: str, name: str, mode: str) -> None:
        """RESET_OFFSET, always with an offset behind it."""
        where = text(topic) + text(name) + struct.pack(">i", 0)
        self.call(0x61, where + text(mode, "B") + bytes(8))

    def metadata(self, topic: str) -> tuple[str, int]:
        """METADATA: the name, and how many partitions there are."""
        fields = Fields(self.call(0x04, text(topic)))
        return fields.text(), fields.number("i")
