# Tests: tests/admin/test_record_values.py
"""Converts records to JSON and back: text as a string, other bytes as base64.

A MessagePack value appears as JSON, if JSON can represent it, and always as base64 too. A client
that sends back the fields of an answer produces the same record again.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple

import msgpack
import msgspec
from msgspec import UNSET

from brokerd.admin.shapes.common import time_of
from brokerd.admin.shapes.topics import EncodingName, NewRecord, RecordShape
from brokerd.errors import InvalidRequest, error_text
from brokerd.values import Encoding, Format, Record

NAMES: dict[int, EncodingName] = {
    Encoding.BYTES: "bytes",
    Encoding.TEXT: "text",
    Encoding.MSGPACK: "msgpack",
}
ENCODINGS = {name: Encoding(encoding) for encoding, name in NAMES.items()}


JSON_BYTES_MAX = 256 << 10
"""Longer MessagePack appears only as base64, because its conversion would block the broker."""


class Payload(NamedTuple):
    """The bytes of a record to append."""

    value: bytes
    encoding: Encoding
    key: bytes | None
    metadata: bytes | None


def record_shape(record: Record, partition: int) -> RecordShape:
    """Convert a record to its shape in an answer."""
    value, value_base64 = _value(record.value, record.encoding)
    key, key_base64 = (None, None) if record.key is None else _text(record.key)
    metadata = None if record.metadata is None else _json(record.metadata)
    is_odd = record.metadata is not None and metadata is None
    return RecordShape(
        partition=partition,
        offset=record.offset,
        append_time=time_of(record.append_time_us),
        expires_at=time_of(record.expires_at_us) if record.expires_at_us else None,
        producer_time=record.producer_time,
        format=Format(record.producer_format).name.lower() if record.producer_format else None,
        encoding=NAMES[record.encoding],
        value=value,
        value_base64=value_base64,
        key=key,
        key_base64=key_base64,
        metadata=metadata,
        metadata_base64=_base64(record.metadata or b"") if is_odd else None,
    )


def preview(begin: bytes, encoding: int | None) -> str:
    """Format the beginning of a value for people: short MessagePack as JSON, the rest as text."""
    value = _json(begin) if encoding == Encoding.MSGPACK else None
    if value is not None:
        return bytes(value).decode()
    return begin.decode("utf-8", "backslashreplace")


def payload(record: NewRecord) -> Payload:
    """Return the bytes of the record in a request. Raises `InvalidRequest`."""
    value, encoding = _value_of(record)
    return Payload(value, encoding, _key_of(record), _metadata_of(record))


def _value(value: bytes, encoding: int) -> tuple[Any, str | None]:
    """Return (value for JSON or None, base64 or None). One of the two has all bytes."""
    if encoding != Encoding.MSGPACK:
        return _text(value)
    return _json(value), _base64(value)


def _json(packed: bytes) -> msgspec.Raw | None:
    """Convert MessagePack to JSON; None if the conversion back would give another value."""
    if len(packed) > JSON_BYTES_MAX:
        return None
    try:
        text = json.dumps(msgpack.unpackb(packed), allow_nan=False, ensure_ascii=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None  # invalid, nested too deeply, NaN, binary, a timestamp, keys of other types
    return msgspec.Raw(text.encode())


def _text(value: bytes) -> tuple[str | None, str | None]:
    try:
        return value.decode(), None
    except UnicodeDecodeError:
        return None, _base64(value)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _value_of(record: NewRecord) -> tuple[bytes, Encoding]:
    has_value = record.value is not UNSET
    if has_value == (record.value_base64 is not None):
        raise InvalidRequest("a record has either value or value_base64")
    if record.value_base64 is not None:
        value = _from_base64(record.value_base64, "value_base64")
        encoding = ENCODINGS[record.encoding or "bytes"]
        _check_encoding(value, encoding)
        return value, encoding
    if isinstance(record.value, str) and record.encoding in (None, "text"):
        return record.value.encode(), Encoding.TEXT
    if isinstance(record.value, str) and record.encoding == "bytes":
        return record.value.encode(), Encoding.BYTES
    if record.encoding not in (None, "msgpack"):
        raise InvalidRequest(f"encoding {record.encoding!r} needs a value that is text, or base64")
    return _packed(record.value, "value"), Encoding.MSGPACK


def _check_encoding(value: bytes, encoding: Encoding) -> None:
    """Raise `InvalidRequest` if the bytes are invalid in this encoding."""
    try:
        if encoding == Encoding.TEXT:
            value.decode()
        elif encoding == Encoding.MSGPACK:
            msgpack.unpackb(value)
    except (ValueError, msgpack.UnpackException) as error:
        reason = error_text(error)
        raise InvalidRequest(f"value_base64 is not {NAMES[encoding]}: {reason}") from None


def _key_of(record: NewRecord) -> bytes | None:
    if record.key is not None and record.key_base64 is not None:
        raise InvalidRequest("a record has either key or key_base64")
    if record.key_base64 is not None:
        return _from_base64(record.key_base64, "key_base64")
    return None if record.key is None else record.key.encode()


def _metadata_of(record: NewRecord) -> bytes | None:
    if record.metadata is not None and record.metadata_base64 is not None:
        raise InvalidRequest("a record has either metadata or metadata_base64")
    if record.metadata_base64 is None:
        return None if record.metadata is None else _packed(record.metadata, "metadata")
    metadata = _from_base64(record.metadata_base64, "metadata_base64")
    _check_packed(metadata, "metadata_base64")
    return metadata


def _check_packed(value: bytes, name: str) -> None:
    """Raise `InvalidRequest` if bytes are not MessagePack."""
    try:
        msgpack.unpackb(value, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # an array may be a key
        raise InvalidRequest(f"{name} is not msgpack: {error_text(error)}") from None


def _packed(value: Any, name: str) -> bytes:
    try:
        packed: bytes = msgpack.packb(value)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"{name} cannot be stored as MessagePack: {error}") from None
    return packed


def _from_base64(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{name} is not base64: {error}") from None
