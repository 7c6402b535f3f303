# Tests: tests/codecs/test_flymq_requests.py
"""Decodes requests (page, section Operations).

`decode_request` distinguishes the two dialects (page, section Two dialects) and stores the dialect
in the value. `peer.encode_request` encodes requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from struct import Struct
from struct import error as StructError

from brokerd.codecs.flymq import (
    account_requests,
    audits,
    cluster,
    dead_letters,
    groups,
    schema_payloads,
    timed,
    transactions,
)
from brokerd.codecs.flymq.compression import Inflation
from brokerd.codecs.flymq.fields import Fields
from brokerd.codecs.flymq.frames import Frame
from brokerd.codecs.flymq.values import (
    COMPRESSION_MASK,
    MAX_LENGTH,
    MAX_OFFSET,
    ClusterMetadata,
    Commit,
    Consume,
    CreateTopic,
    DeleteTopic,
    Fetch,
    FieldError,
    GetLag,
    GetOffset,
    ListTopics,
    Metadata,
    Opcode,
    Produce,
    Request,
    RequestError,
    ResetOffset,
    Subscribe,
    UnknownOpcode,
)

_PRODUCE = int(Opcode.PRODUCE)
_U16 = Struct(">H")
_U32 = Struct(">I")
_I32 = Struct(">i")
_NO_KEY = bytes(_U32.size)
_EQUAL_VALUES_BYTES_MAX = 2_048
"""Largest values that are compared together; larger ones would be copied for little gain."""
_NO_PARTITION = (_I32.pack(-1), _I32.pack(0))
"""Any partition, and the first one."""


def decode_request(
    opcode: int, flags: int, payload: bytes, max_length: int = MAX_LENGTH
) -> Request:
    """Return the request of one frame.

    :param max_length: largest decompressed payload.
    :raises UnknownOpcode: brokerd does not support the opcode.
    :raises RequestError: the payload does not fit the opcode.
    """
    if opcode == _PRODUCE and not flags & COMPRESSION_MASK:
        produce = _plain_produce(payload)
        if produce is not None:
            return produce
    if flags & COMPRESSION_MASK:
        request = CompressedRequest(opcode, flags, payload, max_length)
        while not request.step():
            pass
        return request.decoded()
    return _decoded(_decoder(opcode), payload)


class CompressedRequest:
    """A request whose payload is decompressed in steps; arguments as of `decode_request`.

    Call `step` until it returns True, then `decoded` once. All methods raise as `decode_request`
    does.
    """

    def __init__(
        self, opcode: int, flags: int, payload: bytes, max_length: int = MAX_LENGTH
    ) -> None:
        self._decode = _decoder(opcode)
        self._inflation = Inflation(flags, payload, max_length)

    def step(self) -> bool:
        """Decompress for at most two milliseconds; return True at the end."""
        return self._inflation.step()

    @property
    def done_bytes(self) -> int:
        """Return the number of compressed and decompressed bytes so far."""
        return self._inflation.read_bytes + len(self._inflation.inflated)

    def decoded(self) -> Request:
        """Return the request; its key and value are copied once."""
        return _decoded(self._decode, memoryview(self._inflation.inflated))


_Decoder = Callable[[Fields], Request]


def _decoder(opcode: int) -> _Decoder:
    decode = _DECODERS.get(opcode)
    if decode is None:
        raise UnknownOpcode(f"unknown opcode: {opcode}")
    return decode


def _decoded(decode: _Decoder, payload: bytes | memoryview) -> Request:
    try:
        return decode(Fields(payload))
    except FieldError as error:
        raise RequestError(str(error)) from None


def produce_run(frames: Sequence[Frame]) -> tuple[str, list[bytes]]:
    """Return the topic and the values of the first of these frames that are PRODUCE requests for
    one topic, uncompressed, without a key, and for partition 0 or any.
    """
    values: list[bytes] = []
    opcode, flags, payload = frames[0]
    if opcode != _PRODUCE or len(payload) < _U16.size:
        return "", values
    (size,) = _U16.unpack_from(payload)
    head = payload[: _U16.size + size + _U32.size]
    size_at = _U16.size + size + _U32.size
    if len(head) < size_at or head[-_U32.size :] != _NO_KEY:
        return "", values
    try:
        topic = head[_U16.size : -_U32.size].decode()
    except UnicodeDecodeError:
        return "", values
    value_at = size_at + _U32.size
    around = value_at + _I32.size
    equal = _equal_values(frames, head, value_at)
    if equal is not None:
        return topic, equal
    start, length = head, -1
    for opcode, flags, payload in frames:
        if len(payload) != length:
            length = len(payload)
            if length < around:
                break
            start = head + _U32.pack(length - around)
        if (
            opcode != _PRODUCE
            or flags & COMPRESSION_MASK
            or not payload.startswith(start)
            or not payload.endswith(_NO_PARTITION)
        ):
            break
        values.append(payload[value_at : -_I32.size])
    return topic, values


def _equal_values(frames: Sequence[Frame], head: bytes, value_at: int) -> list[bytes] | None:
    """Return the values if all frames are PRODUCE requests that differ in the value alone.

    ``head`` has the fields before the size of the value, which begins at ``value_at``.
    """
    length, end = len(frames[0][2]), frames[0][2][-_I32.size :]
    size = length - value_at - _I32.size
    if not 0 <= size <= _EQUAL_VALUES_BYTES_MAX or end not in _NO_PARTITION:
        return None
    opcodes, flags, payloads = zip(*frames, strict=True)
    count = len(payloads)
    if (
        opcodes.count(_PRODUCE) < count
        or flags.count(flags[0]) < count
        or flags[0] & COMPRESSION_MASK
        or list(map(len, payloads)).count(length) < count
    ):
        return None
    together = b"".join(payloads)
    layout = Struct(f"{value_at}x{size}s{_I32.size}x")
    values = list(chain.from_iterable(layout.iter_unpack(together)))
    # One comparison for the bytes around all values.
    start = head + _U32.pack(size)
    return values if together == start + (end + start).join(values) + end else None


def _plain_produce(payload: bytes) -> Produce | None:
    """Like `_produce`, in a third of the time; None for a payload that `_produce` refuses."""
    try:
        (size,) = _U16.unpack_from(payload)
        topic_end = 2 + size
        (size,) = _U32.unpack_from(payload, topic_end)
        key_end = topic_end + 4 + size
        (size,) = _U32.unpack_from(payload, key_end)
        value_end = key_end + 4 + size
        (partition,) = _I32.unpack_from(payload, value_end)
        return Produce(
            payload[2:topic_end].decode(),
            payload[topic_end + 4 : key_end] or None,
            payload[key_end + 4 : value_end],
            partition,
        )
    except (StructError, UnicodeDecodeError):
        return None


def _produce(fields: Fields) -> Produce:
    return Produce(
        fields.text("topic"),
        fields.data("key") or None,
        fields.data("value"),
        fields.i32("partition"),
    )


def _consume(fields: Fields) -> Consume:
    return Consume(fields.text("topic"), fields.i32("partition"), fields.u64("offset"))


def _consume_zero_copy(fields: Fields) -> Consume:
    return _consume(fields)._replace(opcode=Opcode.CONSUME_ZERO_COPY)


def _create_topic(fields: Fields) -> CreateTopic:
    return CreateTopic(fields.text("topic"), fields.i32("partitions"))


def _subscribe(fields: Fields) -> Subscribe:
    topic = fields.text("topic")
    group = fields.text("group")
    partition = fields.i32("partition")
    left = fields.left
    if fields.peek(2) == left - 2:
        return Subscribe(topic, group, partition, fields.text("mode"))
    if fields.peek(1) == left - 1:
        return Subscribe(topic, group, partition, fields.text8("mode"), sdk=True)
    raise FieldError(
        "invalid binary format: mode does not end with the payload, neither with a length of "
        "2 bytes nor with one of 1"
    )


def _commit(fields: Fields) -> Commit:
    return Commit(
        fields.text("topic"), fields.text("group"), fields.i32("partition"), _committable(fields)
    )


def _committable(fields: Fields) -> int:
    offset = fields.u64("offset")
    if offset > MAX_OFFSET:
        raise FieldError(f"offset must be at most 2^63 - 1, not {offset}")
    return offset


def _fetch(fields: Fields) -> Fetch:
    topic = fields.text("topic")
    partition = fields.i32("partition")
    offset = fields.u64("offset")
    max_messages = fields.i32("max_messages")
    if fields.left < 2:
        return Fetch(topic, partition, offset, max_messages)
    return Fetch(topic, partition, offset, max_messages, fields.text("filter"), sdk=True)


def _fetch_binary(fields: Fields) -> Fetch:
    return _fetch(fields)._replace(opcode=Opcode.FETCH_BINARY)


def _list_topics(fields: Fields) -> ListTopics:
    return ListTopics()


def _cluster_metadata(fields: Fields) -> ClusterMetadata:
    return ClusterMetadata(fields.text("topic") if fields.left else "")


def _get_offset(fields: Fields) -> GetOffset:
    return GetOffset(fields.text("topic"), fields.text("group"), fields.i32("partition"))


def _get_lag(fields: Fields) -> GetLag:
    return GetLag(fields.text("topic"), fields.text("group"), fields.i32("partition"))


def _reset_offset(fields: Fields) -> ResetOffset:
    topic = fields.text("topic")
    group = fields.text("group")
    partition = fields.i32("partition")
    sdk = fields.peek(1) != 0
    mode = fields.text8("mode") if sdk else fields.text("mode")
    offset = _committable(fields) if mode == "offset" else None
    return ResetOffset(topic, group, partition, mode, offset, sdk)


_DECODERS: dict[int, _Decoder] = {
    Opcode.PRODUCE: _produce,
    Opcode.CONSUME: _consume,
    Opcode.CREATE_TOPIC: _create_topic,
    Opcode.METADATA: lambda fields: Metadata(fields.text("topic")),
    Opcode.SUBSCRIBE: _subscribe,
    Opcode.COMMIT: _commit,
    Opcode.FETCH: _fetch,
    Opcode.LIST_TOPICS: _list_topics,
    Opcode.DELETE_TOPIC: lambda fields: DeleteTopic(fields.text("topic")),
    Opcode.CONSUME_ZERO_COPY: _consume_zero_copy,
    Opcode.FETCH_BINARY: _fetch_binary,
    Opcode.CLUSTER_METADATA: _cluster_metadata,
    Opcode.GET_OFFSET: _get_offset,
    Opcode.RESET_OFFSET: _reset_offset,
    Opcode.GET_LAG: _get_lag,
    **groups.DECODERS,
    **dead_letters.DECODERS,
    **cluster.DECODERS,
    **account_requests.DECODERS,
    **audits.DECODERS,
    **schema_payloads.DECODERS,
    **timed.DECODERS,
    **transactions.DECODERS,
}
