# Tests: tests/cli/test_quotas.py
"""``brokerctl quota``: limits of accounts, addresses and listeners (docs/cli.rst)."""

from __future__ import annotations

from typing import Any

import click

from brokerd.cli import output
from brokerd.cli.server import server_of

DEFAULT, DEFAULT_NAME = "default", "*"
KINDS = (DEFAULT, "listener", "address", "account")
"""The kinds of quotas."""
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DIGITS_MAX = 18
"""The largest number of digits. All such numbers have less than 64 bits."""
_KIND = click.argument("kind", type=click.Choice(KINDS))
_NAME = click.argument("name", default="")


@click.group("quota")
def quota_group() -> None:
    """Quotas: list, set, delete."""


@quota_group.command("list")
@click.pass_context
def list_command(context: click.Context) -> None:
    """List all quotas with their use."""
    quotas = list(server_of(context).all("quotas", key="quotas"))
    rows = [
        (
            one["kind"],
            one["name"],
            *(str(limit or "-") for limit in one["limits"].values()),
            str(one["use"]["connections"]),
            str(one["use"]["waits"]),
            "no account" if one.get("unknown_account") else None,
        )
        for one in quotas
    ]
    header = (
        *(
            "KIND",
            "NAME",
            "REQUESTS/S",
            "IN B/S",
            "OUT B/S",
            "CONNECTIONS",
            "OPEN",
            "WAITS",
            "NOTE",
        ),
    )
    output.show(context, {"quotas": quotas}, output.table(header, rows, "no quotas"))


@quota_group.command("set")
@_KIND
@_NAME
@click.option("--requests", default="0", metavar="N", help="Produces and reads a second.")
@click.option("--bytes-in", default="0", metavar="N", help="Bytes of produces a second: 10M.")
@click.option("--bytes-out", default="0", metavar="N", help="Bytes of answers a second.")
@click.option("--connections", default="0", metavar="N", help="Open connections.")
@click.pass_context
def set_command(
    context: click.Context,
    kind: str,
    name: str,
    requests: str,
    bytes_in: str,
    bytes_out: str,
    connections: str,
) -> None:
    """Set a quota. A limit that is left out, or 0, is no limit."""
    body = {
        "requests": _number("--requests", requests),
        "bytes_in": _number("--bytes-in", bytes_in),
        "bytes_out": _number("--bytes-out", bytes_out),
        "connections": _number("--connections", connections),
    }
    found: Any = server_of(context).put("quotas", kind, _named(kind, name), **body)
    limits = ", ".join(f"{what} {limit}" for what, limit in found["limits"].items() if limit)
    output.show(context, found, [f"{kind} {output.plain(found['name'])}: {limits}"])


@quota_group.command("delete")
@_KIND
@_NAME
@click.pass_context
def delete_command(context: click.Context, kind: str, name: str) -> None:
    """Delete a quota."""
    found = server_of(context).delete("quotas", kind, _named(kind, name))
    output.show(context, found, [f"deleted the quota of {kind} {output.plain(found['deleted'])}"])


def _named(kind: str, name: str) -> str:
    """Return the name of a quota; only the default may leave it out."""
    if not name and kind != DEFAULT:
        raise click.UsageError(f"name the {kind}")
    return name or DEFAULT_NAME


def _number(option: str, text: str) -> int:
    """Return a number, which may end in K, M or G."""
    unit = _UNITS.get(text[-1:].lower(), 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdecimal() or len(digits) > _DIGITS_MAX:
        raise click.UsageError(f"{option}: not a number: {text[:40]!r}; for example 500 or 10M")
    return int(digits) * unit
