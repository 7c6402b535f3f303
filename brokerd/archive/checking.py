# Tests: tests/archive/test_derived.py
"""Proves files of ``records`` and ``events`` before Spark reads them, which verifies little.

A wrong key or offset would remove the wrong record. So tasks read each file to its end first, with
every checksum (`brokerd.archive.reading`), and what Spark then reads is what was verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from brokerd.archive.layout import Layout
from brokerd.archive.reading import open_file
from brokerd.archive.running import Run
from brokerd.archive.view import ArchiveUnavailable, DamagedArchive
from brokerd.errors import NewerFormat

TASK_BYTES = 256 << 20
"""About so much is read by one task."""


class Files(NamedTuple):
    """Some files of a table, for one task."""

    table: str
    """The table's directory."""
    paths: tuple[str, ...]


class Problem(NamedTuple):
    """A file that cannot be used, and why."""

    path: str
    text: str


def check_files(run: Run, layout: Layout, sizes: dict[str, int], what: str) -> list[Problem]:
    """Read files to their end, in tasks of Spark; gives those that are not what was written.

    :param sizes: in bytes, by path relative to the table.
    :param what: names the stage.
    """
    tasks = list(parted(run, layout, sizes))
    return [problem for problems in run.map(what, _check, tasks) for problem in problems]


def parted(run: Run, layout: Layout, sizes: dict[str, int]) -> Iterable[Files]:
    """Files as tasks of about `TASK_BYTES` each."""
    table = str(run.root / layout.name)
    paths: list[str] = []
    total = 0
    for path, size in sizes.items():
        if paths and total + size > TASK_BYTES:
            yield Files(table, tuple(paths))
            paths, total = [], 0
        paths.append(path)
        total += size
    if paths:
        yield Files(table, tuple(paths))


def _check(task: Files) -> Sequence[Problem]:
    problems = []
    for path in task.paths:
        try:
            file = open_file(task.table, path)
            for group in range(len(file.groups)):
                file.read_table([group], ["lsn"])
        except (DamagedArchive, ArchiveUnavailable, NewerFormat) as error:
            problems.append(Problem(path, str(error)))
    return problems
