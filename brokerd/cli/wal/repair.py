# Tests: tests/wal/test_repair_cli.py
"""``brokerctl wal repair``: print the plan or the result of a repair, as text or JSON.

Exit codes: 0 nothing to do, or all done; 1 something to do (``--dry-run``), refused, or incomplete
(one line on stderr); 75 a broker uses the directory.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import click
import msgpack

from brokerd.errors import ConfigError, DirectoryLocked, NoSpace
from brokerd.wal.damage.repair import repair
from brokerd.wal.damage.repair_plan import Action, ActionKind, DataPaths, RepairPlan, plan_repair
from brokerd.wal.disk import RealDisk
from brokerd.wal.lock import DirectoryLock
from brokerd.wal.recovery.report import Frame, LostRange
from brokerd.walformat import EntryKind

LOCKED = 75


class TopicNames:
    """Names of topics, collected from the entries that create them."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def see(self, frame: Frame) -> None:
        """Collect the names in one frame."""
        for entry in frame.entries:
            if entry.kind == EntryKind.TOPIC:
                fields = msgpack.unpackb(entry.body)
                if isinstance(fields, dict) and isinstance(fields.get("name"), str):
                    self._names[entry.topic_id] = fields["name"]

    def describe(self, lost: Iterable[LostRange]) -> str:
        """Return ``; lost ...`` for each range, "" for none."""
        return "".join(f"; lost {self._one(one)}" for one in lost)

    def _one(self, lost: LostRange) -> str:
        name = self._names.get(lost.topic_id)
        topic = "topic" if name is None else f"topic {name!r}"
        offsets = f"offsets {lost.first} to {lost.end - 1}"
        if lost.end - lost.first == 1:
            offsets = f"offset {lost.first}"
        return f"{topic} (id {lost.topic_id}) partition {lost.partition} {offsets}"


@click.command("repair")
@click.option("--dry-run", is_flag=True, help="Print the plan and change nothing.")
@click.option(
    "--allow-network-fs",
    is_flag=True,
    help="Allow a network file system, as wal.allow_network_fs does.",
)
@click.pass_context
def repair_command(context: click.Context, dry_run: bool, allow_network_fs: bool) -> None:
    """Repair a damaged log of a stopped broker.

    A repair changes no sound byte. Damaged ranges stay in place and are recorded as lost. Cut or
    removed parts are kept in DATA_DIR/repair.
    """
    data_dir = os.path.abspath(context.obj["data_dir"])
    _check_directory(data_dir, dry_run)
    disk = RealDisk()
    lock = DirectoryLock(data_dir)
    try:
        if not dry_run:
            lock.acquire(disk.file_system(data_dir), allow_network_fs)
        elif os.path.exists(os.path.join(data_dir, "lock")):
            lock.acquire(claim=False)
    except DirectoryLocked as error:
        click.echo(f"brokerctl: {error}", err=True)
        context.exit(LOCKED)
    try:
        context.exit(_run(context, disk, data_dir, dry_run))
    finally:
        lock.release()


def _check_directory(data_dir: str, dry_run: bool) -> None:
    """Raise ConfigError if there is no log, or if the broker could not read the repaired files."""
    wal_path = os.path.join(data_dir, "wal")
    if not os.path.isdir(wal_path):
        raise ConfigError(f"{wal_path} is not there; name the broker's directory with --data-dir")
    owner = os.stat(wal_path).st_uid
    if not dry_run and owner != os.geteuid():
        raise ConfigError(
            f"{wal_path} belongs to user id {owner}, and files that another user makes there would "
            "stop its broker: run this as that user (sudo -u)"
        )


def _run(context: click.Context, disk: RealDisk, data_dir: str, dry_run: bool) -> int:
    paths, names = DataPaths.of(data_dir), TopicNames()
    plan = plan_repair(disk, paths, names.see)
    copies = None
    if not dry_run:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        try:
            copies = repair(disk, paths, plan, stamp, os.urandom)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(
                    f"{error.filename or data_dir}: the disk is full; no sound byte was changed: "
                    "make room and run it again, it goes on where it stopped"
                ) from error
            raise
    if context.obj["json"]:
        actions = [action.facts() for action in plan.actions]
        fields = {"directory": data_dir, "dry_run": dry_run, "actions": actions, "copies": copies}
        click.echo(json.dumps(fields))
    else:
        for line in _lines(plan, names, data_dir, copies):
            click.echo(line)
    return int(dry_run and bool(plan.actions))


def _lines(plan: RepairPlan, names: TopicNames, data_dir: str, copies: str | None) -> Iterator[str]:
    yield f"in {data_dir}:"
    for action in plan.actions:
        problem = f"{action.problem}{names.describe(action.lost)}"
        yield f"{_action_text(action)}: {problem}{_action_detail(action)}"
    if not plan.actions:
        yield "nothing to do"
    elif copies is None:
        yield f"{len(plan.actions)} things to do; nothing was changed (--dry-run)"
    else:
        yield f"{len(plan.actions)} things done, the log is sound; copies and list in {copies}"


def _action_text(action: Action) -> str:
    place = f"{action.directory}/{action.name}"
    stretch = f"{place} at {action.position} to {action.end}"
    return {
        ActionKind.CUT: f"cut {stretch} ({action.end - action.position} bytes)",
        ActionKind.MOVE: f"move {place} away",
        ActionKind.REBUILD: f"make {place} again",
        ActionKind.RESTORE: f"write the header block of {place} again",
        ActionKind.RECORD: f"put {stretch} on record as lost",
    }[action.kind]


def _action_detail(action: Action) -> str:
    if action.is_counted:
        return ""
    return "; what else was there cannot be told, and offsets it may have held are not used again"
