# Tests: tests/archive/test_rollup.py
"""``brokerd-rollup``: takes the log into the archive, and keeps the archive (docs/archive.rst).

Also as ``spark-submit .../brokerd/rollup.py``; then the options of spark-submit say how Spark runs.
Exit codes: 0 done, or nothing to do; 1 something is wrong, said in one line on stderr; 75 another
one is at work; 2 wrong usage.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Started as a file, Python looks for modules beside it, where ours would hide those of others.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import json
import logging
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
import msgspec

from brokerd import __version__
from brokerd.archive.cluster.master_url import check_master
from brokerd.archive.cluster.session import SparkOptions, find_java, spark_session
from brokerd.archive.run import Quiet, Settings
from brokerd.archive.storage.address import address
from brokerd.cli.credentials import Credentials, credentials
from brokerd.cli.options import some
from brokerd.cli.output import plain, size
from brokerd.cli.server import NoBroker, Refused, Server, find
from brokerd.errors import BrokerdError, Denied
from brokerd.server.config import Config, Setting, load
from brokerd.server.process_exit import IN_USE, USAGE

try:
    from brokerd.archive.ingest.plan import Lot
    from brokerd.archive.job import Job, RollupLocked, Summary, plan_job, run_job
except ModuleNotFoundError as missing:
    sys.exit(f"brokerd-rollup: {missing.name} is not installed: `pip install 'brokerd[spark]'`")

DENIED = (401, 403)
"""What the admin API answers to nobody, and to who may not."""
_INTERRUPTED = 130
"""As of a process that SIGINT ended."""
_TERMINATED = 143
_OPTIONS = {"data_dir": "--data-dir", "archive.uri": "--archive", "archive.master": "--master"}
"""Those that stand for some of the configuration."""
_ENDED = "ended; what is committed stays, and the next run goes on"


class _Terminated(SystemExit):
    """SIGTERM came."""


class Unfinished(BrokerdError):
    """Something is wrong, and the rest was done; the text has a line for each."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "file", type=click.Path(path_type=Path), help="A TOML file.")
