# Tests: tests/archive/test_deliveries.py
"""Keeps the table ``hourly`` up to date: docs/archive-tables.rst.

It is one commit that raises the table's own transaction, so nothing is counted twice. Records are
counted by what the footers of their files say, and read only where a row group is of more than one
hour or topic.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from brokerd.archive.cluster.file_check import Files, parted
from brokerd.archive.cluster.frames import add_frame, read_files, staging
from brokerd.archive.contract.layout import DELIVERIES, HOURLY, RECORDS, ROLLUP_APP
from brokerd.archive.delta.actions import AddFile
from brokerd.archive.delta.table import Table
from brokerd.archive.derive.deliveries import DELIVERIES_APP, files_since
from brokerd.archive.derive.transforms import HOUR_US, hour_of, hourly
from brokerd.archive.parquet.reader import ArchiveFile, open_file
from brokerd.archive.parquet.row_groups import content_lengths
from brokerd.archive.run import Run, StepReport, counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOURLY_APP = "brokerd-hourly"
DAY_US = 24 * HOUR_US

_COUNTS = "hour_us long, topic_id long, topic string, records long, bytes long"
_ROW = [column.name for column in HOURLY.columns]
_OUTCOME = ("topic", "topic_id", "group_name", "outcome", "failures", "outcome_time", "latency_us")

_SIZED = ("topic", "topic_id", "append_time", "lsn", "key", "value", "metadata")

Integers = npt.NDArray[np.int64]


class Counts(NamedTuple):
    """Records, and bytes of their keys, values and metadata."""

    numbers: dict[tuple[int, int], tuple[int, int]]
    """By the beginning of the hour and the topic's id."""
    topics: dict[int, str]
    """Names by id."""


