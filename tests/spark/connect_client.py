"""A client of Spark Connect that reads a log in every way, and writes to its broker.

``python -m tests.spark.connect_client DATA_DIR SERVER WORK`` starts a local server of Spark
Connect, and prints what it read as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}


def start_session() -> SparkSession:
    """Start a server, and return a session of it."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote("local[2]").config(map=SETTINGS).getOrCreate()


def main(data_dir: str, server: str, work: str) -> None:
    """Print what each way reads, or the last line of its error."""
    spark = start_session()
    found: dict[str, Any] = {"session": type(spark).__module__}
    for name, step in (
        ("batch", lambda: batch(spark, data_dir)),
        ("log", lambda: log(spark, data_dir)),
        ("table", lambda: table(spark, data_dir)),
        ("absent", lambda: spark.read.format("brokerd").load(f"{data_dir}/absent").count()),
        ("stream", lambda: stream(spark, data_dir, Path(work, "stream"))),
        ("sink", lambda: sink(spark, server)),
        ("stream sink", lambda: stream_sink(spark, server, Path(work, "sink"))),
    ):
        try:
            found[name] = step()
        except Exception as error:  # a line for each way; the test compares it
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))
    spark.stop()


def values(frame: DataFrame) -> list[Any]:
    """Return offsets and values in order."""
    rows = frame.select("offset", "value").collect()
    return sorted([row["offset"], _text(row["value"])] for row in rows)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def batch(spark: SparkSession, data_dir: str) -> list[Any]:
    """Return the rows of the format."""
    return values(spark.read.format("brokerd").options(topics="orders").load(data_dir))


def log(spark: SparkSession, data_dir: str) -> dict[str, list[Any]]:
    """Return the rows of `brokerd.spark.log` with options that it handles in ways of its own."""
    import brokerd.spark  # the steps before know the format without an import

    def read(**options: str) -> DataFrame:
        return brokerd.spark.log(spark, data_dir, topics="orders", **options)

    return {
        "plain": values(read()),
        "condition": values(read().where("partition = 0 AND offset >= 10")),
        "offsets": values(read(**{"from": json.dumps({"orders": {"0": 10}})})),
        "json": values(read(payload="json")),
        "archive": values(read(only="archive")),
    }


def table(spark: SparkSession, data_dir: str) -> list[Any]:
    """Return the rows of a table of the catalog."""
    spark.sql(f"CREATE TABLE orders USING brokerd OPTIONS (path '{data_dir}', topics 'orders')")
    return values(spark.table("orders"))


def stream(spark: SparkSession, data_dir: str, work: Path) -> list[Any]:
    """Return the rows of a stream."""
    rows = spark.readStream.format("brokerd").options(topics="orders").load(data_dir)
    writer = rows.select("offset", "value").writeStream.format("parquet")
    writer = writer.option("path", str(work / "rows"))
    run(writer, work)
    return values(spark.read.parquet(str(work / "rows")))


def run(writer: Any, work: Path) -> None:
    """Run a stream over its present input."""
    writer.option("checkpointLocation", str(work / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()


def lines(spark: SparkSession) -> DataFrame:
    """Return the rows that the sinks get."""
    return spark.range(20).selectExpr("CAST(id AS string) AS value")


def sink(spark: SparkSession, server: str) -> str:
    """Write a batch to the topic ``batch``."""
    writer = lines(spark).write.format("brokerd").mode("append")
    writer.options(server=server, topic="batch").save()
    return "written"


def stream_sink(spark: SparkSession, server: str, work: Path) -> str:
    """Write a stream to the topic ``stream``."""
    lines(spark).write.text(str(work / "input"))
    rows = spark.readStream.format("text").load(str(work / "input"))
    writer = rows.writeStream.format("brokerd").options(server=server, topic="stream")
    run(writer, work)
    return "written"


if __name__ == "__main__":
    main(*sys.argv[1:])
