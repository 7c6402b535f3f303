"""Which records go, what became of records in groups, hourly counts: each against a plain loop."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from brokerd.walformat import EventKind, GroupEvent
from tests.archive.plain import Happened, deliveries, in_order, log_of
from tests.strategies.archive import Partition, Row, group_histories, on_spark, partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

frames = pytest.importorskip("brokerd.archive.cluster.frames", reason="needs pyspark")
transforms = pytest.importorskip("brokerd.archive.derive.transforms", reason="needs pyspark")

NOW_US = 10_000_000
TOMBSTONE_SECONDS = 4
NEXT_TOPIC_ID = 50
RECORD = (
    "file string, row long, topic_id long, partition int, offset long, key binary, "
    "tombstone boolean, append_us long, expires_at long"
)


# -- What goes -----------------------------------------------------------------------------------


def records_frame(spark: SparkSession, world: list[Partition]) -> DataFrame:
    """All records; partition n of the list is partition n % 3 of topic n // 3 + 1."""
    from pyspark.sql import functions as F

    rows = [
        (
            f"file-{at}",
            r.offset + 7,
            at // 3 + 1,
            at % 3,
            r.offset,
            r.key,
            r.key is not None and r.is_empty,
        )
        + (r.append_time_us, r.expires_at_us)
        for at, one in enumerate(world)
        for r in one.rows
    ]
    frame = spark.createDataFrame(rows, RECORD)
    return frame.withColumn("append_time", F.timestamp_micros("append_us")).drop("append_us")


