# Tests: tests/codecs/test_rustlog_json.py
"""Decodes requests of the JSON dialect, on the server.

It accepts what serde accepts for the reference's types (page, Parsing of J):
strict about types, members and trailing text, tolerant about order, blanks and unknown members. The
records of a Produce are cut out first (`json_records`). The small rest is parsed by the standard
library, which reports repeated members.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from brokerd.codecs.rustlog.json_records import RecordsParser, looks_like_records
from brokerd.codecs.rustlog.values import (
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    ListTopics,
    MetricsFetch,
    OffsetCommit,
    OffsetFetch,
    Ping,
    Produce,
    Request,
    RequestError,
)

MAX_ENVELOPE_BYTES = 65_536
"""Largest request, without the records that are cut out of it."""

_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1
_RECORDS_KEY = re.compile(rb'(?<!\\)"records"[ \t\r\n]*:')
_CUT = b" NaN "  # JSON has no NaN, so the parser's hook for constants marks the position


class LongProduce(NamedTuple):
    """A Produce whose records take more than one step to parse."""

    topic: str
    partition: int
    parser: RecordsParser


class _Object:
    """The members of an object in order, with repeated ones."""

    __slots__ = ("members",)

    def __init__(self, members: list[tuple[str, Any]]) -> None:
        self.members = members


class _Cut:
    """Placeholder of the records that were cut out."""

    __slots__ = ("text", "used")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.used = False


def decode_request(payload: bytes) -> Request | LongProduce:
    """Return the request of a payload. Raises `RequestError` with the wire's text."""
    envelope, cut = _cut_records(payload)
    request = _request(_parse(envelope, cut))
    if cut is not None and not cut.used:  # it was in an unknown member, and must be JSON there
        request = _request(_parse(payload, None))
    return request


def _wrong(problem: object) -> RequestError:
    return RequestError(f"failed to parse request: {problem}")


def _cut_records(payload: bytes) -> tuple[bytes, _Cut | None]:
    """Return a payload without the text of its records, and that text if it has the usual form.

    A quote before a key is not escaped, and no letter is valid after a quote that ends a string.
    The search ends at the size of an envelope.
    """
    key = _RECORDS_KEY.search(payload, 0, MAX_ENVELOPE_BYTES)
    if key is None:
        return payload, None
    begin = key.end()
    end = len(payload)
    for mark in (b'"', b"{", b"}"):
        found = payload.find(mark, begin, end)
        end = end if found < 0 else found
    end = payload.rfind(b"]", begin, end) + 1
    text = payload[begin:end]
    if not end or not looks_like_records(text):
        return payload, None
    return b"".join((payload[:begin], _CUT, payload[end:])), _Cut(text)


def _parse(envelope: bytes, cut: _Cut | None) -> Any:
    """Return the value of a JSON text; its NaN becomes ``cut``."""
    if len(envelope) > MAX_ENVELOPE_BYTES:
        raise _wrong(f"more than {MAX_ENVELOPE_BYTES} bytes besides plain arrays of records")
    left = [cut] if cut is not None else []

    def constant(name: str) -> _Cut:
        if name != "NaN" or not left:
            raise ValueError(f"{name} is not JSON")
        return left.pop()

    try:
        return json.loads(
            envelope.decode(), object_pairs_hook=_Object, parse_constant=constant, parse_int=_int
        )
    except UnicodeDecodeError as problem:
        raise _wrong(f"invalid UTF-8 at byte {problem.start}") from None
    except RecursionError:
        raise _wrong("nested too deep") from None
    except ValueError as problem:
        raise _wrong(problem) from None


def _int(text: str) -> int | float:
    """Convert digits like serde: -0 is a float, and so are numbers beyond 64 bits."""
    return -0.0 if text == "-0" or len(text) > 20 else int(text)


# -- values -----------------------------------------------------------------------------------


def _kind(value: Any) -> str:
    if isinstance(value, _Object):
        return "a map"
    names = {str: "a string", bool: "a boolean", int: "an integer", float: "a floating point"}
    return names.get(type(value), "null" if value is None else "a sequence")


def _text(value: Any, name: str) -> str:
    if type(value) is not str:
        raise _wrong(f"invalid type: {_kind(value)}, expected a string for `{name}`")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _wrong(f"half a surrogate pair in `{name}`") from None
    return value


def _group(value: Any, name: str) -> str | None:
    """Return the group of a Fetch; None for null and the empty name."""
    return None if value is None else _text(value, name) or None


