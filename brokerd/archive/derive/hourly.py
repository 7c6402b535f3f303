# Tests: tests/archive/test_deliveries.py
"""Maintains the table ``hourly``: docs/archive-tables.rst.

A run makes one commit, which raises the table's own transaction, so each record counts once. The
counts of records come from footers of files. Rows are read only if a row group has more than one
hour or topic.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from brokerd.archive.cluster.file_check import FileTask, file_tasks
from brokerd.archive.contract.layout import DELIVERIES, HOURLY, RECORDS, ROLLUP_APP
from brokerd.archive.delta.actions import AddFile
from brokerd.archive.delta.table import Table
from brokerd.archive.derive.deliveries import DELIVERIES_APP, files_since
from brokerd.archive.derive.transforms import HOUR_US, hour_of, hourly
from brokerd.archive.parquet.reader import ArchiveFile, open_file
from brokerd.archive.parquet.row_groups import content_lengths
from brokerd.archive.run import Run, StepReport, count_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOURLY_APP = "brokerd-hourly"
DAY_US = 24 * HOUR_US

_COUNTS = "hour_us long, topic_id long, topic string, records long, bytes long"
_COLUMNS = [column.name for column in HOURLY.columns]
_OUTCOME = ("topic", "topic_id", "group_name", "outcome", "failures", "outcome_time", "latency_us")
_RECORD = ("topic", "topic_id", "append_time", "lsn", "key", "value", "metadata")

Integers = npt.NDArray[np.int64]


class Counts(NamedTuple):
    """Numbers of records, and bytes of their keys, values and metadata."""

    numbers: dict[tuple[int, int], tuple[int, int]]
    """(records, bytes) by (start of the hour, topic id)."""
    topics: dict[int, str]
    """Topic names by id."""

    def add(self, key: tuple[int, int], records: int, size: int) -> None:
        """Add records and bytes to the counts of an hour and topic."""
        before = self.numbers.get(key, (0, 0))
        self.numbers[key] = (before[0] + records, before[1] + size)


def derive_hourly(run: Run) -> StepReport:
    """Count the records and outcomes since the last run, and return the report.

    Raises JobFailed, ArchiveUnavailable, ForeignArchive, NewerFormat, TableConflict.
    """
    report = StepReport("hourly")
    records, outcomes, table = map(run.tables.newest, (RECORDS, DELIVERIES, HOURLY))
    since = table.transaction(HOURLY_APP)
    end = min(records.transaction(ROLLUP_APP), outcomes.transaction(DELIVERIES_APP))
    if end <= since:
        return report
    run.failpoint("before hourly")
    counts = _count(run, records, since, end)
    hours = _hours_of(run, files_since(outcomes.files, since), since, end)
    days = {hour // DAY_US * DAY_US for hour in (*hours, *(hour for hour, _ in counts.numbers))}
    replaced = _files_in(table.files, days, DAY_US)
    added: list[AddFile] = []
    if days:
        with run.frames.staging() as directory, run.spark.job_group("hourly"):
            in_hours = _files_in(outcomes.files, hours, HOUR_US)
            frame = _new_rows(run, counts, hours, in_hours, replaced)
            by_day = frame.withColumn("day", _day()).repartition("day")
            added = run.frames.add(by_day, directory, HOURLY, f"h-{end}", "hour", "day")
    run.failpoint("before hourly commit")
    transactions = {HOURLY_APP: end}
    if not table.commit(added, replaced, transactions, now_ms=run.now_ms(), operation="DERIVE"):
        return report  # another job was faster; vacuum deletes the files
    run.failpoint("after hourly commit")
    total = sum(count for count, _ in counts.numbers.values())
    report.numbers = {"records": total, "days": len(days)}
    report.lines = [f"counted {count_text(total, 'record')} in the table hourly"] if total else []
    return report


def _files_in(files: pa.Table, starts: Collection[int], length_us: int) -> list[str]:
    """Return the files that may have rows of some hours or days.

    :param starts: the starts of the hours or days.
    """
    rows = files.select(["path", "first_time_us", "last_time_us"]).to_pylist()
    return [
        row["path"]
        for row in rows
        if any(row["first_time_us"] - length_us < at <= row["last_time_us"] for at in starts)
    ]


def _hours_of(run: Run, files: Collection[str], since: int, end: int) -> list[int]:
    """Return the starts, in order, of the hours that have outcomes between two LSNs."""
    from pyspark.sql import functions as F

    if not files:
        return []
    with run.spark.job_group("hourly: find hours"):
        rows = run.frames.read(DELIVERIES, list(files), ["outcome_time", "lsn"])
        new = rows.where((F.col("lsn") >= since) & (F.col("lsn") < end))
        hour = F.unix_micros(hour_of("outcome_time")).alias("hour")
        return sorted(row.hour for row in new.select(hour).distinct().collect())


def _new_rows(
    run: Run, counts: Counts, hours: list[int], outcomes: list[str], replaced: list[str]
) -> DataFrame:
    """Return the rows that replace the rows of the files ``replaced``.

    :param hours: hours whose outcomes are counted again.
    :param outcomes: files with the outcomes of these hours.
    """
    from pyspark.sql import functions as F

    spark = run.spark.session()
    rows = [
        (hour, topic_id, counts.topics[topic_id], *numbers)
        for (hour, topic_id), numbers in counts.numbers.items()
    ]
    new = spark.createDataFrame(rows, _COUNTS).withColumn("hour", F.timestamp_micros("hour_us"))
    changed = spark.createDataFrame([(hour,) for hour in hours], "hour_us long")
    changed = F.broadcast(changed.select(F.timestamp_micros("hour_us").alias("hour")))
    before = run.frames.read(HOURLY, replaced, _COLUMNS)
    columns = ["hour", "topic", "topic_id", "records", "bytes"]
    of_records = new.select(*columns).union(
        before.where(F.col("group_name") == "").select(*columns)
    )
    found = run.frames.read(DELIVERIES, outcomes, _OUTCOME)
    found = found.withColumn("hour", hour_of("outcome_time")).join(changed, "hour", "left_semi")
    kept = before.where(F.col("group_name") != "").join(changed, "hour", "left_anti")
    return hourly(of_records, found).select(*_COLUMNS).union(kept.select(*_COLUMNS))


def _day() -> Column:
    """Return the start of a row's day. Each day has its own file."""
    from pyspark.sql import functions as F

    return F.unix_micros("hour") - F.pmod(F.unix_micros("hour"), F.lit(DAY_US))


