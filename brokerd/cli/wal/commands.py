# Tests: tests/wal/test_cli.py
"""``brokerctl wal``: verify and dump the log of a stopped or running broker; repair a stopped one.

With ``--json``, ``wal verify`` prints one object, ``wal dump`` one object for each frame. Every
output names the directory; text output does so in its first line. Exit codes: 0 sound, 1 damage
found (``repair``: 0 nothing to do or done, 1 something to do or not done, 75 a broker runs).

Only ``--payloads`` prints record values, keys and metadata. Hashes of passwords and API keys are
never printed.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click
import msgpack

from brokerd.cli.progress import progress_bar
from brokerd.cli.wal.repair import TopicNames, repair_command
from brokerd.errors import ConfigError
from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.damage.verify import VerifyReport, verify
from brokerd.wal.disk import Disk, RealDisk
from brokerd.wal.read.scanner import ScanEntry, ScanFrame, ScanGap
from brokerd.wal.recovery.report import Damage, Frame
from brokerd.walformat import (
    Entry,
    EntryKind,
    EventKind,
    decode_group_events,
    decode_records,
)

SECRETS = {"password", "digest"}
"""Fields of accounts and keys that are never printed."""


@click.group("wal")
def wal_group() -> None:
    """Verify, dump or repair the write-ahead log."""


wal_group.add_command(repair_command)


def _paths(context: click.Context) -> tuple[Disk, str, str]:
    """Return (disk, log directory, snapshot directory). Raises ConfigError if there is no log."""
    data_dir = context.obj["data_dir"]
    wal_path = os.path.abspath(os.path.join(data_dir, "wal"))
    if not os.path.isdir(wal_path):
        raise ConfigError(f"{wal_path} is not there; name the broker's directory with --data-dir")
    return RealDisk(), wal_path, os.path.join(data_dir, "state")


# -- verify --------------------------------------------------------------------------------------


@wal_group.command("verify")
@click.pass_context
def verify_command(context: click.Context) -> None:
    """Read every byte of the log, its indexes and its snapshots; exit 1 if anything is damaged."""
    disk, wal_path, state_path = _paths(context)
    names = TopicNames()
    done_bytes, all_bytes = 0, _log_bytes(wal_path)

    def see(frame: Frame) -> None:
        nonlocal done_bytes
        names.see(frame)
        done_bytes += frame.end - frame.lsn
        show(done_bytes, all_bytes)

    with progress_bar("verify") as show:
        report = verify(disk, wal_path, state_path, see)
    if context.obj["json"]:
        click.echo(json.dumps({"directory": wal_path, **_report_fields(report)}))
    else:
        click.echo(f"in {wal_path}:")
        for line in _report_lines(report, names):
            click.echo(line)
        if not report.sound:
            click.echo(f"what can be done, once the broker is stopped: {_repair(wal_path)}")
            click.echo("DAMAGED")
    context.exit(0 if report.sound else 1)


def _log_bytes(wal_path: str) -> int:
    """Return the size of all segments, for the progress bar."""
    with os.scandir(wal_path) as entries:
        return sum(one.stat().st_size for one in entries if one.name.endswith(".wal"))


def _repair(wal_path: str) -> str:
    """Return the command that shows the plan of a repair."""
    data_dir = shlex.quote(os.path.dirname(wal_path))
    return f"brokerctl --data-dir {data_dir} wal repair --dry-run"


def _report_fields(report: VerifyReport) -> dict[str, Any]:
    return {
        "sound": report.sound,
        "segments": report.segments,
        "frames": report.frames,
        "entries": report.entries,
        "records": report.records,
        "bytes": report.bytes,
        "next_lsn": report.next_lsn,
        "deleted": [one._asdict() for one in report.deleted],
        "torn": None if report.torn is None else report.torn._asdict(),
        "damages": [_damage_fields(damage) for damage in report.damages],
        "recorded": [_damage_fields(damage) for damage in report.recorded],
        "late_topics": [one._asdict() for one in report.late_topics],
        "indexes": report.indexes,
        "bad_indexes": [str(bad) for bad in report.bad_indexes],
        "snapshots": report.snapshots,
        "bad_snapshots": [str(bad) for bad in report.bad_snapshots],
    }


def _damage_fields(damage: Damage) -> dict[str, Any]:
    return {
        "file": damage.name,
        "position": damage.position,
        "end": damage.end,
        "problem": damage.problem,
        "lost": [lost._asdict() for lost in damage.lost],
    }


def _damage_line(damage: Damage, names: TopicNames) -> str:
    place = f"{damage.name} at {damage.position} to {damage.end}"
    return f"{place}: {damage.problem}{names.describe(damage.lost)}"


def _report_lines(report: VerifyReport, names: TopicNames) -> Iterator[str]:
    for damage in report.recorded:
        yield f"on record: {_damage_line(damage, names)}"
    for damage in report.damages:
        yield f"DAMAGE {_damage_line(damage, names)}"
    for problem in report.bad_indexes:
        yield f"BAD INDEX {problem} (rebuilt at the next start)"
    for problem in report.bad_snapshots:
        yield f"BAD SNAPSHOT {problem}"
    for late in report.late_topics:
        yield f"no damage: {late}, as older versions wrote it"
    if report.torn is not None:
        yield (
            f"unfinished write at the end, {report.torn.name} at {report.torn.position}: "
            f"{report.torn.problem}; no damage, the next start cuts it off"
        )
    for first, end in report.deleted:
        yield f"deleted on purpose, since its records are removed or archived: LSN {first} to {end}"
    yield (
        f"{report.segments} segments, {report.frames} frames, {report.entries} entries, "
        f"{report.records} records, {report.bytes} bytes, up to LSN {report.next_lsn}; "
        f"{report.indexes} indexes, {report.snapshots} snapshots"
    )
    if report.sound and report.recorded:
        yield f"sound, but for {len(report.recorded)} damaged places that a repair put on record"
    elif report.sound:
        yield "sound"


# -- dump ----------------------------------------------------------------------------------------


@wal_group.command("dump")
@click.option("--from-lsn", type=click.IntRange(0), default=0, help="Begin at this LSN.")
@click.option("--topic-id", type=click.IntRange(0), help="Print entries of this topic id.")
@click.option("--partition", type=click.IntRange(0), help="Print entries of this partition.")
@click.option(
    "--kind",
    type=click.Choice([kind.name.lower() for kind in EntryKind]),
    help="Print entries of this kind.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many frames.")
@click.option("--payloads", is_flag=True, help="Print values, keys and bodies too (base64).")
@click.pass_context
def dump_command(
    context: click.Context,
    from_lsn: int,
    topic_id: int | None,
    partition: int | None,
    kind: str | None,
    limit: int | None,
    payloads: bool,
) -> None:
    """Print frames and entries; exit 1 if the dump met damage."""
    disk, wal_path, _ = _paths(context)
    wanted = (None if kind is None else EntryKind[kind.upper()].value, topic_id, partition)
    is_filtered = any(field is not None for field in wanted)
    printed, is_damaged = 0, False
    if not context.obj["json"]:
        click.echo(f"in {wal_path}:")
    for name, found in scan_log(disk, wal_path, from_lsn):
        fields = _found_fields(name, found, wanted, payloads)
        is_damaged = is_damaged or fields["problem"] is not None
        if is_filtered and fields["problem"] is None and not fields["entries"]:
            continue
        if context.obj["json"]:
            click.echo(json.dumps({"directory": wal_path, **fields}, default=repr))
        else:
            for line in _found_lines(fields):
                click.echo(line)
        printed += 1
        if printed == limit:
            break
    context.exit(1 if is_damaged else 0)


def _found_fields(
    name: str,
    found: ScanFrame | ScanGap,
    wanted: tuple[int | None, int | None, int | None],
    payloads: bool,
) -> dict[str, Any]:
    """Describe a frame, or a damaged range, in JSON values."""
    fields: dict[str, Any] = {"file": name, "position": found.position}
    if isinstance(found, ScanGap):
        return fields | {"end": found.end, "problem": found.problem, "entries": []}
    header = found.header
    return fields | {
        "lsn": header.lsn,
        "length": header.length,
        "time_us": header.time_us,
        "last_synced": header.last_synced,
        "problem": found.problem,
        "entries": [
            _entry_fields(entry, payloads)
            for entry in found.entries
            if all(
                want is None or want == has
                for want, has in zip(wanted, entry.header[:3], strict=True)
            )
        ],
    }


def _entry_fields(found: ScanEntry, payloads: bool) -> dict[str, Any]:
    header = found.header
    fields: dict[str, Any] = {
        "kind": EntryKind(header.kind).name.lower(),
        "topic_id": header.topic_id,
        "partition": header.partition,
        "base_offset": header.base_offset,
        "count": header.count,
        "bytes": header.body_bytes,
        "sound": found.entry is not None,
    }
    if found.entry is not None:
        try:
            fields |= _body_fields(found.entry, payloads)
        except ValueError as error:  # FormatError, or any exception of msgpack
            fields["unreadable"] = str(error)
    return fields


def _event_name(kind: int) -> str:
    return EventKind(kind).name.lower() if kind in list(EventKind) else f"event {kind}"


def _body_fields(entry: Entry, payloads: bool) -> dict[str, Any]:
    if entry.kind == EntryKind.GROUP_EVENTS:
        group, events = decode_group_events(bytes(entry.body), entry.count)
        names = ("offset", "amount", "token", "count", "owner", "reason")
        return {
            "group": group,
            "events": [
                {"event": _event_name(event[0])} | dict(zip(names, event[1:], strict=True))
                for event in events
            ],
        }
    if entry.kind == EntryKind.TOPIC:
        return {"topic": msgpack.unpackb(entry.body)}
    if entry.kind == EntryKind.SUBSCRIPTION:
        return {"subscription": msgpack.unpackb(entry.body)}
    if entry.kind == EntryKind.STREAM:
        return {"stream": msgpack.unpackb(entry.body)}
    if entry.kind == EntryKind.SECURITY:
        said = msgpack.unpackb(entry.body)
        return {"security": {key: said[key] for key in said if key not in SECRETS}}
    if entry.kind == EntryKind.SCHEMA:
        said = msgpack.unpackb(entry.body)
        if "definition" in said:
            said["definition"] = said["definition"].decode(errors="backslashreplace")
        return {"schema": said}
    if entry.kind == EntryKind.LOST:
        return {"damage": msgpack.unpackb(entry.body)}
    if not payloads:
        return {}
    if entry.kind == EntryKind.RECORDS:
        columns = decode_records(bytes(entry.body), entry.count)
        return {
            "values": [_base64(value) for value in columns.values],
            "keys": [_base64(key) for key in columns.keys or ()],
            "metadata": [_base64(metadata) for metadata in columns.metadata or ()],
        }
    return {"body": _base64(bytes(entry.body))}


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _found_lines(fields: dict[str, Any]) -> Iterator[str]:
    place = f"{fields['file']} at {fields['position']}"
    if "lsn" not in fields:
        yield f"UNREADABLE {place} to {fields['end']}: {fields['problem']}"
        return
    time = datetime.fromtimestamp(fields["time_us"] / 1e6, UTC).isoformat()
    yield f"lsn {fields['lsn']} ({place}), {fields['length']} bytes, {time}"
    if fields["problem"] is not None:
        yield f"  DAMAGED: {fields['problem']}"
    for entry in fields["entries"]:
        yield from _entry_lines(entry)


def _entry_lines(entry: dict[str, Any]) -> Iterator[str]:
    place = f"topic id {entry['topic_id']} partition {entry['partition']}"
    state = "" if entry["sound"] else " DAMAGED"
    if entry["kind"] == "records":
        last = entry["base_offset"] + entry["count"] - 1
        yield f"  records {place} offsets {entry['base_offset']}-{last}{state}"
    else:
        yield f"  {entry['kind']} {place}, {entry['bytes']} bytes{state}"
    for event in entry.get("events", ()):
        shown = " ".join(f"{name}={value}" for name, value in event.items() if name != "event")
        yield f"    {entry['group']}: {event['event']} {shown}"
    for name in ("topic", "subscription", "security", "schema", "damage"):
        if name in entry:
            yield f"    {entry[name]}"
    for name in ("values", "keys", "metadata"):
        for at, text in enumerate(entry.get(name, ())):
            yield f"    {name} {entry['base_offset'] + at}: {text}"
    if "unreadable" in entry:
        yield f"    the body makes no sense: {entry['unreadable']}"
    if "body" in entry:
        yield f"    body: {entry['body']}"
