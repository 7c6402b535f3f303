# Tests: tests/archive/test_rollup.py
"""The command ``brokerd-rollup`` (docs/rollup.rst): options, output and exit codes.

`brokerd.archive.job` does the work. The command also runs as ``spark-submit
.../brokerd/rollup.py``, with the Spark settings of spark-submit.

Exit codes: 0 done, or nothing to do; 1 a problem, one line each on stderr; 2 wrong usage; 75
another rollup is at work.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # A script's directory is on the module path, and our modules would hide those of libraries.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import json
import logging
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
import msgspec

from brokerd import __version__
from brokerd.archive.cluster.master_url import check_master
from brokerd.archive.cluster.progress import NoProgress
from brokerd.archive.cluster.session import SparkOptions, find_java, spark_session
from brokerd.archive.storage.access import parse_access, set_umask
from brokerd.archive.storage.address import address
from brokerd.cli.credentials import Credentials, credentials
from brokerd.cli.options import some
from brokerd.cli.output import plain, size
from brokerd.cli.server import NoBroker, Refused, Server, find
from brokerd.errors import BrokerdError, Denied, os_error_text
from brokerd.server.config import Config, Setting, load
from brokerd.server.journald import ERROR, is_journal
from brokerd.server.process_exit import IN_USE, USAGE

try:
    from brokerd.archive.data_dir import SCRATCH, RollupLocked
    from brokerd.archive.delta.tables import Tables
    from brokerd.archive.follow import Pace, follow
    from brokerd.archive.ingest.plan import Lot
    from brokerd.archive.job import Job, JobReport, plan_job, run_job
    from brokerd.archive.run import Settings
except ModuleNotFoundError as missing:
    sys.exit(
        f"brokerd-rollup: {missing.name} is not installed: run `make spark` in a clone, install "
        "the Debian package brokerd-archive, or install the wheel as 'brokerd[spark]'"
    )

DENIED = (401, 403)
"""HTTP status of the admin API without credentials, and without permission."""
_INTERRUPTED = 130
"""The exit code of a process that SIGINT ended."""
_TERMINATED = 143
_OPTIONS = {"data_dir": "--data-dir", "archive.uri": "--archive", "archive.master": "--master"}
"""Command-line options for settings of the configuration."""
_ENDED = "stopped; commits stay, and the next run continues"


class _Terminated(SystemExit):
    """The process received SIGTERM."""


class JobProblems(BrokerdError):
    """The job had problems. The text has a line for each."""


class OutputFailed(BrokerdError):
    """stdout takes no more, for example a file on a full disk."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "file", type=click.Path(path_type=Path), help="A TOML file.")
@click.option("--data-dir", help="The broker's data directory.")
@click.option("--archive", help="A directory or s3://BUCKET/NAME: archive.uri.")
@click.option("--master", help="The Spark master: archive.master.")
@click.option(
    "--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Another setting."
)
@click.option("--dry-run", is_flag=True, help="Print what would be ingested; change nothing.")
@click.option(
    "--only",
    multiple=True,
    metavar="TOPIC",
    help="Clean only this topic; the whole log is ingested in any case.",
)
@click.option(
    "--follow",
    "follows",
    is_flag=True,
    help="Go on: ingest what is sealed every archive.follow_seconds.",
)
@click.option("--seal", is_flag=True, help="Let the running broker close its journal file first.")
@click.option(
    "--key-file",
    default="",
    metavar="FILE",
    envvar="BROKERCTL_KEY_FILE",
    show_envvar=True,
    help="A file with an API key for the broker, in its first line. Or BROKERCTL_KEY.",
)
@click.option(
    "--ca-file",
    default="",
    metavar="FILE",
    envvar="BROKERCTL_CA_FILE",
    show_envvar=True,
    help="The CA of the broker's certificate (PEM).",
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
    follows: bool,
    seal: bool,
    key_file: str,
    ca_file: str,
    as_json: bool,
) -> None:
    """Ingest the broker's log into its archive, and maintain the archive.

    It runs with or without the broker, and can be stopped at any time.
    """
    began = time.monotonic()
    if dry_run and seal:
        raise click.UsageError("--dry-run changes nothing, but --seal does: give only one of them")
    if follows and (dry_run or only):
        raise click.UsageError("--follow excludes --dry-run and --only")
    given = {"data_dir": data_dir, "archive.uri": archive, "archive.master": master}
    try:
        config = load(file, os.environ, assignments, options=_settings(given)).config
        job = _job(config, only, as_json)
        set_umask(job.access)
        login = credentials("", "", key_file, os.environ, ca_file)
        if dry_run:
            _print_plan(job, _plan(job), as_json)
            return
        if follows:
            pace = Pace(config.archive.follow_seconds, config.archive.maintain_seconds)
            rounds = _Rounds(job, login, seal, as_json)
            follow(rounds.run, pace, time.monotonic, time.sleep)
        if seal:
            _seal(job, login)
        report = run_job(job)
        notes = _notify_broker(job, report, login)
        try:
            _print_report(report, notes, time.monotonic() - began, as_json)
        except OutputFailed as error:
            report.problems.append(f"{error}. The run has ended, and its commits stay")
        if report.problems:
            raise JobProblems("\n".join(report.problems))
    except BrokerdError as error:
        if as_json and not isinstance(error, (JobProblems, OutputFailed)):
            _print_failure(str(error))
        raise
    except OSError as error:
        if as_json:
            _print_failure(os_error_text(error))
        raise


