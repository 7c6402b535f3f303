# Tests: tests/archive/test_deliveries.py
"""Proves files of ``records`` and ``events`` before Spark reads them, which verifies little.

A wrong key or offset would remove the wrong record. So tasks read each file to its end first, with
every checksum (`brokerd.archive.parquet.reader`), and what Spark then reads is what was verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from brokerd.archive.contract.layout import Layout
from brokerd.archive.contract.view import ArchiveUnavailable, DamagedArchive
from brokerd.archive.parquet.reader import open_file
from brokerd.archive.run import Run
from brokerd.archive.storage.store import Place
from brokerd.errors import NewerFormat

TASK_BYTES = 256 << 20
"""About so much is read by one task."""


class Files(NamedTuple):
    """Some files of a table, for one task."""

    table: Place
    """Where the table is."""
    paths: tuple[str, ...]


class Checked(NamedTuple):
    """A file that was read to its end."""

    path: str
    problem: str = ""
    """Why it cannot be used; "" if it can."""
    keyed: int = 0
    """Rows with a key."""
    tombstones: int = 0
    """Rows with a key and an empty value."""


def check_files(run: Run, layout: Layout, sizes: dict[str, int], what: str) -> list[Checked]:
    """Read files to their end, in tasks of Spark.

    :param sizes: in bytes, by path relative to the table.
    :param what: names the stage.
    """
    tasks = list(parted(run, layout, sizes))
    return [one for found in run.map(what, _check, tasks) for one in found]


def parted(run: Run, layout: Layout, sizes: dict[str, int]) -> Iterator[Files]:
    """Files as tasks of about `TASK_BYTES` each."""
    table = run.root / layout.name
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


def _check(task: Files) -> list[Checked]:
    return [_check_one(task.table, path) for path in task.paths]


def _check_one(table: Place, path: str) -> Checked:
    try:
        file = open_file(table, path)
        for group in range(len(file.groups)):
            file.read_table([group], ["lsn"])
    except (DamagedArchive, ArchiveUnavailable, NewerFormat) as error:
        return Checked(path, str(error))
    return Checked(path, "", file.footer.keyed, file.footer.tombstones)
