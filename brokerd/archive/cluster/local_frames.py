# Tests: tests/archive/test_deliveries.py
"""Data frames and files of an archive that is a directory: Spark's own Parquet reads and writes.

What Spark writes is made in the directory ``staging`` beside the tables and renamed into a table
when it is complete, so nothing of Spark's own is ever left in a table. An attempt of a task that
was given up, because another one was quicker or its executor was taken for dead, may write for a
moment after the job is over: what it writes is found by nobody.
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

from brokerd.archive.cluster.bucket_frames import FILE, ROW, ddl
from brokerd.archive.contract.layout import Layout
from brokerd.archive.parquet.plain_file import PlainFileInfo, StagedFile
from brokerd.archive.storage.local import sync_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_PATTERNS = {"__globPaths__": "false"}
"""Spark's own name for it: paths are what they are, whatever characters are in them."""
_COMMIT_ONCE = {"mapreduce.fileoutputcommitter.algorithm.version": "1"}
"""Hadoop's mapred-default.xml: what an attempt of a task wrote counts as a whole, or not at all."""
_UNCOMMITTED = "_temporary"
"""Where attempts write: Hadoop's FileOutputCommitter, ``PENDING_DIR_NAME``."""


class OnDisk:
    """`brokerd.archive.cluster.frames.FrameFiles`."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark = spark
        self._root = root

    def read_table(
        self, layout: Layout, names: Sequence[str], paths: Sequence[str], placed: bool
    ) -> DataFrame:
        from pyspark.sql import functions as F

        place = [F.col("_metadata.file_name").alias(FILE), F.col("_metadata.row_index").alias(ROW)]
        full = [f"{layout.name}/{path}" for path in paths]
        frame = self._read(ddl(layout, names), layout.name, full)
        return frame.select(*names, *(place if placed else ()))

    def read_staged(self, schema: str, directory: str, paths: Sequence[str]) -> DataFrame:
        return self._read(schema, directory, paths)

    def _read(self, schema: str, base: str, paths: Sequence[str]) -> DataFrame:
        """Below ``base``, names of directories are columns."""
        reader = self._spark.read.schema(schema).options(**_NO_PATTERNS)
        reader = reader.option("parquet.page.verify-checksum.enabled", "true")
        reader = reader.option("basePath", f"file://{self._root / base}")
        return reader.parquet(*(f"file://{self._root / path}" for path in paths))

    def stage(self, frame: DataFrame, directory: str, by: str) -> list[StagedFile]:
        found = []
        for file in self._write(frame, directory, by):
            path = file.relative_to(self._root).as_posix()
            value = file.parent.name.removeprefix(f"{by}=") if by else ""
            found.append(StagedFile(path, pq.read_metadata(file).num_rows, value))
        return found

    def add(
        self, frame: DataFrame, staging: str, layout: Layout, prefix: str, by: str
    ) -> list[PlainFileInfo]:
        files = self._write(frame, f"{staging}/{layout.name}", by)
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

    def _write(self, frame: DataFrame, directory: str, by: str) -> list[Path]:
        """Write into a directory that is not there yet; files have no column ``by``."""
        self._spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        columns = (by,) if by else ()
        writer = frame.write.partitionBy(*columns).options(compression="zstd", **_COMMIT_ONCE)
        full = self._root / directory
        writer.parquet(f"file://{full}")
        return [
            path
            for path in sorted(full.rglob("part-*.parquet"))
            if _UNCOMMITTED not in path.relative_to(full).parts
        ]


def _info(file: Path, name: str, layout: Layout) -> PlainFileInfo:
    """What is to be known of a file that Spark wrote."""
    least, most = _edges(pq.read_table(file, columns=list(layout.statistics)))
    return PlainFileInfo(name, file.stat().st_size, pq.read_metadata(file).num_rows, least, most)


def _edges(rows: pa.Table) -> tuple[dict[str, int], dict[str, int]]:
    """The smallest and the largest value of each column."""
    edges: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for name in rows.column_names:
        found = pc.min_max(rows[name].cast(pa.int64()))
        edges[0][name], edges[1][name] = found["min"].as_py(), found["max"].as_py()
    return edges
