"""The columns of a topic over the versions of its schema, and the version of a record."""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa
import pytest

from brokerd.archive.contract.schemas import StoredSchema
from brokerd.archive.typed import topic_schema
from brokerd.archive.typed.topic_schema import TopicSchema
from brokerd.archive.typed.types import type_name
from brokerd.archive.typed.values import TOO_MANY_CELLS, LibraryMissing


def version(number: int, created_us: int, **properties: Any) -> StoredSchema:
    required = properties.pop("required", [])
    text = {"type": "object", "properties": properties, "required": required}
    return StoredSchema("t", number, "json", json.dumps(text).encode(), created_us)


def rows(topic: TopicSchema, *values: tuple[int, Any]) -> list[tuple[Any, Any, Any]]:
    """The version, the error and the columns of values at some times."""
    texts = [one if isinstance(one, bytes) else json.dumps(one).encode() for _, one in values]
    parts = topic.convert(
        pa.array(texts, pa.binary()),
        pa.array([0] * len(texts), pa.int8()),
        pa.array([time for time, _ in values], pa.int64()),
    )
    return [row for one in parts for row in zip(*(c.to_pylist() for c in one), strict=True)]


LONG, DOUBLE, TEXT = {"type": "integer"}, {"type": "number"}, {"type": "string"}


def test_fields_are_added_and_numbers_widened() -> None:
    """Also inside of objects and arrays; the order is that of the first version with a field."""
    first = version(1, 0, n=LONG, inner={"type": "object", "properties": {"a": LONG}})
    second = version(
        *(2, 9),
        new=TEXT,
        n=DOUBLE,
        inner={"type": "object", "properties": {"b": TEXT, "a": DOUBLE}},
    )
    topic = TopicSchema([first, second])
    assert not topic.conflicts
    assert type_name(topic.kind) == (
        "struct<n: double, inner: struct<a: double, b: string>, new: string>"
    )
    old, new = rows(topic, (5, {"n": 1, "inner": {"a": 2}}), (9, {"n": 1.5, "inner": {"b": "x"}}))
    assert old == (1, None, {"n": 1.0, "inner": {"a": 2.0, "b": None}, "new": None})
    assert new == (2, None, {"n": 1.5, "inner": {"a": None, "b": "x"}, "new": None})


def test_a_column_keeps_its_type_and_the_conflict_is_told() -> None:
    """A value of the other type is an error, a null is not."""
    other = version(2, 9, n={"type": ["string", "null"]}, m=TEXT, required=["m"])
    topic = TopicSchema([version(1, 0, n=LONG), other])
    assert [one.text() for one in topic.conflicts] == [
        "column n stays bigint, and version 2 has string"
    ]
    refused, null = rows(topic, (9, {"n": "x", "m": "y"}), (9, {"n": None, "m": "y"}))
    assert refused[:2] == (None, "version 2: column n is bigint, and the value string")
    assert null == (2, None, {"n": None, "m": "y"})


def test_bytes_that_a_version_reads_are_not_read_by_an_older_one() -> None:
    """After a conflict an older version of Avro or Protobuf could find other values in them."""

    def proto(fields: str) -> bytes:
        return f'syntax = "proto3"; message M {{ {fields} }}'.encode()

    def avro(**fields: str) -> bytes:
        listed = [{"name": name, "type": kind} for name, kind in fields.items()]
        return json.dumps({"type": "record", "name": "r", "fields": listed}).encode()

    for type_, old, new, value in (
        ("protobuf", proto("int64 n = 1;"), proto("string n = 2;"), b"\x12\x015"),
        ("avro", avro(n="long", m="long"), avro(n="string"), b"\x025"),
    ):
        texts = enumerate((old, new), 1)
        topic = TopicSchema([StoredSchema("t", at, type_, text, at * 10) for at, text in texts])
        expected = "version 2: column n is bigint, and the value string"
        assert rows(topic, (25, value))[0][:2] == (None, expected)


def test_json_of_a_changed_type_has_the_older_version_that_it_fits() -> None:
    """JSON names its fields and types."""
    topic = TopicSchema([version(1, 0, n=LONG), version(2, 9, n={"type": ["integer", "string"]})])
    fits, refused = rows(topic, (9, {"n": 5}), (9, {"n": "x"}))
    assert fits == (1, None, {"n": 5})
    assert refused[:2] == (None, "version 2: column n is bigint, and the value JSON")


