# Tests: tests/simulator/test_archive_files.py
"""Stand-ins for the libraries of the job that see no simulated disk: Spark and deltalake."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from deltalake import DeltaTable

from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.delta.log_files import COMMITS
from brokerd.errors import BrokerdError

NO_SPARK = "a step needs Spark"
_MEMORY = "/dev/shm"

Item = TypeVar("Item")
Result = TypeVar("Result")


class NoSpark(BrokerdError):
    """A step of the job needs Spark, which does not run here."""


class InlineSpark(SparkRunner):
    """Calls the functions of tasks in this process."""

    def __init__(self, *_ignored: object) -> None:
        super().__init__(no_spark)

    def is_local(self) -> bool:
        return True

    def map(
        self, name: str, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        return [function(item) for item in pickle.loads(pickle.dumps(items))]


def no_spark() -> NoReturn:
    raise NoSpark(NO_SPARK)


def checkpoint_files(files: Mapping[str, bytes], table: str, version: int) -> dict[str, bytes]:
    """Let deltalake write a checkpoint of a copy of a table, and return the new files by path.

    ``files`` are those of the archive.
    """
    log = f"{table}/{COMMITS}"
    with tempfile.TemporaryDirectory(dir=memory_directory()) as copy:
        there = Path(copy, COMMITS)
        there.mkdir()
        for path, data in files.items():
            if os.path.dirname(path) == log:
                (there / os.path.basename(path)).write_bytes(data)
        before = {path.name for path in there.iterdir()}
        DeltaTable(copy, version=version).create_checkpoint()
        made = [path for path in sorted(there.iterdir()) if path.name not in before]
        return {f"{log}/{path.name}": path.read_bytes() for path in made}


def memory_directory() -> str | None:
    """Return a directory of a file system in memory, where renames wait for no disk; else None."""
    return _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None


def free_name(path: str, files: Mapping[str, bytes]) -> str:
    """Return the name of the temporary file of deltalake: the first free number."""
    number = 1
    while f"{path}#{number}" in files:
        number += 1
    return f"{path}#{number}"
