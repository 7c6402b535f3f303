"""What ``make`` says when the machine lacks something: the exact package, and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "preflight.sh"


class Machine:
    """A machine whose programs are the ones that a test puts there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("sh", "df", "awk", "basename"):
            (directory / name).symlink_to(f"/usr/bin/{name}")

    def has(self, name: str, script: str) -> None:
        program = self.directory / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def preflight(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        result = subprocess.run(
            ["/bin/sh", SCRIPT, "/", *arguments],
            env={"PATH": str(self.directory), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return result.returncode, result.stdout.strip(), result.stderr.strip()


REAL = f'exec {sys.executable} "$@"'
OLD = 'case "$*" in *version_info*) echo False;; *) echo Python 3.9.2;; esac'
WITHOUT_ENSUREPIP = f'case "$*" in *ensurepip*) exit 1;; *) {REAL};; esac'
ROOMY = "echo head; echo / 9 9 99999 9 /"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.has("df", ROOMY)
    return machine


def test_a_good_machine_answers_with_its_python(machine: Machine) -> None:
    """The path of the interpreter, and nothing else."""
    machine.has("python3", REAL)
    assert machine.preflight() == (0, str(machine.directory / "python3"), "")


def test_a_broker_alone_needs_less_space(machine: Machine) -> None:
    """The space for Spark does not matter to ``make run``."""
    machine.has("python3", REAL)
    machine.has("df", "echo head; echo / 9 9 600 9 /")
    assert machine.preflight("512")[0] == 0
    code, _, said = machine.preflight()
    assert code == 2 and "only 600 MiB free in /, 4096 MiB needed" in said
    code, _, said = machine.preflight("700")
    assert code == 2 and "700 MiB needed" in said


def commands(target: str, environment: Path) -> str:
    """Return what ``make`` would run."""
    return subprocess.run(
        ["make", "--no-print-directory", "-n", target, f"VENV={environment}"],
        cwd=SCRIPT.parent.parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_make_run_installs_a_broker_alone(tmp_path: Path) -> None:
    assert "-e . " in commands("run", tmp_path) and "[test]" not in commands("run", tmp_path)
    (tmp_path / ".brokerd-core-installed").touch()
    assert "pip install" not in commands("run", tmp_path)
    assert "-e '.[test]'" in commands("spark", tmp_path)


def test_make_run_takes_an_environment_with_all_packages(tmp_path: Path) -> None:
    (tmp_path / ".brokerd-installed").touch()
    assert "pip install" not in commands("run", tmp_path)


def test_a_newer_python_is_found_beside_an_old_one(machine: Machine) -> None:
    """An old python3 does not hide a python3.12."""
    machine.has("python3", OLD)
    machine.has("python3.12", REAL)
    assert machine.preflight()[:2] == (0, str(machine.directory / "python3.12"))


def test_the_interpreter_can_be_chosen(machine: Machine) -> None:
    """PYTHON= wins over what is on the path."""
    assert machine.preflight(PYTHON=sys.executable) == (0, sys.executable, "")


@pytest.mark.parametrize(
    ("programs", "environment", "said"),
    [
        ({}, {}, "no python3 found: apt-get install -y python3-venv"),
        ({"python3": OLD}, {}, "Python 3.9.2 is too old: Python 3.11 or newer is needed"),
        ({"python3": WITHOUT_ENSUREPIP}, {}, "has no ensurepip: apt-get install -y python3-venv"),
        (
            {"python3.12": WITHOUT_ENSUREPIP},
            {},
            "apt-get install -y python{}.{}-venv".format(*sys.version_info),
        ),
        ({"python3": REAL, "df": "echo head; echo / 9 9 12 9 /"}, {}, "only 12 MiB free in /"),
        ({}, {"PYTHON": "/nowhere/python"}, "PYTHON=/nowhere/python is not a program"),
        ({"true": ""}, {"PYTHON": "true"}, "PYTHON=true is not Python 3.11 or newer"),
    ],
)
def test_what_is_missing_is_named(
    machine: Machine, programs: dict[str, str], environment: dict[str, str], said: str
) -> None:
    """One line on stderr, nothing on stdout, exit code 2."""
    for name, script in programs.items():
        machine.has(name, script)
    code, out, line = machine.preflight(**environment)
    assert (code, out) == (2, "")
    assert line.startswith("preflight: ")
    assert said in line
    assert "\n" not in line
