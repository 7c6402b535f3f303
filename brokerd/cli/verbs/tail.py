# Tests: tests/cli/test_tail.py
"""``brokerctl tail``: print stored records, or new ones as they arrive (docs/cli.rst).

It reads by offset. It leases and settles nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import click

from brokerd.cli import output
from brokerd.cli.options import integer
from brokerd.cli.records import record_line
from brokerd.cli.server import Answer, Server, server_of

POLL_SECONDS = 0.5
PAGE_RECORDS = 500


def start(text: str) -> str | int:
    """``start``, ``end`` or an offset."""
    if text in ("start", "end"):
        return text
    try:
        return integer(text)
    except click.BadParameter:
        raise click.BadParameter(f"{text!r} is neither start nor end nor an offset") from None


@click.command("tail")
@click.argument("topic")
@click.option("--partition", type=integer, help="This partition; default: all.")
@click.option("--from", "begin", type=start, metavar="start|end|OFFSET", help="Where to begin.")
@click.option("--max", "most", type=integer, help="Stop after this many records.")
@click.option(
    "-f", "--follow", is_flag=True, help="Start at the end and print new records as they arrive."
)
@click.pass_context
def tail_command(
    context: click.Context,
    topic: str,
    partition: int | None,
    begin: str | int | None,
    most: int | None,
    follow: bool,
) -> None:
    """Print a topic's records, one per line."""
    if begin is None:
        begin = "end" if follow else "start"
    reader = Reader(server_of(context), topic, partition, begin)
    records = reader.records(follow, time.sleep)
    with suppress(KeyboardInterrupt):  # Ctrl-C ends --follow
        _print(records, most, context.obj["json"])


def _print(records: Iterator[Answer], most: int | None, as_json: bool) -> None:
    printed = 0
    while printed != most and (record := next(records, None)) is not None:
        if "damage" in record:
            click.echo(f"brokerctl: {output.plain(record['damage'])}", err=True)
        else:
            click.echo(json.dumps(record) if as_json else record_line(record))
            printed += 1


class Reader:
    """Reads the partitions of a topic from the chosen start."""

    def __init__(self, server: Server, topic: str, partition: int | None, begin: str | int) -> None:
        self._server = server
        self._topic = topic
        described = server.get("topics", topic)
        ends = described["next_offsets"]
        if partition is not None and partition >= len(ends):
            raise click.UsageError(f"topic {topic!r} has {len(ends)} partitions, from 0")
        chosen = range(len(ends)) if partition is None else [partition]
        self._offsets = {
            index: begin
            if isinstance(begin, int)
            else (ends[index] if begin == "end" else described["start_offsets"][index])
            for index in chosen
        }

    def records(self, follow: bool, sleep: Callable[[float], None]) -> Iterator[Answer]:
        """Iterate over stored records, then new ones; ``{"damage": TEXT}`` stands for unreadable
        records.
        """
        while True:
            for index in self._offsets:
                yield from self._partition(index)
            if not follow:
                return
            sleep(POLL_SECONDS)

    def _partition(self, index: int) -> Iterator[Answer]:
        """Iterate over the stored records of one partition."""
        while True:
            offset = self._offsets[index]
            page = self._server.get(
                "topics",
                self._topic,
                "records",
                partition=index,
                offset=offset,
                limit=PAGE_RECORDS,
            )
            for record in page["records"]:
                self._offsets[index] = record["offset"] + 1
                yield record
            if page["damage"] is not None:
                yield {"damage": page["damage"]}
            self._offsets[index] = page["next_offset"]
            if page["next_offset"] == offset:
                return
