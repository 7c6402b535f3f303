"""Avro schemas: what is one, what a message may be, and which versions go together."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer

from brokerd.schemas.avro import AvroSchema, read
from brokerd.schemas.values import InvalidDefinition

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "to", "type": "string"}],
}


def schema(definition: Any) -> AvroSchema:
    return read(json.dumps(definition).encode())


def record(*fields: Any, name: str = "R", **more: Any) -> Any:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> Any:
    return {"name": name, "type": kind, **more}


def written(definition: Any, value: Any) -> bytes:
    stream = BytesIO()
    schemaless_writer(stream, parse_schema(definition), value)
    return stream.getvalue()


def test_a_message_is_one_value_in_the_binary_encoding() -> None:
    message = written(ORDER, {"id": 7, "to": "ann"})
    order = schema(ORDER)
    assert order.faults(message) == []
    assert order.faults(b"") == ["empty message"]
    assert order.faults(message + b"xy") == ["Avro validation failed: 2 bytes follow the value"]
    for cut in range(1, len(message)):
        (text,) = order.faults(message[:cut])
        assert text.startswith("Avro validation failed: ")
    (text,) = order.faults(b'{"id": 7, "to": "ann"}')
    assert text.startswith("Avro validation failed: ")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"{}",
        b'"nope"',
        b"7",
        b"null",
        b"\xff",
        b'{"type": "enum", "name": "A"}',
        b'{"type": "fixed", "name": "A"}',
        b'{"type": "map"}',
        b'{"type": "record", "name": "A", "fields": [{"name": "x"}]}',
        b'{"type": "enum", "name": "A", "symbols": [1]}',
        b'{"type": "array"}',
        b"[" * 50_000,
    ],
)
def test_what_is_no_schema_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidDefinition, match=r"invalid Avro schema: ."):
        read(text)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("int", "long", None),
        ("long", "int", "the value was long in the old schema, and is int"),
        ("int", "double", None),
        ("string", "bytes", None),
        ("string", "int", "was string"),
        ("int", ["null", "int"], None),
        ("string", ["null", "int"], "no branch of the union reads string"),
        (["null", "int"], "int", "was null"),
        (["null", "int"], ["int", "string", "null"], None),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, None),
        ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}, "values was long"),
        (record(), record(field("a", "int", default=1)), None),
        (record(), record(field("a", "int")), "new field 'a' without a default"),
        (record(field("a", "int")), record(), None),
        (record(field("a", "int")), record(field("b", "int", aliases=["a"])), None),
        (record(field("a", "int")), record(field("a", "string")), "a was int"),
        (record(name="R"), record(name="S"), "was R in the old schema, and is S"),
        (record(name="R"), record(name="S", aliases=["R"]), None),
        (record(name="R"), record(name="R", namespace="x.y"), None),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            "lacks the symbol B",
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
            None,
        ),
        (
            {"type": "fixed", "name": "F", "size": 4},
            {"type": "fixed", "name": "F", "size": 5},
            "had 4 bytes, and has 5",
        ),
        (
            record(field("next", ["null", "R"])),
            record(field("next", ["null", "R"]), field("x", "int")),
            "new field 'x' without a default",
        ),
        (
            record(field("next", ["null", "R"])),
            record(field("next", ["null", "R"]), field("x", "int", default=1)),
            None,
        ),
    ],
)
def test_a_new_version_resolves_what_the_old_one_wrote_or_says_why(
    old: Any, new: Any, why: str | None
) -> None:
    found = schema(new).incompatibility(schema(old))
    assert found is None if why is None else why in (found or "")


def test_a_branch_that_does_not_fit_says_nothing_of_the_others() -> None:
    """What was compared for it is compared again where it stands alone."""
    inner = record(field("a", "int"), name="Inner")
    old = record(field("f", inner), field("g", "Inner"), name="Top")
    other = record(field("a", "int"), name="Other", aliases=["Inner"])
    wrong = record(field("a", "string"), name="Inner")
    new = record(field("f", [wrong, other]), field("g", "Inner"), name="Top")
    assert "g.a was int" in (schema(new).incompatibility(schema(old)) or "")
