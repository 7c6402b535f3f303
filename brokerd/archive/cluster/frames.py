# Tests: tests/archive/test_deliveries.py, tests/archive/test_job_on_s3.py
"""Files of the archive's tables as data frames of Spark, and data frames as files of a table.

Where the archive is a directory, Spark's own Parquet does it
(`brokerd.archive.cluster.local_frames`). Spark by itself knows no object store: there its tasks do
it in Python (`brokerd.archive.cluster.bucket_frames`). What a step needs for itself stands in the
directory ``staging`` beside the tables. All paths are relative to the archive.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from brokerd.archive.cluster.bucket_frames import FILE, ROW, InStore, ddl
from brokerd.archive.cluster.local_frames import OnDisk
from brokerd.archive.contract.layout import Layout
from brokerd.archive.delta.actions import AddFile
from brokerd.archive.delta.log_files import FileStats
from brokerd.archive.parquet.plain_file import PlainFileInfo, StagedFile
from brokerd.archive.run import Run

__all__ = [
    "FILE",
    "ROW",
    "STAGING",
    "StagedFile",
    "add_frame",
    "added_plain",
    "bounds_frame",
    "read_files",
    "read_staged",
    "stage_frame",
    "staging",
]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STAGING = "staging"
BOUNDS = "topic_id long, partition int, start long, compact_below long, compact boolean"


class FrameFiles(Protocol):
    """How data frames and files become each other. Frames have at least one file."""

    def read_table(
        self, layout: Layout, names: Sequence[str], paths: Sequence[str], placed: bool
    ) -> DataFrame:
        """As `read_files`."""

    def read_staged(self, schema: str, directory: str, paths: Sequence[str]) -> DataFrame:
        """As `read_staged`."""

    def stage(self, frame: DataFrame, directory: str, by: str) -> list[StagedFile]:
        """As `stage_frame`."""

    def add(
        self, frame: DataFrame, staging: str, layout: Layout, prefix: str, by: str
    ) -> list[PlainFileInfo]:
        """As `add_frame`; paths are relative to the table."""


def _files(run: Run) -> FrameFiles:
    if isinstance(run.root, Path):
        return OnDisk(run.spark(), run.root)
    return InStore(run.spark(), run.root)


def bounds_frame(run: Run, partitions: Collection[tuple[int, int]] | None = None) -> DataFrame:
    """The bounds as `brokerd.archive.derive.transforms` takes them.

    :param partitions: (topic id, partition) of those that are wanted; None: all.
    """
    rows = [
        (topic.id, index, partition.start, partition.compact_below, topic.compact)
        for topic in run.bounds.topics
        for index, partition in enumerate(topic.partitions)
        if partitions is None or (topic.id, index) in partitions
    ]
    return run.spark().createDataFrame(rows, BOUNDS)


# -- Reading -------------------------------------------------------------------------------------


def read_files(
    run: Run, layout: Layout, paths: Sequence[str], names: Sequence[str], placed: bool = False
) -> DataFrame:
    """Rows of files of a table, with the named columns.

    :param paths: relative to the table. None at all is an empty frame.
    :param placed: with the columns `FILE` and `ROW`.
    """
    if not paths:
        schema = ddl(layout, names) + (f", {FILE} string, {ROW} long" if placed else "")
        return run.spark().createDataFrame([], schema)
    return _files(run).read_table(layout, names, paths, placed)


def read_staged(run: Run, schema: str, directory: str, paths: Sequence[str]) -> DataFrame:
    """Rows of files that `stage_frame` wrote into a directory, or others like them.

    :param paths: relative to the archive, below the directory. None at all is an empty frame.
    """
    if not paths:
        return run.spark().createDataFrame([], schema)
    return _files(run).read_staged(schema, directory, paths)


# -- Writing -------------------------------------------------------------------------------------


@contextmanager
def staging(run: Run) -> Iterator[str]:
    """An empty directory of the archive. It is removed in the end, or by the next.

    Nobody else ever has one of its name, such as who still writes to an earlier one.
    """
    _clear(run)
    directory = f"{STAGING}/{secrets.token_hex(8)}"
    run.store.make_directory(directory)
    try:
        yield directory
    finally:
        _clear(run)


def _clear(run: Run) -> None:
    """Remove all that is staged."""
    if isinstance(run.root, Path):
        shutil.rmtree(run.root / STAGING, ignore_errors=True)
    else:
        run.store.delete([entry.path for entry in run.store.list(STAGING, hidden=True)])


def stage_frame(run: Run, frame: DataFrame, directory: str, by: str = "") -> list[StagedFile]:
    """Write a data frame into a directory below `staging` that is not there yet.

    :param by: a column: each file is of rows that agree in it, which have to come together. Without
        it there is a file for each part of the frame, also for one without rows.
    """
    return _files(run).stage(frame, directory, by)


def add_frame(
    run: Run, frame: DataFrame, directory: str, layout: Layout, prefix: str, time: str, by: str = ""
) -> list[AddFile]:
    """Write a data frame into files of a table, durably, for a commit to add.

    :param directory: one below `staging`, for what is not complete.
    :param prefix: what the names of files begin with.
    :param time: the column that tells the time of a row.
    :param by: a column that is not in the files: each is of rows that agree in it.
    """
    infos = _files(run).add(frame, directory, layout, prefix, by)
    return [added_plain(info, time) for info in infos]


def added_plain(info: PlainFileInfo, time: str) -> AddFile:
    """What a commit says of a file, whose path is relative to its table."""
    least, most = info.minimum, info.maximum
    facts = FileStats(
        rows=info.rows,
        first_time_us=least[time],
        last_time_us=most[time],
        first_lsn=least.get("lsn", -1),
        last_lsn=most.get("lsn", -1),
    )
    return AddFile(info.path, info.size, facts, least, most)