def main() -> None:
    """Run the command. An error becomes a line on stderr and an exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    logging.basicConfig(handlers=[logging.NullHandler()])  # Spark's log goes to a file
    try:
        sys.exit(command.main(prog_name="brokerd-rollup", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        _exit(_ENDED, _INTERRUPTED)
    except _Terminated:
        _exit(_ENDED, _TERMINATED)
    except RollupLocked as error:
        _exit(str(error), IN_USE)
    except BrokerdError as error:
        _exit(str(error), USAGE)
    except OSError as error:
        _exit(os_error_text(error), USAGE)


class _Rounds:
    """Runs the rounds of ``--follow``, and prints what they did."""

    def __init__(self, job: Job, login: Credentials, seals: bool, as_json: bool) -> None:
        self._job = job._replace(tables=Tables(), progress=NoProgress())
        self._login = login
        self._seals = seals
        self._as_json = as_json
        self._told: list[str] = []
        """The problems of the last round. The same problems are not printed again."""
        self._output_error = ""
        """The reason why the last report could not be printed."""

    def run(self, is_small: bool) -> bool:
        """Run a round, and return whether it succeeded. Raises `Denied`."""
        began = time.monotonic()
        try:
            if self._seals:
                with suppress(NoBroker):  # what a stopped broker sealed is ingested, too
                    _seal(self._job, self._login)
            report = run_job(self._job._replace(is_small=is_small))
        except RollupLocked:
            return True  # another run does the same work
        except Denied:
            raise
        except BrokerdError as error:
            return self._failed(str(error).splitlines())
        except OSError as error:
            return self._failed([os_error_text(error)])
        if report.has_committed:
            report.ingest.stop = None  # there is always a segment that is not sealed yet
            notes = _notify_broker(self._job, report, self._login)
            self._report(report, notes, time.monotonic() - began)
        if report.problems:
            # A merge that fails does not slow the ingest down.
            return self._failed(report.problems) or report.ingest.lots > 0
        self._told = []
        return True

    def _report(self, report: JobReport, notes: Sequence[str], seconds: float) -> None:
        """Print a report. The rounds go on if stdout takes no more: they may free the disk."""
        problem = ""
        try:
            _print_report(report, notes, seconds, self._as_json)
        except OutputFailed as error:
            problem = str(error)
        if problem and problem != self._output_error:
            _tell(f"{problem}. The rounds go on")
        self._output_error = problem

    def _failed(self, problems: list[str]) -> bool:
        """Print new problems, and return False. The next round opens the tables again."""
        if self._job.tables is not None:
            self._job.tables.clear()
        if problems != self._told:
            _tell("\n".join(problems))
        self._told = list(problems)
        return False


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated(_TERMINATED)


def _print_failure(problem: str) -> None:
    """Print the JSON object of a run that could not begin."""
    with suppress(OutputFailed):  # stderr gets the error, too
        _print(json.dumps({"ok": False, "problems": [problem]}))


def _exit(text: str, code: int) -> NoReturn:
    _tell(text)
    sys.exit(code)


def _tell(text: str) -> None:
    """Print an error to stderr, if it is open and takes it."""
    priority = f"<{ERROR}>" if is_journal(sys.stderr, os.environ) else ""
    with suppress(OSError):  # nobody else can be told; the exit code and the next run tell, too
        for line in text.splitlines():
            click.echo(f"{priority}brokerd-rollup: {plain(line)}", err=True)


def _print(line: str) -> None:
    """Print a line to stdout. Raises OutputFailed."""
    try:
        click.echo(line)
    except OSError as error:
        raise OutputFailed(f"stdout cannot be written: {error.strerror}") from error


# -- Options -------------------------------------------------------------------------------------


def _settings(given: dict[str, str | None]) -> list[Setting]:
    """Return the settings of command-line options."""
    return [
        Setting(name, value, _OPTIONS[name], True)
        for name, value in given.items()
        if value is not None
    ]


def _job(config: Config, only: Sequence[str], as_json: bool) -> Job:
    data_dir = Path(os.path.abspath(config.data_dir))
    options = msgspec.structs.asdict(config.archive)
    on_terminal = sys.stderr is not None and sys.stderr.isatty() and not as_json
    return Job(
        data_dir=data_dir,
        root=address(config.archive.uri, data_dir),
        settings=Settings(**{name: options[name] for name in Settings._fields}),
        open_spark=partial(
            spark_session,
            "brokerd-rollup",
            SparkOptions(check_master(config.archive.master), config.archive.driver_memory_bytes),
            data_dir / SCRATCH,
            os.environ,
        ),
        now_ms=lambda: time.time_ns() // 1_000_000,
        free_bytes=lambda path: shutil.disk_usage(path).free,
        only=only,
        access=parse_access(config.archive.group, config.archive.mode),
        progress=_ProgressBar() if on_terminal else NoProgress(),
    )


def _seal(job: Job, login: Credentials) -> None:
    """Let the running broker close its journal file."""
    try:
        Server(find(None, str(job.data_dir)), login).post("wal", "seal")
    except Refused as error:
        if error.status not in DENIED:
            raise
        raise Denied(
            f"--seal: the broker answered: {error}; give the API key of an account with the role "
            "admin by --key-file, or leave out --seal"
        ) from error
    except NoBroker as error:
        reason = str(error).partition(";")[0]
        raise NoBroker(f"--seal: {reason}; start the broker, or leave out --seal") from error


def _plan(job: Job) -> list[Lot]:
    """Plan the lots of a job, and check that it could run."""
    lots = list(plan_job(job))
    settings = job.settings
    needs_spark = settings.derived or any(lot.bytes > settings.local_lot_bytes for lot in lots)
    has_work = any(lot.segments for lot in lots)
    if has_work and needs_spark and "PYSPARK_GATEWAY_PORT" not in os.environ:
        find_java(os.environ)
    return lots


def _notify_broker(job: Job, report: JobReport, login: Credentials) -> list[str]:
    """Let a running broker refresh its archive at once. It also polls by itself."""
    if not report.has_committed:
        return []
    try:
        server = Server(find(None, str(job.data_dir)), login)
    except NoBroker:
        return []
    try:
        if login.key or "monitor" in server.get("whoami")["permissions"]:
            server.post("archive", "refresh")
        # Without permission, a request would be a denial in its audit trail.
    except BrokerdError as error:
        return [f"the broker was not notified, and will poll the archive: {error}"]
    return []


# -- Output --------------------------------------------------------------------------------------


class _ProgressBar:
    """A bar on the terminal, or a name if the number of tasks is unknown. It is erased at last."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._done = 0

    def begin(self, name: str, tasks: int) -> None:
        if not tasks:
            self._bar = None
            click.echo(f"{name} ...", nl=False, err=True)
            return
        self._done = 0
        self._bar = click.progressbar(length=tasks, label=f"{name:24}", file=sys.stderr)
        self._bar.render_progress()

    def advance(self, tasks: int) -> None:
        if self._bar is not None:
            self._bar.update(tasks - self._done)
            self._done = tasks

    def end(self) -> None:
        click.echo("\r\x1b[K", nl=False, err=True)


