# Tests: tests/backup/test_cli.py
"""``brokerctl backup`` and ``brokerctl restore`` (docs/backup.rst). They need no running broker."""

from __future__ import annotations

import os
import resource
import secrets
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive
from brokerd.archive.storage.address import Place, address
from brokerd.archive.storage.store import open_store
from brokerd.backup.archive import read_archive
from brokerd.backup.create import Progress, create_backup
from brokerd.backup.manifest import ArchiveVersion
from brokerd.backup.points import Point, time_text
from brokerd.backup.repository import Pruned, Repository
from brokerd.backup.restore import Identity, restore
from brokerd.backup.source import read_log_id
from brokerd.cli import output
from brokerd.cli.options import some
from brokerd.cli.options import time as time_type
from brokerd.cli.progress import progress_bar
from brokerd.errors import ConfigError, DamagedData, NewerFormat
from brokerd.wal.disk import RealDisk

BACKUP_UMASK = 0o077
"""Backups hold secrets: only their owner reads them."""
RESTORE_UMASK = 0o027
"""The broker's files have these modes, too."""


class BackupGroup(click.Group):
    """The verbs of backups. An argument that is no verb is the address of ``create``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert ``create``."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["create", *args]
        return super().parse_args(ctx, args)


@click.group("backup", cls=BackupGroup)
def backup_group() -> None:
    """Back up the data directory; list, verify, prune backups.

    ``brokerctl backup TO`` is short for ``brokerctl backup create TO``.
    """


def _place(context: click.Context, text: str, what: str) -> Place:
    """Parse the address of backups or of an archive. Raises ConfigError."""
    if not text:
        raise ConfigError(f"{what}: name a directory, or a bucket as s3://BUCKET/NAME")
    try:
        return address(text, Path(context.obj["data_dir"]))
    except ConfigError as error:
        raise ConfigError(str(error).replace("archive.uri", what, 1)) from None


def _repository(context: click.Context, text: str) -> Repository:
    return Repository(open_store(_place(context, text, "the address of the backups")))


def _existing(context: click.Context, text: str) -> Repository:
    """Open backups to read. Raises ConfigError if there are none."""
    repository = _repository(context, text)
    if not repository.numbers():
        raise ConfigError(
            f"{repository.store.place} holds no backups; brokerctl backup "
            f"{repository.store.place} makes one"
        )
    return repository


def _require_outside(place: Place, data_dir: Path) -> None:
    """Raise ConfigError if backups would be in the data directory, and be lost with it."""
    if isinstance(place, Path) and place.resolve().is_relative_to(data_dir.resolve()):
        raise ConfigError(
            f"the address of the backups: {place} is in the data directory {data_dir}, and a "
            "mistake or a lost disk takes both; name a directory elsewhere, best on another disk, "
            "or a bucket"
        )


def _set_umask(context: click.Context, umask: int) -> None:
    """Set the umask until the command ends."""
    before = os.umask(umask)
    context.call_on_close(lambda: os.umask(before))


def _shown(show: Callable[[int, int], None]) -> Callable[[Progress], None]:
    """Return a function that shows progress in a bar."""
    return lambda progress: show(progress.bytes, progress.bytes_all)


def _pruned_line(pruned: Pruned) -> str:
    removed = some(len(pruned.backups), "old backup")
    return f"deleted {removed}, {some(pruned.files, 'file')}, {output.size(pruned.bytes)}"


# -- create --------------------------------------------------------------------------------------


@backup_group.command("create")
@click.argument("to")
@click.option(
    "--archive", default="", metavar="URI", help="The archive. [default: DATA_DIR/archive]"
)
@click.option("--keep", type=click.IntRange(1), help="Then delete all but the newest N backups.")
@click.pass_context
def create_command(context: click.Context, to: str, archive: str, keep: int | None) -> None:
    """Copy the journal and the state to TO; exit 1 if the journal is damaged."""
    _set_umask(context, BACKUP_UMASK)
    _raise_file_limit()
    data_dir = os.path.abspath(context.obj["data_dir"])
    place = _place(context, archive, "--archive") if archive else address("", Path(data_dir))
    repository = _repository(context, to)
    _require_outside(repository.store.place, Path(data_dir))

    def named_archive(log_id: str) -> ArchiveVersion | None:
        try:
            found = read_archive(place, log_id)
        except (ArchiveUnavailable, ForeignArchive, NewerFormat, DamagedData) as error:
            if archive:
                raise
            click.echo(f"the backup names no archive: {error}", err=True)
            return None
        return None if found is None else found[0]

    read_log_id(RealDisk(), data_dir)  # without a log, no directory is made
    with repository.lock():
        with progress_bar("backup") as show:
            created = create_backup(
                RealDisk(),
                data_dir,
                repository,
                time.time_ns() // 1000,
                named_archive,
                _shown(show),
            )
        pruned = None if keep is None else repository.prune(keep)
    number, manifest = created.backup
    if manifest.pin is not None and manifest.archive is None:
        click.echo(
            f"the log relies on the archive {manifest.pin[0] or '-'}, and the backup does not name "
            "its address: give --archive URI",
            err=True,
        )
    answer: dict[str, Any] = {
        "number": number,
        "address": str(repository.store.place),
        "log_id": manifest.log_id,
        "lsn": manifest.lsn,
        "time": time_text(manifest.time_us),
        "files": len(manifest.files()),
        "bytes": sum(file.size for file in manifest.files()),
        "copied_files": created.copied.files,
        "copied_bytes": created.copied.bytes,
        "damage": manifest.damage,
        "pruned": None if pruned is None else pruned._asdict(),
    }
    lines = [f"DAMAGE {problem}" for problem in manifest.damage]
    lines.append(
        f"backup {number} in {repository.store.place}: up to LSN {manifest.lsn} "
        f"({answer['time']}), {some(answer['files'], 'file')}, {output.size(answer['bytes'])}; "
        f"copied {some(answer['copied_files'], 'file')}, {output.size(answer['copied_bytes'])}"
    )
    if pruned is not None:
        lines.append(_pruned_line(pruned))
    output.show(context, answer, lines)
    context.exit(1 if manifest.damage else 0)


def _raise_file_limit() -> None:
    """Raise the limit of open files as far as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# -- list, verify, prune -------------------------------------------------------------------------


