"""Protobuf schemas: what is one, what a message may be, and which versions go together."""

from __future__ import annotations

import os

import pytest

from brokerd.schemas.protobuf import ProtobufSchema, read
from brokerd.schemas.values import InvalidDefinition

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int32 id = 1;
  string to = 2;
  google.protobuf.Timestamp at = 3;
  repeated Line lines = 4;
}
message Line { int32 count = 1; }
"""


def schema(text: str) -> ProtobufSchema:
    return read(text.encode())


def order(fields: str, syntax: str = "proto3") -> ProtobufSchema:
    return schema(f'syntax = "{syntax}"; message Order {{ {fields} }} message Inner {{}}')


def test_a_message_is_one_of_the_first_type() -> None:
    found = schema(ORDER)
    assert found.faults(b"\x08\x07\x12\x03ann") == []
    assert found.faults(b"\x22\x02\x08\x01") == []
    assert found.faults(b"\x78\x01") == []  # a field that the schema does not know
    assert found.faults(b"") == ["empty message"]
    (text,) = found.faults(b"\x08")
    assert text.startswith("invalid Protobuf wire format: ")
    (text,) = found.faults(b"\x12\x01\xff")
    assert "UTF-8" in text


def test_a_required_field_is_missed() -> None:
    """Of the older syntax."""
    assert order("required int32 id = 1; optional int32 x = 2;", "proto2").faults(b"\x10\x01") == [
        "missing required field: id"
    ]


def test_the_compiler_says_where_and_what_and_writes_nothing_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Not to the broker's own output, and no path of the machine."""
    with pytest.raises(InvalidDefinition) as refused:
        read(b'syntax = "proto3"; message A { foo }')
    assert str(refused.value).startswith("invalid Protobuf schema: 1:36: Expected field name.")
    os.write(2, b"what others say")
    assert capfd.readouterr() == ("", "what others say")


@pytest.mark.parametrize(
    "text",
    [
        "",
        'syntax = "proto3";',
        "\x00\xff",
        'import "/etc/passwd"; message A {}',
        'import "../x.proto"; message A {}',
        'import "schema.proto"; message A {}',
        "message A { A a = 1 }",
        "message A {} message A {}",
        "message A { map<string, Nope> x = 1; }",
        "message " * 10_000,
        "message A {" * 10_000,
    ],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    """Nor one that imports what is not under google/protobuf."""
    with pytest.raises(InvalidDefinition, match=r"invalid Protobuf schema: .") as refused:
        schema(text)
    assert "/tmp" not in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("int32 a = 1;", "int32 a = 1; string b = 2;", None),
        ("int32 a = 1; string b = 2;", "int32 a = 1;", None),
        ("int32 a = 1;", "int64 renamed = 1;", None),
        ("string a = 1;", "bytes a = 1;", None),
        ("int32 a = 1;", "string a = 1;", "Order.a (number 1) was int32 in the old schema"),
        ("int32 a = 1;", "sint32 a = 1;", "was int32 in the old schema, and is sint32"),
        ("int32 a = 1;", "repeated int32 a = 1;", "is repeated now"),
        ("repeated int32 a = 1;", "int32 a = 1;", "was repeated in the old schema"),
        ("Inner a = 1;", "string a = 1;", "was message"),
    ],
)
def test_a_new_version_reads_what_the_old_one_wrote_or_says_why(
    old: str, new: str, why: str | None
) -> None:
    found = order(new).incompatibility(order(old))
    assert found is None if why is None else why in (found or "")


def test_fields_inside_of_messages_are_compared() -> None:
    """Also of a message that holds itself."""
    text = 'syntax = "proto3"; message A { B b = 1; A next = 2; } message B { KIND x = 1; }'
    new, old = schema(text.replace("KIND", "string")), schema(text.replace("KIND", "int32"))
    assert new.incompatibility(old) == ("B.x (number 1) was int32 in the old schema, and is string")
    assert new.incompatibility(new) is None


def test_no_field_becomes_required() -> None:
    new = order("required int32 a = 1;", "proto2")
    old = order("optional int32 a = 1;", "proto2")
    assert new.incompatibility(old) == (
        "Order.a (number 1) is required, and was not in the old schema"
    )
    assert old.incompatibility(new) is None
