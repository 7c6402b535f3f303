"""What a terminated test run does: it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("body", [KILL, f"with suppress(Exception): {KILL}"])
def test_sigterm_ends_the_session(tmp_path: Path, body: str) -> None:
    """As from `timeout`: no test follows, even if one swallows what should end it."""
    path = tmp_path / "test_it.py"
    path.write_text(TESTS.format(body))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-s",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
    ]
    result = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", str(tmp_path), str(path)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in result.stdout
    assert "and on it goes" not in result.stdout
