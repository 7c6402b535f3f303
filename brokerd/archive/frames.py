# Tests: tests/archive/test_derived.py
"""Files of the archive's tables as data frames of Spark, and data frames as files of a table.

What Spark writes is made in the directory ``staging`` beside the tables and renamed into a table
when it is complete, so nothing of Spark's own is ever left in a table. An attempt of a task that
was given up, because another one was quicker or its executor was taken for dead, may write for a
moment after the job is over: what it writes is found by nobody.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from brokerd.archive.deltalog import Facts
from brokerd.archive.layout import Layout
from brokerd.archive.running import Run
from brokerd.archive.store_local import sync_directory
from brokerd.archive.table import Added
from brokerd.archive.transforms import BOUNDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STAGING = "staging"
FILE = "file"
ROW = "row"
"""Columns that `read_files` adds when asked: the file's name without its directory, and the row's
number in the file."""

_NO_PATTERNS = {"__globPaths__": "false"}
"""Spark's own name for it: paths are what they are, whatever characters are in them."""
_COMMIT_ONCE = {"mapreduce.fileoutputcommitter.algorithm.version": "1"}
"""Hadoop's mapred-default.xml: what an attempt of a task wrote counts as a whole, or not at all."""
_UNCOMMITTED = "_temporary"
"""Where attempts write: Hadoop's FileOutputCommitter, ``PENDING_DIR_NAME``."""


def ddl(layout: Layout, names: Sequence[str] | None = None) -> str:
    """Columns of a table as Spark's schemas have them; all, or those named."""
    columns = {column.name: column.type for column in layout.columns}
    return ", ".join(f"{name} {columns[name]}" for name in names or columns)


def read_files(
    run: Run, layout: Layout, paths: Sequence[str], names: Sequence[str], placed: bool = False
) -> DataFrame:
    """Rows of files of a table, with the named columns.

    :param paths: relative to the table. None at all is an empty frame.
    :param placed: with the columns `FILE` and `ROW`.
    """
    from pyspark.sql import functions as F

    spark = run.spark()
    table = run.directory / layout.name
    place = [F.col("_metadata.file_name").alias(FILE), F.col("_metadata.row_index").alias(ROW)]
    schema = ddl(layout, names)
    if not paths:
        return spark.createDataFrame(
            [], schema + (f", {FILE} string, {ROW} long" if placed else "")
        )
    frame = read_parquet(run, schema, [table / path for path in paths], table)
    return frame.select(*names, *(place if placed else ()))


def bounds_frame(run: Run, partitions: Collection[tuple[int, int]] | None = None) -> DataFrame:
    """The bounds as `brokerd.archive.transforms` takes them.

    :param partitions: (topic id, partition) of those that are wanted; None: all.
    """
    rows = [
        (topic.id, index, partition.start, partition.compact_below, topic.compact)
        for topic in run.bounds.topics
        for index, partition in enumerate(topic.partitions)
        if partitions is None or (topic.id, index) in partitions
    ]
    return run.spark().createDataFrame(rows, BOUNDS)


def read_parquet(
    run: Run, schema: str, paths: Sequence[Path], base: Path | None = None
) -> DataFrame:
    """Parquet files, or directories of them, as a data frame.

    :param base: the directory below which names of directories are columns.
    """
    reader = run.spark().read.schema(schema).options(**_NO_PATTERNS)
    reader = reader.option("parquet.page.verify-checksum.enabled", "true")
    if base is not None:
        reader = reader.option("basePath", f"file://{base}")
    return reader.parquet(*(f"file://{path}" for path in paths))


@contextmanager
def staging(run: Run) -> Iterator[Path]:
    """An empty directory on the disk of the archive. It is removed in the end, or by the next.

    Nobody else ever has one of its name, such as who still writes to an earlier one.
    """
    every = run.directory / STAGING
    shutil.rmtree(every, ignore_errors=True)
    directory = every / secrets.token_hex(8)
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(every, ignore_errors=True)


def write_frame(run: Run, frame: DataFrame, directory: Path, *by: str) -> list[Path]:
    """Write a data frame into a directory that is not there yet; gives the files.

    :param by: columns that the files do not have: each is of rows that agree in them.
    """
    run.spark().conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = frame.write.partitionBy(*by).options(compression="zstd", **_COMMIT_ONCE)
    writer.parquet(f"file://{directory}")
    return [
        path
        for path in sorted(directory.rglob("part-*.parquet"))
        if _UNCOMMITTED not in path.relative_to(directory).parts
    ]


def adopt(
    table: Path, layout: Layout, files: Sequence[Path], prefix: str, time: str
) -> list[Added]:
    """Move files that have rows into a table, durably, under other names, for a commit to add.

    :param prefix: what their names begin with.
    :param time: the column that tells the time of a row.
    """
    added = []
    for file in files:
        if not pq.read_metadata(file).num_rows:
            continue
        name = f"{prefix}-{secrets.token_hex(8)}.parquet"
        added.append(_added(file, name, layout, time))
        with open(file, "rb") as data:
            os.fsync(data.fileno())
        os.rename(file, table / name)
    if files:
        sync_directory(table)
    return added


def _added(file: Path, name: str, layout: Layout, time: str) -> Added:
    """What a commit says of a file that Spark wrote."""
    least, most = _edges(pq.read_table(file, columns=list(layout.statistics)))
    facts = Facts(
        rows=pq.read_metadata(file).num_rows,
        first_time_us=least[time],
        last_time_us=most[time],
        first_lsn=least.get("lsn", -1),
        last_lsn=most.get("lsn", -1),
    )
    return Added(name, file.stat().st_size, facts, least, most)


def _edges(rows: pa.Table) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The smallest and the largest value of each column."""
    edges: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for name in rows.column_names:
        found = pc.min_max(rows[name].cast(pa.int64()))
        edges[0][name], edges[1][name] = found["min"].as_py(), found["max"].as_py()
    return edges
