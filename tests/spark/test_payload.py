"""Values and metadata as JSON and as MessagePack: what they are, and what null stands for."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.spark.options import Payload
from brokerd.spark.read.payload import JSON_BYTES_MAX, columns_to_read, convert_columns
from brokerd.values import Encoding

SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("encoding", pa.int8(), nullable=False),
        pa.field("metadata", pa.binary()),
    ]
)
Row = tuple[bytes, int, bytes | None]
ROWS = st.lists(
    st.one_of(
        st.tuples(st.binary(max_size=300), st.just(Encoding.BYTES)),
        st.tuples(st.text(max_size=300).map(str.encode), st.just(Encoding.TEXT)),
        st.tuples(
            st.recursive(
                st.none() | st.booleans() | st.integers(-9, 1 << 63) | st.text(max_size=5),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(max_size=3), inner, max_size=3)
                ),
                max_leaves=5,
            ).map(msgpack.packb),
            st.just(Encoding.MSGPACK),
        ),
    ).map(lambda pair: (*pair, None)),
    max_size=12,
)


def show(rows: list[Row], payload: Payload, skip: int = 0) -> tuple[list[Any], list[Any]]:
    """(values, metadata) as a query gives them; some rows before may be cut off without a copy."""
    columns = list(map(pa.array, transposed(rows), SCHEMA.types))
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA).slice(skip)
    values, metadata = convert_columns(batch, ("value", "metadata"), payload)
    return values.to_pylist(), metadata.to_pylist()


def transposed(rows: list[Row]) -> list[list[Any]]:
    return [[row[at] for row in rows] for at in range(3)]


def as_json(value: bytes, encoding: int = Encoding.MSGPACK) -> Any:
    (found,), _ = show([(value, encoding, None)], "json")
    return found


@given(ROWS, st.integers(0, 3))
def test_json_is_text_as_it_is_and_messagepack_as_json(rows: list[Row], skip: int) -> None:
    values, _ = show(rows, "json", skip)
    for (value, encoding, _), said in zip(rows[skip:], values, strict=True):
        if encoding == Encoding.MSGPACK:
            assert json.loads(said) == msgpack.unpackb(value)
        elif said is None:
            with pytest.raises(UnicodeDecodeError):
                value.decode()
        else:
            assert said == value.decode()


@given(ROWS, st.integers(0, 3))
def test_msgpack_is_one_object_each(rows: list[Row], skip: int) -> None:
    """Bytes are bin, text is str, and what is MessagePack already is as it was stored."""
    values, metadata = show(rows, "msgpack", skip)
    wanted = []
    for value, encoding, _ in rows[skip:]:
        packed = {
            Encoding.BYTES: msgpack.packb(value),
            Encoding.TEXT: msgpack.packb(value.decode("utf-8", "replace")),
            Encoding.MSGPACK: value,
        }
        wanted.append(packed[Encoding(encoding)])
    assert values == wanted
    assert metadata == [None] * len(wanted)


@pytest.mark.parametrize("length", [0, 31, 32, 255, 256, 65_535, 65_536, 70_000])
@pytest.mark.parametrize("encoding", [Encoding.BYTES, Encoding.TEXT])
def test_msgpack_of_every_length_is_what_the_library_packs(length: int, encoding: int) -> None:
    value = b"x" * length
    (found,), _ = show([(value, encoding, None)], "msgpack")
    assert found == msgpack.packb(value if encoding == Encoding.BYTES else value.decode())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "null"),
        ({"n": 1, "ü": [1.5, "x", True, None]}, '{"n": 1, "ü": [1.5, "x", true, null]}'),
        ((1 << 64) - 1, "18446744073709551615"),
        (-(1 << 63), "-9223372036854775808"),
        ("text", '"text"'),
        (b"binary", None),
        ([b"binary"], None),
        (msgpack.Timestamp(1, 2), None),
        (msgpack.ExtType(5, b"x"), None),
        (float("nan"), None),
        ([float("-inf")], None),
        ({1: "key"}, None),
        ({b"key": 1}, None),
    ],
)
def test_what_json_cannot_say_is_null(value: Any, said: str | None) -> None:
    """As in the admin API."""
    assert as_json(msgpack.packb(value)) == said


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc1",
        b"\x01\x02",
        b"\x91" * 100_000 + b"\xc0",
        b"\x91" * 500 + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xffx",
        b"\xa2\xff\xfe",
        b"\xa3\xed\xa0\x80",
        b"\xdd\x00\x10\x00\x00" + b"\x90" * (1 << 20),
    ],
)
def test_hostile_values_end_no_query(value: bytes) -> None:
    """What is no MessagePack, nests too deeply or claims too much is null, or JSON."""
    said = as_json(value)
    assert said is None or json.loads(said) is not None


def test_deep_values_end_no_query_that_is_deep_itself() -> None:
    """What does not fit on the stack any more is null."""

    def deeper(levels: int) -> Any:
        return deeper(levels - 1) if levels else as_json(b"\x91" * 500 + b"\xc0")

    assert deeper(0) == "[" * 500 + "null" + "]" * 500
    assert deeper(sys.getrecursionlimit() - 350) is None


def test_messagepack_that_is_long_is_null() -> None:
    for length, is_said in ((JSON_BYTES_MAX, True), (JSON_BYTES_MAX + 1, False)):
        value = b"\xdb" + (length - 5).to_bytes(4, "big") + b"x" * (length - 5)
        assert (as_json(value) is not None) == is_said
        assert as_json(value[5:], Encoding.BYTES) == value[5:].decode()


def test_metadata_is_json_or_as_it_was_stored() -> None:
    stored = [msgpack.packb({"trace": 7}), None, msgpack.packb({"trace": 7}), b"\xc1"]
    rows: list[Row] = [(b"", Encoding.BYTES, metadata) for metadata in stored]
    assert show(rows, "json")[1] == ['{"trace": 7}', None, '{"trace": 7}', None]
    assert show(rows, "bytes")[1] == show(rows, "msgpack")[1] == stored


def test_the_encoding_is_read_only_where_the_value_needs_it() -> None:
    assert columns_to_read(("value", "key"), "json") == ("value", "key", "encoding")
    assert columns_to_read(("encoding", "value"), "msgpack") == ("encoding", "value")
    assert columns_to_read(("value",), "bytes") == ("value",)
    assert columns_to_read(("offset", "metadata"), "json") == ("offset", "metadata")
