# Tests: tests/admin/test_record_values.py
"""Records as JSON, and JSON as records: text where there is text, base64 where there is none.

A MessagePack value is shown as JSON if JSON can say it; base64 is there in any case, so that
nothing is lost. A record that is produced again from what was shown is the same record.
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
"""Longer MessagePack is shown as base64 alone: to say it as JSON would hold up the broker."""


class Payload(NamedTuple):
    """The bytes of a record that is to be appended."""

    value: bytes
    encoding: Encoding
    key: bytes | None
    metadata: bytes | None


def shown(record: Record, partition: int) -> RecordShape:
    """A record for an answer."""
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
    """How a value begins, for people: MessagePack that is short as JSON, else what is text."""
    said = _json(begin) if encoding == Encoding.MSGPACK else None
    if said is not None:
        return bytes(said).decode()
    return begin.decode("utf-8", "backslashreplace")


def payload(record: NewRecord) -> Payload:
    """The bytes that a request means. Raises `InvalidRequest`."""
    value, encoding = _given_value(record)
    metadata = None if record.metadata is None else _packed(record.metadata, "metadata")
    return Payload(value, encoding, _given_key(record), metadata)


def _value(value: bytes, encoding: int) -> tuple[Any, str | None]:
    """(what JSON can say of it, base64 unless that says all)."""
    if encoding != Encoding.MSGPACK:
        return _text(value)
    return _json(value), _base64(value)


def _json(packed: bytes) -> msgspec.Raw | None:
    """A MessagePack value as JSON; None where JSON cannot say it so that it comes back as it is."""
    if len(packed) > JSON_BYTES_MAX:
        return None
    try:
        text = json.dumps(msgpack.unpackb(packed), allow_nan=False, ensure_ascii=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None  # bad, nested too deeply, NaN; binary, a timestamp, keys that are no text
    return msgspec.Raw(text.encode())


def _text(value: bytes) -> tuple[str | None, str | None]:
    try:
        return value.decode(), None
    except UnicodeDecodeError:
        return None, _base64(value)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _given_value(record: NewRecord) -> tuple[bytes, Encoding]:
    given = record.value is not UNSET
    if given == (record.value_base64 is not None):
        raise InvalidRequest("a record has either value or value_base64")
    if record.value_base64 is not None:
        value = _from_base64(record.value_base64, "value_base64")
        return value, _checked(value, ENCODINGS[record.encoding or "bytes"])
    if isinstance(record.value, str) and record.encoding in (None, "text"):
        return record.value.encode(), Encoding.TEXT
    if isinstance(record.value, str) and record.encoding == "bytes":
        return record.value.encode(), Encoding.BYTES
    if record.encoding not in (None, "msgpack"):
        raise InvalidRequest(f"encoding {record.encoding!r} needs a value that is text, or base64")
    return _packed(record.value, "value"), Encoding.MSGPACK


def _checked(value: bytes, encoding: Encoding) -> Encoding:
    """Raises `InvalidRequest` if the bytes are not what the encoding says."""
    try:
        if encoding == Encoding.TEXT:
            value.decode()
        elif encoding == Encoding.MSGPACK:
            msgpack.unpackb(value)
    except (ValueError, msgpack.UnpackException) as error:
        reason = error_text(error)
        raise InvalidRequest(f"value_base64 is not {NAMES[encoding]}: {reason}") from None
    return encoding


def _given_key(record: NewRecord) -> bytes | None:
    if record.key is not None and record.key_base64 is not None:
        raise InvalidRequest("a record has either key or key_base64")
    if record.key_base64 is not None:
        return _from_base64(record.key_base64, "key_base64")
    return None if record.key is None else record.key.encode()


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