def _unsigned(most: int, type_name: str) -> Callable[[Any, str], int]:
    def read(value: Any, name: str) -> int:
        if type(value) is not int:
            raise _wrong(f"invalid type: {_kind(value)}, expected {type_name} for `{name}`")
        if not 0 <= value <= most:
            raise _wrong(f"invalid value: {value}, expected {type_name} for `{name}`")
        return value

    return read


_u32, _u64 = _unsigned(_U32, "u32"), _unsigned(_U64, "u64")


def _records(value: Any, name: str) -> Any:
    """Return a parser of the records, cut out or not."""
    if isinstance(value, _Cut):
        value.used = True
        return RecordsParser(value.text)
    text = json.dumps(value, default=lambda other: "neither array nor number").encode()
    if not text.startswith(b"[") or not looks_like_records(text):
        raise _wrong(f"invalid `{name}`: expected arrays of numbers from 0 to 255")
    return RecordsParser(text)


# -- requests ---------------------------------------------------------------------------------

_Read = Callable[[Any, str], Any]


def _produce(topic: str, partition: int, parser: RecordsParser) -> Produce | LongProduce:
    if not parser.is_short:
        return LongProduce(topic, partition, parser)
    parser.step()
    return Produce(topic, partition, parser.records)


_FIELDS: dict[str, tuple[Callable[..., Request | LongProduce], tuple[tuple[str, _Read], ...]]] = {
    "Produce": (_produce, (("topic", _text), ("partition", _u32), ("records", _records))),
    "Fetch": (
        Fetch,
        (
            ("topic", _text),
            ("partition", _u32),
            ("offset", _u64),
            ("max_bytes", _u64),
            ("group_id", _group),
        ),
    ),
    "OffsetCommit": (
        OffsetCommit,
        (("topic", _text), ("partition", _u32), ("group_id", _text), ("offset", _u64)),
    ),
    "OffsetFetch": (OffsetFetch, (("topic", _text), ("partition", _u32), ("group_id", _text))),
    "CreateTopic": (CreateTopic, (("topic", _text), ("partition_count", _u32))),
    "DescribeTopic": (DescribeTopic, (("topic", _text),)),
    "DescribePartition": (DescribePartition, (("topic", _text), ("partition", _u32))),
}
_UNITS: dict[str, Callable[[], Request]] = {
    "ListTopics": ListTopics,
    "MetricsFetch": MetricsFetch,
    "Ping": Ping,
}
_NAMES = ", ".join(f"`{name}`" for name in [*_FIELDS, *_UNITS])


def _request(value: Any) -> Request | LongProduce:
    name, content = _variant(value)
    if name in _UNITS:
        if content is not None:
            raise _wrong(f"invalid type: {_kind(content)}, expected unit for `{name}`")
        return _UNITS[name]()
    make, fields = _FIELDS[name]
    return make(*_values(name, fields, content))


def _variant(value: Any) -> tuple[str, Any]:
    """Return the name of a request and its content."""
    if type(value) is str:
        name, content = value, None
    elif isinstance(value, _Object) and len(value.members) == 1:
        name, content = value.members[0]
    else:
        raise _wrong(f"expected an object with the name of one request, not {_kind(value)}")
    if name not in _FIELDS and name not in _UNITS:
        _text(name, "request")
        raise _wrong(f"unknown variant `{name[:64]}`, expected one of {_NAMES}")
    if type(value) is str and name in _FIELDS:
        raise _wrong(f"invalid type: unit variant, expected struct variant {name}")
    return name, content


def _values(name: str, fields: Sequence[tuple[str, _Read]], content: Any) -> list[Any]:
    """Return the values of a request's fields in order."""
    if isinstance(content, _Object):
        return [read(_member(content, field, read), field) for field, read in fields]
    if type(content) is not list:
        raise _wrong(f"invalid type: {_kind(content)}, expected struct variant {name}")
    if len(content) != len(fields):
        raise _wrong(f"invalid length {len(content)}, expected {name} with {len(fields)} elements")
    return [read(value, field) for value, (field, read) in zip(content, fields, strict=True)]


def _member(members: _Object, name: str, read: _Read) -> Any:
    found = [value for member, value in members.members if member == name]
    if len(found) > 1:
        raise _wrong(f"duplicate field `{name}`")
    if not found:
        if read is _group:
            return None
        raise _wrong(f"missing field `{name}`")
    return found[0]
