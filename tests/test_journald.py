"""Priorities of lines that journald reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

import pytest
from twisted.logger import LogEvent, LogLevel
from twisted.python.failure import Failure

from brokerd.server.journald import is_journal
from brokerd.server.logs import make_observer


def journal_of(file: TextIO) -> dict[str, str]:
    """Return the environment in which journald reads a file."""
    status = os.fstat(file.fileno())
    return {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}


def event(level: LogLevel, **fields: Any) -> LogEvent:
    return {"log_time": 0, "log_namespace": "brokerd", "log_level": level, **fields}


@pytest.mark.parametrize(
    ("level", "priority"),
    [
        (LogLevel.critical, 2),
        (LogLevel.error, 3),
        (LogLevel.warn, 4),
        (LogLevel.info, 6),
        (LogLevel.debug, 7),
    ],
)
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_to_journald_begins_with_its_priority(
    tmp_path: Path, log_format: str, level: LogLevel, priority: int
) -> None:
    with (tmp_path / "log").open("w+") as file:
        observer = make_observer(file, log_format, "debug", journal_of(file))
        observer(event(level, log_format="made"))
        file.seek(0)
        assert file.read().startswith((f"<{priority}>1970", f'<{priority}>{{"time"'))


def test_each_line_of_a_traceback_has_the_priority(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as file:
        observer = make_observer(file, "text", "info", journal_of(file))
        failure = Failure(ValueError("wrong"))
        observer(event(LogLevel.critical, log_format="wrong", log_failure=failure))
        file.seek(0)
        lines = file.read().splitlines()
    assert len(lines) > 1
    assert all(line.startswith("<2>") for line in lines)


@pytest.mark.parametrize("stream", ["", "0:0", "nonsense"])
def test_lines_to_another_stream_have_no_priority(tmp_path: Path, stream: str) -> None:
    with (tmp_path / "log").open("w+") as file:
        observer = make_observer(file, "text", "info", {"JOURNAL_STREAM": stream})
        observer(event(LogLevel.info, log_format="made"))
        file.seek(0)
        assert file.read().startswith("1970")


def test_a_closed_or_missing_stream_is_no_journal(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        environment = journal_of(file)
    assert not is_journal(file, environment)
    assert not is_journal(None, environment)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (
            ["-m", "twisted", "brokerd", "--set", "wal=1"],
            "<3>brokerd: unknown key 'wal' (--set wal)\n",
        ),
        (["-m", "brokerd.rollup", "--set", "wal=1"], "<3>brokerd-rollup: unknown key 'wal'"),
    ],
)
def test_a_failed_start_is_an_error_in_the_journal(
    tmp_path: Path, command: list[str], problem: str
) -> None:
    """The line on stderr has the priority of an error."""
    with (tmp_path / "stderr").open("w+") as stderr:
        ended = subprocess.run(
            [sys.executable, *command],
            stderr=stderr,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **journal_of(stderr)},
            timeout=120,
        )
        stderr.seek(0)
        line = stderr.read()
    assert ended.returncode == 1
    assert line.startswith(problem)
    assert line.count("\n") == 1
