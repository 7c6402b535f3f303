"""JSON Schemas: what is one, what a message may be, and which versions go together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerd.schemas.json_schema import JsonSchema, read
from brokerd.schemas.values import FAULTS_MAX, InvalidDefinition

ORDER = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "to": {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "additionalProperties": False,
}


def schema(definition: Any) -> JsonSchema:
    return read(json.dumps(definition).encode())


def faults(definition: Any, message: bytes) -> list[str]:
    return schema(definition).faults(message)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b'{"id": 1}', []),
        (b'{"id": 1, "price": 2, "to": {"city": "x"}, "tags": ["a"]}', []),
        (b"{}", ["missing required field: id"]),
        (b'{"id": "a"}', ["type mismatch at id: expected integer, got string"]),
        (b'{"id": 1.5}', ["type mismatch at id: expected integer, got number"]),
        (b'{"id": 1, "to": {}}', ["missing required field: to.city"]),
        (b'{"id": 1, "x": 1}', ["unexpected field: x"]),
        (b'{"id": 1, "tags": [1]}', ["type mismatch at tags.0: expected string, got integer"]),
        (b"[]", ["type mismatch at $: expected object, got array"]),
        (b'{"id": true}', ["type mismatch at id: expected integer, got boolean"]),
    ],
)
def test_a_message_is_told_what_does_not_fit(message: bytes, expected: list[str]) -> None:
    """In the reference's words."""
    assert faults(ORDER, message) == expected


@pytest.mark.parametrize(
    "message",
    [b"", b"{", b"\xff", b"nan", b"[NaN]", b"[" * 100_000, b"1" * 5_000, b'{"id": 1} x'],
)
def test_what_is_no_json_is_told_so(message: bytes) -> None:
    (text,) = faults(ORDER, message)
    assert text.startswith("invalid JSON message: ")
    assert len(text) <= 300


def test_other_keywords_hold_too() -> None:
    """Those that the reference does not know."""
    definition = {"properties": {"n": {"enum": [1, 2], "minimum": 1}, "s": {"pattern": "^a+$"}}}
    assert faults(definition, b'{"n": 2, "s": "aa"}') == []
    assert faults(definition, b'{"n": 3}') == ["n: 3 is not one of [1, 2]"]
    assert faults(definition, b'{"s": "b"}') == ["s: 'b' does not match '^a+$'"]


def test_what_two_keywords_say_of_a_missing_field_is_told_once() -> None:
    assert faults({"required": ["a", "b"]}, b"{}") == [
        "missing required field: a",
        "missing required field: b",
    ]


def test_faults_are_counted_and_cut() -> None:
    """A message with a million faults has a short answer."""
    expected = faults({"items": {"type": "null"}}, json.dumps(["x"] * 100_000).encode())
    assert len(expected) == FAULTS_MAX
    (text,) = faults({"enum": [1]}, json.dumps("y" * 10_000).encode())
    assert len(text) == 300


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "invalid JSON schema: "),
        (b"[]", "invalid JSON schema: an object is expected, not array"),
        (b"true", "invalid JSON schema: an object is expected, not boolean"),
        (b"\xff", "invalid JSON schema: it is not UTF-8 at byte 0"),
        (b'{"type": "text"}', "invalid JSON schema: type: 'text' is not valid under any of"),
        (b'{"properties": []}', "invalid JSON schema: properties: [] is not of type 'object'"),
        (b'{"pattern": "("}', "invalid JSON schema: pattern: '(' is not a 'regex'"),
        (b'{"a":' * 20_000, "invalid JSON schema: it is nested too deeply"),
        (b'{"$ref": "http://127.0.0.1:1/x"}', "leads out of the schema or nowhere"),
        (b'{"$dynamicRef": "http://127.0.0.1:1/x#a"}', "leads out of the schema or nowhere"),
        (b'{"$ref": "file:///etc/passwd"}', "leads out of the schema or nowhere"),
        (b'{"properties": {"a": {"$ref": "#/$defs/a"}}}', "leads out of the schema or nowhere"),
    ],
)
def test_what_is_no_schema_is_refused(text: bytes, why: str) -> None:
    """And nothing is fetched."""
    with pytest.raises(InvalidDefinition) as refused:
        read(text)
    assert why in str(refused.value)
    assert len(str(refused.value)) <= 300


