# Tests: tests/archive/test_transforms.py
"""The archive's rules as functions of data frames: what goes, what came out, what it amounts to.

Each takes and returns data frames and reads nothing else. The rules are docs/archive-tables.rst.

*Records* is any frame with the columns ``topic_id``, ``partition`` and ``offset`` of the table of
records and those that a function names; the rows that it returns are rows of it, with all columns.
*Bounds* has one row for each partition of each topic that is not deleted: ``topic_id``,
``partition``, ``start``, ``compact_below`` (long) and ``compact`` (boolean); it is broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOUR_US = 3_600_000_000
PARTITION = ("topic_id", "partition")
KEY = ("key", *PARTITION)
ATTEMPT = ("offset", *PARTITION, "group_name")
"""What an attempt is about: one record, in one group.

Spark sorts by these, and by the first of them much faster: one with many values."""

OPEN = (
    "topic string, topic_id long, partition int, group_name string, offset long, lsn long, "
    "seq int, grants long, failures long, first_lease_time timestamp, owner string, over_lsn long"
)
"""Columns of open attempts: what is known of a record in a group that has no outcome yet.

``lsn`` and ``seq`` are those of its newest event; no outcome comes from ``over_lsn`` on, if it is
not null. ``grants`` is null while it was never leased."""


ATTEMPTED = f"{OPEN}, outcome string, reason string, outcome_time timestamp"
"""Columns of attempts; ``outcome`` is null while there is none."""


# -- What goes -----------------------------------------------------------------------------------


def of_deleted(records: DataFrame, bounds: DataFrame, next_topic_id: int) -> DataFrame:
    """Records of deleted topics: ids below the next one that are not among those of the bounds."""
    live = F.broadcast(bounds.select("topic_id").distinct())
    old = records.where(F.col("topic_id") < next_topic_id)
    return old.join(live, "topic_id", "left_anti").select(*records.columns)


def below_start(records: DataFrame, bounds: DataFrame) -> DataFrame:
    """Records below the start offset of their partition."""
    return _where(records, bounds, F.col("offset") < F.col("start"))


def expired(records: DataFrame, bounds: DataFrame, now_us: int) -> DataFrame:
    """Records below ``compact_below`` whose ``expires_at`` (a column it needs) is past."""
    is_past = (F.col("expires_at") > 0) & (F.col("expires_at") <= now_us)
    return _where(records, bounds, is_past & (F.col("offset") < F.col("compact_below")))


def superseded(records: DataFrame, bounds: DataFrame) -> DataFrame:
    """Records with a ``key`` of which ``records`` has a later one, if they may be compacted.

    Files may overlap: a second copy of a record, at the same offset, is no later one.
    """
    keyed = records.where(F.col("key").isNotNull())
    newest = F.max("offset").over(Window.partitionBy(*KEY))
    older = keyed.withColumn("newest", newest).where("newest > offset")
    return _compactable(older, bounds).select(*records.columns)


def old_tombstones(
    records: DataFrame, bounds: DataFrame, now_us: int, tombstone_seconds: int
) -> DataFrame:
    """Records that may be compacted, with a key and no value, that are old and alone.

    Alone: ``records`` has none of the ``key`` at another offset, older or later. Old: appended at
    least ``tombstone_seconds`` before ``now_us``. Needs ``key``, ``append_time`` and ``tombstone``,
    which tells whether the record has a key and an empty value.
    """
    is_old = F.unix_micros("append_time") <= now_us - tombstone_seconds * 1_000_000
    found = _compactable(records.where(F.col("tombstone") & is_old), bounds)
    of_key = records.join(found.select(*KEY).distinct(), [*KEY], "left_semi")
    spans = of_key.groupBy(*KEY).agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
    alone = spans.where("first = last")
    return found.join(alone, [*KEY], "left_semi").select(*records.columns)


def _compactable(records: DataFrame, bounds: DataFrame) -> DataFrame:
    return _where(records, bounds, F.col("compact") & (F.col("offset") < F.col("compact_below")))


def _where(records: DataFrame, bounds: DataFrame, condition: Column) -> DataFrame:
    joined = records.join(F.broadcast(bounds), [*PARTITION])
    return joined.where(condition).select(*records.columns)


def removable(reasons: Mapping[str, DataFrame]) -> DataFrame:
    """Rows of several such frames, each with its ``reason``; a row may be there more than once.

    :param reasons: at least one frame, with ``file`` and ``row``, the number of the row in it.
    :return: ``file``, ``row``, ``offset``, ``reason``.
    """
    frames = [
        frame.select("file", "row", "offset", F.lit(reason).alias("reason"))
        for reason, frame in reasons.items()
    ]
    return reduce(lambda one, other: one.union(other), frames)


# -- What came out -------------------------------------------------------------------------------


def attempts(events: DataFrame, open_attempts: DataFrame) -> DataFrame:
    """What became of records in groups: one row from the first lease to the outcome.

    :param events: rows of the table of events, in any order.
    :param open_attempts: what earlier events left without an outcome; columns as `OPEN`.
    :return: columns as `ATTEMPTED`. What has no outcome and was followed by another attempt at the
        record is over, and left out.
    """
    steps = _steps(events).unionByName(open_attempts, allowMissingColumns=True)
    return (
        _numbered(steps.withColumn("at", F.struct("lsn", "seq")))
        .groupBy(*ATTEMPT, "attempt")
        .agg(
            F.max("topic").alias("topic"),
            F.max("at").alias("at"),
            F.max("grants").alias("grants"),
            F.max("failures").alias("failures"),
            F.min("first_lease_time").alias("first_lease_time"),
            F.max(F.when(F.col("grants").isNotNull(), F.struct("at", "owner"))).alias("lease"),
            F.max_by("over_lsn", "at").alias("over_lsn"),
            F.max("outcome").alias("outcome"),
            F.max("reason").alias("reason"),
            F.max("outcome_time").alias("outcome_time"),
            F.max("is_followed").alias("is_followed"),
        )
        .where(F.col("outcome").isNotNull() | ~F.col("is_followed"))
        .select(
            *("topic", *PARTITION, "group_name", "offset", "at.lsn", "at.seq", "grants"),
            *("failures", "first_lease_time", "lease.owner", "over_lsn", "outcome", "reason"),
            "outcome_time",
        )
    )


def _steps(events: DataFrame) -> DataFrame:
    """Events that say something of one record, in the columns of attempts."""
    kind = F.col("kind")
    leased, ends = kind == "LEASED", kind.isin("SETTLED", "DEAD")
    return events.where(leased | ends | (kind == "FAILED")).select(
        *("topic", *ATTEMPT, "lsn", "seq"),
        F.when(leased, F.col("count")).alias("grants"),
        F.when(kind.isin("FAILED", "DEAD"), F.col("count")).alias("failures"),
        F.when(leased, F.col("time")).alias("first_lease_time"),
        F.when(leased, F.col("owner")).alias("owner"),
        F.when(ends, F.lower(kind)).alias("outcome"),
        F.when(kind == "DEAD", F.col("reason")).alias("reason"),
        F.when(ends, F.col("time")).alias("outcome_time"),
    )


def _numbered(steps: DataFrame) -> DataFrame:
    """Number the attempts of each record in the column ``attempt``.

    Another one begins after an outcome, and where grants begin at 1 again.
    """
    order = Window.partitionBy(*ATTEMPT).orderBy("lsn", "seq")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    leased_at = F.max(F.when(F.col("grants").isNotNull(), F.col("at"))).over(before)
    ended_at = F.max(F.when(F.col("outcome").isNotNull(), F.col("at"))).over(before)
    is_leased = leased_at.isNotNull() & (ended_at.isNull() | (leased_at > ended_at))
    again = (F.col("grants") == 1) & is_leased
    after_outcome = F.lag("outcome").over(order).isNotNull()
    begins = F.coalesce(again | after_outcome, F.lit(False))
    return (
        steps.withColumn("begins", begins.cast("int"))
        .withColumn("attempt", F.sum("begins").over(order))
        .withColumn("is_followed", F.coalesce(F.lead("begins").over(order) == 1, F.lit(False)))
    )


def deliveries(attempted: DataFrame) -> DataFrame:
    """Rows of the table of deliveries: what `attempts` gave that has an outcome."""
    latency = F.unix_micros("outcome_time") - F.unix_micros("first_lease_time")
    return attempted.where(F.col("outcome").isNotNull()).select(
        *("topic", *PARTITION, "group_name", "offset", "outcome", "reason"),
        F.coalesce("grants", F.lit(0)).cast("long").alias("grants"),
        F.coalesce("failures", F.lit(0)).cast("long").alias("failures"),
        *("first_lease_time", "outcome_time"),
        latency.alias("latency_us"),
        *("owner", "lsn"),
    )


def still_open(
    attempted: DataFrame, bounds: DataFrame, next_topic_id: int, bounds_lsn: int, lsn: int
) -> DataFrame:
    """What `attempts` gave that may still get an outcome; columns as `OPEN`.

    Records of deleted topics never get one. Those below ``compact_below`` were settled in every
    group by LSN ``bounds_lsn``: once all events below that are known, they are over without one.

    :param lsn: all events below it are known.
    """
    floors = F.broadcast(bounds.select(*PARTITION, "compact_below"))
    is_over = F.col("offset") < F.col("compact_below")
    over_lsn = F.coalesce("over_lsn", F.when(is_over, F.lit(bounds_lsn)))
    is_deleted = F.col("compact_below").isNull() & (F.col("topic_id") < next_topic_id)
    names = [field.split()[0] for field in OPEN.split(", ")]
    return (
        attempted.where(F.col("outcome").isNull())
        .join(floors, [*PARTITION], "left")
        .where(~is_deleted)
        .withColumn("over_lsn", over_lsn.cast("long"))
        .where(F.col("over_lsn").isNull() | (F.col("over_lsn") > lsn))
        .select(*names)
    )


# -- What it amounts to --------------------------------------------------------------------------


def hour_of(time: str) -> Column:
    """The beginning of the hour of a column of timestamps."""
    since = F.unix_micros(time)
    return F.timestamp_micros(since - F.pmod(since, F.lit(HOUR_US)))


def hourly(records: DataFrame, outcomes: DataFrame) -> DataFrame:
    """Rows of the table of counts by the hour.

    :param records: any number of counts that add up: ``hour``, ``topic``, ``topic_id``,
        ``records``, ``bytes``.
    :param outcomes: all rows of the table of deliveries for the hours in question.
    """
    none = F.lit(None).cast("long")
    of_records = (
        records.groupBy("hour", "topic_id")
        .agg(F.max("topic").alias("topic"), F.sum("records"), F.sum("bytes"))
        .select(
            *("hour", "topic", "topic_id", F.lit("").alias("group_name")),
            *(F.col("sum(records)").alias("records"), F.col("sum(bytes)").alias("bytes")),
            *(F.lit(0).cast("long").alias(name) for name in ("settled", "dead", "failures")),
            *(none.alias(f"latency_{name}_us") for name in ("p50", "p99", "max")),
        )
    )
    return of_records.union(_hourly_of_groups(outcomes))


def _hourly_of_groups(outcomes: DataFrame) -> DataFrame:
    row = ["hour", "topic_id", "group_name"]
    timed = outcomes.withColumn("hour", hour_of("outcome_time"))
    # Nulls come first, so the rank of a latency is its row number less their number.
    ranked = timed.withColumn(
        "row", F.row_number().over(Window.partitionBy(*row).orderBy("latency_us"))
    )
    counts = timed.groupBy(*row).agg(
        F.count(F.lit(1)).alias("rows"), F.count("latency_us").alias("latencies")
    )
    rank = F.col("row") - (F.col("rows") - F.col("latencies"))

    def percentile(percent: int) -> Column:
        """The smallest latency that so many in a hundred do not exceed."""
        reached = rank * 100 >= F.col("latencies") * percent
        return F.min(F.when(reached, F.col("latency_us"))).alias(f"latency_p{percent}_us")

    zero = F.lit(0).cast("long")
    return (
        ranked.join(counts, row)
        .groupBy(*row)
        .agg(
            F.max("topic").alias("topic"),
            F.count_if(F.col("outcome") == "settled").alias("settled"),
            F.count_if(F.col("outcome") == "dead").alias("dead"),
            F.sum("failures").alias("failures"),
            percentile(50),
            percentile(99),
            F.max("latency_us").alias("latency_max_us"),
        )
        .select(
            *("hour", "topic", "topic_id", "group_name"),
            *(zero.alias("records"), zero.alias("bytes"), "settled", "dead", "failures"),
            *("latency_p50_us", "latency_p99_us", "latency_max_us"),
        )
    )
