# Tests: tests/codecs/test_flymq_answers.py
"""The client's side: encodes requests and decodes answers strictly.

In an answer, a count or length past the end of the payload is an error, and so are trailing bytes.
An ERROR is decoded in every known layout (page, section Refusals).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from brokerd.codecs.flymq import (
    account_peer,
    audits,
    cluster,
    dead_letters,
    groups,
    schema_payloads,
    timed,
    transactions,
)
from brokerd.codecs.flymq.answers import RECORD_BYTES, SPACES
from brokerd.codecs.flymq.audit_values import ExportAudit, QueryAudit
from brokerd.codecs.flymq.compression import compressed
from brokerd.codecs.flymq.fields import Fields, pack_text, pack_text8
from brokerd.codecs.flymq.frames import frame
from brokerd.codecs.flymq.values import (
    FLAG_BINARY,
    GZIP,
    Answer,
    AnswerError,
    Cluster,
    ClusterMetadata,
    Commit,
    Consume,
    Consumed,
    CreateTopic,
    DeleteTopic,
    Done,
    Failed,
    Fetch,
    Fetched,
    FetchedRecord,
    FieldError,
    GetLag,
    GetOffset,
    Lag,
    ListTopics,
    Metadata,
    Opcode,
    PartitionOffsets,
    PartitionPlace,
    Position,
    Produce,
    Produced,
    Request,
    ResetOffset,
    Subscribe,
    TopicOffsets,
    TopicPlaces,
    Topics,
)

_PARTITION_OFFSETS_BYTES = 24
_TOPIC_PLACES_BYTES = 6
_PARTITION_PLACE_BYTES = 26

_U32 = Struct(">I")
_I32 = Struct(">i")
_U64 = Struct(">Q")
_PARTITION_OFFSET = Struct(">iQ")
_PARTITION_OFFSET_MAX = Struct(">iQi")


def opcode_of(request: Request) -> Opcode:
    """Return the opcode of a request."""
    if isinstance(request, Consume | Fetch):
        return request.opcode
    if isinstance(request, QueryAudit | ExportAudit):
        return audits.opcode_of(request)
    return _OPCODES[type(request)]


def encode_request(request: Request, gzip: bool = False) -> bytes:
    """Return the complete frame of a request; with `gzip` its payload is compressed.

    :raises ValueError: a text is too long, or UTF-8 cannot encode it.
    :raises struct.error: a number is out of range.
    """
    payload = _PAYLOADS[type(request)](request)
    if gzip:
        return frame(opcode_of(request), compressed(payload), FLAG_BINARY | GZIP)
    return frame(opcode_of(request), payload)


def _produce_payload(request: Produce) -> bytes:
    key = request.key or b""
    return b"".join(
        (
            pack_text(request.topic),
            _U32.pack(len(key)),
            key,
            _U32.pack(len(request.value)),
            request.value,
            _I32.pack(request.partition),
        )
    )


def _fetch_payload(request: Fetch) -> bytes:
    numbers = _PARTITION_OFFSET_MAX.pack(request.partition, request.offset, request.max_messages)
    return pack_text(request.topic) + numbers + (pack_text(request.filter) if request.sdk else b"")


def _of_group(request: Subscribe | Commit | GetOffset | ResetOffset | GetLag) -> bytes:
    return pack_text(request.topic) + pack_text(request.group) + _I32.pack(request.partition)


def _mode(request: Subscribe | ResetOffset) -> bytes:
    return pack_text8(request.mode) if request.sdk else pack_text(request.mode)


def _reset_offset_payload(request: ResetOffset) -> bytes:
    offset = b"" if request.offset is None else _U64.pack(request.offset)
    return _of_group(request) + _mode(request) + offset


_OPCODES: dict[type[Request], Opcode] = {
    Produce: Opcode.PRODUCE,
    CreateTopic: Opcode.CREATE_TOPIC,
    Metadata: Opcode.METADATA,
    Subscribe: Opcode.SUBSCRIBE,
    Commit: Opcode.COMMIT,
    ListTopics: Opcode.LIST_TOPICS,
    DeleteTopic: Opcode.DELETE_TOPIC,
    ClusterMetadata: Opcode.CLUSTER_METADATA,
    GetOffset: Opcode.GET_OFFSET,
    ResetOffset: Opcode.RESET_OFFSET,
    GetLag: Opcode.GET_LAG,
    **groups.OPCODES,
    **dead_letters.OPCODES,
    **cluster.OPCODES,
    **account_peer.OPCODES,
    **schema_payloads.OPCODES,
    **timed.OPCODES,
    **transactions.OPCODES,
}

_PAYLOADS: dict[type[Request], Callable[[Any], bytes]] = {
    Produce: _produce_payload,
    Consume: lambda one: pack_text(one.topic) + _PARTITION_OFFSET.pack(one.partition, one.offset),
    CreateTopic: lambda one: pack_text(one.topic) + _I32.pack(one.partitions),
    Metadata: lambda one: pack_text(one.topic),
    Subscribe: lambda one: _of_group(one) + _mode(one),
    Commit: lambda one: _of_group(one) + _U64.pack(one.offset),
    Fetch: _fetch_payload,
    ListTopics: lambda one: b"",
    DeleteTopic: lambda one: pack_text(one.topic),
    ClusterMetadata: lambda one: pack_text(one.topic),
    GetOffset: _of_group,
    ResetOffset: _reset_offset_payload,
    GetLag: _of_group,
    **groups.PAYLOADS,
    **dead_letters.PAYLOADS,
    **cluster.PAYLOADS,
    **account_peer.PAYLOADS,
    **schema_payloads.PAYLOADS,
    **timed.PAYLOADS,
    **transactions.PAYLOADS,
    QueryAudit: audits.query_payload,
    ExportAudit: audits.export_payload,
}


def decode_answer(request: Request, opcode: int, payload: bytes) -> Answer:
    """Return the answer to `request`; `Failed` holds the broker's text.

    :raises AnswerError: it is not an answer to `request`: close the connection.
    """
    if opcode == Opcode.ERROR:
        return Failed(error_text(payload))
    asked = opcode_of(request)
    if opcode != (Opcode.AUTH_RESPONSE if asked == Opcode.AUTH else asked):
        raise AnswerError(f"opcode {opcode} was answered where {int(asked)} was asked")
    fields = Fields(payload)
    try:
        by_request = _ANSWERS_TO.get(type(request))
        answer = _ANSWERS[asked](fields) if by_request is None else by_request(request, fields)
    except FieldError as error:
        raise AnswerError(f"the answer to {asked.name} cannot be read: {error}") from error
    if fields.left:
        raise AnswerError(f"the answer to {asked.name} has {fields.left} bytes left over")
    return answer


def error_text(payload: bytes) -> str:
    """Return the text of an ERROR's payload in any of its four layouts (page, Refusals)."""
    return _error_data(payload).decode("utf-8", "replace").removeprefix(SPACES)


