# Tests: tests/cli/test_tail.py
"""``brokerctl tail``: print stored records, or new ones as they arrive (docs/cli.rst).

It reads by offset. It leases and settles nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import sleep

import click

from brokerd.cli import output
from brokerd.cli.options import integer
from brokerd.cli.options import time as time_option
from brokerd.cli.records import key_text, record_line, value_text
from brokerd.cli.server import Answer, Server, server_of
from brokerd.errors import BrokerdError

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


def pattern(text: str) -> re.Pattern[str]:
    """Parse a regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a regular expression: {error}") from None


@click.command("tail")
@click.argument("topic")
@click.option("--partition", type=integer, help="This partition; default: all.")
@click.option("--from", "begin", type=start, metavar="start|end|OFFSET", help="Where to begin.")
@click.option("--from-time", type=time_option, help="Begin with records appended at this time.")
@click.option("--key", help="Print only records with this key.")
@click.option(
    "--filter",
    "wanted",
    type=pattern,
    metavar="REGEX",
    help="Print only records whose value matches.",
)
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
    from_time: str | None,
    key: str | None,
    wanted: re.Pattern[str] | None,
    most: int | None,
    follow: bool,
) -> None:
    """Print a topic's records, one per line."""
    if begin is not None and from_time is not None:
        raise click.UsageError("name --from or --from-time, not both")
    if begin is None:
        begin = "end" if follow else "start"
    reader = Reader(server_of(context), topic, partition, begin, from_time)
    records = (
        record
        for record in reader.records(follow, sleep)
        if "damage" in record or _matches(record, key, wanted)
    )
    with suppress(KeyboardInterrupt):  # Ctrl-C ends --follow
        _print(records, most, context.obj["json"])


def _matches(record: Answer, key: str | None, wanted: re.Pattern[str] | None) -> bool:
    if key is not None and key_text(record) != key:
        return False
    return wanted is None or wanted.search(value_text(record)) is not None


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

    def __init__(
        self,
        server: Server,
        topic: str,
        partition: int | None,
        begin: str | int,
        from_time: str | None = None,
    ) -> None:
        self._server = server
        self._topic = topic
        described = server.get("topics", topic)
        self._topic_id = described["topic_id"]
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
        if from_time is not None:
            for index in chosen:
                found = server.get("topics", topic, "offset", partition=index, time=from_time)
                self._offsets[index] = found["offset"]

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
            self._check_topic()

    def _check_topic(self) -> None:
        """Refuse a new topic of the same name: the offsets do not belong to it."""
        if self._server.get("topics", self._topic)["topic_id"] != self._topic_id:
            raise BrokerdError(
                f"topic {self._topic!r} was deleted, and another one of this name was created; "
                "run it again to read that one"
            )

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
