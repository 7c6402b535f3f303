# Tests: tests/cli/test_security_verbs.py
"""``brokerctl key``: API keys of accounts (docs/cli.rst, docs/security.rst)."""

from __future__ import annotations

import click

from brokerd.cli import output
from brokerd.cli.options import confirm, yes_option
from brokerd.cli.server import server_of


@click.group("key")
def key_group() -> None:
    """API keys: list, create, revoke."""


@key_group.command("list")
@click.pass_context
def list_command(context: click.Context) -> None:
    """List all keys by id; the broker stores no key itself."""
    keys = list(server_of(context).all("keys", key="keys"))
    rows = [(one["key_id"], one["user"], one["label"] or "-", one["created"]) for one in keys]
    header = ("KEY ID", "USER", "LABEL", "CREATED")
    output.show(context, {"keys": keys}, output.table(header, rows, "no keys"))


@key_group.command("create")
@click.argument("user")
@click.option("--label", default="", help="What it is for.")
@click.pass_context
def create_command(context: click.Context, user: str, label: str) -> None:
    """Make an API key for USER. It is printed once, alone on stdout."""
    answer = server_of(context).post("keys", user=user, label=label)
    note = f"key {answer['key_id']} of {user}; keep it, it is not shown again:"
    if not context.obj["json"]:
        click.echo(note, err=True)
    output.show(context, answer, [answer["key"]])


@key_group.command("revoke")
@click.argument("key_id")
@yes_option
@click.pass_context
def revoke_command(context: click.Context, key_id: str, yes: bool) -> None:
    """Revoke a key."""
    confirm(f"revoke the key {key_id}", yes)
    answer = server_of(context).delete("keys", key_id)
    output.show(context, answer, [f"revoked the key {key_id}"])
