# Tests: tests/cli/test_status.py
"""``brokerctl status``: health, listeners and sizes of a broker (docs/cli.rst)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from brokerd.cli import output
from brokerd.cli.options import some
from brokerd.cli.server import Answer, server_of


@click.command("status")
@click.pass_context
def status_command(context: click.Context) -> None:
    """Show the health, listeners and sizes of the broker."""
    status = server_of(context).get("status")
    output.show(context, status, _lines(status))


def conditions(status: Answer) -> dict[str, str]:
    """Return the reason of each condition that holds."""
    return {name: reason for name, reason in status.get("conditions", {}).items() if reason}


def state(status: Answer) -> str:
    """Return the phase, and whether the broker is degraded or not ready."""
    words: list[str] = [status.get("phase", "unknown")]
    if words == ["ready"] and not status["ready"]:
        words = ["not ready"]
    if conditions(status):
        words.append("degraded")
    return ", ".join(words)


def _lines(status: Answer) -> Iterator[str]:
    holding = conditions(status)
    yield from output.facts(_facts(status))
    yield ""
    yield from output.table(
        ("LISTENER", "ADDRESS", "CONNECTIONS"), _listeners(status), "no listeners"
    )
    if "kind_limit_bytes" in status.get("memory", {}):  # earlier brokers have none
        yield ""
        yield from output.table(("CLIENT MEMORY", "CLAIMED", "AT MOST"), _kinds(status["memory"]))
    if holding:
        yield ""
        yield from output.table(("CONDITION", "REASON"), holding.items())


def _facts(status: Answer) -> Iterator[tuple[str, Any]]:
    yield "state", state(status)
    if status.get("reason"):
        yield "reason", status["reason"]
    yield "version", status.get("version")
    yield "core", output.core_text(status.get("compiled"))
    yield "uptime", output.age(int(status.get("uptime_seconds", 0)))
    yield "data directory", status.get("data_dir")
    yield "durability", status.get("durability")
    if "topics" not in status:  # it replays the journal, or stops
        return
    yield "topics", status["topics"]
    dead = sum(group["dead"] for group in status["groups"])
    lag = sum(group["lag"] for group in status["groups"])
    left_out = status["groups_omitted"]
    without = f", without {some(left_out, 'partition')} of groups" if left_out else ""
    yield "lag of groups", f"{lag}, {some(dead, 'dead letter')}{without}"
    wal, archive, memory = status["wal"], status["archive"], status["memory"]
    yield "journal", f"{output.size(wal['bytes'])} in {some(wal['segments'], 'file')}"
    free_bytes = wal["disk_free_bytes"]  # null until it is measured
    yield "disk free", None if free_bytes is None else output.size(free_bytes)
    yield "archive", _archive(archive)
    claimed = sum(memory["claimed_bytes"].values())
    budget = memory.get("budget_bytes", memory["limit_bytes"])
    yield "client memory", f"{output.size(claimed)} of {output.size(budget)}"


def _archive(archive: Answer) -> str:
    if "version" not in archive:
        return "none"
    if archive["version"] is None:
        return f"empty; {output.size(archive['behind_bytes'])} of journal wait"
    unusable = "" if archive["usable"] else "cannot be used; "
    behind = f"{output.size(archive['behind_bytes'])} behind"
    return (
        f"{unusable}{output.size(archive['bytes'])} in {some(archive['files'], 'file')}, {behind}"
    )


def _kinds(memory: Answer) -> Iterator[tuple[str, str, str]]:
    for kind, limit in memory["kind_limit_bytes"].items():
        yield kind, output.size(memory["claimed_bytes"][kind]), output.size(limit)


def _listeners(status: Answer) -> list[tuple[str, str, int | None]]:
    connections = status.get("connections", {})
    return [
        (name, address, connections.get(name))
        for name, address in status.get("listeners", {}).items()
        if isinstance(address, str)
    ]
