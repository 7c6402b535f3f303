# Tests: tests/test_bench.py
"""``brokerctl bench``: load a broker from several processes and say what it answered.

Contract: :func:`measure` starts worker processes (:mod:`brokerd.cli.load`), lets all begin at one
moment, and adds up what they saw. The command prints it, as one JSON object with ``--json``. Exit
codes: 0 measured, 1 nothing was measured or answers were errors, 2 wrong usage.

What counts as a message: in ``produce`` an acknowledged PRODUCE; in ``acquire-settle`` a message
that was leased and whose settle was acknowledged; in ``mixed`` (half of the connections produce,
half lease and settle) both, and each is also given apart. Latency is that of one request.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from . import load, machine
from .scenarios import Repeater

_START_SECONDS = 30.0
_GRACE_SECONDS = 60.0
_FILL_WINDOW = 1000
_FILL_SILENCE_SECONDS = 60.0
_RATE_SECONDS = 0.5
_PLAIN_BLOCK_BYTES = 4096
_LEAST_BLOCK_BYTES = 512


class BenchFailed(Exception):
    """The load could not be made; the message says why."""


@dataclass(frozen=True)
class Plan:
    """One measurement; the fields are the options of the command."""

    scenario: str
    address: str
    connections: int = 1
    window: int = 1
    size: int = 100
    seconds: float = 5.0
    warm_up_seconds: float = 0.5
    batch: int = 100
    workers: int = 0
    """Worker processes; 0 chooses: at most three, and no more than there are connections."""
    backlog: int = 0
    """Messages put there first for ``acquire-settle``; 0 chooses by the other fields."""


@dataclass(frozen=True)
class Figures:
    """What came out of one measurement."""

    scenario: str
    connections: int
    window: int
    size_bytes: int
    batch: int
    workers: int
    seconds: float
    messages: int
    produced: int
    settled: int
    empty: int
    errors: int
    first_error: str
    msgs_per_s: float
    requests_per_s: float
    mb_per_s: float
    """Payload megabytes (10^6 bytes) a second."""
    p50_ms: float
    p99_ms: float
    p999_ms: float


def measure(plan: Plan, log: str | None = None) -> Figures:
    """Run one measurement against a listening broker.

    :param log: the log to use; by default a new one, filled first when the scenario needs it.
    :raises BenchFailed: when the broker is not there or a worker fails.
    """
    if log is None:
        log = new_log()
        if plan.scenario.startswith("acquire-settle"):
            fill(plan.address, log, plan.backlog or default_backlog(plan), plan.size)
    specs = worker_specs(plan, log)
    total = load.merge(_run_workers(specs, plan))
    return figures(plan, len(specs), total)


def new_log() -> str:
    """A log name that no earlier run has used."""
    return f"bench-{uuid.uuid4().hex[:12]}"


def worker_specs(plan: Plan, log: str) -> list[load.LoadSpec]:
    """Share the connections of a plan among its worker processes."""
    workers = min(plan.workers or 3, plan.connections)
    shares = [len(range(n, plan.connections, workers)) for n in range(workers)]
    if plan.scenario == "mixed":
        # A worker's connections take turns between the two roles, so each needs a whole pair.
        pairs = max(1, plan.connections // 2)
        workers = min(workers, pairs)
        shares = [2 * len(range(n, pairs, workers)) for n in range(workers)]
    return [
        load.LoadSpec(
            scenario=plan.scenario,
            address=plan.address,
            connections=share,
            window=plan.window,
            size=plan.size,
            seconds=plan.seconds,
            log=log,
            group="bench",
            worker=str(number),
            batch=plan.batch,
        )
        for number, share in enumerate(shares)
    ]


def default_backlog(plan: Plan) -> int:
    """Messages that should last for the whole measurement: more than was ever seen, and bounded."""
    in_flight = plan.connections * plan.window
    if plan.scenario.endswith("batch"):
        rate = 400_000
    else:
        rate = 5_000 if in_flight == 1 else 40_000 if in_flight <= 100 else 120_000
    return int(min(1_000_000, rate * (plan.seconds + plan.warm_up_seconds)))


def fill(address: str, log: str, messages: int, size: int, batch: int = 1) -> None:
    """Produce a backlog through one pipelined connection and wait until all of it is acknowledged.

    :param batch: messages in a request; 1 uses the plain PRODUCE.
    :raises BenchFailed: when the broker is not there, refuses, or stops answering.
    """
    frame = load.produce_frame(log, size, batch)
    window = max(1, _FILL_WINDOW // batch)
    role = Repeater(frame, window, batch)
    requests = -(-messages // batch)
    inbox = b""
    asked = answered = 0
    try:
        with load.connect(address) as sock:
            sock.settimeout(_FILL_SILENCE_SECONDS)
            while answered < requests:
                more = min(window - (asked - answered), requests - asked)
                if more:
                    sock.sendall(frame * more)
                    asked += more
                data = sock.recv(1 << 18)
                if not data:
                    raise BenchFailed(f"{address}: the connection ended during the backlog")
                inbox += data
                step = role.answers(inbox)
                inbox = inbox[step.consumed :]
                answered += step.answers
                if role.tally.errors:
                    raise BenchFailed(f"{address}: refused the backlog: {role.tally.example}")
    except (OSError, ValueError) as error:
        raise BenchFailed(f"{address}: {error}") from error


def _run_workers(specs: Sequence[load.LoadSpec], plan: Plan) -> list[load.LoadResult]:
    with ExitStack() as stack:
        processes = [stack.enter_context(_Worker(spec)) for spec in specs]
        for process in processes:
            process.expect("ready", _START_SECONDS)
        begin = time.monotonic() + plan.warm_up_seconds
        for process in processes:
            process.say(repr(begin))
        wait = plan.warm_up_seconds + plan.seconds + _GRACE_SECONDS
        return [load.result_from_json(process.line(wait)) for process in processes]


class _Worker:
    """A worker process; killed when the block that opened it ends."""

    def __init__(self, spec: load.LoadSpec) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "brokerd.cli.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._spec = spec

    def __enter__(self) -> _Worker:
        self.say(json.dumps(asdict(self._spec)))
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BenchFailed(self._why()) from None

    def expect(self, wanted: str, seconds: float) -> None:
        line = self.line(seconds)
        if line != wanted:
            raise BenchFailed(f"a load worker said {line!r} instead of {wanted!r}")

    def line(self, seconds: float) -> str:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise BenchFailed(f"a load worker said nothing for {seconds:.0f} s")
        line: str = self._process.stdout.readline()
        if not line:
            raise BenchFailed(self._why())
        return line.rstrip("\n")

    def _why(self) -> str:
        """The last line that a worker left on its way out: the exception that ended it."""
        lines = self._process.communicate()[1].strip().splitlines()
        return f"{self._spec.address}: {lines[-1] if lines else 'a load worker ended'}"


def figures(plan: Plan, workers: int, total: load.LoadResult) -> Figures:
    """Turn counts into rates and percentiles."""
    seconds = total.seconds or float("inf")
    messages = total.produced + total.settled
    return Figures(
        scenario=plan.scenario,
        connections=plan.connections,
        window=plan.window,
        size_bytes=plan.size,
        batch=plan.batch if plan.scenario.endswith("batch") else 1,
        workers=workers,
        seconds=round(total.seconds, 3),
        messages=messages,
        produced=total.produced,
        settled=total.settled,
        empty=total.empty,
        errors=total.errors,
        first_error=total.example,
        msgs_per_s=round(messages / seconds, 1),
        requests_per_s=round(total.requests / seconds, 1),
        mb_per_s=round(messages * plan.size / seconds / 1e6, 3),
        p50_ms=load.percentile_ms(total.latency_us, 0.5),
        p99_ms=load.percentile_ms(total.latency_us, 0.99),
        p999_ms=load.percentile_ms(total.latency_us, 0.999),
    )


def fetch_status(server: str) -> dict[str, Any]:
    """Read the broker's ``/api/v1/status``; an empty dict when there is no answer.

    :param server: ``host:port`` or ``http://host:port``.
    """
    base = server if "://" in server else f"http://{server}"
    try:
        with urllib.request.urlopen(f"{base.rstrip('/')}/api/v1/status", timeout=10) as answer:
            status = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def commits(status: dict[str, Any]) -> tuple[int, int]:
    """Commits and bytes of the journal so far, as a status tells; zeros when it does not.

    A status without a count of syncs tells frames, of which one sync may make several durable.
    """
    wal = status.get("wal") or {}
    count: int = wal.get("syncs", wal.get("frames", 0))
    written: int = wal.get("written_bytes", wal.get("durable_lsn", 0))
    return count, written


def commit_bytes(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Mean size of the commits between two statuses, 4096 when they do not tell."""
    count = commits(after)[0] - commits(before)[0]
    if count <= 0:
        return _PLAIN_BLOCK_BYTES
    return max(_LEAST_BLOCK_BYTES, (commits(after)[1] - commits(before)[1]) // count)


def find_admin(data_dir: Path, wire: str, address: str) -> str | None:
    """The admin address of the broker that listens on ``address``, if its directory says so."""
    try:
        listeners = json.loads((data_dir / "run" / "listeners.json").read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(listeners, dict) or not _same_address(listeners.get(wire), address):
        return None
    admin = listeners.get("admin")
    return admin if isinstance(admin, str) else None


def _same_address(one: object, other: str) -> bool:
    if not isinstance(one, str):
        return False
    return one == other.replace("localhost", "127.0.0.1")


@click.command("bench")
@click.argument("scenario", type=click.Choice(load.SCENARIOS))
@click.option(
    "--format", "wire", type=click.Choice(["mamamia"]), default="mamamia", show_default=True
)
@click.option("--address", default="127.0.0.1:9000", show_default=True, metavar="HOST:PORT")
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
    "--batch",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Messages in a request of the batch scenarios.",
)
@click.option(
    "--backlog",
    type=click.IntRange(0, 10_000_000),
    default=0,
    help="Messages put there first for acquire-settle (0: chosen).",
)
@click.option(
    "--workers", type=click.IntRange(0, 64), default=0, help="Load processes (0: chosen)."
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
    address: str,
    connections: int,
    window: int,
    size: int,
    seconds: float,
    batch: int,
    backlog: int,
    workers: int,
    disk: Path | None,
    as_json: bool,
) -> None:
    """Load a running broker and print its rates beside the disk's own.

    SCENARIO is produce, acquire-settle, mixed, produce-batch or acquire-settle-batch.
    """
    root: dict[str, Any] = context.obj if isinstance(context.obj, dict) else {}
    data_dir = Path(root.get("data_dir") or "./brokerd-data")
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
    )
    admin = root.get("server") or find_admin(data_dir, wire, address)
    before = fetch_status(admin) if admin else {}
    try:
        found = measure(plan)
    except BenchFailed as error:
        raise click.ClickException(str(error)) from error
    status = fetch_status(admin) if admin else {}
    where = disk or (data_dir if admin and data_dir.is_dir() else Path.cwd())
    block_bytes = commit_bytes(before, status)
    rate = machine.sync_rate(where, block_bytes, _RATE_SECONDS)
    report = {
        "format": wire,
        "address": address,
        **asdict(found),
        "durability": str(status.get("durability", "unknown")),
        "raw_fdatasync_per_s": round(rate, 1),
        "raw_block_bytes": block_bytes,
        **asdict(machine.describe(where)),
    }
    if as_json or root.get("json"):
        click.echo(json.dumps(report))
    else:
        _print_report(report)
    if not found.messages or found.errors:
        context.exit(1)


def _print_report(report: dict[str, Any]) -> None:
    click.echo(
        f"{report['scenario']} over {report['format']} at {report['address']}: "
        f"{report['connections']} connections x {report['window']} in flight, "
        f"{report['size_bytes']}-byte payloads, {report['seconds']:.1f} s"
    )
    click.echo(
        f"  {report['msgs_per_s']:,.0f} messages/s  {report['mb_per_s']:,.1f} MB/s  "
        f"{report['requests_per_s']:,.0f} requests/s"
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
