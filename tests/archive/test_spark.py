"""Spark runs on whatever Java there is, and leaves nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_tasks_run_in_python(spark: SparkSession) -> None:
    """What a task returns comes back."""
    found = spark.sparkContext.parallelize(range(4), 4).map(lambda number: number * 2).collect()
    assert found == [0, 2, 4, 6]
