# Tests: tests/codecs/test_mamamia_requests.py
"""Checked values of a walked map. Errors name the key of the wrong value."""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import isfinite
from typing import Any, TypeVar

from brokerd.codecs.mamamia.packing import (
    KINDS,
    SHALLOW_BYTES,
    Field,
    Fields,
    has_control_characters,
)
from brokerd.codecs.mamamia.values import (
    MAX_BATCH,
    MAX_MESSAGE_ID,
    MAX_PARTITION,
    MAX_REASON_BYTES,
    SECONDS_MAX,
    BatchMessage,
    BatchSettle,
    RequestError,
)
from brokerd.errors import escaped
from brokerd.values import MAX_NAME_BYTES, Encoding

_BYTES, _TEXT, _MSGPACK = int(Encoding.BYTES), int(Encoding.TEXT), int(Encoding.MSGPACK)

Item = TypeVar("Item")

_STEP_ITEMS = 64
"""Items of an array that one step reads."""


def required(fields: Fields, key: str) -> Field:
    try:
        return fields[key]
    except KeyError:
        raise RequestError(f"'{key}'") from None


def given(fields: Fields, key: str) -> Field | None:
    """Return a value; None if it is absent or nil."""
    field = fields.get(key)
    return None if field is None or field.kind == "nil" else field


def read_name(fields: Fields, key: str) -> str:
    field = required(fields, key)
    name = field.value
    if type(name) is not str:
        raise RequestError(f"{key} must be a str, not {field.kind}")
    if len(name) > MAX_NAME_BYTES or len(name.encode()) > MAX_NAME_BYTES:
        raise RequestError(f"{key} must be at most {MAX_NAME_BYTES} bytes")
    if has_control_characters(name):
        raise RequestError(f"{key} must not hold control characters")
    return name


def integer(field: Field, key: str) -> int:
    value = field.value
    if type(value) is not int:
        raise RequestError(f"{key} must be an int, not {field.kind}")
    return value


def read_id(fields: Fields, key: str) -> int:
    """Return a message id, a schedule id or a sequence."""
    return _id(required(fields, key), key)


def _id(field: Field, key: str) -> int:
    value = integer(field, key)
    if not 0 <= value <= MAX_MESSAGE_ID:
        raise RequestError(f"{key} must be from 0 to 2^63 - 1")
    return value


def _seconds(field: Field, key: str) -> float:
    value = field.value
    if type(value) is not float and type(value) is not int:
        raise RequestError(f"{key} must be a number, not {field.kind}")
    if not isfinite(value):
        raise RequestError(f"{key} must be finite")
    return float(max(-SECONDS_MAX, min(SECONDS_MAX, value)))


def read_duration(fields: Fields) -> float | None:
    field = fields.get("duration")
    return None if field is None else _seconds(field, "duration")


def _span(field: Field | None, key: str) -> float | None:
    """Return seconds, at least 0; None if absent."""
    if field is None:
        return None
    seconds = _seconds(field, key)
    if seconds < 0:
        raise RequestError(f"{key} must not be negative")
    return seconds


def read_wait(fields: Fields) -> float:
    return _span(fields.get("wait"), "wait") or 0.0


def read_delay(fields: Fields) -> float | None:
    """Return the delay of a settle."""
    return _span(fields.get("delay"), "delay")


def read_reason(fields: Fields) -> str:
    """Return the reason of a failure, without control characters; empty if absent.

    A reason is shown to people. A control character becomes its escape (``\\x0a``), and the result
    is cut to the limit: a settle is never refused for it.
    """
    field = given(fields, "reason")
    if field is None:
        return ""
    reason = field.value
    if type(reason) is not str:
        raise RequestError(f"reason must be a str, not {field.kind}")
    if len(reason) > MAX_REASON_BYTES or len(reason.encode()) > MAX_REASON_BYTES:
        raise RequestError(f"reason must be at most {MAX_REASON_BYTES} bytes")
    if has_control_characters(reason):
        return escaped(reason).encode()[:MAX_REASON_BYTES].decode(errors="ignore")
    return reason


def read_dead(fields: Fields) -> bool:
    """Return the truth of ``dead``; False if absent."""
    field = fields.get("dead")
    return field is not None and bool(field.value)


def cheap(raw: bytes) -> bool:
    """Return whether the first byte of a value is not that of a long array or map."""
    return len(raw) <= SHALLOW_BYTES or KINDS[raw[0]] in ("a bin", "a str")


