"""Questions about schemas and their answers, in bytes, as the broker and processes have them."""

from __future__ import annotations

import builtins
import json
import sys
from typing import Any

import pytest

from brokerd.errors import IncompatibleSchema, InvalidRequest, InvalidSchema, SchemaCheckFailed
from brokerd.schemas import checks
from brokerd.schemas.checks import Checks, registration, validation
from brokerd.schemas.values import Definition, Mode, SchemaType, fault_text, parse_mode, parse_type

V1: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}
MORE: dict[str, Any] = {"properties": {"a": {"type": "number"}}}
LESS: dict[str, Any] = V1


def version(number: int, definition: Any, kind: SchemaType = SchemaType.JSON) -> Definition:
    return Definition(number, kind, json.dumps(definition).encode())


def asked(question: bytes) -> list[str]:
    return checks.texts_of(Checks().answer(question))


@pytest.mark.parametrize(
    ("mode", "new", "olds", "refused_by"),
    [
        ("none", LESS, [MORE], None),
        ("backward", MORE, [LESS], None),
        ("backward", LESS, [MORE], 1),
        ("forward", LESS, [MORE], None),
        ("forward", MORE, [LESS], 1),
        ("full", MORE, [LESS], 1),
        ("full", LESS, [MORE], 1),
        ("full", V1, [V1], None),
        ("backward", LESS, [LESS, MORE], None),
        ("backward_transitive", LESS, [LESS, MORE], 1),
        ("forward_transitive", MORE, [MORE, LESS], 1),
        ("full_transitive", LESS, [LESS, MORE], 1),
        ("full_transitive", LESS, [], None),
    ],
)
def test_a_mode_says_with_what_and_which_way_a_version_is_compared(
    mode: str, new: Any, olds: list[Any], refused_by: int | None
) -> None:
    """The latest comes first; the refusal names the version that is in the way."""
    known = [version(len(olds) - at, old) for at, old in enumerate(olds)]
    question = registration(version(0, new), known, Mode(mode))
    if refused_by is None:
        assert asked(question) == []
    else:
        with pytest.raises(IncompatibleSchema) as refused:
            asked(question)
        text = str(refused.value)
        assert text.startswith("failed to register schema: schema compatibility check failed: ")
        assert text.endswith(f"(version {refused_by})")


def test_versions_have_one_type_unless_nothing_is_compared() -> None:
    avro = version(0, "string", SchemaType.AVRO)
    assert asked(registration(avro, [version(1, V1)], Mode.NONE)) == []
    with pytest.raises(IncompatibleSchema, match="the type was json, and is avro"):
        asked(registration(avro, [version(1, V1)], Mode.FORWARD))


@pytest.mark.parametrize("kind", list(SchemaType))
def test_a_text_that_is_no_definition_is_refused(kind: SchemaType) -> None:
    with pytest.raises(InvalidSchema) as refused:
        asked(registration(Definition(0, kind, b"{"), [], Mode.NONE))
    assert str(refused.value).startswith(
        "failed to register schema: invalid schema definition: invalid "
    )


def test_each_type_is_validated() -> None:
    proto = Definition(1, SchemaType.PROTOBUF, b'syntax = "proto3"; message A { int32 a = 1; }')
    assert asked(validation(version(1, {"required": ["a"]}), b"{}")) == [
        "missing required field: a"
    ]
    assert asked(validation(version(1, "long", SchemaType.AVRO), b"\x02")) == []
    assert asked(validation(proto, b"\x08\x01")) == []


def test_what_was_read_is_kept_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest few are read once."""
    monkeypatch.setattr(checks, "CACHE_MAX", 2)
    reads: list[bytes] = []
    reader = checks._parser

    def counted(kind: SchemaType) -> Any:
        def read(text: bytes) -> Any:
            reads.append(text)
            return reader(kind)(text)

        return read

    monkeypatch.setattr(checks, "_parser", counted)
    one = Checks()
    for title in ("a", "b", "a", "c", "a", "b"):
        assert checks.texts_of(one.answer(validation(version(1, {"title": title}), b"1"))) == []
    assert [json.loads(text)["title"] for text in reads] == ["a", "b", "c", "b"]


@pytest.mark.parametrize("kind", list(SchemaType))
def test_a_missing_package_is_named_with_how_to_get_it(
    kind: SchemaType, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] in ("jsonschema", "fastavro", "grpc_tools"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *arguments, **more)

    for name in ("json_schema", "avro", "protobuf"):
        monkeypatch.delitem(sys.modules, f"brokerd.schemas.{name}", raising=False)
        monkeypatch.delattr(f"brokerd.schemas.{name}", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SchemaCheckFailed, match=r"pip install brokerd\[schemas\]"):
        asked(registration(Definition(0, kind, b"{}"), [], Mode.NONE))


def test_names_of_types_and_modes() -> None:
    assert parse_type("proto") is parse_type("protobuf") is SchemaType.PROTOBUF
    assert parse_type("json") is SchemaType.JSON
    with pytest.raises(InvalidSchema, match="unsupported schema type: xml"):
        parse_type("xml")
    assert parse_mode("full_transitive") is Mode.FULL_TRANSITIVE
    with pytest.raises(InvalidRequest, match="unknown compatibility mode 'up'; there are none, b"):
        parse_mode("up")


def test_texts_are_cut_and_shown_without_control_characters() -> None:
    assert fault_text("a\x1b[2Jb") == "a\\x1b[2Jb"
    assert len(fault_text("\x00" * 1_000)) == 300
    assert fault_text("x" * 300) == "x" * 300
