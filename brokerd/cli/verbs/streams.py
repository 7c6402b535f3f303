# Tests: tests/cli/test_streams.py
"""``brokerctl streams``: positions and lag of named streams (docs/cli.rst)."""

from __future__ import annotations

from typing import Any

import click

from brokerd.cli import output
from brokerd.cli.options import confirm, yes_option
from brokerd.cli.server import server_of

_NAME = click.argument("name")


@click.group("streams")
def streams_group() -> None:
    """Named streams: list, show, drop."""


@streams_group.command("list")
@click.pass_context
def list_command(context: click.Context) -> None:
    """List all named streams with their lag."""
    streams = list(server_of(context).all("streams", key="streams"))
    rows = [
        (
            one["name"],
            one["lag_records"],
            _size(one["lag_bytes"]),
            output.age(one["silent_seconds"]),
            _hold(one),
            _topics(one),
        )
        for one in streams
    ]
    header = ("NAME", "LAG", "LAG BYTES", "LAST REPORT", "HOLDS", "TOPICS")
    output.show(context, {"streams": streams}, output.table(header, rows, "no streams"))


@streams_group.command("show")
@_NAME
@click.pass_context
def show_command(context: click.Context, name: str) -> None:
    """Show a named stream with its position in each topic."""
    found = server_of(context).get("streams", name)
    rows = [
        (place["topic"], partition, offset, end, max(0, end - offset))
        for place in found["positions"]
        for partition, (offset, end) in enumerate(
            zip(place["offsets"], place["next_offsets"], strict=False)
        )
    ]
    lines = output.facts(
        [
            ("name", found["name"]),
            ("owner", found["owner"] or "anonymous"),
            ("topics", _topics(found)),
            ("lsn", found["lsn"]),
            ("lag", found["lag_records"]),
            ("lag bytes", _size(found["lag_bytes"])),
            ("holds", _hold(found)),
            ("created", output.time(found["created"])),
            ("last report", output.time(found["reported"])),
        ]
    )
    header = ("TOPIC", "PARTITION", "NEXT", "END", "BEHIND")
    output.show(context, found, [*lines, "", *output.table(header, rows, "no position yet")])


@streams_group.command("drop")
@_NAME
@yes_option
@click.pass_context
def drop_command(context: click.Context, name: str, yes: bool) -> None:
    """Forget a named stream. If it still runs, its next report creates it again."""
    confirm(f"forget the stream {name!r}", yes)
    found = server_of(context).delete("streams", name)
    output.show(context, found, [f"the stream {output.plain(name)} is forgotten"])


def _size(count: int | None) -> str | None:
    return None if count is None else output.size(count)


def _hold(stream: dict[str, Any]) -> str:
    if stream["hold_dropped"]:
        return f"dropped: {stream['hold_dropped']}"
    return "yes" if stream["holds"] else "no"


def _topics(stream: dict[str, Any]) -> str:
    topics: list[str] | None = stream["topics"]
    return "all" if topics is None else ", ".join(topics)
