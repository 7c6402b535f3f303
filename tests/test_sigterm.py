"""SIGTERM ends a test run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = """
import os, signal
from contextlib import suppress

def test_with_which_the_reactor_begins():
    pass

def test_that_meets_the_signal():
    {0}

def test_that_comes_after_it():
    print("and on it goes")
"""
KILL = "os.kill(os.getpid(), signal.SIGTERM)"
KILL_BOTH = "os.kill(os.getppid(), signal.SIGTERM)\n    import time; time.sleep(60)"


def session(directory: Path, body: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run three tests, the second of which has this body."""
    path = directory / "test_it.py"
    path.write_text(TESTS.format(body))
    command = [sys.executable, "-m", "pytest", "-s", "-p", "tests.conftest"]
    command += ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(directory)]
    return subprocess.run(
        [*command, *options, str(path)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_sigterm_ends_the_session(tmp_path: Path) -> None:
    """No test follows, even if a test swallows the exception. `timeout` sends this signal."""
    result = session(tmp_path, f"with suppress(Exception): {KILL}")
    assert result.returncode == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in result.stdout
    assert "and on it goes" not in result.stdout


@pytest.mark.parametrize(
    ("body", "code", "output"),
    [
        (KILL, pytest.ExitCode.INTERRUPTED, "PASSED"),
        # It may end before it prints the result of the first test.
        (KILL_BOTH, 128 + signal.SIGTERM, "ended by SIGTERM"),
    ],
    ids=["the process of a test", "the process that deals out the tests"],
)
def test_sigterm_ends_a_session_of_several_processes(
    tmp_path: Path, body: str, code: int, output: str
) -> None:
    result = session(tmp_path, body, "-n1", "--dist=loadfile", "-v")
    assert result.returncode == code
    assert output in result.stdout
    assert "test_that_comes_after_it" not in result.stdout
