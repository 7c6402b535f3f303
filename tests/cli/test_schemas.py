"""``brokerctl schema``, as an operator types it."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    assert "full transitive" in shell.lines("schema", "list")[1]
    assert shell.json("schema", "compatibility", "order", "none")["compatibility"] == "none"
    assert "--transitive" in shell.misused(
        "schema", "compatibility", "order", "none", "--transitive"
    )
    shell.misused("schema", "compatibility", "order", "sideways")


def test_what_the_broker_refuses_is_told(shell: Shell, order: str) -> None:
    assert "schema not found: nope" in shell.refused("schema", "describe", "nope")
    assert "invalid JSON schema" in shell.refused("schema", "register", "x", "-", input="[")
    shell.run("schema", "register", "order", order)
    wide = '{"required": ["id", "more"]}'
    text = shell.refused("schema", "register", "order", "-", input=wide)
    assert "new required field 'more' not in old schema" in text
