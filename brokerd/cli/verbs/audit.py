# Tests: tests/cli/test_security_verbs.py
"""``brokerctl audit``: the audit trail (docs/cli.rst, docs/security.rst)."""

from __future__ import annotations

import json
from typing import Any

import click

from brokerd.cli import output
from brokerd.cli.options import integer_from, time
from brokerd.cli.server import Answer, Server, server_of

PAGE = 1_000


@click.command("audit")
@click.option("--since", type=time, metavar="TIME", help="Events at or after this time.")
@click.option("--until", type=time, metavar="TIME", help="Events before this time.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Such as auth.failure.")
@click.option("--user", "by", default="", metavar="NAME", help="Who did it.")
@click.option("--resource", default="", metavar="TEXT", help="Part of the resource name.")
@click.option("--result", type=click.Choice(["success", "failure", "denied"]), help="How it ended.")
@click.option("--from", "client_ip", default="", metavar="ADDRESS", help="Where it came from.")
@click.option("--format", "form", default="", metavar="FORMAT", help="Wire format or admin.")
@click.option(
    "--search",
    default="",
    metavar="TEXT",
    help="Text in action, resource, address, format or details.",
)
@click.option("--limit", type=integer_from(1, 1_000_000), default="100", help="So many at most.")
@click.pass_context
def audit_command(
    context: click.Context,
    since: str | None,
    until: str | None,
    types: tuple[str, ...],
    by: str,
    resource: str,
    result: str | None,
    client_ip: str,
    form: str,
    search: str,
    limit: int,
) -> None:
    """Show logins, denials and administration, newest first."""
    wanted = {
        "start": since,
        "end": until,
        "type": ",".join(types) or None,
        "user": by or None,
        "resource": resource or None,
        "result": result,
        "client_ip": client_ip or None,
        "format": form or None,
        "search": search or None,
    }
    events = _events(server_of(context), wanted, limit)
    rows = [
        (
            one["time"],
            one["type"],
            one["result"],
            one["user"] or "-",
            one["client_ip"] or "-",
            one["format"] or "-",
            one["resource"] or "-",
            one["action"] or "-",
            json.dumps(one["details"]) if one["details"] else "-",
        )
        for one in events
    ]
    header = ("TIME", "TYPE", "RESULT", "USER", "FROM", "FORMAT", "RESOURCE", "ACTION", "DETAILS")
    output.show(context, {"events": events}, output.table(header, rows, "no events"))


def _events(server: Server, wanted: dict[str, Any], limit: int) -> list[Answer]:
    """Fetch up to ``count`` events, page by page."""
    events: list[Answer] = []
    before: int | None = None
    while len(events) < limit:
        size = min(PAGE, limit - len(events))
        page = server.get("audit", **wanted, limit=size, before=before)
        events += page["events"]
        before = page["next"]
        if before is None:
            break
    return events
