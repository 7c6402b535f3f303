# Tests: tests/archive/test_clean.py
"""Finds the records of some partitions that compaction removes.

The rules are `brokerd.archive.derive.transforms.superseded` and `old_tombstones`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from brokerd.archive.cluster.file_check import FileCheck
from brokerd.archive.cluster.frames import FILE, ROW
from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.derive.transforms import PARTITION, old_tombstones, removable, superseded
from brokerd.archive.maintain.selection import Partition
from brokerd.archive.parquet.plain_file import StagedFile
from brokerd.archive.run import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = ("topic_id", "partition", "offset", "key", "append_time")


class Tombstones(NamedTuple):
    """The tombstones that stay in a partition for now."""

    young_us: int = 0
    """The append time of the oldest tombstone that is too young to be removed; 0 if none is."""
    wait: bool = False
    """Whether old tombstones wait for the removal of older records of their keys."""


class CompactionDrops(NamedTuple):
    """The records of some partitions that compaction removes."""

    drops: list[StagedFile]
    """Dropped rows by file name: `brokerd.archive.maintain.merge_sort.read_drops`."""
    tombstones: Mapping[Partition, Tombstones] = {}
    """The tombstones of each partition that has any."""


def write_compaction_drops(
    run: Run, files: Sequence[FileCheck], partitions: Collection[Partition], directory: str
) -> CompactionDrops:
    """Stage the records of some partitions that compaction removes, and return the files.

    :param files: all files with records of the partitions.
    """
    from pyspark.sql import functions as F

    keyed = [file for file in files if file.keyed]
    if not keyed:
        return CompactionDrops([])
    bounds = run.frames.bounds(run.bounds, partitions)
    rows = _rows(run, keyed).join(F.broadcast(bounds), [*PARTITION], "left_semi")
    reasons = {"superseded": superseded(rows, bounds)}
    has_tombstones = any(file.tombstones for file in keyed)
    now_us, old_seconds = run.bounds.time_us, run.settings.tombstone_seconds
    if has_tombstones and run.bounds.time_settled:
        reasons["tombstone"] = old_tombstones(rows, bounds, now_us, old_seconds)
    drops = run.frames.stage(removable(reasons).repartition(FILE), directory, FILE)
    if not has_tombstones:
        return CompactionDrops(drops)
    paths = [one.path for one in drops]
    dropped = run.frames.read_staged(f"{ROW} long, {FILE} string", directory, paths)
    return CompactionDrops(drops, _tombstones(run, rows, bounds, dropped))


def _rows(run: Run, files: Sequence[FileCheck]) -> DataFrame:
    """Return the columns that the rules need. Read values only from files with tombstones."""
    from pyspark.sql import functions as F

    without = [file.path for file in files if not file.tombstones]
    others = [file.path for file in files if file.tombstones]
    plain = run.frames.read(RECORDS, without, _COLUMNS, row_ids=True)
    valued = run.frames.read(RECORDS, others, (*_COLUMNS, "value"), row_ids=True)
    is_tombstone = F.col("key").isNotNull() & (F.length("value") == 0)
    return plain.withColumn("tombstone", F.lit(False)).unionByName(
        valued.withColumn("tombstone", is_tombstone).drop("value")
    )


def _tombstones(
    run: Run, rows: DataFrame, bounds: DataFrame, dropped: DataFrame
) -> Mapping[Partition, Tombstones]:
    from pyspark.sql import functions as F

    old_us = run.bounds.time_us - run.settings.tombstone_seconds * 1_000_000
    if not run.bounds.time_settled:
        old_us = -1  # the age of tombstones is unknown
    stays = rows.where("tombstone").join(dropped, [FILE, ROW], "left_anti")
    time = F.unix_micros("append_time")
    found = (
        stays.join(F.broadcast(bounds), [*PARTITION])
        .groupBy(*PARTITION)
        .agg(
            F.min(F.when(time > old_us, time)).alias("young_us"),
            F.max((time <= old_us) & (F.col("offset") < F.col("compact_below"))).alias("wait"),
        )
        .collect()
    )
    return {
        (row.topic_id, row.partition): Tombstones(row.young_us or 0, bool(row.wait))
        for row in found
    }
