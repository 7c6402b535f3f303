# Tests: tests/test_bench.py
"""``brokerctl bench``: load a running broker; print its rates beside the sync rate of the disk.

The command makes a topic ``bench-`` and 12 hex digits, which stays until ``brokerctl topic
delete``. Output is text, or one JSON object with ``--json``. Exit codes: 0 measured, 1 no
measurement or error answers, 2 wrong usage.

``produce`` counts messages that the broker confirmed as durable. ``acquire-settle`` counts messages
whose settle was acknowledged. ``mixed`` counts both, together and apart: half of the connections
produce, half lease and settle. ``fetch`` and ``consume`` count delivered messages. Latency is that
of a request; `brokerd.cli.bench.formats` defines the requests of each format.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import click

from brokerd.cli import server
from brokerd.cli.bench import machine
from brokerd.cli.bench.formats import FORMATS, SCENARIOS
from brokerd.cli.bench.formats.base import BenchFailed
from brokerd.cli.bench.formats.connect_options import ConnectOptions
from brokerd.cli.bench.measure import Plan, measure, prepare
from brokerd.cli.output import core_text
from brokerd.client.addresses import parse_address
from brokerd.errors import BrokerdError

_RATE_SECONDS = 0.5
_PLAIN_BLOCK_BYTES = 4096
_LEAST_BLOCK_BYTES = 512


class Refused(click.ClickException):
    """A failure that brokerctl prints as one line on stderr, with exit code 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line."""
        click.echo(f"brokerctl: {self.format_message()}", file=file, err=file is None)


def fetch_status(admin: server.Server | None) -> dict[str, Any]:
    """Return ``/api/v1/status`` of the broker, or {} without an admin site.

    :raises BenchFailed: when the answer is an error or no status.
    """
    if admin is None:
        return {}
    try:
        return admin.get("status")
    except server.Refused as error:
        raise BenchFailed(
            f"the report needs the broker's status, and that needs MONITOR: {error}"
        ) from error
    except BrokerdError as error:
        raise BenchFailed(str(error)) from error


def commits(status: dict[str, Any]) -> tuple[int, int]:
    """Return commits and bytes of the journal from a status; zeros if it has none."""
    wal = status.get("wal") or {}
    count: int = wal.get("commits", 0)
    written: int = wal.get("durable_lsn", 0)
    return count, written


def commit_bytes(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Return the mean size of the commits between two statuses; 4096 if they have none."""
    count = commits(after)[0] - commits(before)[0]
    if count <= 0:
        return _PLAIN_BLOCK_BYTES
    return max(_LEAST_BLOCK_BYTES, (commits(after)[1] - commits(before)[1]) // count)


def find_listeners(data_dir: Path, wire: str, address: str) -> dict[str, Any]:
    """Return listeners.json of the data directory if its broker listens on ``address``, else {}."""
    try:
        listeners = json.loads((data_dir / "run" / "listeners.json").read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(listeners, dict) or not _same_address(listeners.get(wire), address):
        return {}
    return listeners


def _same_address(one: object, other: str) -> bool:
    if not isinstance(one, str):
        return False
    place = parse_address(one)
    here = place._replace(host=server.ANYWHERE.get(place.host, place.host))
    return str(here) == other.replace("localhost", "127.0.0.1")


@click.command("bench")
@click.argument("scenario", type=click.Choice(SCENARIOS))
@click.option(
    "--format", "wire", type=click.Choice([*FORMATS]), default="mamamia", show_default=True
)
@click.option(
    "--address",
    default=None,
    metavar="HOST:PORT",
    help="Where the format listens (default: its port on 127.0.0.1).",
)
@click.option(
    "--tls/--no-tls",
    default=None,
    help="Use TLS (default: as listeners.json of the data directory says).",
)
@click.option("--connections", type=click.IntRange(1, 10_000), default=1, show_default=True)
@click.option(
    "--window",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Requests in flight on each connection.",
)
@click.option(
    "--size",
    type=click.IntRange(0, 10_000_000),
    default=100,
    show_default=True,
    metavar="BYTES",
    help="Payload of a message.",
)
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=5.0, show_default=True)
@click.option(
    "--rate",
    type=click.FloatRange(0),
    default=0.0,
    help="Requests a second, due at fixed times; latency counts from then. (0: as fast as the "
    "answers come.) Needs --window 1.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Messages in a request of the batch scenarios, and in a fetch of FlyMQ.",
)
@click.option(
    "--backlog",
    type=click.IntRange(0, 10_000_000),
    default=0,
    help="Messages to produce first, if the scenario consumes (0: automatic).",
)
@click.option(
    "--workers", type=click.IntRange(0, 64), default=0, help="Load processes (0: automatic)."
)
@click.option(
    "--disk",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=None,
    help="Where to measure the disk's sync rate (default: the broker's data directory, "
    "or the current one).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def bench_command(
    context: click.Context,
    scenario: str,
    wire: str,
    address: str | None,
    tls: bool | None,
    connections: int,
    window: int,
    size: int,
    seconds: float,
    rate: float,
    batch: int,
    backlog: int,
    workers: int,
    disk: Path | None,
    as_json: bool,
) -> None:
    """Load a running broker and print its rates beside the disk's own.

    SCENARIO is, over Mamamia, produce, acquire-settle, mixed, produce-batch or
    acquire-settle-batch; over BlipMQ produce, produce-batch (both of QoS 1) or acquire-settle (POLL
    and ACK); over RustLog's binary dialect produce, produce-batch or fetch (of 1 MiB); over FlyMQ
    produce or fetch; over MEGA produce or consume.

    With security on, the account of the global options needs ADMIN, WRITE and READ on topics that
    begin with bench-, and MONITOR: FlyMQ logs in with its password, BlipMQ with a key; in the other
    formats the certificate, or the listener, says who we are.

    Every run makes a topic bench-<12 hex digits>, and it stays until `brokerctl topic delete`.
    """
    root: dict[str, Any] = context.obj if isinstance(context.obj, dict) else {}
    data_dir = Path(root.get("data_dir") or "./brokerd-data")
    bench_format = FORMATS[wire]
    if scenario not in bench_format.scenarios:
        raise click.UsageError(
            f"{wire} has no scenario {scenario}; it has {', '.join(bench_format.scenarios)}"
        )
    if rate and window > 1:
        raise click.UsageError("--rate needs --window 1: more --connections carry a higher rate")
    address = address or f"127.0.0.1:{bench_format.port}"
    listeners = find_listeners(data_dir, wire, address)
    credentials = server.credentials_of(context) if "login" in root else server.NOBODY
    if tls is None:
        tls = wire in listeners.get("tls", ())
    plan = Plan(
        scenario,
        address,
        connections=connections,
        window=window,
        size=size,
        seconds=seconds,
        batch=batch,
        workers=workers,
        backlog=backlog,
        format=wire,
        connection=ConnectOptions(tls, credentials),
        rate=rate,
    )
    named = root.get("server")
    admin = None
    if named or "admin" in listeners:
        admin = server.Server(server.find(named, str(data_dir)), credentials)
    where = disk or (data_dir if admin and data_dir.is_dir() else Path.cwd())
    try:
        machine.check_directory(where)
        before = fetch_status(admin)
        place = prepare(plan)
        found = measure(plan, place)
        status = fetch_status(admin)
    except BenchFailed as error:
        raise Refused(str(error)) from error
    block_bytes = commit_bytes(before, status)
    rate = machine.sync_rate(where, block_bytes, _RATE_SECONDS)
    report = {
        "address": address,
        **asdict(found),
        "durability": str(status.get("durability", "unknown")),
        "raw_fdatasync_per_s": round(rate, 1),
        "raw_block_bytes": block_bytes,
        **asdict(machine.describe(where)),
        "compiled": status.get("compiled"),  # the broker, not this process
    }
    if as_json or root.get("json"):
        click.echo(json.dumps(report))
    else:
        _print_report(report)
        click.echo(f"  topic {place.topic} stays in the broker")
    if not found.messages or found.errors:
        context.exit(1)


def _print_report(report: dict[str, Any]) -> None:
    click.echo(
        f"{report['scenario']} over {report['format']} at {report['address']}: "
        f"{report['connections']} connections x {report['window']} in flight, "
        f"{report['size_bytes']}-byte payloads, {report['seconds']:.1f} s"
        + (f", {report['rate']:,.0f} requests/s due" if report["rate"] else "")
    )
    click.echo(
        f"  {report['msgs_per_s']:,.0f} messages/s  {report['mb_per_s']:,.1f} MB/s  "
        f"{report['requests_per_s']:,.0f} requests/s"
    )
    if report["produced"] and report["settled"]:
        seconds = report["seconds"]
        click.echo(
            f"  of these, {report['produced'] / seconds:,.0f}/s produced and "
            f"{report['settled'] / seconds:,.0f}/s leased and settled"
        )
    click.echo(
        f"  latency of a request: p50 {report['p50_ms']:.3f} ms  p99 {report['p99_ms']:.3f} ms  "
        f"p99.9 {report['p999_ms']:.3f} ms"
    )
    click.echo(f"  errors: {report['errors']}  {report['first_error']}".rstrip())
    click.echo(
        f"  durability: {report['durability']}   write+fdatasync of {report['raw_block_bytes']} "
        f"bytes: {report['raw_fdatasync_per_s']:,.0f}/s on {report['file_system']}"
    )
    click.echo(f"  core: {core_text(report['compiled'])}")