def _error_data(payload: bytes) -> bytes:
    for before in (1, 4, 0):  # the document's bool, the SDKs' code, a str alone
        start = before + 2
        if int.from_bytes(payload[before:start], "big") == len(payload) - start:
            return payload[start:]
    return payload


def _produced(fields: Fields) -> Produced:
    return Produced(
        fields.text("topic"),
        fields.i32("partition"),
        fields.u64("offset"),
        fields.i64("timestamp"),
        fields.i32("key size"),
        fields.i32("value size"),
    )


def _consumed(fields: Fields) -> Consumed:
    return Consumed(fields.data("key") or None, fields.data("value"))


def _fetched(request: Fetch, fields: Fields) -> Fetched:
    count = fields.count("message count", 0)
    if not request.answer_is_sdk:
        fields.expect("messages", count, RECORD_BYTES)
        records = [_seed_record(fields) for _ in range(count)]
        return Fetched(tuple(records), fields.u64("next offset"))
    next_offset = fields.u64("next offset")
    fields.expect("messages", count, RECORD_BYTES)
    return Fetched(tuple([_sdk_record(fields) for _ in range(count)]), next_offset)


def _seed_record(fields: Fields) -> FetchedRecord:
    key = fields.data("key") or None
    value = fields.data("value")
    return FetchedRecord(fields.u64("offset"), key, value)


