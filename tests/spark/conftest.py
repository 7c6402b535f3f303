"""The session of all tests, with the format ``brokerd`` registered."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokerd.spark import register
from tests.spark.logs import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

collect_ignore: list[str] = []
if find_spec("pyspark.sql.streaming.datasource") is None:
    collect_ignore += ["test_streaming.py", "test_typed_queries.py"]  # streams need Spark 4.2


@pytest.fixture(scope="session")
def source(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log with some records of three topics, two of them in sealed files."""
    log = Log(tmp_path / "data")
    for name in ("one", "two", "three"):
        topic_id = log.create(name)
        log.append(topic_id, 0, b"a of " + name.encode(), b"b of " + name.encode())
        log.append(topic_id, 1, b"c of " + name.encode())
        if name != "three":
            log.seal()
    log.publish()
    return log
