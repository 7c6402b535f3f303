"""Settings and fixtures of all tests; docs/testing.rst describes the suites.

Hypothesis tries few examples by default, more with HYPOTHESIS_PROFILE=soak, many with =long.

SIGTERM ends the session. Twisted's own handler, which a running reactor installs, stops only the
reactor, and every test after that fails.

Logging starts here, without an observer. Before it starts, Twisted keeps every event in memory, and
with the event the broker and the disk it mentions: gigabytes in a run of all tests.

All tests share one Spark session with two tasks at a time, on loopback, without a page. Its tasks
reach the S3 server of the fixtures `s3_server` and `bucket`. Under pytest-xdist, a run without slow
tests has the files that mention `SparkSession` in one process, so that only one Java starts.
"""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from twisted.logger import globalLogBeginner

import brokerd
from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.cluster.session import NoSpark, SparkOptions, spark_session
from brokerd.security import passwords
from brokerd.server.compiled import compiled_modules
from tests.archive.inline import map_with_session
from tests.archive.s3 import bucket, environment, s3_server
from tests.compiled import COMPILED, modules_to_compile, replaces_method
from tests.observers import removed_observers

__all__ = ["bucket", "s3_server"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler.loadscope import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]

NOBODYS_CHEAP_HASH = re.sub("m=.*,t=.*,", "m=8,t=1,", passwords.NOBODYS_HASH)

FIRST = ("tests/simulator/", "tests/fuzz/", "tests/cross/")
"""Paths of long tests: with these, several processes begin, after Spark's."""

# No deadlines: a loaded machine is slow, not wrong.
settings.register_profile(
    "fast", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", settings.get_profile("fast"), max_examples=500)
settings.register_profile("long", settings.get_profile("fast"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)

# -- Processes -----------------------------------------------------------------------------------

_is_worker = False
"""Whether another process hands out the tests of this one."""
_ended = False


def _end(*_: object) -> None:
    """End the session now. A test that swallows exceptions delays the end to the next test."""
    global _ended
    _ended = True
    # pytest-xdist takes a worker that ends otherwise for a crashed one.
    returncode = pytest.ExitCode.INTERRUPTED if _is_worker else 128 + signal.SIGTERM
    pytest.exit("ended by SIGTERM", returncode=returncode)


def pytest_configure(config: pytest.Config) -> None:
    """Handle SIGTERM, also in the process that only hands out tests to others."""
    global _is_worker
    _is_worker = hasattr(config, "workerinput")
    signal.signal(signal.SIGTERM, _end)
    if COMPILED and (pure := sorted(set(modules_to_compile()) - set(compiled_modules()))):
        raise pytest.UsageError(f"these modules are not compiled: {' '.join(pure)}")


def pytest_report_header() -> str:
    """Tell which brokerd the session tests."""
    return f"brokerd: {len(compiled_modules())} compiled modules, {Path(brokerd.__file__).parent}"


def pytest_runtest_setup() -> None:
    """Handle SIGTERM again before each test, as a reactor may have replaced the handler."""
    if _ended:
        _end()
    signal.signal(signal.SIGTERM, _end)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark `soak` tests `slow`, skip `pure_only` ones where they cannot run, sort the rest.

    The longest pieces of work start first.
    """
    for item in items:
        if COMPILED and (mark := item.get_closest_marker("pure_only")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"pure Python only: {mark.args[0]}"))
        if item.get_closest_marker("soak") is not None:
            item.add_marker("slow")
    if _is_worker:
        items.sort(key=_turn)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Skip a test that Python keeps from replacing a method of a compiled object."""
    try:
        with removed_observers():
            return (yield)
    except AttributeError as error:
        if COMPILED and replaces_method(error):
            pytest.skip(f"pure Python only: {error}")
        raise


def pytest_collection_finish() -> None:
    """Exclude modules and tests from later garbage collections: many tests ask for one."""
    gc.collect()
    gc.freeze()


def _turn(item: pytest.Item) -> int:
    """Return 0 for files that use Spark, then the position in `FIRST`, then one more."""
    path = item.nodeid.partition("::")[0]
    if _uses_spark(path):
        return 0
    return next((at for at, start in enumerate(FIRST, 1) if path.startswith(start)), len(FIRST) + 1)


@cache
def _uses_spark(path: str) -> bool:
    """Return whether a file of tests has the type of the fixture `spark`."""
    file = ROOT / path
    return file.is_file() and "SparkSession" in file.read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Hand out tests to processes by file, and all tests with Spark to one process.

    Slow tests start Javas of their own, so a run with slow tests keeps to files.
    """
    from xdist.scheduler.loadscope import LoadScopeScheduling

    has_one_java = "not slow" in config.option.markexpr

    class FileScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return "spark" if has_one_java and _uses_spark(path) else path

    return FileScheduling(config, log)


# -- Passwords -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash with the least memory and time that Argon2 takes.

    tests/security/test_passwords.py uses the real figures, and so do brokers in processes of their
    own.
    """
    monkeypatch.setattr(passwords, "MEMORY_KIB", 8)
    monkeypatch.setattr(passwords, "PASSES", 1)
    monkeypatch.setattr(passwords, "NOBODYS_HASH", NOBODYS_CHEAP_HASH)


# -- Spark ---------------------------------------------------------------------------------------

SPARK_SETTINGS = {
    # Compiling or replanning a query of a few rows takes Java longer than running it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}
DELTA_JARS = os.environ.get("BROKERD_DELTA_JARS", "")
"""Delta Spark's jars for the Spark of this environment, with commas between them; else empty."""
DELTA_SETTINGS = {
    "spark.jars": DELTA_JARS,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}


@pytest.fixture(autouse=True)
def tasks_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks of a rollup in this process, unless a test is marked `spark_tasks`.

    A task of a few records costs Spark a hundred times its own time.
    """
    if request.node.get_closest_marker("spark_tasks") is None:
        monkeypatch.setattr(SparkRunner, "map", map_with_session)


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which Spark logs its events."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, event_log: Path, s3_server: str
) -> Iterator[SparkSession]:
    """Yield the session; skip tests without Spark or Java."""
    directory = tmp_path_factory.mktemp("spark") / "work"
    settings = {**SPARK_SETTINGS, "spark.eventLog.dir": event_log.as_uri()}
    if DELTA_JARS:
        settings |= DELTA_SETTINGS
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
