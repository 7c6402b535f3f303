"""Spark Connect: a client of a server reads a log and writes to its broker (docs/spark.rst)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from benchmarks.process import BrokerProcess
from brokerd.client.mamamia import MamamiaClient
from tests.archive.test_with_broker import ROOT
from tests.spark.logs import Log

MISSING = [name for name in ("grpc", "grpc_status", "pandas") if find_spec(name) is None]
HAS_STREAMS = find_spec("pyspark.sql.streaming.datasource") is not None
COUNT = 20
"""Records in the archive, and as many in the journal alone."""
SECONDS = 1_800

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"Spark Connect needs {', '.join(MISSING)}: pip install pyspark[connect]",
    ),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield an empty broker."""
    directory = tmp_path_factory.mktemp("broker")
    process = BrokerProcess(directory / "data", directory / "log", formats=("mamamia",))
    with process:
        process.start()
        yield process


@pytest.fixture(scope="module")
def found(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a client read in each way."""
    work = tmp_path_factory.mktemp("client")
    log = Log(work / "data")
    topic_id = log.create("orders", partitions=1)
    for first in (0, COUNT):
        log.append(topic_id, 0, *(b"v%d" % n for n in range(first, first + COUNT)))
        if first == 0:
            log.seal()
            log.publish()
            log.roll_up()
    log.publish()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    # SPARK_TESTING: the server takes a free port, and the client asks for it.
    environment = {"PYTHONPATH": path, "SPARK_TESTING": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_client", str(log.path), broker.address, work],
        env={**os.environ, **environment},
        cwd=work,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["session"] == "pyspark.sql.connect.session"
    return found


def rows(*numbers: int) -> list[Any]:
    """Return the rows of some records."""
    return [[number, f"v{number}"] for number in numbers]


def stored(broker: BrokerProcess, topic: str) -> list[str]:
    """Return the values of a topic, in the order of their numbers."""
    with MamamiaClient(broker.address) as client:
        messages = client.acquire_batch(topic, "readers", "me", 1_000)
    return sorted((one.payload for one in messages), key=int)


def test_a_batch_has_the_rows_of_archive_and_journal(found: dict[str, Any]) -> None:
    assert found["batch"] == rows(*range(2 * COUNT))
    assert found["table"] == found["batch"]


def test_log_has_the_same_rows(found: dict[str, Any]) -> None:
    every = rows(*range(2 * COUNT))
    assert found["log"] == {
        "plain": every,
        "condition": every[10:],
        "offsets": every[10:],
        "json": every,
        "archive": every[:COUNT],
    }


def test_an_error_has_the_text_of_brokerd(found: dict[str, Any]) -> None:
    assert "BadLocation: " in found["absent"]
    assert "does not exist: load a broker's data directory, or an archive" in found["absent"]


def test_a_stream_has_the_same_rows_where_spark_has_streams(found: dict[str, Any]) -> None:
    if HAS_STREAMS:
        assert found["stream"] == rows(*range(2 * COUNT))
    else:
        # Spark 4.1 may hide the text of brokerd: "Python worker failed to connect back".
        assert "[STREAM_FAILED]" in found["stream"]


@pytest.mark.parametrize(("way", "topic"), [("sink", "batch"), ("stream sink", "stream")])
def test_sinks_store_each_row_once(
    found: dict[str, Any], broker: BrokerProcess, way: str, topic: str
) -> None:
    assert found[way] == "written"
    assert stored(broker, topic) == [str(number) for number in range(20)]
