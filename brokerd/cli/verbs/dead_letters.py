# Tests: tests/cli/test_dead_letters.py
"""``brokerctl dlq``: list, peek, replay, purge dead letters (docs/cli.rst)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import click

from brokerd.cli import options, output
from brokerd.cli.options import confirm, integer, some, time, yes_option
from brokerd.cli.records import record_line
from brokerd.cli.server import Answer, Server, server_of
from brokerd.errors import InvalidRequest

Command = TypeVar("Command", bound=Callable[..., Any])

_TOPIC, _GROUP = click.argument("topic"), click.argument("group")
_OFFSET = click.option(
    "--offset", type=integer, help="The letter at this offset, of --partition or partition 0."
)
_ALL = click.option("--all", "every", is_flag=True, help="All that fit.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Print the count and change nothing.")


def _filter_options(command: Command) -> Command:
    for option in (
        click.option(
            "--before", type=time, help="Letters whose last attempt was before this time."
        ),
        click.option("--reason", help="Letters with this reason."),
        click.option("--partition", type=integer, help="Letters of this partition."),
    ):
        command = option(command)
    return command


class LetterSelection(NamedTuple):
    """The dead letters that a verb selects."""

    topic: str
    group: str
    offset: int | None
    partition: int | None
    reason: str | None
    before: str | None

    def __str__(self) -> str:
        words = [f"group {self.group!r} of topic {self.topic!r}"]
        if self.offset is not None:
            words.insert(0, f"at offset {self.offset} of partition {self.partition or 0} of")
        else:
            words.insert(0, "of" if self.partition is None else f"of partition {self.partition} of")
        if self.reason is not None:
            words.append(f"with reason {self.reason!r}")
        if self.before is not None:
            words.append(f"last tried before {self.before}")
        return " ".join(words)

    def body(self) -> Answer:
        """Return the selection as a body of the API."""
        body: Answer = {"partition": self.partition, "reason": self.reason, "before": self.before}
        if self.offset is not None:
            body["partition"] = self.partition or 0
            body |= {"first": self.offset, "end": self.offset + 1}
        return body

    def letters(self, server: Server) -> Iterator[Answer]:
        """Fetch the selected letters."""
        query: dict[str, Any] = {"reason": self.reason, "before": self.before}
        if self.offset is not None:
            query |= {"partition": self.partition or 0, "offset": self.offset}
        elif self.partition is not None:
            query |= {"partition": self.partition}
        place = ("topics", self.topic, "groups", self.group, "dead-letters")
        for letter in server.pages(*place, key="dead_letters", **query):
            beyond = self.partition is not None and letter["partition"] != self.partition
            if self.offset is not None:
                beyond = (letter["partition"], letter["offset"]) != (
                    self.partition or 0,
                    self.offset,
                )
            if beyond:
                return
            yield letter


@click.group("dlq")
def dlq_group() -> None:
    """Dead letters of a group: list, peek, replay, purge."""


@dlq_group.command("list")
@_TOPIC
@_GROUP
@_filter_options
@click.pass_context
def list_command(
    context: click.Context,
    topic: str,
    group: str,
    partition: int | None,
    reason: str | None,
    before: str | None,
) -> None:
    """List a group's dead letters."""
    selection = LetterSelection(topic, group, None, partition, reason, before)
    letters = list(selection.letters(server_of(context)))
    rows = [
        (
            letter["partition"],
            letter["offset"],
            letter["reason"],
            letter["grants"],
            letter["failures"],
            output.time(letter["first_attempt"]),
            output.time(letter["last_attempt"]),
        )
        for letter in letters
    ]
    header = ("PARTITION", "OFFSET", "REASON", "GRANTS", "FAILURES", "FIRST", "LAST")
    output.show(context, {"dead_letters": letters}, output.table(header, rows, "no dead letters"))


@dlq_group.command("peek")
@_TOPIC
@_GROUP
@_OFFSET
@_filter_options
@click.option("--max", "most", type=integer, default="10", show_default=True, help="So many.")
@click.pass_context
def peek_command(
    context: click.Context,
    topic: str,
    group: str,
    offset: int | None,
    partition: int | None,
    reason: str | None,
    before: str | None,
    most: int,
) -> None:
    """Show dead letters with their records."""
    server = server_of(context)
    place = ("topics", topic, "groups", group, "dead-letters")
    if offset is not None:
        letters = [server.get(*place, partition or 0, offset)]
    else:
        found = LetterSelection(topic, group, None, partition, reason, before).letters(server)
        letters = [
            server.get(*place, letter["partition"], letter["offset"])
            for letter in islice(found, most)
        ]
    output.show(context, {"dead_letters": letters}, _peeked(letters))


def _peeked(letters: list[Answer]) -> Iterator[str]:
    for letter in letters:
        yield (
            f"{output.plain(letter['reason'])}, {letter['grants']} grants, "
            f"{letter['failures']} failures, last attempt {output.time(letter['last_attempt'])}"
        )
        if letter["record"] is None:
            yield f"  {letter['partition']}:{letter['offset']}  no record: {letter['record_error']}"
        else:
            yield f"  {record_line(letter['record'])}"
    if not letters:
        yield "no dead letters"


@dlq_group.command("replay")
@_TOPIC
@_GROUP
@_OFFSET
@_ALL
@_filter_options
@_DRY_RUN
@yes_option
@click.pass_context
def replay_command(
    context: click.Context,
    topic: str,
    group: str,
    offset: int | None,
    every: bool,
    partition: int | None,
    reason: str | None,
    before: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Make dead letters ready for delivery again, with counters at zero."""
    selection = LetterSelection(topic, group, offset, partition, reason, before)
    _check(selection, every)
    # A replay loses nothing, so scripts need no --yes.
    asks = options.on_terminal() and not (yes or dry_run)
    _change(context, selection, ("replay", "replayed"), dry_run, asks)


@dlq_group.command("purge")
@_TOPIC
@_GROUP
@_OFFSET
@_ALL
@_filter_options
@_DRY_RUN
@yes_option
@click.pass_context
def purge_command(
    context: click.Context,
    topic: str,
    group: str,
    offset: int | None,
    every: bool,
    partition: int | None,
    reason: str | None,
    before: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete dead letters; their records stay settled."""
    selection = LetterSelection(topic, group, offset, partition, reason, before)
    _check(selection, every)
    _change(context, selection, ("purge", "purged"), dry_run, not (yes or dry_run))


def _check(selection: LetterSelection, every: bool) -> None:
    if every == (selection.offset is not None):
        raise click.UsageError("name either --offset or --all")


def _change(
    context: click.Context,
    selection: LetterSelection,
    verb: tuple[str, str],
    dry_run: bool,
    asks: bool,
) -> None:
    """Replay or purge; for --dry-run and for a confirmation, count first."""
    server = server_of(context)
    name, done = verb
    count = 0
    if asks or dry_run:
        count = sum(1 for _ in selection.letters(server))
    if asks and count:
        confirm(f"{name} {some(count, 'dead letter')} {selection}", False)
    if not dry_run and not (asks and not count):
        place = ("topics", selection.topic, "groups", selection.group, "dead-letters", name)
        count = server.post(*place, **selection.body())["count"]
    if not count and selection.offset is not None:
        raise InvalidRequest(
            f"there is no dead letter {selection}; 'brokerctl dlq list' shows them"
        )
    line = f"{count} would be {done}; nothing was changed" if dry_run else f"{count} {done}"
    output.show(context, {"count": count, "dry_run": dry_run}, [line])
