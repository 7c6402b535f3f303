# Tests: tests/cli/test_erase.py
"""``brokerctl archive erase``: erase the records of a key (docs/archive-erase.rst).

It reads files, and needs no running broker. If one runs, it reads the new version at once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from brokerd.archive.storage.access import parse_access, set_umask
from brokerd.archive.storage.address import address
from brokerd.cli import output
from brokerd.cli.options import confirm, some, yes_option
from brokerd.cli.server import NoBroker, Server, credentials_of, find
from brokerd.errors import BrokerdError, install_text
from brokerd.server.config import Config, Setting, load

if TYPE_CHECKING:
    from brokerd.archive.erase import EraseJob, EraseReport, JournalRecords
    from brokerd.archive.typed.erase import TypedRows

NOT_COMPLETE = 3
"""The exit code if records of the key are left."""


@click.command("erase")
@click.option("--topic", required=True, help="The topic.")
@click.option("--key", help="The key, as text.")
@click.option("--key-hex", metavar="HEX", help="The key, as hexadecimal digits.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="The broker's TOML file.")
@click.option("--archive", help="A directory or s3://BUCKET/NAME: archive.uri.")
@click.option(
    "--old-files",
    type=click.Choice(["now", "later"]),
    default="now",
    show_default=True,
    help="Delete the files of older versions now, or by a rollup after archive.vacuum_hours.",
)
@yes_option
@click.pass_context
def erase_command(
    context: click.Context,
    topic: str,
    key: str | None,
    key_hex: str | None,
    file: Path | None,
    archive: str | None,
    old_files: str,
    yes: bool,
) -> None:
    """Erase the records of one key from the archive, and prove it.

    Exit code 0: neither archive, typed tables nor journal have such a record. 3: some are left; the
    lines tell where, and when they go.
    """
    wanted = _key(key, key_hex)
    data_dir = os.path.abspath(context.obj["data_dir"])
    options = [Setting("data_dir", data_dir, "--data-dir", True)]
    if archive is not None:
        options.append(Setting("archive.uri", archive, "--archive", True))
    config = load(file, os.environ, options=options).config
    confirm(f"erase all records of topic {topic!r} with the key {_shown(wanted)}", yes)
    try:
        from brokerd.archive.erase import run_erase
    except ModuleNotFoundError as missing:
        raise BrokerdError(f"{missing.name} is not installed: {install_text('archive')}") from None
    set_umask(parse_access(config.archive.group, config.archive.mode))
    job = _job(context, config, topic, wanted, old_files == "now")
    report = run_erase(job)
    output.show(context, _json(report, topic, wanted), list(_lines(report, config)))
    if not report.is_complete:
        context.exit(NOT_COMPLETE)


def _key(text: str | None, digits: str | None) -> bytes:
    if (text is None) == (digits is None):
        raise click.UsageError("give either --key or --key-hex")
    if text is not None:
        return text.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(digits or "")
    except ValueError:
        raise click.BadParameter(f"{digits!r} are not hexadecimal digits") from None


def _shown(key: bytes) -> str:
    try:
        return json.dumps(key.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return f"0x{key.hex()}"


def _job(
    context: click.Context, config: Config, topic: str, key: bytes, deletes_now: bool
) -> EraseJob:
    from brokerd.archive.erase import EraseJob
    from brokerd.archive.run import Settings

    data_dir = Path(config.data_dir)
    options = msgspec.structs.asdict(config.archive)

    def notify() -> str:
        """Let a running broker read the newest version before the old files go."""
        try:
            site = find(context.obj["server"], str(data_dir))
            Server(site, credentials_of(context)).post("archive", "refresh")
        except NoBroker:
            return ""
        except BrokerdError as error:
            return f"the broker was not told about the new version: {error}"
        return ""

    return EraseJob(
        data_dir=data_dir,
        root=address(config.archive.uri, data_dir),
        settings=Settings(**{name: options[name] for name in Settings._fields}),
        now_ms=lambda: time.time_ns() // 1_000_000,
        topic=topic,
        key=key,
        deletes_now=deletes_now,
        notify=notify,
    )


# -- Output --------------------------------------------------------------------------------------


def _json(report: EraseReport, topic: str, key: bytes) -> dict[str, Any]:
    return {
        "complete": report.is_complete,
        "topic": topic,
        "key_hex": key.hex(),
        "archive": report.archive,
        "topic_ids": list(report.topic_ids),
        "version_before": report.version_before,
        "version_after": report.version_after,
        "files_read": report.files_read,
        "rows_before": report.rows_before,
        "rows_after": report.rows_after,
        "found_before": report.found_before,
        "erased": report.erased,
        "found_after": report.found_after,
        "replaced": [one._asdict() for one in report.replaced],
        "held": [one._asdict() for one in report.held],
        "deleted": list(report.deleted),
        "old": list(report.old),
        "delete_after": _time(report.delete_after_ms),
        "typed_erased": report.typed_erased,
        "typed": [one._asdict() for one in report.typed],
        "journal": [
            {**one.segment._asdict(), "archived": one.is_archived} for one in report.journal
        ],
        "problems": list(report.problems),
    }


def _lines(report: EraseReport, config: Config) -> Iterator[str]:
    yield f"archive {report.archive}, table records, version {report.version_before}"
    yield (
        f"before: {some(report.found_before, 'record')} of the key, {report.rows_before:,} rows "
        "in the files that may hold the topic"
    )
    for one in report.replaced:
        yield (
            f"rewrote {one.removed}: {one.rows:,} rows, {one.erased:,} erased, "
            f"{one.added_rows:,} in {one.added} (digest {one.digest})"
        )
    yield (
        f"after: {some(report.found_after, 'record')} of the key, {report.rows_after:,} rows, "
        f"version {report.version_after}, read back"
    )
    if report.typed_erased:
        yield f"erased {some(report.typed_erased, 'row')} of the key from typed tables"
    for path in report.deleted:
        yield f"deleted {path}"
    yield from _left(report, config)
    if report.is_complete:
        yield "complete: neither archive, typed tables nor journal have a record of the key"
    else:
        yield "not complete: run it again afterwards"


def _left(report: EraseReport, config: Config) -> Iterator[str]:
    for held in report.held:
        yield (
            f"LEFT {some(held.records, 'record')} in the archive, topic id {held.topic_id} "
            f"partition {held.partition} from offset {held.first} on: a group has still to settle "
            "records there, or has dead letters (brokerctl group list)"
        )
    if report.old:
        after = _time(report.delete_after_ms)
        yield (
            f"LEFT {some(len(report.old), 'file')} of older versions: "
            + (f"a complete run of brokerd-rollup after {after}" if after else "no rollup")
            + " deletes them"
        )
    for rows in report.typed:
        when = _goes_from_typed(rows, report, config)
        yield f"LEFT {some(rows.rows, 'row')} in {rows.path}, {when}"
    for one in report.journal:
        yield f"LEFT {some(one.segment.records, 'record')} in {_goes(one, config)}"
    for problem in report.problems:
        yield f"PROBLEM {problem}"


def _goes_from_typed(rows: TypedRows, report: EraseReport, config: Config) -> str:
    """Tell when rows of a typed table go."""
    if rows.live:
        return "a typed table: they go by this command when their records have gone"
    if not config.archive.vacuum:
        return "an older version of a typed table: no rollup deletes it (archive.vacuum)"
    return (
        "an older version of a typed table: a complete run of brokerd-rollup deletes it after "
        f"{some(report.old_hours, 'hour')} (archive.vacuum_hours; in a bucket 24 at least)"
    )


def _goes(one: JournalRecords, config: Config) -> str:
    """Tell when records of the journal go."""
    segment = one.segment
    if not one.is_archived:
        return (
            f"the journal, {segment.file}, which is not in the archive yet: run brokerd-rollup "
            "--seal, then erase again"
        )
    return (
        f"the journal, {segment.file}: the broker deletes the file when "
        f"{output.size(config.archive.keep_wal_bytes)} of newer journal (archive.keep_wal_bytes) "
        "and two snapshots follow it (brokerctl archive status)"
    )


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
