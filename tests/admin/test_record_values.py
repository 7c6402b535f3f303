"""Records become JSON without losing anything, and JSON becomes records that come back as it."""

from __future__ import annotations

import base64
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.admin.record_values import payload, record_shape
from brokerd.admin.shapes.topics import NewRecord, RecordShape
from brokerd.errors import InvalidRequest
from brokerd.values import Encoding, Format, Record


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def show(value: bytes, encoding: int = Encoding.BYTES, **more: Any) -> RecordShape:
    return record_shape(Record(7, value, encoding=encoding, **more), 2)


def again(shape: RecordShape) -> NewRecord:
    """What a client would send to produce a shown record once more."""
    told = msgspec.json.decode(msgspec.json.encode(shape))
    new: dict[str, Any] = {"encoding": told["encoding"]}
    if told["value_base64"] is not None:
        new["value_base64"] = told["value_base64"]
    else:
        new["value"] = told["value"]
    for name in ("key", "key_base64", "metadata", "metadata_base64", "producer_time"):
        if told[name] is not None:
            new[name] = told[name]
    return msgspec.json.decode(msgspec.json.encode(new), type=NewRecord)


@pytest.mark.parametrize(
    ("value", "encoding", "shows", "needs_base64"),
    [
        (b"hello", Encoding.TEXT, "hello", False),
        (b"hello", Encoding.BYTES, "hello", False),
        (b"", Encoding.BYTES, "", False),
        (b"\xff\x00", Encoding.BYTES, None, True),
        (
            msgpack.packb({"n": [1, None, 2.5, "x"]}),
            Encoding.MSGPACK,
            {"n": [1, None, 2.5, "x"]},
            True,
        ),
        (msgpack.packb(None), Encoding.MSGPACK, None, True),
        (msgpack.packb({"blob": b"\xff"}), Encoding.MSGPACK, None, True),
        (msgpack.packb({1: 2}), Encoding.MSGPACK, None, True),
        (msgpack.packb({b"n": 2}), Encoding.MSGPACK, None, True),
        (msgpack.packb([float("nan")]), Encoding.MSGPACK, None, True),
        (msgpack.packb([float("-inf")]), Encoding.MSGPACK, None, True),
        (b"\xc1", Encoding.MSGPACK, None, True),
        (b"\x91" * 5_000 + b"\x01", Encoding.MSGPACK, None, True),
        (b"\xd4\x05\x00", Encoding.MSGPACK, None, True),
    ],
)
def test_a_value_is_shown_as_what_it_is(
    value: bytes, encoding: int, shows: Any, needs_base64: bool
) -> None:
    """Text as text, MessagePack as JSON if JSON can say it; else only base64 tells."""
    shape = show(value, encoding)
    assert (shape.partition, shape.offset) == (2, 7)
    told = msgspec.json.decode(msgspec.json.encode(shape))
    assert told["value"] == shows
    assert told["value_base64"] == (b64(value) if needs_base64 else None)


def test_keys_metadata_and_times_come_along() -> None:
    shape = show(
        b"x",
        key=b"k",
        metadata=msgpack.packb({"ts": 1.5}),
        append_time_us=1_700_000_000_250_000,
        producer_time=-5,
        expires_at_us=1_700_000_001_000_000,
        producer_format=Format.MAMAMIA,
    )
    told = msgspec.json.decode(msgspec.json.encode(shape))
    assert told["key"] == "k"
    assert told["metadata"] == {"ts": 1.5}
    assert told["append_time"] == "2023-11-14T22:13:20.250000Z"
    assert told["expires_at"] == "2023-11-14T22:13:21Z"
    assert (told["producer_time"], told["format"]) == (-5, "mamamia")
    assert show(b"x").format is None


def test_odd_keys_and_metadata_are_base64() -> None:
    odd = msgpack.packb({"blob": b"\xff"})
    shape = show(b"x", key=b"\xff", metadata=odd)
    assert (shape.key, shape.key_base64) == (None, b64(b"\xff"))
    assert (shape.metadata, shape.metadata_base64) == (None, b64(odd))


