# Tests: tests/cli/test_quotas.py
"""``brokerctl quota``: limits of accounts, addresses and listeners (docs/cli.rst)."""

from __future__ import annotations

import re
from collections.abc import Callable

import click

from brokerd.cli import output
from brokerd.cli.options import Command
from brokerd.cli.server import NOT_FOUND, Answer, Refused, Server, server_of
from brokerd.server.config import parse_size

DEFAULT, DEFAULT_NAME = "default", "*"
KINDS = (DEFAULT, "listener", "address", "account")
"""The kinds of quotas."""
LIMIT_MAX = 1 << 50
"""Largest limit."""
_DIGITS_MAX = len(str(LIMIT_MAX))
_SHOWN = 40
"""Characters of a wrong number in an error."""
_SHOWN_AS: dict[str, Callable[[int], str]] = {
    "requests": str,
    "bytes_in": output.size,
    "bytes_out": output.size,
    "connections": str,
}
_KIND = click.argument("kind", type=click.Choice(KINDS))
_NAME = click.argument("name", default="")


def limit(text: str) -> int:
    """Parse a limit: a size, or a number with K, M or G, which mean KiB, MiB and GiB."""
    if re.fullmatch(r"-\d+", text, re.ASCII):
        raise click.BadParameter(f"{text[:_SHOWN]} is less than 0, which is no limit")
    whole = re.sub(r"(?<=\d)[KMGkmg]$", lambda unit: f"{unit[0].upper()}iB", text)
    digits = re.fullmatch(r"0*(\d+) *([KMG]iB)?", whole, re.ASCII)
    is_large = digits is not None and len(digits[1]) > _DIGITS_MAX
    try:
        value = LIMIT_MAX + 1 if is_large else parse_size(whole)
    except ValueError:
        raise click.BadParameter(
            f"{text[:_SHOWN]!r} is not a number like 500, 10M or 10MiB"
        ) from None
    if value > LIMIT_MAX:
        raise click.BadParameter(f"{text[:_SHOWN]} is more than {LIMIT_MAX}, the largest limit")
    return value


def _limits(command: Command) -> Command:
    """Add the options of limits to a verb."""
    options = (
        ("--requests", "Produces and reads a second."),
        ("--bytes-in", "Bytes of produces a second: 10M."),
        ("--bytes-out", "Bytes of answers a second."),
        ("--connections", "Open connections."),
    )
    for name, text in reversed(options):
        command = click.option(name, type=limit, metavar="N", help=text)(command)
    return command


@click.group("quota")
def quota_group() -> None:
    """Quotas: list, set, change, delete."""


@quota_group.command("list")
@click.pass_context
def list_command(context: click.Context) -> None:
    """List all quotas with their use."""
    quotas = list(server_of(context).all("quotas", key="quotas"))
    rows = [
        (
            one["kind"],
            one["name"],
            *(_SHOWN_AS[what](value) if value else None for what, value in one["limits"].items()),
            str(one["use"]["connections"]),
            str(one["use"]["waits"]),
            "no account" if one.get("unknown_account") else None,
        )
        for one in quotas
    ]
    limits = ("REQUESTS/S", "IN/S", "OUT/S", "CONNECTIONS")
    header = ("KIND", "NAME", *limits, "OPEN", "WAITS", "NOTE")
    output.show(context, {"quotas": quotas}, output.table(header, rows, "no quotas"))


@quota_group.command("set")
@_KIND
@_NAME
@_limits
@click.pass_context
def set_command(context: click.Context, /, kind: str, name: str, **given: int | None) -> None:
    """Set a quota, and replace an earlier one whole.

    A limit that is left out, or 0, is no limit; a limit that the earlier quota had is removed, and
    printed. To keep the others, use quota change.
    """
    server, name = server_of(context), _named(kind, name)
    before = _limits_now(server, kind, name)
    found = server.put("quotas", kind, name, **{what: value or 0 for what, value in given.items()})
    _show(context, found, before)


@quota_group.command("change")
@_KIND
@_NAME
@_limits
@click.pass_context
def change_command(context: click.Context, /, kind: str, name: str, **given: int | None) -> None:
    """Change some limits of a quota. 0 removes a limit; one that is left out stays."""
    changes = {what: value for what, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("name a limit to change, for example --requests 500")
    server, name = server_of(context), _named(kind, name)
    before = _limits_now(server, kind, name)
    _show(context, server.patch("quotas", kind, name, **changes), before)


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


def _limits_now(server: Server, kind: str, name: str) -> dict[str, int]:
    """Return the limits of a quota; empty if there is none."""
    try:
        limits: dict[str, int] = server.get("quotas", kind, name)["limits"]
    except Refused as refusal:
        if refusal.status == NOT_FOUND:
            return {}
        raise
    return limits


def _show(context: click.Context, quota: Answer, before: dict[str, int]) -> None:
    """Print a quota, and the limits of before that it has no longer."""
    limits = quota["limits"]
    removed = {what: value for what, value in before.items() if value and not limits[what]}
    lines = [f"{quota['kind']} {output.plain(quota['name'])}: {_text(limits)}"]
    if removed:
        lines.append(f"removed: {_text(removed)}")
    output.show(context, quota, lines)


def _text(limits: dict[str, int]) -> str:
    shown = {what: _SHOWN_AS[what](value) for what, value in limits.items() if value}
    return ", ".join(f"{what} {value}" for what, value in shown.items())
