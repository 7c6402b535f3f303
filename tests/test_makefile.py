"""The Makefile."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_one_make_at_a_time_changes_the_environment(tmp_path: Path) -> None:
    """`make spark` waits for `make run`, and pip runs once for all who wait."""
    copy_makefile(tmp_path)
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


PURE, COMPILED = "brokerd-0.1.0-py3-none-any.whl", "brokerd-0.1.0-cp311-cp311-linux_x86_64.whl"

FAKE_PIP = f"""
case "$*" in
*build_backend.py) test -z "$OBSTACLE" || {{ echo "$OBSTACLE"; exit 1; }} ;;
*" wheel "*)
    while test "$1" != -w; do shift; done
    mkdir -p "$2"
    test "$BROKERD_COMPILE" = 1 && wheel={COMPILED} || wheel={PURE}
    echo new >"$2/$wheel" ;;
esac
"""


@pytest.mark.parametrize("obstacle", ["", "no compiler"])
def test_wheel_replaces_only_what_it_makes(tmp_path: Path, obstacle: str) -> None:
    """Environments and pages in build stay, and so do older wheels that it cannot make again."""
    copy_makefile(tmp_path)
    write_program(tmp_path / ".venv" / "bin" / "python", FAKE_PIP)
    (tmp_path / ".venv" / ".brokerd-installed").touch()
    kept = ["build/compiled/env/pyvenv.cfg", "build/docs/index.html", "dist/brokerd-0.0.9.whl"]
    for name in (*kept, f"dist/{PURE}", f"dist/{COMPILED}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old\n")
    environment = {**os.environ, "OBSTACLE": obstacle}
    done = subprocess.run(
        ["make", "-s", "wheel"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / name).read_text() == "old\n" for name in kept)
    assert (tmp_path / "dist" / PURE).read_text() == "new\n"
    assert (tmp_path / "dist" / COMPILED).read_text() == ("old\n" if obstacle else "new\n")
    told = [f"no compiled wheel: {obstacle}"] if obstacle else [f"dist/{COMPILED}"]
    assert sorted(done.stdout.splitlines()) == sorted([f"dist/{PURE}", *told])
    assert sorted(path.name for path in (tmp_path / "build").iterdir()) == ["compiled", "docs"]


def copy_makefile(directory: Path) -> None:
    """Copy the Makefile and what its targets depend on."""
    for name in ("Makefile", "setup.cfg", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, directory)
    write_program(directory / "scripts" / "preflight.sh", "echo python3")


def waiting(inode: int) -> int:
    """Return how many processes wait for a lock of a file."""
    locks = Path("/proc/locks").read_text().splitlines()
    return sum("-> FLOCK" in line and line.split()[6].endswith(f":{inode}") for line in locks)


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
