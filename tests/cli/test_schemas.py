"""``brokerctl schema``, as an operator types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.cli.verbs.schemas import MODES, TYPES
from brokerd.schemas.values import Mode, SchemaType, parse_type
from tests.cli.shell import Shell


@pytest.fixture
def order(tmp_path: Path) -> str:
    path = tmp_path / "order.json"
    path.write_text('{"required":\n ["id"]}\n')
    return str(path)


def test_a_schema_lives_from_register_to_delete(shell: Shell, order: str) -> None:
    assert shell.lines("schema", "register", "order", order) == ["registered order v1"]
    assert shell.json("schema", "register", "order", order)["version"] == 2
    assert shell.lines("schema", "list")[1].split() == ["order", "2", "json", "backward"]
    assert shell.lines("schema", "show", "order") == ['{"required":', ' ["id"]}']
    assert shell.json("schema", "show", "order", "--version", "1")["version"] == 1
    lines = shell.lines("schema", "describe", "order")
    assert lines[0].split() == ["schema", "order"]
    assert [line.split()[0] for line in lines[2:]] == ["VERSION", "1", "2"]
    assert shell.lines("schema", "delete", "order", "--version", "2", "--yes") == [
        "deleted order v2"
    ]
    assert shell.json("schema", "delete", "order", "--yes") == {"deleted": "order"}
    assert shell.lines("schema", "list") == ["no schemas"]


def test_a_definition_may_come_from_stdin_and_have_a_type(shell: Shell) -> None:
    made = shell.json("schema", "register", "n", "-", "--type", "avro", input='"long"')
    assert made["type"] == "avro"
    assert shell.lines("schema", "validate", "n", "-", input=b"\x02") == ["it fits"]


def test_a_definition_that_is_not_utf_8_is_not_changed_to_be_so(
    shell: Shell, tmp_path: Path
) -> None:
    path = tmp_path / "a.proto"
    path.write_bytes(b'syntax = "proto3"; message A {} // caf\xe9')
    told = shell.misused("schema", "register", "n", str(path), "--type", "protobuf")
    assert f"{path} is not UTF-8 at byte 38" in told
    assert shell.lines("schema", "list") == ["no schemas"]


def test_a_message_that_does_not_fit_is_told_why_and_the_exit_code_says_so(
    shell: Shell, order: str
) -> None:
    shell.run("schema", "register", "order", order)
    result = shell.run("schema", "validate", "order", "-", input="{}")
    assert result.exit_code == 1
    assert result.stdout == "missing required field: id\n"


def test_the_compatibility_mode_is_set(shell: Shell, order: str) -> None:
    shell.run("schema", "register", "order", order)
    shown = shell.json("schema", "compatibility", "order", "full", "--transitive")
    assert shown["compatibility"] == "full_transitive"
    assert shell.lines("schema", "list")[1].split() == ["order", "1", "json", "full_transitive"]
    assert shell.json("schema", "compatibility", "order", "none")["compatibility"] == "none"
    assert "--transitive" in shell.misused(
        "schema", "compatibility", "order", "none", "--transitive"
    )
    shell.misused("schema", "compatibility", "order", "sideways")


def test_all_modes_and_types_that_the_broker_knows_may_be_said() -> None:
    assert set(MODES) == set(Mode)
    assert {parse_type(word) for word in TYPES} == set(SchemaType)


def test_a_mode_is_set_by_the_word_that_is_shown_for_it(shell: Shell, order: str) -> None:
    shell.run("schema", "register", "order", order)
    set_to = ("schema", "compatibility", "order")
    assert shell.json(*set_to, "backward_transitive")["compatibility"] == "backward_transitive"
    assert shell.json(*set_to, "full_transitive", "--transitive")["compatibility"] == (
        "full_transitive"
    )


def test_the_help_has_each_mode_in_one_piece(shell: Shell) -> None:
    told = " ".join(shell.run("schema", "compatibility", "--help").output.split())
    assert all(f" {mode}" in told for mode in MODES)


def test_proto_is_protobuf(shell: Shell) -> None:
    """As it is for FlyMQ's clients."""
    text = 'syntax = "proto3"; message A { int32 n = 1; }'
    made = shell.json("schema", "register", "a", "-", "--type", "proto", input=text)
    assert made["type"] == "protobuf"


def test_what_the_broker_refuses_is_told(shell: Shell, order: str) -> None:
    for verb in ("describe", "show"):
        assert shell.refused("schema", verb, "nope").endswith("schema not found: nope")
    assert shell.refused("schema", "delete", "nope", "--yes").endswith("schema not found: nope")
    assert "invalid JSON schema" in shell.refused("schema", "register", "x", "-", input="[")
    shell.run("schema", "register", "order", order)
    wide = '{"required": ["id", "more"]}'
    text = shell.refused("schema", "register", "order", "-", input=wide)
    assert "new required field 'more' not in old schema" in text


TEXT = 'syntax = "proto3";\n//\t\x1b]0;x\x07 \u2028 \x85\r\nmessage A { string a = 1; }\n'


def test_a_file_gets_the_text_as_it_is_and_a_terminal_no_control_characters(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line separator in the text of a JSON schema became a line end: it was JSON no more."""
    shell.lines("schema", "register", "a", "-", "--type", "protobuf", input=TEXT.encode())
    assert shell.run("schema", "show", "a").stdout_bytes.decode() == TEXT
    monkeypatch.setattr("brokerd.cli.output.on_screen", lambda: True)
    shown = shell.run("schema", "show", "a").stdout_bytes.decode().split("\n")
    assert shown[1] == "//\t\\x1b]0;x\\x07 \\u2028 \\x85"
