# Tests: tests/archive/test_clean.py
"""Looks at the offsets and expiry of some files: which of their records need not be kept.

The rules are `brokerd.archive.derive.transforms.of_deleted`, `below_start` and `expired`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from brokerd.archive.cluster.frames import FILE, StagedFile, bounds_frame, read_files, stage_frame
from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.derive.transforms import below_start, expired, of_deleted, removable
from brokerd.archive.run import Run

_COLUMNS = ("topic_id", "partition", "offset")


class Retained(NamedTuple):
    """What was found out of some files."""

    drops: list[StagedFile]
    """Which of their records go, by the file's name:
    `brokerd.archive.maintain.merge_sort.read_drops`."""
    expiry: Mapping[str, int] = {}
    """When the next record expires, by the file's name; not in it: none does."""


def write_retention_drops(
    run: Run, trimmed: Sequence[str], expiring: Sequence[str], directory: str
) -> Retained:
    """Write which records of some files go.

    :param trimmed: paths of files with records of deleted topics, or below start offsets.
    :param expiring: paths of files with records that expire.
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
    drops = stage_frame(run, removable(reasons).repartition(FILE), directory, FILE)
    return Retained(drops, _next_expiry(run, expiring) if expiring else {})


def _next_expiry(run: Run, paths: Sequence[str]) -> Mapping[str, int]:
    from pyspark.sql import functions as F

    rows = read_files(run, RECORDS, paths, ["expires_at"], placed=True)
    later = rows.where(F.col("expires_at") > run.bounds.time_us)
    found = later.groupBy(FILE).agg(F.min("expires_at").alias("next")).collect()
    return {row[FILE]: row["next"] for row in found}
