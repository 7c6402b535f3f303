"""Archive commands that are killed, or run out of disk space, at any of their file calls."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.archive.test_job import ROOT


@pytest.mark.soak
def test_every_command_is_continued_after_a_fault_at_any_call() -> None:
    """The attack forks, so it runs in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.archive.file_calls"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ended.returncode, ended.stdout + ended.stderr
    print(ended.stdout)
