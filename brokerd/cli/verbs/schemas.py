# Tests: tests/cli/test_schemas.py
"""``brokerctl schema``: schemas, their versions and modes (docs/cli.rst, docs/schemas.rst)."""

from __future__ import annotations

import base64
from typing import BinaryIO

import click

from brokerd.cli import output
from brokerd.cli.options import confirm, yes_option
from brokerd.cli.server import Answer, server_of

TRANSITIVE = "_transitive"
DIRECTIONS = ("backward", "forward", "full")
MODES = ("none", *DIRECTIONS, *(one + TRANSITIVE for one in DIRECTIONS))
TYPES = ("json", "avro", "protobuf", "proto")

_NAME = click.argument("name")
_FILE = click.argument("file", type=click.File("rb"))


@click.group("schema")
def schema_group() -> None:
    """Schemas: list, describe, show, register, validate, compatibility, delete."""


@schema_group.command("list")
@click.pass_context
def list_command(context: click.Context) -> None:
    """List all schemas."""
    schemas = list(server_of(context).all("schemas", key="schemas"))
    rows = [
        (
            one["name"],
            one["versions"][-1]["version"],
            one["versions"][-1]["type"],
            one["compatibility"],
        )
        for one in schemas
    ]
    header = ("SCHEMA", "LATEST", "TYPE", "COMPATIBILITY")
    output.show(context, {"schemas": schemas}, output.table(header, rows, "no schemas"))


@schema_group.command("describe")
@_NAME
@click.pass_context
def describe_command(context: click.Context, name: str) -> None:
    """Show the versions of one schema."""
    _show(context, server_of(context).get("schemas", name))


@schema_group.command("show")
@_NAME
@click.option("--version", type=click.IntRange(1), help="Version; default: the latest.")
@click.pass_context
def show_command(context: click.Context, name: str, version: int | None) -> None:
    """Print the text of a version."""
    found = server_of(context).get("schemas", name, "versions", version or 0)
    text: str = found["definition"]
    lines = text.removesuffix("\n").split("\n")
    output.show(context, found, map(_shown, lines) if output.on_screen() else lines)


def _shown(line: str) -> str:
    """Return a line for a terminal: control characters other than tabs are escaped."""
    return "\t".join(map(output.plain, line.removesuffix("\r").split("\t")))


@schema_group.command("register")
@_NAME
@_FILE
@click.option("--type", "kind", type=click.Choice(TYPES), default="json", show_default=True)
@click.pass_context
def register_command(context: click.Context, name: str, file: BinaryIO, kind: str) -> None:
    """Register the next version: the text in FILE, - is stdin."""
    try:
        text = file.read().decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file.name} is not UTF-8 at byte {error.start}") from None
    made = server_of(context).post("schemas", name, "versions", type=kind, definition=text)
    output.show(context, made, [f"registered {made['name']} v{made['version']}"])


@schema_group.command("validate")
@_NAME
@_FILE
@click.pass_context
def validate_command(context: click.Context, name: str, file: BinaryIO) -> None:
    """Check a message against the latest version: FILE, - is stdin."""
    message = base64.b64encode(file.read()).decode("ascii")
    verdict = server_of(context).post("schemas", name, "validate", base64=message)
    output.show(context, verdict, map(output.plain, verdict["errors"] or ["it fits"]))
    if not verdict["valid"]:
        context.exit(1)


@schema_group.command("compatibility")
@_NAME
@click.argument("mode", metavar="MODE", type=click.Choice(MODES))
@click.option("--transitive", is_flag=True, help="Use the _transitive form of MODE.")
@click.pass_context
def compatibility_command(context: click.Context, name: str, mode: str, transitive: bool) -> None:
    """Set how new versions of a schema are compared.

    MODE is none; backward, forward or full, against the latest version; or backward_transitive,
    forward_transitive or full_transitive, against all versions.
    """
    if transitive and mode == "none":
        raise click.UsageError("--transitive makes no sense where nothing is compared")
    word = mode.removesuffix(TRANSITIVE) + TRANSITIVE if transitive else mode
    _show(context, server_of(context).patch("schemas", name, compatibility=word))


@schema_group.command("delete")
@_NAME
@click.option("--version", type=click.IntRange(1), help="This version; default: all.")
@yes_option
@click.pass_context
def delete_command(context: click.Context, name: str, version: int | None, yes: bool) -> None:
    """Delete a schema, or one version of it."""
    what = f"version {version} of the schema {name!r}" if version else f"the schema {name!r}"
    confirm(f"delete {what}", yes)
    versions = ("versions", version) if version else ()
    answer = server_of(context).delete("schemas", name, *versions)
    output.show(context, answer, [f"deleted {output.plain(answer['deleted'])}"])


def _show(context: click.Context, schema: Answer) -> None:
    rows = [
        (one["version"], one["type"], output.size(one["definition_bytes"]), one["created"])
        for one in schema["versions"]
    ]
    lines = output.facts([("schema", schema["name"]), ("compatibility", schema["compatibility"])])
    header = ("VERSION", "TYPE", "SIZE", "CREATED")
    output.show(context, schema, [*lines, *output.table(header, rows)])
