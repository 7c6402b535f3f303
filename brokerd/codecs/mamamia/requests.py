# Tests: tests/codecs/test_mamamia_requests.py
"""Request bodies to values: the server's half of reading.

`Decoder` decodes any body the general way, by walking its map. Each connection has one, because a
client repeats itself: what its last requests looked like is remembered, and a body that differs
only in the payload or the message id is read without walking. Each shortcut says why it can
only find what the general way would.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from typing import Final, TypeVar

from msgpack import unpackb

from brokerd.codecs.mamamia.batches import plain_produce_batch, plain_settle_batch
from brokerd.codecs.mamamia.packing import (
    KINDS,
    SHALLOW_BYTES,
    UNDECODABLE,
    Field,
    Fields,
    has_control_characters,
    walk,
)
from brokerd.codecs.mamamia.values import (
    DEFAULT_DURATION,
    MAX_BATCH,
    MAX_MESSAGE_ID,
    MAX_PARTITION,
    SECONDS_MAX,
    Acquire,
    AcquireBatch,
    BatchMessage,
    BatchSettle,
    Command,
    Extend,
    GroupInfo,
    Produce,
    ProduceBatch,
    Request,
    RequestError,
    Settle,
    SettleBatch,
)
from brokerd.values import MAX_NAME_BYTES, Encoding

_METADATA_KEY = b"\xa8metadata"
_KEY_KEY = b"\xa3key"
_MAP_OF_3, _MAP_OF_4 = 0x83, 0x84
_METADATA_NIL = _METADATA_KEY + b"\xc0"
_REMEMBERED_BYTES = 2_048
"""Nothing longer is remembered, so that an idle connection stays small."""
_NEVER: Final = ()
"""Begins no body, as no bytes do: ``startswith`` looks for any of none."""
_BYTES, _TEXT, _MSGPACK = int(Encoding.BYTES), int(Encoding.TEXT), int(Encoding.MSGPACK)
_new = tuple.__new__  # half the cost of calling a NamedTuple

Item = TypeVar("Item")


class Decoder:
    """Decodes the requests of one connection. Holds at most about 6 KiB."""

    __slots__ = (
        "_acquire",
        "_acquire_body",
        "_produce_log_id",
        "_produce_prefix",
        "_settle_prefix",
        "_settle_suffix_bytes",
        "_settles",
    )

    def __init__(self) -> None:
        self._produce_prefix: bytes | tuple[()] = _NEVER
        self._produce_log_id = ""
        self._acquire_body: bytes | None = None
        self._acquire = Acquire("", "", "")
        self._settle_prefix: bytes | tuple[()] = _NEVER
        self._settle_suffix_bytes = 0
        self._settles: dict[bytes, Settle] = {}

    def decode(self, command: int, body: bytes) -> Request:
        """The request of one frame.

        :raises BodyError: the body is not one sound MessagePack object: close the connection.
        :raises RequestError: values are missing or wrong, or the command is unknown: answer
            its text; the connection lives.
        """
        if command == 1:
            return self._decode_produce(body)
        if command == 2:
            if body == self._acquire_body:
                return self._acquire
            return self._decode_acquire(body)
        if command == 3:
            return self._decode_settle(body)
        decode = _EXTENSIONS.get(command)
        if decode is not None:
            return decode(body)
        with suppress(RequestError):  # a body that cannot be decoded is worse (notes section 6)
            walk(body)
        raise RequestError(f"Unknown command: {command}")

    def _decode_produce(self, body: bytes) -> Produce:
        # The remembered prefix is "map of 3, log_id, its value, payload": who has read it expects
        # the payload's object, then one key and one object. If the rest is M, the key "metadata"
        # and X, with M and X one object each, then reading object by object must find just
        # these, since no MessagePack object is the beginning of another. Likewise for a map
        # of 4 whose rest is M, "metadata", X, "key" and K.
        prefix = self._produce_prefix
        if body.startswith(prefix):
            start = len(prefix)
            # A bin of up to 255 bytes that reaches from here to a nil metadata at the end.
            if (
                body.endswith(_METADATA_NIL)
                and body[start] == 0xC4
                and body[0] == _MAP_OF_3
                and body[start + 1] == len(body) - start - 12
            ):
                return _new(
                    Produce, (self._produce_log_id, body[start + 2 : -10], 0, None, None, None)
                )
            produce = self._split_produce(body, start)
            if produce is not None:
                return produce
        return self._walk_produce(body)

    def _split_produce(self, body: bytes, start: int) -> Produce | None:
        """Payload, metadata (and key) of a body with the remembered prefix; None: walk it."""
        end = len(body)
        key = None
        try:
            if body[0] == _MAP_OF_4:
                end = body.rfind(_KEY_KEY, start)
                packed_key = body[end + len(_KEY_KEY) :]
                if end < 0 or KINDS[packed_key[0]] not in ("a bin", "a str"):
                    return None
                key = _stored(packed_key, unpackb(packed_key))[0]
            split = body.rfind(_METADATA_KEY, start, end)
            if split < 0:
                return None
            payload = body[start:split]
            packed_metadata = body[split + len(_METADATA_KEY) : end]
            if not (_cheap(payload) and len(packed_metadata) <= SHALLOW_BYTES):
                return None
            value, encoding = _stored(payload, unpackb(payload))
            metadata = None
            if packed_metadata != b"\xc0":
                if type(unpackb(packed_metadata)) is not dict:
                    return None
                metadata = packed_metadata
        except (*UNDECODABLE, IndexError):  # not the usual shape: find out by walking
            return None
        return _new(Produce, (self._produce_log_id, value, encoding, metadata, key, None))

    def _walk_produce(self, body: bytes) -> Produce:
        fields = walk(body)
        log_id = _name(fields, "log_id")
        produce = Produce(log_id, *_message(fields))
        prefix = body[:1] + b"\xa6log_id" + fields["log_id"].raw + b"\xa7payload"
        if body[0] in (_MAP_OF_3, _MAP_OF_4) and body.startswith(prefix):
            self._produce_prefix = prefix
            self._produce_log_id = log_id
        return produce

    def _decode_acquire(self, body: bytes) -> Acquire:
        fields = walk(body)
        acquire = Acquire(
            _name(fields, "log_id"),
            _name(fields, "group_id"),
            _name(fields, "client_id"),
            _duration(fields),
            _wait(fields),
        )
        if len(body) <= _REMEMBERED_BYTES:
            self._acquire_body = body
            self._acquire = acquire
        return acquire

    def _decode_settle(self, body: bytes) -> Settle:
        # The remembered prefix P ends where the (last) value of message_id begins, and each
        # remembered suffix S once followed P + (one object) to the end of a body. So a body
        # P + M + S, with M one object, is the same map with another message_id.
        prefix = self._settle_prefix
        if body.startswith(prefix):
            cut = len(body) - self._settle_suffix_bytes
            settle = self._settles.get(body[cut:])
            if settle is not None and cut - len(prefix) <= 9:
                try:
                    message_id = unpackb(body[len(prefix) : cut])
                except UNDECODABLE:
                    message_id = None
                if type(message_id) is int and 0 <= message_id <= MAX_MESSAGE_ID:
                    log_id, group_id, _, client_id, success, delay = settle
                    return _new(Settle, (log_id, group_id, message_id, client_id, success, delay))
        return self._walk_settle(body)

    def _walk_settle(self, body: bytes) -> Settle:
        fields = walk(body)
        settle = Settle(
            _name(fields, "log_id"),
            _name(fields, "group_id"),
            _message_id(fields),
            _name(fields, "client_id"),
            bool(_required(fields, "success").value),
            _delay(fields),
        )
        field = fields["message_id"]
        prefix = body[: field.start]
        suffix = body[field.start + len(field.raw) :]
        if len(prefix) + len(suffix) <= _REMEMBERED_BYTES:
            self._remember_settle(prefix, suffix, settle)
        return settle

    def _remember_settle(self, prefix: bytes, suffix: bytes, settle: Settle) -> None:
        """Keep the last prefix, and up to two suffixes of one length (success true and false)."""
        same = prefix == self._settle_prefix and len(suffix) == self._settle_suffix_bytes
        if not same or len(self._settles) >= 2:
            self._settles.clear()
        self._settle_prefix = prefix
        self._settle_suffix_bytes = len(suffix)
        self._settles[suffix] = settle


def _decode_extend(body: bytes) -> Extend:
    fields = walk(body)
    return Extend(
        _name(fields, "log_id"),
        _name(fields, "group_id"),
        _name(fields, "client_id"),
        _message_id(fields),
        _duration(fields),
    )


def _decode_produce_batch(body: bytes) -> ProduceBatch:
    return plain_produce_batch(body) or _walk_produce_batch(body)


def _walk_produce_batch(body: bytes) -> ProduceBatch:
    fields = walk(body, "messages")
    log_id = _name(fields, "log_id")
    return ProduceBatch(log_id, _items(fields, "messages", _batch_message))


def _decode_acquire_batch(body: bytes) -> AcquireBatch:
    fields = walk(body)
    log_id, group_id = _name(fields, "log_id"), _name(fields, "group_id")
    client_id = _name(fields, "client_id")
    most = _integer(_required(fields, "max"), "max")
    if most < 1:
        raise RequestError("max must be at least 1")
    return AcquireBatch(
        log_id, group_id, client_id, min(most, MAX_BATCH), _duration(fields), _wait(fields)
    )


def _decode_settle_batch(body: bytes) -> SettleBatch:
    return plain_settle_batch(body) or _walk_settle_batch(body)


def _walk_settle_batch(body: bytes) -> SettleBatch:
    fields = walk(body, "settles")
    return SettleBatch(
        _name(fields, "log_id"),
        _name(fields, "group_id"),
        _name(fields, "client_id"),
        _items(fields, "settles", _batch_settle),
    )


def _decode_group_info(body: bytes) -> GroupInfo:
    fields = walk(body)
    return GroupInfo(_name(fields, "log_id"), _name(fields, "group_id"))


_EXTENSIONS: dict[int, Callable[[bytes], Request]] = {
    Command.EXTEND: _decode_extend,
    Command.PRODUCE_BATCH: _decode_produce_batch,
    Command.ACQUIRE_BATCH: _decode_acquire_batch,
    Command.SETTLE_BATCH: _decode_settle_batch,
    Command.GROUP_INFO: _decode_group_info,
}


def _required(fields: Fields, key: str) -> Field:
    try:
        return fields[key]
    except KeyError:
        raise RequestError(f"'{key}'") from None


def _name(fields: Fields, key: str) -> str:
    field = _required(fields, key)
    name = field.value
    if type(name) is not str:
        raise RequestError(f"{key} must be a str, not {field.kind}")
    if len(name) > MAX_NAME_BYTES or len(name.encode()) > MAX_NAME_BYTES:
        raise RequestError(f"{key} must be at most {MAX_NAME_BYTES} bytes")
    if has_control_characters(name):
        raise RequestError(f"{key} must not hold control characters")
    return name


def _integer(field: Field, key: str) -> int:
    value = field.value
    if type(value) is not int:
        raise RequestError(f"{key} must be an int, not {field.kind}")
    return value


def _message_id(fields: Fields) -> int:
    value = _integer(_required(fields, "message_id"), "message_id")
    if not 0 <= value <= MAX_MESSAGE_ID:
        raise RequestError("message_id must be from 0 to 2^63 - 1")
    return value


def _seconds(field: Field, key: str) -> float:
    value = field.value
    if type(value) is not float and type(value) is not int:
        raise RequestError(f"{key} must be a number, not {field.kind}")
    if not isfinite(value):
        raise RequestError(f"{key} must be finite")
    return float(max(-SECONDS_MAX, min(SECONDS_MAX, value)))


def _duration(fields: Fields) -> float:
    field = fields.get("duration")
    return DEFAULT_DURATION if field is None else _seconds(field, "duration")


def _span(fields: Fields, key: str) -> float | None:
    """Seconds from 0 up, or None when absent."""
    field = fields.get(key)
    if field is None:
        return None
    seconds = _seconds(field, key)
    if seconds < 0:
        raise RequestError(f"{key} must not be negative")
    return seconds


def _wait(fields: Fields) -> float:
    return _span(fields, "wait") or 0.0


def _delay(fields: Fields) -> float | None:
    return _span(fields, "delay")


def _cheap(raw: bytes) -> bool:
    """Whether decoding this on its first byte's word is harmless: no long array or map."""
    return len(raw) <= SHALLOW_BYTES or KINDS[raw[0]] in ("a bin", "a str")


