"""The sink's columns: those of Spark's sink for Kafka, as records of brokerd."""

from __future__ import annotations

from typing import Any

import msgpack
import pyarrow as pa
import pytest

from brokerd.codecs.mamamia import BatchMessage
from brokerd.spark.sink.columns import HEADERS, BadColumns, BadRow, check_columns, messages_of
from brokerd.values import Encoding

HEADER = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
WHOLE = [
    ("key", "binary"),
    ("value", "string"),
    ("headers", HEADERS),
    ("topic", "string"),
    ("partition", "int"),
]


def batch(**columns: tuple[list[Any], pa.DataType]) -> pa.RecordBatch:
    arrays = [pa.array(values, kind) for values, kind in columns.values()]
    return pa.record_batch(arrays, names=list(columns))


def test_the_columns_of_kafka_are_accepted_in_any_order() -> None:
    check_columns(WHOLE, None)
    check_columns(WHOLE[::-1], "orders")
    check_columns([("value", "binary")], "orders")


@pytest.mark.parametrize(
    ("columns", "topic", "said"),
    [
        ([("key", "binary")], "a", "the column value is missing"),
        ([("value", "binary")], None, "set the option topic, or add a column topic"),
        ([("value", "bigint")], "a", "value has the type bigint: cast it to binary or string"),
        ([("value", "string"), ("partition", "bigint")], "a", "cast it to int"),
        ([("value", "string"), ("headers", "map<string,string>")], "a", "cast it to array<struct"),
        ([("value", "string"), ("amount", "double")], "a", "cannot write the column 'amount'"),
        ([("value", "string"), ("value", "string")], "a", "the column value is there twice"),
        ([("Value", "string")], "a", "cannot write the column 'Value'"),
    ],
)
def test_wrong_columns_are_named_with_what_is_allowed(
    columns: list[tuple[str, str]], topic: str | None, said: str
) -> None:
    with pytest.raises(BadColumns) as refused:
        check_columns(columns, topic)
    assert said in str(refused.value)


def test_a_row_becomes_a_message() -> None:
    """Text stays text; a null value is empty, as a tombstone is; headers are metadata."""
    rows = batch(
        key=([b"k", None, None], pa.binary()),
        value=(["é", None, ""], pa.string()),
        headers=([[("trace", b"\x01"), ("none", None)], [], None], HEADER),
        topic=(["one", "two", "one"], pa.string()),
        partition=([2, None, 0], pa.int32()),
    )
    found = [(topic, message) for topic, message, _ in messages_of(rows, None)]
    metadata = msgpack.packb({"trace": b"\x01", "none": None})
    assert found == [
        ("one", BatchMessage("é".encode(), Encoding.TEXT, metadata, b"k", 2)),
        ("two", BatchMessage(b"", Encoding.TEXT)),
        ("one", BatchMessage(b"", Encoding.TEXT, partition=0)),
    ]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary(), pa.binary()])
def test_large_types_are_the_same(kind: pa.DataType) -> None:
    value: Any = "x" if kind == pa.large_string() else b"x"
    ((_, message, _),) = messages_of(batch(value=([value], kind)), "orders")
    assert message.value == b"x"
    assert (message.encoding == Encoding.TEXT) == (kind == pa.large_string())


def test_the_option_topic_overrides_the_column() -> None:
    rows = batch(value=([b"x"], pa.binary()), topic=(["column"], pa.string()))
    assert [one.topic for one in messages_of(rows, "option")] == ["option"]
    assert [one.topic for one in messages_of(rows, None)] == ["column"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"topic": ([None], pa.string())}, "the column topic is null"),
        ({"topic": (["a\x00"], pa.string())}, "control characters"),
        ({"topic": (["x" * 256], pa.string())}, "1 to 255 bytes"),
        ({"partition": ([-1], pa.int32())}, "has the partition -1: give null, or 0 to 32766"),
        ({"partition": ([32_767], pa.int32())}, "has the partition 32767"),
        ({"headers": ([[("a", b""), ("a", b"")]], HEADER)}, "the header 'a' twice"),
        ({"headers": ([[(None, b"")]], HEADER)}, "a header without a key"),
        ({"headers": ([[None]], HEADER)}, "a header without a key"),
        ({"value": ([b"x" * (10 << 20)], pa.binary())}, "too large"),
    ],
)
def test_a_row_that_no_record_can_be_is_refused(columns: dict[str, Any], said: str) -> None:
    rows = {"value": ([b"x"], pa.binary()), "topic": (["orders"], pa.string()), **columns}
    with pytest.raises(BadRow, match=said):
        list(messages_of(batch(**rows), None))
