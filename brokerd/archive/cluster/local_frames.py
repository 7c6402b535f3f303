# Tests: tests/archive/test_local_frames.py, tests/archive/test_deliveries.py
"""Data frames over an archive in a directory. Spark reads and writes the Parquet files itself.

Spark writes into the directory ``staging`` beside the tables. The driver renames each complete file
into its table, so a table gets no other files of Spark. An abandoned task attempt may write for a
moment after the job has ended. Its files are never read.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from brokerd.archive.cluster.bucket_frames import FILE, ROW, table_ddl
from brokerd.archive.cluster.scan_options import SCAN_OPTIONS
from brokerd.archive.contract.layout import Layout
from brokerd.archive.parquet.column_facts import ColumnFacts
from brokerd.archive.parquet.plain_file import PlainFileInfo, StagedFile
from brokerd.archive.storage.local import sync_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_PATTERNS = {"__globPaths__": "false"}
"""Spark's internal option: take paths literally, without patterns."""
_WRITE_OPTIONS = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "maxRecordsPerFile": "0",
}
"""Makes the output of a task attempt count whole or not at all (Hadoop's mapred-default.xml), and
be one file for each value of the column that divides the rows."""
_UNCOMMITTED = "_temporary"
"""The directory of task attempts: Hadoop's FileOutputCommitter, ``PENDING_DIR_NAME``."""


class LocalFrames:
    """The `brokerd.archive.cluster.frames.FrameStore` of a directory."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark = spark
        self._root = root

    def read_table(
        self, layout: Layout, names: Sequence[str], paths: Sequence[str], row_ids: bool
    ) -> DataFrame:
        from pyspark.sql import functions as F

        ids = [F.col("_metadata.file_name").alias(FILE), F.col("_metadata.row_index").alias(ROW)]
        full = [f"{layout.name}/{path}" for path in paths]
        frame = self._read(table_ddl(layout, names), layout.name, full)
        return frame.select(*names, *(ids if row_ids else ()))

    def read_staged(self, schema: str, directory: str, paths: Sequence[str]) -> DataFrame:
        return self._read(schema, directory, paths)

    def _read(self, schema: str, base: str, paths: Sequence[str]) -> DataFrame:
        """Return the rows of files. Directory names below ``base`` become columns."""
        reader = self._spark.read.schema(schema).options(**SCAN_OPTIONS, **_NO_PATTERNS)
        reader = reader.option("basePath", f"file://{self._root / base}")
        return reader.parquet(*(f"file://{self._root / path}" for path in paths))

    def stage(self, frame: DataFrame, directory: str, partition_by: str) -> list[StagedFile]:
        staged = []
        for file in self._write(frame, directory, partition_by):
            path = file.relative_to(self._root).as_posix()
            value = file.parent.name.removeprefix(f"{partition_by}=") if partition_by else ""
            staged.append(StagedFile(path, pq.read_metadata(file).num_rows, value))
        return staged

    def add(
        self, frame: DataFrame, staging: str, layout: Layout, prefix: str, partition_by: str
    ) -> list[PlainFileInfo]:
        files = self._write(frame, f"{staging}/{layout.name}", partition_by)
        table = self._root / layout.name
        added = []
        for file in files:
            if not pq.read_metadata(file).num_rows:
                continue
            name = f"{prefix}-{secrets.token_hex(8)}.parquet"
            added.append(_info(file, name, layout))
            with open(file, "rb") as data:
                os.fsync(data.fileno())
            os.rename(file, table / name)
        if files:
            sync_directory(table)
        return added

    def _write(self, frame: DataFrame, directory: str, partition_by: str) -> list[Path]:
        """Write a frame into a new directory; return the files, which lack ``partition_by``."""
        self._spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        columns = (partition_by,) if partition_by else ()
        writer = frame.write.partitionBy(*columns).options(compression="zstd", **_WRITE_OPTIONS)
        full = self._root / directory
        writer.parquet(f"file://{full}")
        return [
            path
            for path in sorted(full.rglob("part-*.parquet"))
            if _UNCOMMITTED not in path.relative_to(full).parts
        ]


def _info(file: Path, name: str, layout: Layout) -> PlainFileInfo:
    """Return size and statistics of a file that Spark wrote."""
    parquet = pq.ParquetFile(file)
    nullable = [column.name for column in layout.file_columns() if column.nullable]
    facts = ColumnFacts((*layout.skipping, *nullable), layout.texts)
    for group in range(parquet.num_row_groups):
        facts.update(parquet.read_row_group(group, facts.nulls))
    nulls = {column.name: facts.nulls.get(column.name, 0) for column in layout.file_columns()}
    minimum, maximum = _min_max(parquet.read(list(layout.statistics)))
    size, rows = file.stat().st_size, parquet.metadata.num_rows
    return PlainFileInfo(name, size, rows, minimum, maximum, facts.texts, nulls)


def _min_max(rows: pa.Table) -> tuple[dict[str, int], dict[str, int]]:
    """Return the smallest and the largest value of each column."""
    minimum, maximum = dict[str, int](), dict[str, int]()
    for name in rows.column_names:
        both = pc.min_max(rows[name].cast(pa.int64()))
        minimum[name], maximum[name] = both["min"].as_py(), both["max"].as_py()
    return minimum, maximum