# -- Counting records ----------------------------------------------------------------------------


class _CountTask(NamedTuple):
    """Counts the records of some files between two LSNs."""

    files: FileTask
    first_lsn: int
    end_lsn: int


def _count(run: Run, records: Table, since: int, end: int) -> Counts:
    new = files_since(records.files, since)
    tasks = [_CountTask(one, since, end) for one in file_tasks(records.path, new)]
    counts = Counts({}, {})
    for part in run.spark.map("hourly: count records", _count_files, tasks):
        counts.topics.update(part.topics)
        for key, (count, size) in part.numbers.items():
            counts.add(key, count, size)
    return counts


def _count_files(task: _CountTask) -> Counts:
    counts = Counts({}, {})
    for path in task.files.paths:
        file = open_file(task.files.table, path)
        lsns = file.footer.minimum.get("lsn", 0), file.footer.maximum.get("lsn", -1)
        is_whole = task.first_lsn <= lsns[0] and lsns[1] < task.end_lsn
        for group in range(len(file.groups)):
            if not (is_whole and _count_group(file, group, counts)):
                _count_rows(file, group, task, counts)
    return counts


def _count_group(file: ArchiveFile, group: int, counts: Counts) -> bool:
    """Count a row group from the footer. Return False if the rows have to be read."""
    facts = file.groups[group]
    topic_id = int(facts["first"]["topic_id"])
    hour = int(facts["time_min"]) // HOUR_US
    one_hour = hour == int(facts["time_max"]) // HOUR_US
    one_topic = topic_id in counts.topics and topic_id == int(facts["last"]["topic_id"])
    if one_hour and one_topic:
        counts.add((hour * HOUR_US, topic_id), int(facts["rows"]), int(facts["content"]))
    return one_hour and one_topic


def _count_rows(file: ArchiveFile, group: int, task: _CountTask, counts: Counts) -> None:
    """Count the rows of a row group, and add the names of their topics."""
    rows = file.read_table([group], _RECORD).combine_chunks()
    topic_ids, lsns = (rows[name].chunk(0).to_numpy() for name in ("topic_id", "lsn"))
    times = rows["append_time"].chunk(0).view(pa.int64()).to_numpy()
    sizes = content_lengths(rows)
    selected = (lsns >= task.first_lsn) & (lsns < task.end_lsn)
    hours = times - times % HOUR_US
    pairs = np.stack([hours[selected], topic_ids[selected]])
    keys, inverse = np.unique(pairs, axis=1, return_inverse=True)
    records = np.bincount(inverse, minlength=keys.shape[1])
    total = np.zeros(keys.shape[1], np.int64)
    np.add.at(total, inverse, sizes[selected])
    for key, count, size in zip(keys.T.tolist(), records.tolist(), total.tolist(), strict=True):
        counts.add((key[0], key[1]), count, size)
    ids, first = np.unique(topic_ids, return_index=True)
    for topic_id, row in zip(ids.tolist(), first.tolist(), strict=True):
        if topic_id not in counts.topics:
            counts.topics[topic_id] = rows["topic"][row].as_py()