def _sdk_record(fields: Fields) -> FetchedRecord:
    return FetchedRecord(fields.u64("offset"), fields.data("key") or None, fields.data("value"))


def _done(fields: Fields) -> Done:
    """Decode OKMSG, or its first byte alone as the reference server sends it."""
    success = fields.u8("success")
    text = fields.text("message") if fields.left else ""
    if success != 1:
        raise FieldError(f"success is {success}, with the message {text!r}, in place of an ERROR")
    return Done()


def _topic_offsets(fields: Fields) -> TopicOffsets:
    topic = fields.text("topic")
    count = fields.count("partitions", _PARTITION_OFFSETS_BYTES)
    return TopicOffsets(topic, tuple([_partition_offsets(fields) for _ in range(count)]))


def _partition_offsets(fields: Fields) -> PartitionOffsets:
    return PartitionOffsets(
        fields.i32("partition"), fields.i32("leader"), fields.u64("oldest"), fields.u64("newest")
    )


def _cluster(fields: Fields) -> Cluster:
    cluster_id = fields.text("cluster id")
    count = fields.count("topics", _TOPIC_PLACES_BYTES)
    return Cluster(cluster_id, tuple([_topic_places(fields) for _ in range(count)]))


def _topic_places(fields: Fields) -> TopicPlaces:
    topic = fields.text("topic")
    count = fields.count("partitions", _PARTITION_PLACE_BYTES)
    return TopicPlaces(topic, tuple([_partition_place(fields) for _ in range(count)]))


def _partition_place(fields: Fields) -> PartitionPlace:
    return PartitionPlace(
        fields.i32("partition"),
        fields.text("leader id"),
        fields.text("leader address"),
        fields.u64("epoch"),
        fields.text("state"),
        fields.texts("replicas"),
        fields.texts("in-sync replicas"),
    )


def _lag(fields: Fields) -> Lag:
    return Lag(
        fields.u64("current"), fields.u64("committed"), fields.u64("latest"), fields.u64("lag")
    )


def _position(fields: Fields) -> Position:
    return Position(fields.u64("offset"))


_ANSWERS: dict[int, Callable[[Fields], Answer]] = {
    Opcode.PRODUCE: _produced,
    Opcode.CONSUME: _consumed,
    Opcode.CREATE_TOPIC: _done,
    Opcode.METADATA: _topic_offsets,
    Opcode.SUBSCRIBE: _position,
    Opcode.COMMIT: _done,
    Opcode.LIST_TOPICS: lambda fields: Topics(fields.texts("topics")),
    Opcode.DELETE_TOPIC: _done,
    Opcode.CONSUME_ZERO_COPY: _consumed,
    Opcode.CLUSTER_METADATA: _cluster,
    Opcode.GET_OFFSET: _position,
    Opcode.RESET_OFFSET: _done,
    Opcode.GET_LAG: _lag,
    Opcode.DELETE_GROUP: _done,
    Opcode.SEEK_TO_TIMESTAMP: _position,
    **groups.ANSWERS,
    Opcode.PURGE_DLQ: _done,
    **dead_letters.ANSWERS,
    Opcode.CLUSTER_JOIN: _done,
    Opcode.CLUSTER_LEAVE: _done,
    **cluster.ANSWERS,
    Opcode.USER_DELETE: _done,
    Opcode.USER_UPDATE: _done,
    Opcode.ACL_SET: _done,
    Opcode.ACL_DELETE: _done,
    Opcode.PASSWORD_CHANGE: _done,
    **account_peer.ANSWERS,
    **audits.ANSWERS,
    **schema_payloads.ANSWERS,
    Opcode.PRODUCE_WITH_SCHEMA: _produced,
    Opcode.DELETE_SCHEMA: _done,
    Opcode.PRODUCE_DELAYED: _produced,
    Opcode.CANCEL_DELAYED: _done,
    Opcode.PRODUCE_WITH_TTL: _produced,
    Opcode.TXN_PRODUCE: _produced,
    **transactions.ANSWERS,
}

_ANSWERS_TO: dict[type[Any], Callable[[Any, Fields], Answer]] = {
    Fetch: _fetched,
    **groups.ANSWERS_TO,
    **dead_letters.ANSWERS_TO,
}
"""Decoders of answers whose layout depends on the request."""