def test_what_is_large_is_not_taken_apart() -> None:
    """Base64 is there in any case."""
    large = msgpack.packb([0] * (1 << 20))
    shape = show(large, Encoding.MSGPACK, metadata=msgpack.packb({"n": "x" * (1 << 20)}))
    assert (shape.value, shape.value_base64) == (None, b64(large))
    assert shape.metadata is None and shape.metadata_base64 is not None


def test_times_beyond_the_calendar_are_its_end() -> None:
    """A TTL may be as long as somebody likes."""
    shape = show(b"x", expires_at_us=1 << 62)
    assert shape.expires_at is not None and shape.expires_at.year == 9999


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(
    st.one_of(
        st.tuples(st.binary(), st.just(Encoding.BYTES)),
        st.tuples(st.text().map(str.encode), st.just(Encoding.TEXT)),
        st.tuples(JSON.map(msgpack.packb), st.just(Encoding.MSGPACK)),
    ),
    st.none() | st.binary(),
    st.none() | st.dictionaries(st.text() | st.binary(), JSON | st.binary()).map(msgpack.packb),
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
)
def test_what_was_shown_can_be_produced_again(
    value: tuple[bytes, Encoding], key: bytes | None, metadata: bytes | None, time: int | None
) -> None:
    """It is the same record then, whatever it holds."""
    raw, encoding = value
    more = {"key": key, "metadata": metadata, "producer_time": time}
    request = again(show(raw, encoding, **more))
    assert payload(request) == (raw, encoding, key, metadata)
    assert request.producer_time == time


def test_metadata_comes_in_one_form() -> None:
    with pytest.raises(InvalidRequest, match="either metadata or metadata_base64"):
        payload(NewRecord(value="x", metadata={}, metadata_base64=""))
    with pytest.raises(InvalidRequest, match="metadata_base64 is not msgpack"):
        payload(NewRecord(value="x", metadata_base64=b64(b"\xc1")))
    with pytest.raises(InvalidRequest, match="metadata_base64 is not msgpack: unhashable"):
        payload(NewRecord(value="x", metadata_base64=b64(b"\x81\x91\x01\x02")))


@pytest.mark.parametrize(
    ("record", "part"),
    [
        ({}, "either value or value_base64"),
        ({"value": "x", "value_base64": "eA=="}, "either value or value_base64"),
        ({"value_base64": "?"}, "value_base64 is not base64"),
        ({"value_base64": "é"}, "value_base64 is not base64"),
        ({"value_base64": "/w==", "encoding": "text"}, "value_base64 is not text"),
        ({"value_base64": "wQ==", "encoding": "msgpack"}, "value_base64 is not msgpack"),
        ({"value_base64": "AQE=", "encoding": "msgpack"}, "value_base64 is not msgpack"),
        ({"value": 5, "encoding": "text"}, "needs a value that is text"),
        ({"value": "x", "key": "k", "key_base64": "aw=="}, "either key or key_base64"),
        ({"value": 1e400}, ""),
        ({"value": "x", "metadata": {"n": 1 << 70}}, "metadata cannot be stored"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(record: dict[str, Any], part: str) -> None:
    try:
        new = msgspec.convert(record, type=NewRecord)
    except msgspec.ValidationError:
        return
    if record.get("value") == 1e400:
        return
    with pytest.raises(InvalidRequest, match=part):
        payload(new)


def test_text_may_be_stored_as_bytes_or_messagepack() -> None:
    """The encoding says how it comes back over wire formats."""
    assert payload(NewRecord("x", encoding="bytes")).encoding == Encoding.BYTES
    assert payload(NewRecord("x")).encoding == Encoding.TEXT
    assert payload(NewRecord("x", encoding="msgpack"))[:2] == (b"\xa1x", Encoding.MSGPACK)
    assert payload(NewRecord(None))[:2] == (b"\xc0", Encoding.MSGPACK)
