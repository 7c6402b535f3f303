# Tests: tests/archive/test_clean.py
"""Finds the records of some files that retention removes.

The rules are `brokerd.archive.derive.transforms.of_deleted`, `below_start` and `expired`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from brokerd.archive.cluster.frames import FILE, ROW
from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.derive.transforms import below_start, expired, of_deleted, removable
from brokerd.archive.parquet.plain_file import StagedFile
from brokerd.archive.run import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = ("topic_id", "partition", "offset")


class RetentionDrops(NamedTuple):
    """The records of some files that retention removes."""

    drops: list[StagedFile]
    """Dropped rows by file name: `brokerd.archive.maintain.merge_sort.read_drops`."""
    expiry: Mapping[str, int] = {}
    """The next expiry time, by file name. Without an entry no record expires.

    The time is past if an expired record at or above ``compact_below`` stays.
    """


def write_retention_drops(
    run: Run, trimmed: Sequence[str], expiring: Sequence[str], directory: str
) -> RetentionDrops:
    """Stage the records of some files that retention removes, and return the files.

    :param trimmed: files with records of deleted topics or below start offsets.
    :param expiring: files with records that expire.
    """
    partitions = None
    if run.only is not None:
        partitions = {
            (topic.id, index) for topic, index, _ in run.bounds.partitions() if topic.id in run.only
        }
    bounds = run.frames.bounds(run.bounds, partitions)
    rows = run.frames.read(RECORDS, trimmed, _COLUMNS, row_ids=True)
    reasons = {"trimmed": below_start(rows, bounds)}
    if run.only is None:
        reasons = {"deleted": of_deleted(rows, bounds, run.bounds.next_topic_id), **reasons}
    if expiring:
        timed = run.frames.read(RECORDS, expiring, (*_COLUMNS, "expires_at"), row_ids=True)
        reasons["expired"] = expired(timed, bounds, run.bounds.time_us)
    drops = run.frames.stage(removable(reasons).repartition(FILE), directory, FILE)
    return RetentionDrops(drops, _next_expiry(timed, reasons["expired"]) if expiring else {})


def _next_expiry(records: DataFrame, removed: DataFrame) -> Mapping[str, int]:
    """Return the earliest expiry time of the remaining records, by file name."""
    from pyspark.sql import functions as F

    stay = records.where("expires_at > 0").join(removed.select(FILE, ROW), [FILE, ROW], "left_anti")
    first = stay.groupBy(FILE).agg(F.min("expires_at").alias("next")).collect()
    return {row[FILE]: row["next"] for row in first}
