# Tests: tests/archive/test_clean.py
"""Looks at the keys of some partitions: which of their records a later one supersedes.

The rules are `brokerd.archive.derive.transforms.superseded` and `old_tombstones`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from brokerd.archive.cluster.file_check import Checked
from brokerd.archive.cluster.frames import (
    FILE,
    ROW,
    StagedFile,
    bounds_frame,
    read_files,
    read_staged,
    stage_frame,
)
from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.derive.transforms import PARTITION, old_tombstones, removable, superseded
from brokerd.archive.run import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Partition = tuple[int, int]
"""(topic id, partition)"""

_COLUMNS = ("topic_id", "partition", "offset", "key", "append_time")


class Tombstones(NamedTuple):
    """Tombstones that stay in a partition for now."""

    young_us: int = 0
    """When the oldest of those was appended that are too young to go; 0: there is none."""
    wait: bool = False
    """Whether old ones wait for older records of their keys to go."""


class Compacted(NamedTuple):
    """What was found out of some partitions."""

    drops: list[StagedFile]
    """Which of their records go, by the file's name:
    `brokerd.archive.maintain.merge_sort.read_drops`."""
    tombstones: Mapping[Partition, Tombstones] = {}
    """Nothing of partitions without any."""


def write_compaction_drops(
    run: Run, files: Sequence[Checked], partitions: Collection[Partition], directory: str
) -> Compacted:
    """Write which records of some partitions go.

    :param files: all that hold records of the partitions.
    """
    keyed = [file for file in files if file.keyed]
    if not keyed:
        return Compacted([])
    bounds = bounds_frame(run, partitions)
    rows = _rows(run, keyed).join(_broadcast(bounds), [*PARTITION], "left_semi")
    reasons = {"superseded": superseded(rows, bounds)}
    has_tombstones = any(file.tombstones for file in keyed)
    now_us, old_seconds = run.bounds.time_us, run.settings.tombstone_seconds
    if has_tombstones and run.bounds.time_settled:
        reasons["tombstone"] = old_tombstones(rows, bounds, now_us, old_seconds)
    drops = stage_frame(run, removable(reasons).repartition(FILE), directory, FILE)
    if not has_tombstones:
        return Compacted(drops)
    paths = [one.path for one in drops]
    gone = read_staged(run, f"{ROW} long, {FILE} string", directory, paths)
    return Compacted(drops, _tombstones(run, rows, bounds, gone))


def _broadcast(bounds: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return F.broadcast(bounds)


def _rows(run: Run, files: Sequence[Checked]) -> DataFrame:
    """What rules look at. Values are read only where some are empty."""
    from pyspark.sql import functions as F

    without = [file.path for file in files if not file.tombstones]
    others = [file.path for file in files if file.tombstones]
    plain = read_files(run, RECORDS, without, _COLUMNS, placed=True)
    valued = read_files(run, RECORDS, others, (*_COLUMNS, "value"), placed=True)
    is_tombstone = F.col("key").isNotNull() & (F.length("value") == 0)
    return plain.withColumn("tombstone", F.lit(False)).unionByName(
        valued.withColumn("tombstone", is_tombstone).drop("value")
    )


def _tombstones(
    run: Run, rows: DataFrame, bounds: DataFrame, gone: DataFrame
) -> Mapping[Partition, Tombstones]:
    from pyspark.sql import functions as F

    old_us = run.bounds.time_us - run.settings.tombstone_seconds * 1_000_000
    if not run.bounds.time_settled:
        old_us = -1  # nobody knows which are old
    stays = rows.where("tombstone").join(gone, [FILE, ROW], "left_anti")
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
