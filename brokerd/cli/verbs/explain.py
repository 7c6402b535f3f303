# Tests: tests/cli/test_explain.py
"""``brokerctl explain``: the life of one record (docs/cli.rst)."""

from __future__ import annotations

from collections.abc import Iterator

import click

from brokerd.cli import output
from brokerd.cli.options import integer
from brokerd.cli.server import PAGE, Answer, server_of


@click.command("explain")
@click.argument("topic")
@click.argument("offset", type=integer)
@click.option("--partition", type=integer, default="0", show_default=True)
@click.pass_context
def explain_command(context: click.Context, topic: str, offset: int, partition: int) -> None:
    """Show when a record was written, and what each group did with it."""
    server = server_of(context)
    place = ("topics", topic, "records", partition, offset)
    answer = page = server.get(*place, limit=PAGE)
    while page["next"] is not None:
        page = server.get(*place, first=page["next"], limit=PAGE)
        answer["events"] += page["events"]
    answer["problems"] = page["problems"]
    del answer["next"]
    output.show(context, answer, _lines(answer))
    for problem in answer["problems"]:
        click.echo(f"brokerctl: {output.plain(problem)}", err=True)


def _lines(answer: Answer) -> Iterator[str]:
    record = answer["record"]
    facts = [("record", f"{answer['topic']} {answer['partition']}:{answer['offset']}")]
    if record is None:
        facts.append(("gone", answer["record_error"]))
    else:
        facts += [
            ("written", output.time(record["append_time"]) or "-"),
            ("format", record["format"] or "admin API"),
            ("producer", "unknown: the log holds no account or address of producers"),
            ("producer time", "-" if record["producer_time"] is None else record["producer_time"]),
            ("encoding", record["encoding"]),
            ("expires", output.time(record["expires_at"]) or "never"),
        ]
    archive = f", below {answer['archive_lsn']} in the archive" if answer["archive_lsn"] else ""
    facts.append(("searched", f"from LSN {answer['from_lsn']} on{archive}"))
    yield from output.facts(facts)
    yield ""
    rows = [
        (output.time(event["time"]), event["group"], event["event"], _details(event))
        for event in answer["events"]
    ]
    yield from output.table(("TIME", "GROUP", "EVENT", "DETAILS"), rows, "no events of groups")


def _details(event: Answer) -> str | None:
    kind, first = event["event"], event["first"]
    parts = []
    if event["client"]:
        parts.append(f"by {event['client']}")
    if event["count"] is not None:
        parts.append(f"{'grant' if kind == 'leased' else 'failure'} {event['count']}")
    if kind in ("leased", "extended"):
        parts.append(f"for {output.age(event['seconds'])}")
    elif event["seconds"]:
        parts.append(f"ready again after {output.age(event['seconds'])}")
    if event["end"] is not None:
        parts.append(f"offsets {first} to {event['end'] - 1}")
    elif first is not None:
        parts.append("no offset" if first < 0 else f"to offset {first}")
    if event["reason"]:
        parts.append(f"reason {event['reason']}")
    return ", ".join(parts) or None
