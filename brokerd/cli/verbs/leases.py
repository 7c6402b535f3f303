# Tests: tests/cli/test_leases.py
"""``brokerctl lease``: list and release (docs/cli.rst)."""

from __future__ import annotations

import click

from brokerd.cli import output
from brokerd.cli.options import duration, integer
from brokerd.cli.server import server_of
from brokerd.errors import InvalidRequest

_TOPIC, _GROUP = click.argument("topic"), click.argument("group")


@click.group("lease")
def lease_group() -> None:
    """Leases of a group: list, release."""


@lease_group.command("list")
@_TOPIC
@_GROUP
@click.option("--partition", type=integer, help="This partition; default: all.")
@click.option("--client", help="Leases of this client.")
@click.pass_context
def list_command(
    context: click.Context, topic: str, group: str, partition: int | None, client: str | None
) -> None:
    """List a group's leases."""
    pages = server_of(context).pages("topics", topic, "groups", group, "leases", key="leases")
    leases = [
        lease
        for lease in pages
        if partition in (None, lease["partition"]) and client in (None, lease["client"])
    ]
    rows = [
        (
            lease["partition"],
            lease["offset"],
            lease["client"],
            output.age(lease["remaining_seconds"]),
            lease["grants"],
            lease["failures"],
        )
        for lease in leases
    ]
    header = ("PARTITION", "OFFSET", "CLIENT", "REMAINING", "GRANTS", "FAILURES")
    output.show(context, {"leases": leases}, output.table(header, rows, "no leases"))


@lease_group.command("release")
@_TOPIC
@_GROUP
@click.option("--client", help="All leases of this client.")
@click.option("--offset", type=integer, help="The lease of this record.")
@click.option("--partition", type=integer, help="Partition of --offset; default 0.")
@click.option("--delay", type=duration, help="Delay the record of --offset by this.")
@click.pass_context
def release_command(
    context: click.Context,
    topic: str,
    group: str,
    client: str | None,
    offset: int | None,
    partition: int | None,
    delay: float | None,
) -> None:
    """End leases and make their records available again; this counts no failure."""
    if (client is None) == (offset is None):
        raise click.UsageError("name either --client or --offset")
    if client is not None and (partition is not None or delay is not None):
        raise click.UsageError("--partition and --delay go with --offset")
    body: dict[str, object] = {"client": client}
    if offset is not None:
        body = {"offset": offset, "partition": partition or 0, "delay_seconds": delay or 0}
    answer = server_of(context).post("topics", topic, "groups", group, "leases", "release", **body)
    if not answer["released"]:
        raise InvalidRequest(
            f"client {client!r} holds no lease in group {group!r} of topic {topic!r}; "
            "'brokerctl lease list' shows who does"
        )
    output.show(context, answer, [f"{answer['released']} released"])