def test_a_record_has_the_latest_version_of_its_time_that_it_fits() -> None:
    """A later version never changes it; one before the first version has the first."""
    needs = [version(n, n * 10, **{f"f{n}": LONG}, required=[f"f{n}"]) for n in (1, 2, 3, 4, 5)]
    topic = TopicSchema(needs)
    found = rows(
        topic,
        (5, {"f1": 1}),
        (25, {"f2": 1}),
        (25, {"f1": 1}),
        (25, {"f3": 1}),
        (55, {"f3": 1}),
        (55, {"f2": 1}),
    )
    assert [one[0] for one in found] == [1, 2, 1, None, 3, None]
    assert found[3][1] == "version 2: missing required field: f2"


def test_names_of_columns_differ_from_each_other_and_from_those_of_records() -> None:
    """Also without regard to case, and without characters that Delta refuses."""
    topic = TopicSchema([version(1, 0, **{"key": TEXT, "Offset": LONG, "a b": LONG, "A_b": LONG})])
    assert topic.kind.names == ["value_key", "value_Offset", "a_b", "A_b_2"]


def test_fields_of_different_versions_have_columns_of_their_own() -> None:
    """Names that differ in case or in characters that columns cannot have are not mixed."""
    inner = {"type": "object", "properties": {"Deep": LONG}}
    versions = [
        version(1, 0, name=TEXT, x_y=TEXT, inner={"type": "object", "properties": {"deep": TEXT}}),
        version(2, 9, **{"NAME": TEXT, "x y": LONG, "x_y": TEXT}, inner=inner),
    ]
    topic = TopicSchema(versions)
    assert not topic.conflicts
    assert topic.has_renamed
    assert type_name(topic.kind) == (
        "struct<name: string, x_y: string, inner: struct<deep: string, Deep_2: bigint>, "
        "NAME_2: string, x_y_2: bigint>"
    )
    values = (
        (5, {"name": "a", "x_y": "b", "inner": {"deep": "c"}}),
        (9, {"NAME": "d", "x y": 1, "x_y": "e", "inner": {"Deep": 2}}),
    )
    old = {"name": "a", "x_y": "b", "inner": {"deep": "c", "Deep_2": None}}
    new = {"name": None, "x_y": "e", "inner": {"deep": None, "Deep_2": 2}}
    expected = [
        (1, None, {**old, "NAME_2": None, "x_y_2": None}),
        (2, None, {**new, "NAME_2": "d", "x_y_2": 1}),
    ]
    assert rows(topic, *values) == expected
    assert rows(TopicSchema(versions, topic.stored_kind), *values) == expected
    assert not TopicSchema(versions[:1]).has_renamed


def test_the_column_of_whole_values_is_not_that_of_a_field() -> None:
    """A schema may become one with fields, also with a field ``content``."""
    whole = StoredSchema("t", 1, "json", b'{"type": "integer"}', 0)
    topic = TopicSchema([whole, version(2, 9, content=LONG)])
    assert rows(topic, (5, 1), (9, {"content": 2})) == [
        (1, None, {"content": 1, "content_2": None}),
        (2, None, {"content": None, "content_2": 2}),
    ]


def test_a_stream_that_lacks_a_column_leaves_its_field_out() -> None:
    """Also if the field has the name of another column."""
    first, second = version(1, 0, name=TEXT), version(2, 9, NAME=TEXT)
    topic = TopicSchema([first, second], TopicSchema([first]).stored_kind)
    assert rows(topic, (9, {"NAME": "x"})) == [(2, None, {"name": None})]
    swapped = [version(1, 0, x_y=TEXT), version(2, 9, **{"x y": TEXT, "x_y": TEXT})]
    topic = TopicSchema(swapped, TopicSchema(swapped[:1]).stored_kind)
    assert rows(topic, (9, {"x y": "a", "x_y": "b"})) == [(2, None, {"x_y": "b"})]