def bounds_frame(spark: SparkSession, world: list[Partition]) -> DataFrame:
    rows = [
        (at // 3 + 1, at % 3, one.start, one.compact_below, one.compact)
        for at, one in enumerate(world)
    ]
    return spark.createDataFrame(rows, frames.BOUNDS)


Place = tuple[int, int, int]


def places(frame: DataFrame) -> list[Place]:
    """The records that a frame names, in order; each once, or the test would see it."""
    return sorted((r.topic_id, r.partition, r.offset) for r in frame.collect())


def chosen(world: list[Partition], choose: Any) -> list[Place]:
    """The records that a plain loop chooses: ``choose(partition, row)``."""
    return [
        (at // 3 + 1, at % 3, row.offset)
        for at, one in enumerate(world)
        for row in one.rows
        if choose(one, row)
    ]


def same_key(one: Partition, row: Any) -> list[int]:
    """Offsets of the other records of a key."""
    return [r.offset for r in one.rows if r.key == row.key and r is not row]


def is_compactable(one: Partition, row: Any) -> bool:
    return one.compact and row.key is not None and row.offset < one.compact_below


def is_superseded(one: Partition, row: Any) -> bool:
    return is_compactable(one, row) and max(same_key(one, row), default=-1) > row.offset


def is_old_tombstone(one: Partition, row: Any) -> bool:
    is_old = row.append_time_us <= NOW_US - TOMBSTONE_SECONDS * 1_000_000
    return is_compactable(one, row) and row.is_empty and is_old and not same_key(one, row)


def is_expired(one: Partition, row: Any) -> bool:
    return 0 < row.expires_at_us <= NOW_US and row.offset < one.compact_below


@on_spark(1)
@given(st.lists(partitions(), min_size=40, max_size=80))
def test_rules_choose_what_a_plain_loop_chooses(
    spark: SparkSession, world: list[Partition]
) -> None:
    """Trimmed, expired and superseded records and old tombstones go, and nothing else."""
    assume(sum(len(one.rows) for one in world) >= 80)
    records, bounds = records_frame(spark, world), bounds_frame(spark, world)
    assert places(transforms.below_start(records, bounds)) == chosen(
        world, lambda one, row: row.offset < one.start
    )
    assert places(transforms.expired(records, bounds, NOW_US)) == chosen(world, is_expired)
    assert places(transforms.superseded(records, bounds)) == chosen(world, is_superseded)
    tombstones = transforms.old_tombstones(records, bounds, NOW_US, TOMBSTONE_SECONDS)
    assert places(tombstones) == chosen(world, is_old_tombstone)


def test_a_second_copy_of_a_record_in_another_file_supersedes_nothing(spark: SparkSession) -> None:
    """Two files cover the same offsets: of each key its newest record stays, or is alone."""
    from pyspark.sql import functions as F

    rows = [Row(0, b"a", False, 0, 0), Row(1, b"a", False, 0, 0), Row(2, b"b", True, 0, 0)]
    world = [Partition(rows, 0, 3, True)]
    records, bounds = records_frame(spark, world), bounds_frame(spark, world)
    both = records.unionByName(records.withColumn("file", F.lit("copy")))
    assert places(transforms.superseded(both, bounds)) == [(1, 0, 0)] * 2
    tombstones = transforms.old_tombstones(both, bounds, NOW_US, TOMBSTONE_SECONDS)
    assert places(tombstones) == [(1, 0, 2)] * 2


def test_a_record_may_go_for_several_reasons(spark: SparkSession) -> None:
    """Each is told; what a rule returns has the columns that it was given."""
    world = [Partition([Row(0, None, False, 0, 1), Row(1, None, False, 0, 0)], 1, 2, False)]
    records, bounds = records_frame(spark, world), bounds_frame(spark, world)
    reasons = {
        "trimmed": transforms.below_start(records, bounds),
        "expired": transforms.expired(records, bounds, NOW_US),
    }
    assert all(frame.columns == records.columns for frame in reasons.values())
    found = sorted(tuple(row) for row in transforms.removable(reasons).collect())
    assert found == [("file-0", 7, 0, "expired"), ("file-0", 7, 0, "trimmed")]


def test_records_of_deleted_topics_go_and_those_of_topics_to_come_stay(spark: SparkSession) -> None:
    """An id that the bounds do not know is deleted if it was given, else it is a newer one."""
    row = Partition([], 0, 0, False)
    bounds = bounds_frame(spark, [row] * 6)  # topics 1 and 2, three partitions each
    ids = [(f"f{i}", 0, i, 0, 7, None, False, 0, 0) for i in (1, 2, 3, NEXT_TOPIC_ID - 1)]
    ids += [("f", 0, NEXT_TOPIC_ID, 0, 7, None, False, 0, 0)]
    records = spark.createDataFrame(ids, RECORD)
    deleted = transforms.of_deleted(records, bounds, NEXT_TOPIC_ID)
    assert places(deleted) == [(3, 0, 7), (NEXT_TOPIC_ID - 1, 0, 7)]
    assert deleted.columns == records.columns


def test_a_key_is_compared_by_its_bytes_and_in_its_partition_only(spark: SparkSession) -> None:
    """The same key elsewhere, a longer key, the empty key: each is another key."""
    same = [("f", 0, t, p, 0, b"k", False, 0, 0) for t, p in ((1, 0), (1, 1), (2, 0))]
    others = [("f", 0, 1, 0, at, key, False, 0, 0) for at, key in enumerate((b"k\0", b"", None), 1)]
    records = spark.createDataFrame(same + others, RECORD)
    bounds = spark.createDataFrame(
        [(t, p, 0, 100, True) for t in (1, 2) for p in (0, 1)], frames.BOUNDS
    )
    assert places(transforms.superseded(records, bounds)) == []


# -- What came out -------------------------------------------------------------------------------

EVENT = (
    "topic string, topic_id long, partition int, group_name string, lsn long, seq int, "
    "time_us long, kind string, offset long, amount long, token long, count long, owner string, "
    "reason string"
)


def events_frame(spark: SparkSession, log: Iterable[Happened]) -> DataFrame:
    from pyspark.sql import functions as F

    rows = [
        (f"t{h.topic_id}", h.topic_id, h.partition, h.group, h.lsn, h.seq, h.time_us)
        + (EventKind(h.event[0]).name, *h.event[1:5], h.event[5] or None, h.event[6] or None)
        for h in log
    ]
    frame = spark.createDataFrame(rows, EVENT)
    return frame.withColumn("time", F.timestamp_micros("time_us")).drop("time_us")


def open_frame(spark: SparkSession, rows: list[Any]) -> DataFrame:
    return spark.createDataFrame(rows, transforms.OPEN)


def delivery_rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    from pyspark.sql import functions as F

    for name in ("first_lease_time", "outcome_time"):
        frame = frame.withColumn(name, F.unix_micros(name))
    return sorted((tuple(row) for row in frame.collect()), key=in_order)


def no_bounds(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], frames.BOUNDS)


@on_spark(1)
@given(
    st.lists(group_histories(), min_size=30, max_size=60),
    st.lists(st.floats(0, 1), min_size=2, max_size=2).map(sorted),
)
def test_outcomes_are_those_of_a_plain_loop_wherever_runs_begin_and_end(
    spark: SparkSession, histories: list[list[list[GroupEvent]]], cuts: list[float]
) -> None:
    """Leases in one run, failures in the next, the settle in a third: one row, with all of it."""
    log = log_of(histories)
    assume(len(log) >= 60 and 0.0 < cuts[0] < cuts[1])
    entries = log[-1].lsn
    open_rows: list[Any] = []
    found: list[tuple[Any, ...]] = []
    marks = [0, *(int(entries * cut) + 1 for cut in cuts), entries + 1]
    for begin, end in pairwise(marks):
        part = events_frame(spark, [h for h in log if begin <= h.lsn < end])
        attempted = transforms.attempts(part, open_frame(spark, open_rows)).cache()
        found += delivery_rows(transforms.deliveries(attempted))
        open_rows = transforms.open_attempts(attempted, no_bounds(spark), 0, 0, end).collect()
        attempted.unpersist()
    assert sorted(found, key=in_order) == deliveries(log)


def test_open_attempts_are_dropped_when_no_outcome_can_come(spark: SparkSession) -> None:
    """Below the bound all is settled; but only when the log was read that far is it over."""
    leased = (int(EventKind.LEASED), 5, 30, 1, 1, "ann", "")
    log = [Happened(1, 0, "g", 10, 0, leased), Happened(2, 0, "g", 11, 0, leased)]
    attempted = transforms.attempts(events_frame(spark, log), open_frame(spark, []))
    bounds = spark.createDataFrame([(1, 0, 0, 6, False)], frames.BOUNDS)

    def left(frame: DataFrame, below: DataFrame, bounds_lsn: int, lsn: int) -> list[Any]:
        return transforms.open_attempts(frame, below, 3, bounds_lsn, lsn).collect()

    (waits,) = left(attempted, bounds, 40, 30)
    assert (waits.topic_id, waits.offset, waits.over_lsn, waits.owner) == (1, 5, 40, "ann")
    again = transforms.attempts(events_frame(spark, []), open_frame(spark, [waits]))
    assert [row.over_lsn for row in left(again, bounds, 60, 39)] == [40]
    assert left(again, bounds, 60, 40) == []


def test_a_lease_after_the_bound_passed_makes_an_attempt_anew(spark: SparkSession) -> None:
    """A seek goes back below the bound: what is leased there waits for its outcome as ever."""
    begun = ("t1", 1, 0, "g", 5, 10, 0, 1, None, None, "ann", 40)
    leased = (int(EventKind.LEASED), 5, 30, 2, 1, "bob", "")
    log = [Happened(1, 0, "g", 41, 0, leased)]
    attempted = transforms.attempts(events_frame(spark, log), open_frame(spark, [begun]))
    (row,) = transforms.open_attempts(attempted, no_bounds(spark), 0, 50, 50).collect()
    assert (row.owner, row.over_lsn, row.lsn) == ("bob", None, 41)


# -- What it amounts to --------------------------------------------------------------------------

COUNT = "hour_us long, topic string, topic_id long, records long, bytes long"
DELIVERY = (
    "topic string, topic_id long, partition int, group_name string, offset long, outcome string, "
    "failures long, outcome_us long, latency_us long"
)
HOUR_US = 3_600_000_000


def counts_frame(spark: SparkSession, rows: list[Any]) -> DataFrame:
    from pyspark.sql import functions as F

    frame = spark.createDataFrame(rows, COUNT)
    return frame.withColumn("hour", F.timestamp_micros("hour_us")).drop("hour_us")


def outcomes_frame(spark: SparkSession, rows: list[Any]) -> DataFrame:
    from pyspark.sql import functions as F

    frame = spark.createDataFrame(rows, DELIVERY)
    return frame.withColumn("outcome_time", F.timestamp_micros("outcome_us"))


def hourly_rows(spark: SparkSession, counts: list[Any], outcomes: list[Any]) -> list[Any]:
    from pyspark.sql import functions as F

    frame = transforms.hourly(counts_frame(spark, counts), outcomes_frame(spark, outcomes))
    frame = frame.withColumn("hour", F.unix_micros("hour"))
    return sorted(tuple(row) for row in frame.collect())


latencies = st.one_of(st.none(), st.integers(0, 9))


@on_spark(2)
@given(
    st.lists(
        st.tuples(st.integers(-1, 1), st.integers(1, 2), st.sampled_from("gh"), latencies),
        min_size=1,
        max_size=250,
    )
)
def test_percentiles_and_counts_are_exact(spark: SparkSession, seen: list[Any]) -> None:
    """The smallest latency that half, or 99 in 100, of an hour's outcomes do not exceed."""
    outcomes, expected = [], {}
    for at, (hour, topic_id, group, latency) in enumerate(seen):
        outcome = "dead" if at % 4 == 0 else "settled"
        time_us = hour * HOUR_US + at
        outcomes.append((f"t{topic_id}", topic_id, 0, group, at, outcome, at % 3, time_us, latency))
        group_of = expected.setdefault((hour * HOUR_US, f"t{topic_id}", topic_id, group), [])
        group_of.append((outcome, at % 3, latency))

    def row(key: Any, rows: list[Any]) -> tuple[Any, ...]:
        times = sorted(latency for *_, latency in rows if latency is not None)
        p50, p99, highest = (
            (times[-(-len(times) * p // 100) - 1] if times else None) for p in (50, 99, 100)
        )
        dead = sum(outcome == "dead" for outcome, *_ in rows)
        failures = sum(failed for _, failed, _ in rows)
        return (*key, 0, 0, len(rows) - dead, dead, failures, p50, p99, highest)

    assert hourly_rows(spark, [], outcomes) == sorted(row(k, v) for k, v in expected.items())


def test_counts_of_records_add_up_by_hour_and_topic(spark: SparkSession) -> None:
    """What stood there and what came since make one row; other hours and topics are other rows."""
    counts = [(0, "a", 1, 2, 50), (0, "a", 1, 3, 7), (HOUR_US, "a", 1, 1, 1), (0, "b", 2, 1, 9)]
    nothing = (0, 0, 0, None, None, None)
    assert hourly_rows(spark, counts, []) == [
        (0, "a", 1, "", 5, 57, *nothing),
        (0, "b", 2, "", 1, 9, *nothing),
        (HOUR_US, "a", 1, "", 1, 1, *nothing),
    ]
