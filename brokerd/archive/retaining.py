# Tests: tests/archive/test_clean.py
"""Looks at the offsets and expiry of some files: which of their records need not be kept.

The rules are `brokerd.archive.transforms.of_deleted`, `below_start` and `expired`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from brokerd.archive.frames import FILE, bounds_frame, read_files, write_frame
from brokerd.archive.layout import RECORDS
from brokerd.archive.running import Run
from brokerd.archive.transforms import below_start, expired, of_deleted, removable

_COLUMNS = ("topic_id", "partition", "offset")


def write_retention_drops(
    run: Run, trimmed: Sequence[str], expiring: Sequence[str], directory: Path
) -> Mapping[str, int]:
    """Write which records of some files go, as `brokerd.archive.ordered.read_drops` reads it.

    :param trimmed: paths of files with records of deleted topics, or below start offsets.
    :param expiring: paths of files with records that expire.
    :return: when the next record expires of the latter, by the file's name; not in it: none does.
    """
    partitions = None
    if run.only is not None:
        topics = [topic for topic in run.bounds.topics if topic.id in run.only]
        partitions = {
            (topic.id, index) for topic in topics for index in range(len(topic.partitions))
        }
    bounds = bounds_frame(run, partitions)
    rows = read_files(run, RECORDS, trimmed, _COLUMNS, placed=True)
    reasons = {"trimmed": below_start(rows, bounds)}
    if run.only is None:
        reasons = {"deleted": of_deleted(rows, bounds, run.bounds.next_topic_id), **reasons}
    if expiring:
        timed = read_files(run, RECORDS, expiring, (*_COLUMNS, "expires_at"), placed=True)
        reasons["expired"] = expired(timed, bounds, run.bounds.time_us)
    write_frame(run, removable(reasons).repartition(FILE), directory, FILE)
    return _next_expiry(run, expiring) if expiring else {}


def _next_expiry(run: Run, paths: Sequence[str]) -> Mapping[str, int]:
    from pyspark.sql import functions as F

    rows = read_files(run, RECORDS, paths, ["expires_at"], placed=True)
    later = rows.where(F.col("expires_at") > run.bounds.time_us)
    found = later.groupBy(FILE).agg(F.min("expires_at").alias("next")).collect()
    return {row[FILE]: row["next"] for row in found}