def test_a_version_without_columns_is_a_problem_of_its_own() -> None:
    """The other versions have theirs."""
    loop = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "next", "type": ["null", "r"]}, {"name": "n", "type": "int"}],
    }
    broken = StoredSchema("t", 2, "avro", json.dumps(loop).encode(), 9)
    topic = TopicSchema([version(1, 0, n=LONG, required=["n"]), broken])
    assert topic.problems == {2: "the type r holds itself"}
    assert rows(topic, (9, {"n": 1}), (9, b"\x00\x02")) == [
        (1, None, {"n": 1}),
        (None, "version 2: the type r holds itself", None),
    ]


def test_text_that_arrow_refuses_is_an_error_of_its_row() -> None:
    """Half of a surrogate pair is JSON, and not UTF-8."""
    topic = TopicSchema([version(1, 0, s=TEXT)])
    bad, good = rows(topic, (1, b'{"s": "\\ud800"}'), (1, {"s": "x"}))
    assert bad[0] is None
    assert "surrogates not allowed" in bad[1]
    assert good == (1, None, {"s": "x"})


def test_columns_of_a_stream_stay_though_versions_come() -> None:
    """A field without a column is left out, and a wider value is an error."""
    kind = TopicSchema([version(1, 0, n=LONG)]).stored_kind
    topic = TopicSchema([version(1, 0, n=LONG), version(2, 9, n=DOUBLE, m=TEXT)], kind)
    old, wide = rows(topic, (1, {"n": 3}), (9, {"n": 1.5, "m": "x"}))
    assert old == (1, None, {"n": 3})
    assert wide[:2] == (None, "version 2: column n is bigint, and the value double")


@pytest.mark.parametrize("type_", ["json", "avro", "protobuf"])
def test_references_do_not_multiply_columns(type_: str) -> None:
    """Each of 30 types holds the next one twice: two to the thirtieth columns."""
    if type_ == "json":
        inner = {
            f"t{n}": {
                "type": "object",
                "properties": {key: {"$ref": f"#/$defs/t{n + 1}"} for key in "ab"},
            }
            for n in range(30)
        }
        text = json.dumps({"$defs": inner, **inner["t0"]})
    elif type_ == "avro":
        kind: Any = "int"
        for n in range(30):
            fields = [{"name": "a", "type": kind}]
            fields.append({"name": "b", "type": "int" if n == 0 else f"t{n - 1}"})
            kind = {"type": "record", "name": f"t{n}", "fields": fields}
        text = json.dumps(kind)
    else:
        parts = [f"message T{n} {{ T{n + 1} a = 1; T{n + 1} b = 2; }}" for n in range(30)]
        text = 'syntax = "proto3";' + "\n".join([*parts, "message T30 { int32 n = 1; }"])
    topic = TopicSchema([StoredSchema("t", 1, type_, text.encode(), 0)])
    assert topic.problems == {1: "it has more than 2000 columns"}


def test_lone_surrogates_of_hostile_json_are_an_error_of_their_row() -> None:
    """Texts of UTF-8 cannot hold them; the other rows are converted."""
    closed = {"type": "object", "properties": {"n": LONG}, "additionalProperties": False}
    topic = TopicSchema([StoredSchema("t", 1, "json", json.dumps(closed).encode(), 0)])
    bad, good = rows(topic, (5, {"\ud800": 1}), (5, {"n": 1}))
    assert bad == (None, "version 1: unexpected field: \\ud800", None)
    assert good == (1, None, {"n": 1})