def derive_hourly(run: Run) -> StepReport:
    """Count the records and outcomes that came since the last run.

    Raises JobFailed, ArchiveUnavailable, ForeignArchive, NewerFormat, TableConflict.
    """
    report = StepReport("hourly")
    records = Table(run.root, RECORDS, run.bounds.log_id)
    outcomes = Table(run.root, DELIVERIES, run.bounds.log_id)
    table = Table(run.root, HOURLY, run.bounds.log_id)
    since = table.transaction(HOURLY_APP)
    end = min(records.transaction(ROLLUP_APP), outcomes.transaction(DELIVERIES_APP))
    if end <= since:
        return report
    run.at("before hourly")
    counts = _count(run, records.files, since, end)
    hours = _hours_of(run, files_since(outcomes.files, since), since, end)
    days = {hour // DAY_US * DAY_US for hour in (*hours, *(at for at, _ in counts.numbers))}
    replaced = _within(table.files, days, DAY_US)
    added: list[AddFile] = []
    if days:
        with staging(run) as directory, run.described("hourly"):
            frame = _merged(run, counts, hours, _within(outcomes.files, hours, HOUR_US), replaced)
            by_day = frame.withColumn("day", _day()).repartition("day")
            added = add_frame(run, by_day, directory, HOURLY, f"h-{end}", "hour", "day")
    run.at("before hourly commit")
    transactions = {HOURLY_APP: end}
    if not table.commit(added, replaced, transactions, now_ms=run.now_ms(), operation="DERIVE"):
        return report  # another job was faster; vacuum deletes the files
    run.at("after hourly commit")
    total = sum(found for found, _ in counts.numbers.values())
    report.numbers = {"records": total, "days": len(days)}
    report.lines = [f"counted {counted(total, 'record')} in the table hourly"] if total else []
    return report


def _within(files: pa.Table, starts: Collection[int], length_us: int) -> list[str]:
    """Files that may have rows of some hours, or days, by their beginnings."""
    rows = files.select(["path", "first_time_us", "last_time_us"]).to_pylist()
    return [
        row["path"]
        for row in rows
        if any(row["first_time_us"] - length_us < at <= row["last_time_us"] for at in starts)
    ]


def _hours_of(run: Run, files: Collection[str], since: int, end: int) -> list[int]:
    """The beginnings of the hours in which outcomes came whose LSNs are of a range."""
    from pyspark.sql import functions as F

    if not files:
        return []
    with run.described("hourly: find hours"):
        rows = read_files(run, DELIVERIES, list(files), ["outcome_time", "lsn"])
        new = rows.where((F.col("lsn") >= since) & (F.col("lsn") < end))
        hour = F.unix_micros(hour_of("outcome_time")).alias("hour")
        return sorted(row.hour for row in new.select(hour).distinct().collect())


def _merged(
    run: Run, counts: Counts, hours: list[int], outcomes: list[str], replaced: list[str]
) -> DataFrame:
    """All rows that take the place of those of some files.

    :param hours: whose outcomes are counted anew, from these files of outcomes.
    """
    from pyspark.sql import functions as F

    spark = run.spark()
    rows = [
        (hour, topic_id, counts.topics[topic_id], *found)
        for (hour, topic_id), found in counts.numbers.items()
    ]
    new = spark.createDataFrame(rows, _COUNTS).withColumn("hour", F.timestamp_micros("hour_us"))
    anew = spark.createDataFrame([(hour,) for hour in hours], "hour_us long")
    anew = F.broadcast(anew.select(F.timestamp_micros("hour_us").alias("hour")))
    before = read_files(run, HOURLY, replaced, _ROW)
    counted = ["hour", "topic", "topic_id", "records", "bytes"]
    of_records = new.select(*counted).union(
        before.where(F.col("group_name") == "").select(*counted)
    )
    found = read_files(run, DELIVERIES, outcomes, _OUTCOME)
    found = found.withColumn("hour", hour_of("outcome_time")).join(anew, "hour", "left_semi")
    kept = before.where(F.col("group_name") != "").join(anew, "hour", "left_anti")
    return hourly(of_records, found).select(*_ROW).union(kept.select(*_ROW))


def _day() -> Column:
    """The beginning of a row's day: each has a file of its own."""
    from pyspark.sql import functions as F

    return F.unix_micros("hour") - F.pmod(F.unix_micros("hour"), F.lit(DAY_US))


# -- Counting records ----------------------------------------------------------------------------


class _Task(NamedTuple):
    """Counts the records of some files from one LSN to another, exclusive."""

    files: Files
    first_lsn: int
    end_lsn: int


def _count(run: Run, files: pa.Table, since: int, end: int) -> Counts:
    new = files_since(files, since)
    tasks = [_Task(one, since, end) for one in parted(run, RECORDS, new)]
    counts = Counts({}, {})
    for found in run.map("hourly: count records", _count_files, tasks):
        counts.topics.update(found.topics)
        for place, (records, size) in found.numbers.items():
            _add(counts, place, records, size)
    return counts


def _add(counts: Counts, place: tuple[int, int], records: int, size: int) -> None:
    before = counts.numbers.get(place, (0, 0))
    counts.numbers[place] = (before[0] + records, before[1] + size)


def _count_files(task: _Task) -> Counts:
    counts = Counts({}, {})
    for path in task.files.paths:
        file = open_file(task.files.table, path)
        lsns = file.footer.minimum.get("lsn", 0), file.footer.maximum.get("lsn", -1)
        is_whole = task.first_lsn <= lsns[0] and lsns[1] < task.end_lsn
        for at in range(len(file.groups)):
            if not (is_whole and _count_group(file, at, counts)):
                _count_rows(file, at, task, counts)
    return counts


def _count_group(file: ArchiveFile, at: int, counts: Counts) -> bool:
    """Count a row group by what the footer says of it; False if that does not tell enough."""
    group = file.groups[at]
    topic_id = int(group["first"]["topic_id"])
    hour = int(group["time_min"]) // HOUR_US
    is_told = hour == int(group["time_max"]) // HOUR_US and topic_id in counts.topics
    if not is_told or topic_id != int(group["last"]["topic_id"]):
        return False
    _add(counts, (hour * HOUR_US, topic_id), int(group["rows"]), int(group["content"]))
    return True


def _count_rows(file: ArchiveFile, at: int, task: _Task, counts: Counts) -> None:
    """Count the rows of a row group one by one, and learn the names of topics."""
    rows = file.read_table([at], _SIZED).combine_chunks()
    topic_ids, lsns = (rows[name].chunk(0).to_numpy() for name in ("topic_id", "lsn"))
    times = rows["append_time"].chunk(0).view(pa.int64()).to_numpy()
    sizes = content_lengths(rows)
    wanted = (lsns >= task.first_lsn) & (lsns < task.end_lsn)
    hours = times - times % HOUR_US
    chosen = np.stack([hours[wanted], topic_ids[wanted]])
    places, inverse = np.unique(chosen, axis=1, return_inverse=True)
    records = np.bincount(inverse, minlength=places.shape[1])
    total = np.zeros(places.shape[1], np.int64)
    np.add.at(total, inverse, sizes[wanted])
    for place, found, size in zip(places.T.tolist(), records.tolist(), total.tolist(), strict=True):
        _add(counts, (place[0], place[1]), found, size)
    known, first = np.unique(topic_ids, return_index=True)
    for topic_id, row in zip(known.tolist(), first.tolist(), strict=True):
        if topic_id not in counts.topics:
            counts.topics[topic_id] = rows["topic"][row].as_py()
