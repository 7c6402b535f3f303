"""Values of each type of schema as columns, and why a value does not fit."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Context, Decimal
from typing import Any

import fastavro
import msgpack
import pytest
from google.protobuf.message_factory import GetMessageClass

from brokerd.archive.typed import protobuf_values, values
from brokerd.archive.typed.avro_values import avro_decoder
from brokerd.archive.typed.json_values import json_decoder
from brokerd.archive.typed.protobuf_values import protobuf_decoder
from brokerd.archive.typed.types import Misfit, type_name
from brokerd.archive.typed.values import Decoder, NoColumns
from brokerd.schemas.protobuf import read
from brokerd.values import Encoding


def by_json(**properties: Any) -> Decoder:
    return json_decoder(json.dumps({"type": "object", "properties": properties}).encode(), ())


def by_avro(schema: Any) -> Decoder:
    return avro_decoder(json.dumps(schema).encode(), ())


def record(**fields: Any) -> dict[str, Any]:
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "r", "fields": listed}


def packed(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def reason(decoder: Decoder, value: bytes, encoding: int = Encoding.BYTES) -> str:
    with pytest.raises(Misfit) as refused:
        decoder.decode(value, encoding)
    return refused.value.text()


# -- JSON ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "kind", "value", "found"),
    [
        ({"type": "integer"}, "bigint", 3.0, 3),
        ({"type": "number"}, "double", 3, 3.0),
        ({"type": ["number", "integer", "null"]}, "double", None, None),
        ({"enum": ["a", "b"]}, "string", "a", "a"),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, "boolean", None, None),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "JSON", "a", '"a"'),
        ({"type": ["string", "integer"]}, "JSON", 1, "1"),
        ({}, "JSON", {"a": [1]}, '{"a": [1]}'),
        (True, "JSON", None, None),
        ({"type": "array", "items": {"type": "integer"}}, "array<bigint>", [1], [1]),
        ({"type": "array"}, "array<JSON>", [1, "a"], ["1", '"a"']),
        ({"additionalProperties": {"type": "string"}, "type": "object"}, "map<string, string>",
         {"a": "b"}, {"a": "b"}),
        ({"$ref": "#/properties/other"}, "bigint", 4, 4),
        ({"$ref": "#/nowhere"}, "JSON", 4, "4"),
        ({"$ref": "#/properties/x"}, "JSON", 4, "4"),
    ],
)  # fmt: skip
def test_json_types(schema: Any, kind: str, value: Any, found: Any) -> None:
    """A value without one type is JSON text; a reference in a circle, too."""
    decoder = by_json(x=schema, other={"type": "integer"})
    assert type_name(decoder.kind.field("x").type) == kind
    assert decoder.decode(json.dumps({"x": value}).encode(), Encoding.BYTES) == {"x": found}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"n": "3"}, "type mismatch at n: expected integer, got string"),
        ({"n": True}, "type mismatch at n: expected integer, got boolean"),
        ({"n": None}, "type mismatch at n: expected integer, got null"),
        ({"n": 1 << 63}, "the integer at n has more than 64 bits"),
        ({"o": {"s": 1}}, "type mismatch at o.s: expected string, got integer"),
        ({"o": {"s": "", "more": 1}}, "unexpected field: o.more"),
        ({"o": {}}, "missing required field: o.s"),
        ({"l": ["a", 1]}, "type mismatch at l.items: expected string, got integer"),
        ([], "type mismatch at $: expected object, got array"),
    ],
)
def test_json_misfits(value: Any, text: str) -> None:
    """In the words of the check of schemas, with the path."""
    inner = {
        "type": "object",
        "properties": {"s": {"type": "string"}},
        "required": ["s"],
        "additionalProperties": False,
    }
    strings = {"type": "array", "items": {"type": "string"}}
    decoder = by_json(n={"type": "integer"}, o=inner, l=strings)
    assert reason(decoder, json.dumps(value).encode()) == text


def test_json_from_messagepack_and_values_that_are_none() -> None:
    """A producer of Mamamia sends objects as MessagePack."""
    decoder = by_json(n={"type": "integer"})
    assert decoder.decode(msgpack.packb({"n": 3}), Encoding.MSGPACK) == {"n": 3}
    assert reason(decoder, b"") == "empty message"
    assert reason(decoder, b"\xff").startswith("invalid JSON message: ")
    assert reason(decoder, b'{"n": NaN}') == "invalid JSON message: NaN is not JSON"
    assert reason(decoder, b"\xc1", Encoding.MSGPACK).startswith("invalid MessagePack message: ")
    assert "too long" in reason(decoder, bytes(1 << 21), Encoding.MSGPACK)
    assert reason(decoder, b"[" * 100_000).startswith("invalid JSON message: ")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"n": 9007199254740993.0}', {"n": 9007199254740993}),
        (b'{"n": 9.223372036854775807e18}', {"n": (1 << 63) - 1}),
        (b'{"any": 9007199254740993.0}', {"any": "9007199254740993"}),
        (b'{"x": 9007199254740993.0, "n": -0.0}', {"x": 2.0**53, "n": 0}),
        (b'{"n": 1e400}', "the integer at n has more than 64 bits"),
        (b'{"x": 1e400}', "the number at x is too large"),
        (b'{"x": -1e400}', "the number at x is too large"),
        (b'{"any": 1e400}', "JSON cannot express the value at any"),
        (b'{"s": 1e400}', "type mismatch at s: expected string, got number"),
        (b'{"unknown": 1e400}', {}),
    ],
)
def test_json_numbers_that_double_would_change(text: bytes, found: Any) -> None:
    """Large integers with a fraction or exponent are exact. A number beyond double does not fit."""
    decoder = by_json(n={"type": "integer"}, x={"type": "number"}, any={}, s={"type": "string"})
    if isinstance(found, str):
        assert reason(decoder, text) == found
    else:
        assert decoder.decode(text, Encoding.BYTES) == found


def test_the_first_unexpected_field_is_told() -> None:
    """Not any of them: the error of a record is the same in every process."""
    schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    decoder = json_decoder(json.dumps(schema).encode(), ())
    names = [f"f{at}" for at in range(20)]
    for first in names:
        value = json.dumps(dict.fromkeys([first, *names])).encode()
        assert reason(decoder, value) == f"unexpected field: {first}"


def test_keys_of_messagepack_that_json_cannot_express() -> None:
    """Two keys could be one key of the map."""
    decoder = by_json(m={"type": "object", "additionalProperties": {"type": "integer"}})
    value = msgpack.packb({"m": {b"a": 1, "a": 2}})
    assert reason(decoder, value, Encoding.MSGPACK) == "JSON cannot express a key at m"


def test_a_schema_that_is_no_object_has_one_column() -> None:
    """Its name is ``content``."""
    decoder = json_decoder(b'{"type": "array", "items": {"type": "integer"}}', ())
    assert decoder.decode(b"[1, 2]", Encoding.BYTES) == {"content": [1, 2]}
    assert by_avro("long").decode(packed("long", 5), Encoding.BYTES) == {"content": 5}


# -- Avro ----------------------------------------------------------------------------------------

NOON = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("schema", "kind", "value", "found"),
    [
        ("int", "bigint", 3, 3),
        ("float", "double", 1.5, 1.5),
        ("bytes", "binary", b"\xff", b"\xff"),
        (["null", "string"], "string", None, None),
        (["int", "long", "null"], "bigint", 1 << 40, 1 << 40),
        (["int", "double"], "double", 3, 3.0),
        (["string", "bytes"], "JSON", b"\xff", '"\u00ff"'),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "string", "B", "B"),
        ({"type": "fixed", "name": "f", "size": 2}, "binary", b"ab", b"ab"),
        ({"type": "array", "items": "int"}, "array<bigint>", [1], [1]),
        ({"type": "map", "values": ["null", "int"]}, "map<string, bigint>", {"a": None},
         {"a": None}),
        ({"type": "int", "logicalType": "date"}, "date", NOON.date(), NOON.date()),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp", NOON, NOON),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp", NOON, NOON),
        ({"type": "int", "logicalType": "time-millis"}, "bigint", 5, 5),
        ({"type": "string", "logicalType": "uuid"}, "string", "a", "a"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, "decimal(5,2)",
         Decimal("1.25"), Decimal("1.25")),
    ],
)  # fmt: skip
def test_avro_types(schema: Any, kind: str, value: Any, found: Any) -> None:
    """Numbers have their widest type."""
    whole = record(x=schema)
    decoder = by_avro(whole)
    assert type_name(decoder.kind.field("x").type) == kind
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    plain = record(x=schema["type"]) if logical in ("time-millis", "uuid") else whole
    assert decoder.decode(packed(plain, {"x": value}), Encoding.BYTES) == {"x": found}


def test_avro_misfits_and_schemas_without_columns() -> None:
    """A schema that lets a few bytes take much memory has no columns."""
    decoder = by_avro(record(n="int", s="string"))
    good = packed(record(n="int", s="string"), {"n": 1, "s": "x"})
    assert reason(decoder, good + b"x") == "Avro validation failed: 1 bytes follow the value"
    assert reason(decoder, good[:-1]).startswith("Avro validation failed: ")
    assert reason(decoder, b"") == "empty message"
    assert reason(decoder, good, Encoding.MSGPACK) == "the value is MessagePack, not Avro"
    for items in ("null", {"type": "fixed", "name": "f", "size": 0}):
        with pytest.raises(NoColumns, match="an array of items without bytes"):
            by_avro(record(x={"type": "array", "items": items}))
    nulls = {f"n{at}": "null" for at in range(9)}
    few = {
        "type": "array",
        "items": {**record(n="int", **dict(list(nulls.items())[1:])), "name": "i"},
    }
    many = {**record(n="int", **nulls), "name": "i"}
    by_avro(record(x=few, y=many["fields"][0]["type"]))
    by_avro(many)
    for kind in ("array", "map"):
        holder = {"type": kind, "items": ["null", many], "values": ["null", many]}
        with pytest.raises(NoColumns, match="an array or map of i with many fields without bytes"):
            by_avro(record(x=holder))
    empty = {"type": "fixed", "name": "e", "size": 0, "logicalType": "decimal", "precision": 1}
    decimals = record(n="int", e0=empty, **{f"e{at}": "e" for at in range(1, 9)})
    with pytest.raises(NoColumns, match="an array or map of i with many fields without bytes"):
        by_avro(record(x={"type": "array", "items": {**decimals, "name": "i"}}))
    with pytest.raises(NoColumns, match="the type r holds itself"):
        by_avro(record(x=["null", "r"]))
    with pytest.raises(NoColumns, match="invalid Avro schema"):
        by_avro({"type": "record"})


@pytest.mark.parametrize("plain", ["bytes", {"type": "fixed", "name": "f", "size": 17}])
def test_a_decimal_with_more_digits_than_its_schema_allows_does_not_fit(plain: Any) -> None:
    """fastavro would round it. All digits of the schema are exact."""
    schema = plain if isinstance(plain, dict) else {"type": plain}
    for precision in (4, 38):
        decimal = {**schema, "logicalType": "decimal", "precision": precision, "scale": 2}
        for unscaled, fits in ((10**precision - 1, True), (10**precision, False)):
            for number in (unscaled, -unscaled):
                value = packed(plain, number.to_bytes(17, "big", signed=True))
                if fits:
                    found = by_avro(decimal).decode(value, Encoding.BYTES)["content"]
                    assert found == Decimal(number).scaleb(-2, Context(prec=precision))
                else:
                    assert f"more than {precision} digits" in reason(by_avro(decimal), value)


# -- Protocol Buffers ----------------------------------------------------------------------------

PROTO = b"""
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
message Order {
  int32 id = 1; uint64 big = 2; google.protobuf.Timestamp at = 3; repeated string tags = 4;
  map<int32, Part> parts = 5; Part part = 6; enum Kind { NONE = 0; SOME = 1; } Kind kind = 7;
  google.protobuf.Struct more = 8; optional string note = 9;
  google.protobuf.Int64Value count = 10; Tree tree = 11; bytes raw = 12; float price = 13;
}
message Part { string name = 1; }
message Tree { Tree next = 1; int32 n = 2; }
"""


def test_protobuf_types() -> None:
    """A message that may hold itself is JSON."""
    decoder = protobuf_decoder(PROTO, ())
    assert {one.name: type_name(one.type) for one in decoder.kind.fields} == {
        "id": "bigint",
        "big": "decimal(20,0)",
        "at": "timestamp",
        "tags": "array<string>",
        "parts": "map<string, struct<name: string>>",
        "part": "struct<name: string>",
        "kind": "string",
        "more": "JSON",
        "note": "string",
        "count": "bigint",
        "tree": "JSON",
        "raw": "binary",
        "price": "double",
    }
    message = GetMessageClass(read(PROTO).root)(
        id=5, big=2**64 - 1, tags=["a"], kind=9, raw=b"\xff", price=1.5
    )
    message.at.FromDatetime(NOON)
    message.parts[3].name = "p"
    message.more["a"] = True
    message.count.value = 4
    message.tree.next.n = 2
    assert decoder.decode(message.SerializeToString(), Encoding.BYTES) == {
        "id": 5,
        "big": Decimal(2**64 - 1),
        "at": int(NOON.timestamp()) * 1_000_000,
        "tags": ["a"],
        "parts": {"3": {"name": "p"}},
        "kind": "9",
        "more": '{"a": true}',
        "count": 4,
        "tree": '{"next": {"n": 2}}',
        "raw": b"\xff",
        "price": 1.5,
    }


def test_protobuf_misfits() -> None:
    """Required fields are of proto2."""
    decoder = protobuf_decoder(b'syntax = "proto2"; message M { required int32 n = 1; }', ())
    assert decoder.decode(b"\x08\x01", Encoding.BYTES) == {"n": 1}
    assert reason(decoder, b"\x10\x01") == "missing required field: n"
    assert reason(decoder, b"\xff").startswith("invalid Protobuf wire format: ")
    assert reason(decoder, b"") == "empty message"
    late = GetMessageClass(read(PROTO).root)()
    late.at.seconds = 1 << 40
    found = reason(protobuf_decoder(PROTO, ()), late.SerializeToString())
    assert found == "a Timestamp is not between the years 1 and 9999"
    with pytest.raises(NoColumns, match="it has no message"):
        protobuf_decoder(b'syntax = "proto3";', ())


RECURSIVE = b"""
syntax = "proto3";
import "google/protobuf/any.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
message Node {
  Node next = 1; google.protobuf.Any any = 2; google.protobuf.Value value = 3;
  google.protobuf.Timestamp at = 4;
}
"""


def test_protobuf_that_json_cannot_express_is_a_misfit() -> None:
    """Such a value ended the query and the run."""
    decoder = protobuf_decoder(RECURSIVE, ())
    message_class = GetMessageClass(read(RECURSIVE).root)
    unknown, number, late = message_class(), message_class(), message_class()
    unknown.next.any.type_url = "type.googleapis.com/some.Unknown"
    number.next.value.number_value = float("nan")
    late.next.at.seconds = 1 << 40
    for message in (unknown, number, late):
        found = reason(decoder, message.SerializeToString())
        assert found.startswith("invalid Protobuf message: ")


def test_protobuf_fields_with_names_of_methods() -> None:
    """They hide the method of the message."""
    text = b"""syntax = "proto3";
    message M { int32 HasField = 1; int32 FindInitializationErrors = 2; optional int32 n = 3; }"""
    found = protobuf_decoder(text, ()).decode(b"\x08\x05\x10\x06\x18\x07", Encoding.BYTES)
    assert found == {"HasField": 5, "FindInitializationErrors": 6, "n": 7}


SPARSE = b"""
syntax = "proto2";
message Whole {
  repeated Part parts = 1; optional int64 n = 2; optional fixed64 f = 3; optional fixed32 g = 4;
  optional bytes b = 5; map<string, Part> by_name = 6;
  repeated group Row = 7 { optional Part part = 1; optional int32 n = 2; }
}
message Part { optional int32 a = 1; optional int32 b = 2; optional Part inner = 3; }
"""
"""A part has 4 fields with itself, an entry of the map 3, and a row 3."""


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (b"\x0a\x00" * 5, 20),
        (b"\x0a\x02\x1a\x00", 8),
        (b"\x10\xff\x01\x19" + bytes(8) + b"\x25" + bytes(4) + b"\x2a\x02\x0a\x00", 0),
        (b"\x32\x05\x0a\x01a\x12\x00", 7),
        (b"\x3b\x0a\x02\x08\x01\x3c" * 2, 14),
        (b"\x4b\x4b\x0a\x00\x4c\x4c\x0a\x00", 4),
        (b"\xa2\x06\x02\x0a\x00", 0),
    ],
)
def test_protobuf_of_too_many_fields_does_not_fit(
    value: bytes, fields: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library has memory for absent fields, too: two bytes could be any number of them."""
    decoder = protobuf_decoder(SPARSE, ())
    padding = b"\x2a\x20" + bytes(32)
    monkeypatch.setattr(protobuf_values, "CELLS_MAX", fields)
    decoder.decode(value + padding, Encoding.BYTES)
    if fields:
        monkeypatch.setattr(protobuf_values, "CELLS_MAX", fields - 1)
        assert reason(decoder, value + padding) == values.TOO_MANY_CELLS


