# Tests: tests/cli/test_groups.py
"""``brokerctl group``: list, describe, seek, pause, resume, configure, delete (docs/cli.rst)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    some,
    time,
    yes_option,
)
from brokerd.cli.server import NOT_FOUND, Answer, Refused, Server, server_of

_TOPIC, _GROUP = click.argument("topic"), click.argument("group")
_CREATE = click.option("--create", is_flag=True, help="Create the group if it does not exist.")


def attempts(text: str) -> str:
    """``failures`` or ``grants``."""
    if text not in ("failures", "grants"):
        raise click.BadParameter(f"{text!r} is not failures or grants")
    return text


@click.group("group")
def group_group() -> None:
    """Consumer groups: list, describe, seek, pause, resume, configure, delete."""


@group_group.command("list")
@click.argument("topic", required=False)
@click.pass_context
def list_command(context: click.Context, topic: str | None) -> None:
    """List the groups of a topic, or of all topics, and their lag."""
    place = ("groups",) if topic is None else ("topics", topic, "groups")
    groups = list(server_of(context).all(*place, key="groups"))
    rows = [
        (
            *(() if topic is not None else (group["topic"],)),
            group["group"],
            group["lag"],
            group["leased"],
            group["delayed"],
            group["dead"],
            group["committed"],
            "paused" if group["paused"] else "running",
        )
        for group in groups
    ]
    header: tuple[str, ...] = ("GROUP", "LAG", "LEASED", "DELAYED", "DEAD", "COMMITTED", "STATE")
    if topic is None:
        header = ("TOPIC", *header)
    output.show(context, {"groups": groups}, output.table(header, rows, "no groups"))


@group_group.command("describe")
@_TOPIC
@_GROUP
@click.pass_context
def describe_command(context: click.Context, topic: str, group: str) -> None:
    """Show the position of a group in each partition, and its settings."""
    _show(context, server_of(context).get("topics", topic, "groups", group))


@group_group.command("seek")
@_TOPIC
@_GROUP
@click.option("--to-offset", type=integer)
@click.option("--to-time", type=time, help="The first record appended at or after this time.")
@click.option("--to-start", is_flag=True, help="The first record of each partition.")
@click.option("--to-end", is_flag=True, help="After the last record of each partition.")
@click.option("--partition", type=integer, help="This partition; default: all.")
@_CREATE
@yes_option
@click.pass_context
def seek_command(
    context: click.Context,
    topic: str,
    group: str,
    to_offset: int | None,
    to_time: str | None,
    to_start: bool,
    to_end: bool,
    partition: int | None,
    create: bool,
    yes: bool,
) -> None:
    """Move a group to another position; this ends its leases there.

    The committed offset moves too. Consumers that fetch by offset (FlyMQ, RustLog) keep their own
    position until they ask for the committed one. Stop them before, and start them again.
    """
    targets: list[tuple[str, Answer]] = []
    if to_offset is not None:
        targets.append((f"offset {to_offset}", {"to": to_offset}))
    if to_time is not None:
        targets.append((to_time, {"to_time": to_time}))
    if to_start:
        targets.append(("the start", {"to": "start"}))
    if to_end:
        targets.append(("the end", {"to": "end"}))
    if len(targets) != 1:
        raise click.UsageError("name one of --to-offset, --to-time, --to-start and --to-end")
    where, body = targets[0]
    server = server_of(context)
    place = ("topics", topic, "groups", group)
    leased = _leased(server, place, create)
    if leased is not None:
        which = "" if partition is None else f"partition {partition} of "
        ending = f"end {some(leased, 'lease')}"
        confirm(f"move {which}group {group!r} of topic {topic!r} to {where} and {ending}", yes)
    answer = server.post(*place, "seek", **body, partition=partition, create=create)
    if to_offset is not None:
        _warn_retained(answer, to_offset, partition)
    if any(group_partition["committed"] is not None for group_partition in answer["by_partition"]):
        _note(
            "the committed offset moves too; a running consumer keeps its own position "
            "until it asks for it, and its next commit overwrites this"
        )
    _show(context, answer)


def _leased(server: Server, place: tuple[str, ...], create: bool) -> int | None:
    """Return the number of leases of a group; None if it does not exist and may be created."""
    try:
        leased: int = server.get(*place)["leased"]
    except Refused as refusal:
        if create and refusal.status == NOT_FOUND:
            return None
        raise
    return leased


def _warn_retained(group: Answer, offset: int, partition: int | None) -> None:
    """Print the new position of partitions that do not have the offset."""
    for group_partition in group["by_partition"]:
        index, floor = group_partition["partition"], group_partition["floor"]
        if partition in (None, index) and floor != offset:
            _note(f"partition {index} goes on at {floor}: it has no record {offset}")


def _note(text: str) -> None:
    """Print a note on stderr."""
    click.echo(f"brokerctl: {text}", err=True)


@group_group.command("pause")
@_TOPIC
@_GROUP
@_CREATE
@click.pass_context
def pause_command(context: click.Context, topic: str, group: str, create: bool) -> None:
    """Lease no more records to a group; live leases continue.

    Consumers that fetch by offset and commit (FlyMQ, RustLog) do not lease, so a pause does not
    stop them.
    """
    answer = server_of(context).post("topics", topic, "groups", group, "pause", create=create)
    if _only_commits(answer):
        _note(
            "this group commits offsets and has leased nothing: consumers that fetch by offset are "
            "not held by a pause"
        )
    _show(context, answer)


@group_group.command("resume")
@_TOPIC
@_GROUP
@click.pass_context
def resume_command(context: click.Context, topic: str, group: str) -> None:
    """Resume a paused group."""
    _show(context, server_of(context).post("topics", topic, "groups", group, "resume"))


@group_group.command("configure")
@_TOPIC
@_GROUP
@click.option(
    "--max-attempts",
    type=setting(integer_from(1, 1_000_000)),
    help="Attempts after which a record becomes a dead letter.",
)
@click.option("--attempts", type=setting(attempts), help="Count failures or grants as attempts.")
@click.option("--backoff-base", type=setting(duration), help="Delay after the first failure.")
@click.option("--backoff-max", type=setting(duration), help="Longest such wait.")
@click.option(
    "--default-duration", type=setting(duration), help="Lease duration where the client names none."
)
@click.option(
    "--key-ordered", type=setting(boolean), help="yes or no: lease one record of a key at a time."
)
@_CREATE
@click.pass_context
def configure_command(
    context: click.Context, /, topic: str, group: str, create: bool, **given: list[Any] | None
) -> None:
    """Change a group's settings; the value 'default' resets one."""
    durations = ("backoff_base", "backoff_max", "default_duration")
    settings = changes(
        **{f"{name}_seconds" if name in durations else name: one for name, one in given.items()}
    )
    if not settings:
        raise click.UsageError("name a setting; --help lists them")
    place = ("topics", topic, "groups", group, "settings")
    _show(context, server_of(context).patch(*place, **settings, create=create))