def stored(raw: bytes, decoded: object) -> tuple[bytes, int]:
    """Return a payload as stored: (value, encoding)."""
    if type(decoded) is bytes:
        return decoded, _BYTES
    if type(decoded) is str:
        return decoded.encode(), _TEXT
    return raw, _MSGPACK


def read_message(
    fields: Fields,
) -> tuple[bytes, int, bytes | None, bytes | None, int | None, float | None, float | None]:
    """Return the values of a message, in the order of `BatchMessage`."""
    payload = required(fields, "payload")
    value, encoding = stored(payload.raw, payload.value)
    metadata, key, partition = _metadata(fields), _key(fields), _partition(fields)
    return value, encoding, metadata, key, partition, _ttl(fields), _message_delay(fields)


def _metadata(fields: Fields) -> bytes | None:
    field = given(fields, "metadata")
    if field is None:
        return None
    if field.kind != "a map":
        raise RequestError(f"metadata must be a map or nil, not {field.kind}")
    return field.raw


def _key(fields: Fields) -> bytes | None:
    field = given(fields, "key")
    if field is None:
        return None
    if field.kind not in ("a str", "a bin"):
        raise RequestError(f"key must be a str, bin or nil, not {field.kind}")
    return stored(field.raw, field.value)[0]


def _partition(fields: Fields) -> int | None:
    field = given(fields, "partition")
    if field is None:
        return None
    value = integer(field, "partition")
    if not 0 <= value <= MAX_PARTITION:
        raise RequestError(f"partition must be from 0 to {MAX_PARTITION}")
    return value


def _ttl(fields: Fields) -> float | None:
    return _span(given(fields, "ttl"), "ttl")


def _message_delay(fields: Fields) -> float | None:
    return _span(given(fields, "delay"), "delay")


def read_producer(fields: Fields) -> tuple[str | None, int | None]:
    """Return (producer_id, sequence) of a PRODUCE_BATCH: both or neither."""
    if given(fields, "producer_id") is None and given(fields, "sequence") is None:
        return None, None
    field = given(fields, "producer_id")
    sequence = given(fields, "sequence")
    if field is None or sequence is None:
        raise RequestError("'producer_id'" if field is None else "'sequence'")
    producer_id = field.value
    if type(producer_id) is not str:
        raise RequestError(f"producer_id must be a str, not {field.kind}")
    if not 0 < len(producer_id.encode()) <= MAX_NAME_BYTES:
        raise RequestError(f"producer_id must have 1 to {MAX_NAME_BYTES} bytes")
    return producer_id, _id(sequence, "sequence")


def batch_message(fields: Fields) -> BatchMessage:
    return BatchMessage(*read_message(fields))


def batch_settle(fields: Fields) -> BatchSettle:
    message_id = read_id(fields, "message_id")
    success = bool(required(fields, "success").value)
    field = given(fields, "token")
    token = None if field is None else integer(field, "token")
    reason, dead = read_reason(fields), read_dead(fields)
    return BatchSettle(message_id, success, token, read_delay(fields), reason, dead)


def read_items(
    fields: Fields, key: str, decode: Callable[[Fields], Item]
) -> Generator[None, None, tuple[Item, ...]]:
    """Return in steps the decoded items of an array of maps. An error names the item's index.

    `walk_steps` may have decoded the items.
    """
    decoded = []
    for index, item in enumerate(_walked(fields, key)):
        if index % _STEP_ITEMS == _STEP_ITEMS - 1:
            yield
        if isinstance(item, Field):
            raise RequestError(f"{key}[{index}] must be a map, not {item.kind}")
        try:
            if isinstance(item, RequestError):
                raise item
            decoded.append(decode(item) if type(item) is dict else item)
        except RequestError as error:
            raise RequestError(f"{key}[{index}]: {error}") from None
    return tuple(decoded)


def read_ids(fields: Fields, key: str) -> Generator[None, None, tuple[int, ...] | None]:
    """Return in steps the ids of an array; None if absent. An error names the item's index."""
    if given(fields, key) is None:
        return None
    ids = []
    for index, item in enumerate(_walked(fields, key)):
        if index % _STEP_ITEMS == _STEP_ITEMS - 1:
            yield
        if not isinstance(item, Field):
            raise RequestError(f"{key}[{index}] must be an int, not a map")
        ids.append(_id(item, f"{key}[{index}]"))
    return tuple(ids)


def _walked(fields: Fields, key: str) -> list[Any]:
    field = required(fields, key)
    if field.kind != "an array":
        raise RequestError(f"{key} must be an array, not {field.kind}")
    if field.items is None:
        raise RequestError(f"{key} must have 1 to {MAX_BATCH} items")
    return field.items