@pytest.mark.parametrize(
    "value", [b"\x0b" * 9_999, b"\x0c" * 999, b"\xff" * 999, b"\x2a\x03" * 499, b"\x10" * 999]
)
def test_protobuf_that_cannot_be_counted_is_invalid(
    value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library tells why."""
    monkeypatch.setattr(protobuf_values, "CELLS_MAX", 500)
    decoder = protobuf_decoder(SPARSE, ())
    assert reason(decoder, value).startswith("invalid Protobuf wire format: ")


def test_protobuf_fields_count_by_the_wire_type_that_the_library_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It skips a part that is sent as a group, with any nesting in it."""
    monkeypatch.setattr(protobuf_values, "CELLS_MAX", 1_000)
    decoder = protobuf_decoder(SPARSE, ())
    deep = b""
    for _ in range(110):
        size = len(deep)
        deep = b"\x1a" + bytes([size & 0x7F | 0x80, size >> 7]) + deep
    part_as_group = b"\x0b" + deep + b"\x0c"
    decoder.decode(part_as_group, Encoding.BYTES)
    assert reason(decoder, part_as_group + b"\x0a\x00" * 500) == values.TOO_MANY_CELLS


def test_protobuf_extensions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_values, "CELLS_MAX", 10)
    extended = SPARSE.replace(b"message Whole {", b"message Whole { extensions 100 to 200;")
    decoder = protobuf_decoder(extended + b"extend Whole { repeated Part more = 100; }", ())
    decoder.decode(b"\xa2\x06\x00" * 2, Encoding.BYTES)
    assert reason(decoder, b"\xa2\x06\x00" * 3) == values.TOO_MANY_CELLS
