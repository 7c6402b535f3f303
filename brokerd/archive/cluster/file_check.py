# Tests: tests/archive/test_deliveries.py
"""Verifies files of ``records`` and ``events`` before Spark reads them.

Spark itself verifies little, and a wrong key or offset would remove the wrong record. So tasks
first read each file to its end and check every checksum (`brokerd.archive.parquet.reader`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from brokerd.archive.cluster.attempts import retry_later
from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.contract.view import ArchiveUnavailable, DamagedArchive
from brokerd.archive.parquet.reader import open_file
from brokerd.archive.storage.address import Place
from brokerd.errors import NewerFormat

TASK_BYTES = 256 << 20
"""The approximate size of the files of a task."""


class FileTask(NamedTuple):
    """Files of a table for one task."""

    table: Place
    paths: tuple[str, ...]
    """Paths relative to the table."""


class FileCheck(NamedTuple):
    """The result of verifying a file."""

    path: str
    problem: str = ""
    """The reason why the file cannot be used; "" for a sound file."""
    keyed: int = 0
    """The number of rows with a key."""
    tombstones: int = 0
    """The number of rows with a key and an empty value."""


def check_files(
    spark: SparkRunner, table: Place, sizes: dict[str, int], name: str
) -> list[FileCheck]:
    """Verify files in Spark tasks, and return a result for each file.

    :param sizes: sizes in bytes, by path relative to the table.
    :param name: names the job group.
    """
    tasks = list(file_tasks(table, sizes))
    return [one for checks in spark.map(name, _check, tasks) for one in checks]


def file_tasks(table: Place, sizes: dict[str, int]) -> Iterator[FileTask]:
    """Yield tasks of about `TASK_BYTES` of files each."""
    paths: list[str] = []
    total = 0
    for path, size in sizes.items():
        if paths and total + size > TASK_BYTES:
            yield FileTask(table, tuple(paths))
            paths, total = [], 0
        paths.append(path)
        total += size
    if paths:
        yield FileTask(table, tuple(paths))


def _check(task: FileTask) -> list[FileCheck]:
    return [_check_file(task.table, path) for path in task.paths]


def _check_file(table: Place, path: str) -> FileCheck:
    try:
        file = open_file(table, path)
        for group in range(len(file.groups)):
            file.read_table([group], ["lsn"])
    except (DamagedArchive, ArchiveUnavailable, NewerFormat) as error:
        retry_later(error)
        return FileCheck(path, str(error))
    return FileCheck(path, "", file.footer.keyed, file.footer.tombstones)
