# Tests: tests/test_demo.py
"""Four questions about the flights, as Spark SQL over the tables of the archive.

`open_views` makes a view for each table, and the view ``flights``: the rows as columns. A row that
was sent again at the crash is twice in ``records`` and once in ``flights``. `as_text` formats the
DataFrame of an answer.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from .workers import TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = {
    "row": "int",
    "carrier": "string",
    "flight": "int",
    "origin": "string",
    "dest": "string",
    "hour": "int",
    "dep_delay": "int",
    "arr_delay": "int",
}
"""Columns of a flight that the queries use, and their Spark types."""


class Query(NamedTuple):
    """A question and its SQL text."""

    question: str
    sql: str


DELAY_BY_CARRIER = """\
SELECT carrier,
       count(*)                              AS flights,
       round(avg(dep_delay), 1)              AS mean_delay_min,
       percentile_disc(0.9) WITHIN GROUP (ORDER BY dep_delay) AS p90_delay_min,
       count_if(arr_delay IS NULL)           AS never_arrived
FROM flights GROUP BY carrier ORDER BY mean_delay_min DESC, carrier"""

DELAY_BY_HOUR = """\
SELECT hour, count(*) AS flights, avg(dep_delay) AS mean_delay_min
FROM flights WHERE hour IS NOT NULL GROUP BY hour ORDER BY hour"""

QUERIES = (
    Query("Which carriers are late? (the values, as every format wrote them)", DELAY_BY_CARRIER),
    Query(
        "How many messages came in each hour, and what became of them? (the table hourly)",
        """\
SELECT hour, if(group_name = '', '(the topic)', group_name) AS group, records, settled, dead,
       latency_p50_us / 1000 AS p50_ms, latency_p99_us / 1000 AS p99_ms
FROM hourly ORDER BY hour, hourly.group_name""",
    ),
    Query(
        "Which settles were slowest, from the first lease on? (the table deliveries)",
        """\
SELECT d.offset, f.carrier, f.flight, f.origin, f.dest, d.grants, d.owner,
       round(d.latency_us / 1000, 1) AS latency_ms
FROM deliveries d JOIN flights f USING (topic_id, partition, offset)
WHERE d.outcome = 'settled' AND d.group_name = 'arrivals'
ORDER BY d.latency_us DESC, d.offset LIMIT 5""",
    ),
    Query(
        "Which records became dead letters, and why? (the tables deliveries and records)",
        """\
SELECT d.reason, count(*) AS letters, max(d.failures) AS failures,
       array_join(sort_array(collect_set(element_at(
           array('Mamamia', 'FlyMQ', 'BlipMQ', 'RustLog', 'MEGA'), int(r.producer_format)
       ))), ', ') AS written_through,
       min(d.offset) AS first_offset
FROM deliveries d JOIN records r USING (topic_id, partition, offset)
WHERE d.outcome = 'dead' AND d.group_name = 'arrivals'
GROUP BY d.reason ORDER BY d.reason""",
    ),
)


def open_views(spark: SparkSession, files: Mapping[str, Sequence[str]]) -> None:
    """Make a view of each table, and the view ``flights``.

    :param files: table -> files of its newest version.
    """
    for table, paths in files.items():
        spark.read.parquet(*paths).createOrReplaceTempView(table)
    spark.udf.register("flight", _flight, _type(_COLUMNS))
    flights = spark.sql(
        "SELECT topic_id, partition, offset, flight.* FROM "
        f"(SELECT *, flight(value) AS flight FROM records WHERE topic = '{TOPIC}')"
    )
    # Without the cache each query would decode the values again.
    flights.dropDuplicates(["row"]).cache().createOrReplaceTempView("flights")


def _type(columns: Mapping[str, str]) -> str:
    return "struct<" + ",".join(f"{name}:{kind}" for name, kind in columns.items()) + ">"


def _flight(value: bytes) -> tuple[Any, ...]:
    """Decode a value into the columns of a flight: every format wrote the same MessagePack map."""
    fields = msgpack.unpackb(value)
    return tuple(fields.get(name) for name in _COLUMNS)


def as_text(answer: DataFrame) -> str:
    """Return the answer as the text table that Spark prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        answer.show(100, truncate=False)
    return out.getvalue().strip()
