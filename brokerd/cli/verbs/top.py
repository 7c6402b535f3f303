# Tests: tests/cli/test_status.py
"""``brokerctl top``: rates of the broker and of its busiest topics and groups, live (docs/cli.rst).

On a terminal it draws the whole screen again for each sample. Elsewhere it prints each sample below
the one before, and with ``--json`` one object a line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import sleep
from typing import Any

import click

from brokerd.cli import output
from brokerd.cli.options import duration, integer_from, some
from brokerd.cli.server import Answer, Server, server_of
from brokerd.cli.verbs.status import conditions, state

RATES = {
    "produced": "records_produced",
    "bytes_produced": "bytes_produced",
    "leased": "leases_granted",
    "settled": "settled",
    "failed": "failed",
    "expired": "expired",
    "commits": "commits",
}
"""Name of a rate -> its counter in the status."""
TRAFFIC = ("written_records", "written_bytes", "read_records", "read_bytes")
"""The counters of a topic, in the order of the status."""
DAY_SECONDS = 86_400.0


def positive(text: str) -> float:
    """Parse an interval from a tenth of a second to a day."""
    seconds = duration(text)
    if seconds < 0.1:
        raise click.BadParameter(f"{text!r} is shorter than 100ms")
    if seconds > DAY_SECONDS:
        raise click.BadParameter(f"{text!r} is longer than 1d")
    return seconds


@click.command("top")
@click.option("--interval", type=positive, default="2s", show_default=True, metavar="DURATION")
@click.option("--count", type=integer_from(1, 1_000_000_000), help="Stop after N samples.")
@click.option(
    "--rows",
    type=integer_from(1, 1_000),
    default="10",
    show_default=True,
    help="Show N topics and N groups.",
)
@click.pass_context
def top_command(context: click.Context, interval: float, count: int | None, rows: int) -> None:
    """Show rates of the broker, its topics and its groups until interrupted."""
    samples = _samples(server_of(context), interval, rows, sleep)
    with suppress(KeyboardInterrupt):  # Ctrl-C ends it
        if context.obj["json"]:
            for _, sample in zip(_numbers(count), samples, strict=False):
                click.echo(json.dumps(sample))
        elif output.on_screen():
            _draw(samples, count)
        else:
            for number, sample in zip(_numbers(count), samples, strict=False):
                for line in (*([""] if number else ()), *_lines(sample)):
                    click.echo(line)


def _numbers(count: int | None) -> Iterator[int]:
    number = 0
    while number != count:
        yield number
        number += 1


def _draw(samples: Iterator[Answer], count: int | None) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(Text("measuring ..."), screen=True, auto_refresh=False) as live:
        for _, sample in zip(_numbers(count), samples, strict=False):
            live.update(Text.from_ansi("\n".join(_lines(sample))), refresh=True)


def _samples(
    server: Server, interval: float, rows: int, sleep: Callable[[float], None]
) -> Iterator[Answer]:
    """Iterate over samples: what happened between two reads of the status, a second."""
    before = server.get("status")
    while True:
        sleep(interval)
        now = server.get("status")
        yield _sample(before, now, rows)
        before = now


def _sample(before: Answer, now: Answer, rows: int) -> Answer:
    """Make a sample. Rates are null if the broker was started in between."""
    seconds = now.get("uptime_seconds", 0) - before.get("uptime_seconds", 0)

    def rate(earlier: float, later: float) -> float | None:
        return round((later - earlier) / seconds, 1) if seconds > 0 and later >= earlier else None

    return {
        "state": state(now),
        "conditions": conditions(now),
        "uptime_seconds": now.get("uptime_seconds"),
        "connections": sum(now.get("connections", {}).values()),
        "rates": {
            name: rate(_total(before, counter), _total(now, counter))
            for name, counter in RATES.items()
        },
        "topics": _topics(before, now, rate)[:rows],
        "groups": sorted(now.get("groups", ()), key=lambda group: -group["lag"])[:rows],
    }


def _total(status: Answer, counter: str) -> float:
    found: Any = status.get("wal", {}).get(counter, status.get(counter, 0))
    return float(sum(found.values()) if isinstance(found, dict) else found)


def _topics(
    before: Answer, now: Answer, rate: Callable[[float, float], float | None]
) -> list[Answer]:
    """Return the rates of each topic, those with most records first."""
    earlier = before.get("traffic", {})
    nothing = [0] * len(TRAFFIC)
    found = [
        {"topic": name}
        | {
            field: rate(was, is_now)
            for field, was, is_now in zip(TRAFFIC, earlier.get(name, nothing), counts, strict=True)
        }
        for name, counts in now.get("traffic", {}).items()
    ]
    return sorted(
        found, key=lambda one: -((one["written_records"] or 0) + (one["read_records"] or 0))
    )


def _lines(sample: Answer) -> Iterator[str]:
    rates = sample["rates"]
    yield (
        f"{sample['state']}, up {output.age(int(sample['uptime_seconds'] or 0))}, "
        f"{some(sample['connections'], 'connection')}"
    )
    for name, reason in sample["conditions"].items():
        yield f"{name}: {output.plain(reason)}"
    yield "  ".join(
        f"{name.replace('_', ' ')} {_bytes(value) if 'bytes' in name else _number(value)}/s"
        for name, value in rates.items()
    )
    yield ""
    header = ("TOPIC", "WRITTEN/S", "BYTES/S", "READ/S", "READ BYTES/S")
    rows = [
        (
            one["topic"],
            one["written_records"],
            _bytes(one["written_bytes"]),
            one["read_records"],
            _bytes(one["read_bytes"]),
        )
        for one in sample["topics"]
    ]
    yield from output.table(header, rows, "no topics")
    yield ""
    columns = ("topic", "group", "partition", "lag", "leased", "delayed", "dead")
    groups = [
        (*(group[name] for name in columns), output.age(_whole(group["oldest_age_seconds"])))
        for group in sample["groups"]
    ]
    yield from output.table((*(name.upper() for name in columns), "OLDEST"), groups, "no groups")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _bytes(value: float | None) -> str | None:
    return None if value is None else output.size(round(value))


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)
