# Tests: tests/cli/test_schedules.py
"""``brokerctl schedule``: list and cancel delayed messages (docs/cli.rst)."""

from __future__ import annotations

from collections.abc import Iterator

import click

from brokerd.cli import output
from brokerd.cli.options import confirm, integer, yes_option
from brokerd.cli.server import PAGE, Answer, Server, server_of

_TOPIC = click.argument("topic")


@click.group("schedule")
def schedule_group() -> None:
    """Delayed messages of a topic: list, cancel."""


@schedule_group.command("list")
@_TOPIC
@click.pass_context
def list_command(context: click.Context, topic: str) -> None:
    """List the delayed messages of a topic."""
    scheduled = list(_scheduled(server_of(context), topic))
    rows = [
        (
            one["schedule_id"],
            output.time(one["due"]),
            "any" if one["partition"] is None else str(one["partition"]),
            None if one["bytes"] is None else output.size(one["bytes"]),
            one["key"],
            one["preview"],
        )
        for one in scheduled
    ]
    header = ("ID", "DUE", "PARTITION", "SIZE", "KEY", "VALUE")
    output.show(context, {"scheduled": scheduled}, output.table(header, rows, "nothing waits"))


def _scheduled(server: Server, topic: str) -> Iterator[Answer]:
    first: int | None = 0
    while first is not None:
        page = server.get("topics", topic, "scheduled", first_id=first, limit=PAGE)
        yield from page["scheduled"]
        first = page["next_id"]


@schedule_group.command("cancel")
@_TOPIC
@click.argument("schedule_id", type=integer, metavar="ID")
@yes_option
@click.pass_context
def cancel_command(context: click.Context, topic: str, schedule_id: int, yes: bool) -> None:
    """Cancel a delayed message."""
    confirm(f"cancel the delayed message {schedule_id} of topic {topic!r}", yes)
    answer = server_of(context).delete("topics", topic, "scheduled", schedule_id)
    output.show(context, answer, [f"{schedule_id} is cancelled"])
