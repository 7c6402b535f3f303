"""Queries on executors of their own have the rows that they have beside the driver."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.held_rollup import CLUSTER
from benchmarks.process import die_with_parent
from brokerd import __version__
from brokerd.archive.cluster.shipping import Package, package
from brokerd.spark.options import parse_options
from brokerd.spark.plan.query_plan import plan_query
from brokerd.spark.read import row_format as module
from tests.spark.logs import NOW_US, Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ["topic", "partition", "offset", "value"]
SECONDS = 300.0

SCRIPT = """
    import json, os, sys, threading, time
    from pathlib import Path
    from benchmarks.held_rollup import executors
    from brokerd.archive.cluster.session import SparkOptions, spark_session
    from brokerd.spark import register

    columns = ["topic", "partition", "offset", "value"]

    def told(rows):
        print(json.dumps(sorted([*row[:3], row[3].hex()] for row in rows)), flush=True)

    def slowly(row):
        time.sleep(0.05)
        return tuple(row)

    def kill_one():
        time.sleep(1.0)
        os.kill(executors(os.getpid())[0], 9)

    place, work, output, master = sys.argv[1:]
    with spark_session("cluster", SparkOptions(master), Path(work), os.environ) as spark:
        register(spark)
        reader = spark.read.format("brokerd").option("partitionBytes", "1000")
        frame = reader.option("columns", ",".join(columns)).load(place)
        parts = frame.rdd.getNumPartitions()
        told(frame.collect())
        killer = threading.Thread(target=kill_one)
        killer.start()
        told(frame.rdd.map(slowly).collect())
        killer.join()
        stream = spark.readStream.format("brokerd").option("maxBytesPerTrigger", "2000")
        query = (
            stream.load(place).select(*columns).writeStream.format("parquet")
            .option("path", output + "/rows").option("checkpointLocation", output + "/checkpoint")
            .trigger(availableNow=True).start()
        )
        os.kill(executors(os.getpid())[0], 9)
        query.awaitTermination()
        told(spark.read.parquet(output + "/rows").collect())
        print(parts)
"""


def fill(log: Log) -> None:
    """Records in closed files, in the archive, and in the file that is written to."""
    topic_id = log.create("many")
    for turn in range(6):
        for partition in (0, 1):
            values = [b"%d of %d in %d" % (at, partition, turn) for at in range(15)]
            log.append(topic_id, partition, *values)
        log.seal()
        if turn == 2:
            log.publish()
            log.roll_up()
    log.append(topic_id, 0, b"the last one")
    log.publish()


def rows_of(source: SparkSession, log: Log) -> list[list[Any]]:
    frame = source.read.format("brokerd").option("columns", ",".join(COLUMNS)).load(str(log.path))
    return sorted([*row[:3], row[3].hex()] for row in frame.collect())


@pytest.mark.slow
def test_rows_are_the_same_on_a_cluster(source: SparkSession, log: Log, tmp_path: Path) -> None:
    """Of a query, of one amid which an executor is killed, Java and all, and of such a stream."""
    fill(log)
    expected = rows_of(source, log)
    assert len(expected) == 190
    output = tmp_path / "output"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    arguments = [str(log.path), str(tmp_path / "work"), str(output), CLUSTER]
    done = subprocess.run(
        [sys.executable, "-c", dedent(SCRIPT), *arguments],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        preexec_fn=die_with_parent,
    )
    assert (done.returncode, done.stderr) == (0, "")
    *found, parts = map(json.loads, done.stdout.splitlines())
    assert found == [expected] * 3
    assert parts > 2


def test_an_executor_with_another_brokerd_is_told(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with one of the same version; both are named, and nothing of the plan is read."""
    options = parse_options({"path": str(log.path)})
    rows = module.row_format(options)
    other = Package(__version__, "feed" * 8)
    with monkeypatch.context() as earlier:
        earlier.setattr(module, "package", lambda: other)
        piece = module.SplitPartition(plan_query(log.place, options.request, NOW_US).splits[0])
    piece.pickled = b"no pickle"
    sent = pickle.loads(pickle.dumps(piece))
    words = rf"has brokerd {package()}, and brokerd {other} planned"
    with pytest.raises(module.VersionMismatch, match=re.escape(words)):
        list(rows.read(sent, rows.schema()))