@backup_group.command("list")
@click.argument("where")
@click.pass_context
def list_command(context: click.Context, where: str) -> None:
    """List the backups in WHERE, oldest first; exit 1 if one is damaged."""
    repository = _existing(context, where)
    found: list[dict[str, Any]] = []
    damaged: list[str] = []
    for number in repository.numbers():
        try:
            manifest = repository.read(number).manifest
        except (DamagedData, NewerFormat) as error:
            damaged.append(str(error))
            continue
        found.append(
            {
                "number": number,
                "created": time_text(manifest.created_us),
                "lsn": manifest.lsn,
                "time": time_text(manifest.time_us),
                "files": len(manifest.files()),
                "bytes": sum(file.size for file in manifest.files()),
                "log_id": manifest.log_id,
                "archive": None if manifest.archive is None else manifest.archive.address,
                "damage": manifest.damage,
            }
        )
    header = ("backup", "created", "LSN", "last frame", "files", "size", "damage")
    rows = [
        (
            one["number"],
            one["created"],
            one["lsn"],
            one["time"],
            one["files"],
            output.size(one["bytes"]),
            len(one["damage"]),
        )
        for one in found
    ]
    answer = {"address": str(repository.store.place), "backups": found, "damaged": damaged}
    output.show(context, answer, [*output.table(header, rows), *damaged])
    context.exit(1 if damaged else 0)


