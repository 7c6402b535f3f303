# Tests: tests/archive/test_deliveries.py, tests/archive/test_job_on_s3.py
"""Data frames over files of the archive: read files as frames, and write frames as files.

For an archive in a directory, Spark itself reads and writes Parquet
(`brokerd.archive.cluster.local_frames`). For an object store, tasks do it in Python
(`brokerd.archive.cluster.bucket_frames`). Intermediate results go to the directory ``staging``
beside the tables. Paths are relative to the archive.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from brokerd.archive.cluster.bucket_frames import FILE, ROW, BucketFrames, table_ddl
from brokerd.archive.cluster.local_frames import LocalFrames
from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.contract.layout import STAGING, Layout
from brokerd.archive.delta.actions import AddFile, add_plain_file
from brokerd.archive.parquet.plain_file import PlainFileInfo, StagedFile
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store

__all__ = ["FILE", "ROW", "Frames", "StagedFile"]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BOUNDS = "topic_id long, partition int, start long, compact_below long, compact boolean"


class FrameStore(Protocol):
    """Reads frames from files, and writes frames to files. A read has at least one file."""

    def read_table(
        self, layout: Layout, names: Sequence[str], paths: Sequence[str], row_ids: bool
    ) -> DataFrame:
        """Do the work of `Frames.read`."""

    def read_staged(self, schema: str, directory: str, paths: Sequence[str]) -> DataFrame:
        """Do the work of `Frames.read_staged`."""

    def stage(self, frame: DataFrame, directory: str, partition_by: str) -> list[StagedFile]:
        """Do the work of `Frames.stage`."""

    def add(
        self, frame: DataFrame, staging: str, layout: Layout, prefix: str, partition_by: str
    ) -> list[PlainFileInfo]:
        """Do the work of `Frames.add`. Paths are relative to the table."""


class Frames:
    """Data frames over the files of an archive."""

    def __init__(self, root: Place, spark: SparkRunner) -> None:
        self._root = root
        self._spark = spark

    def _store(self) -> FrameStore:
        if isinstance(self._root, Path):
            return LocalFrames(self._spark.session(), self._root)
        return BucketFrames(self._spark.session(), self._root)

    def _empty(self, schema: str) -> DataFrame:
        return self._spark.session().createDataFrame([], schema)

    # -- Reading ---------------------------------------------------------------------------------

    def bounds(
        self, bounds: Bounds, partitions: Collection[tuple[int, int]] | None = None
    ) -> DataFrame:
        """Return the bounds as a frame for `brokerd.archive.derive.transforms`.

        :param partitions: (topic id, partition) of the rows; None selects all.
        """
        rows = [
            (topic.id, index, partition.start, partition.compact_below, topic.compact)
            for topic, index, partition in bounds.partitions()
            if partitions is None or (topic.id, index) in partitions
        ]
        return self._spark.session().createDataFrame(rows, BOUNDS)

    def read(
        self, layout: Layout, paths: Sequence[str], names: Sequence[str], row_ids: bool = False
    ) -> DataFrame:
        """Return columns of a table's files. Without paths the frame is empty.

        :param paths: relative to the table.
        :param row_ids: whether to add the columns `FILE` and `ROW`.
        """
        if not paths:
            return self._empty(table_ddl(layout, names, row_ids))
        return self._store().read_table(layout, names, paths, row_ids)

    def read_staged(self, schema: str, directory: str, paths: Sequence[str]) -> DataFrame:
        """Return the rows of files that `stage` wrote. Without paths the frame is empty.

        :param paths: relative to the archive, below the directory.
        """
        if not paths:
            return self._empty(schema)
        return self._store().read_staged(schema, directory, paths)

    # -- Writing ---------------------------------------------------------------------------------

    @contextmanager
    def staging(self) -> Iterator[str]:
        """Make an empty directory in the archive, yield its path, and remove it at the end.

        Its name is new, so that a task of an earlier run cannot write into it.
        """
        self._clear_staging()
        directory = f"{STAGING}/{secrets.token_hex(8)}"
        open_store(self._root).make_directory(directory)
        try:
            yield directory
        finally:
            self._clear_staging()

    def _clear_staging(self) -> None:
        if isinstance(self._root, Path):
            shutil.rmtree(self._root / STAGING, ignore_errors=True)
            return
        store = open_store(self._root)
        store.delete([entry.path for entry in store.list(STAGING, hidden=True)])

    def stage(self, frame: DataFrame, directory: str, partition_by: str = "") -> list[StagedFile]:
        """Write a frame into a new directory below `staging`, and return its files.

        :param partition_by: a column. Each file has the rows of one value, and these rows must be
            in one partition of the frame. If "", each partition becomes a file, even if it is
            empty.
        """
        return self._store().stage(frame, directory, partition_by)

    def add(
        self,
        frame: DataFrame,
        staging: str,
        layout: Layout,
        prefix: str,
        time: str,
        partition_by: str = "",
    ) -> list[AddFile]:
        """Write a frame durably into files of a table, and return them for a commit.

        :param staging: a directory of `staging`, for incomplete files.
        :param prefix: the beginning of the file names.
        :param time: the column with the time of a row.
        :param partition_by: a column that the files leave out. Each file has the rows of one value.
        """
        infos = self._store().add(frame, staging, layout, prefix, partition_by)
        return [add_plain_file(info, time) for info in infos]