@group_group.command("delete")
@_TOPIC
@_GROUP
@yes_option
@click.pass_context
def delete_command(context: click.Context, topic: str, group: str, yes: bool) -> None:
    """Delete a group: its leases, attempts, dead letters and settings."""
    server = server_of(context)
    stands = server.get("topics", topic, "groups", group)
    confirm(
        f"delete group {group!r} of topic {topic!r} with {some(stands['leased'], 'lease')} and "
        f"{some(stands['dead'], 'dead letter')}",
        yes,
    )
    answer = server.delete("topics", topic, "groups", group)
    output.show(context, answer, [f"group {output.plain(group)} is deleted"])


def _show(context: click.Context, group: Answer) -> None:
    output.show(context, group, _lines(group))


def _lines(group: Answer) -> Iterator[str]:
    settings = group["settings"]
    yield from output.facts(
        [
            ("topic", group["topic"]),
            ("group", group["group"]),
            ("state", "paused" if group["paused"] else "running"),
            ("lag", f"{group['lag']} by its commits" if _only_commits(group) else group["lag"]),
            ("oldest", output.age(group["oldest_age_seconds"])),
            ("max attempts", f"{settings['max_attempts']} {settings['attempts']}"),
            ("back-off", _backoff(settings)),
            ("lease", output.age(settings["default_duration_seconds"])),
            ("order", "by key" if settings["key_ordered"] else "none"),
        ]
    )
    yield ""
    columns = ("partition", "floor", "next", "lag", "leased", "delayed", "dead", "committed")
    rows = [
        [group_partition[name] for name in columns] for group_partition in group["by_partition"]
    ]
    yield from output.table([name.upper() for name in columns], rows)


def _only_commits(group: Answer) -> bool:
    """Return whether a group seems to commit offsets without leases."""
    return any(group_partition["lag_by_commit"] for group_partition in group["by_partition"])


def _backoff(settings: Answer) -> str:
    if not settings["backoff_base_seconds"]:
        return "none"
    base, most = settings["backoff_base_seconds"], settings["backoff_max_seconds"]
    return f"{output.age(base)}, doubling to {output.age(most)}"
