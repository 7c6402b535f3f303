# Tests: tests/cli/test_tail.py
"""A record as one line: MessagePack as JSON, binary data escaped, long text cut."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgpack

from brokerd.cli import output
from brokerd.cli.server import Answer

SHOWN_CHARACTERS = 4_000
"""Characters shown of a key or a value; a record may have up to 32 MiB."""


def key_text(record: Answer) -> str | None:
    """Return the key as text, bytes as ``b'...'``; None without a key."""
    if record["key"] is None and record["key_base64"] is None:
        return None
    key: str | None = record["key"]
    return key if key is not None else _escaped(base64.b64decode(record["key_base64"]))


def value_text(record: Answer) -> str:
    """Return the whole value: text as it is, MessagePack as JSON, other bytes as ``b'...'``."""
    if record["encoding"] != "msgpack" and record["value"] is not None:
        return str(record["value"])
    return _value(record)


def record_line(record: Answer) -> str:
    """Format a record as ``PARTITION:OFFSET TIME [KEY ]VALUE``."""
    parts = [f"{record['partition']}:{record['offset']}", output.time(record["append_time"]) or "-"]
    if record["key"] is not None or record["key_base64"] is not None:
        parts.append(f"key={_cut(_text(record['key'], record['key_base64']))}")
    parts.append(_cut(_value(record)))
    return "  ".join(parts)


def _cut(shown: str) -> str:
    if len(shown) <= SHOWN_CHARACTERS:
        return shown
    return f"{shown[:SHOWN_CHARACTERS]}... ({len(shown):,} characters; --json has all)"


def _value(record: Answer) -> str:
    value, raw = record["value"], record["value_base64"]
    if record["encoding"] == "msgpack":
        if value is None:
            return _unpacked(base64.b64decode(raw))
        return output.plain(json.dumps(value, ensure_ascii=False))
    return _text(value, raw)


def _text(text: str | None, raw: str | None) -> str:
    if text is not None:
        return output.plain(text)
    return _escaped(base64.b64decode(raw or ""))


def _escaped(value: bytes) -> str:
    """Format bytes as ``b'...'``."""
    return repr(value)


def _unpacked(raw: bytes) -> str:
    """Convert a MessagePack value to the nearest JSON value."""
    try:
        value = msgpack.unpackb(raw, strict_map_key=False, use_list=False)
    except (ValueError, msgpack.UnpackException):
        return _escaped(raw)
    return output.plain(json.dumps(_printable(value), ensure_ascii=False))


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_name(key): _printable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _name(value)


def _name(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
