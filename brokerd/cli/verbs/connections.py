# Tests: tests/cli/test_connections.py
"""``brokerctl connections``: list and close connections of clients (docs/cli.rst)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from brokerd.cli import output
from brokerd.cli.options import confirm, integer, some, yes_option
from brokerd.cli.server import NOT_FOUND, PAGE, Answer, Refused, Server, server_of

Command = TypeVar("Command", bound=Callable[..., Any])


def _choice(command: Command) -> Command:
    for name, metavar, meaning in (
        ("--address", "ADDRESS", "Of this address."),
        ("--user", "NAME", 'Of this account; "" is anonymous.'),
        ("--format", "FORMAT", "Of this wire format."),
    ):
        command = click.option(name, metavar=metavar, help=meaning)(command)
    return command


@click.group("connections")
def connections_group() -> None:
    """Connections of clients: list, close."""


@connections_group.command("list")
@_choice
@click.pass_context
def list_command(context: click.Context, /, **choice: str | None) -> None:
    """List the open connections, oldest first."""
    connections = list(_connections(server_of(context), choice))
    rows = [
        (
            one["id"],
            one["format"],
            _peer(one),
            one["user"] or None,
            "yes" if one["tls"] else "no",
            output.age(int(one["open_seconds"])),
            output.age(int(one["idle_seconds"])),
            one["requests"],
            output.size(one["unread_bytes"]),
            ", ".join(one["holds"]) or None,
        )
        for one in connections
    ]
    header = ("ID", "FORMAT", "PEER", "USER", "TLS", "OPEN", "IDLE", "REQUESTS", "UNREAD", "HOLDS")
    lines = output.table(header, rows, "no connections")
    output.show(context, {"connections": connections}, lines)


@connections_group.command("close")
@click.argument("ids", nargs=-1, type=integer, metavar="[ID ...]")
@_choice
@yes_option
@click.pass_context
def close_command(
    context: click.Context, /, ids: tuple[int, ...], yes: bool, **choice: str | None
) -> None:
    """Close connections by id, or all that match.

    Clients may connect again. Leases stay, and answers on their way are lost.
    """
    is_chosen = any(value is not None for value in choice.values())
    if is_chosen == bool(ids):
        raise click.UsageError("name ids, or --format, --user or --address")
    server = server_of(context)
    chosen = list(ids)
    if is_chosen:
        chosen = [one["id"] for one in _connections(server, choice)]
        if chosen:
            confirm(f"close {some(len(chosen), 'connection')}", yes)
    closed = []
    for connection_id in chosen:
        try:
            closed.append(server.delete("connections", connection_id)["closed"])
        except Refused as refusal:
            if ids or refusal.status != NOT_FOUND:
                raise
    lines = [f"{some(len(closed), 'connection')} closed"]
    output.show(context, {"closed": closed}, lines)


def _connections(server: Server, choice: dict[str, str | None]) -> Iterator[Answer]:
    first_id: int | None = 0
    while first_id is not None:
        page = server.get("connections", first_id=first_id, limit=PAGE, **choice)
        yield from page["connections"]
        first_id = page["next"]


def _peer(connection: Answer) -> str:
    address, port = connection["address"], connection["port"]
    if port is None:
        return str(address)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