def _stored(raw: bytes, decoded: object) -> tuple[bytes, int]:
    """A payload as it is stored: (value, encoding)."""
    if type(decoded) is bytes:
        return decoded, _BYTES
    if type(decoded) is str:
        return decoded.encode(), _TEXT
    return raw, _MSGPACK


def _message(fields: Fields) -> tuple[bytes, int, bytes | None, bytes | None, int | None]:
    """(value, encoding, metadata, key, partition) of a PRODUCE or an item of a batch."""
    payload = _required(fields, "payload")
    value, encoding = _stored(payload.raw, payload.value)
    return value, encoding, _metadata(fields), _key(fields), _partition(fields)


def _metadata(fields: Fields) -> bytes | None:
    field = fields.get("metadata")
    if field is None or field.kind == "nil":
        return None
    if field.kind != "a map":
        raise RequestError(f"metadata must be a map or nil, not {field.kind}")
    return field.raw


def _key(fields: Fields) -> bytes | None:
    field = fields.get("key")
    if field is None or field.kind == "nil":
        return None
    if field.kind not in ("a str", "a bin"):
        raise RequestError(f"key must be a str, bin or nil, not {field.kind}")
    return _stored(field.raw, field.value)[0]


def _partition(fields: Fields) -> int | None:
    field = fields.get("partition")
    if field is None or field.kind == "nil":
        return None
    value = _integer(field, "partition")
    if not 0 <= value <= MAX_PARTITION:
        raise RequestError(f"partition must be from 0 to {MAX_PARTITION}")
    return value


def _batch_message(fields: Fields) -> BatchMessage:
    return BatchMessage(*_message(fields))


def _batch_settle(fields: Fields) -> BatchSettle:
    message_id = _message_id(fields)
    success = bool(_required(fields, "success").value)
    field = fields.get("token")
    token = None if field is None or field.kind == "nil" else _integer(field, "token")
    return BatchSettle(message_id, success, token, _delay(fields))


def _items(fields: Fields, key: str, decode: Callable[[Fields], Item]) -> tuple[Item, ...]:
    """The decoded items of an array; an error names the item by its index."""
    field = _required(fields, key)
    if field.kind != "an array":
        raise RequestError(f"{key} must be an array, not {field.kind}")
    if field.items is None:
        raise RequestError(f"{key} must have 1 to {MAX_BATCH} items")
    decoded = []
    for index, item in enumerate(field.items):
        if isinstance(item, Field):
            raise RequestError(f"{key}[{index}] must be a map, not {item.kind}")
        try:
            decoded.append(decode(item))
        except RequestError as error:
            raise RequestError(f"{key}[{index}]: {error}") from None
    return tuple(decoded)
