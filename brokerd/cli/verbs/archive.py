# Tests: tests/cli/test_archive.py
"""``brokerctl archive``: status, refresh, seal, erase, restore-topic, recover (docs/cli.rst)."""

from __future__ import annotations

from collections.abc import Iterator

import click

from brokerd.cli import output
from brokerd.cli.options import some
from brokerd.cli.server import Answer, server_of
from brokerd.cli.verbs.erase import erase_command
from brokerd.cli.verbs.recover import recover_command
from brokerd.cli.verbs.restore_topic import restore_topic_command

_WAITS = {
    "archive": "for the archive to have them",
    "events": "without records, for the archive to have their events",
    "proof": "without records, because they prove that the archive is another log's",
    "newer": "for newer journal (archive.keep_wal_bytes)",
    "snapshot": "for two snapshots",
    "bounds": "for the next write of state/bounds",
    "lacking": "for something that the archive lacks",
}


@click.group("archive")
def archive_group() -> None:
    """The archive: status, refresh, seal; erase a key, restore a topic, recover."""


archive_group.add_command(erase_command)
archive_group.add_command(recover_command)
archive_group.add_command(restore_topic_command)


@archive_group.command("status")
@click.pass_context
def status_command(context: click.Context) -> None:
    """Show the archive's state, and the journal files that wait for it."""
    _show(context, server_of(context).get("archive"))


@archive_group.command("refresh")
@click.pass_context
def refresh_command(context: click.Context) -> None:
    """Make the broker read the newest version of the archive now."""
    _show(context, server_of(context).post("archive", "refresh"))


@archive_group.command("seal")
@click.pass_context
def seal_command(context: click.Context) -> None:
    """Seal the open segment, so that brokerd-rollup can archive it."""
    answer = server_of(context).post("wal", "seal")
    output.show(context, answer, [f"the journal is sealed up to LSN {answer['lsn']}"])


def _show(context: click.Context, archive: Answer) -> None:
    output.show(context, archive, output.facts(_facts(archive)))


def _facts(archive: Answer) -> Iterator[tuple[str, str]]:
    yield "archive", archive["address"]
    yield "state", _state(archive)
    if archive["degraded"]:
        yield "degraded", archive["degraded"]
    if archive["version"] is not None:
        yield "version", str(archive["version"])
        yield "records", f"{some(archive['files'], 'file')}, {output.size(archive['bytes'])}"
    yield "not in it", _files(archive["behind_segments"], archive["behind_bytes"])
    yield "journal", f"begins at LSN {archive['first_lsn']}"
    deleted = _files(archive["deleted_segments"], archive["deleted_bytes"])
    yield "deleted", f"{deleted}, since the start"
    for reason, meaning in _WAITS.items():
        if archive["waiting_bytes"][reason]:
            yield "waits", f"{output.size(archive['waiting_bytes'][reason])} {meaning}"
    if archive["lack"] is not None:
        yield "lacks", archive["lack"]
    yield "bounds", _bounds(archive["bounds"])


def _state(archive: Answer) -> str:
    looked = output.age(archive["looked_seconds_ago"])
    if looked is None:
        return "not looked at yet"
    if archive["error"] is not None:
        return f"cannot be used, looked at {looked} ago: {archive['error']}"
    if archive["version"] is None and archive["degraded"]:
        return f"is not there, looked at {looked} ago"
    if archive["version"] is None:
        return f"nothing was archived yet, looked at {looked} ago"
    return f"in use, looked at {looked} ago"


def _bounds(bounds: Answer) -> str:
    if bounds["error"] is not None:
        return f"cannot be written: {bounds['error']}"
    return f"written up to LSN {bounds['lsn']}" if bounds["written"] else "not written yet"


def _files(count: int, size: int) -> str:
    return f"{some(count, 'file')} of the journal, {output.size(size)}"