@click.option("--data-dir", help="The broker's data directory.")
@click.option("--archive", help="A directory or s3://BUCKET/NAME: archive.uri.")
@click.option("--master", help="Where Spark runs: archive.master.")
@click.option(
    "--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Any other option."
)
@click.option("--dry-run", is_flag=True, help="Say what would be taken from the log; do nothing.")
@click.option(
    "--only",
    multiple=True,
    metavar="TOPIC",
    help="Remove and merge records of this topic alone; the log is always taken whole.",
)
@click.option("--seal", is_flag=True, help="Have the running broker close its journal file first.")
@click.option(
    "--key-file",
    default="",
    metavar="FILE",
    envvar="BROKERCTL_KEY_FILE",
    show_envvar=True,
    help="An API key for the running broker: the first line. Or BROKERCTL_KEY.",
)
@click.option(
    "--ca-file",
    default="",
    metavar="FILE",
    envvar="BROKERCTL_CA_FILE",
    show_envvar=True,
    help="Who signs the broker's certificate (PEM).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.version_option(__version__, prog_name="brokerd-rollup")
def command(
    file: Path | None,
    data_dir: str | None,
    archive: str | None,
    master: str | None,
    assignments: tuple[str, ...],
    dry_run: bool,
    only: tuple[str, ...],
    seal: bool,
    key_file: str,
    ca_file: str,
    as_json: bool,
) -> None:
    """Take the broker's log into its archive, and keep the archive.

    Works while the broker runs and while it does not, and may be stopped at any time.
    """
    began = time.monotonic()
    if dry_run and seal:
        raise click.UsageError("--dry-run changes nothing, and --seal does: give one of them")
    given = {"data_dir": data_dir, "archive.uri": archive, "archive.master": master}
    try:
        config = load(file, os.environ, assignments, options=_settings(given)).config
        job = _job(config, only, as_json)
        login = credentials("", "", key_file, os.environ, ca_file)
        if dry_run:
            _show_plan(job, _plan(job), as_json)
            return
        if seal:
            _seal(job, login)
        summary = run_job(job)
        notes = _tell_broker(job, summary, login)
        _show(summary, notes, time.monotonic() - began, as_json)
        if summary.problems:
            raise Unfinished("\n".join(summary.problems))
    except BrokerdError as error:
        if as_json and not isinstance(error, Unfinished):
            click.echo(json.dumps({"ok": False, "problems": [str(error)]}))
        raise


def main() -> None:
    """Run the command; what is wrong becomes a line on stderr, and an exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    logging.basicConfig(handlers=[logging.NullHandler()])  # what Spark logs is said in our words
    try:
        sys.exit(command.main(prog_name="brokerd-rollup", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        _refuse(_ENDED, _INTERRUPTED)
    except _Terminated:
        _refuse(_ENDED, _TERMINATED)
    except RollupLocked as error:
        _refuse(str(error), IN_USE)
    except BrokerdError as error:
        _refuse(str(error), USAGE)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _refuse(f"{place}{error.strerror or error}", USAGE)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated(_TERMINATED)


def _refuse(text: str, code: int) -> NoReturn:
    for line in text.splitlines():
        print(f"brokerd-rollup: {plain(line)}", file=sys.stderr)
    sys.exit(code)


# -- Options -------------------------------------------------------------------------------------


def _settings(given: dict[str, str | None]) -> list[Setting]:
    """Options of the command line that stand for some of the configuration."""
    return [
        Setting(name, value, _OPTIONS[name], True)
        for name, value in given.items()
        if value is not None
    ]


def _job(config: Config, only: Sequence[str], as_json: bool) -> Job:
    data_dir = Path(os.path.abspath(config.data_dir))
    options = msgspec.structs.asdict(config.archive)
    on_terminal = sys.stderr.isatty() and not as_json
    return Job(
        data_dir=data_dir,
        root=address(config.archive.uri, data_dir),
        settings=Settings(**{name: options[name] for name in Settings._fields}),
        open_spark=partial(
            spark_session,
            "brokerd-rollup",
            SparkOptions(check_master(config.archive.master), config.archive.driver_memory_bytes),
            data_dir / "run" / "rollup",
            os.environ,
        ),
        now_ms=lambda: time.time_ns() // 1_000_000,
        free_bytes=lambda path: shutil.disk_usage(path).free,
        only=only,
        progress=_Bar() if on_terminal else Quiet(),
    )


def _seal(job: Job, login: Credentials) -> None:
    """Have the running broker close its journal file."""
    try:
        Server(find(None, str(job.data_dir)), login).post("wal", "seal")
    except Refused as error:
        if error.status not in DENIED:
            raise
        raise Denied(
            f"--seal: the broker says {error}; name a file with an API key of an account that has "
            "the role admin with --key-file, or leave out --seal"
        ) from error
    except NoBroker as error:
        reason = str(error).partition(";")[0]
        raise NoBroker(f"--seal: {reason}; start the broker, or leave out --seal") from error


def _plan(job: Job) -> list[Lot]:
    """What a run would take; raises where one could not begin."""
    lots = list(plan_job(job))
    if any(lot.segments for lot in lots) and "PYSPARK_GATEWAY_PORT" not in os.environ:
        find_java(os.environ)
    return lots


def _tell_broker(job: Job, summary: Summary, login: Credentials) -> list[str]:
    """Have a broker that runs use what is new at once; it would find it by itself, too."""
    if not summary.has_committed:
        return []
    try:
        server = Server(find(None, str(job.data_dir)), login)
    except NoBroker:
        return []
    try:
        if login.key or "monitor" in server.get("whoami")["permissions"]:
            server.post("archive", "refresh")
        # Else it does not listen to nobody, and asking would be a denial in its audit trail.
    except BrokerdError as error:
        return [f"the broker could not be told, and will look by itself: {error}"]
    return []


# -- What is shown -------------------------------------------------------------------------------


class _Bar:
    """A bar on the terminal, or a name if nobody knows how long it takes; gone in the end."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._done = 0

    def begin(self, what: str, tasks: int) -> None:
        if not tasks:
            self._bar = None
            click.echo(f"{what} ...", nl=False, err=True)
            return
        self._done = 0
        self._bar = click.progressbar(length=tasks, label=f"{what:24}", file=sys.stderr)
        self._bar.render_progress()

    def advance(self, tasks: int) -> None:
        if self._bar is not None:
            self._bar.update(tasks - self._done)
            self._done = tasks

    def end(self) -> None:
        click.echo("\r\x1b[K", nl=False, err=True)


def _show(summary: Summary, notes: Sequence[str], seconds: float, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_facts(summary, notes, seconds)))
        return
    lines = [*_lines(summary), *notes]
    if lines:
        lines.append(f"took {seconds:.1f} s")
    for line in lines:
        click.echo(plain(line))


