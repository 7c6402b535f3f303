# Tests: tests/cli/test_clock.py
"""``brokerctl clock``: status, set (docs/cli.rst)."""

from __future__ import annotations

import click

from brokerd.cli import output
from brokerd.cli.server import Answer, server_of


@click.group("clock")
def clock_group() -> None:
    """The clocks of a running broker: status, set."""


@clock_group.command("status")
@click.pass_context
def status_command(context: click.Context) -> None:
    """Show broker time, the wall clock, and the time by which records are removed."""
    _show(context, server_of(context).get("clock"))


@clock_group.command("set")
@click.pass_context
def set_command(context: click.Context) -> None:
    """Trust the broker's wall clock, and set broker time to it. Look at the status before."""
    _show(context, server_of(context).post("clock", "set"))


def _show(context: click.Context, clock: Answer) -> None:
    facts = [
        ("broker time", output.time(clock["time"])),
        ("wall clock", output.time(clock["wall_time"])),
        ("removal", f"by {output.time(clock['removal_time'])}"),
        ("state", clock["degraded"] or "broker time is trusted"),
    ]
    output.show(context, clock, output.facts(facts))