def _print_report(report: JobReport, notes: Sequence[str], seconds: float, as_json: bool) -> None:
    if as_json:
        _print(json.dumps(_report_json(report, notes, seconds)))
        return
    lines = [*_report_lines(report), *notes]
    if lines:
        lines.append(f"took {seconds:.1f} s")
    for line in lines:
        _print(plain(line))


def _report_json(report: JobReport, notes: Sequence[str], seconds: float) -> dict[str, Any]:
    ingest = asdict(report.ingest)
    del ingest["stop"]
    return {
        "ok": not report.problems,
        "problems": report.problems,
        **ingest,
        "left": report.stop_reason,
        "steps": {step.name: step.numbers for step in report.steps},
        "notes": [*(line for step in report.steps for line in step.lines), *notes],
        "seconds": round(seconds, 3),
    }


def _report_lines(report: JobReport) -> Iterator[str]:
    ingest = report.ingest
    if ingest.segments:
        yield (
            f"ingested {some(ingest.segments, 'journal file')}, {size(ingest.log_bytes)}: "
            f"{some(ingest.records, 'record')} and {some(ingest.events, 'event')}, in "
            f"{some(ingest.files, 'file')} of {size(ingest.file_bytes)}"
        )
    for step in report.steps:
        yield from step.lines
    if report.problems:
        return
    if not ingest.segments and not any(step.lines for step in report.steps):
        yield "nothing to do"
    if report.stop_reason:
        yield f"left: {report.stop_reason}"


def _print_plan(job: Job, lots: Sequence[Lot], as_json: bool) -> None:
    """Print what a run would ingest. Records lost to damage count too.

    :raises JobProblems: the log cannot be ingested further.
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
        _print(json.dumps(facts))
    else:
        _print_plan_lines(facts)
    if problems:
        raise JobProblems("\n".join(problems))


def _print_plan_lines(facts: dict[str, Any]) -> None:
    _print(plain(f"archive: {facts['archive']}"))
    if facts["segments"]:
        _print(
            f"would ingest {some(facts['segments'], 'journal file')}, {size(facts['log_bytes'])}: "
            f"{some(facts['records'], 'record')}, into {some(facts['files'], 'file')}"
        )
    else:
        _print("nothing to ingest")
    if facts["left"] and facts["ok"]:
        _print(plain(f"left: {facts['left']}"))
    _print("a dry run does not plan the other steps")


if __name__ == "__main__":
    main()
