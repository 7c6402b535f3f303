"""The Makefile."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_one_make_at_a_time_changes_the_environment(tmp_path: Path) -> None:
    """`make spark` waits for `make run`, and pip runs once for all who wait."""
    for name in ("Makefile", "setup.cfg", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    write_program(tmp_path / "scripts" / "preflight.sh", "echo python3")
    write_program(tmp_path / ".venv" / "bin" / "python", 'echo "$@" >> calls')
    calls = tmp_path / "calls"
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        command = ["make", "-s", "spark"]
        makes = [subprocess.Popen(command, cwd=tmp_path, close_fds=True) for _ in range(2)]
        inode = os.stat(tmp_path).st_ino
        while waiting(inode) < 2:
            assert not calls.exists()
            assert all(make.poll() is None for make in makes)
    finally:
        os.close(directory)
    assert [make.wait() for make in makes] == [0, 0]
    assert calls.read_text().count("-m pip install") == 1


def waiting(inode: int) -> int:
    """Return how many processes wait for a lock of a file."""
    locks = Path("/proc/locks").read_text().splitlines()
    return sum("-> FLOCK" in line and line.split()[6].endswith(f":{inode}") for line in locks)


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
