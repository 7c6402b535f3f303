# Tests: tests/cli/test_topics.py
"""``brokerctl topic``: list, create, describe, configure, trim, delete (docs/cli.rst)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from brokerd.cli import output
from brokerd.cli.options import (
    boolean,
    changes,
    confirm,
    duration,
    integer,
    integer_from,
    setting,
    size,
    some,
    yes_option,
)
from brokerd.cli.server import NOT_FOUND, Answer, Refused, server_of

Command = TypeVar("Command", bound=Callable[..., Any])

_NAME = click.argument("name")


def _settings_options(command: Command) -> Command:
    seconds, count = setting(duration, none=0), setting(size, none=0)
    compact = "yes or no: the archive keeps only the latest record of each key."
    command = click.option("--compact", type=setting(boolean), help=compact)(command)
    for name, kind, meaning in (
        ("--ttl", seconds, "Time after which a produced record expires."),
        ("--retention-bytes", count, "Bytes to keep of each partition, approximately."),
        ("--retention", seconds, "Time after which an appended record is removed."),
    ):
        meaning += " Or 'none', or 'default'."
        command = click.option(name, type=kind, help=meaning)(command)
    return command


@click.group("topic")
def topic_group() -> None:
    """Topics: list, create, describe, configure, trim, delete."""


@topic_group.command("list")
@click.pass_context
def list_command(context: click.Context) -> None:
    """List all topics."""
    topics = list(server_of(context).all("topics", key="topics"))
    rows = [(one["name"], len(one["next_offsets"]), _records(one), one["groups"]) for one in topics]
    header = ("TOPIC", "PARTITIONS", "RECORDS", "GROUPS")
    output.show(context, {"topics": topics}, output.table(header, rows, "no topics"))


@topic_group.command("create")
@_NAME
@click.option("--partitions", type=integer_from(1, 32_767), default="1", show_default=True)
@_settings_options
@click.pass_context
def create_command(
    context: click.Context,
    name: str,
    partitions: int,
    retention: list[Any] | None,
    retention_bytes: list[Any] | None,
    ttl: list[Any] | None,
    compact: list[Any] | None,
) -> None:
    """Create a topic."""
    if not name:
        raise click.BadParameter("the name of a new topic must not be empty", param_hint="NAME")
    settings = changes(
        retention_seconds=retention,
        retention_bytes=retention_bytes,
        ttl_seconds=ttl,
        compact=compact,
    )
    body = {"name": name, "partitions": partitions, "settings": settings}
    _show(context, server_of(context).post("topics", **body))


@topic_group.command("describe")
@_NAME
@click.pass_context
def describe_command(context: click.Context, name: str) -> None:
    """Show a topic's offsets and settings."""
    _show(context, server_of(context).get("topics", name))


@topic_group.command("configure")
@_NAME
@_settings_options
@click.pass_context
def configure_command(
    context: click.Context,
    name: str,
    retention: list[Any] | None,
    retention_bytes: list[Any] | None,
    ttl: list[Any] | None,
    compact: list[Any] | None,
) -> None:
    """Change a topic's settings; the value 'default' resets one."""
    settings = changes(
        retention_seconds=retention,
        retention_bytes=retention_bytes,
        ttl_seconds=ttl,
        compact=compact,
    )
    if not settings:
        raise click.UsageError("name a setting: --retention, --retention-bytes, --ttl or --compact")
    _show(context, server_of(context).patch("topics", name, "settings", **settings))


@topic_group.command("trim")
@_NAME
@click.option("--offset", type=integer, required=True, help="Remove the records below this offset.")
@click.option("--partition", type=integer, default="0", show_default=True)
@yes_option
@click.pass_context
def trim_command(context: click.Context, name: str, offset: int, partition: int, yes: bool) -> None:
    """Remove a topic's records below an offset."""
    server = server_of(context)
    starts = server.get("topics", name)["start_offsets"]
    if partition < len(starts):  # otherwise the broker reports the error
        going = max(0, offset - starts[partition])
        confirm(
            f"remove up to {some(going, 'record')} of topic {name!r}: those below offset {offset} "
            f"in partition {partition}",
            yes,
        )
    answer = server.post("topics", name, "trim", offset=offset, partition=partition)
    output.show(context, answer, [f"partition {partition} begins at {answer['start_offset']}"])


@topic_group.command("delete")
@_NAME
@yes_option
@click.pass_context
def delete_command(context: click.Context, name: str, yes: bool) -> None:
    """Delete a topic with its records, groups and delayed messages."""
    server = server_of(context)
    try:
        topic = server.get("topics", name)
    except Refused as refusal:
        if refusal.status != NOT_FOUND:
            raise
        raise Refused(NOT_FOUND, f"there is no topic {name!r}; nothing was deleted") from None
    confirm(
        f"delete topic {name!r} with {some(_records(topic), 'record')}, "
        f"{some(topic['groups'], 'group')} and all its delayed messages",
        yes,
    )
    answer = server.delete("topics", name)
    output.show(context, answer, [f"topic {output.plain(name)} is deleted"])


def _records(topic: Answer) -> int:
    return sum(topic["next_offsets"]) - sum(topic["start_offsets"])


def _show(context: click.Context, topic: Answer) -> None:
    output.show(context, topic, _lines(topic))


def _lines(topic: Answer) -> Iterator[str]:
    settings = topic["settings"]
    yield from output.facts(
        [
            ("topic", topic["name"]),
            ("id", topic["topic_id"]),
            ("records", _records(topic)),
            ("groups", topic["groups"]),
            ("retention", _setting(settings["retention_seconds"], output.age)),
            ("retention bytes", _setting(settings["retention_bytes"], output.size)),
            ("ttl", _setting(settings["ttl_seconds"], output.age)),
            ("compact", "yes" if settings["compact"] else "no"),
        ]
    )
    yield ""
    places = enumerate(zip(topic["start_offsets"], topic["next_offsets"], strict=True))
    rows = [(index, start, end, end - start) for index, (start, end) in places]
    yield from output.table(("PARTITION", "START", "NEXT", "RECORDS"), rows)


def _setting(value: Any, words: Callable[[Any], str | None]) -> str | None:
    if value is None:
        return "default"
    return words(value) if value else "none"
