"""One session of Spark for all tests: two tasks at a time, loopback only, no page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokerd.archive.spark import NoSpark, SparkOptions, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which Spark notes what it ran, as it goes."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, event_log: Path) -> Iterator[SparkSession]:
    """The session; tests are skipped where there is no Spark or no Java."""
    directory = tmp_path_factory.mktemp("spark") / "work"
    settings = {**SETTINGS, "spark.eventLog.dir": event_log.as_uri()}
    options = SparkOptions("local[2]", settings=settings)
    try:
        with spark_session("tests", options, directory, os.environ) as session:
            yield session
    except NoSpark as error:
        pytest.skip(str(error))