@backup_group.command("verify")
@click.argument("where")
@click.option("--backup", "number", type=click.IntRange(1), help="Verify this one. [default: all]")
@click.option("--quick", is_flag=True, help="Compare sizes only, and read no file.")
@click.pass_context
def verify_command(context: click.Context, where: str, number: int | None, quick: bool) -> None:
    """Read every file of the backups in WHERE; exit 1 if one is missing or has wrong bytes."""
    repository = _existing(context, where)
    numbers = repository.numbers() if number is None else [number]
    report = repository.verify(numbers, quick)
    answer = {
        "address": str(repository.store.place),
        "backups": len(numbers),
        "files": report.files,
        "bytes": report.bytes,
        "problems": report.problems,
    }
    done = "compared" if quick else "read"
    lines = [f"DAMAGE {problem}" for problem in report.problems]
    lines.append(
        f"{some(len(numbers), 'backup')}: {done} {some(report.files, 'file')}, "
        f"{output.size(report.bytes)}: {'DAMAGED' if report.problems else 'sound'}"
    )
    output.show(context, answer, lines)
    context.exit(1 if report.problems else 0)


@backup_group.command("prune")
@click.argument("where")
@click.option("--keep", type=click.IntRange(1), required=True, help="Keep the newest N backups.")
@click.pass_context
def prune_command(context: click.Context, where: str, keep: int) -> None:
    """Delete old backups in WHERE, and the files that no other backup refers to."""
    repository = _existing(context, where)
    with repository.lock():
        pruned = repository.prune(keep)
    answer = {"address": str(repository.store.place), **pruned._asdict()}
    output.show(context, answer, [_pruned_line(pruned)])


# -- restore -------------------------------------------------------------------------------------


@click.command("restore")
@click.argument("where")
@click.argument("into")
@click.option("--backup", "number", type=click.IntRange(1), help="[default: the newest]")
@click.option("--to-lsn", type=click.IntRange(0), metavar="LSN", help="Cut the log at this LSN.")
@click.option("--to-time", type=time_type, metavar="TIME", help="Cut the log at this broker time.")
@click.option("--same-log", is_flag=True, help="Keep the log's id: the original is lost for good.")
@click.option("--archive", default="", metavar="URI", help="With --same-log: the log's archive.")
@click.option("--allow-damage", is_flag=True, help="Restore a damaged log, too.")
@click.pass_context
def restore_command(
    context: click.Context,
    where: str,
    into: str,
    number: int | None,
    to_lsn: int | None,
    to_time: str | None,
    same_log: bool,
    archive: str,
    allow_damage: bool,
) -> None:
    """Restore a backup in WHERE to the new data directory INTO."""
    if to_lsn is not None and to_time is not None:
        raise click.UsageError("give either --to-lsn or --to-time")
    if archive and not same_log:
        raise click.UsageError("--archive needs --same-log: another log has an archive of its own")
    _set_umask(context, RESTORE_UMASK)
    repository = _existing(context, where)
    identity = Identity(
        "" if same_log else secrets.token_hex(16),
        _place(context, archive, "--archive") if archive else None,
    )
    point = Point(to_lsn, None if to_time is None else _microseconds(to_time))
    with progress_bar("restore") as show:
        done = restore(
            RealDisk(), repository, into, identity, point, number, allow_damage, _shown(show)
        )
    damage = [f"{one.name} at {one.position}: {one.problem}" for one in done.report.damages]
    answer = {
        "directory": done.directory,
        "backup": done.choice.holder.number,
        "log_id": done.log_id,
        "lsn": done.lsn,
        "time": time_text(done.time_us),
        "segments": done.report.segments,
        "frames": done.report.frames,
        "records": done.report.records,
        "damage": damage,
    }
    lines = [f"DAMAGE {problem}" for problem in damage]
    lines.append(
        f"restored backup {answer['backup']} to {done.directory}: up to LSN {done.lsn} "
        f"({answer['time']}), {some(done.report.segments, 'segment')}, "
        f"{some(done.report.records, 'record')}"
    )
    kept = "kept: the original must never start again" if same_log else "new"
    lines.append(f"log id {done.log_id} ({kept})")
    pin = done.choice.base.manifest.pin
    if pin is not None and not same_log:
        lines.append(
            f"the log had deleted segments below LSN {pin[1]} that the original's archive "
            f"{pin[0] or '-'} has: their records cannot be read here (docs/backup.rst, Identity)"
        )
    output.show(context, answer, lines)


def _microseconds(text: str) -> int:
    """Convert an ISO 8601 time with its zone to microseconds since 1970."""
    given = datetime.fromisoformat(text)
    return round(given.timestamp() * 1_000_000)