def test_references_inside_the_schema_are_followed() -> None:
    """By pointer, by anchor, by id, and to a meta-schema."""
    definition = {
        "$id": "http://a.example/root",
        "properties": {
            "a": {"$ref": "#/$defs/text"},
            "b": {"$ref": "#here"},
            "c": {"$ref": "other"},
            "d": {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        },
        "$defs": {
            "text": {"type": "string"},
            "anchored": {"$anchor": "here", "type": "integer"},
            "other": {"$id": "other", "type": "null"},
        },
    }
    assert faults(definition, b'{"a": "x", "b": 1, "c": null, "d": {}}') == []
    assert len(faults(definition, b'{"a": 1, "b": "x", "c": 1, "d": {"type": 1}}')) == 4


def test_a_reference_that_hides_where_no_schema_belongs_is_not_fetched_either() -> None:
    """What follows an unknown keyword is looked at when a message leads there."""
    definition = {"$ref": "#/hidden", "hidden": {"$ref": "http://127.0.0.1:1/x"}}
    (text,) = faults(definition, b"1")
    assert text.startswith("the schema has an unresolvable reference: ")


def test_a_reference_that_leads_to_itself_ends() -> None:
    assert faults({"$ref": "#"}, b"{}") == ["the schema recurses without end with this message"]


def test_older_drafts_are_read_as_what_they_are() -> None:
    """Draft 4 has exclusiveMinimum as a boolean."""
    draft4 = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "minimum": 1,
        "exclusiveMinimum": True,
    }
    assert faults(draft4, b"2") == []
    assert len(faults(draft4, b"1")) == 1


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ({"required": ["id"]}, {"required": ["id"]}, None),
        ({"properties": {"a": {}}}, {"required": ["a"]}, None),
        ({}, {"required": ["x"]}, "new required field 'x' not in old schema"),
        (
            {"properties": {"to": {}}},
            {"properties": {"to": {"required": ["x"]}}},
            "new required field 'to.x' not in old schema",
        ),
        (
            {"properties": {"a": {"type": "string"}}},
            {"properties": {"a": {"type": "integer"}}},
            "field 'a' was string in the old schema, and may be integer now",
        ),
        ({"type": "integer"}, {"type": "number"}, None),
        ({"type": "number"}, {"type": "integer"}, "the message was number in the old schema"),
        ({"type": "string"}, {"type": ["string", "null"]}, None),
        ({"type": ["string", "null"]}, {"type": "string"}, "the message was null in the old"),
        ({}, {"type": "string"}, "the message was of any type in the old schema"),
        ({"type": "string"}, {}, None),
        (
            {"items": {"type": "string"}},
            {"items": {"type": "null"}},
            "field 'items' was string in the old schema",
        ),
        ({"enum": [1]}, {"enum": [1, 2]}, None),
        ({"enum": [1, 2]}, {"enum": [1]}, "the message might be 2 in the old schema"),
        ({"type": "integer"}, {"type": "integer", "enum": [1]}, "the message had no enum"),
        (
            {"properties": {"a": {}}},
            {"properties": {"b": {}}, "additionalProperties": False},
            "field 'a' of the old schema is not allowed any more",
        ),
    ],
)
def test_a_new_version_reads_what_the_old_one_allows_or_says_why(
    old: Any, new: Any, why: str | None
) -> None:
    found = schema(new).incompatibility(schema(old))
    assert found is None if why is None else why in (found or "")


def test_lone_surrogates_are_told_as_their_escapes() -> None:
    """A text with them could not be sent."""
    (text,) = faults({"properties": {"\ud800": {"type": "string"}}}, b'{"\\ud800": 1}')
    assert text == "type mismatch at \\ud800: expected string, got integer"
    (text,) = faults({"required": ["\ud801"]}, b"{}")
    assert text == "missing required field: \\ud801"


def test_a_number_that_is_too_large_is_told() -> None:
    """In a message, and in a definition."""
    (text,) = faults({"multipleOf": 0.5}, b"1" + b"0" * 400)
    assert text == "a number is too large to be checked: int too large to convert to float"
    with pytest.raises(InvalidDefinition, match="the repetition number is too large"):
        schema({"pattern": "a{99999999999999999999}"})
