# Tests: tests/archive/test_transforms.py
"""Implements the rules of docs/archive-tables.rst as functions from data frames to data frames.

The rules cover removable records, outcomes of deliveries, and hourly counts.

*Records* is a frame with the columns ``topic_id``, ``partition`` and ``offset`` of the table of
records, and further columns that a function names. The functions return some rows with all columns.
*Bounds* has a row for each partition of each live topic: ``topic_id``, ``partition``, ``start``,
``compact_below`` (long) and ``compact`` (boolean). It is broadcast.
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
"""The key of attempts: one record in one group.

Spark sorts by these columns. This is much faster if the first column has many values."""

OPEN = (
    "topic string, topic_id long, partition int, group_name string, offset long, lsn long, "
    "seq int, grants long, failures long, first_lease_time timestamp, owner string, over_lsn long"
)
"""Columns of open attempts, which have no outcome yet.

``lsn`` and ``seq`` belong to the newest event. From ``over_lsn`` on, the attempt gets no outcome;
it may be null. ``grants`` is null for a record that was never leased."""

ATTEMPTS = f"{OPEN}, outcome string, reason string, outcome_time timestamp"
"""Columns of attempts. ``outcome`` is null for open attempts."""


# -- Removable records ---------------------------------------------------------------------------


def of_deleted(records: DataFrame, bounds: DataFrame, next_topic_id: int) -> DataFrame:
    """Return the records of deleted topics: ids below ``next_topic_id`` that the bounds lack."""
    live = F.broadcast(bounds.select("topic_id").distinct())
    old = records.where(F.col("topic_id") < next_topic_id)
    return old.join(live, "topic_id", "left_anti").select(*records.columns)


def below_start(records: DataFrame, bounds: DataFrame) -> DataFrame:
    """Return the records below the start offset of their partition."""
    return _where(records, bounds, F.col("offset") < F.col("start"))


def expired(records: DataFrame, bounds: DataFrame, now_us: int) -> DataFrame:
    """Return the expired records below ``compact_below``. Needs ``expires_at``."""
    is_past = (F.col("expires_at") > 0) & (F.col("expires_at") <= now_us)
    return _where(records, bounds, is_past & (F.col("offset") < F.col("compact_below")))


def superseded(records: DataFrame, bounds: DataFrame) -> DataFrame:
    """Return the compactable records whose ``key`` has a record at a later offset.

    Files may overlap. A copy of a record at the same offset is not later.
    """
    keyed = records.where(F.col("key").isNotNull())
    newest = F.max("offset").over(Window.partitionBy(*KEY))
    older = keyed.withColumn("newest", newest).where("newest > offset")
    return _compactable(older, bounds).select(*records.columns)


def old_tombstones(
    records: DataFrame, bounds: DataFrame, now_us: int, tombstone_seconds: int
) -> DataFrame:
    """Return the old compactable tombstones that are the only record of their key.

    A tombstone is old if it was appended ``tombstone_seconds`` or more before ``now_us``. Needs
    ``key``, ``append_time`` and ``tombstone``, which says whether a record has a key and an empty
    value.
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
    """Unite frames of removable records, and add the reasons. A row may appear more than once.

    :param reasons: frames by reason, at least one. Each has ``file``, and ``row``, the number of
        the row in the file.
    :return: ``file``, ``row``, ``offset``, ``reason``.
    """
    frames = [
        frame.select("file", "row", "offset", F.lit(reason).alias("reason"))
        for reason, frame in reasons.items()
    ]
    return reduce(lambda one, other: one.union(other), frames)


# -- Deliveries ----------------------------------------------------------------------------------


def attempts(events: DataFrame, open_before: DataFrame) -> DataFrame:
    """Return the attempts of groups at records. An attempt lasts from first lease to outcome.

    :param events: rows of the table of events, in any order.
    :param open_before: the open attempts of earlier events, with the columns `OPEN`.
    :return: attempts with the columns `ATTEMPTS`. An attempt without outcome is left out if a later
        attempt follows.
    """
    steps = _steps(events).unionByName(open_before, allowMissingColumns=True)
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
    """Return the events of single records, in the columns of attempts."""
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

    A new attempt begins after an outcome, and where grants restart at 1.
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
    """Return the attempts with an outcome, as rows of the table of deliveries."""
    latency = F.unix_micros("outcome_time") - F.unix_micros("first_lease_time")
    return attempted.where(F.col("outcome").isNotNull()).select(
        *("topic", *PARTITION, "group_name", "offset", "outcome", "reason"),
        F.coalesce("grants", F.lit(0)).cast("long").alias("grants"),
        F.coalesce("failures", F.lit(0)).cast("long").alias("failures"),
        *("first_lease_time", "outcome_time"),
        latency.alias("latency_us"),
        *("owner", "lsn"),
    )


def open_attempts(
    attempted: DataFrame, bounds: DataFrame, next_topic_id: int, bounds_lsn: int, lsn: int
) -> DataFrame:
    """Return the attempts that can still get an outcome, with the columns `OPEN`.

    Records of deleted topics get no outcome. Every group had settled the records below
    ``compact_below`` at LSN ``bounds_lsn``. They get no outcome once all events below that LSN are
    included.

    :param lsn: all events below this LSN are included.
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


# -- Hourly counts -------------------------------------------------------------------------------


def hour_of(time: str) -> Column:
    """Return the column of the hours' starts for a column of timestamps."""
    micros = F.unix_micros(time)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(HOUR_US)))


def hourly(records: DataFrame, outcomes: DataFrame) -> DataFrame:
    """Return rows of the table ``hourly``.

    :param records: partial counts, which are summed. Columns: ``hour``, ``topic``, ``topic_id``,
        ``records``, ``bytes``.
    :param outcomes: all rows of the table of deliveries for the hours to count.
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
    key = ["hour", "topic_id", "group_name"]
    timed = outcomes.withColumn("hour", hour_of("outcome_time"))
    # Nulls come first, so the rank of a latency is its row number minus the number of nulls.
    ranked = timed.withColumn(
        "row", F.row_number().over(Window.partitionBy(*key).orderBy("latency_us"))
    )
    counts = timed.groupBy(*key).agg(
        F.count(F.lit(1)).alias("rows"), F.count("latency_us").alias("latencies")
    )
    rank = F.col("row") - (F.col("rows") - F.col("latencies"))

    def percentile(percent: int) -> Column:
        """Return the smallest latency that ``percent`` of the latencies do not exceed."""
        reached = rank * 100 >= F.col("latencies") * percent
        return F.min(F.when(reached, F.col("latency_us"))).alias(f"latency_p{percent}_us")

    zero = F.lit(0).cast("long")
    return (
        ranked.join(counts, key)
        .groupBy(*key)
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
