"""Settings that all tests share: fast by default, HYPOTHESIS_PROFILE=long digs deeper.

SIGTERM ends the session. Twisted's own handler, which a running reactor installs, would stop the
reactor alone, and every test after that would fail.

Logging has begun, to nobody. Until it does, Twisted keeps every event for whoever is told later,
and with it what the event is about: brokers with their disks, gigabytes in a run of all tests.

All tests share one session of Spark: two tasks at a time, loopback only, no page. Its tasks know
the way to the server that the fixtures `s3_server` and `bucket` are about.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from twisted.logger import globalLogBeginner

from brokerd.archive.cluster.session import NoSpark, SparkOptions, spark_session
from tests.archive.s3 import bucket, environment, s3_server

__all__ = ["bucket", "s3_server"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadlines: a loaded machine is slow, not wrong.
settings.register_profile(
    "fast", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", settings.get_profile("fast"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)

_ended = False


def _end(*_: object) -> None:
    """End the session now; what swallows exceptions only delays it to the next test."""
    global _ended
    _ended = True
    pytest.exit("ended by SIGTERM", returncode=128 + signal.SIGTERM)


def pytest_runtest_setup() -> None:
    """Before each test, as a reactor may have taken the signal in the meantime."""
    if _ended:
        _end()
    signal.signal(signal.SIGTERM, _end)


SPARK_SETTINGS = {
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
def spark(
    tmp_path_factory: pytest.TempPathFactory, event_log: Path, s3_server: str
) -> Iterator[SparkSession]:
    """The session; tests are skipped where there is no Spark or no Java."""
    directory = tmp_path_factory.mktemp("spark") / "work"
    settings = {**SPARK_SETTINGS, "spark.eventLog.dir": event_log.as_uri()}
    options = SparkOptions("local[2]", settings=settings)
    try:
        with ExitStack() as stack:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in environment(s3_server).items():
                    patch.setenv(name, value)
                starting = spark_session("tests", options, directory, os.environ)
                session = stack.enter_context(starting)
            yield session
    except NoSpark as error:
        pytest.skip(str(error))