def test_arrays_and_maps_of_too_many_fields_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent fields count, because columns have space for them: {} could be any number of them."""
    item = {"type": "object", "properties": {"a": LONG, "b": {"type": "array", "items": LONG}}}
    topic = TopicSchema(
        [
            version(
                *(1, 0),
                l={"type": "array", "items": item},
                m={"type": "object", "additionalProperties": item},
            )
        ]
    )
    monkeypatch.setattr(topic_schema, "CELLS_MAX", 12)
    values = [
        {"l": [{}] * 4},
        {"l": [{}] * 5},
        {"m": {key: {} for key in "abc"}},
        {"m": {key: {} for key in "abcd"}},
        {"l": [{"b": [1] * 9}], "m": None},
        {"l": [{"b": [1] * 9}]},
        {"l": [{"b": [1] * 10}]},
        {},
    ]
    found = rows(topic, *((5, one) for one in values))
    too_many = f"version 1: {TOO_MANY_CELLS}"
    null = "version 1: type mismatch at m: expected object, got null"
    assert [one[1] for one in found] == [
        *(None, too_many, None, too_many, null, None, too_many, None)
    ]
    assert found[0][2]["l"] == [{"a": None, "b": None}] * 4


def test_records_with_many_fields_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a few records have to be in memory at once."""
    monkeypatch.setattr(topic_schema, "PART_CELLS", 3)
    topic = TopicSchema([version(1, 0, l={"type": "array", "items": LONG})])
    texts = [json.dumps({"l": [1] * size}).encode() for size in (1, 1, 1, 5, 1, 1)]
    arrays = pa.array(texts), pa.array([0] * 6, pa.int8()), pa.array([5] * 6)
    assert [len(one.versions) for one in topic.convert(*arrays)] == [3, 1, 2]
    assert list(topic.convert(*(one[:0] for one in arrays))) == []


def test_columns_have_no_characters_that_files_refuse() -> None:
    """A schema may have fields of any name."""
    names = {"\ud800": TEXT, "a\x00b": TEXT, "c\x1f": LONG}
    topic = TopicSchema([version(1, 0, **names)])
    assert topic.kind.names == ["_", "a_b", "c_"]
    topic = TopicSchema([version(1, 0, n=LONG, required=[5, ["n"], "n"])])
    assert rows(topic, (5, {}))[0][1] == "version 1: missing required field: n"


def test_a_record_that_is_null_has_null_columns() -> None:
    """Also if a later version has further columns."""
    fields = [{"name": "n", "type": "long"}, {"name": "s", "type": "double"}]
    schemas = [
        ["null", {"type": "record", "name": "r", "fields": fields[:count]}] for count in (1, 2)
    ]
    topic = TopicSchema(
        [
            StoredSchema("t", at, "avro", json.dumps(one).encode(), at * 10)
            for at, one in enumerate(schemas, 1)
        ]
    )
    null, first, second = rows(topic, (15, b"\0"), (15, b"\2\2"), (25, b"\0"))
    assert null == (1, None, {"n": None, "s": None})
    assert first == (1, None, {"n": 1, "s": None})
    assert second == (2, None, {"n": None, "s": None})


def test_messages_without_fields_have_no_column() -> None:
    """Parquet has no such type. A field that comes later makes a column."""
    empty = {"type": "record", "name": "E", "fields": []}
    inner = {"type": "record", "name": "I", "fields": [{"name": "e", "type": "E"}]}
    texts = []
    for fields in ([], [{"name": "a", "type": "long"}]):
        listed = [
            {"name": "e", "type": {**empty, "fields": fields}},
            {"name": "n", "type": "long"},
            {"name": "i", "type": inner},
            {"name": "m", "type": {"type": "map", "values": "E"}},
        ]
        texts.append(json.dumps({"type": "record", "name": "R", "fields": listed}).encode())
    first, second = (
        StoredSchema("t", at + 1, "avro", text, at * 9) for at, text in enumerate(texts)
    )
    topic = TopicSchema([first])
    assert type_name(topic.stored_kind) == "struct<n: bigint>"
    assert rows(topic, (5, b"\x04\x00")) == [(1, None, {"n": 2})]
    topic = TopicSchema([first, second])
    assert not topic.conflicts
    old, new = rows(topic, (5, b"\x04\x00"), (9, b"\x06\x04\x06\x00"))
    assert old == (1, None, {"e": {"a": None}, "n": 2, "i": {"e": {"a": None}}, "m": []})
    assert new == (2, None, {"e": {"a": 3}, "n": 2, "i": {"e": {"a": 3}}, "m": []})


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("avro", "fastavro is not installed: pip install 'brokerd\\[schemas\\]'"),
        ("protobuf", "google.protobuf.message is not installed"),
        ("later", "schemas of type 'later' are unknown: upgrade brokerd"),
    ],
)
def test_no_record_is_rejected_for_a_missing_library(
    kind: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejected records stay rejected, so that the next installation could not mend them."""
    for name in ("fastavro", "google.protobuf.message"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LibraryMissing, match=problem):
        TopicSchema([StoredSchema("t", 1, kind, b'"long"', 0)])