def _facts(summary: Summary, notes: Sequence[str], seconds: float) -> dict[str, Any]:
    """For programs."""
    facts = asdict(summary.rolled_up)
    del facts["stop"]
    return {
        "ok": not summary.problems,
        "problems": summary.problems,
        **facts,
        "left": summary.left,
        "steps": {step.name: step.numbers for step in summary.steps},
        "notes": [*(line for step in summary.steps for line in step.lines), *notes],
        "seconds": round(seconds, 3),
    }


def _lines(summary: Summary) -> Iterator[str]:
    """For people."""
    taken = summary.rolled_up
    if taken.segments:
        yield (
            f"took {some(taken.segments, 'journal file')}, {size(taken.log_bytes)}, into the "
            f"archive: {taken.records:,} records and {taken.events:,} events, in "
            f"{some(taken.files, 'file')} of {size(taken.file_bytes)}"
        )
    for step in summary.steps:
        yield from step.lines
    if summary.problems:
        return
    if not taken.segments and not any(step.lines for step in summary.steps):
        yield "nothing to do"
    if summary.left:
        yield f"left: {summary.left}"


def _show_plan(job: Job, lots: Sequence[Lot], as_json: bool) -> None:
    """What a run would take. Records that damage took are counted, too.

    :raises Unfinished: something is wrong with what comes next.
    """
    splits = [split for lot in lots for split in lot.records]
    pieces = [(split.pieces["first"], split.pieces["end"]) for split in splits]
    stop = lots[-1].stop
    problems = [stop.reason] if stop is not None and stop.is_problem else []
    facts: dict[str, Any] = {
        "ok": not problems,
        "problems": problems,
        "dry_run": True,
        "archive": str(job.root),
        "lots": sum(bool(lot.segments) for lot in lots),
        "segments": sum(len(lot.segments) for lot in lots),
        "log_bytes": sum(lot.bytes for lot in lots),
        "records": int(sum((end - first).sum() for first, end in pieces)),
        "files": len(splits) + sum(len(lot.events) for lot in lots),
        "left": stop.reason if stop is not None else "",
    }
    if as_json:
        click.echo(json.dumps(facts))
    else:
        _tell_plan(facts)
    if problems:
        raise Unfinished("\n".join(problems))


def _tell_plan(facts: dict[str, Any]) -> None:
    """What a run would take, for people."""
    click.echo(plain(f"archive: {facts['archive']}"))
    if facts["segments"]:
        click.echo(
            f"would take {some(facts['segments'], 'journal file')}, {size(facts['log_bytes'])}, "
            f"into the archive: {facts['records']:,} records, into {some(facts['files'], 'file')}"
        )
    else:
        click.echo("nothing to take from the log")
    if facts["left"] and facts["ok"]:
        click.echo(plain(f"left: {facts['left']}"))
    click.echo("what would be derived, removed and merged is not looked at without doing it")


if __name__ == "__main__":
    main()
