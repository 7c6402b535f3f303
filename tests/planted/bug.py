# Tests: tests/simulator/test_planted.py
"""A planted bug: edits of named places, made in a copy of the tree."""

from __future__ import annotations

import shutil
import subprocess
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT_PLAN = "simulator/test_run.py::test_what_was_found_once_stays_mended"
"""Runs one of the plans that are kept, in brackets."""


class Edit(NamedTuple):
    """Replaces ``old``, which must be exactly once in ``file``, by ``new``."""

    file: str
    old: str
    new: str


class Bug(NamedTuple):
    """One planted bug."""

    name: str
    means: str
    """The fault that it causes in the broker."""
    edits: tuple[Edit, ...]
    tests: str = ""
    """Files below ``tests/`` in which the search "suite" looks for it."""


def bug(name: str, means: str, file: str, *changes: tuple[str, str], tests: str = "") -> Bug:
    edits = tuple(Edit(f"brokerd/{file}", old, new) for old, new in changes)
    return Bug(name, means, edits, tests)


class Planted(Exception):
    """A bug does not fit the source; the list needs a change."""


def plant(one: Bug, root: Path) -> None:
    """Plant a bug in the files under ``root``. Raises Planted."""
    for edit in one.edits:
        path = root / edit.file
        path.write_text(changed(path.read_text(), edit))


def changed(text: str, edit: Edit) -> str:
    """Return ``text`` with the edit made. Raises Planted unless it fits exactly once."""
    count = text.count(edit.old)
    if count != 1:
        raise Planted(f"{edit.file} holds {count} places, not one, for {edit.old!r}: mend the list")
    return text.replace(edit.old, edit.new)


def line_of(edit: Edit, root: Path = ROOT) -> int:
    """Return the number of the first line that the edit changes."""
    before, _, _ = (root / edit.file).read_text().partition(edit.old)
    pairs = enumerate(zip_longest(edit.old, edit.new))
    same = next(at for at, (old, new) in pairs if old != new)
    return before.count("\n") + edit.old.count("\n", 0, same) + 1


def places(one: Bug) -> str:
    """Return the files and lines of a bug as text."""
    return ", ".join(f"{edit.file.removeprefix('brokerd/')}:{line_of(edit)}" for edit in one.edits)


def copy_tree(target: Path) -> None:
    """Copy the package, the simulator and the tests: all files that git does not ignore."""
    command = [
        "git",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "brokerd",
        "simulator",
        "tests",
        "pyproject.toml",
    ]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
