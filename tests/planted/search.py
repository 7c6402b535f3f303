# Tests: tests/simulator/test_planted.py
"""The searches for planted bugs: programs that report what a broken broker does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TIMEOUT_SECONDS = 1_200


class Search(NamedTuple):
    """A program that looks for bugs, and the pattern of its output about the first one."""

    name: str
    stages: tuple[str, ...]
    """Arguments of Python's ``-m``, one run after the other.

    ``{seeds}``, ``{jobs}`` and ``{tests}`` are replaced.
    """
    again: str
    """Arguments that repeat one finding, at ``{where}``."""
    found: re.Pattern[str]


SEARCHES = (
    Search(
        "simulator",
        ("simulator --seeds 0..{seeds} --jobs {jobs}",),
        "simulator --seeds {where} --jobs 1",
        re.compile(r"seed (?P<where>\d+): (?P<what>.+?):"),
    ),
    Search(
        "crash points",
        tuple(
            f"simulator.crashpoints --jobs {{jobs}} --model {model}"
            for model in ("tear", "drop", "reorder", "keep")
        ),
        "simulator.crashpoints --only {where}",
        re.compile(r"(?P<where>[a-z]+:\d+) \(.*?\), \w+: (?P<what>.+)"),
    ),
    Search(
        "suite",
        ("pytest -q -x -p no:cacheprovider --tb=no {tests}",),
        "pytest -q -p no:cacheprovider --tb=no {where}",
        re.compile(
            r"(?P<what>FAILED|ERROR) (?P<where>tests/\S+?\.py(?:::\w+)*(?:\[.*?\](?= - |$))?)"
        ),
    ),
    Search(
        "flips",
        ("simulator.flips --jobs {jobs}",),
        "simulator.flips --file {where} --jobs 1",
        re.compile(r"[\w ,]+: \S*?(?P<where>[^/ ]+) at \d+ \^ \w+, .*?: (?P<what>[A-Z ]+):"),
    ),
)
"""The suite runs a bug's own test files. Flips take long: they run only for bugs that no other
search has found.
"""


class Catch(NamedTuple):
    """The end of a search. ``what`` is empty if it found nothing."""

    what: str
    where: str
    seconds: float
    is_proof: bool = True
    """Whether the tree without the bug passes at the same place."""


def hunt(search: Search, root: Path, sound: Path, seeds: int, jobs: int, tests: str = "") -> Catch:
    """Run a search on the tree at ``root`` until it finds something or ends; return the result.

    A finding that the tree at ``sound`` has, too, does not count as a proof.
    """
    began = time.monotonic()
    catch = Catch("", "", 0.0)
    for stage in search.stages:
        arguments = stage.format(seeds=seeds - 1, jobs=jobs, tests=tests).split()
        catch = _run(search, root, arguments)
        if catch.what:
            break
    catch = catch._replace(seconds=time.monotonic() - began)
    if not catch.where:
        return catch
    arguments = [part.format(where=catch.where) for part in search.again.split()]
    without = _run(search, sound, arguments)
    return catch._replace(is_proof=not without.what)


def _run(search: Search, root: Path, arguments: Sequence[str]) -> Catch:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    timer = threading.Timer(TIMEOUT_SECONDS, _end, [process])
    timer.start()
    try:
        return _read(search, process)
    finally:
        timer.cancel()
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """SIGKILL a process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(search: Search, process: subprocess.Popen[str]) -> Catch:
    assert process.stdout is not None, "it is a pipe"
    last = ""
    for line in process.stdout:
        match = search.found.match(line)
        if match is not None:
            return Catch(match["what"].strip(), match["where"], 0.0)
        last = line.strip() or last
    if process.wait() != 0:  # also when it went on for ever and was ended
        return Catch(f"it ended with {process.returncode}: {last}", "", 0.0)
    return Catch("", "", 0.0)
