# Tests: tests/codecs/test_flymq_responses.py
"""The client's half of the answers: payloads to values, strictly.

A count or length that runs past the payload is an error, and so are bytes left over. An ERROR is
read in every layout that is about (page, section Refusals).
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.codecs.flymq.fields import Fields
from brokerd.codecs.flymq.requests import opcode_of
from brokerd.codecs.flymq.values import (
    Answer,
    Cluster,
    Consumed,
    Done,
    Failed,
    Fetch,
    Fetched,
    FetchedRecord,
    FieldError,
    Lag,
    Opcode,
    PartitionOffsets,
    PartitionPlace,
    Position,
    Produced,
    Request,
    ResponseError,
    TopicOffsets,
    TopicPlaces,
    Topics,
)

_RECORD_BYTES = 16
_PARTITION_OFFSETS_BYTES = 24
_TOPIC_PLACES_BYTES = 6
_PARTITION_PLACE_BYTES = 26
_SPACES = "   "


def decode_response(request: Request, opcode: int, payload: bytes) -> Answer:
    """The answer to `request`; `Failed` holds the broker's text.

    :raises ResponseError: it is not an answer to `request`; the connection is of no more use.
    """
    if opcode == Opcode.ERROR:
        return Failed(error_text(payload))
    asked = opcode_of(request)
    if opcode != asked:
        raise ResponseError(f"opcode {opcode} was answered where {int(asked)} was asked")
    fields = Fields(payload)
    try:
        answer = (
            _fetched(request, fields) if isinstance(request, Fetch) else _ANSWERS[asked](fields)
        )
    except FieldError as error:
        raise ResponseError(f"the answer to {asked.name} cannot be read: {error}") from error
    if fields.left:
        raise ResponseError(f"the answer to {asked.name} has {fields.left} bytes left over")
    return answer


def error_text(payload: bytes) -> str:
    """The text of an ERROR's payload, whichever of the four layouts it has (payload facts, 3)."""
    return _error_data(payload).decode("utf-8", "replace").removeprefix(_SPACES)


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
        fields.expect("messages", count, _RECORD_BYTES)
        records = [_seed_record(fields) for _ in range(count)]
        return Fetched(tuple(records), fields.u64("next offset"))
    next_offset = fields.u64("next offset")
    fields.expect("messages", count, _RECORD_BYTES)
    return Fetched(tuple([_sdk_record(fields) for _ in range(count)]), next_offset)


def _seed_record(fields: Fields) -> FetchedRecord:
    key = fields.data("key") or None
    value = fields.data("value")
    return FetchedRecord(fields.u64("offset"), key, value)


def _sdk_record(fields: Fields) -> FetchedRecord:
    return FetchedRecord(fields.u64("offset"), fields.data("key") or None, fields.data("value"))


def _done(fields: Fields) -> Done:
    """OKMSG, or its first byte alone as the reference sends it."""
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
}
